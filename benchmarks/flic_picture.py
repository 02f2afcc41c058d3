"""Figure 5 of FLIC: where a few clients' samples lie in the common space, and their classes' anchors, at three moments.

    python benchmarks/flic_picture.py [--out docs/img/flic-embedding.svg] [--seed 0]

The toy problem of linear maps; of its clients three who have five classes between them. Their embeddings are
pre-trained for 10, 50 and 100 epochs; samples and anchors go to the plane by t-SNE together, each moment for itself.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from sklearn.manifold import TSNE

import fedsense
from fedsense.engine.site import Site
from fedsense.methods import Flic
from fedsense.models.spec import ModelSpec
from fedsense.report.figures import Moment, embeddings, svg
from fedsense.work import Work


def moments(seed: int) -> tuple[list[Moment], list[str]]:
    federation = fedsense.load("toy-linear-map", clients=40, seed=seed)
    held = {client.id: set(client.train.y.unique().tolist()) for client in federation}
    chosen = max(combinations(sorted(held)[:30], 3), key=lambda ids: -abs(len(set.union(*(held[i] for i in ids))) - 5))
    labels = sorted(set.union(*(held[i] for i in chosen)))
    places = {label: number for number, label in enumerate(labels)}
    found = []
    for epochs in (10, 50, 100):
        site = Site(federation, Flic(pretrain=epochs, pretrain_batch=10), ModelSpec.of("flic-mlp"), seed)
        anchors = site.first_server["anchors"]["anchors.mean"][labels]
        parts, label, owner = [], [], []
        for number, who in enumerate(chosen):
            client = site.client(who)
            state = site.method.init_client(client, client.initial, site.first_server, Work(seed, 0, who, 100))
            latent = client.model.predict(client.initial | state["head"], client.train.x[:150]).latent
            assert latent is not None
            parts.append(latent)
            label += [places[y] for y in client.train.y[:150].tolist()]
            owner += [number] * len(latent)
        flat = TSNE(random_state=seed, init="pca").fit_transform(torch.cat([*parts, anchors]).numpy())
        title = f"after {epochs} epochs of alignment"
        points = flat[: len(label)]
        found.append(
            Moment(title, points, np.array(label), np.array(owner), flat[len(label) :], list(range(len(labels))))
        )
    return found, [f"class {label}" for label in labels]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img/flic-embedding.svg"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.write_text(svg(embeddings(*moments(given.seed))), encoding="utf-8")
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
