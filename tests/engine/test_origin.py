"""sessions.jsonl: which command, commit and machine, how far and how long; a killed session has no end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedsense.engine.origin import SESSIONS_FILE, commit, machine, session, sessions

SMALL = [
    "run",
    "demo",
    "--set",
    "rounds=2",
    "--set",
    "data.clients=2",
    "--set",
    "data.samples=8",
    "--set",
    'method=["fedavg"]',
]


def _fedsense(*words: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "fedsense", *words], cwd=folder, check=True, capture_output=True)


def test_a_run_says_where_it_came_from(tmp_path: Path) -> None:
    _fedsense(*SMALL, "--out", "out", folder=tmp_path)
    (run,) = (tmp_path / "out").glob("fedavg-*")
    (one,) = sessions(run)
    assert one["command"].startswith("fedsense run demo --set rounds=2 ")
    assert one["command"].endswith("--out out")
    assert (one["from"], one["to"]) == (0, 2)
    assert one["seconds"] > 0
    assert one["machine"] == machine("cpu")
    assert f"torch {torch.__version__}" in one["versions"]
    _fedsense(*SMALL, "--out", "out", "--resume", folder=tmp_path)
    assert len(sessions(run)) == 1  # nothing was left to do
    _fedsense(*SMALL, "--set", "rounds=3", "--out", "out", "--resume", folder=tmp_path)
    first, second = sessions(run)
    assert first == one
    assert (second["from"], second["to"]) == (2, 3)


def test_a_session_that_fails_ends_and_one_that_is_killed_does_not(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), session(tmp_path, torch.device("cpu"), lambda: 4):
        raise ZeroDivisionError
    with (tmp_path / SESSIONS_FILE).open("a") as file:
        file.write('{"at": "then", "from": 4, "command": "fedsense run x"}\n{"at": "th')  # killed while it wrote
    ended, killed = sessions(tmp_path)
    assert ended["to"] == 4
    assert "seconds" in ended
    assert killed["command"] == "fedsense run x"
    assert "seconds" not in killed
    assert sessions(tmp_path / "older") == []


def test_commit_of_a_checkout_and_of_none(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = {
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b",
        }
        return subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True,
                              env={**os.environ, **who}).stdout  # fmt: skip

    assert commit(tmp_path) == ""
    (tmp_path / "src").mkdir()
    for name in ("pyproject.toml", "src/a.py"):
        (tmp_path / name).write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD").strip()[:10]
    commit.cache_clear()
    assert commit(tmp_path) == head
    (tmp_path / "src/a.py").write_text("changed")
    commit.cache_clear()
    assert commit(tmp_path) == head + "+"
    commit.cache_clear()
