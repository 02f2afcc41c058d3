"""A synthetic federation of EEG caps that differ: features of trials' covariances, as many as a cap's electrodes give.

Sources at fixed places in the cortex are seen by electrodes on a sphere of radius 1 as radial dipoles in a uniform
medium. Each class lowers the power of a source of its own, as imagining a movement does. With mixing A, powers p and
sensor noise of variance s², trials of class k have covariance

    Σ_k = A diag(p_k) Aᵀ + diag(s²)

and a trial's covariance is a Wishart draw of so many degrees of freedom, divided by them. A trial's features are its
tangent vector at the Riemannian mean M of the subject's training trials, the upper triangle of log(M^-½ C M^-½) with
the off-diagonal times √2: e electrodes give e(e + 1)/2 features.

What makes clients differ: electrodes (how many and which, even without feature skew) and subjects (places, directions
and powers of the sources, how far a class lowers one, gains and noise of the electrodes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense import work
from fedsense.data.cache import code_of, key_of
from fedsense.data.synthetic import shares
from fedsense.data.synthetic.shares import check_samples, split_counts
from fedsense.errors import UserError
from fedsense.federation import SPLITS, ClientData, Federation, Samples, Task
from fedsense.work import stream

Array = NDArray[Any]

SITES = 32  # electrode positions all caps draw on
DEPTH = 0.8  # radius at which sources lie


@dataclass(frozen=True)
class Subject:
    """Who wears which cap."""

    sites: Array  # [e], numbers of the electrodes' positions, in order
    mixing: Array  # [e, sources]
    power: Array  # [classes, sources]
    noise: Array  # [e], variances

    @property
    def covariances(self) -> Array:
        """Of each class, ``[classes, e, e]``."""
        return np.asarray((self.mixing * self.power[:, None]) @ self.mixing.T + np.diag(self.noise))


@dataclass(frozen=True)
class Options:
    samples: int
    classes: int
    electrodes: tuple[int, int]
    sources: int
    degrees: int
    feature_skew: float
    val: float
    test: float
    seed: int

    def rng(self, *key: object) -> np.random.Generator:
        return stream(self.seed, "synthetic-eeg", *key)


def synthetic_eeg(
    clients: int = 12,
    samples: int = 120,
    classes: int = 4,
    electrodes: tuple[int, int] = (8, 16),
    sources: int = 12,
    degrees: int = 120,
    feature_skew: float = 1.0,
    val: float = 0.1,
    test: float = 0.25,
    seed: int = 0,
) -> Federation:
    """A synthetic federation of subjects, ``x`` ``[n, e(e + 1)/2]`` for a subject with ``e`` electrodes.

    ``samples`` trials a subject (train, val and test together), evenly of all ``classes``. ``electrodes`` are the
    fewest and the most of a subject, drawn with their places. ``degrees`` of freedom make a trial: the more, the less
    its covariance strays; 120 are three seconds of a band 20 Hz wide. ``feature_skew`` scales how much subjects differ
    beside their electrodes. A client depends on its number, the seed and the options, not on how many clients there
    are, and is made when its recordings are first asked for.
    """
    options = Options(samples, classes, electrodes, sources, degrees, feature_skew, val, test, seed)
    _check(clients, options)
    low, high = electrodes
    key = key_of(code_of(__file__, shares.__file__, work.__file__), asdict(options))
    return Federation(
        name="synthetic-eeg",
        task=Task(tuple(f"imagery {number}" for number in range(classes))),
        clients=tuple(_client_data(number, options, key) for number in range(clients)),
        synthetic=True,
        description=(
            f"Synthetic: drawn covariances of EEG as tangent vectors, {classes} classes, {clients} made-up subjects "
            f"with {low} to {high} electrodes each; no measurement of anyone."
        ),
    )


def _check(clients: int, options: Options) -> None:
    low, high = options.electrodes
    for wrong, message in (
        (clients < 1, f"clients = {clients}; give at least 1"),
        (options.classes < 2, f"classes = {options.classes}; give at least 2"),
        (not 1 <= low <= high <= SITES,
         f"electrodes = [{low}, {high}]; give the fewest and the most, 1 to {SITES}, in this order"),
        (options.sources < options.classes,
         f"sources = {options.sources}; give at least {options.classes}, one a class"),
        (options.degrees < high, f"degrees = {options.degrees}; give at least {high}, the most electrodes"),
        (not 0 <= options.feature_skew <= 5, f"feature_skew = {options.feature_skew}; give 0 (none) to 5"),
        (not (options.val >= 0 and options.test >= 0 and options.val + options.test < 1),
         f"val = {options.val} and test = {options.test}; give shares that leave something to train on"),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"synthetic-eeg: {message}")
    check_samples("synthetic-eeg", options.samples, options.classes, options.val, options.test, " classes")


def cap(points: int) -> Array:
    """Points spread evenly over the upper half of the unit sphere, ``[points, 3]``: a spiral of golden angles."""
    number = np.arange(points) + 0.5
    height = 1 - number / points
    angle = np.pi * (3 - np.sqrt(5)) * number
    radius = np.sqrt(1 - height**2)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)


def potentials(sensors: Array, places: Array, directions: Array) -> Array:
    """What sensors see of dipoles, ``[sensors, dipoles]``: p·r / |r|³ with r from the dipole to the sensor."""
    away = sensors[:, None] - places
    return np.asarray((away * directions).sum(-1) / np.maximum(np.linalg.norm(away, axis=-1), 0.1) ** 3)


def draw_subject(number: int, options: Options) -> Subject:
    """Subject ``number`` of a seed; at skew 0 the average head under a cap of its own."""
    rng, skew = options.rng(number, "subject"), options.feature_skew
    low, high = options.electrodes
    sites = np.sort(rng.permutation(SITES)[: rng.integers(low, high, endpoint=True)])
    usual = cap(options.sources)
    places = DEPTH * usual + 0.05 * skew * rng.standard_normal(usual.shape)
    places *= np.minimum(1, 0.9 / np.linalg.norm(places, axis=1, keepdims=True))  # under the electrodes
    directions = usual + 0.2 * skew * rng.standard_normal(usual.shape)
    gains = np.exp(0.15 * skew * rng.standard_normal(SITES))  # of every site, so that caps do not change the rest
    noise = 0.5 * np.exp(0.3 * skew * rng.standard_normal(SITES))
    power = np.tile(0.1 * np.exp(0.3 * skew * rng.standard_normal(options.sources)), (options.classes, 1))
    left = 0.35 * np.exp(
        0.25 * skew * rng.standard_normal(options.classes)
    )  # of the power, in the class that lowers it
    own = np.arange(options.classes) * options.sources // options.classes
    power[np.arange(options.classes), own] *= np.minimum(left, 1)
    mixing = gains[:, None] * potentials(cap(SITES), places, directions)
    return Subject(sites, mixing[sites], power, noise[sites])


def wishart(covariances: Array, degrees: int, rng: np.random.Generator) -> Array:
    """A Wishart draw for each of ``[n, e, e]``, divided by its degrees of freedom, by Bartlett's decomposition.

    L A Aᵀ Lᵀ with Σ = L Lᵀ and A lower triangular: normals below the diagonal, roots of χ² on it, of ``degrees``,
    ``degrees - 1``, ... degrees of freedom.
    """
    count, size, _ = covariances.shape
    factor = np.tril(rng.standard_normal((count, size, size)), -1)
    factor[:, np.arange(size), np.arange(size)] = np.sqrt(rng.chisquare(degrees - np.arange(size), (count, size)))
    root = np.linalg.cholesky(covariances) @ factor
    return np.asarray(root @ root.swapaxes(1, 2) / degrees)


def riemannian_mean(covariances: Array, tolerance: float = 1e-10, iterations: int = 100) -> Array:
    """The matrix whose summed squared affine-invariant distance to ``[n, e, e]`` is least.

    There the tangent vectors sum to zero: M ← M^½ exp(mean of log(M^-½ C M^-½)) M^½ from the arithmetic mean.
    """
    mean = np.asarray(covariances.mean(0))
    for _ in range(iterations):
        root, inverse = _spectral(mean, np.sqrt), _spectral(mean, lambda values: 1 / np.sqrt(values))
        step = _spectral(inverse @ covariances @ inverse, np.log).mean(0)
        mean = root @ _spectral(step, np.exp) @ root
        if np.linalg.norm(step) < tolerance * len(step):
            break
    return mean


def tangent_vectors(covariances: Array, mean: Array) -> Array:
    """Of ``[n, e, e]`` at ``mean``, ``[n, e(e + 1)/2]``: their norms are affine-invariant distances from the mean."""
    inverse = _spectral(mean, lambda values: 1 / np.sqrt(values))
    logs = _spectral(inverse @ covariances @ inverse, np.log)
    row, column = np.triu_indices(mean.shape[-1])
    return np.asarray(logs[:, row, column] * np.where(row == column, 1, np.sqrt(2)))


def _spectral(symmetric: Array, function: Callable[[Array], Array]) -> Array:
    """A function of symmetric matrices ``[..., e, e]``, by way of their eigenvalues."""
    values, vectors = np.linalg.eigh((symmetric + symmetric.swapaxes(-1, -2)) / 2)
    return np.asarray((vectors * function(values)[..., None, :]) @ vectors.swapaxes(-1, -2))


def draw_counts(number: int, options: Options, rng: np.random.Generator | None = None) -> Array:
    """How many trials of each class are in each split, ``[SPLITS, classes]``."""
    rng = rng or options.rng(number, "trials")
    return split_counts(options.samples, options.classes, options.val, options.test, rng)


def trials(number: int, options: Options) -> tuple[Subject, Array, Array, Array]:
    """Subject ``number`` and its trials: covariances, labels, and the split of each (number in SPLITS)."""
    subject, rng = draw_subject(number, options), options.rng(number, "trials")
    counts = draw_counts(number, options, rng)
    label = np.concatenate([np.repeat(np.arange(options.classes), row) for row in counts])
    split = np.repeat(np.arange(len(SPLITS)), counts.sum(1))
    return subject, wishart(subject.covariances[label], options.degrees, rng), label, split


def _client_data(number: int, options: Options, key: str) -> ClientData:
    sites = draw_subject(number, options).sites
    train, val, test = draw_counts(number, options).sum(1).tolist()
    return ClientData.later(
        f"s{number:03d}",
        lambda: _splits(number, options),
        sizes=(train, val, test),
        input_shape=(len(sites) * (len(sites) + 1) // 2,),
        key=f"{key} {number}",
        traits={"electrodes": len(sites), "sites": " ".join(map(str, sites))},
    )


def _splits(number: int, options: Options) -> tuple[Samples, Samples, Samples]:
    _, covariances, label, split = trials(number, options)
    x = tangent_vectors(covariances, riemannian_mean(covariances[split == 0])).astype(np.float32)
    alone = np.stack([np.arange(len(x)), np.zeros(len(x), int), np.full(len(x), options.degrees)], axis=1)
    whole = Samples(torch.from_numpy(x), torch.from_numpy(label), torch.from_numpy(alone))  # a trial is a recording
    train, val, test = (whole.take(torch.from_numpy(split == place)) for place in range(len(SPLITS)))
    return train, val, test
