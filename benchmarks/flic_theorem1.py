"""Theorem 1 of FLIC on a toy problem, and its Figure 2: clients of different widths learn one subspace.

    python benchmarks/flic_theorem1.py [--seed 0] [--samples 500] [--participation 1] [--estimated] [--out FILE.svg]
                                       [--json]

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

With --estimated, what the theorem takes as given is given up bit by bit: see ``WAYS``. Nobody can know an eigenvector's
sign: (P_i, D_i) and (P_i S, D_i) diagonalise the same Σ_i for any signs S, and x, being Gaussian, looks the same from
both sides. The theorem lets φ̂_i use the very P_i that is inside φ*_i. Who diagonalises Σ_i anew gets Q_i = Q S_i,
another for each client, and there is no common QA* left to be found. A convention (the largest entry of an eigenvector
is positive) fixes S_i, but not to what is inside φ*_i, unless φ*_i follows the same convention; and then estimated
eigenvectors whose two largest entries are about equal still break it now and then. Signs "as they come" are the linear
algebra library's: another build may give other numbers there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsense.report.figures import COLOURS, svg
from fedsense.work import stream

Array = NDArray[np.float64]
WIDTH, RANK, CLIENTS, WIDEST = 10, 3, 20, 20  # k, d, b and the largest k_i
ITERATIONS, SAMPLES = 500, 500
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
    return axes * np.sign(largest)


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
        variances = 10 * np.cumprod(rng.uniform(0.5, 0.8, width))
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
        return np.linalg.solve(basis.T @ self.zz @ basis, (self.zy @ basis)[..., None])[..., 0]

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
class Line:
    """A straight line through log dist(A(t), ·) down to rounding."""

    factor: float  # per iteration
    r2: float
    until: int  # the last iteration fitted

    @classmethod
    def through(cls, distances: Sequence[float]) -> Line:
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


WAYS: dict[str, tuple[Callable[[Client], Given], bool]] = {  # how, and whether P_i in φ* follows the convention
    "m, Σ and P known (the theorem)": (known, False),
    "m, Σ known, P found from Σ": (known_anew, False),
    "estimated, true signs told": (estimated_told, False),
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


def drawn(oracle: list[float], courses: dict[str, Course]) -> Figure:
    """Figure 2; beside it, if there are several ways, dist(A(t), QA*) of each."""
    several = len(courses) > 1
    figure = Figure(figsize=(10 if several else 5.5, 3.8), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, 1 + several))
    flic = next(iter(courses.values()))
    lines = [
        (oracle, "dist(A(t), A*), FedRep given φ*", "-"),
        (flic.to_true, "dist(A(t), A*), FLIC-FedRep", "-"),
        (flic.to_turned, "dist(A(t), QA*), FLIC-FedRep", (0, (4, 4))),
    ]
    for (values, label, style), colour in zip(lines, COLOURS, strict=False):
        panels[0].plot(values, color=colour, linestyle=style, linewidth=2, label=label)
    panels[0].set_ylabel("principal angle distance")
    if several:
        panels[1].set_title("dist(A(t), QA*), FLIC-FedRep", fontsize=9)
        for (name, one), colour in zip(courses.items(), COLOURS, strict=False):
            panels[1].plot(one.to_turned, color=colour, linewidth=1.5, label=name)
    for axes in panels:
        axes.set_yscale("log")
        axes.set_xlabel("iteration t")
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    if several:
        panels[1].set_ylim(0.01, 1.2)  # the theorem's own line leaves below
    return figure


def found(seed: int, samples: int, participation: float, ways: Sequence[str]) -> tuple[dict[str, Any], Figure]:
    """Everything that is said, and the figure."""
    worlds = {convention: toy(seed, samples, participation, convention) for convention in (False, True)}
    oracle = fedrep(worlds[False])
    courses = {name: course(worlds[WAYS[name][1]], WAYS[name][0]) for name in ways}
    flic = next(iter(courses.values()))
    line = Line.through(flic.to_turned)
    promised, printed = bound(worlds[False], flic.to_turned[0])
    said = {
        "seed": seed,
        "samples": samples,
        "participation": participation,
        "factor": line.factor,
        "r2": line.r2,
        "fitted_until": line.until,
        "factor_of_the_bound": promised,
        "factor_as_printed": printed,
        "start": {"FedRep A*": oracle[0], "FLIC A*": flic.to_true[0], "FLIC QA*": flic.to_turned[0]},
        "final": {"FedRep A*": oracle[-1], "FLIC A*": flic.to_true[-1], "FLIC QA*": flic.to_turned[-1]},
        "ways": {
            name: {
                "final": one.to_turned[-1],
                "final_best_signs": one.to_any,
                "signs_as_q": one.agreeing,
                "unexplained": one.unexplained,
            }
            for name, one in courses.items()
        },
    }
    return said, drawn(oracle, courses)


def words(said: dict[str, Any]) -> str:
    final, start = said["final"], said["start"]
    lines = [
        f"seed {said['seed']}: {CLIENTS} clients of widths {WIDTH} to {WIDEST}, k = {WIDTH}, d = {RANK}, "
        f"{said['samples']} samples each, {ITERATIONS} iterations, participation {said['participation']:g}",
        f"dist(A(t), QA*) falls by the factor {said['factor']:.4f} an iteration (R² {said['r2']:.4f}, until rounding "
        f"at iteration {said['fitted_until']})",
        f"the bound allows {said['factor_of_the_bound']:.4f}; as FLIC prints κ it would be "
        f"{said['factor_as_printed']:.4f}",
        "",
        f"{'distance':36}{'first':>10}{'last':>10}",
        f"{'dist(A(t), A*), FedRep given φ*':36}{start['FedRep A*']:10.2g}{final['FedRep A*']:10.2g}",
        f"{'dist(A(t), A*), FLIC-FedRep':36}{start['FLIC A*']:10.2g}{final['FLIC A*']:10.2g}",
        f"{'dist(A(t), QA*), FLIC-FedRep':36}{start['FLIC QA*']:10.2g}{final['FLIC QA*']:10.2g}",
    ]
    if len(said["ways"]) > 1:
        lines += ["", f"{'what a client knows':36}{'last':>10}{'best Q':>10}{'signs':>8}{'unexplained':>13}"]
        for name, one in said["ways"].items():
            lines.append(
                f"{name:36}{one['final']:10.2g}{one['final_best_signs']:10.2g}"
                f"{one['signs_as_q']:8.0%}{one['unexplained']:13.2g}"
            )
        lines += [
            "last: dist(A(T), QA*); best Q: the least over all signs Q; signs: how many of all clients' are Q's;",
            "unexplained: the part of the labels' mean square left by each client's best head.",
            "Estimating m and Σ costs an error that more samples lower. Not knowing the signs costs the theorem:",
            "clients have no Q in common, even where Σ is known exactly. A convention for signs helps only where",
            "φ* follows it, and not fully then.",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each client")
    parser.add_argument("--participation", type=float, default=1.0, help="r: the part of the clients in an iteration")
    parser.add_argument("--estimated", action="store_true", help="also with less known than the theorem asks")
    parser.add_argument("--out", type=Path, help="where to draw Figure 2, an SVG file")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of words")
    given = parser.parse_args()
    ways = list(WAYS) if given.estimated else list(WAYS)[:1]
    said, figure = found(given.seed, given.samples, given.participation, ways)
    print(json.dumps(said) if given.json else words(said))
    if given.out:
        given.out.write_text(svg(figure))


if __name__ == "__main__":
    main()
