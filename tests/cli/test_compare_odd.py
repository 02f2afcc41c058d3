"""Comparing and reporting where runs are not as nice as one thinks: of two places, unfinished, failed, damaged, few."""

import csv
import io
import json

import pytest
from rich.console import Console
from test_compare import CLIENTS, document, write_run, write_study

from fedsense.cli.grids import dataset_by_dataset, share_width, show_grid, side_by_side
from fedsense.result import Grid

VALUES = dict.fromkeys(CLIENTS, 0.5)
RECIPE = {"data": {"name": "m"}, "name": "n", "description": "", "rounds": 2}


def datasets(found):
    return {row["dataset"] for row in found["results"]}


def notes(found):
    return "; ".join(found["comparison"]["notes"])


def test_folders_of_one_name_hold_different_data(here, tmp_path):
    """Three seeds here and three there on other data are not six seeds: nothing is a win."""
    for place, seeds, skew in (("one", range(3), 0), ("two", range(3, 6), 9)):
        for seed in seeds:
            for method, gain in (("local", 0.0), ("fedavg", 0.2)):
                values = {c: 0.4 + gain + 0.01 * i + 0.001 * seed for i, c in enumerate(CLIENTS)}
                recipe = {"data": {"name": "made-up", "skew": skew}}
                write_run(tmp_path / place / "exp", method, seed, values, recipe=recipe)
    found = document(here, "one/exp", "two/exp")
    assert datasets(found) == {"made-up (one/exp)", "made-up (two/exp)"}
    assert [(pair["seeds"], pair["verdict"]) for pair in found["comparison"]["pairs"]] == [(3, "too few seeds")] * 2


def test_another_learning_rate_is_no_other_seed(here, tmp_path):
    for place, seeds, lr in (("slow", range(3), 0.01), ("fast", range(3, 6), 0.1)):
        for seed in seeds:
            write_run(tmp_path / place, "fedavg", seed, VALUES, parameters={"lr": lr})
            write_run(tmp_path / place, "moon", seed, VALUES, parameters={"lr": 0.1})
    names = {row["method"] for row in document(here, "slow", "fast")["results"]}
    assert names == {"slow/fedavg", "fast/fedavg", "moon"}


def test_a_hyperparameter_of_a_later_version_does_not_tell_runs_apart(here, tmp_path):
    for place, seed, parameters in (("old", 0, {"lr": 0.1}), ("new", 1, {"lr": 0.1, "warm-up": 0})):
        write_run(tmp_path / place, "fedavg", seed, VALUES, parameters=parameters)
    assert {row["method"] for row in document(here, "old", "new")["results"]} == {"fedavg"}


def test_an_unfinished_run_neither_wins_nor_loses(here, tmp_path):
    write_study(tmp_path / "study", gains={"local": 0.0, "fedavg": -0.2, "moon": -0.2})
    for path in (tmp_path / "study").glob("fedavg-*/run.json"):
        about = json.loads(path.read_text())
        path.write_text(json.dumps(about | {"settings": {"rounds": 100}}))
    found = document(here, "study")
    assert {(p["first"], p["second"]) for p in found["comparison"]["pairs"]} == {("moon", "local")}
    assert "unfinished, and left out: fedavg seed 0 (2 of 100 rounds)" in notes(found)
    assert {row["method"] for row in found["results"]} == {"local", "fedavg", "moon"}
    code, out, _ = here("compare", "study", "--format", "markdown")
    assert code == 0
    assert "fedavg seed 4 (2 of 100 rounds)" in out


def test_a_run_without_scores_makes_its_method_no_cheaper(here, tmp_path):
    write_study(tmp_path / "study")
    for name in ("scores", "ledger"):
        (tmp_path / "study" / "fedavg-seed2" / f"{name}.jsonl").write_text("")
    found = document(here, "study")
    cost = {one["method"]: one["megabytes"] for one in found["comparison"]["frontier"]}
    assert (cost["fedavg"], cost["protohar"]) == (4, 4)
    assert "without a personal accuracy: fedavg seed 2" in notes(found)
    _, out, _ = here("compare", "study", "--format", "markdown")
    assert "averaged over 4 to 5 seeds" in out


def stop_after_a_round(run):
    for name in ("scores", "ledger"):
        path = run / f"{name}.jsonl"
        path.write_text(path.read_text().splitlines()[0] + "\n")


def test_who_is_not_finished_is_named_so_and_not_averaged_with_those_who_are(here, tmp_path):
    """Half of the final scores after the first of two rounds: fedavg's would be 45 % and not 55 with seed 2's."""
    write_study(tmp_path / "study", gains={"local": 0.0, "fedavg": 0.05})
    _, before, _ = here("compare", "study", "--format", "markdown")
    stop_after_a_round(tmp_path / "study" / "fedavg-seed2")
    for seed in range(5):
        stop_after_a_round(tmp_path / "study" / f"local-seed{seed}")
    _, out, _ = here("compare", "study", "--format", "markdown")
    mean = {text: float(text.split("| fedavg | ")[1][:4]) for text in (before, out)}
    assert mean[out] == pytest.approx(mean[before], abs=0.3)
    assert out.count("| local (1/2) | ") == 2, "scores and costs"
    assert "in brackets: rounds done by who is not finished" in out
    assert "not finished" not in before


def test_a_reference_without_scores_is_refused(here, tmp_path):
    write_study(tmp_path / "study", gains={"local": 0.0, "fedavg": 0.05})
    code, _, err = here("compare", "study", "--view", "global", "--against", "local")
    assert code == 2
    assert "--against local: it has no global accuracy to compare with; name another method, or another --view" in err
    for seed in range(5):
        stop_after_a_round(tmp_path / "study" / f"local-seed{seed}")
    assert "local: it has no finished run to compare with; name" in here("compare", "study", "--against", "local")[2]


def test_a_target_of_a_view_is_not_for_who_has_no_such_score(here, tmp_path):
    write_study(tmp_path / "study")
    found = document(here, "study", "--view", "global", "--target", "0.3")
    assert {one["method"] for one in found["comparison"]["reached"]} == {"fedavg", "protohar"}


def test_all_pairs_are_one_family_also_those_with_too_few_seeds(here, tmp_path):
    """Two pairs, one of them with one seed: both p are corrected for two, so that p is never below p clients."""
    write_study(tmp_path / "many", gains={"local": 0.0, "fedavg": 0.05})
    write_study(tmp_path / "one", seeds=1, gains={"local": 0.0, "fedavg": 0.05}, federation="elsewhere")
    few, whole = sorted(document(here, "many", "one")["comparison"]["pairs"], key=lambda pair: pair["seeds"])
    assert (few["seeds"], whole["seeds"]) == (1, 5)
    assert few["p_holm"] is None
    assert whole["p_holm"] == pytest.approx(2 * whole["p"])
    assert whole["p_holm"] >= whole["p_clients_holm"]
    _, out, _ = here("compare", "many", "one", "--format", "markdown")
    assert "Holm's correction for 2 pairs" in out
    assert "5+: of one seed nobody knows" in out
    assert "averaged over 1 to 5 seeds" in out


def test_too_few_clients_for_so_many_pairs(here, tmp_path):
    """Eight clients can have p = 2/2⁸ at the least, and times seven pairs or more that is above 5 %."""
    write_study(tmp_path / "study", gains=dict.fromkeys(("local", "fedavg", "moon", "fedper", "fedrep"), 0.0))
    _, out, _ = here("compare", "study", "--format", "markdown")
    assert "| too few clients (pairs) |" in out
    assert "pairs: too many are compared at once for so few clients, try --against" in out


def test_a_pair_of_one_client_does_not_make_it_easier_for_another(here, tmp_path):
    """Seven clients have p clients 2/2⁷ = 0.0156; beside another pair it is 0.0313, and p may not be below it."""
    for method, score in (("local", 0.5), ("fedavg", 0.6)):
        for seed in range(5):
            values = {c: score + 0.001 * (seed + i) * score for i, c in enumerate(CLIENTS[:7])}
            write_run(tmp_path / "seven", method, seed, values)
            write_run(tmp_path / "one", method, seed, {"c00": values["c00"]}, federation="elsewhere")
    one, seven = sorted(document(here, "seven", "one")["comparison"]["pairs"], key=lambda pair: pair["clients"])
    assert (one["clients"], one["winner"]) == (1, None)
    assert seven["p_clients_holm"] == pytest.approx(2 * 2 / 2**7)
    assert seven["p_holm"] >= seven["p_clients_holm"]


def test_gains_over_local_are_of_personal_scores_whatever_is_compared(here, tmp_path):
    write_study(tmp_path / "study")
    rows = csv.DictReader(io.StringIO(here("compare", "study", "--view", "global", "--format", "csv")[1]))
    views = {(row["table"], row["view"]) for row in rows}
    assert {("pairs", "global"), ("worth", "personal")} <= views
    assert ("worth", "global") not in views


def test_a_score_that_is_none_is_told(here, tmp_path):
    write_study(tmp_path / "study")
    for path in (tmp_path / "study").glob("fedavg-*/scores.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["scores"]["personal"]["test"]["accuracy"] = dict.fromkeys(CLIENTS)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "without a personal accuracy: fedavg" in notes(document(here, "study"))


def test_one_client_wins_nothing(here, tmp_path):
    write_study(tmp_path / "study", clients=[*CLIENTS[:4]])
    for path in (tmp_path / "study").glob("*/scores.jsonl"):
        text = [json.loads(line) for line in path.read_text().splitlines()]
        for line in text:
            for splits in line["scores"].values():
                for metrics in splits.values():
                    metrics["accuracy"] = {"c00": metrics["accuracy"]["c00"]}
        path.write_text("".join(json.dumps(line) + "\n" for line in text))
    for pair in document(here, "study")["comparison"]["pairs"]:
        assert (pair["verdict"], pair["winner"]) == ("too few clients", None)
        assert pair["says"] == "no verdict: one client; 6 are the fewest"


def test_people_who_join_weigh_by_their_test_samples(here, tmp_path):
    newcomers = {"n1": {"samples": 1, "test": 9}, "n2": {"samples": 9, "test": 1}}
    for method, low in (("local", 0.2), ("fedavg", 0.3)):
        for seed in range(2):
            write_run(
                tmp_path / "study",
                method,
                seed,
                {"n1": low, "n2": 1.0},
                views={"new-client": 1.0},
                newcomers=newcomers,
                clients={"c": {"train": 5, "test": 5}},
            )
    found = document(here, "study", "--view", "new-client", "--weighted")
    means = {score["method"]: score["mean"] for score in found["comparison"]["scores"]}
    assert means["local"] == pytest.approx(0.9 * 0.2 + 0.1)
    assert {row["weighted_mean"] for row in found["results"] if row["method"] == "local"} == {means["local"]}


def test_a_target_where_the_reference_was_not_run(here, tmp_path):
    write_study(tmp_path / "both")
    write_study(tmp_path / "other", gains={"local": 0.0, "moon": 0.1}, federation="elsewhere")
    found = document(here, "both", "other", "--against", "fedavg", "--target", "95%")
    assert {one["dataset"] for one in found["comparison"]["reached"]} == {"made-up"}
    assert "elsewhere: fedavg was not run there, so there is no target" in notes(found)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("80", "--target 80: scores are between 0 and 1; say 0.8 for 80 %"),
        ("nan", "--target nan: give a score"),
        ("inf", "--target inf: give a score"),
        ("-1", "--target -1: give a score"),
    ],
)
def test_targets_nobody_means(here, tmp_path, target, message):
    write_study(tmp_path / "study", seeds=1)
    code, _, err = here("compare", "study", "--target", target)
    assert code == 2
    assert message in err


def test_the_metric_is_one_that_all_have(here, tmp_path):
    write_study(tmp_path / "study", gains={"local": 0.0, "fedavg": 0.1})
    for path in (tmp_path / "study").glob("*/scores.jsonl"):
        for_local = "local" in path.parent.name
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            for splits in line["scores"].values():
                for metrics in splits.values():
                    metrics["macro-f1"] = metrics["accuracy"] if for_local else metrics.pop("accuracy")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = document(here, "study")["comparison"]
    assert (comparison["metric"], len(comparison["pairs"])) == ("macro-f1", 1)


def test_latex_has_no_letters_tex_does_not_know(here, tmp_path):
    for name in ("a", "b", "c"):
        write_study(tmp_path / name, federation=f"data-{name}")
    code, out, _ = here("compare", "a", "b", "c", "--format", "latex")
    assert code == 0
    assert r"$\chi$$^2$" in out
    assert {letter for letter in out if not letter.isascii()} == set()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.json", "[]"),
        ("scores.jsonl", '{"round": 1}\n'),
        ("ledger.jsonl", "{}\n"),
        ("observations.jsonl", "5\n"),
        ("sessions.jsonl", "what\n"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "report", "gallery"])
def test_damaged_files_are_the_users_to_know(here, tmp_path, command, file, text):
    write_study(tmp_path / "study", seeds=1, recipe=RECIPE)
    (tmp_path / "study" / "fedavg-seed0" / file).write_text(text)
    words = {"compare": ["study"], "report": ["study"], "gallery": ["Mine", "study"]}[command]
    code, out, err = here(command, *words)
    if file == "sessions.jsonl" and command != "gallery":  # which is all that reads it
        assert code == 0
        return
    assert code == 2
    assert "fedavg-seed0" in err
    assert "Traceback" not in out + err


def test_a_report_does_not_average_over_datasets(here, tmp_path):
    write_study(tmp_path / "a", gains={"local": 0.0, "fedavg": 0.1}, federation="alpha")
    write_study(tmp_path / "b", gains={"local": 0.0, "fedavg": 0.3}, federation="beta", seeds=3)
    write_run(tmp_path / "a", "moon", 0, VALUES, federation="alpha")
    code, _, err = here("report", "a", "b", "a/moon-seed0", "--out", "page.html")
    assert code == 0, err
    text = (tmp_path / "page.html").read_text()
    page = json.loads(text.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    both = ["local · alpha", "fedavg · alpha", "moon · alpha", "local · beta", "fedavg · beta"]
    assert sorted(page["methods"]) == sorted(both)
    assert page["local"]["fedavg · beta"] == "local · beta"
    seeds = next(table for table in page["tables"] if table["title"] == "Over seeds")["rows"]
    assert {(row[0], row[1]) for row in seeds} >= {("fedavg · alpha", "5"), ("fedavg · beta", "3")}
    scores = next(table for table in page["tables"] if table["title"] == "Scores")["rows"]
    assert [row[:2] for row in scores][:2] == [["alpha", "fedavg"], ["alpha", "local"]]
    words = " ".join(page["summary"])
    assert "On alpha, fedavg has the highest" in words
    assert "On beta, fedavg has the highest" in words


def test_runs_without_a_seed_in_common_are_not_compared_in_words(here, tmp_path):
    write_run(tmp_path / "study", "local", 0, VALUES)
    write_run(tmp_path / "study", "fedavg", 1, VALUES)
    code, _, _ = here("report", "study")
    assert code == 0
    assert "no two have a seed in common" in (tmp_path / "study" / "report.html").read_text()


def test_a_gallery_writes_over_nobodys_notes(here, tmp_path):
    write_study(tmp_path / "study", seeds=1, recipe=RECIPE)
    (tmp_path / "notes.md").write_text("## Ideas\n\nprecious\n")
    code, _, err = here("gallery", "Notes", "study")
    assert code == 2
    assert "notes.md was not written by `fedsense gallery`" in err
    assert (tmp_path / "notes.md").read_text() == "## Ideas\n\nprecious\n"
    for _ in range(2):
        assert here("gallery", "Mine", "study")[0] == 0
    assert "### n\n" in (tmp_path / "mine.md").read_text()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_verdict_is_not_lost_behind_long_names(width):
    header = ["method", "over", "gain", "effect", "+/−", "p clients", "p", "verdict"]
    names = ["fedavg-pretrained/fedavg", "fedavg-scratch/fedavg"]
    verdict = "fedavg-pretrained/fedavg is better"
    console = Console(width=width, file=io.StringIO())
    show_grid(console, Grid(header, [[*names, "+16.9 [−14.2, +19.1]", "+0.95", "127/13", "<0.001", "0.001", verdict]]))
    lines = [line for line in console.file.getvalue().splitlines()[2:] if line.strip()]
    assert max(map(len, lines)) <= width
    column = console.file.getvalue().splitlines()[0].index("verdict")
    assert "".join(line[column:].strip() for line in lines).replace(" ", "") == verdict.replace(" ", "")


def test_words_are_broken_only_where_they_do_not_fit():
    header = ["method", "over", "gain", "effect", "+/−", "p clients", "p", "verdict"]
    row = ["protohar", "fedavg", "+6.3 [+3.7, +8.7]", "+0.57", "71/28", "<0.001", "0.004", "protohar is better"]
    console = Console(width=80, file=io.StringIO())
    show_grid(console, Grid(header, [row]))
    assert {"protohar", "fedavg", "is", "better"} <= set(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("space", "columns", "widths"),
    [
        (30, [["aa", "b"], ["cc dd"]], [2, 5]),  # there is room for all
        (
            22,
            [["method", "protohar"], ["over", "fedavg"], ["verdict", "protohar is better"]],
            [8, 6, 8],
        ),  # to the letter
        (
            21,
            [["method", "protohar"], ["over", "fedavg"], ["verdict", "protohar is better"]],
            [7, 6, 7],
        ),  # as much each
        (32, [["one two three"], ["eleven twelve thirteen"]], [13, 19]),
        (3, [["method", "protohar"], ["over", "fedavg"]], [6, 4]),  # titles stay whole
        (9, [[""]], [0]),
        (9, [], []),
    ],
)
def test_width_is_shared(space, columns, widths):
    assert share_width(space, columns) == widths


def shown(grid, stacked=False):
    console = Console(width=80, file=io.StringIO())
    show_grid(console, grid, stacked)
    return console.file.getvalue()


def test_no_score_is_cut_off():
    """Three views by two metrics are too wide for 80 columns: the third view goes below, with the names again."""
    views = ("personal", "generalisation", "global")
    header = ["method", *(f"{view} {metric}" for view in views for metric in ("macro-f1", "accuracy"))]
    rows = [[name, *(f"{10 * n + k}.5±10.5" for k in range(6))] for n, name in enumerate(("fedavg", "length 1 only"))]
    text = shown(Grid(header, rows), stacked=True)
    assert max(map(len, text.splitlines())) <= 80
    assert {cell for row in rows for cell in row[1:]} <= set(text.split())
    assert text.count("fedavg") == 2
    assert [len(piece.header) for piece in side_by_side(Grid(header, rows), 80)] == [5, 3]
    assert side_by_side(Grid(header, rows), 120) == [Grid(header, rows)]
    narrow = side_by_side(Grid(header, rows), 28)  # a view is too wide, too
    assert [head for piece in narrow for head in piece.header[1:]] == header[1:]


def test_datasets_have_tables_of_their_own_where_words_would_be_broken():
    header = ["dataset", "method", "over", "gain", "effect", "+/−", "p clients", "p", "verdict"]
    numbers = ["+6.3 [+3.7, +8.7]", "+0.57", "71/28", "<0.001", "0.004"]
    rows = [
        [data, "hetfedrep", "local", *numbers, "hetfedrep is better"] for data in ("wisdm2019", "hapt", "wisdm2019")
    ]
    text = shown(Grid(header, rows))
    assert [title for title, _ in dataset_by_dataset(Grid(header, rows), 80)] == ["wisdm2019", "hapt"]
    assert max(map(len, text.splitlines())) <= 80
    assert text.split().count("hetfedrep") == 6
    assert [title for title, _ in dataset_by_dataset(Grid(header, rows), 120)] == [""]
