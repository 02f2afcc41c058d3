"""What every method must pass. A new method is on this list by being in the registry."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from conftest import NET, blobs, quick, run, same_bits
from fedsense.bundle import flatten, payload, to_bytes
from fedsense.engine.executors import Serial
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import Settings
from fedsense.engine.site import Call, Site
from fedsense.errors import UserError
from fedsense.evaluation.summary import curve
from fedsense.federation import Federation
from fedsense.method import GROUPS
from fedsense.methods import METHODS, FedAvg, FedProx
from fedsense.work import Work

each_method = pytest.mark.parametrize("name", sorted(METHODS))


@each_method
def test_learns(name):
    engine = run(quick(name, lr=0.02), rounds=8)  # larger steps make BatchNorm jump in minibatches of a few samples
    view = "personal"
    first, last = (curve(engine.record.scores, view, "accuracy")[i][1] for i in (0, -1))
    assert last > 0.6 > 1 / 3, f"chance is 1/3, {name} reached {last}"
    assert last >= first - 0.1  # of 80 samples in all: within two standard errors


@each_method
def test_any_number_of_workers_gives_the_same_bits(name):
    for fields, counts in (({}, (3,)), ({"clip": 0.1}, (2,))):
        serial = run(quick(name, **fields), participation=0.7)
        for workers in counts:
            same_bits(serial, run(quick(name, **fields), participation=0.7, workers=workers))


@pytest.mark.parametrize("name", [n for n in sorted(METHODS) if not METHODS[n].pools])  # the pool has an order
def test_the_order_of_the_roster_does_not_matter(name):
    federation = blobs()
    turned = federation.with_clients(reversed(federation.clients))
    same_bits(run(quick(name), federation), run(quick(name), turned))


@each_method
def test_another_seed_gives_another_result(name):
    a, b = run(quick(name), seed=0), run(quick(name), seed=1)
    assert a.personal_parameters("c00")["head.weight"].tolist() != b.personal_parameters("c00")["head.weight"].tolist()


@each_method
@pytest.mark.parametrize("moment", ["trained", "received"])
def test_resumed_equals_uninterrupted_to_the_bit(name, moment, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsense.engine.rounds.CHECKPOINT_SHARE", 1e9)  # a checkpoint every round
    settings = {"rounds": 5, "participation": 0.5, "every": 2, "moment": moment}
    whole = run(quick(name), folder=tmp_path / "whole", **settings)

    class Crash(BaseException):
        """Not an error the engine would explain."""

    stopped = Engine(
        blobs(), quick(name), NET, Settings(workers=1, metrics=("accuracy",), **settings), tmp_path / "cut"
    )
    aggregate, calls = stopped.method.aggregate, []

    def crash_in_third_round(server, uploads):
        calls.append(1)
        if len(calls) == 3:
            raise Crash
        return aggregate(server, uploads)

    object.__setattr__(stopped.method, "aggregate", crash_in_third_round)
    with pytest.raises(Crash):
        stopped.run()
    resumed = run(quick(name), folder=tmp_path / "cut", **settings)
    same_bits(whole, resumed)
    assert (tmp_path / "whole" / "scores.jsonl").read_bytes() == (tmp_path / "cut" / "scores.jsonl").read_bytes()
    assert [line["round"] for line in resumed.record.ledger if line["round"]] == [1, 2, 3, 4, 5]


@each_method
def test_inputs_are_not_written_into(name):
    site = Site(blobs(), quick(name), NET, seed=0, views=("personal",), metrics=("accuracy",))
    who = site.trainees.ids[0]
    client = site.client(who)
    down = site.method.broadcast(site.first_server, who)
    state = site.method.init_client(client, client.initial, down, Work(0, 0, who, 8))
    before = [to_bytes(down), to_bytes(state), to_bytes({"initial": client.initial}), client.train.x.clone()]
    reply = site.method.local_update(client, state, down, Work(0, 1, who, 8))
    site.method.personalise(client, reply.state, down, Work(0, 2, who, 8))
    uploads = {who: reply.upload}
    sent = to_bytes(reply.upload)
    site.method.aggregate(site.first_server, uploads)
    assert before[0] == to_bytes(down)
    assert before[1] == to_bytes(state)
    assert before[2] == to_bytes({"initial": client.initial})
    assert torch.equal(before[3], client.train.x)
    assert sent == to_bytes(uploads[who])


@each_method
def test_local_updates_are_pure(name):
    """The same call gives the same answer, whatever was asked before, and reads no global generator."""
    site = Site(blobs(), quick(name), NET, seed=0)
    who = site.trainees.ids[0]
    call = Call("update", (who,), 1, {"down": site.method.broadcast(site.first_server, who)})
    before = torch.get_rng_state()
    first = site.handle(call)
    site.handle(dataclasses.replace(call, round=2))
    again = site.handle(call)
    assert {k: to_bytes(b) for k, b in first.bundles.items()} == {k: to_bytes(b) for k, b in again.bundles.items()}
    assert torch.equal(before, torch.get_rng_state())


@each_method
def test_what_the_ledger_says_is_what_is_serialised(name):
    site = Site(blobs(), quick(name), NET, seed=0)
    engine = run(quick(name), rounds=1)
    for who, entry in engine.record.ledger[-1]["clients"].items():
        down = site.method.broadcast(site.first_server, who)
        answer = next(Serial(site).run([Call("update", (who,), 1, {"down": down})]))[1]
        assert sum(entry["down"].values()) == len(to_bytes(down))
        assert sum(entry["up"].values()) == len(to_bytes(answer.bundles["upload"]))
        assert entry["up"] == payload(answer.bundles["upload"])
        assert entry["seconds"] > 0
        assert entry["peak_memory_bytes"] > 1e6


@each_method
def test_no_recording_is_in_what_leaves_the_client(name):
    """No upload holds a sample: not a tensor of a sample's shape, nor a row equal to one."""
    site = Site(blobs(), quick(name), NET, seed=0)
    who = site.trainees.ids[0]
    answer = site.handle(Call("update", (who,), 1, {"down": site.method.broadcast(site.first_server, who)}))
    rows = {tuple(row.tolist()) for row in site.client(who).train.x.flatten(1)}
    for tensor in flatten(answer.bundles["upload"]).values():
        width = len(next(iter(rows)))
        if tensor.numel() % width == 0:
            assert rows.isdisjoint(tuple(row.tolist()) for row in tensor.reshape(-1, width))


@each_method
def test_survives_clients_with_one_sample_or_one_class(name):
    federation = blobs()
    lone, narrow, *rest = federation.clients
    lone = lone.change(lambda split, s: s.take(slice(1 if split == "train" else 0)))
    narrow = narrow.change(lambda split, s: s.take(s.y == 1))
    engine = run(quick(name), federation.with_clients([lone, narrow, *rest]))
    scores = engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]
    assert scores.keys() == {"c01", "c02", "c03"}, "a client without test data is not scored"
    assert all(value is not None for value in scores.values())


@each_method
def test_is_a_frozen_dataclass_with_a_description(name):
    method = METHODS[name]()
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.lr = 1.0
    assert pickle.loads(pickle.dumps(method)) == method
    assert method.__doc__
    assert "\n" not in method.__doc__.strip()
    assert method.paper


@each_method
def test_says_what_it_is_for(name):
    """A method that derives from another says it for itself."""
    method = METHODS[name]
    assert method.group in GROUPS
    for what in ("name", "group", "equation", "assumes", "use"):
        text = vars(method)[what]
        assert text
        assert not text.endswith(".")
        assert "\n" not in text


@each_method
def test_wrong_hyper_parameters_are_refused(name):
    with pytest.raises(UserError, match="lr"):
        METHODS[name](lr=-1)
    with pytest.raises(UserError, match="epochs"):
        METHODS[name](epochs=0)


def test_fedprox_without_pull_is_fedavg():
    a, b = run(FedAvg(epochs=2, batch=8)), run(FedProx(mu=0.0, epochs=2, batch=8))
    same_bits(a, b)


def test_fedprox_pulls_towards_the_global_model():
    def distance(engine):
        start = engine.site.first_server["model"]
        return sum(
            float(((t - start[n]) ** 2).sum()) for n, t in engine.trained["c00"]["model"].items() if "running" not in n
        )

    strengths = [0.0, 10.0, 50.0]
    moved = [distance(run(FedProx(mu=mu, epochs=3, batch=8, momentum=0.0), rounds=1)) for mu in strengths]
    assert moved[0] > 1.2 * moved[1] > 1.2 * 1.2 * moved[2]


def test_with_one_client_fedavg_is_local():
    """The average over one client is its model, to the bit."""
    federation = blobs(clients=1)
    one = {name: run(quick(name), federation) for name in ("local", "fedavg")}
    a, b = (one[name].personal_parameters("c00") for name in ("local", "fedavg"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_fedavg_refuses_clients_that_differ_and_says_which():
    one, two = blobs(clients=1), blobs(clients=1, shape=(3, 6))
    other = dataclasses.replace(two.clients[0], id="watch")
    mixed = Federation("mixed", one.task, (*one.clients, other))
    with pytest.raises(
        UserError, match=r"fedavg shares 'adapter.1.weight', but client 'c00'.*\[8, 12\].*'watch'.*\[8, 18\]"
    ):
        run(FedAvg(), mixed)
    engine = run(METHODS["local"](epochs=1), mixed)
    assert np.isfinite(curve(engine.record.scores, "personal", "accuracy")[-1][1])
