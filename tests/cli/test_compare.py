"""``fedsense compare`` on run folders written by hand: no training, known numbers."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import fedsense

CLIENTS = [f"c{i:02}" for i in range(8)]
GAINS = {"local": 0.0, "fedavg": 0.05, "protohar": 0.1}


def write_run(folder, method, seed, values, **about):
    """Two evaluated rounds: half of the final scores, then those; a megabyte up and one down a round."""
    label = about.pop("label", method)
    folder = folder / f"{label}-seed{seed}"
    folder.mkdir(parents=True)
    views = about.pop("views", {"personal": 1.0} if method == "local" else {"personal": 1.0, "global": 0.9})
    name = about.get("federation", "made-up")
    base = {
        "method": method,
        "label": label,
        "seed": seed,
        "settings": {"rounds": 2},
        "clients": {c: {"train": 5, "test": 10 * (i + 1)} for i, c in enumerate(values)},
        "synthetic": False,
        "federation": name,
        "fingerprint": f"{name} {seed}",
        "recipe": {"data": {"name": name, "root": str(folder)}},
    }
    (folder / "run.json").write_text(json.dumps(base | about))
    scores, ledger = [], []
    for round, share in ((1, 0.5), (2, 1.0)):
        of = {
            view: {
                "test": {"accuracy": {c: share * less * v for c, v in values.items()}},
                "val": {"accuracy": {c: share * less * v for c, v in values.items()}},
            }
            for view, less in views.items()
        }
        scores.append({"round": round, "scores": of})
        size = {} if method == "local" else {"model": 500_000}
        entry = {"down": size, "up": size, "seconds": 1.5, "peak_memory_bytes": 10}
        ledger.append({"round": round, "clients": dict.fromkeys(list(values)[:2], entry)})
    (folder / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scores))
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ledger))


def write_study(folder, seeds=5, gains=GAINS, clients=CLIENTS, **about):
    rng = np.random.default_rng(seeds)
    base = rng.uniform(0.4, 0.7, len(clients))
    for method, gain in gains.items():
        for seed in range(seeds):
            noise = rng.normal(0, 0.004, len(clients))
            values = dict(zip(clients, (base + gain + noise).tolist(), strict=True))
            if gain:
                values[clients[3]] -= 3 * gain  # somebody always loses
            write_run(folder, method, seed, values, **about)


@pytest.fixture
def study(tmp_path):
    write_study(tmp_path / "study")
    return tmp_path / "study"


def document(here, *words):
    code, out, err = here("compare", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_json_has_all_of_it(here, study):
    found = document(here, "study", "--against", "local", "--target", "100%")
    assert set(found) == {"results", "cost", "folder", "comparison"}
    assert len(found["results"]) == 5 * (1 + 2 + 2)
    assert {row["dataset"] for row in found["results"]} == {"made-up"}
    comparison = found["comparison"]
    assert (comparison["view"], comparison["metric"], comparison["against"]) == ("personal", "accuracy", "local")
    assert [(p["first"], p["second"]) for p in comparison["pairs"]] == [("fedavg", "local"), ("protohar", "local")]
    for pair, gain in zip(comparison["pairs"], (0.05, 0.1), strict=True):
        assert pair["gain"] == pytest.approx(gain * (7 - 2) / 8, abs=0.005), "seven gain it, one loses twice as much"
        assert (pair["gaining"], pair["losing"], pair["seeds"], pair["clients"]) == (7, 1, 5, 8)
        assert pair["low"] < pair["gain"] < pair["high"]
    local, fedavg, protohar = sorted(comparison["reached"], key=lambda one: ["local", *GAINS].index(one["method"]))
    assert (local["rounds"], local["megabytes"]) == (2, 0)
    assert 0 < local["reached"] < 5, "the target is its mean, and some seeds end below"
    assert (fedavg["rounds"], fedavg["megabytes"], fedavg["seconds"]) == (2, 4, 6)
    assert fedavg["seeds"] == fedavg["reached"] == protohar["reached"] == 5
    assert [(c["method"], c["frontier_megabytes"]) for c in comparison["frontier"]] == [
        ("local", True),
        ("fedavg", False),
        ("protohar", True),
    ]
    worth = {(w["method"], w["over"]): w for w in comparison["worth"]}
    assert set(worth) == {(m, o) for m in ("fedavg", "protohar") for o in ("local", "the global model of fedavg")}
    assert worth["fedavg", "local"]["harmed"] == ["c03"]
    assert worth["fedavg", "local"]["clients"][0]["beyond_noise"] is True
    assert worth["fedavg", "local"]["clients"][0]["gain"] == pytest.approx(-0.1, abs=0.01)
    assert worth["protohar", "the global model of fedavg"]["harmed"] == ["c03"]


def test_the_table_names_whom_it_harms_and_the_unit(here, study, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = here("compare", "study")
    assert code == 0
    said = " ".join(out.split())
    for words in ("Which is better? personal accuracy, all pairs", "Is federation worth it?", "What a score costs",
                  "a unit is a client, its mean over seeds", "Holm's correction for 3 pairs", "final (round 2)",
                  "no ranks: ranks are over datasets, and there is only one"):  # fmt: skip
        assert words in said
    assert re.search(r"fedavg +local +c03 −\d+\.\d!", out)
    assert not re.search(r"(fedavg|protohar|local) is better(?! for)", said), "one of eight loses much: no win"


def test_a_win_is_told_and_with_fewer_seeds_is_not(here, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for seeds in (1, 3, 6):
        folder = tmp_path / f"with{seeds}"
        rng = np.random.default_rng(0)
        for method, gain in (("fedavg", 0.0), ("moon", 0.1)):
            for seed in range(seeds):
                values = dict(zip(CLIENTS, (0.5 + gain + rng.normal(0, 0.01, 8)).tolist(), strict=True))
                write_run(folder, method, seed, values)
    assert "moon is better" in here("compare", "with6")[1]
    said = here("compare", "with3")[1]
    assert "too few" in said
    assert "seeds (5)" in said
    (pair,) = json.loads(here("compare", "with3", "--json")[1])["comparison"]["pairs"]
    assert pair["says"] == "no verdict: 3 seeds; moon is ahead on these only, needs at least 5"
    assert "too few" in here("compare", "with1")[1]
    assert "moon is better" not in here("compare", "with3")[1] + here("compare", "with1")[1]


def test_formats(here, study):
    markdown = here("compare", "study", "--format", "markdown")[1]
    assert "### Scores\n\n| method | personal accuracy | global accuracy |\n| --- | --- | --- |" in markdown
    latex = here("compare", "study", "--format", "latex")[1]
    assert latex.count(r"\begin{tabular}") == latex.count(r"\toprule") == latex.count(r"\bottomrule") == 5
    assert re.search(r"local & \d+\.\d\$\\pm\$\d", latex)
    assert r"\begin{tabular}{llp{5cm}rrr}" in latex, "words are on the left, and long ones in lines"
    assert r"worth it? every client" in latex
    assert not re.search(r"(?<!\\)%(?! no ranks)", latex), (
        "per cent signs are written so that TeX does not skip the line"
    )
    rows = list(csv.DictReader(io.StringIO(here("compare", "study", "--format", "csv")[1])))
    gains = {
        r["method"]: float(r["value"])
        for r in rows
        if (r["table"], r["over"], r["quantity"]) == ("pairs", "local", "gain")
    }
    pairs = document(here, "study")["comparison"]["pairs"]
    assert gains == {p["first"]: p["gain"] for p in pairs if p["second"] == "local"}
    assert sum(r["table"] == "runs" for r in rows) == 8 * 25
    runs = [r for r in rows if r["table"] == "runs"]
    assert {(r["seed"], r["view"], r["metric"], r["round"], r["quantity"]) for r in runs if r["method"] == "local"} == {
        (str(seed), "personal", "accuracy", "2", "final") for seed in range(5)
    }
    assert here("compare", "study", "--format", "json")[1] == here("compare", "study", "--json")[1]
    code, out, err = here("compare", "study", "--format", "markdown", "--out", "table.md")
    assert (code, out, err) == (0, "", "written to table.md\n")
    assert (study.parent / "table.md").read_text() == markdown
    here("compare", "study", "--out", "table.txt")
    assert "Which is better?" in (study.parent / "table.txt").read_text()


def test_several_datasets_have_ranks_and_a_picture(here, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for number in range(4):
        write_study(tmp_path / "all" / f"e{number}", seeds=2, federation=f"data{number}")
    found = document(here, "all", "--picture", "cd.svg", "--frontier", "costs.svg")["comparison"]
    assert found["ranks"]["ranks"] == {"protohar": 1, "fedavg": 2, "local": 3}
    assert found["ranks"]["datasets"] == [f"data{i}" for i in range(4)]
    assert len(found["pairs"]) == 12
    assert {(o["first"], o["datasets"]) for o in found["overall"]} == {("fedavg", 4), ("protohar", 4)}
    for picture in ("cd.svg", "costs.svg"):
        assert ET.parse(tmp_path / picture).getroot().tag.endswith("svg")
    assert "CD 1.66" in (tmp_path / "cd.svg").read_text()
    out = here("compare", "all")[1]
    assert "Average ranks" in out
    assert "Over all datasets" in out
    assert "critical difference of two ranks 1.66" in out
    assert here("compare", *(f"all/e{i}" for i in range(4)))[1] == out, "folders of experiments, or each of them"


def test_one_dataset_with_other_settings_is_another_dataset(here, tmp_path):
    for name, skew in (("even", 0), ("odd", 1)):
        recipe = {"data": {"name": "made-up", "skew": skew}}
        write_study(tmp_path / name, seeds=1, recipe=recipe, fingerprint=name)
    found = document(here, "even", "odd")
    assert {row["dataset"] for row in found["results"]} == {"made-up (even)", "made-up (odd)"}
    assert {row["method"] for row in found["results"]} == set(GAINS)


def test_an_experiment_in_several_folders_is_one(here, tmp_path):
    rng = np.random.default_rng(0)
    for seed in range(3):
        for method in ("local", "fedavg"):
            write_run(tmp_path / f"part{seed}", method, seed, dict(zip(CLIENTS, rng.uniform(size=8), strict=True)))
    (pair,) = document(here, "part0", "part1", "part2")["comparison"]["pairs"]
    assert (pair["seeds"], pair["first"]) == (3, "fedavg")


def test_clients_to_whom_a_pile_is_dealt_are_drawn_anew(here, tmp_path):
    """CIFAR-10 is nobody's: client c00 of one seed is not that of another; HAPT's people are the same."""
    for name, same in (("cifar10", False), ("digits", False), ("hapt", True)):
        write_study(tmp_path / name, federation=name)
        assert document(here, name)["comparison"]["same_clients"] == {name: same}
        write_study(tmp_path / f"{name}-fixed", federation=name, fingerprint="one")
        assert document(here, f"{name}-fixed")["comparison"]["same_clients"] == {name: True}, "dealt by a fixed seed"


def test_clients_drawn_anew_with_every_seed(here, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    write_study(tmp_path / "drawn", seeds=2, synthetic=True)
    found = document(here, "drawn")["comparison"]
    assert found["same_clients"] == {"made-up": False}
    assert found["pairs"][0]["clients"] == 16
    assert sorted(found["worth"][0]["harmed"]) == ["c03 of seed 0", "c03 of seed 1"]
    assert "every seed has clients of its own" in " ".join(here("compare", "drawn")[1].split())
    write_study(tmp_path / "fixed", seeds=2, synthetic=True, fingerprint="one")
    assert document(here, "fixed")["comparison"]["same_clients"] == {"made-up": True}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["study", "--against", "fedavgg"], "no method 'fedavgg' among these runs; did you mean 'fedavg'?"),
        (["study", "--view", "globl"], "no run was scored in view 'globl'; did you mean 'global'?"),
        (["study", "--metric", "f1"], "no run was scored by 'f1' in view 'personal'; valid names: accuracy"),
        (["study", "--summary", "best"], "there is no summary 'best'"),
        (["study", "--target", "much"], "--target much: give a score, as in 0.8"),
        (["study", "--target", "90%"], "name the reference, as in --against fedavg"),
        (["study", "--target", "0%", "--against", "local"], "above zero"),
        (["study", "--target", "900%", "--against", "local"], "no score is above 100 %; give a smaller share"),
        (["study", "--picture", "cd.svg"], "there is only one"),
        (["study", "--out", "study"], "study cannot be written: it is a folder"),
        (["study", "--frontier", "there/costs.svg"], "there/costs.svg cannot be written: its folder is not there"),
        (["."], None),
        (["empty"], "empty holds no runs"),
        (["study", "--format", "html"], "html"),
        (["study", "--frontier", "costs.png"], "costs.png: pictures are drawn as SVG; name it costs.svg"),
        (["recipe.toml"], "recipe.toml is a recipe; run it (fedsense run recipe.toml), and name the folder of its run"),
    ],
)
def test_mistakes(here, study, words, message):
    (study.parent / "empty").mkdir()
    (study.parent / "recipe.toml").touch()
    code, _, err = here("compare", *words)
    assert code == (2 if message else 0)
    assert (message or "") in err


def test_runs_that_cannot_be_compared(here, tmp_path):
    write_run(tmp_path / "a", "fedavg", 0, {"anna": 0.5, "ben": 0.6})
    write_run(tmp_path / "b", "local", 0, {"anna": 0.5, "carl": 0.6})
    code, _, err = here("compare", "a", "b")
    assert code == 2
    assert "have different clients ('ben' is in one only)" in err
    write_run(tmp_path / "c", "local", 0, {"anna": 0.5, "ben": 0.6}, fingerprint="other")
    assert "but their data differ" in here("compare", "a", "c")[2]
    write_run(tmp_path / "d", "local", 0, {"anna": 0.5, "ben": 0.6}, summary="best-on-test")
    assert (
        "summarise them differently (best-on-test, final); say one for all: --summary final"
        in here("compare", "a", "d")[2]
    )
    assert here("compare", "a", "d", "--summary", "final")[0] == 0


def test_test_data_choose_nothing_unless_asked(here, study, tmp_path):
    write_study(tmp_path / "shown", summary="best-on-test")
    _, out, _ = here("compare", "shown")
    assert "here the last round counts" in out
    assert {r["selection"] for r in document(here, "shown")["results"]} == {"final"}
    assert "here the last round" not in here("compare", "shown", "--summary", "best-on-test")[1]
    assert "chosen on test data" not in here("compare", "study")[1]
    assert "chosen on test data, as asked" in here("compare", "study", "--summary", "best-on-test")[1]
    assert {r["selection"] for r in document(here, "study", "--summary", "validation")["results"]} == {"validation"}


def test_weights_and_views(here, study):
    plain, weighted = (document(here, "study", *more)["comparison"] for more in ([], ["--weighted"]))
    rows = {
        r["seed"]: r for r in document(here, "study")["results"] if (r["method"], r["view"]) == ("fedavg", "personal")
    }
    means = {s["method"]: s["mean"] for s in weighted["scores"]}
    assert means["fedavg"] == pytest.approx(np.mean([r["weighted_mean"] for r in rows.values()]))
    assert means["fedavg"] != pytest.approx({s["method"]: s["mean"] for s in plain["scores"]}["fedavg"])
    of_global = document(here, "study", "--view", "global")["comparison"]
    assert {s["method"] for s in of_global["scores"]} == {"fedavg", "protohar"}
    assert of_global["notes"] == ["without a global accuracy: local"]


def test_a_deviation_is_over_clients_or_over_seeds(here, tmp_path):
    """Means of the seeds: 0.55 and 0.65, 60 ± 7.1 (√2/2 · 10 points); clients are 5 points beside them."""
    for seed, low in enumerate((0.5, 0.6)):
        write_run(tmp_path / "two", "local", seed, {"a": low, "b": low + 0.1})
    write_run(tmp_path / "two", "fedavg", 0, {"a": 0.5, "b": 0.6})
    folder = str(tmp_path / "two")
    _, output, _ = here("compare", folder, "--format", "markdown")
    assert "| local | 60.0±5.0 |" in output
    _, output, _ = here("compare", folder, "--format", "markdown", "--spread", "seeds")
    assert "| local | 60.0±7.1 |" in output
    assert "| fedavg | 55.0 | 49.5 |" in output, "of one seed there is none"
    assert "mean ± standard deviation over seeds" in output
    _, output, _ = here("compare", folder, "--format", "markdown", "--spread", "seeds", "--weighted")
    assert "| local | 61.7±7.1 |" in output  # b counts twice: 0.5667 and 0.6667
    assert "mean weighted by clients' test samples ± standard deviation over seeds" in output
    with pytest.raises(fedsense.UserError, match="no spread over 'seed'; did you mean 'seeds'"):
        fedsense.compare(folder, spread="seed")


def test_many_pairs_only_the_wins(here, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    write_study(tmp_path / "many", seeds=1, gains={f"m{i}": 0.01 * i for i in range(9)})
    out = here("compare", "many")[1]
    assert "of 36 pairs none is a win (36 too few seeds)" in out
    assert "Which is better?" not in out
    assert "Which is better?" in here("compare", "many", "--against", "m0")[1]


def test_from_python(study, tmp_path):
    found = fedsense.compare([study], against="local", target=0.5)
    assert [pair.first for pair in found.pairs] == ["fedavg", "protohar"]
    assert found.wins == []
    assert "Is federation worth it?" in str(found)
    assert "<table>" in found._repr_html_()
    first, *rest = (fedsense.Result.read(path) for path in sorted(study.iterdir()))
    again = fedsense.compare(first, *rest, against="local", target=0.5)
    assert again.as_dict() == found.as_dict()
    twice = fedsense.compare(first, first)
    assert [score.method for score in twice.scores] == ["study/fedavg", "study/fedavg (2)"]
    assert first.method == "fedavg", "results are left as they were"
