"""Figure 3 of FedAli: federations that begin with what recordings without labels taught, and ones that do not.

A masked autoencoder and, for FedAli, its prototypes are trained on the datasets of the card's ``beside`` (the paper's
five). Where another dataset stands in for all of them, half of its people, drawn by the seed, lend their recordings
without labels, and the other half are the federation: the recipe's ``held-out``.

Whether prototypes learn without labels: the mean cosine of an embedding with the prototype it is given, before and
after, on windows of the federation, whose people were not there, in each block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedsense.data import load
from fedsense.engine.rounds import Listener
from fedsense.experiment import run_recipe
from fedsense.federation import Federation
from fedsense.methods import FedAli
from fedsense.models import Model, Network
from fedsense.models.alp import ALP, open_layers, unit
from fedsense.pretraining import LEARNED, Epoch, pretrain
from fedsense.recipe import Recipe
from fedsense.report.figures import COLOURS
from fedsense.reproduce.outcome import measured
from fedsense.reproduce.own import Found, Job, Shown

METHODS = {"fedavg": "FedAvg", "fedali": "FedAli"}
VIEWS = {"personal": "Personalization", "generalisation": "Generalization", "global": "Global"}
SMALL_EPOCHS = 12  # of pre-training, small


def measure(job: Job, seed: int) -> dict[str, Any]:
    recipe = job.recipe.model_copy(update={"seeds": (seed,)})
    fedali = recipe.methods()["fedali"]
    assert isinstance(fedali, FedAli)
    lent = _lent(job, recipe, seed)
    scores, begun = {}, {}
    for method, prototypes in (("fedavg", 0), ("fedali", fedali.prototypes)):  # FedAvg's network has none
        file = job.folder / f"{method}-seed{seed}.safetensors"
        begun[method] = _pretrained(job, lent, file, prototypes, seed)
        tables = tuple(table for table in recipe.method if table.get("label", table["name"]) == method)
        for start in (None, str(file.absolute())):
            label = f"{METHODS[method]}, {'pre-trained' if start else 'from scratch'}"
            model = recipe.model | ({"start": start} if start else {})
            one = recipe.model_copy(update={"method": tables, "model": model})
            place = job.folder / f"{method}-{'pretrained' if start else 'scratch'}"
            (result,) = run_recipe(one, place, listen=partial(_under, job, label))
            cells = {view: job.item.model_copy(update={"view": view, "method": method}) for view in VIEWS}
            scores[label] = {view: measured(cell, {method: [result]})[0][0] for view, cell in cells.items()}
    windows = torch.cat([client.train.x for client in recipe.federation(seed)])[:256]
    fresh = _with_prototypes(recipe, windows, fedali.prototypes).init(seed)
    near = [nearness(_with_prototypes(recipe, windows, fedali.prototypes), values, windows)
            for values in (fresh, begun["fedali"])]  # fmt: skip
    return {"scores": scores, "near": {"before": near[0], "after": near[1]}}


def _under(job: Job, label: str, method: str, seed: int) -> Sequence[Listener]:
    """Who is told of a run, under the name it has here."""
    return job.listen(label, seed)


def _lent(job: Job, recipe: Recipe, seed: int) -> list[Federation]:
    """Whose recordings are pre-trained on, all of them: other people's of the same dataset, or other datasets."""
    if job.experiment and job.experiment.beside:
        return [load(name) for name in job.experiment.beside]
    data = {key: value for key, value in recipe.data.items() if key != "samples"}
    whole = recipe.model_copy(update={"data": data}).federation(seed)
    return [whole.with_clients(whole.newcomers, newcomers=())]


def _pretrained(job: Job, lent: Sequence[Federation], file: Path, prototypes: int, seed: int) -> dict[str, Tensor]:
    options: dict[str, Any] = {"prototypes": prototypes, "seed": seed, "model": job.recipe.model["name"]}
    options |= {"epochs": SMALL_EPOCHS} if job.small else {}

    def tell(number: int, epoch: Epoch) -> None:
        job.tell(f"  pre-training, {prototypes} prototypes: epoch {number + 1}, error {epoch.loss:.4f}")

    return pretrain(lent, file, resume=True, told=tell, **options).params


def _with_prototypes(recipe: Recipe, windows: Tensor, prototypes: int) -> Model:
    def complete(network: Network) -> None:
        open_layers(network, prototypes)

    spec = recipe.model_spec()
    return spec.build(spec.names[0], tuple(windows.shape[1:]), 2, 0, complete)


@torch.no_grad()
def nearness(model: Model, values: Mapping[str, Tensor], x: Tensor) -> list[float]:
    """Of each block, the mean cosine between embeddings and the prototypes they are given in use."""
    params = {**model.init(0), **{name: t for name, t in values.items() if name.split(".")[0] in LEARNED}}
    found: list[float] = []

    def look(layer: ALP, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        tokens = inputs[0].flatten(0, -2)
        table, chosen = layer._match(tokens, inputs[0].shape[1])
        found.append(float((unit(tokens) * unit(table[chosen])).sum(1).mean()))

    hooks = [m.register_forward_hook(look) for m in model.network.modules() if isinstance(m, ALP)]
    model.infer(params, x)
    for hook in hooks:
        hook.remove()
    return found


def show(job: Job, found: Mapping[int, Found]) -> Shown:
    each = list(found.values())
    lines = [
        job.line(label, column, [one["scores"][label][view] for one in each])
        for label in each[0]["scores"]
        for view, column in VIEWS.items()
    ]
    for block in range(len(each[0]["near"]["before"])):
        for when in ("before", "after"):
            values = [100 * one["near"][when][block] for one in each]
            lines.append(job.line(f"block {block + 1}: cosine to prototypes, × 100", f"{when} pre-training", values))
    return lines, {"": _drawn(job, each)}


def _drawn(job: Job, each: Sequence[Found]) -> Figure:
    """Bars of the three scores, the mean over seeds; a dot a seed."""
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    axes = figure.subplots()
    labels = list(each[0]["scores"])
    for number, label in enumerate(labels):
        heights = np.array([[one["scores"][label][view] for view in VIEWS] for one in each])
        places = np.arange(len(VIEWS)) + 0.2 * (number - 1.5)
        colour = COLOURS[number // 2]
        axes.bar(places, heights.mean(0), 0.18, color=colour, alpha=0.45 if number % 2 == 0 else 1, label=label)
        if len(each) > 1:
            axes.scatter(np.tile(places, len(each)), heights.ravel(), s=8, color="black", zorder=3)
    axes.set_xticks(range(len(VIEWS)), list(VIEWS.values()))
    axes.set_ylabel("macro F1, %")
    data = job.experiment
    axes.set_title(f"{data.datasets} (not {data.instead})" if data and data.instead else "", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(ncols=4, frameon=False, fontsize=8, loc="outside lower center")
    return figure
