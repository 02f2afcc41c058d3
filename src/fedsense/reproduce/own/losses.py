"""Figure S1 of FLIC: loss curves of three clients in three ways to learn (section S3.4).

The toy problem of linear maps with a shared layer. A client that takes part trains for so many local epochs. From a
round on (the 21st) half of them are the shared layer's and the anchors', where these train at all:

    the classifier alone          embeddings and what is shared stay as they are
    classifier and shared part    embeddings stay as they were pre-trained
    all parts                     as Algorithm 1, but with half of the epochs for what is shared

Where embeddings are fixed, so is their distance to the anchors, and the loss is without it; that is why the paper finds
the third one's loss larger. Clients take part in the same rounds in all three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fedsense.bundle import Bundle, part
from fedsense.client import Client
from fedsense.engine.rounds import Engine
from fedsense.method import Reply
from fedsense.methods import Flic
from fedsense.ops import size
from fedsense.report.figures import COLOURS
from fedsense.reproduce.own import Found, Job, Shown
from fedsense.training import fit
from fedsense.work import Work

SHOWN = 3  # clients
WAYS: dict[str, dict[str, Any]] = {
    "the classifier alone": {"embeds": False, "shares": False, "lambda_align": 0.0},
    "classifier and shared part": {"embeds": False, "shares": True, "lambda_align": 0.0},
    "all parts": {"embeds": True, "shares": True},
}


@dataclass(frozen=True, kw_only=True)
class Watched(Flic):
    """FLIC whose local epochs are trained one by one, each with its loss among the metrics."""

    embeds: bool = True  # embeddings train
    shares: bool = True  # so does what is shared, with half of the epochs

    name: ClassVar[str] = "flic-watched"

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        later = self.epochs // 2 if self.shares and work.round >= self.shared_from else 0
        mine = self.own if self.embeds else ("head",)
        phases = [(mine, self.epochs - later), ((*self.shared, "anchors"), later)]
        params = down["encoder"] | down["anchors"] | state["head"]
        loss, more = self._objective(client), self._more(client, params, work)
        losses: list[float] = []
        for number, (parts, epochs) in enumerate(phases):
            memory: Bundle | None = None
            for epoch in range(epochs):
                schedule = work.epochs(1, f"phase {number}, epoch {epoch}")
                done = fit(loss, params, client, schedule, self.optim(), only=parts, memory=memory, **more)
                params, memory = done.params, done.optimiser
                losses.append(done.loss)
        return Reply(
            state={"head": part(params, *self.own)},
            upload={"encoder": part(params, *self.shared), "anchors": part(params, "anchors"), "size": size(client)},
            model=self.model(params),
            metrics={"loss": float(np.mean(losses)), **{f"epoch {n}": value for n, value in enumerate(losses)}},
        )


def measure(job: Job, seed: int) -> dict[str, Any]:
    recipe = job.recipe
    flic = recipe.methods()["flic"]
    given = {field.name: getattr(flic, field.name) for field in fields(flic) if field.init}
    federation = recipe.federation(seed)
    curves: dict[str, Any] = {}
    for label, way in WAYS.items():
        folder = job.folder / f"{label.replace(' ', '-')}-seed{seed}"
        method = Watched(**{**given, **way})
        listeners = job.listen(label, seed)
        engine = Engine(federation, method, recipe.model_spec(), recipe.settings(seed), folder, listeners)
        engine.run()  # goes on where it was stopped
        rounds = [line for line in engine.record.ledger if line["round"] > 0]  # before the first they get ready
        curves[label] = {who: _curve(rounds, who) for who in _often(rounds)}
    return {"curves": curves, "epochs": flic.epochs}


def _often(ledger: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who took part most often."""
    counts = Counter(who for line in ledger for who in line["clients"])
    return sorted(sorted(counts), key=lambda who: -counts[who])[:SHOWN]


def _curve(ledger: Sequence[Mapping[str, Any]], who: str) -> dict[str, list[float]]:
    """The rounds a client took part in, and the losses of its local epochs, one after another."""
    mine = [(line["round"], line["clients"][who]["metrics"]) for line in ledger if who in line["clients"]]
    losses = [round(value, 6) for _, said in mine for name, value in said.items() if name != "loss"]
    return {"rounds": [number for number, _ in mine], "losses": losses}


def show(job: Job, found: Mapping[int, Found]) -> Shown:
    lines = []
    for label in WAYS:
        each = [one["curves"][label].values() for one in found.values()]
        for column, place in (("first epoch", 0), ("last epoch", -1)):
            values = [float(np.mean([curve["losses"][place] for curve in curves])) for curves in each]
            lines.append(job.line(label, column, values))
    return lines, {"": _drawn(next(iter(found.values())))}


def _drawn(one: Found) -> Figure:
    """A panel a way to learn: a line a client, over its local epochs; where it took part again there is a mark."""
    figure = Figure(figsize=(12, 3.9), layout="constrained")
    for axes, (label, curves) in zip(figure.subplots(1, len(WAYS)), one["curves"].items(), strict=True):
        for (who, curve), colour in zip(curves.items(), COLOURS, strict=False):
            losses = curve["losses"]
            axes.plot(range(1, len(losses) + 1), losses, color=colour, linewidth=1.2, label=f"client {who}")
        longest = max(len(curve["losses"]) for curve in curves.values())
        for begin in range(one["epochs"], longest, one["epochs"]):
            axes.axvline(begin + 0.5, color="0.85", linewidth=0.8, zorder=0)
        axes.set_title(f"trains: {label}", fontsize=9)
        axes.set_xlabel("local epoch of the client (a grey line: a new round)", fontsize=8)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("loss")
    figure.axes[-1].legend(fontsize=8, frameon=False)
    return figure
