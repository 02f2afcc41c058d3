"""Checkpoints: what is written is what is read; damage is refused, and the one before is offered."""

import json

import pytest
import torch

from fedsense.engine.checkpoint import Checkpoint, discard_after, load, save
from fedsense.errors import CheckpointError


def point(round, **clients):
    return Checkpoint(
        round=round,
        server={"model": {"w": torch.full((3,), float(round))}},
        clients={name: {"state.model": {"w": torch.tensor([value])}} for name, value in clients.items()},
        lengths={"scores": 10 * round, "ledger": round},
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
    assert found.lengths == {"scores": 30, "ledger": 3}


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
    manifest["lengths"]["scores"] += 1
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
            r"^\s*(import|from) (pickle|cloudpickle|dill|joblib)|(?<!safetensors\.)torch\.load\(", text, re.M
        ), path
