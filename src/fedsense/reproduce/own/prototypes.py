"""Figure 5 of FedAli: how far prototypes still move in an epoch, block by block, while one client trains.

FedAli with one client, a round being an epoch: the centre of one client's prototypes is each of them itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from fedsense.engine.rounds import Engine
from fedsense.report.figures import COLOURS
from fedsense.reproduce.own import Found, Job, Shown

SAID = (1, 2, 5, 10, 20, 50, 100)  # epochs, beside the last


def measure(job: Job, seed: int) -> dict[str, Any]:
    recipe = job.recipe
    everyone = recipe.federation(seed)
    person = min(everyone.ids)
    alone = everyone.with_clients([everyone[person]], newcomers=())
    settings = replace(recipe.settings(seed), every=1)  # how far they moved is observed when scores are taken
    folder, listeners = job.folder / f"seed{seed}", job.listen(f"fedali, {person} alone", seed)
    engine = Engine(alone, recipe.methods()["fedali"], recipe.model_spec(), settings, folder, listeners)
    engine.run()  # goes on where it was stopped
    moved = [entry["prototypes moved"] for entry in engine.record.observations]
    blocks = [[float(way[layer]) for way in moved] for layer in moved[0]]
    return {"person": person, "windows": len(everyone[person].train), "blocks": blocks}


def show(job: Job, found: Mapping[int, Found]) -> Shown:
    each = list(found.values())
    epochs = min(len(one["blocks"][0]) for one in each)
    lines = [
        job.line(f"block {number + 1}", f"epoch {epoch}", [one["blocks"][number][epoch - 1] for one in each])
        for number in range(len(each[0]["blocks"]))
        for epoch in sorted({*(epoch for epoch in SAID if epoch <= epochs), epochs})
    ]
    return lines, {"": _drawn(job, each[0])}


def _drawn(job: Job, one: Found) -> Figure:
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for block, (moved, colour) in enumerate(zip(one["blocks"], COLOURS, strict=False)):
        axes.plot(range(1, len(moved) + 1), moved, color=colour, label=f"block {block + 1}")
    data = job.experiment.datasets if job.experiment else ""
    axes.set_title(f"{one['person']} of {data}, {one['windows']} windows", fontsize=9)
    axes.set(xlabel="epoch", ylabel="mean distance a prototype moves", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    figure.legend(ncols=6, frameon=False, fontsize=8, loc="outside lower center")
    return figure
