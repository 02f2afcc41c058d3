"""Averages over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.federation import Task


def size(client: Client) -> Params:
    """n_i as a group of an upload, for :func:`average`."""
    return {"n": torch.tensor(float(client.samples))}


def zeros_of_trained(params: Mapping[str, Tensor], task: Task) -> Params:
    """A zero for every parameter that trains: running statistics have neither momentum nor variates."""
    resting = set().union(*(member.buffers for member in task.members.values()))
    return {name: torch.zeros_like(t) for name, t in params.items() if name not in resting}


def architectures(task: Task) -> Params:
    """The number of each client's architecture: clients whose models have the same names and shapes have one number."""
    alike: list[Mapping[str, tuple[int, ...]]] = []
    numbers = {}
    for client_id in sorted(task.members):
        shapes = task.members[client_id].shapes
        if shapes not in alike:
            alike.append(shapes)
        numbers[client_id] = torch.tensor(alike.index(shapes))
    return numbers


def average_within(
    server: Bundle,
    uploads: Mapping[str, Bundle],
    weigh: Callable[[Mapping[str, Bundle]], Mapping[str, float]] | None = None,
) -> Bundle:
    """One average an architecture, ``model-0``, ``model-1``, …; one of which nobody took part stays as it was.

    ``weigh`` gives the weights of clients with one architecture; without it they are their samples.
    """
    number = {client_id: int(server["architecture"][client_id]) for client_id in uploads}
    averaged = {}
    for kind in sorted(set(number.values())):
        alike = {c: upload for c, upload in uploads.items() if number[c] == kind}
        averaged[f"model-{kind}"] = weighted_average(alike, "model", (weigh or sample_weights)(alike))
    return server | averaged


def average_for(server: Bundle, client_id: str) -> Bundle:
    """What :func:`average_within` has for a client: a ``model``, or nothing yet."""
    model = server.get(f"model-{int(server['architecture'][client_id])}")
    return {} if model is None else {"model": model}


def sample_weights(uploads: Mapping[str, Bundle]) -> dict[str, float]:
    """n_i of each upload."""
    return {client_id: float(upload["size"]["n"]) for client_id, upload in uploads.items()}


def average(uploads: Mapping[str, Bundle], group: str, uniform: bool = False) -> Params:
    """Σ n_i w_i / Σ n_i over one group of the uploads, buffers such as BatchNorm's statistics included.

    ``uniform`` counts every client alike.
    """
    return weighted_average(uploads, group, dict.fromkeys(uploads, 1.0) if uniform else sample_weights(uploads))


def weighted_average(uploads: Mapping[str, Bundle], group: str, weights: Mapping[str, float]) -> Params:
    """Σ a_i w_i / Σ a_i over one group of the uploads, for given weights of clients."""
    total = sum(weights[client_id] for client_id in uploads)
    names = list(next(iter(uploads.values()))[group])
    if not names:  # a part without parameters, as the encoder of FLIC-Class
        return {}
    mean = [torch.zeros_like(t) for t in next(iter(uploads.values()))[group].values()]
    for client_id, upload in uploads.items():
        torch._foreach_add_(mean, [upload[group][name] for name in names], alpha=weights[client_id] / total)
    return dict(zip(names, mean, strict=True))


def batchnorm_names(names: Iterable[str], buffers: Iterable[str]) -> frozenset[str]:
    """Those of a model's tensors that belong to BatchNorm: layers are told by the running mean among the buffers."""
    layers = {name.removesuffix("running_mean") for name in buffers if name.endswith(".running_mean")}
    return frozenset(name for name in names if name[: name.rfind(".") + 1] in layers)
