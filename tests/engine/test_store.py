"""What clients keep is the same wherever it is: in memory, or on disk where memory is short."""

import errno
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import blobs, quick, run, same_bits
from fedsense.bundle import to_bytes
from fedsense.engine import checkpoint, store
from fedsense.engine.checkpoint import Checkpoint, load, save
from fedsense.engine.settings import Settings
from fedsense.engine.store import Kept, Store
from fedsense.errors import RunFailed, UserError

MB = 250_000  # numbers


def bundle(value, numbers=MB):
    return {"model": {"w": torch.full((numbers,), float(value))}}


def value(found, group="model"):
    return found[group]["w"][0].item()


def spilled(engine):
    return engine.states._store.spilled


def in_memory(kept):
    return [client for _, client in kept._recent._entries]


def test_the_least_recently_used_goes_to_disk_and_comes_back(tmp_path):
    kept = Store(3, tmp_path)
    shelf = kept.shelf("state")
    for number, client in enumerate("abc"):
        shelf[client] = bundle(number)
    assert kept.spilled == 0
    assert value(shelf["a"]) == 0
    shelf["d"] = bundle(3)
    assert in_memory(kept) == ["c", "a", "d"], "b was used longest ago"
    assert kept.spilled == len(to_bytes(bundle(1)))
    assert value(shelf["b"]) == 1
    assert in_memory(kept) == ["a", "d", "b"]
    assert [*shelf] == ["a", "b", "c", "d"]
    assert [value(found) for found in shelf.values()] == [0, 1, 2, 3]


def test_shelves_share_the_memory_and_nothing_else(tmp_path):
    kept = Store(1, tmp_path)
    one, other = kept.shelf("state"), kept.shelf("trained")
    one["a"], other["a"] = bundle(1), bundle(2)
    assert kept.spilled > 0
    assert (value(one["a"]), value(other["a"])) == (1, 2)
    del one["a"]
    assert "a" not in one
    assert value(other["a"]) == 2
    with pytest.raises(KeyError):
        one["a"]


def test_the_file_has_no_name_and_its_room_is_used_again(tmp_path):
    kept = Store(0, tmp_path)
    shelf = kept.shelf("state")
    for number in range(50):
        shelf[f"c{number % 5}"] = bundle(number, numbers=1000 + number % 7)
    assert kept.spilled > 0
    assert not any(tmp_path.iterdir()), "nothing to find, nothing to leave behind"
    assert kept._file._end <= 7 * 2 * store.BLOCK
    assert {client: value(found) for client, found in shelf.items()} == {f"c{n}": 45 + n for n in range(5)}


def test_a_bundle_that_is_read_again_and_again_is_written_once(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(store, "to_bytes", lambda b: written.append(1) or to_bytes(b))
    shelf = Store(0, tmp_path).shelf("state")
    shelf["a"], shelf["b"] = bundle(1), bundle(2)
    for _ in range(5):
        assert (value(shelf["a"]), value(shelf["b"])) == (1, 2)
    assert len(written) == 2


ODD = [
    {},
    {"head": {}},
    {"a": {"x": torch.tensor(3.0)}, "empty": {}, "b": {"y": torch.tensor([True, False]), "z": torch.zeros(0, 2)}},
    {"n": {"count": torch.tensor([2**40, -1])}, "d": {"v": torch.tensor([[float("nan"), -0.0]], dtype=torch.float64)}},
]
ACTIONS = st.tuples(st.sampled_from(["put", "get", "del"]), st.sampled_from("abcd"), st.integers(0, len(ODD) - 1))


@given(actions=st.lists(ACTIONS, max_size=30), megabytes=st.sampled_from([0, 2e-5, 1]))
@settings(max_examples=60)
def test_it_is_a_dict(actions, megabytes):
    shelf, plain = Store(megabytes).shelf("state"), {}
    for what, client, number in actions:
        if what == "put":
            shelf[client] = plain[client] = ODD[number]
        elif what == "del":
            assert (client in shelf) == (client in plain)
            shelf.pop(client, None), plain.pop(client, None)
        elif client in plain:
            assert to_bytes(shelf[client]) == to_bytes(plain[client])
    assert [*shelf] == [*plain]
    assert len(shelf) == len(plain)
    assert [to_bytes(b) for b in shelf.values()] == [to_bytes(b) for b in plain.values()]
    assert [b.keys() for b in shelf.values()] == [b.keys() for b in plain.values()]


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shelf = Store(0, tmp_path).shelf("state")
    shelf["a"] = bundle(1)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunFailed, match=r"not fit into 0 MB of memory, nor on disk.*No space left.*state_memory"):
        shelf["b"] = bundle(2)


def test_a_folder_that_is_only_read_from_is_left_alone(tmp_path):
    shelf = Store(0, tmp_path / "gone").shelf("state")
    shelf["a"], shelf["b"] = bundle(1), bundle(2)
    assert value(shelf["a"]) == 1
    assert not (tmp_path / "gone").exists()


def test_all_that_clients_keep():
    kept = Kept({"a": {"head": {"w": torch.ones(1)}}, "b": {}}, {"b": bundle(2, 1)})
    assert kept["a"].keys() == {"state.head"}
    assert kept["b"].keys() == {"trained"}
    assert [*kept] == ["a", "b"]
    assert len(kept) == 2


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["local", "fedavg", "scaffold", "protohar"])
def test_spilled_or_not_a_run_gives_the_same_bits(name, workers, tmp_path):
    how = {"participation": 0.5, "rounds": 4, "workers": workers}
    plain = run(quick(name), blobs(clients=6), **how)
    short = run(quick(name), blobs(clients=6), tmp_path / "run", **how, state_memory=0)
    assert spilled(plain) == 0
    assert spilled(short) > 0
    same_bits(plain, short)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    records = {"scores.jsonl", "ledger.jsonl", "observations.jsonl"}
    assert names == {".lock", "run.json", "sessions.jsonl", "checkpoints"} | records
    client = plain.federation.ids[2]
    models = [to_bytes({"model": engine.personal_parameters(client)}) for engine in (plain, short)]
    assert models[0] == models[1], "also when the run has ended"


@pytest.mark.parametrize("piece", [1, 1 << 27])
def test_resumed_with_other_memory_it_ends_alike(piece, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PIECE", piece)
    method, how = quick("scaffold"), {"participation": 0.5}
    whole = run(method, blobs(clients=6), rounds=5, **how)
    for rounds, megabytes in ((2, 0), (3, 2000), (5, 0)):
        resumed = run(method, blobs(clients=6), tmp_path, rounds=rounds, state_memory=megabytes, **how)
    same_bits(whole, resumed)


def test_checkpoints_of_many_clients_are_several_files_read_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PIECE", 8)
    clients = {c: {"state.model": {"w": torch.tensor([float(ord(c))])}} for c in "abcde"}
    save(tmp_path, Checkpoint(1, {}, clients, {}), list(clients))
    assert sorted(path.name for path in tmp_path.glob("clients*")) == [
        "clients-00001-1.safetensors",
        "clients-00001-2.safetensors",
        "clients-00001.safetensors",
    ]
    opened = []
    read = checkpoint._bundle
    monkeypatch.setattr(checkpoint, "_bundle", lambda path: opened.append(path.name) or read(path))
    found = load(tmp_path)
    assert {c: value(b, "state.model") for c, b in found.clients.items()} == {c: ord(c) for c in "abcde"}
    assert len(opened) == 1 + 3, "the server's and each of the clients' once"
    again = Checkpoint(2, {}, clients, {}, found.files, found.digests)
    save(tmp_path, again, ["a", "b", "c"])
    save(tmp_path, Checkpoint(3, {}, clients, {}, again.files, again.digests), ["d"])
    assert {p.name for p in tmp_path.glob("clients-00001*")} == {
        "clients-00001-1.safetensors",  # d, as round 2 has it
        "clients-00001-2.safetensors",  # e
    }
    assert {c: value(b, "state.model") for c, b in load(tmp_path).clients.items()} == {c: ord(c) for c in "abcde"}


def test_memory_below_nothing_is_refused():
    with pytest.raises(UserError, match="state_memory is -1; give a number of MB from 0"):
        Settings(state_memory=-1)
