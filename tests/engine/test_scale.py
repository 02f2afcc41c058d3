"""Ten thousand clients of whom a few take part: time and memory are those of the few."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import plain_net, quick, small_net
from fedsense import recordings
from fedsense.data import load
from fedsense.engine.rounds import Engine, Listener
from fedsense.engine.settings import Settings
from fedsense.federation import ClientData, Federation, Samples, Task
from fedsense.methods import METHODS
from fedsense.models.spec import ModelSpec
from fedsense.work import stream

CLIENTS, SHARE = 10_000, 0.01
SAMPLES, WIDTH = 1000, 64  # 256 KB each, 2.6 GB all


def many(calls, samples=SAMPLES):
    """Clients that are made when asked for; one in a hundred has something to be scored on."""

    def client(number):
        tested = 5 * (number % 100 == 0)

        def make():
            calls.append(number)
            rng = stream("many", number)
            x = torch.from_numpy(rng.random((samples + tested, WIDTH), dtype=np.float32))
            whole = Samples(x, torch.from_numpy(rng.integers(0, 3, samples + tested)))
            return whole.take(slice(samples)), whole.take(slice(0)), whole.take(slice(samples, None))

        return ClientData.later(f"c{number:05}", make, (samples, 0, tested), (WIDTH,), key=f"many {samples} {number}")

    return Federation("many", Task(("a", "b", "c")), tuple(map(client, range(CLIENTS))))


class Watch(Listener):
    """When the first client was done, who was made by then and by the end of rounds, and the most memory there was."""

    def __init__(self, calls):
        self.calls, self.began, self.most = calls, time.process_time(), 0
        self.first = self.after_rounds = None

    def client_done(self, engine, round, done, total):
        self.first = self.first or time.process_time() - self.began
        self.most = max(self.most, memory())

    def round_done(self, engine, round):
        if round < engine.settings.rounds:  # the last one scores, too
            self.after_rounds = len(self.calls)


def memory():
    """MB this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def engine_of(federation, method="fedavg", folder=None, watch=(), **settings):
    settings = {"rounds": 3, "workers": 1, "participation": SHARE, "every": 3, "metrics": ("accuracy",), **settings}
    model = ModelSpec.of(small_net if method == "fedbn" else plain_net)  # it needs BatchNorm
    return Engine(federation, quick(method, epochs=1, batch=500), model, Settings(**settings), folder, watch)


def test_time_and_memory_are_those_of_the_participants(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSENSE_MEMORY", "0.02")
    calls, before = [], memory()
    watch = Watch(calls)
    engine = engine_of(many(calls).check(), folder=tmp_path, watch=[watch], views=("global",))
    assert not calls
    engine.run()
    chosen = round(CLIENTS * SHARE)
    assert watch.first < 10
    assert watch.after_rounds <= 2 * chosen
    assert len(set(calls)) <= 3 * chosen + CLIENTS / 100, "and those who are scored"
    assert watch.most - before < 250
    assert 0 < recordings._made._total <= 0.02e9
    assert len(engine.record.scores[-1]["scores"]["global"]["test"]["accuracy"]) == CLIENTS / 100


@pytest.fixture(scope="module")
def light():
    """Many clients with little, and the list of those who were made."""
    calls = []
    return many(calls, samples=8), calls


def test_a_resumed_run_makes_nobody_to_begin_with(tmp_path, light):
    federation, calls = light
    for rounds in (1, 2):
        engine = engine_of(federation, folder=tmp_path, rounds=rounds, views=("personal",), every=9)
        calls.clear()
        engine.claim()
        assert not calls
        engine.run()
        assert len(set(calls)) <= CLIENTS * (SHARE + 0.01)
    assert [line["round"] for line in engine.record.ledger] == [1, 2]


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.pools])
def test_every_method_begins_at_once(name, light):
    federation, calls = light
    calls.clear()
    began = time.process_time()
    engine = engine_of(federation, name)
    assert len(engine.participants(1)) == CLIENTS * SHARE
    assert time.process_time() - began < 5
    assert not calls


def test_ten_thousand_phones_and_watches_are_there_at_once():
    began = time.process_time()
    federation = load("synthetic-imu", clients=CLIENTS, classes_per_client=4, quantity_skew=0.5)
    sizes = [len(client.train) for client in federation]
    assert federation.fingerprint
    assert time.process_time() - began < 10
    assert len(federation) == CLIENTS
    assert len(set(sizes)) > 20
    assert not any(client.train.recordings.here for client in federation)
