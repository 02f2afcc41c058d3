"""FedAli's Table 3: local training time, what a client holds and what travels, beside FedAvg's; and its two big sums.

    python benchmarks/fedali.py [--turns 5] [--json]

Time: one client's local update of one epoch (256 windows of 128 × 6, minibatches of 64) with HART on one thread, each
method's next to FedAvg's, in turns; what counts is the median of the ratios of turns that follow one another.
Prototypes were learned for a round before, so that they are in use. Bytes are of what is really serialised, after that
round: what a client holds is its model and its state, what travels is what comes down and goes up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedsense.bundle import payload
from fedsense.engine.executors import keep_freed_memory
from fedsense.engine.site import Site
from fedsense.federation import Federation
from fedsense.method import Method
from fedsense.methods import METHODS
from fedsense.models.alp import scaling
from fedsense.models.spec import ModelSpec
from fedsense.ops.kmeans import kmeans
from fedsense.work import Work, stream

HART = ModelSpec(("hart",))
COMMON: dict[str, Any] = {"batch": 64, "epochs": 1, "optimiser": "adam", "lr": 1e-4}
OWN: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.01},
    "moon": {"mu": 1.0},
    "fedpac": {"head_epochs": 1},
}
PAPER = {  # time, memory, communication
    "fedper": (1.0, 1.0, 0.14),
    "fedprox": (2.51, 1.86, 1.0),
    "moon": (2.3, 2.72, 1.0),
    "fedproto": (2.28, None, 0.01),
    "fedpac": (2.85, None, 1.01),
    "fedali": (1.09, 2.38, 2.38),
}


class Case:
    """A method after one round of one client."""

    def __init__(self, method: Method) -> None:
        rng = stream("benchmark", "fedali")
        data = {"c": {"train": (rng.normal(size=(256, 6, 128)).astype("f"), np.arange(256) % 6)}}
        site = Site(Federation.from_arrays(data, 6), method, HART, seed=0)
        self.method, self.client = method, site.client("c")
        self.server = site.first_server
        first = method.broadcast(self.server, "c")
        self.state = method.init_client(self.client, self.client.initial, first, Work(0, 0, "c", 64))
        self.reply = method.local_update(self.client, self.state, first, Work(0, 1, "c", 64))
        self.server = method.aggregate(self.server, {"c": self.reply.upload})
        self.state = self.reply.state

    def update(self) -> float:
        down = self.method.broadcast(self.server, "c")
        began = time.perf_counter()
        self.reply = self.method.local_update(self.client, self.state, down, Work(0, 2, "c", 64))
        return time.perf_counter() - began

    def travels(self) -> int:
        return sum(sum(payload(b).values()) for b in (self.method.broadcast(self.server, "c"), self.reply.upload))

    def holds(self) -> int:
        model = self.reply.model or self.reply.state["model"]
        state = {group: values for group, values in self.reply.state.items() if group not in ("head",)}
        state = {} if state.get("model") is model else state
        return sum(payload({"model": model, **{f"kept.{g}": v for g, v in state.items()}}).values())


def seconds(do: Callable[[], object], times: int = 3) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        found.append(time.perf_counter() - began)
    return min(found)


def sums() -> dict[str, float]:
    """512 embeddings to 4096 prototypes on one thread; the prototypes of 30 clients, 2048 each, on all threads."""
    generator = torch.Generator().manual_seed(0)
    x, p = (torch.nn.functional.normalize(torch.randn(n, 192, generator=generator)) for n in (512, 4096))

    def plan() -> None:
        kernel = (x @ p.T / 0.05).exp_()
        scaling([kernel], 3)

    found = {
        "sinkhorn 512 x 4096, ms": 1e3 * seconds(plan),
        "one product of that size, ms": 1e3 * seconds(lambda: x @ p.T),
    }
    torch.set_num_threads(torch.get_num_interop_threads())
    base = torch.randn(2048, 192, generator=generator)
    for drift in (0.05, 1.0):
        each = [base + drift * torch.randn(2048, 192, generator=generator) for _ in range(30)]
        points, mean, guess = torch.cat(each), torch.stack(each).mean(0), torch.arange(2048).repeat(30)
        found[f"k-means of 30 x 2048, moved by {drift}, s"] = seconds(lambda p=points, m=mean, g=guess: kmeans(p, m, g))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    plain = Case(METHODS["fedavg"](**COMMON))
    plain.update()
    rows: dict[str, dict[str, float]] = {}
    for name in PAPER:
        case = Case(METHODS[name](**COMMON, **OWN.get(name, {})))
        case.update()
        ratios, ours = [], []
        for _ in range(arguments.turns):
            base = plain.update()
            ours.append(case.update())
            ratios.append(ours[-1] / base)
        rows[name] = {
            "seconds": statistics.median(ours),
            "time": statistics.median(ratios),
            "memory": case.holds() / plain.holds(),
            "travels": case.travels() / plain.travels(),
        }
    beside = sums()
    if arguments.json:
        print(json.dumps({"methods": rows, "sums": beside}, indent=1))
        return
    print("| | seconds an epoch | time | paper | holds | paper | travels | paper |\n|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        a, b, c = ("data" if value is None else f"{value:.2f}" for value in PAPER[name])
        values = (
            f"{row['seconds']:.2f}",
            f"{row['time']:.2f}",
            a,
            f"{row['memory']:.2f}",
            b,
            f"{row['travels']:.2f}",
            c,
        )
        print(f"| {name} | {' | '.join(values)} |")
    for what, value in beside.items():
        print(f"{what}: {value:.2f}")


if __name__ == "__main__":
    main()
