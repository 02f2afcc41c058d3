"""The engine: who takes part, what is scored when, and what happens when something goes wrong."""

import dataclasses
import itertools
import math
import os
import signal
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from conftest import blobs, plain_net, run
from fedsense.bundle import part
from fedsense.engine.rounds import Engine, Listener
from fedsense.engine.settings import Settings
from fedsense.engine.shared import Region
from fedsense.errors import RunFailed, UserError
from fedsense.method import Reply
from fedsense.methods import METHODS, Centralized, FedAvg, Local
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.ops import average

NET = ModelSpec.of(plain_net)


def engine_of(method=None, federation=None, listeners=(), folder=None, **settings):
    settings = {"rounds": 2, "workers": 1, **settings}
    method = method or FedAvg(epochs=1)
    return Engine(federation or blobs(), method, NET, Settings(**settings), folder, listeners)


def finished(*args, **kwargs):
    engine = engine_of(*args, **kwargs)
    engine.run()
    return engine


def test_participants_are_a_share_drawn_anew_every_round():
    engine = engine_of(federation=blobs(clients=20), participation=0.15)
    rounds = [engine.participants(r) for r in range(1, 200)]
    assert all(len(chosen) == 3 == len(set(chosen)) for chosen in rounds)
    assert rounds[:50] == [engine.participants(r) for r in range(1, 51)]
    counts = {client: sum(client in chosen for chosen in rounds) for client in engine.trainees}
    assert min(counts.values()) > 10, "about 30 of 199 each"
    assert engine_of(federation=blobs(clients=20), participation=1.0).participants(1) == engine.trainees


@pytest.mark.parametrize(("share", "count"), [(0.15, 3), (0.1, 2), (0.05, 1), (0.01, 1), (0.99, 20)])
def test_the_share_is_rounded_up(share, count):
    assert len(engine_of(federation=blobs(clients=20), participation=share).participants(1)) == count


def test_clients_without_training_data_are_scored_but_not_asked():
    federation = blobs()
    idle = federation.clients[0].change(lambda split, s: s.take(slice(0)) if split == "train" else s)
    engine = finished(federation=federation.with_clients([idle, *federation.clients[1:]]))
    assert "c00" not in engine.record.ledger[0]["clients"]
    assert "c00" in engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]


def test_scored_every_so_many_rounds_and_after_the_last():
    assert [line["round"] for line in finished(rounds=7, every=3).record.scores] == [3, 6, 7]


def test_views_are_what_they_say():
    """Received and shared: FedAvg's personal model is the global one, so Personal equals Global for every client, and
    Generalisation is one number, the accuracy on everyone's test data: the sample-weighted mean of Global."""
    engine = finished(moment="received")
    scores = engine.record.scores[-1]["scores"]
    own, all_, one = (scores[view]["test"]["accuracy"] for view in ("personal", "generalisation", "global"))
    assert own == one
    weights = {c.id: len(c.test) for c in engine.federation}
    pooled = sum(weights[c] * one[c] for c in one) / sum(weights.values())
    assert all(value == pytest.approx(pooled) for value in all_.values())


def test_personal_after_training_is_each_clients_own_model():
    engine = finished()
    scores = engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]
    for client in engine.federation:
        logits = engine.site.client(client.id).model.predict(engine.trained[client.id]["model"], client.test.x).logits
        assert scores[client.id] == pytest.approx((logits.argmax(1) == client.test.y).float().mean().item())
    assert engine.personal_parameters("c00") is not engine.server["model"]


def test_local_has_no_global_view():
    assert set(finished(Local(epochs=1)).record.scores[-1]["scores"]) == {"personal", "generalisation"}


def test_a_client_that_sits_out_keeps_its_model_and_score():
    engine = engine_of(rounds=6, participation=0.25)
    engine.run()
    lines = engine.record.scores
    for before, after in itertools.pairwise(lines):
        took_part = set(engine.record.ledger[after["round"] - 1]["clients"])
        was_in = {c for line in engine.record.ledger[: before["round"]] for c in line["clients"]}
        for client in was_in - took_part:
            old, new = (line["scores"]["personal"]["test"]["accuracy"][client] for line in (before, after))
            assert old == new


def test_generalisation_on_a_sample_of_everyone():
    a, b = finished(pool=10), finished(pool=None)
    few = a.record.scores[-1]["scores"]["generalisation"]["test"]["accuracy"]
    assert all((10 * value) % 1 == pytest.approx(0, abs=1e-6) for value in few.values())
    assert a.record.scores[-1]["scores"]["personal"] == b.record.scores[-1]["scores"]["personal"]


def test_centralized_trains_on_everything_and_is_scored_on_each():
    engine = finished(Centralized(epochs=1))
    assert list(engine.record.ledger[0]["clients"]) == ["everyone"]
    assert set(engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]) == set(engine.federation.ids)


def test_listeners_hear_everything():
    heard = []

    class Ear(Listener):
        def started(self, engine):
            heard.append("started")

        def client_done(self, engine, round, done, total):
            heard.append((round, done, total))

        def round_done(self, engine, round):
            heard.append(round)

        def stopped(self, engine):
            heard.append("stopped")

    finished(listeners=[Ear()], rounds=1, federation=blobs(clients=2))
    assert heard == ["started", (1, 1, 2), (1, 2, 2), 1, "stopped"]


@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    """Fails on one client."""

    name: ClassVar[str] = "broken"

    def local_update(self, client, state, down, work):
        if client.id == "c02":
            return {}["nothing"]
        return super().local_update(client, state, down, work)


@dataclass(frozen=True, kw_only=True)
class Suicidal(FedAvg):
    """Kills the process that works on one client."""

    name: ClassVar[str] = "suicidal"

    def local_update(self, client, state, down, work):
        if client.id == "c02":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().local_update(client, state, down, work)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_names_method_round_and_client(workers):
    with pytest.raises(RunFailed, match=r"broken, round 1, client 'c02': KeyError: 'nothing'"):
        finished(Broken(), workers=workers)


def test_a_worker_that_dies_is_noticed():
    with pytest.raises(RunFailed, match=r"worker process for client '.*' died in round 1"):
        finished(Suicidal(), workers=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_divergence_is_named_with_a_remedy(workers):
    with pytest.raises(
        RunFailed, match=r"diverged: in round \d+, client 'c\d\d' trained '.*lower lr \(now 1e\+38\) or set clip"
    ):
        finished(FedAvg(lr=1e38), rounds=5, workers=workers)


def test_a_listener_is_told_of_a_failure_and_cannot_hide_it():
    told = []

    class Bad(Listener):
        def failed(self, engine, failure):
            told.append(str(failure))
            raise ValueError("and I fail, too")

    with pytest.raises(RunFailed, match="diverged"):
        finished(FedAvg(lr=1e38), rounds=5, listeners=[Bad()])
    assert "diverged" in told[0]


def test_a_reply_that_is_no_bundle_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Sloppy(FedAvg):
        """Sends a number where a tensor belongs."""

        name: ClassVar[str] = "sloppy"

        def local_update(self, client, state, down, work):
            reply = super().local_update(client, state, down, work)
            return dataclasses.replace(reply, upload={**reply.upload, "size": {"n": 3}})

    with pytest.raises(RunFailed, match=r"upload.*'size'.*'n'.*tensor"):
        finished(Sloppy())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"views": ("persnal",)}, "did you mean 'personal'"),
        ({"rounds": 0}, "at least one"),
        ({"participation": 0.0}, "above 0"),
        ({"participation": 1.5}, "up to 1"),
        ({"device": "gpu9"}, "cuda"),
        ({"metrics": ()}, "name at least one"),
        ({"workers": 0}, "at least 1"),
    ],
)
def test_wrong_settings_are_explained(settings, message):
    with pytest.raises(UserError, match=message):
        engine_of(**settings)


@dataclass(frozen=True, kw_only=True)
class OwnHead(FedAvg):
    """Shares the encoder, keeps the head, and does not say which model it trained."""

    name: ClassVar[str] = "own-head"

    def init_server(self, task, params):
        return {"encoder": part(params, "encoder")}

    def init_client(self, client, params, down, work):
        return {"head": part(params, "head")}

    def local_update(self, client, state, down, work):
        reply = super().local_update(client, state, {"model": down["encoder"] | state["head"]}, work)
        trained = reply.upload["model"]
        upload = {"encoder": part(trained, "encoder"), "size": reply.upload["size"]}
        return Reply(state={"head": part(trained, "head")}, upload=upload)

    def aggregate(self, server, uploads):
        return {"encoder": average(uploads, "encoder")}


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_model_that_is_scored_is_the_one_taken_home_however_often_it_is_scored(every):
    engine = finished(OwnHead(epochs=1), rounds=5, every=every, participation=0.5, metrics=("accuracy",))
    scores = engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]
    seldom = finished(OwnHead(epochs=1), rounds=5, every=5, participation=0.5, metrics=("accuracy",))
    assert scores == seldom.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]
    for client in engine.federation:
        params = engine.personal_parameters(client.id)
        logits = engine.site.client(client.id).model.predict(params, client.test.x).logits
        assert scores[client.id] == pytest.approx((logits.argmax(1) == client.test.y).float().mean().item())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shared_part_without_parameters(workers):
    engine = Engine(blobs(), OwnHead(epochs=1), ModelSpec.of("flic-mlp"), Settings(rounds=1, workers=workers))
    with pytest.raises(RunFailed, match="the parameters lack 'adapter"):
        engine.run()  # its adapter is nobody's; the empty encoder itself is no trouble


@pytest.mark.parametrize("workers", [1, 2])
def test_any_exception_names_the_client(workers):
    @dataclass(frozen=True, kw_only=True)
    class Doubtful(FedAvg):
        """Asserts too much."""

        name: ClassVar[str] = "doubtful"

        def local_update(self, client, state, down, work):
            assert client.id != "c01", "not this one"
            return super().local_update(client, state, down, work)

    with pytest.raises(RunFailed, match=r"doubtful, round 1, client 'c01': AssertionError: not this one"):
        finished(Doubtful(), workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_of_a_reply_are_numbers(workers):
    @dataclass(frozen=True, kw_only=True)
    class Tensorial(FedAvg):
        """Reports a tensor."""

        name: ClassVar[str] = "tensorial"

        def local_update(self, client, state, down, work):
            return Reply(metrics={"loss": torch.ones(())})

    with pytest.raises(RunFailed, match=r"metrics\['loss'\] must be a number"):
        finished(Tensorial(), workers=workers)


def test_nobody_has_test_data():
    federation = blobs()
    blind = [c.change(lambda split, s: s if split == "train" else s.take(slice(0))) for c in federation]
    engine = finished(federation=federation.with_clients(blind))
    assert engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"] == {}


def test_the_pools_name_is_reserved():
    federation = blobs()
    named = dataclasses.replace(federation.clients[0], id="everyone")
    with pytest.raises(UserError, match="'everyone'"):
        finished(Centralized(epochs=1), federation.with_clients([named, *federation.clients[1:]]))


def test_threads_are_given_back():
    torch.set_num_threads(2)
    try:
        finished()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_client_without_any_test_data_is_left_out_of_the_mean():
    federation = blobs()
    quiet = federation.clients[1].change(lambda split, s: s if split == "train" else s.take(slice(0)))
    clients = [federation.clients[0], quiet, *federation.clients[2:]]
    scores = finished(federation=federation.with_clients(clients)).record.scores[-1]["scores"]
    assert "c01" not in scores["personal"]["test"]["accuracy"]
    assert all(math.isfinite(v) for v in scores["global"]["test"]["accuracy"].values())


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([], "odd, round 1, choose: ValueError: it chose nobody"),
        (["bob"], "odd, round 1, choose: ValueError: 'bob' is no client that trains"),
    ],
)
def test_a_choice_that_cannot_be_is_named(chosen, message):
    class Odd(FedAvg):
        name = "odd"

        def choose(self, server, clients, count, rng):
            return chosen

    with pytest.raises(RunFailed) as caught:
        run(Odd(epochs=1))
    assert str(caught.value) == message


def test_a_choice_counts_once_and_in_order():
    class Twice(FedAvg):
        name = "twice"

        def choose(self, server, clients, count, rng):
            return ["c02", "c00", "c02"]

    engine = run(Twice(epochs=1), rounds=1)
    assert list(engine.record.ledger[0]["clients"]) == ["c00", "c02"]


def test_an_observation_that_cannot_be_written_is_named():
    class Odd(FedAvg):
        name = "odd"

        def observe(self, server):
            return {"tensor": torch.zeros(1)}

    with pytest.raises(RunFailed, match=r"odd, round 1, observe: TypeError: .*not JSON serializable"):
        run(Odd(epochs=1))


def test_networks_with_tensors_of_their_own_are_taken():
    """Nothing is asked of a network but to run: constants, buffers that are not kept, and reading a value back."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.constant = torch.ones(12)
            self.register_buffer("hidden", torch.ones(12), persistent=False)

        def forward(self, x):
            return x.flatten(1) * self.constant * self.hidden + torch.arange(12) * x.sum().item() * 0

    def net(input_shape, classes):
        return Network(Own(), nn.Linear(12, classes), features=12)

    run(FedAvg(epochs=1), model=ModelSpec.of(net), rounds=1)
    run(METHODS["fedapa"](epochs=1, selection="diverse"), model=ModelSpec.of(net), rounds=2, participation=0.5)


def test_what_goes_to_everyone_is_written_once(monkeypatch):
    """Also where a broadcast puts the same groups together anew for each client (SCAFFOLD)."""
    written = {}
    monkeypatch.setattr("fedsense.engine.shared.Region.clear", lambda region: None)
    write = Region.write

    def counting(region, tensor):
        before = region._filled
        place = write(region, tensor)
        written.setdefault(id(region), []).append(region._filled - before)
        return place

    monkeypatch.setattr("fedsense.engine.shared.Region.write", counting)
    engine = run(METHODS["scaffold"](epochs=1), rounds=1, workers=2, views=("personal",), every=9)
    (sizes,) = written.values()  # in this process only the memory common to all workers is written
    sent = len(engine.server["model"]) + len(engine.server["variate"])
    assert len(sizes) == 4 * sent, "four clients were sent all of it"
    assert sum(size > 0 for size in sizes) == sent, "and it was written once"
