"""The networks, one client's work in plain PyTorch, and the plain loop over clients in one process or in several."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from peers_work import SEED, Outcome, Workload, arrays
from torch import Tensor, nn


class Net(nn.Module):
    """A body and a linear head; every system starts from the same values."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.body = nn.Sequential(*(_mlp() if work.personal_heads else _cnn()))
            self.head = nn.Linear(work.features, work.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def _cnn() -> list[nn.Module]:
    return [
        *(nn.Conv1d(6, 32, 5), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(32, 64, 5), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(64, 64, 5), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(1600, 128), nn.ReLU()),
    ]


def _mlp() -> list[nn.Module]:
    return [nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)]


def tensors(work: Workload) -> tuple[Tensor, Tensor]:
    x, y = arrays(work)
    return torch.from_numpy(x), torch.from_numpy(y)


def optimiser(work: Workload, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Fused, torch's fastest kind on a CPU: one kernel for all parameters."""
    if work.optimiser == "adam":
        return torch.optim.Adam(parameters, lr=work.lr, fused=True)
    return torch.optim.SGD(parameters, lr=work.lr, momentum=0.9, fused=True)


def shuffled(x: Tensor, y: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch's minibatches; put in order once, then they are views."""
    order = torch.randperm(len(x))
    return zip(x[order].split(batch), y[order].split(batch), strict=True)


def local_update(net: Net, x: Tensor, y: Tensor, work: Workload) -> float:
    """One client's work in a round, on the network itself; the mean loss over the (last phase's) steps."""
    if not work.personal_heads:
        return _train(net, net, x, y, work.epochs, work)
    _train(net, net.head, x, y, work.head_epochs, work)
    return _train(net, net.body, x, y, work.epochs, work)


def _train(net: Net, part: nn.Module, x: Tensor, y: Tensor, epochs: int, work: Workload) -> float:
    net.requires_grad_(False)
    part.requires_grad_(True)
    step = optimiser(work, part.parameters())
    total, steps = torch.zeros(()), 0
    for _ in range(epochs):
        for some, labels in shuffled(x, y, work.batch):
            step.zero_grad()
            loss = nn.functional.cross_entropy(net(some), labels)
            loss.backward()
            step.step()
            total += loss.detach()  # not .item(), which would wait
            steps += 1
    return float(total) / steps


def shared_part(net: Net, work: Workload) -> nn.Module:
    return net.body if work.personal_heads else net


def moved(parameters: Mapping[str, Tensor], work: Workload) -> float:
    """How far the averaged parameters, by their names, are from where all systems start."""
    first = shared_part(Net(work), work).state_dict()
    return float(torch.cat([(parameters[name].detach() - first[name]).flatten() for name in first]).norm())


def run(work: Workload, rounds: int, workers: int, threads: int) -> Outcome:
    """The plain loop; with several workers each takes its share of a round's clients, and all average together.

    Workers are forked: they share the data, and one buffer for sums of parameters (and for personal heads), in which
    nothing is serialised.
    """
    torch.set_num_threads(threads)
    x, y = tensors(work)
    net = Net(work)
    shared, head = list(shared_part(net, work).parameters()), list(net.head.parameters())
    rng = np.random.default_rng(SEED + 1)
    chosen = [rng.choice(work.clients, work.cohort, replace=False).tolist() for _ in range(rounds)]
    # Two sets of sums in turn: a fast worker may begin the next round while a slow one still reads this round's.
    sums = torch.zeros(2, workers, sum(p.numel() for p in shared)).share_memory_()
    losses = torch.zeros(workers).share_memory_()
    heads = _flat(head).repeat(work.clients, 1).share_memory_()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(workers)

    def live(rank: int) -> list[float]:
        torch.set_num_threads(threads)
        torch.manual_seed(SEED + rank)
        average, times = _flat(shared), [time.time()]
        for number, clients in enumerate(chosen):
            mine, found = sums[number % 2, rank].zero_(), []
            for client in clients[rank::workers]:
                _load(shared, average)
                if work.personal_heads:
                    _load(head, heads[client])
                found.append(local_update(net, x[client], y[client], work))
                if work.personal_heads:
                    heads[client] = _flat(head)
                mine += _flat(shared)
            losses[rank] = sum(found) / len(clients)
            barrier.wait()
            average = sums[number % 2].sum(0) / len(clients)
            times.append(time.time())
        _load(shared, average)
        barrier.wait()
        return times

    others: list[Any] = [context.Process(target=live, args=(rank,), daemon=True) for rank in range(1, workers)]
    for other in others:
        other.start()
    times = live(0)
    for other in others:
        other.join()
    return Outcome(times, float(losses.sum()), moved(shared_part(net, work).state_dict(), work), {})


def _flat(parameters: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


@torch.no_grad()
def _load(parameters: Sequence[Tensor], flat: Tensor) -> None:
    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(piece.view_as(parameter))
