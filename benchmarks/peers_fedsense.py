"""fedsense as a user calls it: ``fedsense.run`` with its defaults, which are one-thread workers, one a core."""

from __future__ import annotations

import time

from peers_loop import Net, moved
from peers_work import Outcome, Workload, arrays
from torch import Tensor

import fedsense
from fedsense.engine.rounds import Engine, Listener
from fedsense.method import Method
from fedsense.methods import METHODS
from fedsense.models import Network


class Watch(Listener):
    def __init__(self) -> None:
        self.times: list[float] = []
        self.loss, self.shared = float("nan"), dict[str, Tensor]()

    def started(self, engine: Engine) -> None:
        self.times.append(time.time())

    def round_done(self, engine: Engine, round: int) -> None:
        self.times.append(time.time())
        if round < engine.settings.rounds:
            return
        last = engine.record.ledger[-1]["clients"].values()
        self.loss = sum(client["metrics"]["loss"] for client in last) / len(last)
        self.shared = engine.server.get("model") or engine.server["encoder"]


def method(work: Workload) -> Method:
    fields = {"batch": work.batch, "optimiser": work.optimiser, "lr": work.lr}
    if not work.personal_heads:
        return METHODS["fedavg"](epochs=work.epochs, momentum=0.9, **fields)
    return METHODS["fedrep"](head_epochs=work.head_epochs, encoder_epochs=work.epochs, head_lr=work.lr, **fields)


def run(work: Workload, rounds: int, workers: int, threads: int) -> Outcome:
    x, y = arrays(work)
    clients = {f"c{i:03}": {"train": (x[i], y[i])} for i in range(work.clients)}

    def network(shape: tuple[int, ...], classes: int) -> Network:
        net = Net(work)
        return Network(encoder=net.body, head=net.head, features=work.features)

    watch = Watch()
    fedsense.run(
        fedsense.Federation.from_arrays(clients, work.classes),
        method=method(work),
        model=network,
        rounds=rounds,
        participation=work.cohort / work.clients,
        every=rounds,
        views=("global",),  # nobody has test data: nothing is scored
        progress=False,
        listeners=(watch,),
    )
    body = "" if work.personal_heads else "body."  # what is fedsense's encoder is a body here
    shared = {name.replace("encoder.", body): value for name, value in watch.shared.items()}
    return Outcome(watch.times, watch.loss, moved(shared, work), {"fedsense": fedsense.__version__})
