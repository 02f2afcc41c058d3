"""WiFederated: the server's model is FedAvg's, a client's is that model, tuned."""

from dataclasses import replace

import pytest
import torch

from conftest import blobs, plain_net, quick, run
from fedsense.bundle import to_bytes
from fedsense.errors import UserError
from fedsense.methods import WiFederated
from fedsense.models.spec import ModelSpec
from fedsense.ops import classify
from fedsense.training import fit
from fedsense.work import Work


def mixed():
    """Two clients with signals of two channels and two of three, whose networks differ in width."""
    wide = blobs(clients=2, shape=(3, 6))
    others = (replace(c, id=f"w{c.id}") for c in wide)
    return wide.with_clients([*blobs(clients=2), *others])


@pytest.mark.parametrize("apart", [False, True])
def test_the_server_is_fedavgs(apart):
    federation, rest = mixed() if apart else blobs(), {"participation": 0.5, "moment": "received"}
    ours, theirs = (run(quick(name, by_architecture=apart), federation, **rest) for name in ("wifederated", "fedavg"))
    assert to_bytes(ours.server) == to_bytes(theirs.server)
    assert ours.server.keys() == ({"architecture", "model-0", "model-1"} if apart else {"model"})


def test_without_tuning_it_is_fedavg_as_received():
    ours, theirs = (
        run(quick(name, **fields), moment="received")
        for name, fields in (("wifederated", {"tune_epochs": 0}), ("fedavg", {}))
    )
    assert ours.record.scores == theirs.record.scores


@pytest.mark.parametrize("finish", [False, True])
def test_a_clients_model_is_the_servers_after_some_epochs_of_its_own(finish):
    method = quick("wifederated", tune_epochs=3, tune_lr=0.01)
    engine = run(method, moment="trained" if finish else "received", finish=finish, executor="serial")
    client, work = engine.site.client("c02"), Work(0, 4 if finish else 3, "c02", 8)
    want = fit(classify(client), engine.server["model"], client, work.epochs(3, "tune"), method.optim(0.01)).params
    got = engine.personal_parameters("c02")
    assert all(torch.equal(t, want[n]) for n, t in got.items())
    assert not torch.equal(got["head.weight"], engine.server["model"]["head.weight"])


def test_tuning_helps_clients_who_differ():
    """Half of the clients have the classes the other way round; the shared model cannot suit both."""
    federation = blobs(clients=4, train=40)
    federation = federation.with_clients(
        c.change(lambda _, s: type(s)(s.x, 2 - s.y)) if c.id in ("c01", "c03") else c for c in federation
    )
    mean = {}
    for name in ("fedavg", "wifederated"):
        engine = run(quick(name), federation, moment="received", model=ModelSpec.of(plain_net))
        scores = engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"].values()
        mean[name] = sum(scores) / len(scores)
    assert mean["wifederated"] > mean["fedavg"] + 0.15, mean


def test_different_networks_are_refused_or_averaged_among_their_likes():
    with pytest.raises(UserError, match="wifederated shares"):
        run(quick("wifederated"), mixed())
    engine = run(quick("wifederated", by_architecture=True), mixed(), rounds=1, participation=0.25)
    assert len([group for group in engine.server if group.startswith("model-")]) == 1
    assert (
        len(engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]) == 4
    )  # who has no model tunes its own
    with pytest.raises(UserError, match="tune_epochs is -1"):
        WiFederated(tune_epochs=-1)
