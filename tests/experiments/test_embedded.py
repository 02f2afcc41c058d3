"""The embedded federation with five seeds: paired by client. What it gave is in docs/results/embedded.md."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from fedsense.experiment import run_recipe
from fedsense.recipe import load_recipe
from fedsense.result import comparison


@pytest.mark.experiment
@pytest.mark.timeout(3600)
def test_sharing_beats_alone_and_personal_beats_global(tmp_path):
    results = run_recipe(load_recipe("embedded"), tmp_path)
    print(comparison(results))
    values = {}
    for row in (row for result in results for row in result.rows() if row.metric == "accuracy"):
        values.setdefault((row.method, row.view), []).extend(row.clients[c] for c in sorted(row.clients))
    pairs = [
        (("fedavg", "personal"), ("local", "personal")),
        (("fedprox", "personal"), ("local", "personal")),
        (("fedavg", "personal"), ("fedavg", "global")),
        (("centralized", "personal"), ("fedavg", "global")),
    ]
    for better, worse in pairs:
        gap = np.subtract(values[better], values[worse])
        p = wilcoxon(gap, alternative="greater").pvalue
        print(f"{' '.join(better)} - {' '.join(worse)}: {100 * gap.mean():+.1f} points, {len(gap)} pairs, p = {p:.2g}")
        assert gap.mean() > 0
        assert p < 0.05
