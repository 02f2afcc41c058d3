"""What a method costs a client, relative to FedAvg on the same network and the same data.

    python benchmarks/methods.py [--rounds 9] [--json] [--only NAME ...]

One client's local update is timed on one thread: local epochs as a line says over 128 random samples, in the second
round or later, so that every method has what it keeps and what came down. Method and FedAvg take turns,
and what counts is the median of the ratios of turns that follow one another: a busy machine is busy for both. Time is
divided by the epochs, so a pass a method makes once a round is shared out among them. Bytes are a client's in a round.
Memory is what a client keeps between rounds, in megabytes (FedAvg's keeps nothing), and by how much a process grows at
most while it does one update, relative to FedAvg's update.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsense.bundle import payload
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import Settings
from fedsense.federation import Federation
from fedsense.method import Method
from fedsense.methods import METHODS
from fedsense.models.spec import ModelSpec
from fedsense.work import Work, stream


@dataclass(frozen=True)
class Case:
    """A method on a network; ``limit`` is what it may cost at most, relative to FedAvg."""

    method: str
    model: str
    shape: tuple[int, ...]
    classes: int
    limit: float | None = None
    epochs: int = 10
    settings: tuple[tuple[str, Any], ...] = ()  # those with which it does what it is about
    options: tuple[tuple[str, Any], ...] = ()  # of the network


SIGNAL, CSI = (6, 128), (100, 60)
OTHERS = (
    *("fedper", "meta-har", "fedproto", "fedpac", "lg-fedavg", "ditto", "l2gd", "fedamp", "fedala", "wifederated"),
    *("fedhome", "caring", "fedhenn"),
)
CASES = (
    Case("fedapa", "convnet4-large", CSI, 21, 1.5),
    Case("fedapa", "convnet4-middle", CSI, 21, 1.5),
    Case("fedapa", "convnet4-large", CSI, 21, 1.5, epochs=1),
    Case("protohar", "protohar-cnn", SIGNAL, 12, 1.2),
    Case("fedrep", "protohar-cnn", SIGNAL, 12),
    Case("fedcoad", "coad-cnn", SIGNAL, 6, 2.2),
    Case("fedcoad", "coad-cnn", SIGNAL, 6, 2.2, epochs=1),
    Case("moon", "coad-cnn", SIGNAL, 6),
    Case("scaffold", "coad-cnn", SIGNAL, 6),
    Case("fedprox", "coad-cnn", SIGNAL, 6),
    Case("fedavgm", "coad-cnn", SIGNAL, 6),
    Case("local", "coad-cnn", SIGNAL, 6),
    Case("fedali", "hart", SIGNAL, 6, epochs=2),
    *(Case(name, "coad-cnn", SIGNAL, 6, epochs=5) for name in OTHERS),
    Case("fedclar", "coad-cnn", SIGNAL, 6, epochs=5, settings=(("warm_up", 1), ("clusters", 2))),
    Case("modcl", "coad-cnn", SIGNAL, 6, epochs=5, settings=(("pretrain_rounds", 1000),)),
    Case("fedbn", "convnet4-middle", CSI, 21, epochs=5),
    Case("hetfedrep", "sensor-cnn", SIGNAL, 6, epochs=5, options=(("shared", 100),)),
    Case("flic", "sensor-cnn", SIGNAL, 6, epochs=5, settings=(("pretrain", 1),), options=(("shared", 100),)),
)


def federation(case: Case, clients: int = 6, samples: int = 128) -> Federation:
    rng = stream("benchmark", case.model)
    y = np.arange(samples) % case.classes
    made = {f"c{i}": {"train": (rng.normal(size=(samples, *case.shape)).astype("f"), y)} for i in range(clients)}
    return Federation.from_arrays(made, case.classes)


def growth(update: Callable[[], float]) -> int:
    """Bytes by which a process grows at most in one update; in a process of its own, whose memory is fresh."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        torch.set_num_threads(1)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _status("VmRSS")
        update()
        os.write(write, str(_status("VmHWM") - before).encode())
        os._exit(0)
    os.waitpid(child, 0)
    grown = int(os.read(read, 100))
    os.close(read)
    os.close(write)
    return grown


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def prepared(case: Case, method: Method, data: Federation) -> tuple[Callable[[], float], dict[str, int]]:
    """A function that does one local update and tells its seconds; and the bytes of a round, and of what is kept."""
    model = ModelSpec((case.model,), dict(case.options))
    engine = Engine(data, method, model, Settings(rounds=2, workers=1, views=("global",), every=2))
    engine.run()
    torch.set_num_threads(1)
    client = engine.site.client("c0")
    down, state = method.broadcast(engine.server, "c0"), engine.states["c0"]
    work = Work(0, 100, "c0", method.batch)

    def update() -> float:
        began = time.perf_counter()
        method.local_update(client, state, down, work)
        return time.perf_counter() - began

    up = engine.record.ledger[-1]["clients"]["c0"]["up"]
    sizes = {"down": sum(payload(down).values()), "up": sum(up.values()), "kept": sum(payload(state).values())}
    return update, sizes | {"grown": statistics.median_low([growth(update) for _ in range(3)])}


def measure(case: Case, rounds: int) -> dict[str, Any]:
    data = federation(case)
    fields = {"batch": 16, "epochs": case.epochs, "lr": 0.001}
    mine, bytes_mine = prepared(case, METHODS[case.method](**fields, **dict(case.settings)), data)
    base, bytes_base = prepared(case, METHODS["fedavg"](**fields), data)
    mine(), base()
    pairs = [(mine(), base()) for _ in range(rounds)]
    return {
        "method": case.method,
        "model": case.model,
        "epochs": case.epochs,
        "fedavg_ms_per_epoch": 1e3 * statistics.median(b for _, b in pairs) / case.epochs,
        "ms_per_epoch": 1e3 * statistics.median(m for m, _ in pairs) / case.epochs,
        "ratio": statistics.median(m / b for m, b in pairs),
        "limit": case.limit,
        "bytes_down_ratio": bytes_mine["down"] / bytes_base["down"],
        "bytes_up_ratio": bytes_mine["up"] / bytes_base["up"],
        "kept_mb": bytes_mine["kept"] / 1e6,
        "memory_ratio": bytes_mine["grown"] / bytes_base["grown"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="turns of method and FedAvg")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted({case.method for case in CASES}))
    given = parser.parse_args()
    found = []
    if not given.json:
        print("| method | network | local epochs | ms an epoch | of FedAvg's time | at most | of its bytes down | up "
              "| MB kept | of its memory |")  # fmt: skip
        print("|---|---|---|---|---|---|---|---|---|---|")
    for case in CASES if given.only is None else [case for case in CASES if case.method in given.only]:
        row = measure(case, given.rounds)
        found.append(row)
        if not given.json:
            limit = f"{row['limit']:.1f}" if row["limit"] else "–"
            cells = [
                row["method"],
                row["model"],
                str(row["epochs"]),
                f"{row['ms_per_epoch']:.1f}",
                f"{row['ratio']:.2f}",
            ]
            cells += [limit, f"{row['bytes_down_ratio']:.3f}", f"{row['bytes_up_ratio']:.3f}"]
            cells += [f"{row['kept_mb']:.1f}", f"{row['memory_ratio']:.2f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    if given.json:
        print(json.dumps({"cases": found}))


if __name__ == "__main__":
    main()
