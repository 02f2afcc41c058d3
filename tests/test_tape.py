"""Tapes: what is played is what would have been computed, to the bit, or it is not played at all."""

import pytest
import torch
from torch import nn

from conftest import blobs, plain_net, small_net
from fedsense.client import Client
from fedsense.models.network import Dropout, Model, Network
from fedsense.ops import classify, cross_entropy
from fedsense.optim import sgd
from fedsense.replay import Recorder
from fedsense.tape import Tape
from fedsense.training import fit
from fedsense.work import Work


@pytest.fixture(autouse=True)
def _no_tapes():
    Recorder._tapes.clear()


def conv_net(input_shape, classes):
    encoder = nn.Sequential(nn.Conv1d(2, 4, 2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten())
    return Network(encoder, nn.Linear(8, classes), 8)


def norm_net(input_shape, classes):
    encoder = nn.Sequential(nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten())
    return Network(encoder, nn.Linear(20, classes), 20)


def client_of(builder, **data):
    federation = blobs(**data)
    own = federation.clients[0]
    model = Model(builder(own.input_shape, 3))
    return Client(own.id, own, model, federation.task, model.init(0), torch.device("cpu"))


def trained(client, loss=None, epochs=4, batch=8):
    return fit(
        loss or classify(client), client.initial, client, Work(0, 1, client.id, batch).epochs(epochs), sgd(0.1, 0.9)
    )


@pytest.mark.parametrize("builder", [plain_net, small_net, conv_net, norm_net])
@pytest.mark.parametrize("train", [24, 21])  # minibatches of one size, and of two
def test_training_is_the_same_with_and_without(builder, train, monkeypatch):
    client = client_of(builder, train=train)
    plays = []
    play = Tape.play
    monkeypatch.setattr(Tape, "play", lambda tape, inputs: plays.append(1) or play(tape, inputs))
    with_tapes = trained(client)
    assert len(plays) >= 8, "they were used"
    monkeypatch.setattr("fedsense.replay.WORTH_A_TAPE", 10**9)
    Recorder._tapes.clear()
    without = trained(client)
    assert len(plays) < 13
    for name, tensor in without.params.items():
        assert torch.equal(with_tapes.params[name], tensor), name
    assert with_tapes.loss == without.loss


def test_a_tape_serves_other_clients_and_rounds(monkeypatch):
    first, second = client_of(plain_net), client_of(plain_net, seed=5)
    second = Client(second.id, second.data, first.model, first.task, second.initial, first.device)
    trained(first)
    monkeypatch.setattr(Recorder, "_record", lambda *_: pytest.fail("it was recorded already"))
    trained(second)


def counting(client):
    calls = []

    def loss(params, batch):
        calls.append(1)
        return len(calls) * cross_entropy(client.model(params, batch).logits, batch)

    return loss


def looking(client):
    def loss(params, batch):
        value = cross_entropy(client.model(params, batch).logits, batch)
        return 2 * value if value.item() > 0.9 else value

    return loss


def asking(client):
    return lambda params, batch: client.samples * cross_entropy(client.model(params, batch).logits, batch) / 24


def drawing(client):
    def loss(params, batch):
        torch.manual_seed(7)
        return cross_entropy(client.model(params, batch).logits + 0.1 * torch.randn(len(batch.y), 3), batch)

    return loss


@pytest.mark.parametrize("kind", [counting, looking, asking, drawing])
@pytest.mark.parametrize("builder", [plain_net, small_net])
def test_a_loss_that_cannot_be_played_is_computed(kind, builder, monkeypatch):
    """One that counts its calls, looks at values, asks its client, or draws random numbers."""
    client = client_of(builder)
    with_tapes = trained(client, kind(client))
    monkeypatch.setattr("fedsense.replay.WORTH_A_TAPE", 10**9)
    Recorder._tapes.clear()
    without = trained(client, kind(client))
    for name, tensor in without.params.items():
        assert torch.equal(with_tapes.params[name], tensor), name


def test_dropout_is_not_played():
    def builder(input_shape, classes):
        return Network(nn.Sequential(nn.Flatten(), Dropout(0.5)), nn.Linear(12, classes), 12)

    trained(client_of(builder))
    ((taped,),) = Recorder._tapes.values()
    assert not taped.sound
    assert "reads a value" in taped.tape.why


def test_by_hand():
    """(a·b + a)² with a changed in place on the way: 2·3 + 2 = 8, squared 64, then plus a = 5: 69."""
    a, b = torch.tensor([2.0]), torch.tensor([3.0])
    tape = Tape([a, b])
    with tape:
        unused = a * 100
        c = a * b + a
        a.add_(3)
        parts = torch.stack([c.view(1) ** 2, a.detach()])
        total = parts.sum(0)
    assert tape.finish([total])
    assert total.tolist() == [69.0]
    assert unused.tolist() == [200.0]
    x, y = torch.tensor([1.0]), torch.tensor([10.0])
    (again,) = tape.play([x, y])
    assert again.tolist() == [(10.0 + 1) ** 2 + 4], "1·10 + 1 = 11, squared 121, plus 1 + 3"
    assert x.tolist() == [4.0], "what is changed in place is changed when it is played"


def test_what_needs_much_memory_is_not_recorded(monkeypatch):
    monkeypatch.setattr("fedsense.tape.LARGEST", 1000)
    a = torch.ones(500)
    tape = Tape([a])
    with tape:
        b = a + 1
    assert not tape.finish([b])
    assert "memory" in tape.why


def test_few_tapes_are_kept(monkeypatch):
    monkeypatch.setattr("fedsense.replay.KEPT_TAPES", 2)
    client = client_of(plain_net)
    for batch in (4, 6, 8):
        trained(client, batch=batch)
    assert len(Recorder._tapes) == 2

    def scaled(factor):
        return lambda params, batch: factor * cross_entropy(client.model(params, batch).logits, batch)

    for factor in range(1, 9):  # a number that changes every round
        trained(client, scaled(float(factor)))
    assert max(map(len, Recorder._tapes.values())) <= 4
