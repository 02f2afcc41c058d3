"""What runs measured, without their models: one small file to keep, to share, to compare, and to go on from elsewhere.

A packed file is a tar.xz of the folders as they are, but for checkpoints and pages. Unpacked (``tar xf``) it is a
folder of runs that are done: seeds may be added to it, and what it has is not run again.
"""

from __future__ import annotations

import atexit
import io
import json
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fedsense.engine.checkpoint import PACKED_FILE, standing
from fedsense.engine.folder import RECIPE_FILE, RUN_FILE, read_json, without_folders, write_atomically
from fedsense.errors import UserError

KINDS = (".json", ".jsonl", ".md", ".svg")
LEFT = ("checkpoints", "curves.svg")  # the latter, like index.html, can be drawn again


@dataclass(frozen=True)
class Packed:
    """What is in a packed file."""

    runs: int
    unfinished: list[Path]  # left out
    bytes: int


def pack(folders: Sequence[Path], file: Path) -> Packed:
    """Write all that is finished below ``folders`` to ``file``; the same runs give the same bytes."""
    names = [folder.resolve().name for folder in folders]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"two folders are called '{min(twice)}'; pack the folder they are in, or rename one")
    unfinished, runs, buffer = list[Path](), 0, io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for folder, name in zip(folders, names, strict=True):
            if not folder.is_dir():
                raise UserError(f"{folder} is no folder; name one that `fedsense run` or `fedsense reproduce` wrote")
            left = [path.parent for path in folder.rglob(RUN_FILE) if not _finished(path.parent)]
            unfinished += left
            for path in sorted(_files(folder)):
                if any(run in path.parents for run in left):
                    continue
                inside = Path(name) / path.relative_to(folder)
                if path.name == RUN_FILE:
                    runs += 1
                    stands = json.dumps(standing(path.parent), indent=1).encode()
                    _add(archive, inside.with_name(PACKED_FILE), stands)
                _add(archive, inside, _shown(path))
    if not runs:
        why = f"{len(unfinished)} that are not finished" if unfinished else "none"
        raise UserError(f"there is no finished run to pack in {', '.join(map(str, folders))} ({why})")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, buffer.getvalue())
    return Packed(runs, unfinished, len(buffer.getvalue()))


def opened(path: Path) -> Path:
    """A folder of runs: ``path`` itself, or what was packed, for as long as this process lives."""
    return _unpacked(path.resolve(), path.stat().st_mtime_ns) if path.is_file() else path


@lru_cache(32)
def _unpacked(file: Path, _: int) -> Path:
    if file.suffix == ".toml":
        raise UserError(f"{file.name} is a recipe; run it (fedsense run {file.name}), and name the folder of its runs")
    place = tempfile.TemporaryDirectory(prefix="fedsense-")
    atexit.register(place.cleanup)
    try:
        with tarfile.open(file) as archive:
            archive.extractall(place.name, filter="data")  # nothing outside, no links out, no devices
    except tarfile.ReadError as error:  # whose text is that of every kind of archive it is not
        raise UserError(f"{file.name} is neither a folder of runs nor a file that `fedsense pack` wrote") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        text = f"{file.name} is neither a folder of runs nor a whole file that `fedsense pack` wrote ({error})"
        raise UserError(text) from error
    inside = list(Path(place.name).iterdir())
    return inside[0] if len(inside) == 1 else Path(place.name)  # one folder was packed, or several beside each other


def _finished(run: Path) -> bool:
    found = standing(run)
    try:
        return found is not None and found["round"] >= read_json(run / RUN_FILE)["settings"]["rounds"]
    except (KeyError, TypeError):  # whatever it is, it is no whole run
        return False


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).parts
        if path.suffix in KINDS and path.is_file() and path.name != PACKED_FILE and not set(inside) & set(LEFT):
            yield path


def _shown(path: Path) -> bytes:
    """What a file holds, but not in which folders of this machine anything lies."""
    if path.name not in (RUN_FILE, RECIPE_FILE):
        return path.read_bytes()
    return json.dumps(without_folders(read_json(path)), indent=1).encode()


def _add(archive: tarfile.TarFile, name: Path, data: bytes) -> None:
    entry = tarfile.TarInfo(name.as_posix())  # of nobody, of no time: the same runs, the same bytes
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
