"""Statistics beside scipy, worked examples, and studies in which there is nothing to find."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedsense.evaluation import statistics
from fedsense.evaluation.statistics import (
    Differences,
    bootstrap,
    holm,
    interval,
    over_seeds_and_clients,
    rank_biserial,
    seeds_needed,
    wilcoxon,
)

RNG = np.random.default_rng(5)


def test_holm_by_hand():
    """m = 4. Sorted .005, .01, .03, .04: ·4 = .02, ·3 = .03, ·2 = .06, ·1 = .04 but not below the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


@pytest.mark.parametrize("n", [1, 5, 12, 40])
def test_wilcoxon_is_scipys_exact_test(n):
    d = RNG.normal(0.3, 1, n)
    assert wilcoxon(d) == pytest.approx(stats.wilcoxon(d, method="exact").pvalue)


def test_wilcoxon_is_exact_with_ties_too():
    """All 2⁸ signs, counted; scipy's normal approximation is a fifth off here."""
    d = np.array([0.1, 0.1, 0.2, -0.1, 0.3, 0.3, 0.2, 0.4])
    ranks = stats.rankdata(abs(d).round(9))
    seen = ranks[d > 0].sum()
    all_of_them = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s) for signs in itertools.product([0, 1], repeat=8)
    ]
    tail = min(np.mean([s >= seen for s in all_of_them]), np.mean([s <= seen for s in all_of_them]))
    assert wilcoxon(d) == pytest.approx(2 * tail)
    assert wilcoxon([0.0, *d, 0.0]) == wilcoxon(d), "zeros are left out"
    assert wilcoxon([0.8 - 0.7, 0.9 - 0.8, -0.1]) == 1.0, "differences that only rounding tells apart are ties"


def test_wilcoxon_at_the_edges():
    assert wilcoxon([0, 0]) == 1.0
    assert wilcoxon([1, 2, 3, 4, 5]) == pytest.approx(2 / 2**5), "the least that five can say"
    many = RNG.normal(0.1, 1, 400)
    assert wilcoxon(many) == pytest.approx(stats.wilcoxon(many).pvalue, rel=1e-6)


def test_rank_biserial_by_hand():
    """Ranks of |3|, |−1|, |2| are 3, 1, 2: (3 + 2 − 1)/6; zeros do not count."""
    assert rank_biserial([3, -1, 2, 0]) == pytest.approx(4 / 6)
    assert rank_biserial([1, 2]) == 1
    assert rank_biserial([-1, -2]) == -1
    assert rank_biserial([0]) == 0


def test_without_a_part_of_the_clients_it_is_the_t_test_over_seeds():
    rows = RNG.normal(0.4, 1, (6, 9))
    own = Differences.of(rows, same=False)
    assert over_seeds_and_clients(own) == pytest.approx(stats.ttest_1samp(rows.mean(1), 0).pvalue)
    alike = Differences.of(np.repeat(rows[:, :1], 9, axis=1))
    assert over_seeds_and_clients(alike) == pytest.approx(stats.ttest_1samp(rows[:, 0], 0).pvalue)


def test_both_variances_by_hand():
    """Rows [1, 3], [3, 9]: seeds' means 2 and 6, so Vₛ = 8/2 = 4; clients' 2 and 6, so V_c = 4; t = 4/√8 = √2.

    With one degree of freedom each, p = 2(1/2 − arctan(√2)/π).
    """
    p = over_seeds_and_clients(Differences.of([[1, 3], [3, 9]]))
    assert p == pytest.approx(1 - 2 * math.atan(math.sqrt(2)) / math.pi)


def test_where_nothing_varies():
    assert over_seeds_and_clients(Differences.of([[0.1, 0.1]] * 3)) == 0
    assert over_seeds_and_clients(Differences.of([[0.0, 0.0]] * 3)) == 1
    assert math.isnan(over_seeds_and_clients(Differences.of([[0.1, 0.2]]))), "one seed says nothing of seeds"


def test_weights_count():
    """Weights 3 : 1 of gains 0.2 and −0.2 are a mean of 0.1 in every seed."""
    d = Differences.of([[0.2, -0.2]] * 2, [[30, 10]] * 2)
    assert d.mean == pytest.approx(0.1)
    assert d.seed_variance == pytest.approx(0)
    equal = Differences.of([[0.2, -0.1, 0.4]])
    assert equal.client_variance == pytest.approx(np.var([0.2, -0.1, 0.4], ddof=1) / 3)


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_the_pairs_of_the_books(effect, pairs):
    """Two-sided paired t-test, α = .05, power .8, by mean / standard deviation, as power tables have it."""
    assert seeds_needed(effect, 1.0) == pairs


def test_seeds_needed_give_the_power_they_promise():
    n = seeds_needed(0.05, 0.004, alpha=0.01)
    seeds = np.random.default_rng(1).normal(0.05, math.sqrt(0.004), (4000, n))
    found = (stats.ttest_1samp(seeds, 0, axis=1).pvalue < 0.01).mean()
    assert found == pytest.approx(0.8, abs=0.03)


def test_no_number_of_seeds_makes_up_for_clients_that_differ():
    assert seeds_needed(0.01, 0.001, client_variance=0.01**2, clients=10) is None
    assert seeds_needed(0.1, 0.001, client_variance=0.01**2, clients=10) < 10
    assert seeds_needed(0.0, 0.1) is None
    assert seeds_needed(0.1, math.nan) is None
    assert seeds_needed(0.1, 0.0) == 2


@pytest.mark.parametrize(
    ("same", "by_seed", "by_client"),
    [(True, 1.0, 0.0), (True, 1.0, 2.0), (True, 0.0, 1.0), (False, 1.0, 1.0), (False, 0.0, 1.0)],
)
def test_intervals_hold_the_truth_as_often_as_they_say(same, by_seed, by_client, monkeypatch):
    monkeypatch.setattr(statistics, "DRAWS", 1000)
    statistics._shares.cache_clear()
    rng, held, studies = np.random.default_rng(2), 0, 300
    for _ in range(studies):
        clients = rng.normal(0, by_client, (1 if same else 5, 12))
        rows = 0.5 + rng.normal(0, by_seed, (5, 1)) + clients + rng.normal(0, 0.3, (5, 12))
        low, high = interval(bootstrap(Differences.of(rows, same=same), over_seeds=True))
        held += low <= 0.5 <= high
    statistics._shares.cache_clear()
    assert held >= stats.binom.ppf(0.01, studies, 0.95)


def test_bootstrap_says_the_same_every_time_and_centres_on_the_mean():
    d = Differences.of(RNG.normal(0.2, 1, (5, 20)))
    assert (bootstrap(d, True) == bootstrap(d, True)).all()
    assert bootstrap(d, True).mean() == pytest.approx(d.mean, abs=0.02)
    fixed = interval(bootstrap(d, over_seeds=False))
    error = stats.t.isf(0.025, 19) * d.clients.std(ddof=1) / math.sqrt(20)
    assert fixed == pytest.approx((d.mean - error, d.mean + error), abs=0.08)
