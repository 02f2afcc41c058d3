"""FedPer against plain PyTorch, and against FedAvg and Local where they must be the same."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from conftest import blobs, plain_net, quick, run
from fedsense.bundle import part
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.joining import join
from fedsense.methods import FedPer
from fedsense.models.spec import ModelSpec
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)
SHARED = ("adapter", "encoder")


def test_two_rounds_of_two_clients_are_those_of_plain_pytorch():
    """Everything trains at once, base layers are averaged by samples (24 and 25), heads stay."""
    federation = blobs(clients=2)
    method = FedPer(epochs=2, batch=8, lr=0.1)
    engine = run(method, federation, model=PLAIN, rounds=2)
    site = Site(federation, method, PLAIN, seed=0)
    nets = {}
    for who in ("c00", "c01"):
        nets[who] = plain_net((2, 6), 3)
        nets[who].load_state_dict(site.client(who).initial)
    for round in (1, 2):
        for who, net in nets.items():
            client, optimiser = site.client(who), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            for step in Work(0, round, who, 8).epochs(2).steps(client.samples):
                optimiser.zero_grad()
                F.cross_entropy(net(client.train.x[step.samples]).logits, client.train.y[step.samples]).backward()
                optimiser.step()
        a, b = (net.encoder.state_dict() for net in nets.values())
        mean = {name: (24 * a[name] + 25 * b[name]) / 49 for name in a}
        for net in nets.values():
            net.encoder.load_state_dict(mean)
    for name, tensor in mean.items():
        torch.testing.assert_close(engine.server["encoder"][f"encoder.{name}"], tensor)
    for who, net in nets.items():
        for name, tensor in net.head.state_dict().items():
            torch.testing.assert_close(engine.states[who]["head"][f"head.{name}"], tensor)


def test_in_the_first_round_it_is_fedavg_but_for_the_head():
    """All start with one head, so encoders are trained and averaged alike, to the bit; in the second they are not."""
    ours, theirs = (run(quick(name), rounds=1) for name in ("fedper", "fedavg"))
    expected = part(theirs.server["model"], *SHARED)
    assert ours.server["encoder"].keys() == expected.keys()
    assert all(torch.equal(t, expected[name]) for name, t in ours.server["encoder"].items())
    mine, others = (engine.record.scores[0]["scores"]["personal"] for engine in (ours, theirs))
    assert mine == others
    ours, theirs = (run(quick(name), rounds=2) for name in ("fedper", "fedavg"))
    assert not torch.equal(ours.server["encoder"]["encoder.0.weight"], theirs.server["model"]["encoder.0.weight"])


def test_with_one_client_it_is_local_and_fedavg_to_the_bit():
    one = {name: run(quick(name), blobs(clients=1)) for name in ("fedper", "local", "fedavg")}
    models = {name: engine.personal_parameters("c00") for name, engine in one.items()}
    for name, tensor in models["fedper"].items():
        assert torch.equal(tensor, models["local"][name]), name
        assert torch.equal(tensor, models["fedavg"][name]), name


def test_with_the_same_recordings_and_whole_batches_it_is_fedavg():
    """Then heads never come to differ, and their average is each of them."""
    one = blobs(clients=1)
    twins = one.with_clients([dataclasses.replace(one.clients[0], id=who) for who in ("a", "b")])
    ours, theirs = (run(quick(name, batch=64), twins, model=PLAIN, rounds=4) for name in ("fedper", "fedavg"))
    for name, tensor in theirs.server["model"].items():
        mine = ours.server["encoder"] | ours.states["a"]["head"]
        torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=1e-5)


def test_heads_stay_at_home_and_encoders_are_one():
    engine = run(quick("fedper"), moment="received")
    a, b = (engine.personal_parameters(c) for c in ("c00", "c01"))
    assert not torch.equal(a["head.weight"], b["head.weight"])
    assert torch.equal(a["encoder.0.weight"], b["encoder.0.weight"])
    assert engine.record.ledger[0]["clients"]["c00"]["up"].keys() == {"encoder", "size", "header"}
    assert not any(name.startswith("head") for name in engine.server["encoder"])
    assert engine.method.global_model(engine.server) is None


def test_finishing_and_joining_train_the_head_alone(tmp_path):
    federation = blobs(clients=5)
    some = federation.with_clients(federation.clients[:4])
    engine = run(quick("fedper"), some, tmp_path, ModelSpec(("flic-mlp",)), finish=True)
    new = federation.with_clients(federation.clients[4:])
    for model in (join(tmp_path, new).models["c04"], engine.personal_parameters("c00")):
        for name, tensor in engine.server["encoder"].items():
            assert torch.equal(model[name], tensor), name
        assert not torch.equal(model["head.weight"], engine.site.client("c00").initial["head.weight"])


def test_clients_that_differ_before_the_head_are_refused():
    one, two = blobs(clients=1), blobs(clients=1, shape=(3, 6))
    mixed = Federation("mixed", one.task, (*one.clients, dataclasses.replace(two.clients[0], id="watch")))
    with pytest.raises(UserError, match=r"fedper shares 'adapter.1.weight', but client 'c00'.*'watch'"):
        run(FedPer(), mixed)
