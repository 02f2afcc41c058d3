"""FedCoad and what it is composed of: SCAFFOLD, MOON; and FedAvgM. Degenerate cases coincide to the bit."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import blobs, plain_net, quick, run, same_bits
from fedsense.bundle import to_bytes
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import METHODS, FedAvgM, FedCoad
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.work import Work, stream

PLAIN = ModelSpec.of(plain_net)
OPTIMISERS = [{}, {"momentum": 0.0}, {"optimiser": "adam", "lr": 0.01, "weight_decay": 1e-5}]


@pytest.mark.parametrize("fields", OPTIMISERS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_contrast_it_is_scaffold(fields, participation):
    both = (quick("fedcoad", mu=0.0, **fields), quick("scaffold", **fields))
    same_bits(*(run(method, rounds=4, participation=participation) for method in both))


@pytest.mark.parametrize("fields", OPTIMISERS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_variates_it_is_moon(fields, participation):
    both = (quick("fedcoad", variates=False, mu=5.0, **fields), quick("moon", mu=5.0, **fields))
    same_bits(*(run(method, rounds=4, participation=participation) for method in both))


def test_without_both_it_is_fedavg():
    ours, theirs = run(quick("fedcoad", variates=False, mu=0.0)), run(quick("fedavg"))
    assert to_bytes(ours.server) == to_bytes(theirs.server)
    assert ours.record.scores == theirs.record.scores
    assert ours.states == theirs.states, "and keeps nothing"


def test_moon_without_contrast_is_fedavg():
    ours, theirs = run(quick("moon", mu=0.0)), run(quick("fedavg"))
    assert to_bytes(ours.server) == to_bytes(theirs.server)


def test_contrast_and_variates_each_change_something():
    """Variates and the previous model tell from the second round on."""
    variants = [{}, {"mu": 0.0}, {"variates": False}, {"mu": 10.0}, {"temperature": 0.1}]
    models = [to_bytes({"m": run(quick("fedcoad", **v), rounds=3).server["model"]}) for v in variants]
    assert len(set(models)) == len(variants)


def test_one_round_of_every_method_starts_alike():
    """No variates yet, and no previous model: its contrast is to the global model on both sides."""
    first = [run(quick(name), rounds=1).server["model"] for name in ("fedavg", "scaffold", "moon", "fedcoad")]
    for model in first[1:]:
        for name, tensor in first[0].items():
            torch.testing.assert_close(model[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_servers_variate_is_the_mean_of_the_clients(participation):
    """c = (1/N) Σ c_i whoever took part: clients never chosen have c_i = 0. It fails if variates do not persist."""
    for name in ("scaffold", "fedcoad"):
        engine = run(quick(name), rounds=5, participation=participation)
        everyone = len(engine.trainees)
        for tensor_name, c in engine.server["variate"].items():
            total = sum(state["variate"][tensor_name] for state in engine.states.values())
            torch.testing.assert_close(c, total / everyone, rtol=1e-3, atol=1e-4)
        assert max(float(t.abs().max()) for t in engine.server["variate"].values()) > 0.01


def test_running_statistics_have_no_variates_and_are_averaged():
    engine = run(quick("scaffold"), rounds=2)
    assert any("running" in name for name in engine.server["model"])
    assert not any("running" in name for name in engine.server["variate"])
    assert set(engine.server["variate"]) == {n for n in engine.server["model"] if "running" not in n}


def literal_scaffold(site, rounds, lr, batch, weights):
    """Algorithm 1 of the SCAFFOLD paper, option II, with torch modules; clients in full participation."""
    clients = [site.client(c) for c in sorted(site.federation.ids)]
    x = copy.deepcopy(clients[0].initial)
    c = {n: torch.zeros_like(t) for n, t in x.items()}
    own = {k.id: {n: torch.zeros_like(t) for n, t in x.items()} for k in clients}
    for round in range(1, rounds + 1):
        models, changes = [], []
        for client in clients:
            net = plain_net((2, 6), 3)
            net.load_state_dict(x)
            steps = 0
            for step in Work(0, round, client.id, batch).epochs(2).steps(client.samples):
                net.zero_grad()
                out = net(client.train.x[step.samples])
                F.cross_entropy(out.logits, client.train.y[step.samples]).backward()
                with torch.no_grad():
                    for n, p in net.named_parameters():
                        p -= lr * (p.grad - own[client.id][n] + c[n])  # y ← y − η(g − c_i + c)
                steps += 1
            y = net.state_dict()
            new = {n: own[client.id][n] - c[n] + (x[n] - y[n]) / (steps * lr) for n in x}
            changes.append({n: new[n] - own[client.id][n] for n in x})
            own[client.id] = new
            models.append({n: t.clone() for n, t in y.items()})
        share = np.array(weights(clients), dtype=float)
        share /= share.sum()
        x = {n: sum(float(s) * m[n] for s, m in zip(share, models, strict=True)) for n in x}
        c = {n: c[n] + sum(d[n] for d in changes) / len(clients) for n in c}
    return x, c


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_scaffold_is_its_papers_algorithm(weights):
    method = quick("scaffold", momentum=0.0, weights=weights)
    engine = run(method, model=PLAIN, rounds=3)
    by = {"samples": lambda clients: [k.samples for k in clients], "uniform": lambda clients: [1] * len(clients)}
    model, variate = literal_scaffold(engine.site, 3, 0.05, 8, by[weights])
    for name, tensor in engine.server["model"].items():
        torch.testing.assert_close(tensor, model[name], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(engine.server["variate"][name], variate[name], rtol=1e-3, atol=1e-5)


def linear_net(input_shape, classes):
    return Network(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), classes), features=int(np.prod(input_shape)))


def opposed():
    """Two clients whose optima lie far apart and who have different amounts of data to find them with."""
    made = {}
    for name, flip, shift in (("one", 1, 0.0), ("two", -1, 1.5)):
        rng = stream("opposed", name)
        x = rng.normal(size=(60, 4)).astype("f")
        y = ((flip * x[:, 0] + x[:, 1] + shift + rng.normal(0, 1.0, 60)) > 0).astype(int)
        made[name] = {"train": (x * (1.0 if flip > 0 else 3.0), y)}
    return Federation.from_arrays(made, classes=2)


def test_control_variates_reach_the_common_optimum_where_averaging_drifts():
    """A convex problem, 20 full-batch steps a round: the gradient of the common loss vanishes for SCAFFOLD only."""
    federation, rest = opposed(), {"batch": 60, "epochs": 20, "lr": 0.05, "momentum": 0.0}

    def slope(name, **more):
        engine = run(
            METHODS[name](**rest, **more), federation, model=ModelSpec.of(linear_net), rounds=60, views=("global",)
        )
        params = {n: t.clone().requires_grad_() for n, t in engine.server["model"].items()}
        site = Site(federation, METHODS["local"](), ModelSpec.of(linear_net), seed=0)
        losses = []
        for who in federation.ids:
            client = site.client(who)
            losses.append(F.cross_entropy(client.model.infer(params, client.train.x).logits, client.train.y))
        grads = torch.autograd.grad(torch.stack(losses).mean(), list(params.values()))
        return float(torch.cat([g.flatten() for g in grads]).norm())

    slopes = {name: slope(name) for name in ("fedavg", "scaffold")} | {"fedcoad": slope("fedcoad", mu=0.0)}
    assert slopes["scaffold"] == slopes["fedcoad"] < 1e-3
    assert slopes["fedavg"] > 10 * slopes["scaffold"]


def test_contrast_makes_features_more_like_the_global_than_like_the_previous_models():
    """From one and the same state; what the contrast minimises is cos to the previous minus cos to the global model."""
    engine = run(quick("moon", epochs=6), rounds=1, model=PLAIN)
    client, down = engine.site.client("c00"), {"model": engine.server["model"]}
    previous, gap = engine.states["c00"], {}
    for mu in (0.0, 10.0):
        reply = quick("moon", mu=mu, epochs=6).local_update(client, previous, down, Work(0, 2, "c00", 8))
        seen = [client.model.infer(p, client.train.x).features for p in (reply.model, down["model"], previous["model"])]
        gap[mu] = float((F.cosine_similarity(*seen[:2]) - F.cosine_similarity(*seen[::2])).mean())
    assert gap[10.0] > gap[0.0] + 0.05


def test_fedavgm_by_hand():
    """w = 10, average 8, β = ½: v = 2, w = 8; then the average 7: v = 1 + 1 = 2, w = 6. Statistics: the average."""
    method = FedAvgM(beta=0.5)

    def sent(value):
        group = {"w": torch.tensor([value]), "running_var": torch.tensor([value / 100])}
        return {"a": {"model": group, "size": {"n": torch.tensor(3.0)}}}

    server = {
        "model": {"w": torch.tensor([10.0]), "running_var": torch.tensor([1.0])},
        "velocity": {"w": torch.tensor([0.0])},
    }
    server = method.aggregate(server, sent(8.0))
    assert (server["model"]["w"].item(), server["velocity"]["w"].item()) == (8.0, 2.0)
    server = method.aggregate(server, sent(7.0))
    assert (server["model"]["w"].item(), server["velocity"]["w"].item()) == (6.0, 2.0)
    assert server["model"]["running_var"].item() == pytest.approx(0.07)
    assert set(method.broadcast(server, "a")) == {"model"}


def test_fedavgm_without_momentum_is_fedavg_up_to_rounding():
    ours, theirs = run(quick("fedavgm", beta=0.0)), run(quick("fedavg"))
    for name, tensor in theirs.server["model"].items():
        torch.testing.assert_close(ours.server["model"][name], tensor, rtol=1e-4, atol=1e-5)
    assert set(ours.server["velocity"]) == {n for n in theirs.server["model"] if "running" not in n}


@pytest.mark.parametrize(("field", "value"), [("mu", -1), ("temperature", 0.0), ("temperature", -0.5)])
def test_wrong_settings_are_named(field, value):
    for name in ("fedcoad", "moon"):
        with pytest.raises(UserError, match=f"{name}: {field} is {value}; it (cannot be negative|must be positive)$"):
            METHODS[name](**{field: value})


def test_the_previous_model_is_the_one_trained_last_however_long_ago():
    engine = run(quick("fedcoad"), rounds=6, participation=0.5)
    for who, state in engine.states.items():
        last = max(line["round"] for line in engine.record.ledger if who in line["clients"])
        before = run(quick("fedcoad"), rounds=last, participation=0.5)
        assert to_bytes(before.states[who]) == to_bytes(state)


def test_mu_zero_neither_keeps_nor_runs_other_models():
    assert set(run(quick("fedcoad", mu=0.0), rounds=1).states["c00"]) == {"variate"}
    assert set(run(quick("fedcoad"), rounds=1).states["c00"]) == {"variate", "model"}
    assert FedCoad(mu=0.0).variates


def test_a_local_update_is_algorithm_2_in_plain_pytorch():
    """Adam with weight decay, contrast by two logits, θ ← θ − lr·(ρ_glob − ρ_i) after each step, then Eq. 7."""
    method = quick("fedcoad", mu=3.0, temperature=0.3, optimiser="adam", lr=0.01, weight_decay=1e-3)
    client = Site(blobs(), method, PLAIN, seed=0).client("c00")
    draw = torch.Generator().manual_seed(0)
    start = client.initial
    shared, own, old = ({n: torch.randn(t.shape, generator=draw) for n, t in start.items()} for _ in range(3))
    previous = {n: t + 0.3 * old[n] for n, t in start.items()}
    work = Work(0, 3, "c00", 8)
    reply = method.local_update(client, {"variate": own, "model": previous}, {"model": start, "variate": shared}, work)
    local, glob, before = (plain_net((2, 6), 3) for _ in range(3))
    for net, params in ((local, start), (glob, start), (before, previous)):
        net.load_state_dict(params)
    optimiser, steps = torch.optim.Adam(local.parameters(), lr=0.01, weight_decay=1e-3), 0
    for step in work.epochs(2).steps(client.samples):
        x, y = client.train.x[step.samples], client.train.y[step.samples]
        out = local(x)
        with torch.no_grad():
            others = glob(x).features, before(x).features
        contrast = torch.stack([F.cosine_similarity(out.features, other) for other in others], 1) / 0.3
        loss = F.cross_entropy(out.logits, y) + 3.0 * F.cross_entropy(contrast, torch.zeros(len(y)).long())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for name, p in local.named_parameters():
                p -= 0.01 * (shared[name] - own[name])
        steps += 1
    for name, tensor in local.state_dict().items():
        torch.testing.assert_close(reply.model[name], tensor, rtol=1e-4, atol=1e-5)
        new = own[name] - shared[name] + (start[name] - tensor) / (steps * 0.01)
        torch.testing.assert_close(reply.state["variate"][name], new, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(reply.upload["variate"][name], new - own[name], rtol=1e-3, atol=1e-3)


def test_a_clients_own_model_is_the_one_it_trained_though_the_servers_comes_down():
    """With turns, and scores every other round: without contrast MOON's clients have FedAvg's models, and scores."""
    settings = {"rounds": 6, "participation": 0.5, "every": 2}
    moon, fedavg = run(quick("moon", mu=0.0), **settings), run(quick("fedavg"), **settings)
    assert moon.record.scores == fedavg.record.scores
    for method in ("moon", "fedcoad"):
        engine = run(quick(method), **settings)
        for who, state in engine.states.items():
            personal = engine.personal_parameters(who)
            assert all(torch.equal(t, state["model"][name]) for name, t in personal.items())
