"""Metrics of one model on one client's samples. A metric that is not defined there (AUC of one class) is NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense.errors import UserError, nearest
from fedsense.federation import Task

Array = NDArray[np.floating]
Metric = Callable[[Array, Any, Task], float]


def accuracy(logits: Array, y: NDArray[np.int64], task: Task) -> float:
    """Share of samples classified rightly."""
    return float((logits.argmax(1) == y).mean())


def macro_f1(logits: Array, y: NDArray[np.int64], task: Task) -> float:
    """Mean F1 over the classes that occur in the samples or the predictions: 2·TP / (2·TP + FP + FN)."""
    width = len(task.classes)
    confusion = np.bincount(y * width + logits.argmax(1), minlength=width * width).reshape(width, width)
    found, true, said = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    present = (true + said) > 0
    return float((2 * found[present] / (true + said)[present]).mean())


def auc(logits: Array, y: NDArray[np.int64], task: Task) -> float:
    """Area under the ROC curve, one class against the rest, mean over the classes that occur."""
    from sklearn.metrics import roc_auc_score  # slow to import, and seldom asked for

    present = np.unique(y)
    if len(present) < 2:
        return float("nan")
    scores = np.exp(logits - logits.max(1, keepdims=True))
    scores /= scores.sum(1, keepdims=True)
    return float(roc_auc_score(y[:, None] == present, scores[:, present], average="macro"))


def mae(logits: Array, y: NDArray[Any], task: Task) -> float:
    """Mean absolute error of the predicted count or value; for counting tasks and regression."""
    if task.kind == "regression":
        return float(np.abs(logits[:, 0] - y).mean())
    counts = np.asarray(task.counts)
    return float(np.abs(counts[logits.argmax(1)] - counts[y]).mean())


def rmse(output: Array, y: Array, task: Task) -> float:
    """Root of the mean squared error; for regression."""
    return float(np.sqrt(np.mean((output[:, 0] - y) ** 2)))


def r2(output: Array, y: Array, task: Task) -> float:
    """Share of the variance that is explained: 1 − Σ(ŷ − y)² / Σ(y − ȳ)²; for regression."""
    spread = float(((y - y.mean()) ** 2).sum())
    return float(1 - ((output[:, 0] - y) ** 2).sum() / spread) if spread else float("nan")


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "macro-f1": macro_f1,
    "auc": auc,
    "mae": mae,
    "rmse": rmse,
    "r2": r2,
}
LOWER_IS_BETTER = frozenset({"mae", "rmse"})
OF_VALUES = frozenset({"mae", "rmse", "r2"})


def check_metrics(names: Sequence[str], task: Task | None = None) -> None:
    """Refuse metrics that do not exist or do not fit the task."""
    for name in names:
        if name not in METRICS:
            raise UserError(f"there is no metric '{name}'; {nearest(name, METRICS)}", about=name)
        if task is None:
            continue
        if name == "mae" and task.kind == "classification":
            raise UserError("metric 'mae' is for counting tasks, where classes are numbers; this federation's are not")
        if (name in OF_VALUES) != (task.kind == "regression") and name != "mae":
            wanted = '["rmse", "r2"]' if task.kind == "regression" else '["accuracy", "macro-f1"]'
            of = "values" if task.kind == "regression" else "classes"
            raise UserError(f"metric '{name}' does not suit labels that are {of}; say metrics = {wanted}", about=name)


def measure(logits: Array, y: NDArray[Any], task: Task, names: Sequence[str]) -> dict[str, float]:
    """The named metrics; NaN throughout for no samples."""
    if not len(y):
        return {name: float("nan") for name in names}
    if not np.isfinite(logits).all():  # a model that diverged knows nothing
        logits = np.nan_to_num(logits, nan=0.0, posinf=0.0, neginf=0.0)
    return {name: METRICS[name](logits, y, task) for name in names}
