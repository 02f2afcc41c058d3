"""ProtoHAR, FedAPA and FedCoad on the view each is meant for, five seeds, paired by client or person.

What it gave is in docs/results/methods.md.
"""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from fedsense.engine.rounds import Engine
from fedsense.experiment import reopen, run_recipe
from fedsense.recipe import load_recipe
from fedsense.result import comparison

pytestmark = [pytest.mark.experiment, pytest.mark.timeout(3600)]


def values(results):
    """(method, view) → accuracy of every client (or person) and seed, in one order."""
    found = {}
    for row in (row for result in results for row in result.rows() if row.metric == "accuracy"):
        found.setdefault((row.method, row.view), []).extend(row.clients[c] for c in sorted(row.clients))
    return {key: np.array(each) for key, each in found.items()}


def tell(better, worse, gap):
    """Clients of one seed share models, so the p-value is of many pairs that are not quite independent."""
    p = wilcoxon(gap, alternative="greater").pvalue
    print(f"{' '.join(better)} - {' '.join(worse)}: {100 * gap.mean():+.1f} points, {len(gap)} pairs, p = {p:.2g}")
    return p


@pytest.mark.parametrize(
    ("recipe", "pairs"),
    [
        ("skewed-labels-sgd", [("protohar", "personal")]),
        ("skewed-labels", [("fedcoad", "held-out")]),
        ("skewed-features", [("fedapa", "personal")]),
    ],
)
def test_each_method_beats_fedavg_on_the_view_it_is_meant_for(recipe, pairs, tmp_path):
    results = run_recipe(load_recipe(recipe), tmp_path)
    print(comparison(results))
    found = values(results)
    for method, view in pairs:
        gap = found[method, view] - found["fedavg", view]
        by_seed = gap.reshape(5, -1).mean(1)
        print("by seed:", np.round(100 * by_seed, 1))
        assert (by_seed > 0).sum() >= 4
        assert tell((method, view), ("fedavg", view), gap) < 0.05


def waiting(engine: Engine) -> float:
    """How long rounds take if each waits for its slowest device, in units of the median client's work."""
    members = engine.site.task.members
    load = {c: m.samples * m.flops / m.speed for c, m in members.items()}
    unit = float(np.median(list(load.values())))
    return sum(max(load[c] for c in line["clients"]) for line in engine.record.ledger) / unit


def test_a_diverse_choice_takes_less_time_at_about_the_same_accuracy(tmp_path):
    results = run_recipe(load_recipe("fedapa/selection"), tmp_path)
    print(comparison(results))
    found = values(results)
    gap = found["diverse", "personal"] - found["random", "personal"]
    tell(("diverse",), ("random",), gap)
    time = {label: [] for label in ("random", "diverse")}
    for result in results:
        time[result.method].append(waiting(reopen(result.folder)))
    for label, each in time.items():
        print(f"{label}: a run waits {np.mean(each):.0f} units ({', '.join(f'{t:.0f}' for t in each)})")
    assert all(d < r for d, r in zip(time["diverse"], time["random"], strict=True))
    # by less than three points, at the lower end of a bootstrap interval over clients
    rng = np.random.default_rng(0)
    means = rng.choice(gap, (2000, len(gap))).mean(1)
    print(f"diverse - random: {100 * gap.mean():+.1f} points, 95 % from {100 * np.quantile(means, 0.025):+.1f}")
    assert np.quantile(means, 0.025) > -0.03
