"""The two toy problems of FLIC (Rakotomamonjy et al., TMLR 2024, section S3.1.1): Gaussian classes, inputs that differ.

Twenty classes are Gaussians in five dimensions with identity covariance. Each client holds a few classes, and sees them
through an input space of its own: with noise features appended, or through a linear map of its own.

The paper says that a client keeps "5 % to 100 %" of its samples, and that 100 clients of two classes then hold about
16k in all, 38 at the least and 400 at the most. A uniform draw would leave 21k (52.5 % of 40k). The authors' code draws
in two ways, each for half of the clients, and that leaves 40 %, 16k; it is what ``keep="published"`` does:

    min(5 + 100 u, 100) %   or   15 + 20 u %,   u uniform in [0, 1)

The most is 400 = 2 · 2000 / 10, so every class has as many holders as the next. Where clients cannot hold classes
equally often, the numbers of holders differ by one at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense.errors import UserError
from fedsense.federation import ClientData, Federation, Samples, Task
from fedsense.work import stream

Array = NDArray[Any]
Keep = Literal["published", "uniform", "all"]


@dataclass(frozen=True)
class Problem:
    """What the two problems share."""

    name: str
    clients: int
    classes_per_client: int
    samples: int  # of a class, before clients are subsampled
    test_samples: int
    dimension: int
    classes: int
    deviation: float
    widths: tuple[int, int]  # the fewest and the most: noise features, or dimensions after the map
    keep: Keep
    seed: int

    def rng(self, *key: object) -> np.random.Generator:
        return stream(self.seed, self.name, *key)


# gives a function that takes points of a client to its own input space
Space = Callable[[Problem, int], Callable[[Array], Array]]


def toy_noisy_features(
    clients: int = 100,
    classes_per_client: int = 2,
    samples: int = 2000,
    test_samples: int = 1000,
    dimension: int = 5,
    classes: int = 20,
    deviation: float = 0.8,
    noise: tuple[int, int] = (1, 10),
    keep: Keep = "published",
    seed: int = 0,
) -> Federation:
    """Gaussian classes in ``dimension`` features that matter and, on each client, some of the ``noise`` that do not.

    Class means have covariance ``deviation² I``. ``samples`` and ``test_samples`` are numbers of a class, shared
    equally among the clients that hold it; then each client keeps a random part of its training samples (``keep``: as
    the authors, uniformly 5 to 100 %, or all). The test part is not subsampled, as in the authors' code; "obtained in
    the same way" in the paper leaves it open. A client depends on how many others there are.
    """
    name = "toy-noisy-features"
    problem = Problem(
        name, clients, classes_per_client, samples, test_samples, dimension, classes, deviation, noise, keep, seed
    )
    _check(problem, "noise", least=0)
    told = f"{dimension} features that matter and {noise[0]} to {noise[1]} of noise on each client"
    return _federation(problem, _with_noise, told)


def toy_linear_map(
    clients: int = 100,
    classes_per_client: int = 2,
    samples: int = 2000,
    test_samples: int = 1000,
    dimension: int = 5,
    classes: int = 20,
    deviation: float = 0.5,
    widths: tuple[int, int] = (3, 100),
    keep: Keep = "published",
    seed: int = 0,
) -> Federation:
    """Gaussian classes in ``dimension`` features, which a Gaussian matrix takes to one of ``widths`` on each client.

    The widths are the paper's, both ends included; the authors' code stops at 99, and draws 2000 test samples a class
    where the paper says 1000. The other options are those of :func:`toy_noisy_features`.
    """
    name = "toy-linear-map"
    problem = Problem(
        name, clients, classes_per_client, samples, test_samples, dimension, classes, deviation, widths, keep, seed
    )
    _check(problem, "widths", least=1)
    told = f"{dimension} features through a linear map to {widths[0]} to {widths[1]} on each client"
    return _federation(problem, _mapped, told)


def _check(problem: Problem, range_name: str, least: int) -> None:
    low, high = problem.widths
    kept, classes = problem.classes_per_client, problem.classes
    holders = -(-problem.clients * kept // classes) if classes > 0 else 0
    for wrong, message in (
        (problem.clients < 1, f"clients = {problem.clients}; give at least 1"),
        (classes < 2, f"classes = {classes}; give at least 2"),
        (not 1 <= kept <= classes, f"classes_per_client = {kept}; give 1 to {classes}, the number of classes"),
        (problem.dimension < 1, f"dimension = {problem.dimension}; give at least 1"),
        (not 0 <= problem.deviation < np.inf, f"deviation = {problem.deviation}; give 0 or more"),
        (not least <= low <= high,
         f"{range_name} = [{low}, {high}]; give the fewest and the most, at least {least}, in this order"),
        (problem.samples < holders,
         f"samples = {problem.samples} of a class; {holders} clients share them, so give at least {holders}"),
        (problem.test_samples < holders,
         f"test_samples = {problem.test_samples} of a class; {holders} clients share them, so give at least {holders}"),
        (problem.keep not in ("published", "uniform", "all"),
         f"keep = '{problem.keep}'; give 'published', 'uniform' or 'all'"),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"{problem.name}: {message}")


def _federation(problem: Problem, space: Space, told: str) -> Federation:
    holds = assign(problem.clients, problem.classes_per_client, problem.classes, problem.rng("classes"))
    centres = problem.deviation * problem.rng("means").standard_normal((problem.classes, problem.dimension))
    train = _shared("train", problem.samples, holds, centres, problem)
    test = _shared("test", problem.test_samples, holds, centres, problem)
    clients = []
    for number in range(problem.clients):
        enter = space(problem, number)
        x, y = train[number]
        kept = _kept(len(y), problem, problem.rng(number, "keep"))
        train_part, test_part = _samples(enter(x[kept]), y[kept]), _samples(enter(test[number][0]), test[number][1])
        traits = {"features": train_part.x.shape[1]}
        clients.append(ClientData(f"c{number:04d}", train_part, train_part.take(slice(0)), test_part, traits))
    return Federation(
        name=problem.name,
        task=Task(tuple(str(number) for number in range(problem.classes))),
        clients=tuple(clients),
        synthetic=True,
        description=f"Synthetic: {problem.classes} Gaussian classes, {told}; a toy problem of FLIC, section S3.1.1.",
    )


def assign(clients: int, classes_per_client: int, classes: int, rng: np.random.Generator) -> Array:
    """Who holds what, ``[clients, classes]``: so many classes a client, and holders as even as can be.

    Each client in turn takes the classes with the fewest holders, ties at random; then clients change places.
    """
    holds = np.zeros((clients, classes), dtype=bool)
    for number in range(clients):
        tie = rng.random(classes)
        holds[number, np.lexsort((tie, holds.sum(0)))[:classes_per_client]] = True
    return rng.permutation(holds)


def _shared(split: str, samples: int, holds: Array, centres: Array, problem: Problem) -> list[tuple[Array, Array]]:
    """Points and labels of each client: those of a class shared equally, in random order, among its holders."""
    points: list[list[Array]] = [[] for _ in holds]
    labels: list[list[Array]] = [[] for _ in holds]
    for label in np.flatnonzero(holds.any(0)):
        rng = problem.rng(split, "class", label)
        drawn = centres[label] + rng.standard_normal((samples, problem.dimension))
        holders = rng.permutation(np.flatnonzero(holds[:, label]))  # who gets one more, where it does not come out even
        for number, part in zip(holders, np.array_split(rng.permutation(samples), len(holders)), strict=True):
            points[number].append(drawn[part])
            labels[number].append(np.full(len(part), label, dtype=np.int64))
    return [(np.concatenate(x), np.concatenate(y)) for x, y in zip(points, labels, strict=True)]


def _kept(samples: int, problem: Problem, rng: np.random.Generator) -> Array:
    """Which samples a client keeps, at least one, in order of class; drawn among all its classes together."""
    coin, u = rng.random(2)
    percent = {
        "published": min(5 + 100 * u, 100.0) if coin < 0.5 else 15 + 20 * u,
        "uniform": 5 + 95 * u,
        "all": 100.0,
    }[problem.keep]
    return np.sort(rng.permutation(samples)[: max(1, int(samples * percent / 100))])


def _with_noise(problem: Problem, number: int) -> Callable[[Array], Array]:
    rng = problem.rng(number, "space")
    low, high = problem.widths
    width = int(rng.integers(low, high, endpoint=True))
    return lambda points: np.concatenate([points, rng.standard_normal((len(points), width))], axis=1)


def _mapped(problem: Problem, number: int) -> Callable[[Array], Array]:
    rng = problem.rng(number, "space")
    low, high = problem.widths
    width = int(rng.integers(low, high, endpoint=True))
    matrix = rng.standard_normal((problem.dimension, width))
    return lambda points: np.asarray(points @ matrix)


def _samples(x: Array, y: Array) -> Samples:
    return Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))
