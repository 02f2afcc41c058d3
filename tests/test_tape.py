"""Tapes: what is played is what would have been computed, to the bit, or it is not played at all."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import blobs, plain_net, quick, run, small_net
from fedsense.client import Client
from fedsense.models.hart import LightConvolution
from fedsense.models.network import Dropout, Model, Network
from fedsense.ops import classify, cross_entropy
from fedsense.optim import sgd
from fedsense.replay import Recorder, _played
from fedsense.tape import Tape
from fedsense.training import fit
from fedsense.work import Work


@pytest.fixture(autouse=True)
def _no_tapes():
    Recorder._tapes.clear()
    Recorder._unused.clear()


def conv_net(input_shape, classes):
    encoder = nn.Sequential(nn.Conv1d(2, 4, 2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten())
    return Network(encoder, nn.Linear(8, classes), 8)


def norm_net(input_shape, classes):
    encoder = nn.Sequential(nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten())
    return Network(encoder, nn.Linear(20, classes), 20)


def dropout_net(input_shape, classes):
    """Masks are functions of a step's seed, and so others in each."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), Dropout(0.5), nn.Tanh(), Dropout(0.2))
    return Network(encoder, nn.Linear(8, classes), 8)


def picking_net(input_shape, classes):
    """Picks by places of which some are left empty, forwards and backwards: kernels[:, places]."""
    return Network(nn.Sequential(LightConvolution(3, heads=2), nn.Flatten()), nn.Linear(12, classes), 12)


def client_of(builder, **data):
    federation = blobs(**data)
    own = federation.clients[0]
    model = Model(builder(own.input_shape, 3))
    return Client(own.id, own, model, federation.task, model.init(0), torch.device("cpu"))


def trained(client, loss=None, epochs=4, batch=8):
    return fit(
        loss or classify(client), client.initial, client, Work(0, 1, client.id, batch).epochs(epochs), sgd(0.1, 0.9)
    )


@pytest.mark.parametrize("builder", [plain_net, small_net, conv_net, norm_net, dropout_net, picking_net])
@pytest.mark.parametrize("train", [24, 21])  # minibatches of one size, and of two
def test_training_is_the_same_with_and_without(builder, train, monkeypatch):
    client = client_of(builder, train=train)
    plays = []
    monkeypatch.setattr("fedsense.replay._played", lambda *a: plays.append(1) or _played(*a))
    with_tapes = trained(client)
    assert len(plays) >= 8, "they were used"
    monkeypatch.setattr("fedsense.replay.WORTH_A_TAPE", 10**9)
    Recorder._tapes.clear()
    without = trained(client)
    assert len(plays) <= 10, "none more"
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


def listing(client):
    def loss(params, batch):
        return cross_entropy(client.model(params, batch).logits, batch) * len(set(batch.y.tolist()))

    return loss


def changing_later(client):
    calls = []

    def loss(params, batch):
        calls.append(1)
        return cross_entropy(client.model(params, batch).logits, batch) * (1 if len(calls) < 8 else 3)

    return loss


def writing(client):
    def loss(params, batch):
        return cross_entropy(client.model(params, batch._replace(x=batch.x.mul_(2))).logits, batch)

    return loss


def remembering(client):
    mean = torch.zeros(3)

    def loss(params, batch):
        logits = client.model(params, batch).logits
        mean.mul_(0.9).add_(logits.detach().mean(0))
        return cross_entropy(logits - mean, batch)

    return loss


@pytest.mark.parametrize("kind", [counting, looking, asking, drawing, listing, changing_later, writing, remembering])
@pytest.mark.parametrize("builder", [plain_net, small_net])
def test_a_loss_that_cannot_be_played_is_computed(kind, builder, monkeypatch):
    """One that counts its calls, looks at values, asks its client, draws random numbers, writes where it should not."""
    client = client_of(builder)
    with_tapes = trained(client, kind(client))
    monkeypatch.setattr("fedsense.replay.WORTH_A_TAPE", 10**9)
    Recorder._tapes.clear()
    without = trained(client, kind(client))
    for name, tensor in without.params.items():
        assert torch.equal(with_tapes.params[name], tensor), name


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
    (again,) = tape.ready()([x, y])
    assert again.tolist() == [(10.0 + 1) ** 2 + 4], "1·10 + 1 = 11, squared 121, plus 1 + 3"
    assert x.tolist() == [4.0], "what is changed in place is changed when it is played"


class Heard(TorchDispatchMode):
    """The names of the operations that are done."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_what_follows_from_what_stays_is_done_once():
    """(W − shift·2)ᵀ x with W a parameter that changes in place: the shift's double and Wᵀ as a view are made once."""
    x, w, shift = torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0])
    tape = Tape([x], [w], [shift])
    with tape:
        out = (w.t() - shift * 2) @ x + torch.ones_like(x)
    assert tape.finish([out])
    w, other = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.5])
    with Heard() as heard:
        play = tape.ready([w], [other])
    assert heard.names == ["t", "mul"]
    w[0, 1] = 5.0  # W = [[1, 5], [0, 1]], (Wᵀ − 1) x = [[0, −1], [4, 0]] x
    y = torch.tensor([3.0, 1.0])
    with Heard() as heard:
        (first,), (second,) = play([x]), play([y])
    assert heard.names == ["sub", "mv", "add"] * 2
    assert first.tolist() == [0 * 1 - 1 * 2 + 1, 4 * 1 + 0 * 2 + 1]
    assert second.tolist() == [0 * 3 - 1 * 1 + 1, 4 * 3 + 0 * 1 + 1]


def test_what_is_written_into_is_made_every_time():
    x, scale = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    tape = Tape([x], [], [scale])
    with tape:
        total = torch.zeros_like(x)
        double = scale * 2
        total.add_(x).mul_(double)
        result = scale * 5  # whoever gets it may change it
    assert tape.finish([total, result])
    play = tape.ready([], [scale])
    for _ in range(2):
        again, five = play([x])
        assert again.tolist() == [6.0, 12.0]
        assert five.tolist() == [15.0]
        again.zero_(), five.zero_()


def test_rows_looked_up_by_number_are_played_but_not_those_of_a_mask():
    table, rows = torch.arange(6.0).view(3, 2), torch.tensor([2, 0])
    tape = Tape([rows], [table])
    with tape:
        out = table[rows] * 2
    assert tape.finish([out])
    assert tape.ready([table])([torch.tensor([1, 1])])[0].tolist() == [[4.0, 6.0], [4.0, 6.0]]
    tape = Tape([rows], [table])
    with tape:
        out = table[table.sum(1) > 2]  # as many as there are
    assert not tape.finish([out])


def test_results_are_never_made_once():
    x, scale = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    tape = Tape([x], [], [scale])
    with tape:
        out = x * scale
        five = (scale * 5).view(1, 1)
    assert tape.finish([out, five])
    play = tape.ready([], [scale])
    for _ in range(2):
        assert play([x])[1].mul_(2).tolist() == [[30.0]]


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

    records = []
    record = Recorder._record
    monkeypatch.setattr(Recorder, "_record", lambda *a: records.append(1) or record(*a))
    for factor in range(1, 20):  # a number that changes every round: no tape is ever used again
        trained(client, scaled(float(factor)))
    assert len(records) == 8


def lstm_net(input_shape, classes):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(6, 5, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0][:, -1]

    return Network(Last(), nn.Linear(5, classes), 5)


def test_recurrent_networks_train():
    done = trained(client_of(lstm_net))
    assert done.steps == 12
    assert done.loss == done.loss


FACTOR = 0.1


def test_a_tape_is_not_used_for_another_loss_of_the_same_code(monkeypatch):
    """Another value in the closure, in a dictionary of tensors, or as a global; one tensor under two names."""
    client = client_of(plain_net)
    weight, held = 0.1, {"w": torch.tensor(0.1)}

    def closed(params, batch):
        return weight * cross_entropy(client.model(params, batch).logits, batch)

    def held_in(params, batch):
        return held["w"] * cross_entropy(client.model(params, batch).logits, batch)

    def read(params, batch):
        return FACTOR * cross_entropy(client.model(params, batch).logits, batch)

    before = [trained(client, loss).params["head.weight"] for loss in (closed, held_in, read)]
    weight, held["w"] = 5.0, torch.tensor(5.0)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    after = [trained(client, loss).params["head.weight"] for loss in (closed, held_in, read)]
    assert all(torch.equal(a, after[0]) for a in after[1:])
    assert all(torch.equal(a, before[0]) for a in before[1:])
    assert not torch.allclose(before[0], after[0])

    def apart(params, batch):
        gap = (batch.given["a"] - 2 * batch.given["b"]).sum()
        return cross_entropy(client.model(params, batch).logits, batch) * gap

    one, two = torch.tensor([3.0]), torch.tensor([1.0])
    schedule = Work(0, 1, client.id, 8).epochs(4)
    fit(apart, client.initial, client, schedule, sgd(0.1), given={"a": two, "b": two})
    got = fit(apart, client.initial, client, schedule, sgd(0.1), given={"a": one, "b": two})
    plain = fit(classify(client), client.initial, client, schedule, sgd(0.1))
    torch.testing.assert_close(got.params["head.weight"], plain.params["head.weight"], rtol=1e-5, atol=1e-6)


def test_what_a_loss_changes_in_x_is_seen_by_a_resting_encoder():
    client = client_of(plain_net)

    def loss(params, batch):
        return cross_entropy(client.model(params, batch._replace(x=-batch.x)).logits, batch)

    epochs = Work(0, 1, client.id, 8).epochs(2)
    done = fit(loss, client.initial, client, epochs, sgd(0.1), only="head")
    plain = fit(classify(client), client.initial, client, epochs, sgd(0.1), only="head")
    assert not torch.allclose(done.params["head.weight"], plain.params["head.weight"], atol=1e-3)


def test_batchnorm_side_by_side_is_played():
    """Its statistics are changed in place, and read again in the same step."""
    run(quick("fedavg", epochs=4), blobs(clients=4), executor="cohort", rounds=2)
    assert Recorder._tapes
    assert {tape.why for tape in Recorder._tapes.values()} == {""}


def test_what_is_given_under_another_name_is_another_step():
    client = client_of(plain_net)

    def loss(params, batch):
        ((name, weight),) = batch.given.items()
        push = (1 if name == "pull" else -1) * weight.sum() * params["head.bias"].sum()
        return cross_entropy(client.model(params, batch).logits, batch) + push

    def fitted(name):
        work = Work(0, 1, client.id, 8).epochs(4)
        return fit(loss, client.initial, client, work, sgd(0.1), given={name: torch.ones(1)}).params["head.bias"]

    assert fitted("pull").sum() < 0 < fitted("push").sum()
