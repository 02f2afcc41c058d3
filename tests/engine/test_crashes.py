"""A run that stops at any of its writes goes on to the same bits: every write and removal is tried in turn."""

from pathlib import Path

import pytest

from conftest import blobs, plain_net
from fedsense.bundle import to_bytes
from fedsense.engine import checkpoint
from fedsense.engine.record import Record
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import Settings
from fedsense.methods import METHODS
from fedsense.models.spec import ModelSpec


class PowerCut(BaseException):
    """Nothing the engine could catch and tidy up after."""


def engine_in(folder, name):
    settings = Settings(
        rounds=4, participation=0.5, every=2, workers=1, metrics=("accuracy",), views=("personal", "global")
    )
    return Engine(blobs(), METHODS[name](epochs=1), ModelSpec.of(plain_net), settings, folder)


@pytest.fixture
def cut_at(monkeypatch):
    """Make the n-th write fail, half done; ``count`` says how many there were."""
    state = {"count": 0, "at": None}

    def due():
        state["count"] += 1
        return state["count"] == state["at"]

    write, add, unlink = checkpoint.write_atomically, Record.add, Path.unlink

    def cut_write(path, data):
        if due():
            path.with_name(path.name + ".partial").write_bytes(data[: len(data) // 2])
            raise PowerCut
        write(path, data)

    def cut_add(self, name, line):
        if due():
            with self._paths[name].open("ab") as file:
                file.write(b'{"round": 99, "sco')
            raise PowerCut
        add(self, name, line)

    def cut_unlink(self, *args, **kwargs):
        if due():
            raise PowerCut
        unlink(self, *args, **kwargs)

    monkeypatch.setattr(checkpoint, "write_atomically", cut_write)
    monkeypatch.setattr(Record, "add", cut_add)
    monkeypatch.setattr(Path, "unlink", cut_unlink)
    monkeypatch.setattr("fedsense.engine.rounds.CHECKPOINT_SHARE", 1e9)  # a checkpoint every round
    return state


@pytest.mark.parametrize("name", ["local", "fedavg"])
def test_cut_at_every_write(name, tmp_path, cut_at):
    whole = engine_in(tmp_path / "whole", name)
    whole.run()
    writes = cut_at["count"]
    assert writes > 20
    for at in range(1, writes + 1):
        cut_at.update(count=0, at=at)
        folder = tmp_path / f"cut-{at}"
        with pytest.raises(PowerCut):
            engine_in(folder, name).run()
        cut_at.update(at=None)
        resumed = engine_in(folder, name)
        resumed.run()
        assert (folder / "scores.jsonl").read_bytes() == (tmp_path / "whole" / "scores.jsonl").read_bytes(), at
        assert to_bytes(resumed.server) == to_bytes(whole.server), at
        assert {c: to_bytes(s) for c, s in resumed.states.items()} == {c: to_bytes(s) for c, s in whole.states.items()}
        assert [line["round"] for line in resumed.record.ledger] == [1, 2, 3, 4]
