"""From a run's record to the numbers one quotes, always with the round they belong to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsense.errors import UserError
from fedsense.evaluation.metrics import LOWER_IS_BETTER

POOLED = "everyone"  # whose score that of all people held out together is
SELECTIONS = ("final", "last-K", "validation", "best-on-test")


@dataclass(frozen=True)
class Row:
    """One view and metric of one run: over clients, at a stated round."""

    method: str
    seed: int
    view: str
    metric: str
    selection: str  # how the round was chosen
    round: int | str  # "16-20" for a mean over rounds
    mean: float  # over clients
    std: float  # over clients (population)
    weighted_mean: float  # by test samples: ProtoHAR Eq. 12
    clients: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def check_selection(selection: str) -> None:
    if selection not in SELECTIONS and not re.fullmatch(r"last-[1-9]\d*", selection):
        raise UserError(f"there is no summary '{selection}'; say final, last-5 (or another number), validation, "
                        "or best-on-test")  # fmt: skip
    if selection == "last-K":
        raise UserError("say how many rounds: last-5, for example")


def summarise(
    method: str,
    seed: int,
    scores: Sequence[Mapping[str, Any]],
    test_sizes: Mapping[str, int],
    selection: str = "final",
    of_view: Mapping[str, Mapping[str, int]] | None = None,
) -> list[Row]:
    """A row for every view and metric of a run's ``scores`` record; ``of_view`` are sizes of one view's own."""
    check_selection(selection)
    if not scores:
        return []
    rows = []
    for view, splits in scores[-1]["scores"].items():
        metrics = list(splits["test"])
        for metric in metrics:
            chosen = _choose(scores, view, metric, metrics[0], selection)
            sizes = (of_view or {}).get(view, test_sizes)
            rows.append(_row(method, seed, view, metric, selection, chosen, sizes))
    return rows


def curve(scores: Sequence[Mapping[str, Any]], view: str, metric: str, split: str = "test") -> list[tuple[int, float]]:
    """(round, mean over clients) of every evaluated round."""
    return [(line["round"], _mean(line["scores"][view][split][metric])) for line in scores if view in line["scores"]]


def _choose(
    scores: Sequence[Mapping[str, Any]], view: str, metric: str, first: str, selection: str
) -> list[Mapping[str, Any]]:
    if selection == "final":
        return [scores[-1]]
    if selection.startswith("last-"):
        return list(scores[-int(selection.removeprefix("last-")) :])
    split, judge = ("test", metric) if selection == "best-on-test" else ("val", first)
    points = [(value, i) for i, (_, value) in enumerate(curve(scores, view, judge, split)) if math.isfinite(value)]
    if not points:
        raise UserError(f"no {'validation' if split == 'val' else 'test'} data to choose a round of view '{view}' on; "
                        "summarise the final round, or give clients validation data")  # fmt: skip
    sign = -1 if judge in LOWER_IS_BETTER else 1
    best = max(points, key=lambda point: (sign * point[0], -point[1]))  # the earliest of equals
    return [scores[best[1]]]


def _row(
    method: str,
    seed: int,
    view: str,
    metric: str,
    selection: str,
    lines: Sequence[Mapping[str, Any]],
    test_sizes: Mapping[str, int],
) -> Row:
    each = [line["scores"][view]["test"][metric] for line in lines]
    clients = {c: _mean({i: values[c] for i, values in enumerate(each)}) for c in each[0]}
    known = {c: value for c, value in clients.items() if math.isfinite(value)}
    values = np.array(list(known.values()))
    weights = np.array([test_sizes.get(c, 0) for c in known], dtype=float)
    rounds = [line["round"] for line in lines]
    return Row(
        method,
        seed,
        view,
        metric,
        selection,
        rounds[0] if len(rounds) == 1 else f"{rounds[0]}-{rounds[-1]}",
        float(values.mean()) if len(values) else math.nan,
        float(values.std()) if len(values) else math.nan,
        float(values @ weights / weights.sum()) if weights.sum() else math.nan,
        known,
    )


def _mean(values: Mapping[Any, float | None]) -> float:
    known = [v for v in values.values() if v is not None]
    return float(np.mean(known)) if known else math.nan
