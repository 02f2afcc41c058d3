"""FedProto: its equations by hand and in plain PyTorch, Local where it must be Local, and both ways to predict."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from torch import nn
from torch.nn import functional as F

from conftest import NET, blobs, plain_net, quick, run, same_bits
from fedsense.bundle import to_bytes
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.evaluation.summary import curve
from fedsense.federation import Federation
from fedsense.methods import FedProto
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def states_equal(ours, theirs):
    for client in ours.federation.ids:
        assert to_bytes(ours.states[client]) == to_bytes(theirs.states[client]), client
    assert ours.record.scores == theirs.record.scores


def target(seed=1, count=(1.0, 2.0, 0.0)):
    mean = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
    return {"mean": mean, "count": torch.tensor(count)}


def test_without_alignment_it_is_local_to_the_bit():
    for participation in (1.0, 0.5):
        ours = run(quick("fedproto", align=0.0), participation=participation)
        states_equal(ours, run(quick("local"), participation=participation))
    assert not torch.equal(
        ours.states["c00"]["model"]["encoder.0.weight"],
        run(quick("fedproto")).states["c00"]["model"]["encoder.0.weight"],
    )


def test_in_the_first_round_there_is_nothing_to_align_to():
    ours, theirs = (run(quick(name), rounds=1) for name in ("fedproto", "local"))
    states_equal(ours, theirs)
    assert ours.record.ledger[0]["clients"]["c00"]["down"] == {}


def test_a_round_is_that_of_plain_pytorch():
    """Cross-entropy + λ·MSE to the prototype of the class, of classes that have one; the whole model trains."""
    method = FedProto(epochs=2, batch=8, lr=0.05, align=2.0)
    client, proto = Site(blobs(), method, PLAIN, seed=0).client("c00"), target()
    reply = method.local_update(client, {"model": client.initial}, {"proto": proto}, Work(0, 3, "c00", 8))
    net = plain_net((2, 6), 3)
    net.load_state_dict(client.initial)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in Work(0, 3, "c00", 8).epochs(2).steps(client.samples):
        x, y = client.train.x[step.samples], client.train.y[step.samples]
        out, goal = net(x), proto["mean"][y].clone()
        goal[y == 2] = out.features[y == 2].detach()  # no prototype: at no distance
        optimiser.zero_grad()
        (F.cross_entropy(out.logits, y) + 2.0 * F.mse_loss(out.features, goal)).backward()
        optimiser.step()
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(reply.state["model"][name], tensor)
    features = net(client.train.x).features.detach().numpy()
    centroids = NearestCentroid().fit(features, client.train.y.numpy()).centroids_
    np.testing.assert_allclose(reply.upload["proto"]["mean"], centroids, rtol=1e-4, atol=1e-5)


def test_eq6_by_hand():
    """Class 0 of 1 and 3 samples, 2 and 6: (1·2 + 3·6)/4 = 5, alike 4. Class 1 at the second only, 2 as it was."""
    uploads = {
        "a": {"proto": {"mean": torch.tensor([[2.0]]), "count": torch.tensor([1.0, 0.0, 0.0])}},
        "b": {"proto": {"mean": torch.tensor([[6.0], [7.0]]), "count": torch.tensor([3.0, 2.0, 0.0])}},
    }
    before = {"proto": {"mean": torch.tensor([[9.0], [9.0], [9.0]]), "count": torch.tensor([5.0, 5.0, 5.0])}}
    for weights, first in (("samples", 5.0), ("uniform", 4.0)):
        method = FedProto(weights=weights)
        after = method.aggregate(before, uploads)["proto"]
        assert after["mean"].flatten().tolist() == [first, 7.0, 9.0]
        assert after["count"].tolist() == [4.0, 2.0, 5.0]
        fresh = method.aggregate({}, uploads)["proto"]
        assert fresh["mean"].flatten().tolist() == [first, 7.0, 0.0]
        assert fresh["count"].tolist() == [4.0, 2.0, 0.0]


def test_only_prototypes_travel():
    """Three classes of width 8 and their counts, each four bytes; of a class it lacks a client sends none."""
    federation = blobs()
    narrow = federation.clients[0].change(lambda _, s: s.take(s.y != 1))
    engine = run(quick("fedproto"), federation.with_clients([narrow, *federation.clients[1:]]), rounds=2)
    for who, held in (("c00", 2), ("c01", 3)):
        sent = engine.record.ledger[-1]["clients"][who]
        assert sent["up"].keys() == sent["down"].keys() == {"proto", "header"}
        assert sent["up"]["proto"] == 4 * (8 * held + 3)
        assert sent["down"]["proto"] == 4 * (8 * 3 + 3)
    assert engine.server.keys() == {"proto"}


def test_features_gather_around_common_prototypes():
    """What alignment is for: clients' own prototypes of a class lie closer together than without."""

    def spread(align):
        method = quick("fedproto", align=align, epochs=3)
        engine = run(method, model=PLAIN, rounds=8)
        site, means = engine.site, []
        for who in engine.federation.ids:
            down = method.broadcast(engine.server, who)
            reply = method.local_update(site.client(who), engine.states[who], down, Work(0, 9, who, 8))
            means.append(reply.upload["proto"]["mean"])
        return float(torch.stack(means).var(0).mean())

    assert spread(1.0) < 0.5 * spread(0.0)


def deep_for_watches(shape, classes, width=8):
    """A network of its own for clients with three channels."""
    if shape[0] == 2:
        return plain_net(shape, classes)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(18, 16), nn.Tanh(), nn.Linear(16, width))
    return Network(layers, nn.Linear(width, classes), width)


def test_clients_of_different_networks_learn_together_if_their_features_are_as_wide():
    phones, watches = blobs(clients=3), blobs(clients=3, shape=(3, 6))
    others = [dataclasses.replace(c, id=f"watch-{c.id}") for c in watches.clients]
    mixed = phones.with_clients([*phones.clients, *others])
    for inference in ("head", "prototype"):
        engine = run(quick("fedproto", inference=inference), mixed, model=ModelSpec.of(deep_for_watches), rounds=6)
        assert {len(m.shapes) for m in engine.site.task.members.values()} == {4, 6}
        assert curve(engine.record.scores, "personal", "accuracy")[-1][1] > 0.6
    wide = ModelSpec.of(partial(deep_for_watches, width=9))
    with pytest.raises(UserError, match=r"fedproto compares.*'c00'.* 8 features .*'watch-c00'.* 9;"):
        run(FedProto(), mixed, model=wide)


def test_a_regression_is_refused():
    values = {"a": {s: (np.zeros((4, 2, 6), "f"), np.linspace(0, 1, 4)) for s in ("train", "test")}}
    with pytest.raises(UserError, match="fedproto works with classes"):
        Site(Federation.from_arrays(values, ["speed"], kind="regression"), FedProto(), PLAIN, seed=0)


def test_the_nearest_prototype_predicts_as_sklearn_does():
    """Prototypes that came down, in training and right after a broadcast alike."""
    method = FedProto(epochs=1, batch=8, inference="prototype")
    site = Site(blobs(), method, NET, seed=0)
    client, down = site.client("c00"), {"proto": target(count=(1.0, 1.0, 1.0))}
    reply = method.local_update(client, {"model": client.initial}, down, Work(0, 2, "c00", 8))
    personal = method.personalise(client, reply.state, down, Work(0, 2, "c00", 8))
    features = client.model.predict(reply.state["model"], client.data.test.x).features.numpy()
    nearest = KNeighborsClassifier(1).fit(down["proto"]["mean"].numpy(), [0, 1, 2])
    for model in (reply.model, personal):
        logits = method.predict(client, model, client.data.test.x)
        assert logits.argmax(1).tolist() == nearest.predict(features).tolist()
        gaps = torch.cdist(torch.from_numpy(features), down["proto"]["mean"]).square()
        torch.testing.assert_close(logits.softmax(1), (-gaps).softmax(1), rtol=1e-4, atol=1e-5)
    assert {n for n in personal if not torch.equal(personal[n], reply.state["model"][n])} == {
        "head.weight",
        "head.bias",
    }


def test_ones_own_prototype_serves_where_there_is_no_global_one_and_unknown_classes_are_never_predicted():
    federation = blobs(clients=1)
    federation = federation.with_clients([federation.clients[0].change(lambda _, s: s.take(s.y != 2))])
    method = FedProto(epochs=1, batch=8, inference="prototype")
    client = Site(federation, method, NET, seed=0).client("c00")
    state, work = {"model": client.initial}, Work(0, 2, "c00", 8)
    features = client.model.predict(client.initial, client.train.x).features
    mean = torch.stack([features[client.train.y == c].mean(0) for c in (0, 1)])
    first = method.personalise(client, state, {}, work)
    torch.testing.assert_close(first["head.weight"][:2], 2 * mean)
    known = target(count=(0.0, 5.0, 0.0))
    later = method.personalise(client, state, {"proto": known}, work)
    torch.testing.assert_close(later["head.weight"][:2], 2 * torch.stack([mean[0], known["mean"][1]]))
    x = 100 * torch.randn(500, 2, 6, generator=torch.Generator().manual_seed(0))
    for model in (first, later):
        logits = method.predict(client, model, x)
        assert set(logits.argmax(1).tolist()) == {0, 1}
        assert logits.isfinite().all()


def test_how_it_predicts_changes_nothing_of_how_it_learns():
    ours, theirs = (run(quick("fedproto", inference=by), rounds=3) for by in ("head", "prototype"))
    assert to_bytes(ours.server) == to_bytes(theirs.server)
    for client in ours.federation.ids:
        assert to_bytes(ours.states[client]) == to_bytes(theirs.states[client])


def test_predicting_by_prototypes_learns_and_resumes_to_the_bit(tmp_path):
    method = quick("fedproto", inference="prototype", weights="uniform")
    settings = {"participation": 0.5, "moment": "received"}
    whole = run(method, rounds=8, **settings)
    assert curve(whole.record.scores, "personal", "accuracy")[-1][1] > 0.6
    run(method, rounds=4, folder=tmp_path, **settings)
    same_bits(whole, run(method, rounds=8, folder=tmp_path, **settings))


def test_a_head_of_several_layers_cannot_be_replaced_by_prototypes():
    def two_layers(shape, classes):
        plain = plain_net(shape, classes)
        return Network(plain.encoder, nn.Sequential(nn.Linear(8, 4), nn.Linear(4, classes)), 8)

    with pytest.raises(UserError, match=r"one linear layer, but that of client 'c00'.*head.0.bias.*inference = 'head'"):
        run(FedProto(inference="prototype"), model=ModelSpec.of(two_layers))
    run(quick("fedproto"), model=ModelSpec.of(two_layers), rounds=1)


def test_a_client_that_only_tests_is_served():
    """Without training samples it has no prototypes of its own."""
    federation = blobs()
    idle = dataclasses.replace(federation.clients[0], train=federation.clients[0].train.take(slice(0)))
    federation = federation.with_clients([idle, *federation.clients[1:]])
    engine = run(quick("fedproto", inference="prototype"), federation, moment="received")
    assert engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]["c00"] is not None
