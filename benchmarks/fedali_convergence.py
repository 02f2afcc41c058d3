"""FedAli's Figure 5: how far prototypes still move in an epoch, block by block, while one client trains.

    python benchmarks/fedali_convergence.py [--root HAPT] [--person s01] [--epochs 40] [--decay 0.999] [--out FILE.svg]

FedAli with one client, a round being an epoch: the centre of one client's prototypes is each of them itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fedsense
from fedsense.report.figures import svg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root")
    parser.add_argument("--person", default="s01")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--decay", type=float, default=0.999)
    parser.add_argument("--out", type=Path, default=Path("fedali-convergence.svg"))
    arguments = parser.parse_args()
    people = fedsense.load("hapt", **({"root": arguments.root} if arguments.root else {}))
    alone = people.with_clients([client for client in people if client.id == arguments.person])
    result = fedsense.run(
        alone,
        "fedali",
        "hart",
        rounds=arguments.epochs,
        epochs=1,
        batch=64,
        optimiser="adam",
        lr=1e-4,
        decay=arguments.decay,
        views=("personal",),
        metrics=("accuracy",),
        progress=False,
    )
    moved = [entry["prototypes moved"] for entry in result.observations]
    for number in sorted({1, 2, 5, 10, 20, arguments.epochs} & set(range(1, len(moved) + 1))):
        print(f"epoch {number}: " + " ".join(f"{way:.4f}" for way in moved[number - 1].values()))

    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for block, layer in enumerate(moved[0]):
        axes.plot(range(1, len(moved) + 1), [way[layer] for way in moved], label=f"block {block + 1}")
    axes.set(xlabel="epoch", ylabel="mean distance prototypes moved", title="How far prototypes move", ylim=(0, None))
    axes.legend(ncols=2, frameon=False)
    arguments.out.write_text(svg(figure), encoding="utf-8")
    print(f"{arguments.out}")


if __name__ == "__main__":
    main()
