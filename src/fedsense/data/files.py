"""The files of a dataset, wherever they lie: in a folder, a zip or a tar, also in an archive inside an archive.

Nothing is ever unpacked to disk, and nothing outside the folder or archive is touched: a name that climbs out of it,
a link, or a file larger than the limits is refused.
"""

from __future__ import annotations

import bz2
import fnmatch
import gzip
import io
import lzma
import os
import queue
import stat
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from fedsense.data.telling import one_done
from fedsense.errors import UserError, nearest

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
LARGEST = 8 << 30  # bytes of one file; the largest official one, of HHAR, has 1.4 GB
LARGEST_TAR = 6 << 30  # bytes kept in memory of tars, which cannot be read out of order, and of archives in archives
LONGEST_NAME = 1 << 20  # bytes of a member's name and notes in a tar
NESTING = 3  # archives inside archives
CHUNK = 1 << 22  # bytes read at once: Python sets aside what is asked for, also of a small file
AHEAD = 1 << 18  # bytes handed over at once by the thread that unpacks
BLOCK = 1 << 18  # bytes unpacked at once: each time, a thread waits for its turn


class _Blocks(io.RawIOBase):
    """A stream for what asks for a few bytes at a time and takes as many as it gets."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, _: int = -1) -> bytes:
        return self._stream.read(BLOCK)


SQUEEZED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lambda stream: lzma.LZMAFile(_Blocks(stream)),  # type: ignore[arg-type]  # noqa: SIM115
    b"BZh": lambda stream: bz2.BZ2File(_Blocks(stream)),
}  # a file's first bytes → what reads it
DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    gzip.BadGzipFile,
    struct.error,
    UnicodeError,
)


@dataclass(frozen=True)
class File:
    """A file of a dataset. ``name`` is its path within, ``place`` what messages call it."""

    name: str
    place: str
    opener: Callable[[], Any]  # gives a stream of bytes
    held: bytes | None = None  # all of it, where it is in memory anyway

    def read(self) -> bytes:
        if self.held is not None:
            return self.held
        with self.open() as stream, damage_is_told(self.place):
            return _content(
                stream, f"{self.place} is larger than {_size(LARGEST)}, which no file of a known dataset is"
            )

    def open(self) -> IO[bytes]:
        with damage_is_told(self.place):
            stream: IO[bytes] = self.opener()
            return stream

    def unzipped(self) -> bytes:
        """The bytes, out of .gz if the name says so."""
        data = self.read()
        if not self.name.lower().endswith(".gz"):
            return data
        too_large = f"{self.place} unpacks to more than {_size(LARGEST)}; it is not trusted"
        with damage_is_told(self.place):
            whole = zlib.decompressobj(wbits=31)  # in one go, where there is one member, as nearly always
            plain = whole.decompress(data, LARGEST + 1)
            if len(plain) > LARGEST:
                raise UserError(too_large)
            if whole.eof and not whole.unused_data:
                return plain
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
                return _content(stream, too_large)

    @property
    def base(self) -> str:
        """The last part of the name."""
        return PurePosixPath(self.name).name

    @property
    def folder(self) -> str:
        """The folder it lies in, its last part only."""
        return PurePosixPath(self.name).parent.name

    def wrong(self, message: str) -> UserError:
        return UserError(f"{self.place}: {message}")


@contextmanager
def damage_is_told(place: str) -> Iterator[None]:
    """A damaged file is named; Python's own message says too little."""
    try:
        yield
    except DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{place} is damaged or cut short ({reason}); get it again") from error
    except RuntimeError as error:  # what zipfile raises for a compression it does not know
        raise UserError(f"{place} cannot be read: {error}") from error
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror or error}") from error


class Files:
    """The files of one dataset that its reader asks for: those that end as one of the ``wanted`` patterns.

    ``ahead`` is done to each of them as soon as it is there, while the rest of an archive is unpacked; :meth:`made` has
    what it gave.
    """

    def __init__(
        self, root: Path, wanted: Sequence[str], expected: str = "", ahead: Callable[[File], Any] | None = None
    ) -> None:
        self.root = root
        self.wanted = tuple(wanted)
        self.expected = expected  # the official layout in a line, for messages
        self.readings: dict[str, Any] = {}  # what was read of them, so that it is read once also without a cache
        self._ahead = ahead
        self._made: dict[str, Future[Any]] = {}

    @cached_property
    def files(self) -> list[File]:
        """All of them, by name; an archive is opened when this is first asked."""
        found: dict[str, File] = {}
        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            for file in _walk(self.root, self.wanted):
                found[file.name] = file
                if self._ahead is not None:
                    self._made[file.name] = pool.submit(self._ahead, file)
                    self._made[file.name].add_done_callback(lambda _: one_done())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown(wait=False)
        if not found:
            raise UserError(self._nothing())
        for name in found:
            if (plain := next((other for other in _beside(name) if other in found), None)) is not None:
                raise UserError(f"{self.root} holds the same file twice, as {name} and unpacked as {plain}; keep one")
        return [found[name] for name in sorted(found)]

    def on_disk(self) -> list[Path]:
        """The files themselves, or the archives they are in; nothing is opened."""
        return [
            path
            for path in _paths(self.root)
            if path == self.root or _interesting(path.relative_to(self.root).as_posix(), self.wanted)
        ]

    def all(self, pattern: str) -> list[File]:
        """Every file whose path ends as the pattern, by name; at least one."""
        found = self.some(pattern)
        if not found:
            raise UserError(f"{self.root} holds no file '{pattern}'" + self._hint())
        return found

    def some(self, pattern: str) -> list[File]:
        """Every file whose path ends as the pattern, by name; perhaps none."""
        return [file for file in self.files if ends_as(file.name, pattern)]

    def one(self, pattern: str) -> File:
        """The only file whose path ends as the pattern."""
        found = self.all(pattern)
        if len(found) > 1:
            raise UserError(
                f"{self.root} holds '{pattern}' {len(found)} times ({found[0].name}, {found[1].name}, …); keep one"
            )
        return found[0]

    def made(self, file: File) -> Any:
        """What ``ahead`` gave for the file."""
        return self._made[file.name].result()

    def _hint(self) -> str:
        return f"; expected: {self.expected}" if self.expected else ""

    def _nothing(self) -> str:
        there = sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []
        seen = f" (it holds {', '.join([*there[:5], '…'] if len(there) > 5 else there)})" if there else ""
        asked = ", ".join(f"'{pattern}'" for pattern in self.wanted[:3])
        return f"{self.root} holds no file like {asked}{seen}" + self._hint()


def ends_as(name: str, pattern: str) -> bool:
    """Does the path end as the pattern? ``RawData/acc_*.txt`` looks at the last two parts; case does not matter."""
    parts, wanted = name.lower().split("/"), pattern.lower().split("/")
    if len(parts) < len(wanted):
        return False
    return all(fnmatch.fnmatchcase(p, w) for p, w in zip(parts[-len(wanted) :], wanted, strict=True))


def find_root(name: str, root: str | Path | None, description: str = "") -> Path:
    """Where a dataset lies: ``root``, else ``FEDSENSE_DATA/<name>`` (a folder, or an archive of that name)."""
    if root is not None:
        path = from_user(root)
        if not os.access(path, os.F_OK):
            names = [p.name for p in path.parent.glob("*")]
            hint = f"; {nearest(path.name, names)}" if names and len(names) < 50 else ""
            raise UserError(f"dataset '{name}': there is no folder or file {path}{hint}", about="root")
        return path
    base = os.environ.get("FEDSENSE_DATA")
    if base:
        folder = from_user(base)
        for path in (folder / name, *(folder / f"{name}{ending}" for ending in (*ARCHIVES, ".npz"))):
            if os.access(path, os.F_OK):
                return path
        raise UserError(
            f"dataset '{name}' is not in FEDSENSE_DATA: there is no {folder / name}; put it there ({description}), "
            'or say where it is: root = "…"'
        )
    raise UserError(
        f"where is dataset '{name}'? say root = \"…\" (a folder, zip or tar of the official files), or set "
        f"FEDSENSE_DATA to the folder that holds {name}/; {description}",
        about="name",
    )


def from_user(path: str | Path) -> Path:
    """The path a person wrote, with ~ as their folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # ~somebody, who is not known here
        return Path(path)


def _walk(root: Path, wanted: tuple[str, ...]) -> Iterator[File]:
    memory = _Memory()
    for path in _paths(root):
        inside = root.name if path == root else path.relative_to(root).as_posix()
        file = File(inside, str(path), partial(path.open, "rb"))
        yield from _within(file, "" if path == root else inside, wanted, 0, memory)


def _paths(root: Path) -> Iterator[Path]:
    """Every file, in order; nothing is opened."""
    return iter([root]) if root.is_file() else _below(root, ())


def _below(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """The files in a folder. Links are followed, but no folder is entered from within itself."""
    with damage_is_told(str(folder)):
        found, entries = folder.stat(), sorted(folder.iterdir())
    here = (found.st_dev, found.st_ino)
    for path in entries if here not in above else ():
        if _hidden(path.name):
            continue
        if path.is_dir():
            yield from _below(path, (*above, here))
        elif path.is_file() or path.is_symlink():  # a pipe would never end; a link to nothing is named when it is read
            yield path


def _hidden(part: str) -> bool:
    return part == "__MACOSX" or part.startswith(".")


class _Memory:
    """How much is kept in memory of one dataset's archives."""

    held = 0

    def hold(self, size: int, archive: File) -> None:
        self.held += size
        if self.held > LARGEST_TAR:
            raise UserError(f"{archive.place} unpacks to more than {_size(LARGEST_TAR)}; unpack it and give the folder")


def _within(file: File, prefix: str, wanted: tuple[str, ...], depth: int, memory: _Memory) -> Iterator[File]:
    """The file if it is wanted; if it is an archive, what is wanted in it."""
    if any(ends_as(file.name, pattern) for pattern in wanted):
        yield file
    elif file.base.lower().endswith(ARCHIVES):
        if depth >= NESTING:
            raise UserError(f"{file.place}: archives are nested deeper than {NESTING}; unpack it first")
        opened = partial(_zip, nested=depth > 0) if file.base.lower().endswith(".zip") else _tar
        for member in opened(file, prefix, wanted, memory):
            yield from _within(member, member.name, wanted, depth + 1, memory)


def _interesting(name: str, wanted: tuple[str, ...]) -> bool:
    return name.lower().endswith(ARCHIVES) or any(ends_as(name, pattern) for pattern in wanted)


def _beside(name: str) -> Iterator[str]:
    """Where a file in an archive would lie had the archive been unpacked: beside it, or in a folder of its name."""
    parts = name.split("/")
    for place, part in enumerate(parts[:-1]):
        ending = next((e for e in ARCHIVES if part.lower().endswith(e)), None)
        if ending:
            yield "/".join([*parts[:place], *parts[place + 1 :]])
            yield "/".join([*parts[:place], part[: -len(ending)], *parts[place + 1 :]])


def _safe(name: str, archive: File) -> str:
    path = PureWindowsPath(name)  # both kinds of slashes, drives
    if path.anchor or ".." in path.parts:
        raise UserError(f"{archive.place} holds '{name}', which climbs out of its folder; it is not trusted")
    return path.as_posix()


def _link(archive: File, name: str) -> UserError:
    return UserError(f"{archive.place}: '{name}' is a link or a device, not a file; it is not trusted")


def _wanted_member(name: str, wanted: tuple[str, ...]) -> bool:
    return not any(_hidden(part) for part in name.split("/")) and _interesting(name, wanted)


def _zip(archive: File, prefix: str, wanted: tuple[str, ...], memory: _Memory, *, nested: bool) -> Iterator[File]:
    with damage_is_told(archive.place):
        # an archive on disk is read in place; one inside another is held in memory
        box = zipfile.ZipFile(io.BytesIO(archive.read()) if nested else archive.place)  # closes what it opens itself
    for info in box.infolist():
        name = _safe(info.filename, archive)
        if info.filename.endswith("/") or not _wanted_member(name, wanted):
            continue
        if stat.S_ISLNK(info.external_attr >> 16):
            raise _link(archive, name)
        if info.flag_bits & 1:
            raise UserError(f"{archive.place}: '{name}' needs a password; unpack it and give the folder")
        if info.file_size > LARGEST:
            raise UserError(f"{archive.place}: '{name}' unpacks to {_size(info.file_size)}; it is not trusted")
        if name.lower().endswith(ARCHIVES):
            memory.hold(info.file_size, archive)
        yield File(_joined(prefix, name), f"{archive.place}/{name}", partial(box.open, info))


class _Member(tarfile.TarInfo):
    """tarfile takes a damaged or missing header for the end of the archive, and reads any length of a name."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the true end
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error
        if member.type not in tarfile.REGULAR_TYPES and member.size > LONGEST_NAME:
            raise tarfile.ReadError(f"a name of {member.size} bytes")
        return member


def _tar(archive: File, prefix: str, wanted: tuple[str, ...], memory: _Memory) -> Iterator[File]:
    """A tar can only be read from its beginning, so what is wanted is kept in memory."""
    with (
        archive.open() as stream,
        damage_is_told(archive.place),
        _unsqueezed(stream) as plain,
        tarfile.open(fileobj=plain, mode="r|", bufsize=CHUNK, tarinfo=_Member) as box,
    ):
        for member in box:
            name = _safe(member.name, archive)
            if member.size > LARGEST:
                raise UserError(f"{archive.place}: '{name}' unpacks to {_size(member.size)}; it is not trusted")
            if member.isdir() or not _wanted_member(name, wanted):
                continue
            content = box.extractfile(member) if member.isfile() else None
            if content is None:
                raise _link(archive, name)
            memory.hold(member.size, archive)
            data = content.read()
            yield File(_joined(prefix, name), f"{archive.place}/{name}", partial(io.BytesIO, data), data)
        for _ in range(0, LARGEST, CHUNK):  # to the end, where the checksum is
            if not plain.read(CHUNK):
                break


def _unsqueezed(stream: IO[bytes]) -> Any:
    first = stream.read(max(map(len, SQUEEZED)))
    stream.seek(0)
    for mark, opened in SQUEEZED.items():
        if first.startswith(mark):
            return _Ahead(opened(stream))
    return stream


class _Ahead(io.RawIOBase):
    """Unpacks in a thread of its own, a few chunks ahead of whoever reads."""

    def __init__(self, stream: Any) -> None:
        self._chunks: queue.Queue[bytes | Exception] = queue.Queue(maxsize=32)
        self._rest = memoryview(b"")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._unpack, args=(stream,), daemon=True)
        self._thread.start()

    def _unpack(self, stream: Any) -> None:
        try:
            parts, size = [], 0
            while (part := stream.read1(CHUNK)) and not self._stop.is_set():  # what a block of input gives, at once
                parts.append(part)
                size += len(part)
                if size >= AHEAD:
                    self._chunks.put(b"".join(parts))
                    parts, size = [], 0
            for chunk in (b"".join(parts), b""):
                self._chunks.put(chunk)
        except Exception as error:  # told to whoever reads
            self._chunks.put(error)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not len(self._rest):
            chunk = self._chunks.get()
            if isinstance(chunk, Exception):
                raise chunk
            self._rest = memoryview(chunk)
            if not chunk:
                self._chunks.put(b"")  # the end stays the end
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._stop.set()
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._chunks.get(timeout=0.01)
        super().close()


def _content(stream: IO[bytes] | gzip.GzipFile, too_large: str) -> bytes:
    data = io.BytesIO()
    while chunk := stream.read(CHUNK):
        data.write(chunk)
        if data.tell() > LARGEST:
            raise UserError(too_large)
    return data.getvalue()


def _size(count: int) -> str:
    return f"{count / (1 << 30):.3g} GB"


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def only_known(file: File, value: str, known: Iterable[str], what: str = "label") -> str:
    """The value if it is known, or a message that names the file and the nearest known one."""
    known = list(known)
    if value not in known:
        raise file.wrong(f"{what} '{value}' is unknown; {nearest(value, known)}")
    return value
