"""Metrics against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, roc_auc_score

from fedsense.errors import UserError
from fedsense.evaluation.metrics import check_metrics, measure
from fedsense.federation import Task

TASK = Task(tuple("abcd"), kind="counting", values=(0, 1, 2, 5))
ALL = ("accuracy", "macro-f1", "auc", "mae")


def softmax(logits):
    scores = np.exp(logits - logits.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


@given(st.integers(0, 10_000), st.integers(2, 60))
def test_equal_scikit_learn(seed, count):
    rng = np.random.default_rng(seed)
    logits, y = rng.normal(size=(count, 4)), rng.integers(0, 4, count)
    said = logits.argmax(1)
    got = measure(logits, y, TASK, ALL)
    assert got["accuracy"] == pytest.approx(accuracy_score(y, said))
    assert got["macro-f1"] == pytest.approx(f1_score(y, said, average="macro"))
    counts = np.array(TASK.values)
    assert got["mae"] == pytest.approx(mean_absolute_error(counts[y], counts[said]))
    present = np.unique(y)
    if len(present) < 2:
        assert math.isnan(got["auc"])
    else:
        each = [roc_auc_score(y == c, softmax(logits)[:, c]) for c in present]
        assert got["auc"] == pytest.approx(np.mean(each))
    if len(present) == 4:
        assert got["auc"] == pytest.approx(roc_auc_score(y, softmax(logits), multi_class="ovr", average="macro"))


def test_one_class_and_one_sample():
    got = measure(np.array([[9.0, 0, 0, 0]]), np.array([0]), TASK, ALL)
    assert got["accuracy"] == 1
    assert got["macro-f1"] == 1
    assert math.isnan(got["auc"])


def test_no_samples_is_undefined():
    assert all(math.isnan(v) for v in measure(np.zeros((0, 4)), np.zeros(0, dtype=int), TASK, ALL).values())


def test_counting_and_unknown_metrics_are_refused_with_a_hint():
    with pytest.raises(UserError, match="counting"):
        check_metrics(["mae"], Task(("walking", "sitting")))
    with pytest.raises(UserError, match="did you mean 'macro-f1'"):
        check_metrics(["macro_f1"], TASK)
