"""LG-FedAvg: encoders stay, heads are averaged, and both train at once."""

import dataclasses

import pytest
import torch
from torch import nn

from conftest import blobs, quick, run
from fedsense.bundle import part
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import LGFedAvg
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec


def mixed(shape=(3, 6)):
    """One client with signals of two channels, and one with others."""
    one, two = blobs(clients=2), blobs(clients=1, shape=shape)
    return Federation("mixed", one.task, (*one.clients, dataclasses.replace(two.clients[0], id="watch")))


def narrower_for_watches(input_shape, classes):
    width = 8 if input_shape == (2, 6) else 5
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1], width), nn.Tanh())
    return Network(encoder, nn.Linear(width, classes), features=width)


def test_encoders_stay_at_home_and_the_head_is_one():
    engine = run(quick("lg-fedavg"), moment="received")
    a, b = (engine.personal_parameters(c) for c in ("c00", "c01"))
    assert all(torch.equal(t, b[n]) for n, t in part(a, "head").items())
    for name in ("adapter.1.weight", "encoder.0.weight", "encoder.1.running_mean"):
        assert not torch.equal(a[name], b[name]), name
    assert engine.method.global_model(engine.server) is None


def test_all_parts_train_at_once_as_in_fedavg():
    """From one start the first local updates are FedAvg's, and the head is FedAvg's head."""
    ours, theirs = run(quick("lg-fedavg"), rounds=1), run(quick("fedavg"), rounds=1)
    for client in ours.federation.ids:
        a, b = ours.personal_parameters(client), theirs.personal_parameters(client)
        assert all(torch.equal(t, b[n]) for n, t in a.items())
    assert all(torch.equal(t, theirs.server["model"][n]) for n, t in ours.server["head"].items())


def test_the_head_is_averaged_by_samples():
    """(1·2 + 3·6)/4 = 5."""
    sent = {
        c: {"head": {"head.w": torch.tensor([w])}, "size": {"n": torch.tensor(n)}}
        for c, w, n in (("a", 2.0, 1.0), ("b", 6.0, 3.0))
    }
    assert LGFedAvg().aggregate({}, sent)["head"]["head.w"].tolist() == [5.0]


def test_only_the_head_travels():
    line = run(quick("lg-fedavg"), rounds=1).record.ledger[0]["clients"]["c00"]
    assert line["up"]["head"] == line["down"]["head"] == 4 * (3 * 8 + 3)
    assert set(line["up"]) == {"head", "size", "header"}


def test_encoders_may_differ_and_heads_may_not():
    engine = run(quick("lg-fedavg"), mixed(), rounds=2)
    assert engine.states["watch"]["encoder"]["adapter.1.weight"].shape == (8, 18)
    assert engine.states["c00"]["encoder"]["adapter.1.weight"].shape == (8, 12)
    expected = r"lg-fedavg shares 'head.weight', but client 'c00' .*\[3, 8\] and client 'watch' .*\[3, 5\]; .*one width"
    with pytest.raises(UserError, match=expected):
        run(quick("lg-fedavg"), mixed(), model=ModelSpec.of(narrower_for_watches))
