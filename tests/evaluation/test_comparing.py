"""Verdicts: what is a win, what is not, and how often nothing is called something."""

import numpy as np
import pytest
from scipy import stats

from fedsense.evaluation import statistics
from fedsense.evaluation.comparing import Trial, differences, pairs, scores
from fedsense.evaluation.reaching import Cost, Course, frontier, reach
from fedsense.evaluation.statistics import holm, wilcoxon
from fedsense.evaluation.worth import worth

SAME = {"data": True}


def trials(values, dataset="data", names="abcdefgh", client="c{:02}"):
    """From values [method, seed, client]; who has none did not take part."""
    found = []
    for method, of in zip(names, values, strict=False):
        for seed, row in enumerate(of):
            clients = {client.format(i): float(value) for i, value in enumerate(row) if not np.isnan(value)}
            found.append(Trial(dataset, method, seed, clients, dict.fromkeys(clients, 1.0)))
    return found


def study(rng, methods=3, seeds=5, clients=12, by_run=0.0, by_client=0.0, gain=0.0, who="the same"):
    """Scores of methods none of which is better, but that the last gains; runs and tastes of clients vary.

    ``who`` are the clients of a seed: the same as in all, some of them (a third is missing), or people of its own.
    """
    drawn = seeds if who == "others" else 1
    values = 0.7 + rng.normal(0, 0.1, (1, drawn, clients)) + rng.normal(0, 0.03, (methods, seeds, clients))
    values += rng.normal(0, by_run, (methods, seeds, 1)) + rng.normal(0, by_client, (methods, drawn, clients))
    values[-1] += gain
    if who == "some":
        values[:, rng.permuted(np.tile(np.arange(clients), (seeds, 1)), axis=1) < clients // 3] = np.nan
    return values


@pytest.fixture
def quick(monkeypatch):
    """Intervals do not matter here."""
    monkeypatch.setattr(statistics, "DRAWS", 20)
    monkeypatch.setattr(statistics, "MOST_SEEDS", 8)
    statistics._shares.cache_clear()
    yield
    statistics._shares.cache_clear()


def naive(values):
    """What papers do: all clients of all seeds pooled, one signed-rank test for every two methods."""
    couples = [(a, b) for a in range(len(values)) for b in range(a)]
    pooled = values[:, ~np.isnan(values[0])]
    return min(holm([wilcoxon(pooled[a] - pooled[b]) for a, b in couples])) <= 0.05


NULLS = {  # what varies; how often pooling finds something, from and to
    "nothing varies": ({}, (0.0, 0.09)),
    "runs vary": ({"by_run": 0.03}, (0.4, 1)),
    "clients have tastes": ({"by_client": 0.05}, (0.2, 1)),
    "both": ({"by_run": 0.03, "by_client": 0.05}, (0.4, 1)),
    "few runs and many clients": ({"by_run": 0.03, "by_client": 0.02, "clients": 30, "methods": 2}, (0.3, 1)),
}


def count(studies, **variation):
    """Studies with a win, and those in which pooling finds one."""
    rng = np.random.default_rng(0)
    same = {"data": variation.get("who") != "others"}
    wins = pooled = 0
    for _ in range(studies):
        values = study(rng, **variation)
        wins += any(pair.verdict == "win" for pair in pairs(trials(values), same)[0])
        pooled += naive(values)
    return wins, pooled


@pytest.mark.parametrize(("variation", "naively"), NULLS.values(), ids=NULLS)
@pytest.mark.usefixtures("quick")
def test_a_study_with_no_true_difference_seldom_has_a_win(variation, naively):
    """At most one in twenty, but for chance; pooling clients and seeds holds that only if nothing varies."""
    wins, pooled = count(120, **variation)
    assert wins <= stats.binom.ppf(0.99, 120, 0.05)
    assert naively[0] <= pooled / 120 <= naively[1]


@pytest.mark.parametrize("who", ["others", "some"])
@pytest.mark.usefixtures("quick")
def test_clients_that_come_and_go(who):
    wins, pooled = count(120, by_run=0.03, who=who)
    assert wins <= stats.binom.ppf(0.99, 120, 0.05)
    assert pooled > 48
    wins, _ = count(120, by_run=0.03, by_client=0.05, who=who)
    assert wins <= stats.binom.ppf(0.99, 120, 0.05)


@pytest.mark.experiment
@pytest.mark.parametrize("who", ["the same", "some", "others"])
@pytest.mark.parametrize("variation", [v for v, _ in NULLS.values()], ids=NULLS)
@pytest.mark.usefixtures("quick")
def test_false_wins_of_many_studies(variation, who):
    wins, pooled = count(1000, who=who, **variation)
    print(f"{variation}, clients of a seed are {who}: {wins / 1000:.3f}; pooled {pooled / 1000:.3f}")
    assert wins <= stats.binom.ppf(0.99, 1000, 0.05)


@pytest.mark.usefixtures("quick")
def test_a_true_difference_is_found():
    rng, found = np.random.default_rng(1), 0
    for _ in range(40):
        (pair,) = pairs(trials(study(rng, methods=2, by_run=0.01, by_client=0.01, gain=0.05)), SAME)[0]
        found += pair.winner == "b"
        assert pair.winner in ("b", None)
    assert found >= 36


def test_people_who_are_not_in_every_seed_have_a_column_each():
    values = np.array([[[1.0, np.nan], [2.0, 4.0]], [[0.0, np.nan], [0.0, 0.0]]])
    d, seeds, names = differences(trials(values)[:2], trials(values)[2:], same=True)
    assert (seeds, names) == ([0, 1], ["c00", "c01"])
    assert d.seeds.tolist() == [1, 3]
    assert d.clients.tolist() == [1.5, 4]
    assert d.client_variance == pytest.approx(2 * (0.75**2 * 0.5**2 + 0.25**2 * 2**2))  # weights 3/4 and 1/4
    draws = statistics.bootstrap(d, over_seeds=False)
    assert np.isfinite(draws).all()


def test_harm_is_judged_over_the_seeds_a_client_took_part_in():
    values = study(np.random.default_rng(3), methods=2, seeds=7, clients=4, gain=-0.3)
    values[:, :3, 0] = np.nan  # four seeds are left of it
    (found,) = worth(trials(values, names="ab")[7:], trials(values, names="ab")[:7], "local", SAME)
    known = {c.client: c.beyond_noise for c in found.clients}
    assert known == {"c00": None, "c01": True, "c02": True, "c03": True}


def of_two(values, client="c{:02}", **options):
    (pair,) = pairs(trials(values, client=client), SAME, **options)[0]
    return pair


def test_a_win_in_words():
    pair = of_two(study(np.random.default_rng(0), methods=2, gain=0.1))
    assert (pair.first, pair.second, pair.winner, pair.verdict) == ("b", "a", "b", "win")
    assert pair.says == "b is better"
    assert pair.low < pair.gain < pair.high
    assert pair.low > 0
    assert pair.interval_over == "seeds and clients"
    assert (pair.gaining, pair.losing, pair.effect) == (12, 0, 1.0)
    assert pair.p_clients == pytest.approx(2 / 2**12)


def test_lower_can_be_better():
    values = study(np.random.default_rng(0), methods=2, gain=0.1)
    assert of_two(values, lower_is_better=True).winner == "a"
    assert of_two(values, lower_is_better=True).gain == pytest.approx(-of_two(values).gain)


def test_few_seeds_are_not_enough_however_clear():
    rng = np.random.default_rng(0)
    one = of_two(study(rng, methods=2, seeds=1, gain=0.3))
    assert (one.verdict, one.winner, one.seeds_needed) == ("too few seeds", None, None)
    assert one.says == "no verdict: one seed; b is ahead on these only, needs at least 5"
    assert one.interval_over == "clients, these seeds only"
    four = of_two(study(rng, methods=2, seeds=4, gain=0.3))
    assert four.says == "no verdict: 4 seeds; b is ahead on these only, needs at least 5"
    noisy = of_two(study(rng, methods=2, seeds=4, by_run=0.05, gain=0.03))
    assert noisy.seeds_needed > 5
    assert noisy.says.endswith(f"needs about {noisy.seeds_needed}")


def test_what_is_not_shown_says_what_would_show_it():
    """Every client gains in the mean, but runs differ by more than that."""
    shifts = np.array([0.3, -0.1, 0.2, -0.1, 0.1])[None, :, None] * np.array([0, 1])[:, None, None]
    pair = of_two(0.5 + shifts + np.zeros((2, 5, 12)) + 1e-4 * np.arange(12))
    assert pair.p_clients < 0.001
    assert pair.verdict == "not shown"
    assert pair.seeds_needed > 5
    assert pair.says == f"no difference shown; one this large takes about {pair.seeds_needed} seeds"


def test_clients_that_disagree():
    gains = np.array([0.2] * 6 + [-0.1] * 6)[None, None] * np.array([0, 1])[:, None, None]
    pair = of_two(0.5 + gains + np.random.default_rng(0).normal(0, 1e-3, (2, 6, 12)))
    assert pair.verdict == "not shown"
    assert pair.says == "no difference shown; clients differ too much for more seeds to help"


def test_few_clients():
    values = study(np.random.default_rng(0), methods=2, clients=5, gain=0.3)
    assert of_two(values).says == "no verdict: 5 clients; 6 are the fewest"
    found, _ = pairs(trials(study(np.random.default_rng(0), methods=6, clients=8, gain=0.3)), SAME)
    assert {pair.says for pair in found} == {"no verdict: 8 clients are too few for 15 pairs at once"}
    against, _ = pairs(trials(study(np.random.default_rng(0), methods=6, clients=8, gain=0.3)), SAME, against="a")
    assert [pair.winner for pair in against] == [None, None, None, None, "f"]


def test_one_pooled_score_is_judged_by_seeds():
    values = 0.5 + np.array([[0.0] * 5, [0.1, 0.11, 0.09, 0.1, 0.12]])[..., None]
    assert of_two(values, client="everyone").winner == "b"
    assert of_two(values).verdict == "too few clients"  # somebody's score is not everybody's
    alone = of_two(values[:, :1], client="everyone")
    assert np.isnan([alone.low, alone.p_clients, alone.p]).all()


def test_equals_are_equal():
    values = np.full((2, 5, 8), 0.5)
    assert of_two(values).says == "no difference"
    assert of_two(values[:, :2]).says == "no verdict: 2 seeds, and no difference in them"


def test_seeds_that_differ():
    first, second = trials(study(np.random.default_rng(0), methods=2, seeds=3))[:3], []
    for t in first:
        second.append(Trial("data", "b", t.seed + 2, t.scores, t.weights))
    (pair,) = pairs([*first, *second], SAME)[0]
    assert pair.seeds == 1
    (none,) = pairs([first[0], second[1]], SAME)[0]
    assert (none.verdict, none.says) == ("not comparable", "no seed in common")


def test_over_datasets_each_counts_the_same():
    rng = np.random.default_rng(0)
    large, small = study(rng, methods=2, clients=40, gain=0.1), study(rng, methods=2, clients=8, gain=-0.02)
    found, (overall,) = pairs(trials(large) + trials(small, "small"), {"data": True, "small": True})
    assert [pair.dataset for pair in found] == ["data", "small"]
    assert overall.gain == pytest.approx(np.mean([pair.gain for pair in found]), abs=2e-3)
    assert overall.low < overall.gain < overall.high
    assert (overall.high - overall.low) < found[1].high - found[1].low


def test_scores():
    """Seeds' means .5 and .7: mean .6, over seeds √(2·.1²) = .1414; over clients .1 in both."""
    (score,) = scores(trials([[[0.4, 0.6], [0.6, 0.8]]]))
    assert (score.mean, score.std_clients, score.std_seeds) == pytest.approx((0.6, 0.1, 0.02**0.5))


def test_whom_it_harms():
    rng = np.random.default_rng(0)
    alone = 0.5 + rng.normal(0, 0.005, (1, 5, 4))
    shared = alone + np.array([0.1, -0.2, 0.0, -0.01]) + rng.normal(0, 0.005, (1, 5, 4)) * [1, 1, 0, 8]
    local, mine = trials(alone, names=["local"]), trials(shared, names=["fedavg"])
    (one,) = worth(mine, local, "local", SAME)
    assert [each.client for each in one.clients[:2]] == ["c01", "c03"]
    assert [each.client for each in one.harmed] == ["c01", "c03"]
    assert [each.client for each in one.gained] == ["c00"]
    assert [each.beyond_noise for each in one.clients] == [True, False, False, True]
    (few,) = worth(mine[:4], local, "local", SAME)
    assert few.seeds == 4
    assert few.clients[0].beyond_noise is None
    (own,) = worth(mine, local, "local", {"data": False})
    assert own.clients[0].client.startswith("c01 of seed ")
    assert len(own.clients) == 20


def course(method, seed, *scores, dataset="data"):
    rounds = [5 * (i + 1) for i in range(len(scores))]
    return Course(dataset, method, seed, rounds, list(scores), [r / 2 for r in rounds], [r / 10 for r in rounds])


def test_rounds_and_megabytes_to_a_target():
    """Reference: rounds 15 and 10, so 12.5; the other 5 and 5: 2.5 times as fast."""
    runs = [course("fedavg", 0, 0.5, 0.6, 0.8), course("fedavg", 1, 0.5, 0.8, 0.7)]
    runs += [course("quick", 0, 0.8), course("quick", 1, 0.9), course("slow", 0, 0.1), course("slow", 1, 0.1, 0.85)]
    fedavg, quick, slow = reach(runs, {"data": 0.8}, "fedavg")
    assert (fedavg.rounds, fedavg.megabytes, fedavg.seconds, fedavg.speed_up) == pytest.approx((12.5, 6.25, 1.25, 1))
    assert quick.speed_up == pytest.approx(2.5)
    assert (slow.reached, slow.seeds, slow.rounds) == (1, 2, 10)
    assert np.isnan(slow.speed_up)
    (error,) = reach([course("fedavg", 0, 3.0, 1.5)], {"data": 2.0}, lower_is_better=True)
    assert error.rounds == 10


def test_who_is_best_for_its_cost():
    costs = [Cost("data", "local", 0.6, 0, 5), Cost("data", "fedavg", 0.7, 10, 5), Cost("data", "worse", 0.65, 10, 4)]
    costs.append(Cost("other", "far better elsewhere", 0.9, 0, 1))
    marks = [(c.frontier_megabytes, c.frontier_seconds) for c in frontier(costs)]
    assert marks == [(True, False), (True, True), (False, True), (True, True)]
    assert frontier(costs[:2], lower_is_better=True)[1].frontier_megabytes is False
