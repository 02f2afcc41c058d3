"""FedAMP: ξ by hand and as the gradient of what it descends, u_i, and what clients minimise."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from conftest import blobs, plain_net, quick, run
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.methods import FedAMP
from fedsense.models.spec import ModelSpec
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def test_weights_by_hand():
    """Models 0, 1 and 3, σ = 2, α/σ = 0.3: ξ_12 = 0.3 e^{−1/2}, ξ_13 = 0.3 e^{−9/2}, ξ_23 = 0.3 e^{−4/2}."""
    xi = FedAMP(sigma=2.0, attention=0.3).weights({"w": torch.tensor([[0.0], [1.0], [3.0]])})
    a, b, c = (0.3 * np.exp(-d / 2) for d in (1, 9, 4))
    np.testing.assert_allclose(xi, [[1 - a - b, a, b], [a, 1 - a - c, c], [b, c, 1 - b - c]], rtol=1e-6)


def test_by_itself_sigma_is_the_mean_squared_distance_and_attention_leaves_something_over():
    """Squared distances 1, 9 and 4, mean 14/3; three clients, 1/(m − 1) = 1/2."""
    models = {"w": torch.tensor([[0.0], [1.0], [3.0]])}
    torch.testing.assert_close(FedAMP().weights(models), FedAMP(sigma=14 / 3, attention=0.5).weights(models))


@pytest.mark.parametrize("models", [torch.zeros(4, 3), torch.zeros(1, 3), torch.eye(5)])
def test_weights_are_shares(models):
    xi = FedAMP().weights({"w": models})
    assert xi.min() >= -1e-6
    torch.testing.assert_close(xi.sum(1), torch.ones(len(models)))


def test_u_is_a_gradient_step_on_the_sum_of_a():
    """U = W − (α/2) ∇ Σ_{i<j} A(‖w_i − w_j‖²), A(d) = 1 − e^{−d/σ}: by autograd, over two tensors of five models."""
    generator = torch.Generator().manual_seed(0)
    table = {"a": torch.randn(5, 3, 2, generator=generator), "b": torch.randn(5, 4, generator=generator)}
    sigma, attention = 7.0, 0.2
    alpha = attention * sigma
    leaves = {name: w.clone().requires_grad_() for name, w in table.items()}
    flat = torch.cat([w.flatten(1) for w in leaves.values()], 1)
    total = sum(1 - torch.exp(-(flat[i] - flat[j]).square().sum() / sigma) for i in range(5) for j in range(i + 1, 5))
    gradients = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
    method = FedAMP(sigma=sigma, attention=attention)
    sent = {f"c{i}": {"model": {name: w[i] for name, w in table.items()}} for i in range(5)}
    server = method.aggregate({}, sent)
    for i in range(5):
        cloud = method.broadcast(server, f"c{i}")["cloud"]
        for name, w in table.items():
            torch.testing.assert_close(cloud[name], w[i] - alpha / 2 * gradients[name][i], rtol=1e-5, atol=1e-6)
    assert max(float(g.abs().max()) for g in gradients.values()) > 1e-2


def test_who_sits_out_stays_in_the_table():
    method = FedAMP(sigma=1e9, attention=1 / 3)  # all alike: a third of each of the others

    def sent(**values):
        return {c: {"model": {"w": torch.tensor([v])}} for c, v in values.items()}

    server = method.aggregate({}, sent(b=3.0, d=9.0))
    assert method.broadcast(server, "a") == {}  # not heard of yet
    server = method.aggregate(server, sent(a=0.0, c=6.0))
    assert list(server["row"]) == ["a", "b", "c", "d"]
    server = method.aggregate(server, sent(b=4.5))
    assert server["table"]["w"].flatten().tolist() == [0.0, 4.5, 6.0, 9.0]
    assert method.broadcast(server, "a")["cloud"]["w"].item() == pytest.approx((4.5 + 6 + 9) / 3, rel=1e-5)


def test_without_pull_it_is_local():
    ours, theirs = run(quick("fedamp", pull=0.0)), run(quick("local"))
    for client in ours.federation.ids:
        assert ours.states[client].keys() == {"model"}
        assert all(torch.equal(t, theirs.states[client]["model"][n]) for n, t in ours.states[client]["model"].items())
    assert ours.record.scores[-1]["scores"]["personal"] == theirs.record.scores[-1]["scores"]["personal"]


@pytest.mark.parametrize("fields", [{"sigma": 1e-9}, {"attention": 0.0}])
def test_without_attention_a_client_is_drawn_to_its_own_last_model(fields):
    engine = run(quick("fedamp", **fields))
    assert torch.equal(engine.server["weights"]["xi"], torch.eye(4))
    for client in engine.federation.ids:
        cloud = engine.method.broadcast(engine.server, client)["cloud"]
        assert all(torch.equal(t, engine.states[client]["model"][n]) for n, t in cloud.items())


def test_an_update_is_that_of_plain_pytorch():
    """From w_i, on L_i(w) + (λ/α)/2 ‖w − u_i‖²."""
    method = FedAMP(epochs=2, batch=8, lr=0.05, pull=3.0)
    client = Site(blobs(), method, PLAIN, seed=0).client("c00")
    cloud = {name: t + 0.2 for name, t in client.initial.items()}
    net = plain_net((2, 6), 3)
    net.load_state_dict(client.initial)
    optimiser, work = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), Work(0, 2, "c00", 8)
    for step in work.epochs(2).steps(client.samples):
        loss = F.cross_entropy(net(client.train.x[step.samples]).logits, client.train.y[step.samples])
        pull = sum(((p - cloud[name]) ** 2).sum() for name, p in net.named_parameters())
        optimiser.zero_grad()
        (loss + 3.0 / 2 * pull).backward()
        optimiser.step()
    reply = method.local_update(client, {"model": client.initial}, {"cloud": cloud}, work)
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(reply.state["model"][name], tensor)


def test_running_statistics_stay_at_home():
    engine = run(quick("fedamp"), rounds=2)
    assert not any("running" in name for name in engine.server["table"])
    assert any("running" in name for name in engine.states["c00"]["model"])
    assert engine.server["table"].keys() | {"encoder.1.running_mean", "encoder.1.running_var"} == set(
        engine.states["c00"]["model"]
    )


def test_clients_of_a_kind_find_one_another():
    """Two clients name the classes the other way round: weights within the kinds exceed those across them."""
    federation = blobs(clients=4, train=40)
    federation = federation.with_clients(
        c.change(lambda _, s: type(s)(s.x, 2 - s.y)) if c.id in ("c01", "c03") else c for c in federation
    )
    engine = run(quick("fedamp"), federation, rounds=4, model=PLAIN)
    graph = engine.record.observations[-1]["collaboration"]
    for a, friend, others in (("c00", "c02", ("c01", "c03")), ("c03", "c01", ("c00", "c02"))):
        assert graph[a][friend] > 1.3 * max(graph[a][other] for other in others), graph
        assert sum(graph[a].values()) == pytest.approx(1, abs=1e-4)


def test_weights_that_could_leave_less_than_nothing_are_refused():
    with pytest.raises(UserError, match=r"attention is 0.5, but with 3 other clients .* at most 0.333"):
        run(quick("fedamp", attention=0.5))
    with pytest.raises(UserError, match="sigma is 0; it must be positive, or left out"):
        FedAMP(sigma=0)
