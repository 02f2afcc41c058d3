"""FedBN: what stays and what travels, and that it is FedAvg where there is no BatchNorm."""

import pytest
import torch
from torch import nn

from conftest import NET, blobs, plain_net, quick, run
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.methods import FedAvg, FedBN
from fedsense.models import build_model
from fedsense.models.network import Model, Network
from fedsense.models.spec import ModelSpec
from fedsense.ops import batchnorm_names
from fedsense.work import Work

NORMS = {f"encoder.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
PLAIN = ModelSpec.of(plain_net)


def test_a_layer_is_known_by_its_running_mean():
    model = Model(NET.build("small_net", (2, 6), 3, 0).network)
    assert batchnorm_names(model.shapes, model.buffers) == NORMS
    deep = build_model("convnet4-large", (40, 12), 4)
    found = batchnorm_names(deep.shapes, deep.buffers)
    layers = {name for name, m in deep.network.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    assert {name.rpartition(".")[0] for name in found} == layers
    assert len(found) == 4 * len(layers) > 0


def test_a_layer_without_weights_has_statistics_only():
    encoder = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4))
    model = Model(Network(encoder, nn.Linear(4, 2), features=4))
    assert batchnorm_names(model.shapes, model.buffers) == {"encoder.1.running_mean", "encoder.1.running_var"}


def test_norms_stay_and_all_else_is_shared():
    engine = run(quick("fedbn"), moment="received")
    assert set(engine.states["c00"]["norms"]) == NORMS
    assert not NORMS & set(engine.server["model"])
    a, b = (engine.personal_parameters(c) for c in ("c00", "c01"))
    assert a.keys() == b.keys() == engine.site.client("c00").initial.keys()
    assert {name for name in a if not torch.equal(a[name], b[name])} == NORMS
    assert all(torch.equal(a[n], t) for n, t in engine.states["c00"]["norms"].items())
    assert engine.method.global_model(engine.server) is None


def test_an_update_is_fedavgs_from_shared_weights_and_own_norms():
    engine = run(quick("fedbn"), rounds=2)
    client, work = engine.site.client("c01"), Work(0, 3, "c01", 8)
    down, state = engine.method.broadcast(engine.server, "c01"), engine.states["c01"]
    ours = engine.method.local_update(client, state, down, work)
    whole = {"model": down["model"] | state["norms"]}
    theirs = FedAvg(epochs=2, batch=8, lr=0.05).local_update(client, {}, whole, work)
    assert all(torch.equal(t, theirs.model[n]) for n, t in ours.model.items())
    assert ours.upload["model"].keys() == ours.model.keys() - NORMS
    assert all(not torch.equal(t, state["norms"][n]) for n, t in ours.state["norms"].items())  # they learn


def test_the_first_average_is_fedavgs():
    ours, theirs = run(quick("fedbn"), rounds=1), run(quick("fedavg"), rounds=1)
    assert all(torch.equal(t, theirs.server["model"][n]) for n, t in ours.server["model"].items())


def test_a_network_without_batchnorm_is_refused_because_it_would_be_fedavg(monkeypatch):
    with pytest.raises(UserError, match=r"plain_net has none.*use fedavg, or a network with BatchNorm"):
        run(quick("fedbn"), model=PLAIN)
    monkeypatch.setattr(FedBN, "requires", lambda self, task: None)
    ours, theirs = run(quick("fedbn"), model=PLAIN), run(quick("fedavg"), model=PLAIN)
    assert all(torch.equal(t, theirs.server["model"][n]) for n, t in ours.server["model"].items())
    assert (
        ours.record.scores[-1]["scores"]["personal"] == theirs.record.scores[-1]["scores"]["personal"]
    )  # FedBN has no global model, even here


def test_levels_of_signals_that_differ_are_what_it_is_for():
    """Clients whose signals have levels of their own: with norms of their own shared weights serve all."""

    def level(client, number):
        return client.change(lambda _, s: type(s)(s.x + 4.0 * number, s.y))

    federation = blobs(clients=4, train=60, test=60)
    federation = federation.with_clients(level(c, i - 1) for i, c in enumerate(federation))
    settings = {"rounds": 6, "moment": "received", "views": ("personal",)}
    mean = {}
    for name in ("fedavg", "fedbn"):
        engine = run(quick(name, lr=0.02), federation, **settings)
        scores = engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"].values()
        mean[name] = sum(scores) / len(scores)
    assert mean["fedbn"] > mean["fedavg"] + 0.15, mean


def test_a_client_that_never_took_part_begins_with_the_starting_values():
    site = Site(blobs(), quick("fedbn"), NET, seed=0)
    client = site.client("c00")
    down = site.method.broadcast(site.first_server, "c00")
    state = site.method.init_client(client, client.initial, down, Work(0, 0, "c00", 8))
    personal = site.method.personalise(client, state, down, Work(0, 1, "c00", 8))
    assert all(torch.equal(t, client.initial[n]) for n, t in personal.items())
