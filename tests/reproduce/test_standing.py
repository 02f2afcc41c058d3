"""How a paper's method stands in a table of ours, and numbers that not all seeds have."""

import json

import numpy as np
import pytest

from fedsense.reproduce.cards import Item
from fedsense.reproduce.gallery import side_by_side
from fedsense.reproduce.outcome import Line, Outcome, as_json, kept
from fedsense.reproduce.plan import Experiment, Plan
from fedsense.reproduce.standing import Standing, standings, table
from fedsense.result import Result

CLIENTS = [f"p{i}" for i in range(12)]
TABLE = {
    "id": "T1",
    "title": "Methods",
    "printed": "Table 1",
    "setting": "here",
    "columns": [{"name": "F1", "metric": "macro-f1", "summary": "best-on-test"}, {"name": "KB", "measure": "traffic"}],
    "rows": [
        {"name": "Ours (α=1)", "method": "mine"},
        {"name": "Far below", "method": "low"},
        {"name": "Above", "method": "high"},
        {"name": "The same", "method": "same"},
    ],
}
LEVEL = {"mine": 0.6, "low": 0.3, "high": 0.7, "same": 0.6}


def run(method, seed, rng):
    scores = {client: LEVEL[method] + 0.02 * rng.standard_normal() for client in CLIENTS}
    earlier = dict.fromkeys(CLIENTS, 0.99)  # a round chosen on test data would take this one
    rounds = [earlier, scores] if method == "low" else [scores, scores]
    history = [
        {"round": number, "scores": {"personal": {"val": {}, "test": {"macro-f1": each}}}}
        for number, each in enumerate(rounds, 1)
    ]
    ledger = [{"round": number, "clients": {}} for number in (1, 2)]
    return Result(method, seed, 2, dict.fromkeys(CLIENTS, 10), history, ledger, dataset="made-up", algorithm=method)


def judged(seeds, places=("here",), **item):
    plan = Plan(Item(**{**TABLE, **item}))
    plan.experiments = {(place, (), ()): Experiment(place, "", (), None) for place in places}
    rng = np.random.default_rng(0)
    runs = {place: {method: [run(method, seed, rng) for seed in range(seeds)] for method in LEVEL} for place in places}
    return standings(plan, "mine", runs)


def test_better_worse_and_not_shown_by_rows_of_the_table():
    (found,) = judged(5)
    assert (found.row, found.dataset) == ("Ours (α=1)", "made-up")
    assert (found.score, found.summary) == ("personal macro-f1", "final")
    ((better, gain),) = [text.rsplit(" ", 1) for text in found.better]
    assert better == "Far below"
    assert float(gain) == pytest.approx(30, abs=2)
    ((worse, loss),) = [text.rsplit(" ", 1) for text in found.worse]
    assert worse == "Above"
    assert loss.startswith("−")
    assert [text.rsplit(" ", 1)[0] for text in found.not_shown] == ["The same"]


def test_nothing_is_said_of_few_seeds_nor_without_the_papers_method():
    assert judged(4) == []
    assert judged(5, rows=[row for row in TABLE["rows"] if row["method"] != "mine"]) == []


def test_runs_of_two_names_are_not_compared_with_themselves():
    (found,) = judged(5, rows=[*TABLE["rows"], {"name": "Ours once more", "method": "mine"}])
    assert [text.rsplit(" ", 1)[0] for text in found.not_shown] == ["The same"]


def test_a_figure_is_judged_setting_by_setting():
    """A line a method, a point a setting: all pairs of all settings are corrected for together."""
    settings = [{"name": f"α={many}", "setting": f"removed-{many}", "metric": "macro-f1"} for many in (0, 2)]
    found = judged(5, ("removed-0", "removed-2"), shows="lines", draw="lines", columns=settings)
    assert [one.dataset for one in found] == ["made-up (α=0)", "made-up (α=2)"]
    for one in found:
        assert [text.rsplit(" ", 1)[0] for text in one.better] == ["Far below"]
        assert [text.rsplit(" ", 1)[0] for text in one.not_shown] == ["The same"]


def test_methods_may_be_columns_and_a_dataset_in_several_rows():
    names = {"Local-Only": "low", "Ours": "mine", "Other": "same"}
    columns = [{"name": name, "method": method, "metric": "macro-f1"} for name, method in names.items()]
    rows = [{"name": f"{many} clients", "setting": f"clients-{many}"} for many in (10, 20)]
    found = judged(5, ("clients-10", "clients-20"), columns=columns, rows=rows)
    assert [(one.row, one.dataset) for one in found] == [
        ("Ours", "made-up (10 clients)"),
        ("Ours", "made-up (20 clients)"),
    ]
    for one in found:
        assert [text.rsplit(" ", 1)[0] for text in one.better] == ["Local-Only"]
        assert [text.rsplit(" ", 1)[0] for text in one.not_shown] == ["Other"]
    only = [column for column in columns if column["method"] == "mine"]
    assert judged(5, ("clients-10", "clients-20"), columns=only, rows=rows) == []


def test_the_table_of_standings():
    one = Standing("Ours", "hapt", "accuracy", "final", ["Low +3.0"], [], ["A −0.1", "B +0.2"], "global")
    text = "hapt, global accuracy (final): Ours is better than Low +3.0; not shown to differ from A −0.1, B +0.2"
    assert str(one) == text
    grid = table([one])
    assert grid.rows == [["hapt global accuracy", "Low +3.0", "–", "A −0.1, B +0.2"]]
    assert "scores: final" in grid.caption


def test_seeds_that_did_not_get_there_are_counted():
    lines = [
        Line("FedAvg", "Rounds", 100.0, None, 10.0, 2.0, 5, "hapt", None, "motionsense", tried=5),
        Line("Ours", "Rounds", 7.0, None, 8.0, 1.0, 3, "hapt", None, "motionsense", tried=5),
        Line("Bad", "Rounds", 9.0, None, None, None, 0, "hapt", None, "motionsense", tried=5),
    ]
    outcome = Outcome("T4", "Rounds", False, "", lines)
    assert outcome.caption() == "5 seeds"
    assert [row[3] for row in outcome.grid().rows] == ["10.00 ± 2.00", "8.00 ± 1.00, 3 of 5 seeds", "–"]
    assert side_by_side(lines, "").rows[1] == ["Ours", "8.00 ± 1.00, 3 of 5 seeds (7.00)"]


def test_what_another_version_wrote_can_be_read(tmp_path):
    line = Line("FedAvg", "Acc", 60.0, None, 61.0, None, 1, "hapt", 1.0)
    document = as_json(Outcome("T1", "Methods", False, "%", [line], standings=judged(5)))
    document |= {"new": 1, "lines": [{**document["lines"][0], "new": 1}]}
    document["standings"][0]["new"] = 1
    (tmp_path / "T1.json").write_text(json.dumps(document))
    read = kept("T1", tmp_path)
    assert read.lines == [line]
    assert read.standings == judged(5)
    del document["standings"], document["instead"]
    (tmp_path / "T1.json").write_text(json.dumps(document))
    assert kept("T1", tmp_path).standings == []
