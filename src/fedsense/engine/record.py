"""What a run measures, round by round, in memory and in the run's folder.

scores.jsonl   one line an evaluated round: view → split → metric → client → value; same recipe, same bits
ledger.jsonl   one line a round: for every client that took part, bytes down and up by group, seconds, memory, loss;
               round 0 is getting ready (FLIC's pre-training), and one after the last is finishing, where there is any
observations.jsonl  one line an evaluated round, where there is something to show: how far prototypes moved, and what
               the method has to say (FedAPA: who learns from whom)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedsense.engine.folder import digest_of

Prefix = dict[str, Any]  # "bytes" and "digest" of the beginning of a file
FILES = ("scores", "ledger", "observations")


class Record:
    """The measurements of one run."""

    def __init__(
        self, folder: Path | None = None, prefixes: Mapping[str, Prefix] | None = None, write: bool = True
    ) -> None:
        """With a folder, lines beyond ``prefixes`` (of an interrupted round) are cut off; the rest is read."""
        self.scores: list[dict[str, Any]] = []
        self.ledger: list[dict[str, Any]] = []
        self.observations: list[dict[str, Any]] = []
        self._paths = {name: folder / f"{name}.jsonl" for name in FILES} if folder and write else {}
        self._hashes = {name: digest_of() for name in FILES}
        if folder is None:
            return
        for name in FILES:
            path = folder / f"{name}.jsonl"
            length = prefixes[name]["bytes"] if prefixes and name in prefixes else 0
            data = path.read_bytes()[:length] if path.exists() else b""
            getattr(self, name).extend(whole_lines(data))
            self._hashes[name].update(data)
            if write:
                path.touch()
                os.truncate(path, length)

    def prefixes(self) -> dict[str, Prefix]:
        """Length and digest of the files as they are now; what is in them is on the disk when this returns."""
        found: dict[str, Prefix] = {}
        for name, path in self._paths.items():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
            found[name] = {"bytes": path.stat().st_size, "digest": self._hashes[name].hexdigest()}
        return found

    def add(self, name: str, line: dict[str, Any]) -> None:
        plain = without_nan(line)
        getattr(self, name).append(plain)
        data = (json.dumps(plain, allow_nan=False) + "\n").encode()
        self._hashes[name].update(data)
        if path := self._paths.get(name):
            with path.open("ab") as file:
                file.write(data)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a record file."""
    return whole_lines(path.read_bytes())


def whole_lines(data: bytes) -> list[dict[str, Any]]:
    """A last line without an end, of a run that was killed or is just writing it, does not count."""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


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
