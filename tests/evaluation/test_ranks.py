"""Ranks over datasets beside Demšar's paper and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsense.evaluation.ranks import cliques, critical_difference, rank

# Ranks of C4.5 and three variants on 14 datasets, from Demšar, JMLR 2006, Table 6.
DEMSAR = """4 3 2 1 | 1 2 3 4 | 4 1 2 3 | 4 1 3 2 | 4 2 3 1 | 1 2.5 4 2.5 | 3 2 4 1 | 2.5 2.5 4 1 | 4 3 2 1
            | 2.5 2.5 2.5 2.5 | 4 2.5 1 2.5 | 3 2 4 1 | 4 1 2 3 | 3 1 4 2"""
TABLE = [[float(value) for value in line.split()] for line in DEMSAR.split("|")]


def as_scores(table):
    return {f"d{i}": dict(zip("abcdefgh", row, strict=False)) for i, row in enumerate(table)}


def test_demsars_example():
    """Average ranks 3.143, 2.000, 2.893, 1.964; χ² = 9.28 (without a correction for ties); CD 1.25."""
    found = rank(as_scores(TABLE), lower_is_better=True)
    assert list(found.ranks) == ["d", "b", "c", "a"]
    assert [found.ranks[m] for m in "abcd"] == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    squares = sum(r**2 for r in found.ranks.values())
    assert 12 * 14 / (4 * 5) * (squares - 4 * 5**2 / 4) == pytest.approx(9.28, abs=0.01)
    assert found.critical_difference == pytest.approx(1.25, abs=0.005)
    chi, p = stats.friedmanchisquare(*np.array(TABLE).T)
    assert (found.friedman, found.p) == pytest.approx((chi, p))
    assert found.iman_davenport == pytest.approx(13 * chi / (14 * 3 - chi))
    assert found.p_iman_davenport == pytest.approx(stats.f.sf(found.iman_davenport, 3, 39))
    assert found.cliques == (("d", "b", "c", "a"),), "1.96 to 3.14 is within 1.25"


@pytest.mark.parametrize(
    ("methods", "q"),
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (7, 2.949), (8, 3.031), (9, 3.102), (10, 3.164)],
)
def test_critical_values_of_the_table(methods, q):
    assert critical_difference(methods, 1) / math.sqrt(methods * (methods + 1) / 6) == pytest.approx(q, abs=1e-3)


def test_cliques_are_the_largest_groups():
    ranks = {"a": 1.0, "b": 1.9, "c": 2.8, "d": 5.0}
    assert cliques(ranks, 1.0) == (("a", "b"), ("b", "c"))
    assert cliques(ranks, 2.0) == (("a", "b", "c"),)
    assert cliques(ranks, 0.5) == ()


def test_why_there_are_no_ranks():
    table = as_scores(TABLE)
    assert "only one" in rank({"d0": table["d0"]}).why_not
    assert "three methods" in rank({"d0": {"a": 1, "b": 2, "c": 3}, "d1": {"a": 1, "b": 2}}).why_not
    assert rank({}).ranks is None
    some = rank({"d0": {"a": 1, "b": 2, "c": 3, "d": 4}, "d1": {"a": 3, "b": 2, "c": 1}})
    assert some.left_out == ("d",)
    assert set(some.ranks.values()) == {2.0}


def test_all_the_same_is_no_finding():
    found = rank({f"d{i}": dict.fromkeys("abc", 0.5) for i in range(4)})
    assert found.p == 1
    assert found.p_iman_davenport == 1


def test_complete_agreement():
    found = rank({f"d{i}": {"a": 3, "b": 2, "c": 1} for i in range(12)})
    assert found.ranks == {"a": 1, "b": 2, "c": 3}
    assert found.p < 0.001
    assert math.isnan(found.p_iman_davenport)
    assert found.cliques == (("a", "b"), ("b", "c")) if found.critical_difference >= 1 else found.cliques == ()
