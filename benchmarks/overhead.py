"""What a round of fedsense costs beyond training, on W1 of benchmarks/peers.py: overhead, and evaluation every round.

    python benchmarks/overhead.py [--rounds 20] [--repeat 3] [--json]

Overhead is the part of a round in which no worker trains: choosing clients, broadcast, aggregation, ledger, checkpoints
(with a run folder) and progress. It is the round's time less the local training of its clients divided by the
workers, relative to the round; what one worker waits for the other counts as overhead, too. The first round is left
out.

Evaluation: every client has 32 windows of test data; after every round everyone's own model is scored on them and on a
pool of 2000 windows of everyone's, and the server's model on everyone's 32. Its cost is the difference to the same run
without it, taken in turns, beside what the forward passes alone take when one process of one thread does nothing else,
divided by the workers. Who did not take part in a round keeps the scores it had; who never did has the server's model,
whose score on the pool is needed once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers_loop import Net
from peers_work import WORKLOADS, arrays

import fedsense
from fedsense.engine.rounds import Engine, Listener
from fedsense.methods import FedAvg
from fedsense.models import Network
from fedsense.models.network import Model

WORK = WORKLOADS["W1"]
WORKERS, TESTED, POOL = 2, 32, 2000


class Watch(Listener):
    def __init__(self) -> None:
        self.times: list[float] = []

    def started(self, engine: Engine) -> None:
        self.times.append(time.perf_counter())

    def round_done(self, engine: Engine, round: int) -> None:
        self.times.append(time.perf_counter())


def network(shape: tuple[int, ...], classes: int) -> Network:
    net = Net(WORK)
    return Network(encoder=net.body, head=net.head, features=WORK.features)


def federation() -> fedsense.Federation:
    x, y = arrays(WORK)
    return fedsense.Federation.from_arrays(
        {
            f"c{i:03}": {"train": (x[i], y[i]), "test": (x[i - 1, :TESTED], y[i - 1, :TESTED])}
            for i in range(WORK.clients)
        },
        WORK.classes,
    )


def run(data: fedsense.Federation, rounds: int, every: int, folder: Path | None, progress: bool) -> tuple[Any, Any]:
    """Seconds of every round but the first, and of its clients' training; of the last round's scoring nothing."""
    watch = Watch()
    result = fedsense.run(
        data,
        method=FedAvg(batch=WORK.batch, epochs=WORK.epochs, lr=WORK.lr, momentum=0.9),
        model=network,
        rounds=rounds,
        participation=WORK.cohort / WORK.clients,
        every=every,
        pool=POOL,
        workers=WORKERS,
        out=folder,
        progress=progress,
        listeners=(watch,),
    )
    trained = [sum(client["seconds"] for client in line["clients"].values()) for line in result.ledger]
    return np.diff(watch.times)[1:-1], np.array(trained[1:-1])


def forward_seconds() -> float:
    """The forward passes of one round's evaluation, one thread, nothing else."""
    torch.set_num_threads(1)
    model = Model(network(WORK.shape, WORK.classes))
    params, x = model.init(0), torch.randn(POOL, *WORK.shape)
    model.predict(params, x)
    began = time.perf_counter()
    for _ in range(5):
        model.predict(params, x)
    windows = (WORK.cohort + 1) * POOL + 2 * WORK.clients * TESTED
    return (time.perf_counter() - began) / 5 / POOL * windows


def measured(rounds: int, repeat: int, say: Callable[[str], None]) -> dict[str, float]:
    data = federation()
    shares: dict[str, list[float]] = {"in memory": [], "with a run folder and progress": []}
    extra, floor = [], []
    for turn in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            cases = {"in memory": (None, False), "with a run folder and progress": (Path(folder) / "run", True)}
            for name, (out, progress) in cases.items():
                took, trained = run(data, rounds, rounds, out, progress)
                shares[name].append(float(1 - trained.sum() / WORKERS / took.sum()))
        plain, _ = run(data, rounds, rounds, None, False)
        scored, _ = run(data, rounds, 1, None, False)
        extra.append(float(np.median(scored) - np.median(plain)))
        floor.append(forward_seconds() / WORKERS)
        say(f"{turn + 1} of {repeat}: overhead {shares['in memory'][-1]:.1%}, evaluation {extra[-1]:.3f} s")
    return {
        "overhead_in_memory": statistics.median(shares["in memory"]),
        "overhead_with_folder": statistics.median(shares["with a run folder and progress"]),
        "evaluation_s": statistics.median(extra),
        "forward_s": statistics.median(floor),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of words")
    given = parser.parse_args()
    found = measured(given.rounds, given.repeat, (lambda _: None) if given.json else print)
    if given.json:
        print(json.dumps(found))
        return
    print(f"overhead, of a round on W1: {found['overhead_in_memory']:.1%} in memory,", end=" ")
    print(f"{found['overhead_with_folder']:.1%} with a run folder and progress")
    print(f"evaluation every round: {found['evaluation_s']:.3f} s; its forward passes: {found['forward_s']:.3f} s")


if __name__ == "__main__":
    main()
