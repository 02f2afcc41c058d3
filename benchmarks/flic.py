"""What FLIC costs beside HetFedRep, and what 200 clients of 200 different widths cost beside one.

    python benchmarks/flic.py [--turns 7] [--clients 200] [--json]

Local epochs: one client's local update (ten epochs) on one thread, the two methods in turns; what counts is the median
of the ratios of turns that follow one another. The paper finds about 2 (S3.8). ``gaussian`` is FLIC with the full
closed form of W₂², whose covariances take an eigendecomposition a step.

Widths: one local update of every client, of inputs of 3, 4, 5, … values, in one process: side by side, filled up with
zeros; one after another; and one client alone, times their number, which is what Python's overhead would come to if
nothing were shared. The numbers of the first two differ by rounding, and by how much is told.
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

from fedsense.engine.site import Call, Site
from fedsense.federation import Federation
from fedsense.method import Method
from fedsense.methods import Flic, HetFedRep
from fedsense.models.spec import ModelSpec
from fedsense.work import Work, stream

COMMON = {"batch": 100, "epochs": 10, "optimiser": "adam", "lr": 0.001}
MLP, HIDDEN = ModelSpec(("flic-mlp",)), ModelSpec(("flic-mlp",), {"shared": 100})
CASES: tuple[tuple[str, ModelSpec, tuple[int, ...], dict[str, Any]], ...] = (
    ("FLIC-Class, MLP", MLP, (30,), {}),
    ("FLIC-HL, MLP", HIDDEN, (30,), {}),
    ("FLIC-Class, CNN, 28×28", ModelSpec(("flic-cnn",)), (1, 28, 28), {}),
    ("FLIC-HL, gaussian, MLP", HIDDEN, (30,), {"alignment": "gaussian"}),
)


def federation(shapes: list[tuple[int, ...]], samples: int = 500, classes: int = 20) -> Federation:
    rng = stream("benchmark", "flic")
    y = np.arange(samples) % classes
    made = {
        f"c{i:03}": {"train": (rng.normal(size=(samples, *shape)).astype("f"), y)} for i, shape in enumerate(shapes)
    }
    return Federation.from_arrays(made, classes)


def updating(method: Method, model: ModelSpec, shape: tuple[int, ...]) -> Callable[[], float]:
    site = Site(federation([shape]), method, model, seed=0)
    client, down = site.client("c000"), site.first_server
    state = site.method.init_client(client, client.initial, down, Work(0, 0, "c000", 100))

    def update() -> float:
        began = time.perf_counter()
        method.local_update(client, state, down, Work(0, 1, "c000", 100))
        return time.perf_counter() - began

    update()
    return update


def epochs(turns: int) -> list[dict[str, Any]]:
    rows = []
    for name, model, shape, fields in CASES:
        flic = updating(Flic(**COMMON, pretrain=0, **fields), model, shape)
        plain = updating(HetFedRep(**COMMON), model, shape)
        pairs = [(flic(), plain()) for _ in range(turns)]
        rows.append(
            {
                "case": name,
                "ms_per_epoch": 100 * statistics.median(a for a, _ in pairs),
                "hetfedrep_ms_per_epoch": 100 * statistics.median(b for _, b in pairs),
                "ratio": statistics.median(a / b for a, b in pairs),
            }
        )
    return rows


def widths(clients: int, turns: int) -> dict[str, Any]:
    data = federation([(3 + i,) for i in range(clients)], samples=200)
    method = Flic(**COMMON, pretrain=0)
    took: dict[str, list[float]] = {"together": [], "one by one": [], "one": []}
    ended: dict[str, list[Any]] = {}
    sites = {kind: Site(data, method, HIDDEN, seed=0, executor=kind) for kind in ("cohort", "serial")}

    def go(site: Site, who: list[str]) -> tuple[float, list[Any]]:
        calls = [Call("update", (c,), 1, {"down": site.first_server}) for c in who]
        began = time.perf_counter()
        answers: dict[int, Any] = {}
        for job in site.jobs(calls):
            answers |= zip(job, site.answer([calls[i] for i in job]), strict=True)
        return time.perf_counter() - began, [answers[i] for i in range(len(calls))]

    for turn in range(turns + 1):
        for name, site, who in (
            ("together", sites["cohort"], data.ids),
            ("one by one", sites["serial"], data.ids),
            ("one", sites["serial"], data.ids[:1]),
        ):
            seconds, ended[name] = go(site, who)
            if turn:  # the first makes clients and tapes
                took[name].append(seconds)
    gap = max(
        float((value - other.bundles["state"]["head"][name]).abs().max())
        for one, other in zip(ended["together"], ended["one by one"], strict=True)
        for name, value in one.bundles["state"]["head"].items()
    )
    middle = {name: statistics.median(values) for name, values in took.items()}
    return {
        "clients": clients,
        "seconds": middle,
        "times_one_client": middle["together"] / middle["one"],
        "one_by_one_to_together": statistics.median(
            a / b for a, b in zip(took["one by one"], took["together"], strict=True)
        ),
        "largest_difference_of_a_parameter": gap,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--clients", type=int, default=200, help="of as many different widths")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, wide = epochs(given.turns), widths(given.clients, max(1, given.turns // 3))
    if given.json:
        print(json.dumps({"epochs": rows, "widths": wide}, indent=1))
        return
    for row in rows:
        within = "within 2" if row["ratio"] <= 2 else "above 2"
        print(
            f"{row['case']}: {row['ms_per_epoch']:.1f} ms an epoch, HetFedRep {row['hetfedrep_ms_per_epoch']:.1f}: "
            f"{row['ratio']:.2f} times, {within}"
        )
    seconds = wide["seconds"]
    print(
        f"{wide['clients']} clients of {wide['clients']} widths: {seconds['together']:.2f} s side by side, "
        f"{seconds['one by one']:.2f} s one by one ({wide['one_by_one_to_together']:.1f} times); one client takes "
        f"{seconds['one']:.3f} s, so they cost as much as {wide['times_one_client']:.0f} of it; "
        f"parameters differ by {wide['largest_difference_of_a_parameter']:.1e} at most"
    )


if __name__ == "__main__":
    main()
