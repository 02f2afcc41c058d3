"""FedALA: A by hand, when it is learned and on what, and that with A = 1 it is FedAvg."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from conftest import blobs, plain_net, quick, run
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.methods import FedALA, fedala
from fedsense.models.spec import ModelSpec
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def meeting(method, federation=None):
    """A client with a head of its own that meets another model."""
    client = Site(federation or blobs(), method, PLAIN, seed=0).client("c00")
    generator = torch.Generator().manual_seed(3)

    def moved(params):
        return {name: t + 0.3 * torch.randn(t.shape, generator=generator) for name, t in params.items()}

    own = moved({name: t for name, t in client.initial.items() if name.startswith(method._adapted)})
    return client, own, {"model": moved(client.initial)}


@pytest.fixture
def learned(monkeypatch):
    """Notes every training of A: its client and its schedule."""
    noted = []

    def fit(*arguments, **options):
        if options.get("only") == "blend":
            noted.append(arguments)
        return original(*arguments, **options)

    original = fedala.fit
    monkeypatch.setattr(fedala, "fit", fit)
    return noted


@pytest.mark.parametrize("adapts", ["head", "all"])
def test_where_a_stays_one_it_is_fedavg(adapts):
    ours, theirs = run(quick("fedala", blend_lr=0.0, adapts=adapts)), run(quick("fedavg"))
    assert all(torch.equal(t, theirs.server["model"][n]) for n, t in ours.server["model"].items())
    assert ours.record.scores == theirs.record.scores
    assert all((a == 1).all() for a in ours.states["c00"]["blend"].values())


@pytest.mark.parametrize("adapts", ["head", "all"])
def test_a_step_of_a_by_hand(adapts):
    """A ← [A − η ∇_Θ L ⊙ (w − w_i)] within 0 and 1, at Θ = w_i + (w − w_i) ⊙ A (Eq. 6); here over all data at once."""
    method = FedALA(batch=64, blend_lr=20.0, share=1.0, adapts=adapts)
    client, own, down = meeting(method)
    before = {name: torch.full_like(t, 0.5) for name, t in own.items()}
    start, after = method._start(client, {"own": own, "blend": before}, down, Work(0, 3, "c00", 64))
    net, w = plain_net((2, 6), 3), down["model"]
    net.load_state_dict(w | {name: t + (w[name] - t) * 0.5 for name, t in own.items()})
    F.cross_entropy(net(client.train.x).logits, client.train.y).backward()
    inside = 0
    for name, p in net.named_parameters():
        if name not in own:
            assert torch.equal(start[name], w[name]), name  # lower layers take w
            continue
        want = (0.5 - 20.0 * p.grad * (w[name] - own[name])).clamp(0, 1)
        torch.testing.assert_close(after[name], want, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(start[name], own[name] + (w[name] - own[name]) * want, rtol=1e-4, atol=1e-5)
        inside += int(((want > 0) & (want < 1)).sum())
        assert (want == 0).any() or (want == 1).any() or adapts == "all"  # some were put back
    assert inside > 3


def test_a_finds_the_better_of_two_heads():
    """Where w's head names the classes in another order, A falls, and the start is better than w."""
    method = FedALA(batch=8)
    engine = run(quick("local", epochs=10), model=PLAIN)
    client, good = engine.site.client("c00"), engine.personal_parameters("c00")
    wrong = good | {name: t.roll(1, 0) for name, t in good.items() if name.startswith("head")}
    own = {name: t for name, t in good.items() if name.startswith("head")}
    start, blend = method._start(client, {"own": own}, {"model": wrong}, Work(0, 2, "c00", 8))

    def loss(params):
        return float(F.cross_entropy(client.model.predict(params, client.train.x).logits, client.train.y))

    assert loss(start) < 0.1 * loss(wrong)
    moves = (good["head.weight"] - wrong["head.weight"]).abs() > 0.1
    assert blend["head.weight"][moves].mean() < 0.5


def test_when_a_is_learned(learned):
    """Not in the first round, then until the losses settle or as long as it may, and one epoch in each round after."""
    federation = blobs(clients=1)
    for fields, first in (({"settled": 1e9}, 10), ({"settled": 0.0, "most_epochs": 13}, 13)):
        counts = []
        for rounds in (1, 2, 3, 4):
            learned.clear()
            run(quick("fedala", **fields), federation, rounds=rounds, executor="serial", views=("global",))
            counts.append(len(learned))
        assert counts == [0, first, first + 1, first + 2]
    assert {arguments[3].count for arguments in learned} == {1}


def test_a_is_learned_until_the_last_ten_losses_are_close(learned):
    """The loss of the start each A gives, over all data, after each epoch; the first ten that are close end it."""
    method = FedALA(batch=8, share=1.0, settled=0.02)
    client, own, down = meeting(method)
    _, last = method._start(client, {"own": own}, down, Work(0, 2, "c00", 8))
    begun = [{name: arguments[1][f"blend.{name}"] for name in own} for arguments in learned]
    each = [*begun[1:], last]
    losses = []
    for blend in each:
        start = down["model"] | {n: w + (down["model"][n] - w) * blend[n] for n, w in own.items()}
        losses.append(float(F.cross_entropy(client.model.predict(start, client.train.x).logits, client.train.y)))
    spread = [float(np.std(losses[i : i + 10])) for i in range(len(losses) - 9)]
    assert len(spread) > 1
    assert spread[-1] < 0.02
    assert min(spread[:-1]) >= 0.02


def test_a_is_learned_on_a_share_of_the_data(learned):
    method = FedALA(batch=8, share=0.5, most_epochs=1)
    client, own, down = meeting(method)
    for round in (2, 3):
        method._start(client, {"own": own}, down, Work(0, round, "c00", 8))
    one, two = (arguments[2].train for arguments in learned)
    assert len(one) == len(two) == 12
    assert not torch.equal(one.x, two.x)  # another half every time
    rows = {tuple(row.tolist()) for row in client.train.x.flatten(1)}
    assert {tuple(row.tolist()) for row in one.x.flatten(1)} <= rows
    assert client.samples == 24


def test_what_would_be_received_is_the_start_made_of_it():
    engine = run(quick("fedala"), rounds=3, moment="received")
    client, down = engine.site.client("c00"), engine.method.broadcast(engine.server, "c00")
    got = engine.personal_parameters("c00")
    start, blend = engine.method._start(client, engine.states["c00"], down, Work(0, 3, "c00", 8))
    assert all(torch.equal(t, start[n]) for n, t in got.items())
    assert any((a < 1).any() for a in blend.values())
    assert all(torch.equal(t, engine.server["model"][n]) for n, t in got.items() if not n.startswith("head"))
    assert not torch.equal(got["head.weight"], engine.server["model"]["head.weight"])


def test_a_client_keeps_its_head_and_a():
    engine = run(quick("fedala"), rounds=3)
    assert {group: set(params) for group, params in engine.states["c00"].items()} == {
        "own": {"head.weight", "head.bias"},
        "blend": {"head.weight", "head.bias"},
    }
    assert all(((a >= 0) & (a <= 1)).all() for a in engine.states["c00"]["blend"].values())


def test_shares_that_are_none_are_refused():
    for share in (0.0, 1.5):
        with pytest.raises(UserError, match="share is"):
            FedALA(share=share)
