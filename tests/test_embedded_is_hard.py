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


def test_a_linear_model_on_raw_windows_does_not_solve_it(scores):
    shared = federation(0)
    pooled = linear(shared.pooled().clients[0].train)
    assert np.mean([accuracy(pooled, c.test) for c in shared]) < 0.5
    alone = np.mean([accuracy(linear(c.train), c.test) for c in shared])
    assert alone < scores["local", "personal"].mean() - 0.05, "a network learns what a linear model cannot"


def test_alone_does_not_reach_what_sharing_can(scores):
    alone, shared = scores["local", "personal"], scores["fedavg", "personal"]
    assert shared.mean() > alone.mean() + 0.02
    assert wilcoxon(shared, alone, alternative="greater").pvalue < 0.05


def test_one_global_model_loses_to_personal_ones(scores):
    personal, one = scores["fedavg", "personal"], scores["fedavg", "global"]
    assert personal.mean() > one.mean() + 0.05
    assert wilcoxon(personal, one, alternative="greater").pvalue < 0.01


def test_there_is_room_above(scores):
    assert scores["fedavg", "personal"].mean() < 0.93
