"""Summaries against hand-worked numbers, each with the round it shows."""

import math

import pytest

from fedsense.errors import UserError
from fedsense.evaluation.summary import summarise

SIZES = {"a": 10, "b": 30}


def line(round, a, b, val=0.0):
    test = {"accuracy": {"a": a, "b": b}}
    return {"round": round, "scores": {"personal": {"val": {"accuracy": {"a": val, "b": val}}, "test": test}}}


SCORES = [line(1, 0.2, 0.4, 0.5), line(2, 0.9, 0.9, 0.1), line(3, 0.4, 0.8, 0.5), line(4, 0.6, 0.6, 0.3)]


def one(selection):
    (row,) = summarise("fedavg", 0, SCORES, SIZES, selection)
    return row


def test_final_mean_std_and_weighted_mean():
    """Round 3 alone: mean (.4 + .8)/2 = .6, std .2, weighted (10·.4 + 30·.8)/40 = .7 (ProtoHAR Eq. 12)."""
    (row,) = summarise("fedavg", 0, SCORES[:3], SIZES, "final")
    assert row.round == 3
    assert row.mean == pytest.approx(0.6)
    assert row.std == pytest.approx(0.2)
    assert row.weighted_mean == pytest.approx(0.7)
    assert row.clients == {"a": 0.4, "b": 0.8}


def test_mean_of_the_last_rounds():
    """a: (.4 + .6)/2 = .5, b: (.8 + .6)/2 = .7."""
    row = one("last-2")
    assert row.round == "3-4"
    assert row.clients == pytest.approx({"a": 0.5, "b": 0.7})


def test_chosen_on_validation_never_sees_test():
    """Validation is best (.5) in rounds 1 and 3; the earlier is taken, though test is best in round 2."""
    assert one("validation").round == 1


def test_best_on_test_only_under_its_name():
    assert one("best-on-test").round == 2
    assert one("final").round == 4


def test_lower_is_better_for_errors():
    scores = [
        {"round": r, "scores": {"personal": {"val": {"mae": {"a": v}}, "test": {"mae": {"a": v}}}}}
        for r, v in [(1, 2.0), (2, 0.5), (3, 1.0)]
    ]
    assert summarise("x", 0, scores, {"a": 1}, "validation")[0].round == 2


def test_undefined_clients_are_left_out():
    scores = [{"round": 1, "scores": {"global": {"val": {"auc": {}}, "test": {"auc": {"a": None, "b": 0.8}}}}}]
    (row,) = summarise("x", 0, scores, SIZES)
    assert row.clients == {"b": 0.8}
    assert row.mean == row.weighted_mean == pytest.approx(0.8)


def test_no_validation_data_is_said():
    scores = [{"round": 1, "scores": {"global": {"val": {"accuracy": {"a": None}}, "test": {"accuracy": {"a": 0.1}}}}}]
    with pytest.raises(UserError, match="no validation data"):
        summarise("x", 0, scores, SIZES, "validation")


def test_nothing_defined_is_nan():
    scores = [{"round": 1, "scores": {"global": {"val": {"auc": {"a": None}}, "test": {"auc": {"a": None}}}}}]
    assert math.isnan(summarise("x", 0, scores, SIZES)[0].mean)


def test_unknown_selection():
    with pytest.raises(UserError, match="best-on-test"):
        summarise("x", 0, SCORES, SIZES, "best")
