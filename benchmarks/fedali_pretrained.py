"""FedAli's Figure 3, small: federations that begin with what recordings without labels taught, and ones that do not.

    python benchmarks/fedali_pretrained.py [--root HAPT] [--seeds 0 1 2] [--epochs 10] [--rounds 10] [--out FOLDER]

Of the 30 people of HAPT, half are drawn by the seed; 200 windows of each, without labels, train HART and prototypes as
a masked autoencoder. The other half are the federation of recipe fedali/hapt (64 labelled windows each). The paper
pre-trains on five other datasets instead, and tests on HHAR.

Whether prototypes learn without labels: the mean cosine of an embedding with the prototype it is given, before and
after, on windows of people who were not there, in each block.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedsense
from fedsense.federation import Federation
from fedsense.models import Model, Network, build_model
from fedsense.models.alp import ALP, open_layers, unit
from fedsense.models.spec import ModelSpec
from fedsense.pretraining import LEARNED, pretrain

CLASSES = ["walking", "walking-upstairs", "walking-downstairs", "sitting", "standing", "laying"]
SPLIT = {"kind": "chronological", "test": 0.2, "val": 0.0}
VIEWS = ("personal", "generalisation", "global")
PROTOTYPES, WINDOWS = 2048, 200


def people(root: str | None, seed: int, samples: int) -> Federation:
    options: dict[str, Any] = {"classes": CLASSES, "split": SPLIT, "held_out": 15, "seed": seed}
    options |= {"root": root} if root else {}
    return fedsense.load("hapt", **options, samples=samples)


def with_prototypes(shape: tuple[int, ...]) -> Model:
    def complete(network: Network) -> None:
        open_layers(network, PROTOTYPES)

    return build_model("hart", shape, len(CLASSES), complete)


@torch.no_grad()
def nearness(values: dict[str, Tensor], x: Tensor) -> list[float]:
    """Of each block, the mean cosine between embeddings and the prototypes they are given in use."""
    model = with_prototypes(tuple(x.shape[1:]))
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


def one_seed(root: str | None, seed: int, epochs: int, rounds: int, folder: Path) -> dict[str, Any]:
    file = folder / f"pretrained-{seed}.safetensors"
    whole = people(root, seed, WINDOWS)
    others = whole.with_clients(whole.newcomers, newcomers=())

    def tell(number: int, epoch: Any) -> None:
        print(f"seed {seed}, epoch {number + 1}/{epochs}, error {epoch.loss:.4f}", file=sys.stderr)

    done = pretrain(others, file, resume=True, told=tell, epochs=epochs, prototypes=PROTOTYPES, seed=seed)
    plain = folder / f"plain-{seed}.safetensors"  # FedAvg has no prototypes, and begins with a network that had none
    pretrain(others, plain, resume=True, told=tell, epochs=epochs, prototypes=0, seed=seed)
    federation = people(root, seed, 64)
    strangers = torch.cat([client.train.x for client in federation])[:256]
    fresh = with_prototypes((6, 128)).init(seed)
    found: dict[str, Any] = {
        "error": [epoch.loss for epoch in done.history],
        "near before": nearness(fresh, strangers),
        "near after": nearness(done.params, strangers),
    }
    for method in ("fedavg", "fedali"):
        for begun in (False, True):
            label = f"{method}{', pre-trained' if begun else ''}"
            result = fedsense.run(
                federation,
                method,
                ModelSpec(("hart",), start=str(file if method == "fedali" else plain) if begun else None),
                rounds=rounds,
                seed=seed,
                batch=32,
                epochs=2,
                optimiser="adam",
                lr=5e-4,
                every=rounds,
                pool=400,
                views=VIEWS,
                metrics=("macro-f1",),
                progress=False,
                out=folder / f"{label.replace(', ', '-')}-{seed}",
            )
            last = result.history[-1]["scores"]
            found[label] = {v: float(np.nanmean(list(last[v]["test"]["macro-f1"].values()))) for v in VIEWS}
            print(f"seed {seed}, {label}: {found[label]}", file=sys.stderr)
    return found


def table(each: Sequence[dict[str, Any]]) -> None:
    print("| | " + " | ".join(VIEWS) + " |\n|---|" + "---|" * len(VIEWS))
    for label in ("fedavg", "fedavg, pre-trained", "fedali", "fedali, pre-trained"):
        cells = []
        for view in VIEWS:
            values = [100 * seed[label][view] for seed in each]
            cells.append(f"{np.mean(values):.1f} ({' '.join(f'{v:.1f}' for v in values)})")
        print(f"| {label} | {' | '.join(cells)} |")
    for what in ("near before", "near after"):
        print(f"{what}: " + ", ".join(f"{v:.2f}" for v in np.mean([seed[what] for seed in each], 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/fedali-pretrained"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    each = [one_seed(arguments.root, s, arguments.epochs, arguments.rounds, arguments.out) for s in arguments.seeds]
    if arguments.json:
        print(json.dumps(dict(zip(map(str, arguments.seeds), each, strict=True)), indent=1))
    else:
        table(each)


if __name__ == "__main__":
    main()
