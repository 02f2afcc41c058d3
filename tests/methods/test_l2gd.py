"""L2GD on two clients whose losses are parabolas: by hand, and against the minimum of the mixture."""

import numpy as np
import pytest
import torch
from torch import nn

from conftest import blobs, plain_net, quick, run
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import Settings
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import L2GD
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.work import Work


def one_weight(input_shape, classes):
    return Network(nn.Flatten(), nn.Linear(1, 1, bias=False), features=1)


WEIGHT = ModelSpec.of(one_weight)
GOALS = {"a": 0.0, "b": 4.0}  # f_i(w) = (w − goal)², as x is 1


def parabolas(samples=4):
    ones = np.ones((samples, 1), np.float32)
    split = {
        c: {"train": (ones, np.full(samples, goal)), "test": (ones, [goal] * samples)} for c, goal in GOALS.items()
    }
    return Federation.from_arrays(split, classes=["level"], kind="regression")


def weights(method, rounds):
    """w_a and w_b after every round, without what an engine does beside."""
    site = Site(parabolas(), method, WEIGHT, seed=0)
    clients, server, states = {c: site.client(c) for c in GOALS}, site.first_server, {c: {} for c in GOALS}
    seen = []
    for round in range(1, rounds + 1):
        uploads = {}
        for c, client in clients.items():
            down = method.broadcast(server, c)
            reply = method.local_update(client, states[c], down, Work(0, round, c, method.batch))
            states[c], uploads[c] = reply.state, reply.upload
        server = method.aggregate(server, uploads)
        seen.append([float(states[c]["own"]["head.weight"]) for c in GOALS])
    return np.array(seen), float(clients["a"].initial["head.weight"])


def minimum(pull):
    """2(w_i − goal_i) + λ(w_i − w̄) = 0, so that w̄ = 2 and w_i = (2 goal_i + 2λ) / (2 + λ)."""
    return np.array([(2 * goal + 2 * pull) / (2 + pull) for goal in GOALS.values()])


def test_rounds_by_hand():
    """p = 1, λ = 2, η = 0.1: a gradient step x − 0.1·2(x − goal), and x − 0.2(x − x̄) before the next."""
    got, first = weights(L2GD(lr=0.1, momentum=0.0, epochs=1, batch=8, pull=2.0, chance=1.0), 4)
    x, goals = np.array([first, first]), np.array(list(GOALS.values()))
    for round in range(4):
        if round:
            x = x - 0.2 * (x - x.mean())
        x = x - 0.1 * 2 * (x - goals)
        np.testing.assert_allclose(got[round], x, rtol=1e-5)


def test_the_coin_makes_averaging_steps_longer_and_rarer():
    """p = 1/2: steps are 0.4 instead of 0.2, after the rounds in which the coin says so."""
    method = L2GD(lr=0.1, momentum=0.0, epochs=1, batch=8, pull=2.0, chance=0.5)
    got, first = weights(method, 8)
    fell = [method.averages(0, round) for round in range(1, 9)]
    assert len(set(fell)) == 2
    x, goals = np.array([first, first]), np.array(list(GOALS.values()))
    for round in range(8):
        if round and fell[round - 1]:
            x = x - 0.4 * (x - x.mean())
        x = x - 0.1 * 2 * (x - goals)
        np.testing.assert_allclose(got[round], x, rtol=1e-5)


@pytest.mark.parametrize("pull", [0.5, 2.0])
@pytest.mark.parametrize(
    "fields",
    [
        {"lr": 0.01, "chance": 1.0, "epochs": 1},
        {"lr": 0.01, "chance": 0.3, "epochs": 1},
        {"lr": 0.002, "chance": 0.5, "epochs": 4},  # several steps a round
        {"lr": 0.001, "chance": 1.0, "epochs": 6, "momentum": 0.6},
    ],
)
def test_it_settles_at_the_minimum_of_the_mixture(fields, pull):
    got, _ = weights(L2GD(**{"momentum": 0.0, "batch": 8, "pull": pull, **fields}), 500)
    np.testing.assert_allclose(got[250:].mean(0), minimum(pull), atol=0.1)
    far = minimum(0.5 if pull == 2.0 else 2.0)
    assert np.abs(got[250:].mean(0) - far).min() > 0.3  # and not at another


def test_momentum_counts_as_the_plain_steps_that_go_as_far():
    """Three steps with m = 1/2 go 1 + 1.5 + 1.75 = 4.25 plain steps; η λ/p = 0.01·2/0.5 = 0.04."""
    client = Site(parabolas(), L2GD(), WEIGHT, seed=0).client("a")
    fields = {"lr": 0.01, "epochs": 3, "batch": 8, "pull": 2.0, "chance": 0.5}
    assert L2GD(momentum=0.5, **fields).step(client) == pytest.approx(4.25 * 0.04)
    assert L2GD(momentum=0.0, **fields).step(client) == pytest.approx(3 * 0.04)
    assert L2GD(momentum=1.0, **fields).step(client) == pytest.approx((1 + 2 + 3) * 0.04)
    assert L2GD(momentum=0.9, optimiser="adam", **fields).step(client) == pytest.approx(3 * 0.04)
    assert L2GD(momentum=0.0, **{**fields, "pull": 1e3}).step(client) == 1.0


def test_without_pull_it_is_local():
    ours, theirs = run(quick("l2gd", pull=0.0)), run(quick("local"))
    for client in ours.federation.ids:
        a, b = ours.personal_parameters(client), theirs.personal_parameters(client)
        assert all(torch.equal(t, b[n]) for n, t in a.items())


def test_with_all_the_pull_and_no_chance_it_is_fedavg_of_equals():
    alike = blobs()
    alike = alike.with_clients(c.change(lambda s, d: d.take(slice(24)) if s == "train" else d) for c in alike)
    ours, theirs = run(quick("l2gd", pull=1e6, chance=1.0), alike), run(quick("fedavg"), alike)
    assert all(torch.equal(t, theirs.server["model"][n]) for n, t in ours.server["model"].items())
    assert ours.record.scores == theirs.record.scores


def test_nothing_travels_in_rounds_that_do_not_average():
    engine = run(quick("l2gd", chance=0.4, epochs=1), rounds=12)
    fell = [engine.method.averages(0, round) for round in range(1, 13)]
    assert 2 <= sum(fell) <= 9
    sent = [{bool(c["up"]) for c in line["clients"].values()} for line in engine.record.ledger]
    assert sent == [{heads} for heads in fell]
    down = [{bool(c["down"]) for c in line["clients"].values()} for line in engine.record.ledger]
    assert down == [{True}, *({heads} for heads in fell[:-1])]  # in round one, where all start


def test_the_coin_falls_as_often_as_it_should():
    heads = sum(L2GD(chance=0.3).averages(7, round) for round in range(2000))
    assert abs(heads / 2000 - 0.3) < 4 * (0.3 * 0.7 / 2000) ** 0.5


def test_who_sits_out_moves_when_it_is_back_and_only_once():
    method = L2GD(chance=0.5)
    server = {"model": {"w": torch.zeros(1)}, "seen": {}}
    server = method.aggregate(
        server, {"a": {"model": {"w": torch.tensor([2.0])}}, "b": {"model": {"w": torch.ones(1)}}}
    )
    assert server["model"]["w"].tolist() == [1.5]
    server = method.aggregate(server, {"a": {}})  # a was there, and has it
    assert method.broadcast(server, "a") == {}
    assert method.broadcast(server, "b")["model"]["w"].tolist() == [1.5]
    assert method.broadcast(server, "a newcomer")["model"]["w"].tolist() == [1.5]
    server = method.aggregate(server, {"b": {"model": {"w": torch.ones(1)}}})
    assert method.broadcast(server, "a")["model"]["w"].tolist() == [1.0]


@pytest.mark.parametrize("moment", ["trained", "received"])
def test_what_is_scored_is_as_the_moment_says(moment):
    """After its local work x_i, or x_i after the averaging step that followed."""
    engine = Engine(
        blobs(),
        quick("l2gd", chance=1.0, pull=0.2),
        ModelSpec.of(plain_net),
        Settings(rounds=2, workers=1, moment=moment),
    )
    engine.run()
    got, own, mean = engine.personal_parameters("c01"), engine.states["c01"]["own"], engine.server["model"]
    far = 0.0 if moment == "trained" else engine.method.step(engine.site.client("c01"))
    assert moment == "trained" or 0.05 < far < 1
    for name, x in own.items():
        torch.testing.assert_close(got[name], x + far * (mean[name] - x))


@pytest.mark.parametrize(("chance", "said"), [(0.0, "must be positive"), (1.5, "probability")])
def test_a_chance_that_is_none_is_refused(chance, said):
    with pytest.raises(UserError, match=said):
        L2GD(chance=chance)
