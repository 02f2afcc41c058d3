"""The page in Chromium: nothing fails, tables sort, figures can be read, saved, looked at closely; on a phone, too."""

import json
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from xml.etree import ElementTree

import made_up
import pytest
from browser import a_tab

from fedsense.experiment import find_runs
from fedsense.recipe import make_recipe
from fedsense.report.gather import document, light_lines
from fedsense.report.page import page
from fedsense.report.watch import Watched, serve
from fedsense.result import Result, by_dataset

NAMES = ("ann", "bob", "cyd", "dan")
LAST = {"fedapa": (0.9, 0.4, 0.7, 0.6), "local": (0.5, 0.6, 0.7, 0.3)}


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with a_tab(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


def small(folder, rounds=3, done=3):
    for method, values in LAST.items():
        lines = [(r, {c: v * r / rounds for c, v in zip(NAMES, values, strict=True)}) for r in range(1, done + 1)]
        graph = {"0": {a: dict.fromkeys(NAMES, 0.25) for a in NAMES}}
        seen = [{"round": done, "collaboration": graph}] if method == "fedapa" else []
        moved = [{"round": r, "prototypes moved": {"first": 1 / r}} for r in range(1, done + 1)]
        made_up.write(
            folder / f"{method}-seed0",
            made_up.about(method, 0, NAMES, rounds),
            scores=made_up.scores(lines, ("accuracy", "macro-f1"), ("personal", "global")),
            ledger=made_up.ledger(NAMES, done),
            observations=seen or moved,
        )
    return folder


def found(folder):
    return document("small", [Result.read(run, light_lines) for run in find_runs(folder)])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with every figure there is."""
    folder = tmp_path_factory.mktemp("report")
    data = found(small(folder))
    count = [[3, 1], [2, 2], [0, 4], [5, 0]]
    counts = {"classes": ["walk", "sit"], "clients": NAMES, "train": count, "val": count, "test": count, "seed": 0}
    data["counts"] = {"made-up": counts}
    confusion = {"classes": ["walk", "sit"], "cells": [[8, 2], [1, 9]], "samples": 20, "seed": 0}
    data["confusion"] = {"fedapa": confusion, "local": confusion}
    plane = [[0.1 * i, (0.3 * i) % 1] for i in range(9)]
    embedding = {
        "classes": ["walk", "sit"],
        "clients": NAMES,
        "label": [0, 1] * 4,
        "client": [0, 1, 2, 3] * 2,
        "seed": 0,
    }
    embedding |= {"what": "prototype", "space": "features", "proto_label": [0], "proto_client": [-1]}
    data["embeddings"] = {"fedapa": embedding | {"planes": {"t-SNE": plane, "PCA": plane}}}
    (folder / "report.html").write_text(page(data))
    return (folder / "report.html").as_uri()


def test_it_opens_with_every_figure_and_no_complaint(tab, report):
    tab.open(report)
    figures = tab.js(
        "[...document.querySelectorAll('figure')].map(f => ({id: f.id, hidden: f.hidden, "
        "role: f.querySelector('svg').getAttribute('role'), alt: f.querySelector('svg').getAttribute('aria-label'), "
        "desc: f.querySelector('desc').textContent, bad: /NaN|undefined|null|Infinity/.test(f.innerHTML)}))"
    )
    assert [f["id"].removeprefix("figure-") for f in figures if not f["hidden"]] == [
        "convergence", "strip", "rounds-by-client", "class-by-client", "confusion", "embeddings", "drift",
        "collaboration", "bytes", "totals", "time",
    ]  # fmt: skip
    for figure in figures:
        assert figure["role"] == "img"
        assert len(figure["alt"]) > 40
        assert figure["desc"] in figure["alt"]
        assert not figure["bad"], figure["id"]
    assert tab.js("document.querySelectorAll('h1').length") == 1
    assert tab.js(
        "[...document.querySelectorAll('select')].every(s => s.getAttribute('aria-label') || s.closest('label'))"
    )
    assert tab.errors == []


FIRST_COLUMN = "[...document.querySelectorAll('#clients tbody th')].map(cell => cell.textContent)"


def test_tables_sort_by_click_and_by_key(tab, report):
    tab.open(report)
    heads = "[...document.querySelectorAll('#clients thead button')]"
    assert tab.js(FIRST_COLUMN) == ["ann", "bob", "cyd", "dan"]
    tab.js(f"{heads}.find(b => b.textContent === 'fedapa').click()")
    assert tab.js(FIRST_COLUMN) == ["ann", "cyd", "dan", "bob"]
    assert tab.js("document.querySelector('#clients [aria-sort]').getAttribute('aria-sort')") == "descending"
    tab.js(f"{heads}.find(b => b.textContent === 'local').focus()")
    tab.press("Enter")
    assert tab.js(FIRST_COLUMN) == ["cyd", "bob", "ann", "dan"]
    tab.press("Enter")
    assert tab.js(FIRST_COLUMN) == ["dan", "ann", "bob", "cyd"]
    assert tab.js("[...document.querySelectorAll('#clients td.lost')].map(c => c.textContent)") == ["40.0 % ▾"]
    assert tab.errors == []


def test_what_is_not_known_is_last_either_way(tab, report):
    tab.open(report)
    said = tab.js(
        "(() => { const t = table('t', ['who', 'how'], [['p', '–'], ['q', '2.0±1'], ['r', '−10'], ['s', '10']]); "
        "const click = () => { t.querySelectorAll('button')[1].click(); "
        "return [...t.querySelectorAll('tbody th')].map(cell => cell.textContent).join(''); }; "
        "return [click(), click()]; })()"
    )
    assert said == ["sqrp", "rqsp"]


def test_figures_are_saved_as_pictures_and_numbers(tab, report):
    tab.open(report)
    text = tab.js("picture(figures.find(f => f.id === 'convergence'))")
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text
    for one in tab.js("figures.map(f => [f.id, picture(f), csv(f.rows())])"):
        name, drawn, numbers = one
        ElementTree.fromstring(drawn)
        assert "var(" not in drawn, name
        assert numbers.count("\n") > 2, name
    table = tab.js("csv(figures.find(f => f.id === 'strip').rows())").splitlines()
    assert table[:2] == ["method,client,accuracy,gain over Local", "fedapa,ann,0.9,0.4"]
    assert tab.js('csv([["a,b", "c\\"d", null, 1]])') == '"a,b","c""d",,1\n'


def test_dragging_looks_closer_and_choices_redraw(tab, report):
    tab.open(report)
    tab.js("document.querySelector('#figure-convergence').scrollIntoView({block: 'center'})")
    box = tab.js("(({x, y}) => [x, y])(document.querySelector('#figure-convergence svg').getBoundingClientRect())")
    tab.drag((box[0] + 100, box[1] + 60), (box[0] + 250, box[1] + 160))
    assert tab.js("figures[0].zoom.x[1] - figures[0].zoom.x[0] < 0.9 && !figures[0].back.hidden")
    tab.js("figures[0].back.click()")
    assert tab.js("figures[0].zoom.x") == [0, 1]
    tab.js("$('metric').value = 'macro-f1'; $('metric').dispatchEvent(new Event('change'))")
    assert "macro-f1" in tab.js("document.querySelector('#figure-convergence .note').textContent")
    tab.js("document.querySelector('#methods button').click()")
    assert tab.js("document.querySelector('#methods button').getAttribute('aria-pressed')") == "false"
    assert "fedapa" not in tab.js("document.querySelector('#figure-convergence svg').textContent")
    assert tab.errors == []


def test_light_and_dark(tab, report):
    tab.open(report)
    tab.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    paper = "getComputedStyle(document.body).backgroundColor"
    tab.wait("document.documentElement.dataset.theme === 'dark'")
    dark = tab.js(paper)
    tab.js("document.querySelector('#theme').click()")
    assert tab.js("document.documentElement.dataset.theme") == "light"
    assert tab.js(paper) != dark
    tab.js("localStorage.clear()")
    tab.ask("Emulation.setEmulatedMedia", features=[])


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_does_not_scroll_sideways(tab, report, width):
    tab.open(report, width=width, height=800)
    assert tab.js("document.scrollingElement.scrollWidth") <= width
    wide = tab.js(
        "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().right > innerWidth).length"
    )
    assert wide == 0
    assert tab.errors == []


LONG = "synthetic-imu-of-somebody"


@pytest.fixture(scope="module")
def two_datasets(tmp_path_factory):
    """Two experiments whose clients have the same names, but for one."""
    folder = tmp_path_factory.mktemp("two")
    for name, people in (("walks", NAMES), ("rides", (*NAMES[:3], "eve"))):
        for method, values in LAST.items():
            facts = made_up.about(method, 0, people, 1) | {"federation": f"{LONG}-{name}"}
            of = dict(zip(people, values, strict=True))
            lines = made_up.scores([(1, of)], ("accuracy", "macro-f1"), ("personal", "generalisation", "global"))
            made_up.write(folder / name / f"{method}-seed0", facts, scores=lines, ledger=made_up.ledger(people, 1))
    runs = [run for name in ("walks", "rides") for run in find_runs(folder / name)]
    data = document("two", by_dataset([Result.read(run, light_lines) for run in runs]))
    counts = {"classes": ["walk"], "seed": 0, **dict.fromkeys(("train", "val", "test"), [[1]] * 4)}
    data["counts"] = {name: counts | {"clients": who} for name, who in data["people"]["personal"].items()}
    (folder / "report.html").write_text(page(data))
    return (folder / "report.html").as_uri()


def test_datasets_are_shown_apart(tab, two_datasets):
    tab.open(two_datasets)
    said = "[...document.querySelectorAll('#clients > .table')].map(card => card.querySelector('h3').textContent)"
    assert tab.js(said) == [f"Every client in numbers: {LONG}-{name}" for name in ("walks", "rides")]
    assert tab.js("document.querySelectorAll('#clients .table')[1].querySelector('table').innerText.includes('eve')")
    assert tab.js(FIRST_COLUMN) == [*NAMES, *NAMES[:3], "eve"]
    heads = "[...document.querySelectorAll('#clients .table')].map(card => card.querySelector('thead').textContent)"
    assert tab.js(heads) == ["clienttraintestfedapalocal"] * 2
    rows = "csv(figures.find(f => f.id === '{}').rows()).split('\\n').map(line => line.split(',')[0]).slice(1, 5)"
    assert tab.js(rows.format("rounds-by-client")) == list(NAMES), "nobody of the other dataset"
    assert tab.js("[...document.querySelector('#figure-class-by-client select').options].map(o => o.value)") == [
        f"{LONG}-walks", f"{LONG}-rides",
    ]  # fmt: skip
    assert f"{LONG}-walks" in tab.js("document.querySelector('#figure-class-by-client .note').textContent")
    assert tab.errors == []


def test_dots_are_whole_and_one_round_is_one_on_the_axis(tab, report, two_datasets):
    """Clips leave room for the dots of the first and last round; rounds that were not run are not named."""
    tab.open(report)
    out = (
        "[...document.querySelectorAll('#figure-convergence circle, #figure-drift circle')].filter(dot => { "
        "const clip = document.querySelector(dot.parentNode.getAttribute('clip-path').slice(4, -1)).firstChild; "
        "const [x, w] = ['x', 'width'].map(name => +clip.getAttribute(name)), cx = +dot.getAttribute('cx'); "
        "return cx - 2.8 < x || cx + 2.8 > x + w; }).length"
    )
    assert tab.js("document.querySelectorAll('#figure-convergence circle, #figure-drift circle').length") > 10
    assert tab.js(out) == 0
    tab.open(two_datasets)
    assert tab.js(out) == 0
    assert tab.js("D.curves.personal.accuracy['local · ' + D.dataset[D.methods[0]]].round") == [1]
    whole = "[...document.querySelectorAll('#figure-convergence text')].map(t => t.textContent)"
    assert {text for text in tab.js(whole) if text.isdigit()} == {"1"}


def test_on_a_phone_tables_and_labels_tell_datasets_apart(tab, two_datasets):
    tab.open(two_datasets, width=390, height=800)
    scores = "document.querySelector('[aria-label=\"Scores\"]')"
    cells = f"[...{scores}.querySelectorAll('tbody tr:first-child > *')]"
    seen = f"{cells}.filter(cell => cell.getBoundingClientRect().right < 390)"
    tab.wait(f"{scores}.classList.contains('more')")
    assert tab.js(f"{seen}.length") >= 3, "dataset, method and a score"
    tab.js(f"{scores}.scrollLeft = 10000")
    tab.wait(f"!{scores}.classList.contains('more')")
    first = f"{scores}.querySelector('tbody th').getBoundingClientRect().left"
    assert tab.js(f"{first} - {scores}.getBoundingClientRect().left") == 0, "the first column stays"
    labels = tab.js("[...document.querySelectorAll('#figure-strip text')].map(t => t.textContent)")
    cut = [text for text in labels if "…" in text]
    assert len({text for text in cut if text.startswith("fedapa")}) == 2
    assert {text[-5:] for text in cut} == {"walks", "rides"}
    assert tab.js("document.scrollingElement.scrollWidth") <= 390
    assert tab.errors == []


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """200 clients, 300 rounds, three views, two metrics."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "large.html").write_text(page(found(made_up.large(folder / "runs"))))
    return folder / "large.html"


def test_many_clients_and_rounds_are_a_small_file(large):
    assert 1e6 < large.stat().st_size < 10e6


def test_many_clients_and_rounds_open(tab, large):
    """The time is printed, not judged: the machine may be busy."""
    tab.open(large.as_uri())
    took = tab.js("performance.getEntriesByType('navigation')[0].domComplete")
    print(f"200 clients, 300 rounds: {took / 1000:.2f} s")
    assert tab.js("document.querySelector('#figure-rounds-by-client image').getAttribute('href').length") > 10_000
    assert tab.errors == []


@pytest.fixture
def served(tmp_path):
    """An experiment of which nothing has been evaluated yet, watched."""
    folder = tmp_path / "going"
    folder.mkdir()
    recipe = {"name": "going", "rounds": 3, "data": "synthetic-imu", "model": "flic-mlp", "method": ["fedapa", "local"]}
    (folder / "recipe.json").write_text(make_recipe(recipe).model_dump_json())
    watched = Watched(folder)
    with serve(watched, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield folder, server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_watched_run_is_redrawn_without_loading_again(tab, served):
    folder, port = served
    tab.open(f"http://127.0.0.1:{port}/")
    assert "No run has begun yet." in tab.js("document.querySelector('#words').textContent")
    assert tab.js("document.querySelector('#facts').textContent").endswith("2 of 2 runs unfinished")
    tab.js("globalThis.still = true")
    small(folder, done=1)
    tab.wait("document.querySelector('progress').value === 1")
    assert tab.js("document.querySelectorAll('progress').length") == 2
    tab.js("[...document.querySelectorAll('#clients thead button')].find(b => b.textContent === 'fedapa').click()")
    small(folder, done=3)
    tab.wait("document.querySelector('progress').value === 3")
    assert tab.js("document.querySelector('#facts').textContent").endswith("all runs are done")
    assert tab.js("globalThis.still") is True
    assert tab.js(FIRST_COLUMN) == ["ann", "cyd", "dan", "bob"], "still sorted"
    assert tab.errors == []


def test_only_the_page_and_its_data_are_served(served):
    folder, port = served
    small(folder)

    def ask(path, method="GET", host=None):
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    status, text = ask("/data.json")
    assert status == 200
    stamp = json.loads(text)["stamp"]
    assert ask(f"/data.json?have={stamp}") == (204, b"")
    assert ask("/")[0] == 200
    assert ask("/", host=f"localhost:{port}")[0] == 200
    assert ask("/", host="evil.example")[0] == 403
    assert ask("/fedapa-seed0/run.json")[0] == 404
    assert ask("/../../etc/passwd")[0] == 404
    assert ask("/", method="POST")[0] == 501
    (folder / "local-seed0" / "scores.jsonl").write_text("")  # cut off, as a resumed run does
    assert "local" not in json.loads(ask("/data.json")[1])["final"]["personal"]["accuracy"]


def test_the_command_ends_cleanly(tmp_path):
    small(tmp_path)
    command = [sys.executable, "-m", "fedsense", "watch", str(tmp_path), "--host", "0.0.0.0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert "http://0.0.0.0:" in line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "warning: whoever reaches this machine" in err
    assert "Traceback" not in err
