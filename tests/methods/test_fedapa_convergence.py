"""FedAPA's convergence statement (Section V and Appendix A) as a calculation: does the method obey its own bound?

The problem is small enough for every constant of the bound to be computed. There are three clients and three classes,
of which the third client lacks one, so prototypes are padded; inputs have norm ≤ 1. The encoder is linear, r = W h, so
its Lipschitz constant in W is max ‖h‖; the head is a fixed matrix, held in a buffer, which does not train. Training is
plain SGD on full batches: σ = 0, expectations are values, and epochs are the S local steps. Cross-entropy is convex in
W. The contrastive terms are not, because of the cosines; the theorems need smoothness only.

The real :class:`FedAPA` trains in float32, through its protocol functions. ``Problem`` is an independent oracle in
float64, with none of the package's operations, that writes Eq. 4–10 and 12 out: it repeats the S steps of every round
and client from where the method began the round, and must arrive where the method arrived. On the way it measures

    L_t     largest |eigenvalue| of the Hessian of L_{i,t}           on the segments between iterates
    G       largest norm of a gradient, of any client and step
    L_agg   largest singular value of the Jacobian of P -> Q(P)     on the segments between successive P
    c_Φ     the larger of sup ‖∂Φ/∂Q‖ and sup ‖∂Φ/∂P‖ (Eq. 21)       on the segments between successive (Q, P)

Suprema over segments are maxima over a few points of each, times ``MARGIN``. With these constants the proofs go through
for this run, and with hardly smaller ones: the inequalities checked are about the sharpest the theorems offer. That
constants are taken on the path, not over all W and P as Assumptions 1, 4 and 5 word it, is no convenience: over all of
them there are none (``test_no_constant_holds_everywhere``). The bounds are also shown to fail where they should.

P is the stack of prototypes that clients hold, as in Eq. 65; padding (Eq. 8) is part of Q(P) and Φ(w; Q, P), because
the movement constant of Lemma 2 does not cover padded prototypes (``test_padded_prototypes_move_more``).

In the package the first round has no prototypes, hence no contrast: the paper's with λ_1 = 0 and P_0 = P_1. (With the
random P_0 of the paper, Theorem 1 would begin at t = 2: Lemma 2 bounds P_t − P_{t−1} only where both are means of
embeddings.)
"""

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from fedsense.engine.site import Site
from fedsense.federation import Federation
from fedsense.methods import FedAPA
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.work import Work, stream

ENCODER = "encoder.1.weight"
STEPS, STEP_SIZE, WARM_UP, ROUNDS = 8, 0.025, 6, 20  # S, η, T_warm, and how many rounds are looked at
WEAK = 0.001  # a λ_max small enough for the bounds to promise something
MARGIN = 1.05  # on suprema taken over sampled points
ON_SEGMENT = torch.linspace(0, 1, 3, dtype=torch.float64)  # where segments are sampled
EXACT, ROUNDING = 1e-12, 1e-6  # allowed where everything is float64, and where the method's float32 comes in

each_strength = pytest.mark.parametrize("align", [1.0, 0.1, WEAK, 0.0])


@dataclass(frozen=True)
class Problem:
    """Recordings, fixed head and first encoder; and the paper's formulas, written out in float64."""

    inputs: tuple[Tensor, ...]  # h, of each client [n, m]
    labels: tuple[Tensor, ...]  # of each client [n]
    class_vectors: Tensor  # [C, d]
    first_encoder: Tensor  # [d, m]
    temperature: float = 0.5

    @cached_property
    def held(self) -> list[tuple[int, int]]:
        """Which (client, class) each row of P belongs to."""
        return [(i, c) for i, y in enumerate(self.labels) for c in sorted(set(y.tolist()))]

    def holders(self, c: int) -> list[int]:
        """The rows of P that belong to class c."""
        return [row for row, (_, other) in enumerate(self.held) if other == c]

    def cross_entropy(self, i: int, w: Tensor) -> Tensor:
        return log_loss(self.inputs[i] @ w.T @ self.class_vectors.T, self.labels[i])

    def prototypes(self, encoders: Tensor) -> Tensor:
        """P, Eq. 4, from everyone's encoders [N, d, m]: [rows, d]."""
        return torch.stack([(self.inputs[i][self.labels[i] == c] @ encoders[i].T).mean(0) for i, c in self.held])

    def padded(self, p: Tensor) -> Tensor:
        """P, with Eq. 8 where a client lacks a class: [N, C, d]."""
        return self._of_each(p, lambda mine, c: p[mine])

    def personal(self, p: Tensor) -> Tensor:
        """Q(P), Eq. 5–8: [N, C, d]."""

        def aggregated(mine: int, c: int) -> Tensor:
            likeness = torch.stack([cosine(p[mine], p[theirs]) for theirs in self.holders(c)])  # Eq. 5
            weight = (likeness / self.temperature).exp()  # Eq. 6
            return sum(weight[k] / weight.sum() * p[theirs] for k, theirs in enumerate(self.holders(c)))  # Eq. 7

        return self._of_each(p, aggregated)

    def contrast(self, i: int, w: Tensor, q: Tensor, p: Tensor) -> Tensor:
        """Φ_i(w; Q, P) = L_g + L_c, Eq. 9 and 10."""

        def against(anchors: Tensor) -> Tensor:
            cosines = torch.stack([cosine(self.inputs[i] @ w.T, anchor) for anchor in anchors], 1)
            return log_loss(cosines / self.temperature, self.labels[i])

        return against(q[i]) + sum(against(anchors) for anchors in self.padded(p)) / len(self.inputs)

    def objective(self, i: int, w: Tensor, strength: Tensor, q: Tensor, p: Tensor) -> Tensor:
        """L_{i,t}(w), Eq. 12 and 33."""
        return self.cross_entropy(i, w) + strength * self.contrast(i, w, q, p)

    def _of_each(self, p: Tensor, value) -> Tensor:
        def one(i: int, c: int) -> Tensor:
            if (i, c) in self.held:
                return value(self.held.index((i, c)), c)
            return sum(p[row] for row in self.holders(c)) / len(self.holders(c))  # Eq. 8

        clients, classes = range(len(self.inputs)), range(len(self.class_vectors))
        return torch.stack([torch.stack([one(i, c) for c in classes]) for i in clients])


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def log_loss(scores: Tensor, y: Tensor) -> Tensor:
    """−log softmax at the label, mean over samples."""
    return -(scores.gather(1, y[:, None]).squeeze(1) - scores.exp().sum(1).log()).mean()


def three_clients() -> Problem:
    """Each client's classes lie a little elsewhere. Embeddings have a part in common that keeps them away from 0."""
    inputs, labels = [], []
    for i, classes in enumerate([[0, 1, 2], [0, 1, 2], [0, 1]]):
        rng = stream("convergence", i)
        centres = torch.cat([torch.eye(3), 1.2 * torch.ones(3, 1)], 1) + torch.tensor(rng.normal(0, 0.15, (3, 4)))
        y = torch.tensor(classes).repeat_interleave(4 + i)
        inputs.append(centres[y] + torch.tensor(rng.normal(0, 0.15, (len(y), 4))))
        labels.append(y)
    longest = max(float(h.norm(dim=1).max()) for h in inputs)
    aside = torch.tensor(stream("convergence", "encoder").normal(0, 0.05, (3, 4)))
    encoder = torch.cat([0.1 * torch.eye(3), 0.45 * torch.ones(3, 1)], 1) + aside
    return Problem(
        inputs=tuple((h / longest * 0.999).float().double() for h in inputs),  # what float32 can hold
        labels=tuple(labels),
        class_vectors=10 * torch.eye(3, dtype=torch.float64),
        first_encoder=encoder.float().double(),
    )


class FixedHead(nn.Module):
    """Logits by class vectors that do not train."""

    def __init__(self, class_vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("class_vectors", class_vectors)

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.class_vectors.T


@dataclass(frozen=True)
class Trained:
    """What the method did in T rounds."""

    encoders: Tensor  # w_{i,1,0}, then w_{i,t,S} = w_{i,t+1,0} of each round, [T + 1, N, d, m]
    personal: Tensor  # Q_1 … Q_T, [T, N, C, d]
    padded: Tensor  # P_1 … P_T, padded, [T, N, C, d]
    losses: Tensor  # mean over the steps of a round, [T, N]


def train(problem: Problem, method: FedAPA, rounds: int) -> Trained:
    """The real method, everyone in every round, through its protocol functions."""

    def network(shape: tuple[int, ...], classes: int) -> Network:
        width, length = problem.first_encoder.shape
        linear = nn.Linear(length, width, bias=False)
        linear.weight.data = problem.first_encoder.float()
        return Network(nn.Sequential(nn.Flatten(), linear), FixedHead(problem.class_vectors.float()), features=width)

    recordings = [(h.float()[:, None].numpy(), y.numpy()) for h, y in zip(problem.inputs, problem.labels, strict=True)]
    federation = Federation.from_arrays(
        {f"client{i}": {"train": own, "test": own} for i, own in enumerate(recordings)}, len(problem.class_vectors)
    )
    site = Site(federation, method, ModelSpec.of(network), seed=0)
    server, clients = site.first_server, [site.client(client_id) for client_id in federation.ids]
    states = [
        method.init_client(c, c.initial, method.broadcast(server, c.id), Work(0, 0, c.id, method.batch))
        for c in clients
    ]
    encoders, servers, losses = [[state["model"][ENCODER] for state in states]], [], []
    for t in range(1, rounds + 1):
        replies = [
            method.local_update(c, state, method.broadcast(server, c.id), Work(0, t, c.id, method.batch))
            for c, state in zip(clients, states, strict=True)
        ]
        server = method.aggregate(server, {c.id: reply.upload for c, reply in zip(clients, replies, strict=True)})
        states = [reply.state for reply in replies]
        encoders.append([state["model"][ENCODER] for state in states])
        servers.append(server)
        losses.append([reply.metrics["loss"] for reply in replies])
    return Trained(
        encoders=torch.stack([torch.stack(row) for row in encoders]).double(),
        personal=torch.stack([server["personal"]["mean"] for server in servers]),
        padded=torch.stack([server["padded"]["mean"] for server in servers]),
        losses=torch.tensor(losses),
    )


@dataclass(frozen=True)
class Path:
    """The oracle's account of a run of T rounds, N clients and S steps. Of tensors [T, ...], index 0 is round t = 1."""

    problem: Problem
    method: FedAPA
    trained: Trained
    strength: Tensor  # λ_1 … λ_{T+1}
    q: Tensor  # Q_0 … Q_T
    p: Tensor  # P_0 … P_T
    iterates: Tensor  # w_{i,t,s}, [T, N, S + 1, d, m]
    gradients: Tensor  # ‖∇L_{i,t}(w_{i,t,s})‖, [T, N, S]
    objective: Tensor  # L_{i,t}(w_{i,t,s}), [T, N, S + 1]
    refreshed: Tensor  # L_{i,t+1}(w_{i,t+1,0}), [T, N]
    contrast: Tensor  # Φ_i(w_{i,t,S}; Q, P), with the Q and P of t − 1 and with those of t, [2, T, N]
    curvature: Tensor  # eigenvalues of Hessians at points of the segments, [T, N, points, d m]
    lengths: Tensor  # ‖r‖ of every sample at those points
    # Constants of the bound
    smoothness: Tensor  # L_t, [T]
    gradient_bound: float  # G
    encoder_lipschitz: float  # L_wθ
    movement: float  # k_glob, Eq. 55
    aggregation_lipschitz: float  # L_agg(τ)
    contrast_lipschitz: float  # c_Φ(τ)
    contrast_bound: float  # B_Φ

    @property
    def coupling(self) -> float:
        """Γ(τ), Eq. 25."""
        return self.contrast_lipschitz * (1 + self.aggregation_lipschitz)

    @property
    def moved(self) -> Tensor:
        """‖P_t − P_{t−1}‖, [T]."""
        return (self.p[1:] - self.p[:-1]).flatten(1).norm(dim=1)

    @property
    def movement_bound(self) -> float:
        """k_glob η S G, Eq. 54."""
        return self.movement * self.method.lr * self.method.epochs * self.gradient_bound

    @property
    def descent_term(self) -> Tensor:
        """η/2 G_{i,t}², with Eq. 24: [T, N]."""
        return self.method.lr / 2 * (self.gradients**2).sum(2)

    @property
    def refresh_term(self) -> Tensor:
        """λ_{t+1} Γ k_glob η S G, [T, 1]."""
        return self.strength[1:, None] * self.coupling * self.movement_bound

    @property
    def schedule_term(self) -> Tensor:
        """|λ_{t+1} − λ_t| B_Φ, [T, 1]."""
        return (self.strength[1:] - self.strength[:-1]).abs()[:, None] * self.contrast_bound

    # By how much each inequality holds: its right-hand side minus its left-hand side, with σ = 0.

    def step_gap(self) -> Tensor:
        """Lemma 1, Eq. 45: [T, N, S]."""
        eta = self.method.lr
        gain = eta * (1 - self.smoothness[:, None, None] * eta / 2) * self.gradients**2
        return self.objective[..., :-1] - gain - self.objective[..., 1:]

    def descent_gap(self) -> Tensor:
        """Corollary 1, Eq. 50: [T, N]."""
        return self.objective[..., 0] - self.descent_term - self.objective[..., -1]

    def movement_gap(self) -> Tensor:
        """Lemma 2(b), Eq. 54: [T − 1], from round 2 on, before which there is nothing that could move."""
        return self.movement_bound - self.moved[1:]

    def coupling_gap(self) -> Tensor:
        """Within Lemma 3, Eq. 83: [T, N]."""
        return self.coupling * self.moved[:, None] - (self.contrast[1] - self.contrast[0]).abs()

    def refresh_gap(self) -> Tensor:
        """Lemma 3, Eq. 73: [T, N]."""
        return self.refresh_term + self.schedule_term - (self.refreshed - self.objective[..., -1]).abs()

    def one_round_gap(self) -> Tensor:
        """Theorem 1, Eq. 26: [T, N]."""
        bound = self.objective[..., 0] - self.descent_term + self.refresh_term + self.schedule_term
        return bound - self.refreshed

    # Theorem 2 speaks of the rounds from T_warm on.

    @property
    def after_warm_up(self) -> slice:
        return slice(self.method.warm_up - 1, None)

    @property
    def first_gap(self) -> Tensor:
        """Δ_i, Eq. 28, [N]; objectives are not negative, so L_inf = 0."""
        return self.objective[self.after_warm_up][0, :, 0]

    def mean_square_gradient(self) -> Tensor:
        """The left-hand side of Eq. 27, [N]."""
        return (self.gradients[self.after_warm_up] ** 2).mean((0, 2))

    def stationarity_bound(self) -> Tensor:
        """The right-hand side of Eq. 27, [N]."""
        updates = self.gradients[self.after_warm_up, 0].numel()  # K = T S
        floor = 2 * self.strength[-1] * self.coupling * self.movement * self.gradient_bound
        return 2 * self.first_gap / (updates * self.method.lr) + floor


def follow(problem: Problem, method: FedAPA, rounds: int) -> Path:
    """Train with the method, then account for it with the oracle, for all rounds of a client at once."""
    trained, clients = train(problem, method, rounds), range(len(problem.inputs))
    strength = torch.tensor([0.0, *(method.strength(t) for t in range(2, rounds + 2))], dtype=torch.float64)
    p = vmap(problem.prototypes)(trained.encoders[1:])
    p = torch.cat([p[:1], p])  # P_0 = P_1
    q = vmap(problem.personal)(p)
    accounts = [account(problem, method, i, trained.encoders[:, i], strength, q, p) for i in clients]
    iterates, gradients, objective, refreshed, contrast, curvature, lengths = zip(*accounts, strict=True)

    p_between, q_between = along(p[:-1], p[1:]), along(q[:-1], q[1:])
    jacobians = vmap(vmap(jacrev(problem.personal)))(p_between).reshape(-1, q[0].numel(), p[0].numel())
    slopes = []
    for i in clients:
        slope = grad(lambda w, q, p, i=i: problem.contrast(i, w, q, p), argnums=(1, 2))
        by_q_and_p = vmap(vmap(slope, in_dims=(None, 0, 0)))(trained.encoders[1:, i], q_between, p_between)
        slopes += [float(part.flatten(2).norm(dim=2).max()) for part in by_q_and_p]

    curvature = torch.stack(curvature, 1)
    lipschitz = max(float(h.norm(dim=1).max()) for h in problem.inputs)  # ‖(W − W′) h‖ ≤ ‖W − W′‖ ‖h‖
    most = 1 + (len(problem.class_vectors) - 1) * math.exp(2 / method.temperature)  # cosines lie between −1 and 1
    return Path(
        problem=problem,
        method=method,
        trained=trained,
        strength=strength,
        q=q,
        p=p,
        iterates=torch.stack(iterates, 1),
        gradients=torch.stack(gradients, 1),
        objective=torch.stack(objective, 1),
        refreshed=torch.stack(refreshed, 1),
        contrast=torch.stack(contrast, 2),
        curvature=curvature,
        lengths=torch.cat([norms.flatten() for norms in lengths]),
        smoothness=MARGIN * curvature.abs().amax((1, 2, 3)),
        gradient_bound=float(torch.stack(gradients).max()),
        encoder_lipschitz=lipschitz,
        movement=lipschitz * math.sqrt(len(problem.held)),  # Σ C_i is the number of prototypes held
        aggregation_lipschitz=MARGIN * float(torch.linalg.matrix_norm(jacobians, 2).max()),
        contrast_lipschitz=MARGIN * max(slopes),
        contrast_bound=2 * math.log(most),
    )


def account(problem, method, i, encoders, strength, q, p):
    """Of client i: iterates, norms of gradients, objectives, contrasts, eigenvalues, lengths of embeddings."""
    of_round, of_next = (strength[:-1], q[:-1], p[:-1]), (strength[1:], q[1:], p[1:])  # L_{i,t} and L_{i,t+1}
    iterates, gradients = descend(problem, method, i, encoders[:-1], of_round)
    objective, contrast = of_client(problem.objective, i), of_client(problem.contrast, i)
    alike = (0, None, None, None)  # all points of a round have its λ, Q and P
    steps = along(iterates[:, :-1].flatten(0, 1), iterates[:, 1:].flatten(0, 1))
    points = steps.view(len(iterates), -1, *encoders[0].shape)  # [T, points, d, m]
    hessians = vmap(vmap(jacrev(grad(objective)), in_dims=alike))(points, *of_round)
    size = encoders[0].numel()
    return (
        iterates,
        gradients.flatten(2).norm(dim=2),
        vmap(vmap(objective, in_dims=alike))(iterates, *of_round),
        vmap(objective)(encoders[1:], *of_next),
        torch.stack([vmap(contrast)(encoders[1:], *prototypes) for _, *prototypes in (of_round, of_next)]),
        torch.linalg.eigvalsh(hessians.reshape(*points.shape[:2], size, size)),
        (problem.inputs[i] @ points.mT).norm(dim=-1),
    )


def descend(problem, method, i, starts, state):
    """S steps of client i in each round, from ``starts`` [T, d, m]: iterates [T, S + 1, d, m] and gradients."""
    iterates, gradients = [starts], []
    for _ in range(method.epochs):
        gradients.append(vmap(grad(of_client(problem.objective, i)))(iterates[-1], *state))
        iterates.append(iterates[-1] - method.lr * gradients[-1])
    return torch.stack(iterates, 1), torch.stack(gradients, 1)


def of_client(function, i):
    return lambda *rest: function(i, *rest)


def along(start: Tensor, end: Tensor) -> Tensor:
    """Points of the segments between rows of ``start`` and ``end``: [rows, points, ...]."""
    share = ON_SEGMENT.view(1, -1, *[1] * (start.dim() - 1))
    return start[:, None] + share * (end - start)[:, None]


def largest_stretch(problem: Problem, p: Tensor) -> float:
    """The largest singular value of the Jacobian of Q at P: no L_agg can be smaller."""
    return float(torch.linalg.matrix_norm(jacrev(problem.personal)(p).reshape(-1, p.numel()), 2))


@cache
def path(align: float, lr: float = STEP_SIZE, warm_up: int = WARM_UP, rounds: int = ROUNDS) -> Path:
    problem = three_clients()
    method = FedAPA(
        temperature=problem.temperature, align=align, warm_up=warm_up, batch=64, epochs=STEPS, lr=lr, momentum=0.0
    )
    return follow(problem, method, rounds)


# The oracle and the method are two accounts of one thing.


@each_strength
def test_the_oracle_arrives_where_the_method_arrived(align):
    run = path(align)
    assert (run.iterates[:, :, -1] - run.trained.encoders[1:]).abs().max() < 1e-5
    assert (run.objective[..., :-1].mean(2) - run.trained.losses).abs().max() < 1e-5
    assert (run.q[1:] - run.trained.personal).abs().max() < 1e-5
    assert (vmap(run.problem.padded)(run.p[1:]) - run.trained.padded).abs().max() < 1e-5
    assert (run.iterates[:, :, -1] - run.iterates[:, :, 0]).abs().amax((2, 3)).min() > 1e-3, "each round moved"


@pytest.mark.parametrize("i", range(3))
def test_it_would_notice_another_objective(i):
    run = path(1.0)
    starts, ends = run.trained.encoders[2:-1, i], run.trained.encoders[3:, i]  # of rounds 3 to T
    right = (run.strength[2:-1], run.q[2:-1], run.p[2:-1])
    early = (run.strength[3:], *right[1:])
    stale = (right[0], run.q[1:-2], run.p[1:-2])
    off = [
        float((descend(run.problem, run.method, i, starts, state)[0][:, -1] - ends).abs().max())
        for state in (right, early, stale)
    ]
    assert off[0] < 1e-5
    assert min(off[1:]) > 1e-3


# The assumptions, where the run went.


@each_strength
def test_assumptions_hold_on_the_path(align):
    run = path(align)
    assert run.method.lr * run.smoothness.max() <= 1  # η ≤ 1/L_t
    assert run.lengths.max() <= 1  # Eq. 19
    assert run.objective.min() >= 0  # Eq. 15, with L_inf = 0
    change = (run.q[1:] - run.q[:-1]).flatten(1).norm(dim=1)
    assert (change <= run.aggregation_lipschitz * run.moved + EXACT).all()  # Eq. 20
    assert run.contrast.min() >= 0
    assert run.contrast.max() <= run.contrast_bound  # Eq. 22
    assert (run.strength[1:] >= run.strength[:-1]).all()  # Assumption 6
    assert (run.strength[run.after_warm_up] == align).all()  # Eq. 23


@each_strength
def test_measured_constants_are_below_those_derived_by_hand(align):
    """A cosine has ‖∇cos‖ ≤ 1/ρ and ‖∇²cos‖ ≤ 2/(√3 ρ²), ρ being the length of the embedding or prototype."""
    run = path(align)
    tau, longest = run.method.temperature, run.encoder_lipschitz
    shortest = float(run.lengths.min())
    of_cross_entropy = float(torch.linalg.matrix_norm(run.problem.class_vectors, 2)) ** 2 * longest**2 / 2
    of_contrast = 2 * (longest / shortest) ** 2 * (4 / math.sqrt(3) / tau + 1 / tau**2)
    assert (run.smoothness <= MARGIN * (of_cross_entropy + run.strength[:-1] * of_contrast)).all()  # Eq. 14
    stacks = vmap(run.problem.padded)(run.p), run.q
    shortest = min(float(along(stack[:-1], stack[1:]).norm(dim=-1).min()) for stack in stacks)
    assert run.contrast_lipschitz <= MARGIN * math.sqrt(2) / (tau * shortest)  # ‖softmax − one-hot‖ ≤ √2
    # Q(sP) = s Q(P), so no L_agg is below ‖Q‖/‖P‖.
    assert run.aggregation_lipschitz >= (run.q.flatten(1).norm(dim=1) / run.p.flatten(1).norm(dim=1)).max()


def test_cross_entropy_is_convex_here_and_the_contrast_is_not():
    assert path(0.0).curvature.min() > -EXACT
    assert path(1.0).curvature.min() < -0.1


# The lemmas and theorems.


@each_strength
def test_lemma_1_steps_and_rounds_descend_while_prototypes_stay(align):
    run = path(align)
    assert (run.step_gap() >= -EXACT).all()  # Eq. 45
    assert (run.descent_gap() >= -EXACT).all()  # Eq. 50
    assert run.descent_term.min() > 1e-5, "in every round there is something to gain"


@each_strength
def test_lemma_2_prototypes_move_no_further_than_encoders_let_them(align):
    run = path(align)
    assert (run.movement_gap() >= 0).all()  # Eq. 54
    budget = run.encoder_lipschitz * run.method.lr * run.method.epochs * run.gradient_bound
    change = run.p[2:] - run.p[1:-1]
    for i, y in enumerate(run.problem.labels):  # Eq. 67. Eq. 52 means it, though what stands there is everyone's change
        own = [row for row, (client, _) in enumerate(run.problem.held) if client == i]
        assert (change[:, own].flatten(1).norm(dim=1) <= math.sqrt(len(y.unique())) * budget).all()


@each_strength
def test_lemma_3_what_new_prototypes_and_a_new_weight_do_to_an_objective(align):
    run = path(align)
    assert (run.coupling_gap() >= -EXACT).all()  # Eq. 83
    assert (run.refresh_gap() >= -ROUNDING).all()  # Eq. 73


@each_strength
def test_theorem_1_from_round_to_round(align):
    run = path(align)
    assert (run.one_round_gap() >= -ROUNDING).all()  # Eq. 26
    for term in (run.descent_term, run.refresh_term, run.schedule_term):
        assert term.isfinite().all()
    assert (run.descent_term > 0).all()
    assert (run.refresh_term > 0).all() == (align > 0)
    assert (run.schedule_term[: WARM_UP - 1] > 0).all() == (align > 0)
    assert (run.schedule_term[run.after_warm_up] == 0).all()
    settled = run.objective[run.after_warm_up]
    assert (settled[-1, :, -1] < settled[0, :, 0]).all(), "objectives fall"


def test_theorem_1_without_contrast_is_plain_descent():
    run = path(0.0)
    assert (run.refresh_term + run.schedule_term == 0).all()
    assert (run.one_round_gap() - run.descent_gap()).abs().max() < ROUNDING
    assert (run.refreshed < run.objective[..., 0]).all()


def test_theorem_1_promises_descent_where_the_contrast_is_weak():
    """Not always is the right-hand side of Eq. 26 above the objective it starts from, which would promise nothing."""
    run = path(WEAK, warm_up=2, rounds=60)
    promised = run.descent_term - run.refresh_term - run.schedule_term
    seen = run.objective[..., 0] - run.refreshed
    assert (promised[run.after_warm_up][:4] > 0).all()
    assert (seen[promised > 0] >= promised[promised > 0] - ROUNDING).all()


@each_strength
def test_theorem_2_mean_square_gradient_after_the_warm_up(align):
    run = path(align)
    assert run.method.lr <= 1 / run.smoothness[run.after_warm_up].max()
    assert (run.mean_square_gradient() <= run.stationarity_bound()).all()  # Eq. 27


def test_theorem_2_its_conditions_give_stationarity():
    epsilon, rounds = 0.2, 60
    run = path(WEAK, warm_up=2, rounds=rounds)
    eta, counted = run.method.lr, rounds - 1
    assert run.lengths.max() <= 1  # Eq. 19, on this longer path
    assert eta <= 1 / run.smoothness[run.after_warm_up].max()  # Eq. 29, whose other half is void with σ = 0
    assert epsilon / (6 * run.coupling * run.movement * run.gradient_bound) >= WEAK  # Eq. 30
    assert (counted >= 6 * run.first_gap / (epsilon * eta * STEPS)).all()  # Eq. 31
    assert (run.mean_square_gradient() <= run.stationarity_bound()).all()  # Eq. 27
    assert (run.stationarity_bound() <= epsilon).all()  # Eq. 32
    assert (run.gradients[run.after_warm_up][0, :, 0] ** 2 > 2 * epsilon).all(), "which was not so at first"


# A check that cannot fail is none.


def test_too_large_a_step_breaks_descent():
    """Lemma 1 asks for η L ≤ 1; well beyond 2, objectives rise."""
    run = path(0.0, lr=20 * STEP_SIZE, warm_up=1)
    assert run.method.lr * run.smoothness[0] > 2
    assert (run.descent_gap() < -0.1).any()
    assert (run.one_round_gap() < -0.1).any()
    assert (run.mean_square_gradient() > run.stationarity_bound()).any()


def test_constants_a_hundredfold_too_small_break_the_bounds():
    run = path(1.0)
    assert (replace(run, gradient_bound=run.gradient_bound / 100).movement_gap() < 0).any()
    assert (replace(run, movement=run.movement / 100).movement_gap() < 0).any()
    assert (replace(run, contrast_lipschitz=run.contrast_lipschitz / 100).coupling_gap() < 0).any()
    assert (replace(run, contrast_lipschitz=run.contrast_lipschitz / 100).refresh_gap()[run.after_warm_up] < 0).any()


def test_the_warm_up_needs_its_error_terms():
    """A growing weight does raise the objective: what Theorem 1 has beyond plain descent is needed."""
    bare = replace(path(1.0), contrast_bound=0.0, contrast_lipschitz=0.0).one_round_gap()
    assert (bare[: WARM_UP - 1] < -0.1).any()


# Where the paper needs a footnote.


def test_no_constant_holds_everywhere():
    """Cosines know no lengths: Assumptions 1, 4 and 5 hold away from 0 only, and need ‖r‖ ≥ ρ > 0 beside ‖r‖ ≤ 1.

    Φ is the same at w and sw, so its Hessian at sw is 1/s² of that at w: there is no L_Φ. It is the same at P and sP,
    so its gradient at sP is 1/s of that at P: there is no c_Φ. Where one client's prototypes are s times as long as
    the others', the weights that client gives to others change 1/s as fast: there is no L_agg.
    """
    run = path(1.0)
    problem, w, q, p = run.problem, run.trained.encoders[1, 0], run.q[1], run.p[1]
    hessian = jacrev(grad(lambda w: problem.contrast(0, w, q, p)))
    torch.testing.assert_close(hessian(0.01 * w), 1e4 * hessian(w))
    slope = grad(lambda p: problem.contrast(0, w, q, p))
    torch.testing.assert_close(slope(0.01 * p), 100 * slope(p))
    shorter = p * torch.tensor([0.001 if client == 0 else 1.0 for client, _ in problem.held])[:, None]
    assert largest_stretch(problem, shorter) > 50 * largest_stretch(problem, p)
    assert largest_stretch(problem, shorter) > math.sqrt(3) / (2 * problem.temperature)  # Eq. 42


def test_aggregation_does_not_become_flat_with_temperature():
    """Eq. 42 offers √N/(2τ) for L_agg, which goes to 0. But averages of longer prototypes are longer, whatever τ is."""
    run = path(1.0)
    warm = replace(run.problem, temperature=2.0)
    assert largest_stretch(warm, run.p[1]) > 1 > math.sqrt(3) / (2 * warm.temperature)


def test_theorem_2_says_little_at_full_strength():
    """With the default λ = 1 its floor is above G², which bounds a mean of squared gradients anyway."""
    run = path(1.0)
    assert (run.stationarity_bound() > run.gradient_bound**2).all()
    assert (path(WEAK).stationarity_bound() < 0.01 * path(WEAK).gradient_bound ** 2).all()


def test_padded_prototypes_move_more():
    """Lemma 2 sums over the classes clients hold (Eq. 65), but the P that clients are sent has padded ones, too.

    Two clients, mirror images of one another, have one sample each, of classes of their own. Every prototype moves as
    far as it can, L_wθ η S G; two are held, but with the padded ones there are four. So P as sent moves by
    L_wθ √(N C) η S G, more than the L_wθ √(Σ C_i) η S G of Eq. 54.
    """
    problem = Problem(
        inputs=(torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()),
        labels=(torch.tensor([0]), torch.tensor([1])),
        class_vectors=torch.eye(2, dtype=torch.float64),
        first_encoder=torch.tensor([[0.5, 0.25], [0.25, 0.5]]).double(),
    )
    run = follow(problem, FedAPA(align=0.0, batch=1, epochs=1, lr=0.01, momentum=0.0), rounds=2)
    sent = float((run.trained.padded[1] - run.trained.padded[0]).norm())
    furthest = run.encoder_lipschitz * run.method.lr * run.gradient_bound
    assert run.moved[1] <= run.movement_bound == pytest.approx(math.sqrt(2) * furthest)
    assert run.movement_bound < 1.9 * furthest < sent <= 2 * furthest
