"""What was read once is kept: named by the content of the files and the options, so it can never be out of date.

Entries are safetensors files, mapped into memory when read. They are written whole or not at all; of two processes
that want the same entry one makes it and the other waits. ``FEDSENSE_CACHE`` names the folder (default: the user's
cache folder), ``FEDSENSE_CACHE_LIMIT`` how many GB it may hold (default 20; 0 keeps nothing); what was used longest
ago goes first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedsense.data.cores import on_all_cores
from fedsense.data.files import Files, damage_is_told, from_user
from fedsense.errors import UserError

Array = NDArray[Any]
Arrays = Mapping[str, Array | Sequence[Array]]  # a list is one array, in pieces along the first axis
KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
         "int8": "I8", "uint8": "U8", "bool": "BOOL"}  # fmt: skip
BLOCK = 1 << 19  # bytes digested together
AT_ONCE = (
    1 << 16
)  # bytes written with one call: for more the system looks for large pages, which can take ten times as long
ABANDONED = 24 * 3600  # seconds after which a half-written file is nobody's any more


@dataclass(frozen=True)
class Pack:
    """Named arrays and a description of them: what an entry holds."""

    arrays: Mapping[str, Tensor]
    about: Any


def folder() -> Path:
    """Where entries are kept."""
    named = os.environ.get("FEDSENSE_CACHE")
    if named:
        return from_user(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsense"


def limit() -> float:
    """Bytes the folder may hold."""
    given = os.environ.get("FEDSENSE_CACHE_LIMIT") or "20"
    try:
        return float(given) * 1e9
    except ValueError as error:
        raise UserError(f"FEDSENSE_CACHE_LIMIT is '{given}'; give a number of GB, 0 to keep nothing") from error


def key_of(*parts: Any) -> str:
    """A name for what is made of these parts."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


# who writes entries while the one that is made of them is made; None: whoever makes an entry writes it
_aside: ContextVar[Callable[[Callable[[], None]], None] | None] = ContextVar("aside", default=None)


def cached(key: str, make: Callable[[], tuple[Arrays, Any]]) -> Pack:
    """The entry of that key, made and kept if it is not there. ``make`` may ask for other entries."""
    path = folder() / f"{key}.safetensors"
    if limit() <= 0:
        return unkept(*make())
    if (pack := _read(path)) is not None:
        return pack
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(path.with_suffix(".lock")))
        except OSError as error:
            _warn(error)
            return unkept(*make())
        if (pack := _read(path)) is not None:  # made while we waited
            return pack
        with _written_aside():
            arrays, about = make()
        if (aside := _aside.get()) is not None:
            until = held.pop_all()  # the lock goes with the writing
            aside(lambda: _keep(path, arrays, about, until))
            return unkept(arrays, about)
        _keep(path, arrays, about, held)
        in_one_piece = all(isinstance(array, np.ndarray) for array in arrays.values())
        return unkept(arrays, about) if in_one_piece else _read(path) or unkept(arrays, about)


@contextmanager
def _written_aside() -> Iterator[None]:
    """Entries made within are written by a thread of its own, and are written when the block ends."""
    jobs: list[Future[None]] = []
    with ThreadPoolExecutor(1) as pool:
        before = _aside.set(lambda job: jobs.append(pool.submit(job)))
        try:
            yield
        finally:
            _aside.reset(before)
    for job in jobs:
        job.result()


def _keep(path: Path, arrays: Arrays, about: Any, until: ExitStack) -> None:
    with until:
        try:
            _write(path, arrays, about)
            _trim(keep=path)
        except (OSError, SafetensorError) as error:  # a full disk is either
            _warn(error)


def _warn(error: Exception) -> None:
    message = f"nothing is kept in {folder()} ({error}); set FEDSENSE_CACHE to a folder of yours"
    warnings.warn(message, stacklevel=3)


@lru_cache(maxsize=1)
def code_key() -> str:
    """A digest of the code that reads and cuts: what another version made is made anew."""
    here = Path(__file__).parent
    sources = [*here.glob("*.py"), *here.glob("synthetic/*.py"), here.parent / "federation.py", here.parent / "work.py"]
    return code_of(*map(str, sorted(sources)))


def code_of(*sources: str) -> str:
    """A digest of source files, and of the libraries they stand on."""
    digest = hashlib.sha256(b"".join(Path(source).read_bytes() for source in sources))
    return key_of(digest.hexdigest(), [module.__version__ for module in (np, scipy, torch)])


def content_key(files: Files) -> str:
    """A digest of the content of a dataset's files; of an archive's own bytes, if it is one.

    A file whose size and times are as they were when it was last digested is not read again.
    """
    paths = files.on_disk()
    memory = folder() / f"digests-{key_of(str(files.root.absolute()), files.wanted)}.json"
    known, now, digests = _json(memory), {}, []
    for path in paths:
        with damage_is_told(str(path)):
            before = _times(path)
            digests.append(_digest(path, before, known))
            if _settled(path):
                now[str(path)] = [*before, digests[-1]]
    if now != known and limit() > 0:
        with suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            _replace(memory, lambda half: half.write_text(json.dumps(now)))
    # readers look at names, also of a file that is given by itself
    inside = [path.name if path == files.root else path.relative_to(files.root).as_posix() for path in paths]
    return key_of(inside, digests)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One at a time, thread or process; the lock goes with the process, however it ends."""
    while True:
        with path.open("w") as file:
            with suppress(
                OSError
            ):  # a file system without locks: the work may be done twice, and is right all the same
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _still(path, file.fileno()):
                continue  # whoever had it before us removed it
            try:
                yield
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def _still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _digest(path: Path, times: list[int], known: Mapping[str, Any]) -> str:
    match known.get(str(path)):
        case [*before, str(digest)] if before == times:
            return digest
    with path.open("rb") as file:
        return _digest_of(file, times[0])


def _digest_of(file: BinaryIO, size: int) -> str:
    """Of blocks, on all cores. sha256 is the fastest that processors have a part for."""
    starts = range(0, max(size, 1), BLOCK)
    blocks = on_all_cores(lambda start: hashlib.sha256(os.pread(file.fileno(), BLOCK, start)).digest(), starts)
    return hashlib.sha256(b"".join(blocks)).hexdigest()


def _times(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _settled(path: Path) -> bool:
    """A file written this very moment could be written again without its times showing it."""
    return time.time_ns() - path.stat().st_ctime_ns > 2e9


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> Pack | None:
    try:
        with safe_open(path, framework="pt") as entry:  # maps the file; pages are read when they are used
            arrays = {name: entry.get_tensor(name) for name in entry.keys()}  # noqa: SIM118
            about = json.loads(entry.metadata()["about"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None  # not there, or cut short: made anew
    with suppress(OSError):
        os.utime(path)
    return Pack(arrays, about)


def _write(path: Path, arrays: Arrays, about: Any) -> None:
    """A safetensors file. Written piece by piece, because the library's own writer copies everything twice first."""
    entries: dict[str, Any] = {"__metadata__": {"about": _text(about)}}
    pieces: list[Array] = []
    end = 0
    whole = {name: _parts(array) for name, array in arrays.items()}
    for name, parts in sorted(whole.items(), key=lambda entry: -entry[1][0].itemsize):  # wide numbers first: aligned
        begin, end = end, end + sum(part.nbytes for part in parts)
        shape = [sum(map(len, parts)), *parts[0].shape[1:]] if parts[0].ndim else []
        entries[name] = {"dtype": KINDS[parts[0].dtype.name], "shape": shape, "data_offsets": [begin, end]}
        pieces += parts
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)

    def write(half: Path) -> None:
        with half.open("wb", buffering=0) as file:
            head = np.frombuffer(len(header).to_bytes(8, "little") + header, np.uint8)
            for piece in (head, *pieces):
                view = piece.reshape(-1).view(np.uint8).data
                while len(view):  # a file without buffer may take less than all
                    view = view[file.write(view[:AT_ONCE]) :]

    _replace(path, write)


def _parts(array: Array | Sequence[Array]) -> list[Array]:
    return [_native(part) for part in ([array] if isinstance(array, np.ndarray) else array)]


def _native(array: Array) -> Array:
    """In one piece, in this machine's order of bytes, and its own to write into."""
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def _text(about: Any) -> str:
    return json.dumps(about, default=lambda value: value.tolist())  # a number or array of NumPy


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".partial", dir=path.parent)
    os.close(handle)
    half = Path(name)
    try:
        write(half)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def unkept(arrays: Arrays, about: Any) -> Pack:
    """As an entry would give it back."""
    joined = {name: array if isinstance(array, np.ndarray) else np.concatenate(array) for name, array in arrays.items()}
    tensors = {name: torch.from_numpy(_native(array)) for name, array in joined.items()}
    return Pack(tensors, json.loads(_text(about)))


def _trim(keep: Path) -> None:
    """Remove what was used longest ago until the rest fits. A process that maps a removed entry keeps its pages."""
    for path in keep.parent.glob("*.partial"):  # of a process that was killed while it wrote
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
    entries = []
    for path in keep.parent.glob("*.safetensors"):
        with suppress(OSError):
            entries.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit():
            return
        if path != keep:
            with suppress(OSError):
                path.unlink()
            total -= size
