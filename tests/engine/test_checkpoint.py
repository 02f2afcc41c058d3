"""Checkpoints: what is written is what is read; damage is refused, and the one before is offered."""

import json

import pytest
import torch

from fedsense.engine.checkpoint import Checkpoint, discard_after, load, save
from fedsense.engine.record import Record
from fedsense.errors import CheckpointError


def point(round, **clients):
    return Checkpoint(
        round=round,
        server={"model": {"w": torch.full((3,), float(round))}},
        clients={name: {"state.model": {"w": torch.tensor([value])}} for name, value in clients.items()},
        records={},
    )


def three_rounds(folder):
    """Round 1: a and b change. Round 2: b. Round 3: a."""
    first = point(1, a=1.0, b=1.0)
    save(folder, first, ["a", "b"])
    second = point(2, b=2.0)
    second.files, second.digests = first.files, first.digests
    save(folder, second, ["b"])
    third = point(3, a=3.0)
    third.files, third.digests = second.files, second.digests
    save(folder, third, ["a"])


def test_each_client_has_its_latest_state(tmp_path):
    three_rounds(tmp_path)
    found = load(tmp_path)
    assert found.round == 3
    assert found.server["model"]["w"].tolist() == [3.0] * 3
    assert {c: b["state.model"]["w"].item() for c, b in found.clients.items()} == {"a": 3.0, "b": 2.0}


def test_only_what_the_last_two_need_is_kept(tmp_path):
    three_rounds(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "clients-00001.safetensors",  # a's state as of round 2
        "clients-00002.safetensors",
        "clients-00003.safetensors",
        "round-00002.json",
        "round-00003.json",
        "server-00002.safetensors",
        "server-00003.safetensors",
    ]


def test_odd_client_names_and_empty_states(tmp_path):
    strange = Checkpoint(1, {}, {"a/b %": {}, "ü": {"state.x": {"y": torch.ones(1)}}}, {})
    save(tmp_path, strange, list(strange.clients))
    found = load(tmp_path)
    assert found.clients["a/b %"] == {}
    assert found.clients["ü"]["state.x"]["y"].item() == 1


def test_clients_that_keep_nothing(tmp_path):
    save(tmp_path, Checkpoint(1, {}, {"a": {}, "b": {}}, {}), ["a", "b"])
    assert load(tmp_path).clients == {"a": {}, "b": {}}


def damage(path, how):
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "altered":
        path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    elif how == "missing":
        path.unlink()
    else:
        path.write_bytes(b"")


@pytest.mark.parametrize("how", ["truncated", "altered", "missing", "empty"])
@pytest.mark.parametrize("name", ["server-00003.safetensors", "clients-00003.safetensors"])
def test_damage_is_refused_and_the_one_before_offered(tmp_path, how, name):
    three_rounds(tmp_path)
    damage(tmp_path / name, how)
    with pytest.raises(CheckpointError, match=rf"round 3 refused: {name}.*round 2 is sound.*--resume --previous"):
        load(tmp_path)
    assert load(tmp_path, previous=True).round == 2


@pytest.mark.parametrize("how", ["truncated", "altered", "empty"])
def test_a_damaged_manifest_is_refused(tmp_path, how):
    three_rounds(tmp_path)
    damage(tmp_path / "round-00003.json", how)
    with pytest.raises(CheckpointError, match=r"round-00003.json.*round 2 is sound"):
        load(tmp_path)


def test_a_changed_number_in_the_manifest_is_noticed(tmp_path):
    three_rounds(tmp_path)
    path = tmp_path / "round-00003.json"
    manifest = json.loads(path.read_text())
    manifest["scores"]["a"] = 1.0
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="altered"):
        load(tmp_path)


def test_no_sound_one_is_said(tmp_path):
    save(tmp_path, point(1, a=1.0), ["a"])
    damage(tmp_path / "server-00001.safetensors", "truncated")
    with pytest.raises(CheckpointError, match="no sound one before it"):
        load(tmp_path)


def test_half_written_files_do_not_count(tmp_path):
    three_rounds(tmp_path)
    (tmp_path / "round-00004.json.partial").write_text("{")
    assert load(tmp_path).round == 3


def test_going_back_forgets_what_came_after(tmp_path):
    three_rounds(tmp_path)
    discard_after(tmp_path, 2)
    assert load(tmp_path).round == 2


def test_records_that_were_cut_or_altered_are_refused(tmp_path):
    record = Record(tmp_path)
    record.add("scores", {"round": 1, "scores": {}})
    record.add("ledger", {"round": 1, "clients": {}})
    folder = tmp_path / "checkpoints"
    save(folder, Checkpoint(1, {}, {}, record.prefixes()), [])
    record.add("scores", {"round": 2, "scores": {}})
    assert load(folder).round == 1, "more lines than the checkpoint knows are fine"
    assert [line["round"] for line in Record(tmp_path, load(folder).records, write=False).scores] == [1]
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 2, "reading cuts nothing off"
    path = tmp_path / "scores.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"round": 1', b'"round": 7'))
    with pytest.raises(CheckpointError, match=r"scores.jsonl was altered"):
        load(folder)
    path.write_bytes(whole[:5])
    with pytest.raises(CheckpointError, match=r"scores.jsonl is truncated"):
        load(folder)


def test_round_numbers_sort_as_numbers(tmp_path):
    for round in (99_998, 99_999, 100_000, 100_001):
        save(tmp_path, point(round, a=1.0), ["a"])
    assert load(tmp_path).round == 100_001


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}"])
def test_a_manifest_that_is_none_is_refused(tmp_path, text):
    save(tmp_path, point(1, a=1.0), ["a"])
    (tmp_path / "round-00001.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a whole manifest"):
        load(tmp_path)


def test_nothing_there(tmp_path):
    assert load(tmp_path / "nowhere") is None


def test_no_pickle_is_ever_loaded():
    """Neither pickle nor torch.load, which unpickles, stands anywhere in the package."""
    import re
    from pathlib import Path

    import fedsense

    for path in Path(fedsense.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert not re.search(
            r"^\s*(import|from) (pickle|cloudpickle|dill|joblib)\b|(?<!safetensors\.)torch\.load\(", text, re.M
        ), path
