"""Meta-HAR: Reptile's step by hand, its pairs against a loop, and with ε = 1 FedPer."""

import math

import pytest
import torch

from conftest import blobs, plain_net, quick, run
from fedsense.bundle import to_bytes
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import MetaHAR
from fedsense.models.network import Batch
from fedsense.models.spec import ModelSpec
from fedsense.ops import pair_loss
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def sent(value, n):
    return {"encoder": {"encoder.w": torch.tensor([value])}, "size": {"n": torch.tensor(float(n))}}


def test_reptiles_step_by_hand():
    """From θ = 2 to the mean of 4 and 8, which is 6 (7 by samples): a quarter of the way is 3 (3.25)."""
    server = {"encoder": {"encoder.w": torch.tensor([2.0])}}
    uploads = {"a": sent(4.0, 1), "b": sent(8.0, 3)}
    for weights, expected in (("uniform", 3.0), ("samples", 3.25)):
        after = MetaHAR(meta_lr=0.25, weights=weights).aggregate(server, uploads)
        assert after["encoder"]["encoder.w"].item() == expected


@pytest.mark.parametrize("moment", ["trained", "received"])
def test_with_whole_steps_and_cross_entropy_it_is_fedper(moment):
    fields = {"meta_lr": 1.0, "objective": "classes", "head_epochs": 0, "weights": "samples"}
    settings = {"participation": 0.7, "moment": moment}
    ours, theirs = run(quick("meta-har", **fields), **settings), run(quick("fedper"), **settings)
    assert to_bytes(ours.server) == to_bytes(theirs.server)
    assert {c: to_bytes(s) for c, s in ours.states.items()} == {c: to_bytes(s) for c, s in theirs.states.items()}
    assert ours.record.scores == theirs.record.scores
    half = run(quick("meta-har", **fields | {"meta_lr": 0.5}), **settings)
    assert to_bytes(half.server) != to_bytes(theirs.server)


def test_without_steps_the_embedding_stays():
    engine = run(quick("meta-har", meta_lr=0.0))
    first = engine.site.first_server["encoder"]
    assert all(torch.equal(t, first[name]) for name, t in engine.server["encoder"].items())


@pytest.mark.parametrize("size", [1, 2, 7])
def test_pairs_against_a_loop(size):
    generator = torch.Generator().manual_seed(size)
    z, y = torch.randn(size + 3, 5, generator=generator), torch.randint(3, (size + 3,), generator=generator)
    mask = torch.tensor([1.0] * size + [0.0] * 3)  # the last three were filled in
    losses = []
    for i in range(size):
        for j in range(i):
            cosine = float(z[i] @ z[j] / (z[i].norm() * z[j].norm()))
            chance = 1 / (1 + math.exp(-cosine / 0.3))
            losses.append(-math.log(chance if y[i] == y[j] else 1 - chance))
    expected = sum(losses) / len(losses) if losses else 0.0
    assert float(pair_loss(z, Batch(z, y, mask, torch.tensor(0)), 0.3)) == pytest.approx(expected, rel=1e-5)


def test_features_of_zero_have_finite_gradients():
    z = torch.zeros(4, 5, requires_grad=True)
    pair_loss(z, Batch(z, torch.tensor([0, 0, 1, 2]), torch.ones(4), torch.tensor(0)), 0.2).backward()
    assert z.grad.isfinite().all()


def test_pairs_train_the_embedding_and_then_the_head():
    method = MetaHAR(epochs=2, batch=8, lr=0.1)
    site = Site(blobs(), method, PLAIN, seed=0)
    client, down = site.client("c00"), method.broadcast(site.first_server, "c00")
    state = method.init_client(client, client.initial, down, Work(0, 0, "c00", 8))
    reply = method.local_update(client, state, down, Work(0, 1, "c00", 8))
    assert all(torch.equal(reply.model[name], t) for name, t in reply.upload["encoder"].items())
    assert not any(torch.equal(reply.model[name], t) for name, t in client.initial.items())
    other = {name: t + 1.0 for name, t in state["head"].items()}  # θ_i does not depend on the head
    again = method.local_update(client, {"head": other}, down, Work(0, 1, "c00", 8))
    assert to_bytes({"e": again.upload["encoder"]}) == to_bytes({"e": reply.upload["encoder"]})

    def apart(params):
        """How much more alike samples of one class are than samples of two."""
        z = torch.nn.functional.normalize(client.model.infer(params, client.train.x).features, dim=1)
        same = client.train.y[:, None] == client.train.y
        return float((z @ z.T)[same].mean() - (z @ z.T)[~same].mean())

    assert apart(reply.model) > apart(client.initial) + 0.1


def test_as_received_the_head_is_tuned_to_the_shared_embedding():
    method = quick("meta-har", head_epochs=3)
    engine = run(method, moment="received")
    own = engine.personal_parameters("c01")
    assert all(torch.equal(own[name], t) for name, t in engine.server["encoder"].items())
    assert not torch.equal(own["head.weight"], engine.states["c01"]["head"]["head.weight"])


def test_clients_need_not_have_the_same_classes_names_or_order():
    """Half of the clients have the classes the other way round: pairs are the same, heads are not."""
    federation = blobs(clients=4, train=40)
    turned = federation.with_clients(
        c.change(lambda _, s: type(s)(s.x, 2 - s.y)) if c.id in ("c01", "c03") else c for c in federation
    )
    a, b = (run(quick("meta-har"), f, executor="serial") for f in (federation, turned))
    assert to_bytes(a.server) == to_bytes(b.server)
    scores = b.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]
    assert sum(scores.values()) / len(scores) > 0.6


def test_a_newcomer_adapts_the_embedding_and_learns_a_head():
    federation = blobs(clients=5)
    federation = federation.with_clients(federation.clients[:4], newcomers=federation.clients[4:])
    engine = run(quick("meta-har"), federation, rounds=4, views=("personal", "new-client"))
    assert engine.record.scores[-1]["scores"]["new-client"]["test"]["accuracy"]["c04"] > 0.6


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match=r"meta_lr is 1\.5; it is a share of the way"):
        MetaHAR(meta_lr=1.5)
    with pytest.raises(UserError, match="leaves the head to head_epochs"):
        MetaHAR(head_epochs=0)
    x, y = torch.randn(8, 2, 6).numpy(), torch.randn(8).numpy()
    values = Federation.from_arrays({"a": {"train": (x, y), "test": (x, y)}}, classes=["speed"], kind="regression")
    with pytest.raises(UserError, match="meta-har works with classes"):
        run(quick("meta-har"), values, metrics=("rmse",))
    run(quick("meta-har", objective="classes"), values, metrics=("rmse",))
