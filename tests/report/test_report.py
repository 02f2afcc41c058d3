"""`fedsense report` and the page a run leaves: the data, and what is said of them."""

import base64
import json
import re
import shutil
import threading

import made_up
import numpy as np
import pytest

from fedsense.experiment import find_runs, run_recipe
from fedsense.recipe import make_recipe
from fedsense.report.gather import MANY, MOST_CELLS, document, light_lines
from fedsense.report.page import page
from fedsense.report.watch import Watched
from fedsense.report.words import summary, verdict
from fedsense.result import Result, by_dataset, tell_apart

NAMES = ("ann", "bob", "cyd")


def results(folder):
    return tell_apart([Result.read(run, light_lines) for run in find_runs(folder)])


def embedded(path):
    text = path.read_text()
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))


@pytest.fixture
def two(tmp_path):
    """local and fedx, two seeds, two rounds: numbers that can be worked out in the head."""
    last = {
        ("local", 0): (0.5, 0.6, 0.7),
        ("local", 1): (0.5, 0.8, 0.7),
        ("fedx", 0): (0.9, 0.5, 0.7),
        ("fedx", 1): (0.7, 0.5, 0.7),
    }
    for (method, seed), values in last.items():
        lines = made_up.scores([(1, dict.fromkeys(NAMES, 0.1)), (2, dict(zip(NAMES, values, strict=True)))])
        facts = made_up.about(method, seed, NAMES, 2)
        made_up.write(tmp_path / f"{method}-seed{seed}", facts, scores=lines, ledger=made_up.ledger(NAMES, 2))
    return tmp_path


def test_words_are_those_of_the_numbers(two):
    """fedx: seeds 0.7 and 0.6333, mean 66.7 %, standard deviation over seeds 4.7 points; local 0.6 and 0.6667, 63.3 %.
    Clients over seeds: ann 0.8 for 0.5, bob 0.5 for 0.7, cyd as before."""
    found = document("two", results(two))
    said = " ".join(found["summary"])
    assert "fedx has the highest mean personal accuracy, 66.7 % (± 4.7 over 2 seeds)" in said
    assert "3.3 points above local" in said
    assert "makes 1 client better in personal accuracy and 1 worse; 1 stays the same" in said
    assert "Harmed: bob (−20.0)." in said
    assert "synthetic" in said
    assert "One seed" not in said
    assert found["best"] == "fedx"
    assert found["local"] == {"fedx": "local"}
    gains = next(table for table in found["tables"] if table["title"].startswith("Against Local"))
    assert gains["rows"] == [["fedx", "1", "1", "1", "+3.3", "−20.0 (bob)"]]
    seeds = next(table for table in found["tables"] if table["title"] == "Over seeds")
    assert seeds["rows"][0] == ["fedx", "2", "66.7±4.7"]


def test_of_errors_less_is_better(tmp_path):
    for method, values in {"local": (1.0, 2.0), "fedx": (0.5, 3.0)}.items():
        lines = made_up.scores([(1, dict(zip(NAMES, values, strict=False)))], metrics=("mae",))
        facts = made_up.about(method, 0, NAMES[:2], 1)
        made_up.write(tmp_path / f"{method}-seed0", facts, scores=lines, ledger=made_up.ledger(NAMES[:2], 1))
    found = document("errors", results(tmp_path))
    said = " ".join(found["summary"])
    assert "local has the lowest mean personal mae, 1.50 over clients" in said
    assert "0.25 below fedx" in said
    assert "Harmed: bob (−1.00)" in said
    assert "One seed only" in said


def test_scores_on_different_data_are_not_compared(two):
    lines = made_up.scores([(2, dict.fromkeys(NAMES, 1.0))])
    facts = made_up.about("fedz", 0, NAMES, 2) | {"federation": "easy"}
    made_up.write(two / "fedz-seed0", facts, scores=lines, ledger=made_up.ledger(NAMES, 2))
    found = document("two", results(two))
    said = found["summary"]
    assert found["local"] == {"fedx": "local", "fedz": None}
    assert any(text.startswith("On made-up, fedx has the highest mean personal accuracy, 66.7 %") for text in said)
    assert any(text.startswith("On easy, fedz has a mean personal accuracy of 100.0 %") for text in said)
    assert "not to be compared" in said[0]


def test_people_of_one_name_on_two_datasets_are_two(tmp_path):
    """walks: ann and bob, with two seeds; rides: another ann, and dan, with one, who have less data."""
    for seed in (0, 1):
        made(tmp_path / "a", "fedx", {"ann": 0.9, "bob": 0.8}, seed=seed, federation="walks")
    few = {who: {"train": 7, "val": 0, "test": 5} for who in ("ann", "dan")}
    easy = {"federation": "rides", "task": {"classes": ["bus"] * 4}, "clients": few}
    made(tmp_path / "b", "fedx", {"ann": 0.2, "dan": 0.3}, **easy)
    both = by_dataset(tell_apart(results(tmp_path / "a") + results(tmp_path / "b")))
    found = document("both", both)
    assert found["summary"][0].startswith(
        "fedx ran on walks: 2 clients with 40 training samples each, 2 classes, 2 seeds; "
        "on rides: 2 clients with 7 training samples each, 4 classes, one seed; network coad-cnn; 1 round."
    )
    assert "One seed only on rides: small differences may be chance." in found["summary"]
    assert found["facts"][:4] == ["1 method", "2 clients", "1 round", "1 to 2 seeds"]
    assert found["people"] == {"personal": {"walks": ["ann", "bob"], "rides": ["ann", "dan"]}}
    assert (found["about"]["walks"]["ann"]["train"], found["about"]["rides"]["ann"]["train"]) == (40, 7)
    assert found["final"]["personal"]["accuracy"] == {"fedx · walks": [0.9, 0.8], "fedx · rides": [0.2, 0.3]}
    assert cells(found["heat"]["personal"]["accuracy"]["fedx · rides"], 2) == pytest.approx(np.array([[0.2], [0.3]]))
    made(tmp_path / "a", "local", {"ann": 0.4, "bob": 0.4}, federation="walks")
    against = tables(document("both", by_dataset([*results(tmp_path / "a"), *results(tmp_path / "b")])), "On walks")
    assert [row[0] for row in against[0]["rows"]] == ["fedx"], "the title has the dataset"
    shutil.rmtree(tmp_path / "a" / "local-seed0")
    alike = [Result.read(run) for folder in ("a", "b") for run in find_runs(tmp_path / folder)]
    assert document("both", alike)["methods"] == found["methods"], "told apart here, if nobody has before"


def test_people_drawn_anew_with_each_seed_are_others(tmp_path):
    """Seed 0's a gains 30 and seed 1's a loses 10: two people, and not one who gains 10."""
    for seed, alone, together in ((0, 0.5, 0.8), (1, 0.5, 0.4)):
        for method, value in (("local", alone), ("fedavg", together)):
            facts = {"fingerprint": f"drawn with {seed}"}
            made(tmp_path, method, {"a": value, "b": 0.5}, seed=seed, **facts)
    found = document("anew", results(tmp_path))
    everyone = ["a of seed 0", "b of seed 0", "a of seed 1", "b of seed 1"]
    assert found["people"] == {"personal": {"made-up": everyone}}
    assert found["final"]["personal"]["accuracy"]["fedavg"] == [0.8, 0.5, 0.4, 0.5]
    assert list(found["about"]["made-up"]) == everyone
    assert found["curves"]["personal"]["accuracy"]["fedavg"]["mean"] == [0.55]
    text = " ".join(found["summary"])
    assert "2 clients at a time, 4 in all" in text
    assert "1 client better in personal accuracy and 1 worse; 2 stay the same. Harmed: a of seed 1 (−10.0)." in text
    (against,) = tables(found, "Against Local, client by client")
    assert against["rows"] == [["fedavg", "1", "1", "2", "+5.0", "−10.0 (a of seed 1)"]]


def test_an_unfinished_run_says_so_and_one_without_scores_is_no_failure(two):
    made_up.write(two / "fedy-seed0", made_up.about("fedy", 0, NAMES, 9), scores=[], ledger=made_up.ledger(NAMES, 1))
    found = document("two", results(two))
    assert any("Unfinished: fedy seed 0 (1 of 9 rounds)" in text for text in found["summary"])
    assert "fedy" in found["methods"]
    assert "fedy" in found["bytes"]
    nothing = summary([])
    assert nothing.paragraphs == ["No run has begun yet.", "Nothing has been evaluated yet."]
    assert "Scores" in [what for what, _ in document("nothing", [])["left_out"]]


def made(folder, method, values, rounds=1, done=1, seed=0, **about):
    """A run that was evaluated after each round that is done, always with the same scores."""
    facts = made_up.about(method, seed, list(values), rounds) | about
    lines = made_up.scores([(r, values) for r in range(1, done + 1)])
    made_up.write(folder / f"{method}-seed{seed}", facts, scores=lines, ledger=made_up.ledger(values, done))


def tables(found, title):
    return [table for table in found["tables"] if table["title"].startswith(title)]


def test_runs_that_go_on_are_not_judged(tmp_path):
    """Round 12 is not set against round 1, in words, in the table, or in the figure that is drawn from ``local``."""
    made(tmp_path, "fedavg", {"ann": 0.9, "bob": 0.8}, rounds=12, done=12)
    made(tmp_path, "fedavg", {"ann": 0.1, "bob": 0.2}, rounds=12, seed=1)
    made(tmp_path, "local", {"ann": 0.1, "bob": 0.9}, rounds=12)
    found = document("going", results(tmp_path))
    said = " ".join(found["summary"])
    assert "fedavg has a mean personal accuracy of 85.0 % over clients (round 12)." in said
    assert "above" not in said
    assert "Beside local" not in said
    assert "Unfinished: fedavg seed 1 (1 of 12 rounds) and local seed 0 (1 of 12 rounds)." in said
    assert not tables(found, "Against Local")
    assert not tables(found, "Over seeds"), "of one finished run"
    assert not any(found["local"].values())
    assert found["final"]["personal"]["accuracy"]["fedavg"] == [0.9, 0.8], "of the finished seed"
    assert ["Gain over Local", "a run of Local and one to compare with it must be finished first"] in found["left_out"]
    made(tmp_path, "fedavg", {"ann": 0.9, "bob": 0.8}, rounds=12, done=11)
    assert document("going", results(tmp_path))["summary"][1] == (
        "No run is finished, so nothing is said of who is ahead."
    )


def test_equal_means_are_no_win_and_whom_methods_harm_is_named(tmp_path):
    """local 60 %, fedy 60.006 %, fedz 49.8 %: the first two are equal as far as tenths of a point tell."""
    made(tmp_path, "local", {"ann": 0.6, "bob": 0.6, "cyd": 0.6, "dan": 0.6, "eve": 0.6})
    made(tmp_path, "fedy", {"ann": 0.9, "bob": 0.3003, "cyd": 0.6, "dan": 0.6, "eve": 0.6})
    said = document("tie", results(tmp_path))["summary"]
    assert said[1] == "fedy and local have the same mean personal accuracy, 60.0 % over clients (round 1)."
    assert said[2].endswith(
        "makes 1 client better in personal accuracy and 1 worse; 3 stay the same. Harmed: bob (−30.0)."
    )
    made(tmp_path, "fedz", {"ann": 0.9, "bob": 0.2, "cyd": 0.3, "dan": 0.5, "eve": 0.59})
    found = document("tie", results(tmp_path))
    assert (
        "have the highest mean personal accuracy, 60.0 % over clients (round 1): 10.2 points above fedz."
        in (found["summary"][1])
    )
    assert found["summary"][3] == ("fedz harms bob (−40.0), cyd (−30.0), dan (−10.0) and 1 other.")
    assert [row[4] for row in tables(found, "Against Local")[0]["rows"]] == ["0.0", "−10.2"]


def test_scores_are_paired_by_seed(tmp_path):
    """fedx, seeds 0 and 1, local, seeds 1 and 2: in seed 1 ann gains 10 points and bob loses 20. Of fedy, seed 3,
    and local nothing is said."""
    for seed, ann, bob in ((1, 0.5, 0.5), (2, 0.9, 0.9)):
        made(tmp_path, "local", {"ann": ann, "bob": bob}, seed=seed, synthetic=False)
    for seed, ann, bob in ((0, 0.1, 0.1), (1, 0.6, 0.3)):
        made(tmp_path, "fedx", {"ann": ann, "bob": bob}, seed=seed, synthetic=False)
    found = document("some", results(tmp_path))
    assert found["summary"][1] == (
        "local has the highest mean personal accuracy, 50.0 % over clients (round 1, seed 1, which all were run with): "
        "5.0 points above fedx."
    )
    assert found["summary"][2].endswith("1 client better in personal accuracy and 1 worse. Harmed: bob (−20.0).")
    assert found["gain"]["personal"]["accuracy"] == {"fedx": pytest.approx([0.1, -0.2])}
    assert [row[1:5] for row in tables(found, "Against Local")[0]["rows"]] == [["1", "1", "0", "−5.0"]]
    made(tmp_path, "fedy", {"ann": 0.9, "bob": 0.9}, seed=3, synthetic=False)
    found = document("none", results(tmp_path))
    assert found["summary"][1] == "Methods were run with different seeds, and so their means are not compared."
    assert (found["local"]["fedx"], found["local"]["fedy"]) == ("local", None)
    assert "fedy" not in found["gain"]["personal"]["accuracy"]


def test_who_harms_most_is_named_first_and_nobody_is_left_out(tmp_path):
    """Six methods beside the best: the five that harm somebody by how much, and one that harms nobody."""
    made(tmp_path, "local", {"ann": 0.5, "bob": 0.5})
    made(tmp_path, "best", {"ann": 0.9, "bob": 0.9})
    for name, ann in (("a", 0.4999), ("b", 0.48), ("c", 0.47), ("d", 0.46), ("e", 0.1)):
        made(tmp_path, name, {"ann": ann, "bob": 0.8})
    made(tmp_path, "kind", {"ann": 0.5, "bob": 0.6})
    assert document("all", results(tmp_path))["summary"][3] == (
        "e harms ann (−40.0); d harms ann (−4.0); c harms ann (−3.0); b harms ann (−2.0); "
        "1 more method harms somebody less, as the table has it; kind harms nobody."
    )
    for name in "bcde":
        made(tmp_path, name, {"ann": 0.5, "bob": 0.8})
    assert document("all", results(tmp_path))["summary"][3] == (
        "a harms ann (by less than 0.1); b, c, d, e and kind harm nobody."
    )


def test_of_local_alone_there_is_nothing_to_compare(tmp_path):
    made(tmp_path, "local", {"ann": 0.5})
    assert ["Gain over Local", "there is nothing to compare Local with"] in document("one", results(tmp_path))[
        "left_out"
    ]
    made(tmp_path, "fedx", {"ann": 0.5}, federation="easy")
    why = "no method has a run of Local on the same data, with the same seed, beside it"
    assert ["Gain over Local", why] in document("two", results(tmp_path))["left_out"]


def test_curves_have_the_mean_and_the_extremes_of_seeds(two):
    curve = document("two", results(two))["curves"]["personal"]["accuracy"]["fedx"]
    assert curve["round"] == [1, 2]
    assert curve["mean"] == pytest.approx([0.1, 2 / 3], abs=1e-5)
    assert (curve["low"][1], curve["high"][1]) == pytest.approx((1.9 / 3, 0.7), abs=1e-5)


def cells(heat, rows):
    levels = np.frombuffer(base64.b64decode(heat["cells"]), "<u2").reshape(rows, -1)
    return heat["low"] + levels / MANY * (heat["high"] - heat["low"])


def test_the_heat_map_is_the_mean_over_seeds(two):
    heat = document("two", results(two))["heat"]["personal"]["accuracy"]["fedx"]
    assert cells(heat, 3) == pytest.approx(np.array([[0.1, 0.8], [0.1, 0.5], [0.1, 0.7]]), abs=1e-4)


def test_many_cells_are_thinned_to_the_last_round(two, monkeypatch):
    assert MOST_CELLS * 2 * 4 / 3 < 4e6, "two bytes each, in base 64"
    monkeypatch.setattr("fedsense.report.gather.MOST_CELLS", 6)
    heat = document("two", results(two))["heat"]["personal"]["accuracy"]["fedx"]
    assert (heat["step"], heat["round"]) == (2, [2])


def test_who_learns_from_whom_is_a_mean_over_the_classes_a_client_holds(two):
    seen = {"0": {"ann": {"ann": 0.75, "bob": 0.25}, "bob": {"bob": 1.0}}, "1": {"ann": {"ann": 0.5, "cyd": 0.5}}}
    (two / "fedx-seed0" / "observations.jsonl").write_text(json.dumps({"round": 2, "collaboration": seen}) + "\n")
    (graph,) = document("two", results(two))["collaboration"]
    assert graph["who"] == ["ann", "bob", "cyd"]
    assert sorted(map(list, graph["edges"][""])) == [[0, 0, 0.625], [0, 1, 0.125], [0, 2, 0.25], [1, 1, 1.0]]
    assert list(graph["edges"]) == ["", "walk", "sit"]


def test_of_very_long_observations_the_last_line_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsense.report.gather.LONG_FILE", 30)
    path = tmp_path / "observations.jsonl"
    path.write_text('{"round": 1, "a": 1}\n{"round": 2, "a": 1}\n{"round": 3, "half')
    assert light_lines(path) == [{"round": 2, "a": 1}]
    assert light_lines(tmp_path / "scores.jsonl") == []


def test_names_cannot_break_out_of_the_page(tmp_path):
    name = "</script><script>alert(1)</script>{{ data }}"
    lines = made_up.scores([(1, {name: 0.5, "other": 0.25})])
    facts = made_up.about("local", 0, [name, "other"], 1)
    made_up.write(tmp_path / "local-seed0", facts, scores=lines, ledger=made_up.ledger([name], 1))
    text = page(document("<b>bold", results(tmp_path)))
    assert text.count("<script") == 2
    assert "<b>bold" not in text
    (tmp_path / "page.html").write_text(text)
    assert embedded(tmp_path / "page.html")["people"]["personal"] == {"made-up": [name, "other"]}


RECIPE = {
    "name": "small",
    "rounds": 2,
    "data": {"name": "synthetic-imu", "clients": 3, "samples": 30, "classes-per-client": 4},
    "model": "flic-mlp",
    "evaluation": {"pool": 20},
    "training": {"epochs": 1},
    "workers": 1,
    "method": ["local", "fedapa", "protohar"],
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    run_recipe(make_recipe(RECIPE), folder)
    return folder


def test_a_run_leaves_the_page_without_what_needs_models(ran):
    found = embedded(ran / "index.html")
    assert "confusion" not in found
    assert any("fedsense report" in why for _, why in found["left_out"])
    assert found["recipe"]["rounds"] == 2
    assert (ran / "curves.svg").read_text().startswith("<svg")


def test_the_report_has_what_needs_models_and_recordings(ran, here):
    code, out, err = here("report", str(ran), "--json")
    assert code == 0, err
    assert json.loads(out)["file"] == str(ran / "report.html")
    found = embedded(ran / "report.html")
    for method, result in zip(found["methods"], results(ran), strict=True):
        confusion = found["confusion"][method]
        right = sum(row[i] for i, row in enumerate(confusion["cells"]))
        recorded = result.history[-1]["scores"]["personal"]["test"]["accuracy"]
        assert right == pytest.approx(sum(recorded[c] * n for c, n in result.test_sizes.items())), method
        assert confusion["samples"] == sum(result.test_sizes.values())
    ((dataset, counts),) = found["counts"].items()
    assert [sum(row) for row in counts["test"]] == [found["about"][dataset][who]["test"] for who in counts["clients"]]
    plane = found["embeddings"]
    assert plane["local"]["proto_label"] == []
    assert set(plane["protohar"]["proto_client"]) == {-1}
    assert sorted(set(plane["fedapa"]["proto_client"])) == [0, 1, 2]
    for one in plane.values():
        for points in one["planes"].values():
            assert len(points) == len(one["label"]) + len(one["proto_label"])
    assert found["collaboration"][0]["method"] == "fedapa"
    assert found["drift"]["protohar"]["prototypes"]["round"] == [2], "in the first round there were none before"
    assert sorted(found["drift"]["fedapa"]) == ["clients' prototypes", "mean prototypes"]
    assert found["left_out"] == []


def test_without_its_recordings_a_report_says_so(ran, here, tmp_path, monkeypatch):
    about = json.loads((ran / "local-seed0" / "run.json").read_text())
    copy = tmp_path / "copy" / "local-seed0"
    made_up.write(copy, about | {"fingerprint": "another"})
    for name in ("scores", "ledger", "observations"):
        (copy / f"{name}.jsonl").write_bytes((ran / "local-seed0" / f"{name}.jsonl").read_bytes())
    (copy / "checkpoints").symlink_to(ran / "local-seed0" / "checkpoints")
    code, out, err = here("report", str(copy), "--out", "out/page.html")
    assert code == 0, err
    assert "embeddings: the recordings are not those it ran on" in err
    assert "page.html" in out
    about["recipe"]["data"] = {"name": "folder", "root": str(tmp_path / "gone")}
    made_up.write(copy, about)
    assert here("report", str(copy), "--out", "out/page.html")[0] == 0
    assert any("gone" in why for _, why in embedded(tmp_path / "out" / "page.html")["left_out"])


def test_a_bad_path_is_the_users_mistake(here, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsense.report.watch.PATIENCE", 0.2)
    for command in ("report", "watch"):
        code, _, err = here(command, "nowhere")
        assert code == 2
        assert "nowhere holds no runs" in err
    made_up.write(tmp_path / "a", made_up.about("local", 0, NAMES, 1), scores=[], ledger=[])
    code, _, err = here("report", "a", "--out", str(tmp_path))
    assert code == 2
    assert "--out names the file" in err


def test_the_verdict_is_that_of_the_comparison(tmp_path):
    """fedx is 20 points better for everyone in each of six seeds; with two of them nothing is said to be better."""
    names = [f"p{i}" for i in range(12)]
    for seed in range(6):
        noise = np.random.default_rng(seed).normal(0, 0.01, 12)
        for method, gain in {"local": 0.0, "fedx": 0.2}.items():
            values = dict(zip(names, (0.5 + gain + noise * (1 + gain)).tolist(), strict=True))
            made_up.write(
                tmp_path / f"{method}-seed{seed}",
                made_up.about(method, seed, names, 1),
                scores=made_up.scores([(1, values)]),
                ledger=made_up.ledger(names, 1),
            )
    every = results(tmp_path)
    few = [result for result in every if result.seed < 2]
    (said,) = verdict(every)
    assert said.startswith("Better beyond chance in personal accuracy: fedx over local (+20.")
    assert "Holm's correction for 1 pair" in said
    assert document("six", every)["verdict"] == [said]
    assert verdict(few) == [
        "No method is called better than another: 2 seeds cannot show how much runs differ, five can."
    ]
    assert verdict([result for result in every if result.method == "local"]) == []


@pytest.mark.parametrize(
    ("clients", "methods", "why"),
    [
        (3, 2, "3 clients cannot show how much people differ, 6 are the fewest"),
        (6, 3, "6 clients are too few for 3 pairs at once"),
    ],
)
def test_the_verdict_says_that_clients_are_too_few(tmp_path, clients, methods, why):
    for seed in range(5):
        for number in range(methods):
            made(tmp_path, f"fed{number}", {f"p{i}": 0.1 * number + 0.01 * seed * i for i in range(clients)}, seed=seed)
    assert verdict(results(tmp_path)) == [f"No method is called better than another: {why}."]


def test_rounds_chosen_on_test_data_are_shown_and_not_judged(tmp_path):
    for seed in range(5):
        for method in ("local", "fedx"):
            made(tmp_path, method, dict.fromkeys(NAMES, 0.5), seed=seed, summary="best-on-test")
    assert verdict(results(tmp_path))[0].startswith(
        "No method is called better than another, last round, as the recipe's is chosen on test data: "
    )


def test_runs_that_are_summarised_differently_are_made_alike(here, tmp_path):
    """In round 1 everyone has 90 %, in round 2 50 %."""
    for method, which in {"local": "final", "fedx": "best-on-test"}.items():
        lines = made_up.scores([(1, dict.fromkeys(NAMES, 0.9)), (2, dict.fromkeys(NAMES, 0.5))])
        facts = made_up.about(method, 0, NAMES, 2) | {"summary": which}
        made_up.write(tmp_path / "both" / f"{method}-seed0", facts, scores=lines, ledger=made_up.ledger(NAMES, 2))
    for words, said in ((), "say one for all: --summary final"), (("--summary", "final"), "1 seed cannot show"):
        code, _, err = here("report", "both", *words)
        assert code == 0, err
        assert said in embedded(tmp_path / "both" / "report.html")["verdict"][0]
    assert tables(embedded(tmp_path / "both" / "report.html"), "Scores")[0]["rows"] == [
        ["fedx", "50.0±0.0"],
        ["local", "50.0±0.0"],
    ]
    code, _, err = here("report", "both", "--summary", "first")
    assert code == 2
    assert "there is no summary 'first'" in err


def test_watch_waits_for_a_run_that_is_just_beginning(tmp_path):
    folder = tmp_path / "late"

    def begin():
        folder.mkdir()
        (folder / "recipe.json").write_text("{}")

    timer = threading.Timer(0.3, begin)
    timer.start()
    assert Watched(folder).folder == folder
    timer.join()
