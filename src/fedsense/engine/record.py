"""What a run measures, round by round, in memory and in the run's folder.

scores.jsonl   one line an evaluated round: view → split → metric → client → value; same recipe, same bits
ledger.jsonl   one line a round: for every client that took part, bytes down and up by group, seconds, memory, loss
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILES = ("scores", "ledger")


class Record:
    """The measurements of one run."""

    def __init__(self, folder: Path | None = None, lengths: dict[str, int] | None = None) -> None:
        """With a folder, lines beyond ``lengths`` (of an interrupted round) are cut off; the rest is read."""
        self.scores: list[dict[str, Any]] = []
        self.ledger: list[dict[str, Any]] = []
        self._paths = {name: folder / f"{name}.jsonl" for name in FILES} if folder else {}
        for name, path in self._paths.items():
            path.touch()
            with path.open("r+b") as file:
                file.truncate((lengths or {}).get(name, 0))
            getattr(self, name).extend(read_lines(path))

    @property
    def lengths(self) -> dict[str, int]:
        return {name: path.stat().st_size for name, path in self._paths.items()}

    def add(self, name: str, line: dict[str, Any]) -> None:
        plain = without_nan(line)
        getattr(self, name).append(plain)
        if path := self._paths.get(name):
            with path.open("a") as file:
                file.write(json.dumps(plain, allow_nan=False) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a record file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def without_nan(value: Any) -> Any:
    """JSON knows no NaN: what is not defined is null."""
    if isinstance(value, dict):
        return {key: without_nan(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def totals(ledger: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Sums over rounds and clients: bytes down and up, also by group, seconds of local training, peak memory."""
    groups: dict[str, dict[str, int]] = {"down": {}, "up": {}}
    seconds, peak = 0.0, 0
    for line in ledger:
        for entry in line["clients"].values():
            for way, sums in groups.items():
                for group, count in entry[way].items():
                    sums[group] = sums.get(group, 0) + count
            seconds += entry["seconds"]
            peak = max(peak, entry["peak_memory_bytes"])
    return {
        "bytes_down": sum(groups["down"].values()),
        "bytes_up": sum(groups["up"].values()),
        "seconds": seconds,
        "peak_memory_bytes": peak,
        "groups_down": groups["down"],
        "groups_up": groups["up"],
    }
