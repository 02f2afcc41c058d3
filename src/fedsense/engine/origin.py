"""Where a run comes from: ``sessions.jsonl`` in its folder has a line when it begins or goes on, and one when it stops.

The first says the command, the commit, the versions and the machine; the second how far it came and how long it took.
A session that was killed has no second line.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedsense import __version__
from fedsense.engine.record import read_lines
from fedsense.errors import UserError

SESSIONS_FILE = "sessions.jsonl"


@contextmanager
def session(folder: Path, device: torch.device, reached: Callable[[], int]) -> Iterator[None]:
    """Write down that a run goes on, and how far it ``reached`` when it stops."""
    _add(folder, {"at": _now(), "from": reached(), **here(str(device))})
    began = time.monotonic()
    try:
        yield
    finally:
        _add(folder, {"at": _now(), "to": reached(), "seconds": round(time.monotonic() - began, 3)})


def here(device: str) -> dict[str, str]:
    """What is running, and where."""
    typed = Path(sys.argv[0]).name.removesuffix(".py") if sys.argv and sys.argv[0] else ""
    command = shlex.join(["fedsense", *sys.argv[1:]]) if typed in ("fedsense", "__main__") else typed
    return {"command": command, "commit": commit(), "machine": machine(device),
            "versions": f"fedsense {__version__}, torch {torch.__version__}, "
                        f"Python {platform.python_version()}"}  # fmt: skip


@lru_cache(1)
def commit(source: Path = Path(__file__).parents[3]) -> str:
    """The commit of the source this is run from, with + if files differ from it; nothing if it was installed."""
    if not (source / ".git").exists() or not (source / "pyproject.toml").exists():
        return ""
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(source), *words], capture_output=True, text=True, check=True, timeout=10)
            for words in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--", "src"])
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


@lru_cache(4)
def machine(device: str) -> str:
    """Processor, cores this process may use, memory; the graphics card, if it is used."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [_processor(), f"{cores} core{'s' * (cores > 1)}"]
    with suppress(OSError, ValueError):  # not known on every system
        parts.append(f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB")
    if device.startswith("cuda"):
        parts.append(torch.cuda.get_device_name(device))
    return ", ".join([*parts, platform.system()])


def sessions(folder: Path) -> list[dict[str, Any]]:
    """A run's sessions, each with ``seconds`` and ``to`` if it was not killed; none if the run is older than this."""
    path = folder / SESSIONS_FILE
    found: list[dict[str, Any]] = []
    try:
        for line in read_lines(path) if path.is_file() else ():
            if "from" in line:
                found.append(line)
            elif found:
                found[-1] |= {"seconds": float(line["seconds"]), "to": line["to"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); without it, nothing is said of where the run is from") from error
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _add(folder: Path, line: dict[str, Any]) -> None:
    with (folder / SESSIONS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def duration(seconds: float) -> str:
    """As one says it: 42 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
