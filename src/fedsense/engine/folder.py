"""A run's folder: whose it is, and one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedsense.errors import UserError

RUN_FILE = "run.json"
RECIPE_FILE = "recipe.json"  # of an experiment
# What makes a run this run; a folder that holds another one is refused.
IDENTITY = ("method", "parameters", "seed", "model", "federation", "task", "fingerprint", "settings")
# What may differ when a run goes on: how far, and where it runs. Neither changes a number of the rounds already done.
FREE_SETTINGS = ("rounds", "workers", "device", "state_memory")


def write_atomically(path: Path, data: bytes) -> None:
    """The whole file or none of it, even if the power goes."""
    half = path.with_name(path.name + ".partial")
    with half.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def digest_of(data: bytes = b"") -> hashlib.blake2b:
    """A digest that can go on; its text is ``.hexdigest()``."""
    return hashlib.blake2b(data, digest_size=16)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1, default=str).encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); mend it, or leave its folder for another") from error


def without_folders(value: Any) -> Any:
    """A recipe, or what a run says of itself, with files (``root``, ``start``) by name: where they lie is no matter.

    That they hold the same is known by their fingerprints.
    """
    if isinstance(value, Mapping):
        return {
            key: Path(entry).name if key in ("root", "start") and isinstance(entry, str) else without_folders(entry)
            for key, entry in value.items()
        }
    return [without_folders(entry) for entry in value] if isinstance(value, list | tuple) else value


def refuse_another(folder: Path, about: Mapping[str, Any]) -> None:
    """Refuse a folder that began as another run."""
    path = folder / RUN_FILE
    if path.exists():
        about = json.loads(json.dumps(about, default=str))
        before = read_json(path)
        for key in IDENTITY:
            then, now = (_fixed(entry.get(key), key) for entry in (before, about))
            if then != now:
                what = "its data" if key == "fingerprint" else f"'{key}'"
                detail = "" if key == "fingerprint" else f" ({then!r} then, {now!r} now)"
                raise UserError(
                    f"{folder} began with something else: {what} differ{'s' if key != 'fingerprint' else ''}{detail}; "
                    "a run goes on only as the same run: start anew in another folder (--out)"
                )
        refuse_fewer_rounds(folder, before["settings"], about["settings"])


def refuse_fewer_rounds(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if now["rounds"] < before["rounds"]:
        raise UserError(f"{folder} was to have {before['rounds']} rounds; a resumed run can have more, not fewer")


def _fixed(value: Any, key: str) -> Any:
    if key == "task" and isinstance(value, dict):
        return {name: value.get(name) for name in ("classes", "kind", "values")}
    if key == "settings" and isinstance(value, dict):
        fixed = {name: v for name, v in value.items() if name not in FREE_SETTINGS}
        fixed.setdefault("finish", False)  # of runs begun before there was any finishing
        if fixed.get("executor") == "workers":  # gives the same bits
            fixed["executor"] = "serial"
        return fixed
    return value


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Two processes must not write to one folder; the lock goes with the process, however it ends.

    A folder that was made for it and in which nothing was written is not left behind.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, not held on by forked workers
        except OSError as error:
            raise UserError(f"another process is running in {folder}; wait for it, or choose another --out") from error
        try:
            yield
        finally:
            if made and [path.name for path in folder.iterdir()] == [".lock"]:
                (folder / ".lock").unlink()
                folder.rmdir()
