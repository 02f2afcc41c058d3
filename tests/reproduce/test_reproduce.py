"""``fedsense reproduce`` on a small made-up paper, whole; and the plans of the real ones, without running them."""

import json
import re
import shlex
import shutil
import tarfile

import numpy as np
import pytest

from conftest import real
from fedsense.cli import _run as cli
from fedsense.engine.settings import HELD_OUT, VIEWS
from fedsense.recipe import load_recipe
from fedsense.reproduce.cards import Cell, load_card, papers
from fedsense.reproduce.gallery import MARK, origin, plain_command
from fedsense.reproduce.outcome import measured
from fedsense.reproduce.own import MODULES
from fedsense.reproduce.plan import Ways, computed, make_plan
from fedsense.result import Result

RECIPE = """\
name = "made-up"
rounds = 3
seeds = [0, 1]
executor = "serial"

[data]
name = "synthetic-imu"
clients = 3
samples = 24

[model]
name = "flic-mlp"

[evaluation]
views = ["personal", "global"]
metrics = ["accuracy"]

[training]
epochs = 1

[[method]]
name = "local"

[[method]]
name = "fedavg"
"""
CARD = """\
paper = "Made-up"
title = "A paper that nobody wrote"
small = ["rounds=2", "seeds=[0]"]

[setting.here]
recipe = "made-up.toml"

[setting.there]
recipe = "made-up.toml"
set = ['data={name="hhar"}']
nearest = ['data={name="synthetic-imu", clients=2, samples=24}']

[[table]]
id = "T1"
title = "Methods"
printed = "Table 1"
across = [{ name = "HERE", setting = "here" }, { name = "HHAR", setting = "there" }]
columns = [{ name = "Acc" }, { name = "KB", measure = "traffic", of = "fedavg" }]
rows = [
    { name = "Local", method = "local", values = "50.0±1.0 0.5  60.0 0.5" },
    { name = "FedAvg", method = "fedavg", values = "60.0 1.0  70.0 1.0" },
]

[[figure]]
id = "F1"
title = "Over rounds"
printed = "Fig. 1"
shows = "lines"
draw = "curves"
setting = "here"
columns = [{ name = "HERE" }]
rows = [{ name = "FedAvg", method = "fedavg" }]

[[figure]]
id = "F2"
title = "By hand"
printed = "Fig. 2"
shows = "a drawing"
why = "drawn with a pencil"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made-up.toml").write_text(RECIPE)
    (tmp_path / "card.toml").write_text(CARD)
    return tmp_path


def reproduce(capfd, *words, code=0):
    assert cli(["reproduce", *words]) == code
    return capfd.readouterr()


def test_a_table_from_beginning_to_end(place, capfd):
    said = reproduce(capfd, "card.toml", "T1", "--scale", "small")
    assert "hhar is not here; get it: `fedsense data fetch hhar`" in said.out
    assert "nearest that is here: synthetic-imu" in said.out
    assert "fedsense reproduce card.toml T1 --scale small --nearest" in said.out
    folder = place / "runs" / "reproduce" / "made-up-small"
    result = Result.read(folder / "here" / "fedavg-seed0")
    ours = 100 * result.rows("final")[0].mean
    assert re.search(rf"FedAvg +HERE Acc +60.00 +{ours:.2f} +{ours - 60:+.2f}", said.out)
    assert re.search(r"HERE KB +1.00 +1.00 +\+0.00", said.out)
    assert "HHAR Acc" not in said.out
    text = (folder / "reproduced.md").read_text()
    assert f"| FedAvg | HERE Acc | 60.00 | {ours:.2f} | {ours - 60:+.2f} |" in text
    assert "Not run, for want of hhar" in text
    assert "differences say little" in text
    assert re.search(r"3 clients, \d+ samples to train on, 2 of 2 rounds", text)


def test_it_goes_on_and_other_items_use_the_same_runs(place, capfd):
    reproduce(capfd, "card.toml", "T1", "--set", "rounds=1", "--seeds", "1")
    folder = place / "runs" / "reproduce" / "made-up-paper" / "here" / "fedavg-seed0"
    first = (folder / "scores.jsonl").read_bytes()
    said = json.loads(reproduce(capfd, "card.toml", "T1", "--json").out)
    assert (folder / "scores.jsonl").read_bytes().startswith(first)
    (table,) = said["items"]
    line = next(each for each in table["lines"] if (each["row"], each["column"]) == ("FedAvg", "HERE Acc"))
    assert line["seeds"] == 2
    assert line["ours_std"] is not None
    assert line["difference"] == pytest.approx(line["ours"] - 60.0)
    assert table["lacking"][0]["dataset"] == "hhar"
    before = (folder / "ledger.jsonl").read_bytes()  # with the seconds each round took
    reproduce(capfd, "card.toml", "F1")
    assert (folder / "ledger.jsonl").read_bytes() == before  # nothing was run again
    assert (place / "runs" / "reproduce" / "made-up-paper" / "F1.svg").read_text().startswith("<svg")
    text = (place / "runs" / "reproduce" / "made-up-paper" / "reproduced.md").read_text()
    assert text.index("## T1") < text.index("## F1")  # both are in it


def test_where_nothing_can_be_run_the_code_says_so(place, capfd, monkeypatch):
    monkeypatch.delenv("FEDSENSE_DATA", raising=False)
    said = reproduce(capfd, "protohar", "III", "--scale", "small", code=2)
    for name in ("pamap2", "usc-had", "unimib-shar"):
        assert f"{name} is not here; get it: `fedsense data fetch {name}`" in said.out
    assert "nearest that is here" not in said.out
    said = reproduce(capfd, "card.toml", "F2")
    assert "drawn with a pencil" in said.out


def test_another_dataset_has_its_own_name_and_no_difference(place, capfd):
    said = json.loads(reproduce(capfd, "card.toml", "T1", "--scale", "small", "--nearest", "--json").out)
    other = [line for line in said["items"][0]["lines"] if line["column"] == "synthetic-imu Acc"]
    assert len(other) == 2
    for line in other:
        assert line["published_on"] == "hhar"
        assert line["difference"] is None
        assert line["ours"] is not None
        assert line["dataset"] == "synthetic-imu"
    assert not any("HHAR" in line["column"] for line in said["items"][0]["lines"])


def test_a_dry_run_says_what_would_be_run(place, capfd):
    said = json.loads(reproduce(capfd, "card.toml", "--dry-run", "--json").out)
    table, figure, by_hand = said["items"]
    here, there = table["experiments"]
    assert here["methods"] == ["local", "fedavg"]
    assert (here["seeds"], here["rounds"], here["done"], here["lacking"]) == ([0, 1], 3, 0, [])
    assert there["lacking"] == ["hhar"]
    assert figure["experiments"][0]["command"] == "fedsense run made-up.toml --set 'method=[\"fedavg\"]'"
    assert by_hand["experiments"] == []
    (place / "card.toml").write_text(CARD.replace('draw = "curves"', 'draw = "counts"'))
    assert "drawn from the data alone; nothing is run" in reproduce(capfd, "card.toml", "F1", "--dry-run").out
    assert not (place / "runs").exists()


@pytest.mark.parametrize(("paper", "item"), [("fedapa", "T5"), ("fedali", "T4"), ("flic", "T4"), ("protohar", "F10b")])
def test_the_command_of_a_dry_run_runs_just_that(paper, item):
    card = load_card(paper)
    for one in make_plan(card, card.item(item), Ways("small", 2)).experiments.values():
        fedsense, run, source, *words = shlex.split(one.command)
        assert (fedsense, run, set(words[::2])) == ("fedsense", "run", {"--set"})
        assert len({text.partition("=")[0] for text in words[1::2]}) == len(words) / 2, "each is said once"
        assert load_recipe(source, words[1::2]) == one.recipe


def test_mistakes_are_explained(place, capfd):
    assert "did you mean 'fedali'" in reproduce(capfd, "fedalli", code=2).err
    assert "no 'T9'" in reproduce(capfd, "card.toml", "T9", code=2).err
    assert "say paper or small" in reproduce(capfd, "card.toml", "--scale", "big", code=2).err
    assert "no such folder" in reproduce(capfd, "card.toml", "--data", "nowhere", code=2).err
    (place / "card.toml").write_text(CARD.replace('draw = "curves"', 'drow = "curves"'))
    assert "figure.0.drow" in reproduce(capfd, "card.toml", code=2).err
    (place / "card.toml").write_text(CARD.replace('method = "local"', 'method = "lokal"'))
    assert "no method 'lokal'; did you mean 'local'" in reproduce(capfd, "card.toml", "T1", code=2).err


def test_the_list_says_what_can_be_run_here(capfd, monkeypatch):
    monkeypatch.delenv("FEDSENSE_DATA", raising=False)
    states = {(e["paper"], e["id"]): e for e in json.loads(reproduce(capfd, "--json").out)}
    assert states["fedali", "T1"]["lacking"] == ["hhar", "realworld"]
    assert states["flic", "F4"]["state"] == "can be run here"  # made-up data
    assert states["flic", "T3"]["state"] == "needs digits, textcaps, moabb"
    assert states["flic", "F2"]["state"] == "can be run here"  # no run at all, but a calculation
    assert states["fedali", "F3"]["lacking"] == ["hhar", "pamap2", "motionsense", "mobiact", "uci-har", "shl"]


def test_data_that_is_there_is_seen(capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSENSE_DATA", "elsewhere")  # and so again after it: --data sets it
    (tmp_path / "hhar").mkdir()
    (tmp_path / "mnist.tar").touch()
    (tmp_path / "usps.tar.xz").touch()
    told = json.loads(reproduce(capfd, "--json", "--data", str(tmp_path)).out)
    states = {(e["paper"], e["id"]): e["state"] for e in told}
    assert states["fedali", "T4"] == "can be run here"
    assert states["flic", "T4"] == "in part: the rest needs textcaps, moabb"


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("scale", ["paper", "small"])
@pytest.mark.parametrize("paper", papers())
def test_every_recipe_reads_with_its_overrides_and_has_the_method_and_view(paper, scale, near, monkeypatch, tmp_path):
    if near:  # as if what stands in for others were there
        for name in ("hapt", "sp-sw-har", "wisdm2019", "wical", "cifar10", "mnist", "ssvep-exo"):
            (tmp_path / name).mkdir()
    monkeypatch.setenv("FEDSENSE_DATA", str(tmp_path))
    card = load_card(paper)
    names = {}
    for item in card.items:
        assert item.runs or item.why, item.id
        assert not item.own or item.own in MODULES, item.id
        plan = make_plan(card, item, Ways(scale, nearest=near))
        for entry in computed(item):
            experiment = plan.of(entry.cell)
            recipe = experiment.recipe
            if item.draw not in ("counts",):
                assert entry.cell.method in recipe.methods(), (item.id, entry)
            if entry.cell.measure in ("score", "rounds", "speedup", "drop") and item.draw not in (
                "counts", "embedding", "confusion"):  # fmt: skip
                assert entry.cell.view in (*VIEWS, *HELD_OUT)
                assert entry.cell.view in recipe.evaluation.views, (item.id, entry)
                assert entry.cell.metric in recipe.evaluation.metrics, (item.id, entry)
            names.setdefault(experiment.name, set()).add(experiment.overrides)
            if experiment.instead:
                assert not set(experiment.datasets.split(" + ")) & set(experiment.instead.split(" + "))
    assert all(len(each) == 1 for each in names.values())  # one folder, one experiment
    assert all(len(name.encode()) < 200 and "/" not in name for name in names)


def history(*means):
    return [{"round": i + 1, "scores": {"personal": {"val": {}, "test": {"accuracy": {"a": m - 0.1, "b": m + 0.1}}}}}
            for i, m in enumerate(means)]  # fmt: skip


def result(method, seed, *means, up=1000):
    ledger = [{"round": i + 1, "clients": {"a": {"down": {"m": up}, "up": {"m": up}, "seconds": 2.0,
               "peak_memory_bytes": 0}}} for i in range(len(means))]  # fmt: skip
    return Result(method, seed, len(means), {"a": 10, "b": 30}, history(*means), ledger)


def test_measures_by_hand():
    """Two seeds; FedAvg at 0.5, 0.7, 0.6 and 0.5, 0.6, 0.7: it is at its best in rounds 2 and 3."""
    runs = {
        "fedavg": [result("fedavg", 0, 0.5, 0.7, 0.6), result("fedavg", 1, 0.5, 0.6, 0.7)],
        "mine": [result("mine", 0, 0.7, 0.8, 0.75, up=500), result("mine", 1, 0.6, 0.7, 0.85, up=500)],
        "bad": [result("bad", 0, 0.1, 0.1, 0.1)],
    }

    def of(method="mine", before=None, **said):
        values, std = measured(Cell(method=method, **said), runs, before)
        return [pytest.approx(v) for v in values], std

    assert of() == ([75, 85], pytest.approx(50**0.5))  # final; sample deviation of 75 and 85
    assert of(summary="best-on-test")[0] == [80, 85]
    assert of(weighted=True)[0] == [80, 90]  # (10 · 0.65 + 30 · 0.85) / 40
    assert of(spread="clients") == ([75, 85], pytest.approx(10))
    assert of(measure="rounds", of="fedavg")[0] == [1, 2]
    assert of(measure="rounds", of="fedavg", target="final")[0] == [1, 2]
    assert of(measure="speedup", of="fedavg")[0] == [2, 1.5]
    assert of(method="bad", measure="rounds", of="fedavg") == ([], None)
    assert of(measure="traffic")[0] == [1, 1]
    assert of(measure="traffic", of="fedavg")[0] == [0.5, 0.5]
    assert of(measure="time", of="fedavg")[0] == [1, 1]
    before = {"mine": [result("mine", 0, 0.9), result("mine", 1, 0.8)]}
    assert of(before=before, measure="drop")[0] == [15, -5]


@pytest.mark.experiment
def test_figures_of_models_on_real_recordings(tmp_path, monkeypatch, capfd):
    """Confusion matrices and representations, which need the models themselves; a minute."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hapt.tar.xz").symlink_to(real("hapt.tar.xz"))
    quick = ["--scale", "small", "--nearest", "--data", "data", "--set", "rounds=2", "--set", "data.samples=24"]
    for item in ("F2", "F5", "F7"):
        reproduce(capfd, "fedcoad", item, *quick)
    pictures = sorted(path.name for path in (tmp_path / "runs" / "reproduce" / "fedcoad-small").glob("*.svg"))
    assert pictures == ["F2.svg", "F5.svg", "F7-FS+LS+QS.svg", "F7-FS+LS.svg", "F7-FS+QS.svg", "F7-FS.svg"]


def test_a_figure_without_numbers_has_no_table_and_says_what_it_is_of(place, capfd, monkeypatch):
    only_seen = """
[[figure]]
id = "F3"
title = "Who confuses what"
printed = "Fig. 3"
shows = "a matrix"
draw = "confusion"
setting = "there"
columns = [{ name = "HHAR" }]
rows = [{ name = "FedAvg", method = "fedavg", view = "generalisation" }]
"""
    from fedsense.reproduce import pictures

    answer = (
        np.zeros((3, 2)),
        np.array([0, 0, 2]),
        np.array([0, 2, 2]),
        np.zeros(3),
        ("walking", "nobody's", "sitting"),
    )
    monkeypatch.setattr(pictures, "_said", lambda *args, **kwargs: answer)
    (place / "card.toml").write_text(CARD + only_seen)
    said = reproduce(capfd, "card.toml", "F3", "--scale", "small", "--nearest").out
    of = r"on synthetic-imu: 2 clients, \d+ samples to train on, 2 of 2 rounds"
    assert re.search(of, " ".join(said.split()))
    assert "ours" not in said
    drawn = (place / "runs" / "reproduce" / "made-up-small" / "F3.svg").read_text()
    assert "sitting" in drawn
    assert "nobody" not in drawn  # a class that is neither there nor taken for another
    text = (place / "runs" / "reproduce" / "made-up-small" / "reproduced.md").read_text()
    assert re.search(of, text)
    assert "| row |" not in text
    gallery(capfd, "card.toml", "--out", "mine.md")
    page = (place / "mine.md").read_text()
    assert re.search(of, page)
    assert "On synthetic-imu, as hhar is not there." in page


def gallery(capfd, *words, code=0):
    assert cli(["gallery", *words]) == code
    return capfd.readouterr()


def _two(place):
    with tarfile.open(place / "two.tar.xz", "w:xz") as archive:
        for name in ("a/x", "b/x"):
            archive.addfile(tarfile.TarInfo(name))
    return "two.tar.xz"


def test_a_gallery_has_what_was_run_and_from_where(place, capfd):
    reproduce(capfd, "card.toml", "T1", "--scale", "small", "--nearest")
    reproduce(capfd, "card.toml", "F1", "--scale", "small")
    for clients in (2, 3):
        changes = [f"data.clients={clients}", "rounds=1", 'method=["local", "fedavg", "fedprox"]']
        assert cli(["run", "made-up.toml", *(w for c in changes for w in ("--set", c)), "--out", f"r{clients}"]) == 0
    said = gallery(capfd, "card.toml", "r2", "r3", "--out", "pages/mine.md")
    assert said.out.endswith("pages/mine.md: 2 tables and figures, 2 other experiments\n")
    text = (place / "pages" / "mine.md").read_text()
    result = Result.read(place / "runs" / "reproduce" / "made-up-small" / "here" / "fedavg-seed0")
    assert f"| FedAvg | {100 * result.rows('final')[0].mean:.2f} (60.00) | 1.00 (1.00) |" in text
    assert "| synthetic-imu Acc (hhar) |" in text  # published on another dataset
    assert "(70.00)" in text
    assert "fedsense reproduce made-up T1 --scale small --nearest --seeds 1" in text
    assert re.search(r"4 runs in \d+ s; 20\d\d-", text)
    assert (place / "pages" / "mine" / "F1.svg").is_file()
    assert "](mine/F1.svg)" in text
    assert "### made-up (data.clients = 2)" in text
    assert "**Which is better? personal accuracy, all pairs**" in text
    assert "**Which is better? global accuracy, all pairs**" in text
    assert "### made-up (data.clients = 3)" in text
    assert "**F2**, By hand: drawn with a pencil." in text
    assert str(place) not in text
    for folder in ("r2", "r3", "runs/reproduce/made-up-small"):
        assert cli(["pack", folder]) == 0
        shutil.rmtree(folder)
    packed = ["r2.tar.xz", "r3.tar.xz", "--reproduced", "made-up-small.tar.xz"]
    gallery(capfd, "card.toml", *packed, "--out", "again/mine.md")
    assert (place / "again" / "mine.md").read_text() == text
    assert "nothing reproduced of Made-up" in gallery(capfd, "card.toml", "--reproduced", _two(place), code=2).err
    assert cli(["compare", "made-up-small.tar.xz"]) == 0  # like the folder it was made of
    gallery(capfd, "Mine", "r2.tar.xz", "r3.tar.xz", "--out", "both.md")
    both = (place / "both.md").read_text()
    assert re.search(
        r"## Over all of them\n\nOf made-up .*\n\n\*\*Average ranks\*\*\n\n\| method \| average rank", both
    )
    assert (place / "both" / "ranks.svg").is_file()


def test_a_page_keeps_what_was_run_elsewhere(place, capfd):
    reproduce(capfd, "card.toml", "T1", "--scale", "small", "--nearest")
    run = ["run", "made-up.toml", "--set", "rounds=1", "--set", "seeds=[0]"]
    assert cli([*run, "--out", "r1"]) == 0
    gallery(capfd, "card.toml", "r1", "--out", "mine.md")
    first = (place / "mine.md").read_text()
    (place / "runs").rename("away")
    (place / "r1").rename("gone")
    reproduce(capfd, "card.toml", "F1", "--scale", "small")
    assert cli([*run, "--set", "name=another", "--out", "r2"]) == 0
    said = gallery(capfd, "card.toml", "r2", "--out", "mine.md")
    assert said.out.endswith("1 tables and figures, 1 other experiments; 2 that were on the page stay as they were\n")
    second = (place / "mine.md").read_text()
    table = first[first.index("## T1") : first.index("## Other experiments")]
    study = first[first.index("### made-up") : first.index("## Not here")]
    assert table in second
    assert study in second
    assert "**F1**" in first
    assert "**F1**" not in second
    order = [
        second.index(heading) for heading in ("## T1", "## F1", "## Other", "### another", "### made-up", "## Not")
    ]
    assert order == sorted(order)
    assert len(re.findall(r"^###? ", second, re.MULTILINE)) == len(order)


def test_a_gallery_of_runs_alone_and_of_nothing(place, capfd):
    assert "there is no card of a paper 'flick'; did you mean 'flic'" in gallery(capfd, "flick", code=2).err
    assert "nothing reproduced of Made-up is there" in gallery(capfd, "card.toml", code=2).err
    assert cli(["run", "made-up.toml", "--set", "rounds=1", "--set", "seeds=[0]"]) == 0
    for folder in (place / "runs" / "made-up").glob("*-seed0"):
        (folder / "sessions.jsonl").unlink()  # as runs from before there were any
    gallery(capfd, "All methods", "runs/made-up", "--out", "all.md")
    text = (place / "all.md").read_text()
    assert text.startswith(f"{MARK}\n\n# All methods\n")
    assert "*command not written down; commit not written down; machine not written down; 2 runs.*" in text


def test_a_gallery_says_what_was_set(place, capfd, monkeypatch):
    typed = ["card.toml", "F1", "--scale", "small", "--set", "rounds=1", "--set", "workers=1", "--seeds", "1"]
    monkeypatch.setattr("sys.argv", ["fedsense", "reproduce", *typed])  # which is what a run writes down
    reproduce(capfd, *typed)
    gallery(capfd, "card.toml", "--out", "mine.md")
    assert "`fedsense reproduce made-up F1 --scale small --seeds 1 --set rounds=1`" in (place / "mine.md").read_text()


def test_links_and_headings_are_whole(place, capfd):
    assert cli(["run", "made-up.toml", "--set", "rounds=2", "--set", "seeds=[0]", "--out", "r"]) == 0
    gallery(capfd, "My watches", "r")
    text = (place / "my watches.md").read_text()
    assert "\n### made-up\n" in text, "no colon where there is no description"
    assert "![made-up](my%20watches/made-up.svg)" in text
    assert (place / "my watches" / "made-up.svg").is_file()
    gallery(capfd, "My watches", "r")
    assert (place / "my watches.md").read_text() == text


def test_a_gallery_counts_runs_that_have_not_begun(place, capfd):
    run = ["run", "made-up.toml", "--set", "seeds=[0, 1]", "--out", "r"]
    assert cli([*run, "--set", "rounds=1"]) == 0
    shutil.rmtree(place / "r" / "local-seed1")
    shutil.rmtree(place / "r" / "fedavg-seed1")
    (place / "r" / "fedavg-seed0" / "ledger.jsonl").write_text("")
    gallery(capfd, "Mine", "r", "--out", "mine.md")
    assert "3 of 4 runs are unfinished." in (place / "mine.md").read_text()


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        (
            "fedsense run a.toml --out /tmp/x --set workers=1 --set rounds=2 --resume",
            "fedsense run a.toml --set rounds=2",
        ),
        ("fedsense run /home/me/a.toml --out=/tmp/x --set data.root=/data", "fedsense run a.toml"),
        ("fedsense run a --set=rounds=2 --set=workers=1", "fedsense run a --set rounds=2"),
        ("fedsense run a --set 'method=[\"local\"]' --json", "fedsense run a --set 'method=[\"local\"]'"),
        ("", ""),
    ],
)
def test_commands_without_the_machine_they_ran_on(typed, plain):
    assert plain_command(typed) == plain


def test_one_command_for_all_its_seeds(tmp_path):
    """Typed once a seed, on other days; another setting is another command."""
    for number, words in enumerate(("'seeds=[1]'", "'seeds=[2, 0]'", "'seeds=[1]' --set rounds=3")):
        folder = tmp_path / str(number)
        folder.mkdir()
        line = {"from": 0, "command": f"fedsense run demo --set {words}", "commit": "abc", "machine": "m", "at": "2026"}
        (folder / "sessions.jsonl").write_text(json.dumps(line) + "\n")
    text = origin([tmp_path / str(number) for number in range(3)])
    assert text.startswith(
        "*`fedsense run demo --set 'seeds=[0, 1, 2]'`; `fedsense run demo --set 'seeds=[1]' --set rounds=3`; commit abc"
    )


def test_later_seeds_do_not_take_the_place_of_the_first(place, capfd):
    run = ["run", "made-up.toml", "--set", "rounds=1"]
    for seeds in ("[0, 1]", "[2, 3]"):
        assert cli([*run, "--set", f"seeds={seeds}", "--out", seeds]) == 0
        gallery(capfd, "Mine", seeds, "--out", "mine.md")
    text = (place / "mine.md").read_text()
    assert "### made-up\n" in text
    assert "### made-up (seeds 2, 3)\n" in text


def test_a_page_says_why_something_is_not_on_it(place, capfd):
    alone = CARD.replace("nearest = ['data={name=\"synthetic-imu\", clients=2, samples=24}']\n", "")
    far = alone[alone.index("[[figure]]") : alone.index('[[figure]]\nid = "F2"')].replace("F1", "F3")
    (place / "card.toml").write_text(alone + "\n" + far.replace('setting = "here"', 'setting = "there"'))
    reproduce(capfd, "card.toml", "F1", "--scale", "small")
    gallery(capfd, "card.toml", "--out", "mine.md")
    text = (place / "mine.md").read_text()
    assert re.search(
        r"\*\*T1\*\*, Methods: not run; a part cannot be, as hhar is not there: `fedsense data fetch", text
    )
    assert "**F3**, Over rounds: hhar is not there: `fedsense data fetch hhar`" in text
    assert "--nearest" not in text
    (place / "card.toml").write_text(CARD)
    (place / "mine.md").unlink()
    gallery(capfd, "card.toml", "--out", "mine.md")
    text = (place / "mine.md").read_text()
    assert "as hhar is not there: `fedsense data fetch hhar`" in text, "also where another dataset could be taken"
    assert "; `--nearest` would take synthetic-imu instead." in text
