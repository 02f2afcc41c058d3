"""The embedded federation tells methods apart: it is neither solved by a linear model, nor alone, nor by one for all.

Two seeds of 24 clients with five of eight activities each; differences are paired by client (Wilcoxon, one-sided).
"""

import numpy as np
import pytest
from scipy.stats import wilcoxon
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedsense
from fedsense.result import summarise

SEEDS = (0, 1)


def federation(seed):
    return fedsense.load("synthetic-imu", clients=24, samples=48, classes_per_client=5, seed=seed)


@pytest.fixture(scope="module")
def scores():
    """(method, view) → accuracy of every client of every seed, mean of the last three of six evaluations."""
    found = {}
    training = {"epochs": 3, "batch": 16, "optimiser": "adam", "lr": 1e-3}
    for seed in SEEDS:
        for method in ("local", "fedavg"):
            settings = {"rounds": 12, "every": 2, "views": ("personal", "global"), "metrics": ("accuracy",)}
            result = fedsense.run(
                federation(seed), method=method, model="coad-cnn", seed=seed, progress=False, **settings, **training
            )
            for row in summarise(method, seed, result.history, result.test_sizes, "last-3"):
                found.setdefault((method, row.view), []).extend(row.clients[c] for c in sorted(row.clients))
    return {key: np.array(values) for key, values in found.items()}


def linear(samples):
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    return model.fit(samples.x.flatten(1).numpy(), samples.y.numpy())


def accuracy(model, samples):
    return model.score(samples.x.flatten(1).numpy(), samples.y.numpy())


def test_it_is_hard_and_sharing_helps(scores):
    """One test, so that tests side by side do not train the same twice."""
    shared = federation(0)
    pooled = linear(shared.pooled().clients[0].train)
    assert np.mean([accuracy(pooled, c.test) for c in shared]) < 0.5, "a linear model on raw windows solves it"
    by_line = np.mean([accuracy(linear(c.train), c.test) for c in shared])
    alone, personal, one = scores["local", "personal"], scores["fedavg", "personal"], scores["fedavg", "global"]
    assert by_line < alone.mean() - 0.05, "a network learns what a linear model cannot"

    assert personal.mean() > alone.mean() + 0.02, "alone one does not reach what sharing can"
    assert wilcoxon(personal, alone, alternative="greater").pvalue < 0.05

    assert personal.mean() > one.mean() + 0.05, "one global model loses to personal ones"
    assert wilcoxon(personal, one, alternative="greater").pvalue < 0.01

    assert personal.mean() < 0.93, "there is room above"
