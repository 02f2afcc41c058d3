"""Theorem 1 of FLIC on a toy problem, and its Figure 2: clients of different widths learn one subspace.

The toy is Section 5 of the paper. Client i holds x ~ N(m_i, Σ_i) of its own width k_i ≥ k, Σ_i = P_i D_i P_iᵀ with
falling variances, and labels without noise,

    y = (A* β*_i)ᵀ φ*_i(x),    φ*_i(x) = [I*_k (D_i^(k))^(-1/2)  0] P_iᵀ (x - m_i),

A* with d orthonormal columns, ‖β*_i‖ = √d, and I*_k a diagonal of signs that all clients share. (The paper prints P_iᵀ
inside the bracket; only outside do the sizes fit.) So φ*_i takes the k strongest principal components, scaled to
variance one. What a client can compute itself, φ̂_i, is the same with signs I_k of its own choosing, hence φ̂_i = Q φ*_i
with Q = I_k I*_k. Algorithm S3 is FedRep on φ̂: heads solved exactly, one gradient step on A, mean, QR. As in Eq. S3 the
step goes by the mean over samples, not their sum. Distances are sines of the largest principal angle.

The theorem promises that dist(A(t), QA*) falls at least as (1 - κ)^(t/2), a straight line on a logarithmic scale. The
κ it prints cannot be meant: κ = 1 - ηE₀σ²_min/2 with E₀ = dist(A(0), QA*) promises a factor of 0.36 or less an
iteration, while a step η ≤ 1/(4σ²_max) leaves about three quarters or more of what is wrong. In Theorem 1 of Collins et
al. (2021), on FedRep, whose proof it follows, κ = ηE₀σ²_min/2 and E₀ = 1 - dist²(A(0), A*). That is the bound here; the
factor by the printed κ is shown beside it. η is the largest allowed; the extreme σ are those of the cohorts drawn.

Beside it, what the theorem takes as given is given up bit by bit: see ``WAYS``. Nobody can know an eigenvector's
sign: (P_i, D_i) and (P_i S, D_i) diagonalise the same Σ_i for any signs S, and x, being Gaussian, looks the same from
both sides. The theorem lets φ̂_i use the very P_i that is inside φ*_i. Who diagonalises Σ_i anew gets Q_i = Q S_i,
another for each client, and there is no common QA* left to be found. A convention (the largest entry of an eigenvector
is positive) fixes S_i, but not to what is inside φ*_i, unless φ*_i follows the same convention; and then estimated
eigenvectors whose two largest entries are about equal still break it now and then. Signs "as they come" are the linear
algebra library's: another build may give other numbers there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsense.report.figures import COLOURS
from fedsense.reproduce.outcome import Line
from fedsense.reproduce.own import Found, Job, Shown
from fedsense.work import stream

Array = NDArray[np.float64]
WIDTH, RANK, CLIENTS, WIDEST = 10, 3, 20, 20  # k, d, b and the largest k_i
ITERATIONS, SAMPLES = 500, 500
MORE = (2000, 8000)  # samples: estimates become better
FLOOR = 1e-13  # distances below are rounding


@dataclass(frozen=True)
class Client:
    mean: Array  # m_i
    axes: Array  # P_i, a column an eigenvector
    variances: Array  # the diagonal of D_i, falling
    x: Array
    y: Array

    @property
    def covariance(self) -> Array:
        return (self.axes * self.variances) @ self.axes.T


@dataclass(frozen=True)
class Toy:
    clients: tuple[Client, ...]
    basis: Array  # A*
    heads: Array  # β*, a row a client
    true_signs: Array  # the diagonal of I*_k
    own_signs: Array  # the diagonal of I_k
    cohorts: NDArray[np.int64]  # who takes part, a row an iteration

    @property
    def turned(self) -> Array:
        """QA*."""
        return (self.own_signs * self.true_signs)[:, None] * self.basis

    def true_features(self, i: int) -> Array:
        one = self.clients[i]
        return embed(one.x, one.mean, one.axes, one.variances, self.true_signs)


def embed(x: Array, mean: Array, axes: Array, variances: Array, signs: Array) -> Array:
    """φ*_i or φ̂_i: the first principal components, as many as there are signs, each of variance one."""
    k = len(signs)
    return signs * ((x - mean) @ axes[:, :k]) / np.sqrt(variances[:k])


def conventional(axes: Array) -> Array:
    """The same eigenvectors, the largest entry of each positive."""
    largest = axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])]
    fixed: Array = axes * np.sign(largest)
    return fixed


def diagonalised(covariance: Array) -> tuple[Array, Array]:
    """Eigenvectors, with whatever signs they come, and variances, falling."""
    variances, axes = np.linalg.eigh(covariance)
    return axes[:, ::-1], variances[::-1]


def toy(seed: int, samples: int = SAMPLES, participation: float = 1.0, convention: bool = False) -> Toy:
    """``convention``: the P_i that made the labels have positive largest entries; otherwise signs are as they fall."""
    rng = stream(seed, "flic theorem 1")
    basis = np.linalg.qr(rng.normal(size=(WIDTH, RANK)))[0]
    heads = rng.normal(size=(CLIENTS, RANK))
    heads *= math.sqrt(RANK) / np.linalg.norm(heads, axis=1, keepdims=True)
    true_signs, own_signs = rng.choice([-1.0, 1.0], size=(2, WIDTH))
    while abs(true_signs @ own_signs) == WIDTH:  # Q = ±1 would leave A* where it is
        own_signs = rng.choice([-1.0, 1.0], size=WIDTH)
    clients = []
    for i, head in enumerate(heads):
        width = int(rng.integers(WIDTH, WIDEST + 1))
        mean = rng.normal(0, 3, width)
        axes = np.linalg.qr(rng.normal(size=(width, width)))[0] * rng.choice([-1.0, 1.0], width)
        axes = conventional(axes) if convention else axes
        variances: Array = 10 * np.cumprod(rng.uniform(0.5, 0.8, width), dtype=np.float64)
        white = stream(seed, "samples", i).normal(size=(samples, width))  # the truth is the same for any number
        x = mean + white * np.sqrt(variances) @ axes.T
        y = embed(x, mean, axes, variances, true_signs) @ basis @ head
        clients.append(Client(mean, axes, variances, x, y))
    size = max(RANK, int(participation * CLIENTS))  # fewer heads cannot span
    cohorts = stream(seed, "cohorts").permuted(np.tile(np.arange(CLIENTS), (ITERATIONS, 1)), axis=1)[:, :size]
    return Toy(tuple(clients), basis, heads, true_signs, own_signs, cohorts)


def distance(first: Array, second: Array) -> float:
    """The sine of the largest principal angle between the spans of orthonormal columns."""
    return float(np.linalg.norm(second - first @ (first.T @ second), 2))


def step_size(problem: Toy) -> tuple[float, float]:
    """η = 1 / (4 σ²_max), the largest step of the theorem, and σ²_min; of the true heads of every cohort."""
    cohorts = problem.heads[problem.cohorts] / math.sqrt(problem.cohorts.shape[1])
    squares = np.linalg.svd(cohorts, compute_uv=False) ** 2
    return float(1 / (4 * squares.max())), float(squares.min())


@dataclass(frozen=True)
class Moments:
    """All that Algorithm S3 asks of clients' features z and labels: means of zzᵀ, zy, y² and y²zzᵀ; the last summed."""

    zz: Array  # client, k, k
    zy: Array  # client, k
    yy: Array  # client
    start: Array  # k, k

    @classmethod
    def of(cls, features: Sequence[Array], labels: Sequence[Array]) -> Moments:
        pairs = list(zip(features, labels, strict=True))
        return cls(
            np.stack([z.T @ z / len(z) for z, _ in pairs]),
            np.stack([z.T @ y / len(z) for z, y in pairs]),
            np.array([y @ y / len(y) for _, y in pairs]),
            np.mean([(z * (y * y)[:, None]).T @ z / len(z) for z, y in pairs], axis=0),
        )

    def first(self) -> Array:
        """A(0): lines 3 to 6."""
        return np.linalg.eigh(self.start)[1][:, ::-1][:, :RANK]

    def heads(self, basis: Array) -> Array:
        """Line 12: every client's least squares on its features seen through the basis, a row a client."""
        solved = np.linalg.solve(basis.T @ self.zz @ basis, (self.zy @ basis)[..., None])
        return np.asarray(solved[..., 0], dtype=np.float64)

    def step(self, basis: Array, eta: float, cohort: NDArray[np.int64]) -> Array:
        """Lines 9 to 19."""
        heads = self.heads(basis)[cohort]
        wrong = np.einsum("ikl,il->ik", self.zz[cohort], heads @ basis.T) - self.zy[cohort]
        return np.linalg.qr(basis - eta * wrong.T @ heads / len(heads))[0]

    def unexplained(self, basis: Array) -> float:
        """The part of the labels' mean square that the best heads on this basis leave, mean over clients."""
        explained = np.einsum("ik,ik->i", self.zy, self.heads(basis) @ basis.T)
        return max(0.0, float(np.mean(1 - explained / self.yy)))


def trained(problem: Toy, moments: Moments) -> list[Array]:
    """A(0), A(1), …"""
    eta, _ = step_size(problem)
    return [
        *itertools.accumulate(problem.cohorts, lambda a, cohort: moments.step(a, eta, cohort), initial=moments.first())
    ]


@dataclass(frozen=True)
class Fall:
    """A straight line through log dist(A(t), ·) down to rounding."""

    factor: float  # per iteration
    r2: float
    until: int  # the last iteration fitted

    @classmethod
    def through(cls, distances: Sequence[float]) -> Fall:
        log = np.log([*itertools.takewhile(lambda value: value > FLOOR, distances)])
        t = np.arange(len(log))
        slope, height = np.polyfit(t, log, 1)
        left = np.sum((log - slope * t - height) ** 2) / np.sum((log - log.mean()) ** 2)
        return cls(float(np.exp(slope)), float(1 - left), len(log) - 1)


@dataclass(frozen=True)
class Given:
    """What a client takes for its mean, eigenvectors and variances."""

    mean: Array
    axes: Array
    variances: Array


def known(one: Client) -> Given:
    return Given(one.mean, one.axes, one.variances)


def known_anew(one: Client) -> Given:
    return Given(one.mean, *diagonalised(one.covariance))


def estimated(one: Client) -> Given:
    return Given(one.x.mean(0), *diagonalised(np.cov(one.x.T, bias=True)))


def estimated_told(one: Client) -> Given:
    guess = estimated(one)
    return Given(guess.mean, guess.axes * np.sign(np.sum(guess.axes * one.axes, axis=0)), guess.variances)


def estimated_conventional(one: Client) -> Given:
    guess = estimated(one)
    return Given(guess.mean, conventional(guess.axes), guess.variances)


THEOREM, TOLD = "m, Σ and P known (the theorem)", "estimated, true signs told"
WAYS: dict[str, tuple[Callable[[Client], Given], bool]] = {  # how, and whether P_i in φ* follows the convention
    THEOREM: (known, False),
    "m, Σ known, P found from Σ": (known_anew, False),
    TOLD: (estimated_told, False),
    "estimated, signs as they come": (estimated, False),
    "estimated, largest entry positive": (estimated_conventional, False),
    "the same, and so in φ*": (estimated_conventional, True),
}


@dataclass(frozen=True)
class Course:
    """A run of Algorithm S3 on φ̂."""

    to_true: list[float]  # dist(A(t), A*)
    to_turned: list[float]  # dist(A(t), QA*)
    to_any: float  # dist(A(T), Q'A*) for the best signs Q' of all
    agreeing: float  # the part of all clients' signs that are those of Q
    unexplained: float


def course(problem: Toy, way: Callable[[Client], Given]) -> Course:
    takes = [way(one) for one in problem.clients]
    features = [
        embed(one.x, g.mean, g.axes, g.variances, problem.own_signs)
        for one, g in zip(problem.clients, takes, strict=True)
    ]
    moments = Moments.of(features, [one.y for one in problem.clients])
    bases = trained(problem, moments)
    same = [np.sum(one.axes * g.axes, axis=0)[:WIDTH] > 0 for one, g in zip(problem.clients, takes, strict=True)]
    every = np.array([[1.0, *rest] for rest in itertools.product([-1.0, 1.0], repeat=WIDTH - 1)])
    return Course(
        [distance(a, problem.basis) for a in bases],
        [distance(a, problem.turned) for a in bases],
        min(distance(bases[-1], signs[:, None] * problem.basis) for signs in every),
        float(np.mean(same)),
        moments.unexplained(bases[-1]),
    )


def fedrep(problem: Toy) -> list[float]:
    """dist(A(t), A*) of FedRep that is given φ*."""
    features = [problem.true_features(i) for i in range(CLIENTS)]
    moments = Moments.of(features, [one.y for one in problem.clients])
    return [distance(a, problem.basis) for a in trained(problem, moments)]


def bound(problem: Toy, start: float) -> tuple[float, float]:
    """The theorem's factor per iteration with Collins et al.'s κ and E₀, and with those that FLIC prints."""
    eta, least = step_size(problem)
    return math.sqrt(1 - eta * (1 - start**2) * least / 2), math.sqrt(eta * start * least / 2)


def measure(job: Job, seed: int) -> dict[str, Any]:
    """Courses of the distances, and what is made of them."""
    worlds = {convention: toy(seed, convention=convention) for convention in (False, True)}
    oracle = fedrep(worlds[False])
    courses = {name: course(worlds[convention], way) for name, (way, convention) in WAYS.items()}
    flic = next(iter(courses.values()))
    fall = Fall.through(flic.to_turned)
    promised, printed = bound(worlds[False], flic.to_turned[0])
    for samples in MORE:
        job.tell(f"  estimated from {samples} samples")
        courses[f"{TOLD}, {samples} samples"] = course(toy(seed, samples), estimated_told)
    return {
        "fall": {"factor": fall.factor, "1 - R²": 1 - fall.r2, "bound": promised, "as printed": printed},
        "given φ*": oracle,
        "to A*": flic.to_true,
        "to QA*": {name: one.to_turned for name, one in courses.items()},
        "ways": {
            name: {
                "last": one.to_turned[-1],
                "last, best signs": one.to_any,
                "signs as Q, %": 100 * one.agreeing,
                "unexplained, %": 100 * one.unexplained,
            }
            for name, one in courses.items()
        },
    }


def show(job: Job, found: Mapping[int, Found]) -> Shown:
    each = list(found.values())
    lines: list[Line] = []
    for row, curve in (
        ("dist(A(t), A*), FedRep given φ*", [one["given φ*"] for one in each]),
        ("dist(A(t), A*), FLIC", [one["to A*"] for one in each]),
        ("dist(A(t), QA*), FLIC", [one["to QA*"][THEOREM] for one in each]),
    ):
        lines += [job.line(row, "first", [c[0] for c in curve]), job.line(row, "last", [c[-1] for c in curve])]
    for name, column in (
        ("factor", "factor an iteration"),
        ("1 - R²", "1 - R² of a straight line"),
        ("bound", "factor of the bound"),
        ("as printed", "factor as κ is printed"),
    ):
        lines.append(job.line("dist(A(t), QA*), FLIC", column, [one["fall"][name] for one in each]))
    for way, about in each[0]["ways"].items():
        lines += [job.line(way, column, [one["ways"][way][column] for one in each]) for column in about]
    return lines, {"": drawn(each[0])}


def drawn(one: Found) -> Figure:
    """Figure 2 of one seed; beside it dist(A(t), QA*) where less is known than the theorem asks."""
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    curves = [
        (one["given φ*"], "dist(A(t), A*), FedRep given φ*", "-"),
        (one["to A*"], "dist(A(t), A*), FLIC-FedRep", "-"),
        (one["to QA*"][THEOREM], "dist(A(t), QA*), FLIC-FedRep", (0, (4, 4))),
    ]
    for (values, label, style), colour in zip(curves, COLOURS, strict=False):
        left.plot(values, color=colour, linestyle=style, linewidth=2, label=label)
    left.set_ylabel("principal angle distance")
    left.set_title("as the theorem has it", fontsize=9)
    right.set_title("dist(A(t), QA*), FLIC-FedRep, by what a client knows", fontsize=9)
    for (name, values), colour in zip(one["to QA*"].items(), COLOURS, strict=True):
        right.plot(values, color=colour, linewidth=1.5, label=name)
    right.set_ylim(0.01, 1.2)  # the theorem's own line leaves below
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("iteration t")
        axes.legend(
            fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2 if axes is right else 1
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    return figure
