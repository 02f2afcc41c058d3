"""Recordings that are made when they are first asked for: as others, but for when and how long they are there."""

import copy
import dataclasses
import gc

import pytest
import torch

from conftest import blobs, quick, run, same_bits
from fedsense import recordings
from fedsense.errors import RunFailed, UserError
from fedsense.federation import ClientData, Federation, Samples, Task


def later(federation, calls=None, key="", edit=lambda samples: samples):
    """The same federation, made when asked for; ``calls`` collects who was made."""

    def client(whole):
        def make():
            if calls is not None:
                calls.append(whole.id)
            return tuple(edit(split.each(torch.clone)) for split in whole.splits)

        own = f"{key} {whole.id}" if key else ""
        return ClientData.later(whole.id, make, tuple(map(len, whole.splits)), whole.input_shape, own, whole.traits)

    return federation.with_clients(map(client, federation))


@pytest.fixture
def memory(monkeypatch):
    """Sets how many bytes of recordings are kept."""
    monkeypatch.setattr(recordings, "_made", recordings.Recent(recordings.limit))
    return lambda size: monkeypatch.setenv("FEDSENSE_MEMORY", str(size / 1e9))


def size_of(client):
    return sum(tensor.nbytes for split in client.splits for tensor in split.tensors)


def test_what_is_known_before_makes_nothing():
    whole, calls = blobs(), []
    federation = later(whole, calls, key="blobs").check().check()
    client = federation[whole.ids[1]]
    assert [*map(len, client.splits)] == [*map(len, whole.clients[1].splits)]
    assert client.input_shape == (2, 6)
    assert repr(client) == repr(whole.clients[1])
    assert dataclasses.replace(client, id="another", traits={"speed": 2}).train.shape == (2, 6)
    assert client.change(lambda name, samples: samples).test.recordings is client.test.recordings
    assert len(copy.copy(client.train)) == len(client.train)
    assert federation.fingerprint
    assert not calls


def test_values_are_those_that_are_made_and_made_once():
    whole, calls = blobs(), []
    for one, other in zip(later(whole, calls), whole, strict=True):
        for name in ("train", "val", "test"):
            assert torch.equal(one.split(name).x, other.split(name).x)
            assert torch.equal(one.split(name).y, other.split(name).y)
            assert one.split(name).origin is None
            assert one.split(name).take(slice(2)).x.shape == other.split(name).x[:2].shape
            assert torch.equal(dataclasses.replace(one.split(name), y=one.split(name).y + 1).x, other.split(name).x)
    assert calls == whole.ids
    with pytest.raises(AttributeError, match="'z'"):
        later(whole).clients[0].train.z  # noqa: B018


@pytest.mark.parametrize("samples", [3, 400])
def test_origins_bytes_and_empty_splits_are_kept_as_they_are(samples):
    """Of few samples, and of so many that they are moved into memory of their own."""
    x = torch.randint(0, 255, (samples, 1, 16, 17), dtype=torch.uint8)
    train = Samples(x, torch.arange(samples), torch.arange(3 * samples).view(-1, 3))
    empty = train.take(slice(0))
    client = ClientData.later("a", lambda: (train, empty, train.take(slice(1, 2))), (samples, 0, 1), (1, 16, 17))
    for made, given in zip(client.splits, (train, empty, train.take(slice(1, 2))), strict=True):
        for name in ("x", "y", "origin"):
            assert torch.equal(getattr(made, name), getattr(given, name))
            assert getattr(made, name).dtype == getattr(given, name).dtype


def test_what_was_used_longest_ago_is_forgotten_and_made_anew(memory):
    whole, calls = blobs(clients=3), []
    first, second, third = later(whole, calls)
    memory(2 * size_of(whole.clients[2]))
    first.train.x, second.train.x, first.val.y, third.test.x  # noqa: B018
    assert calls == ["c00", "c01", "c02"]
    first.train.x, third.train.x  # noqa: B018
    assert calls == ["c00", "c01", "c02"], "second was used longest ago"
    assert torch.equal(second.train.x, whole.clients[1].train.x)
    assert calls == ["c00", "c01", "c02", "c01"]


def test_the_last_one_stays_however_large(memory):
    memory(0)
    calls = []
    client = later(blobs(), calls).clients[0]
    assert client.train.x.shape[0] == len(client.train.y) == len(client.train)
    assert calls == ["c00"]


def test_memory_goes_with_the_federation(memory):
    memory(1e9)
    federation = later(blobs()).check()
    for client in federation:
        client.train.x  # noqa: B018
    assert recordings._made._total == sum(map(size_of, blobs()))
    del federation, client
    gc.collect()
    assert recordings._made._total == 0


def test_a_limit_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("FEDSENSE_MEMORY", "much")
    with pytest.raises(UserError, match="FEDSENSE_MEMORY is 'much'; give a number of GB"):
        later(blobs()).clients[0].train.x  # noqa: B018


def test_promises_are_held_to():
    client = blobs().clients[0]
    for sizes, shape in (((24, 8, 19), (2, 6)), ((24, 8, 20), (2, 5))):
        wrong = ClientData.later("c00", lambda: client.splits, sizes, shape)
        with pytest.raises(UserError, match=r"client 'c00': there were to be .*; let sizes and input_shape say"):
            wrong.train.x  # noqa: B018


def spoiled(samples):
    x = samples.x.clone()
    x[0, 0, 0] = float("nan")
    return Samples(x, samples.y)


def test_checks_are_done_when_they_are_made():
    calls = []
    bad = later(blobs(), calls, edit=spoiled)
    checked = bad.check()
    assert not calls
    with pytest.raises(UserError, match=r"client 'c01': 1 of .* values in train are not finite"):
        checked["c01"].val.x  # noqa: B018
    assert bad.check("zero")["c01"].train.x[0, 0, 0] == 0
    dropped = bad.check("drop")["c01"]
    assert len(dropped.train) == len(bad["c01"].train) - 1
    assert dropped.train.x.isfinite().all()
    narrow = dataclasses.replace(later(blobs()), task=Task(("a", "b"))).check()
    with pytest.raises(UserError, match="holds label 2, but there are 2 classes"):
        narrow["c00"].train.x  # noqa: B018


def test_leaving_samples_out_keeps_clients_that_lose_none_as_they_are():
    federation = later(blobs(), key="blobs")
    assert federation.check("drop").fingerprint == federation.fingerprint
    assert federation.check("drop")["c00"].train.recordings is federation["c00"].train.recordings


def test_what_is_in_memory_is_checked_at_once():
    federation = later(blobs())
    federation["c02"].train.x[0, 0, 0] = float("nan")
    with pytest.raises(UserError, match=r"client 'c02'"):
        federation.check()


def test_fingerprints():
    whole = blobs()
    assert later(whole).fingerprint == whole.fingerprint, "without a name it is that of the values"
    named = [later(whole, key=key).fingerprint for key in ("a", "a", "b")]
    assert named[0] == named[1]
    assert len({*named, whole.fingerprint}) == 3
    shorter = whole.with_clients([whole.clients[0].change(lambda _, s: s.take(slice(3))), *whole.clients[1:]])
    assert later(shorter, key="a").fingerprint != named[0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "centralized"])
def test_a_run_gives_the_same_bits(name, workers, memory):
    settings = {"participation": 0.5, "pool": 30, "workers": workers}
    eager = run(quick(name), blobs(clients=6), **settings)
    memory(2 * size_of(blobs().clients[0]))  # forgets, too
    same_bits(eager, run(quick(name), later(blobs(clients=6)), **settings))


def test_the_pool_makes_only_those_it_draws_from(memory):
    calls = []
    site = run(quick("fedavg"), later(blobs(clients=40, val=0), calls), rounds=1, pool=3, views=("global",)).site
    memory(0)
    site.client("c00").train.x  # noqa: B018
    calls.clear()
    assert len(site._pool((2, 6)).test) == 3
    assert len(set(calls)) <= 4, "three for their samples, one for the shape of no samples"


@pytest.mark.parametrize("workers", [1, 2])
def test_one_that_cannot_be_made_is_named(workers):
    def make():
        raise ValueError("the disk is gone")

    lost = ClientData.later("lost", make, (24, 8, 20), (2, 6), "lost")
    federation = blobs()
    with pytest.raises(RunFailed, match=r"client 'lost'.*the disk is gone"):
        run(quick("fedavg"), federation.with_clients([lost, *federation.clients]), workers=workers)


def test_a_federation_finds_clients_by_name():
    federation = Federation("many", blobs().task, later(blobs(clients=50)).clients)
    assert federation["c33"].id == "c33"
    with pytest.raises(UserError, match="no client 'c3x' in 'many'; "):
        federation["c3x"]
