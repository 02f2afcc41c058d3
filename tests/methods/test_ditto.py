"""Ditto: the global model is FedAvg's, the personal one follows λ/2 ‖v − w‖²."""

import pytest
import torch
from torch.nn import functional as F

from conftest import blobs, plain_net, quick, run
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.methods import Ditto
from fedsense.models.spec import ModelSpec
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def test_the_global_model_is_fedavgs():
    ours, theirs = (run(quick(name), participation=0.5, rounds=4) for name in ("ditto", "fedavg"))
    assert all(torch.equal(t, theirs.server["model"][n]) for n, t in ours.server["model"].items())
    assert [line["scores"]["global"] for line in ours.record.scores] == [
        line["scores"]["global"] for line in theirs.record.scores
    ]


def test_without_pull_personal_models_are_those_of_local():
    ours, theirs = run(quick("ditto", pull=0.0)), run(quick("local"))
    for client in ours.federation.ids:
        a, b = ours.personal_parameters(client), theirs.personal_parameters(client)
        assert all(torch.equal(t, b[n]) for n, t in a.items())


def test_two_rounds_of_a_personal_model_are_those_of_plain_pytorch():
    """v ← v − η(∇L(v) + λ(v − w)): torch's module and optimiser, w another model in each round."""
    method = Ditto(epochs=1, personal_epochs=2, batch=8, lr=0.05, personal_lr=0.1, pull=0.7)
    site = Site(blobs(), method, PLAIN, seed=0)
    client, state = site.client("c00"), {}
    net = plain_net((2, 6), 3)
    net.load_state_dict(client.initial)
    optimiser = None
    for round in (1, 2):
        w = {name: t + 0.1 * round for name, t in client.initial.items()}
        if round == 1:  # a client's first v is the w it meets first
            net.load_state_dict(w)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)  # afresh every round
        work = Work(0, round, "c00", 8)
        for step in work.epochs(2).steps(client.samples):
            loss = F.cross_entropy(net(client.train.x[step.samples]).logits, client.train.y[step.samples])
            pull = sum(((p - w[name]) ** 2).sum() for name, p in net.named_parameters())
            optimiser.zero_grad()
            (loss + 0.7 / 2 * pull).backward()
            optimiser.step()
        reply = method.local_update(client, state, {"model": w}, work)
        state = reply.state
        for name, tensor in net.state_dict().items():
            torch.testing.assert_close(reply.model[name], tensor, msg=f"round {round}, {name}")


def test_the_stronger_the_pull_the_nearer_to_the_global_model():
    def distance(pull):
        engine = run(quick("ditto", pull=pull, momentum=0.0), rounds=5, model=PLAIN)
        w, v = engine.server["model"], engine.personal_parameters("c00")
        return sum(float(((v[n] - t) ** 2).sum()) for n, t in w.items())

    near = [distance(pull) for pull in (0.0, 1.0, 10.0)]
    assert near[0] > 1.2 * near[1] > 1.2 * 1.2 * near[2]


@pytest.mark.parametrize("moment", ["trained", "received"])
def test_what_is_scored_is_the_personal_model(moment):
    engine = run(quick("ditto"), moment=moment)
    kept = engine.states["c02"]["model"]
    assert all(torch.equal(t, kept[n]) for n, t in engine.personal_parameters("c02").items())


def test_who_never_took_part_has_the_global_model():
    engine = run(quick("ditto"), rounds=1, participation=0.25, moment="received")
    (taken,) = engine.record.ledger[0]["clients"]
    other = next(c for c in engine.federation.ids if c != taken)
    assert all(torch.equal(t, engine.server["model"][n]) for n, t in engine.personal_parameters(other).items())


def test_finishing_trains_the_personal_model_alone():
    plain, finished = (run(quick("ditto"), finish=finish, executor="serial") for finish in (False, True))
    assert all(torch.equal(t, finished.server["model"][n]) for n, t in plain.server["model"].items())
    client, down = plain.site.client("c00"), plain.method.broadcast(plain.server, "c00")
    reply = plain.method.finish(client, plain.states["c00"], down, Work(0, 4, "c00", 8))
    assert not reply.upload
    assert all(torch.equal(t, finished.personal_parameters("c00")[n]) for n, t in reply.model.items())


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="pull is -1; it cannot be negative"):
        Ditto(pull=-1)
    with pytest.raises(UserError, match="personal_epochs is 0"):
        Ditto(personal_epochs=0)
