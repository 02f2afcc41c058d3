"""Downloads that survive a bad line: resumed, verified, and never half there under their own name.

A file grows as ``NAME.part``; ``NAME.part.json`` remembers which version of the server's file that is a part of (ETag
or Last-Modified), so two versions are never glued together. Only a whole, verified file is renamed to ``NAME``. Where
no checksum is published, an archive must open or decompress to its end; the sha256 first seen is kept in
``NAME.sha256`` and holds from then on.
"""

from __future__ import annotations

import bz2
import errno
import fcntl
import gzip
import hashlib
import lzma
import os
import re
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit

from fedsense.data import files
from fedsense.data.card import Download
from fedsense.data.transfer import FULL, Patience, Progress, Transfer, beside, by_hand, size_in_words
from fedsense.errors import RunFailed, UserError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

BLOCK = 1 << 20
PAGE = "it is a web page and no archive"
ZIP_MEMBER = b"PK\3\4"
UNPACKED: dict[str, Callable[[Path], BufferedIOBase]] = {
    **dict.fromkeys((".gz", ".tgz"), gzip.GzipFile),
    **dict.fromkeys((".xz", ".txz"), lzma.LZMAFile),
    **dict.fromkeys((".bz2", ".tbz2"), bz2.BZ2File),
}
# what reading a damaged archive raises; OSError is gzip's and bz2's, and that of a zip whose directory points nowhere
DAMAGED = (*files.DAMAGED, OSError, ValueError, NotImplementedError)


def fetch(
    downloads: Sequence[Download],
    folder: Path,
    progress: Progress | None = None,
    patience: Patience | None = None,
) -> list[Path]:
    """The files, fetched into ``folder`` as far as they are not there yet, and verified."""
    for download in downloads:
        _check(download)
    with _disk_is_told(folder):
        return [_fetch_one(download, folder, progress or Progress(), patience or Patience()) for download in downloads]


def _check(download: Download) -> None:
    if not _is_address(download.url):
        raise UserError(f"{download.url!r} cannot be fetched; expected an address like https://example.org/data.zip")
    if download.name in ("", ".", "..") or "/" in download.name or "\0" in download.name:
        raise UserError(f"{download.name!r} is no name for a file to save; expected one without folders")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return named and re.fullmatch("[!-~]+", url) is not None


def _fetch_one(download: Download, folder: Path, progress: Progress, patience: Patience) -> Path:
    target = folder / download.name
    was_there = target.exists()
    if _is_there(download, target, progress):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(target, progress) as waited:
        if (waited or not was_there) and _is_there(download, target, progress):
            return target
        _forget_sum_of_broken(download, target)
        transfer = Transfer(download, target, progress, patience)
        for last in (False, True):
            transfer.run()
            wrong = _wrong(download, transfer.part, target)
            if not wrong:
                break
            transfer.forget()
            if wrong == PAGE:
                raise transfer.shows_a_page()
            if last:
                raise RunFailed(
                    f"{download.url}: {wrong}, twice; try again later, or if the source has a new version, "
                    f"{by_hand(target)}"
                )
            progress.told(f"{download.name}: {wrong}; once more from the start")
        transfer.part.replace(target)
        transfer.forget()
        _keep_sum(download, target, progress)
    progress.finished()
    return target


def _is_there(download: Download, target: Path, progress: Progress) -> bool:
    if target.is_dir():
        raise UserError(f"{target} is a folder, and a file is to be saved under that name; move it away")
    if not target.is_file():
        return False
    wrong = _wrong(download, target, target)
    if wrong:
        progress.told(f"{download.name} is there, but {wrong}; fetching it again")
        return False
    with suppress(OSError):  # a folder that can only be read is good enough for a file that is there
        _keep_sum(download, target, progress)
    return True


def _wrong(download: Download, path: Path, target: Path) -> str:
    """What is wrong with the file, or nothing; where no sum is published, the archive and the sum kept tell."""
    published = _is_summed(download)
    wrong = _wrong_size(download, path) or _wrong_sum(download, path)
    if (wrong or not published) and _is_page(download, path):
        return PAGE
    if wrong or published:
        return wrong
    return _broken(download, path) or _other_sum(path, "sha256", _kept_sum(target))


def _is_summed(download: Download) -> bool:
    return bool(download.sha256 or download.md5)


def _wrong_size(download: Download, path: Path) -> str:
    size = path.stat().st_size
    if download.bytes is not None and size != download.bytes:
        return f"it has {size} bytes, and {download.bytes} were expected"
    return ""


def _wrong_sum(download: Download, path: Path) -> str:
    return _other_sum(path, "sha256", download.sha256) or _other_sum(path, "md5", download.md5)


def _other_sum(path: Path, kind: str, expected: str | None) -> str:
    if expected and (seen := _sum(path, kind)) != expected.lower():
        return f"its {kind} is {seen}, and {expected.lower()} was expected"
    return ""


def _is_page(download: Download, path: Path) -> bool:
    with path.open("rb") as stream:
        start = stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return start.startswith((b"<!doctype html", b"<html")) and not download.name.lower().endswith((".html", ".htm"))


def _broken(download: Download, path: Path) -> str:
    """Why the archive is not whole, by its own telling, or nothing. A server that names no length may have cut it."""
    ending = Path(download.name).suffix.lower()
    size = size_in_words(path.stat().st_size)
    if path.stat().st_size == 0:  # which gzip takes for a whole archive of nothing
        return "it is empty"
    try:
        if ending == ".zip":
            _open_zip(path)
        elif ending in UNPACKED:
            _unpack(path, UNPACKED[ending])
    except EOFError:
        return f"it ends too early, after {size}"
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # the disk's trouble
            raise
        return f"it is no whole {ending} archive ({size}; {error})"
    return ""


def _open_zip(path: Path) -> None:
    """Its directory is at the end. One that leaves out how the file begins is that of a zip within a cut zip."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        first = min((member.header_offset for member in archive.infolist()), default=0)
        if first > 0 and stream.read(4) == ZIP_MEMBER:
            raise EOFError


def _unpack(path: Path, opened: Callable[[Path], BufferedIOBase]) -> None:
    with opened(path) as stream:
        while stream.read(BLOCK):
            pass


def _sum(path: Path, kind: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _kept_sum(target: Path) -> str | None:
    try:
        words = beside(target, ".sha256").read_text("ascii", errors="replace").split()
    except FileNotFoundError:
        return None
    return words[0] if words and re.fullmatch("[0-9a-fA-F]{64}", words[0]) else None


def _keep_sum(download: Download, target: Path, progress: Progress) -> None:
    """Write down the sum of a file whose sum nobody published, as ``sha256sum --check`` reads it."""
    if _is_summed(download) or _kept_sum(target):
        return
    seen, place = _sum(target, "sha256"), beside(target, ".sha256")
    place.write_text(f"{seen}  {target.name}\n", "utf-8")
    progress.told(f"{target.name}: no checksum is known; its sha256 {seen} is kept in {place.name} for the next time")


def _forget_sum_of_broken(download: Download, target: Path) -> None:
    """A sum kept of a file that is not whole would have the whole one refused."""
    if _is_summed(download) or not target.is_file() or _other_sum(target, "sha256", _kept_sum(target)):
        return
    if _is_page(download, target) or _broken(download, target):
        beside(target, ".sha256").unlink(missing_ok=True)


@contextmanager
def _alone(target: Path, progress: Progress) -> Iterator[bool]:
    """Hold the lock of a file, waiting for another process that fetches it; gives whether it had to wait."""
    lock, waited = beside(target, ".lock"), False
    while True:
        with lock.open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.told(f"another process is fetching {target.name}; waiting for it")
                waited = True
                fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_open_at(stream, lock):  # else the one before removed it, and somebody may hold a newer lock
                try:
                    yield waited
                finally:
                    lock.unlink(missing_ok=True)
                return


def _is_open_at(stream: IO[Any], path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    return False


@contextmanager
def _disk_is_told(folder: Path) -> Iterator[None]:
    try:
        yield
    except ConnectionError:  # a pipe the listener writes to
        raise
    except OSError as error:
        why = error.strerror or error
        if error.errno in FULL:
            raise RunFailed(
                f"no room is left in {folder} ({why}); make some and run it again: what came is kept"
            ) from error
        raise UserError(f"cannot keep files in {folder} ({why}); name a folder that can be written to") from error


class Bar(Progress):
    """Progress on standard error: a bar on a terminal, elsewhere a line when a file begins and one when it is there."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.bars: RichProgress | None = _bars(self.stream) if self.stream.isatty() else None
        self.task: TaskID | None = None
        self.name, self.bytes, self.began = "", 0, 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self.bars:
            self.bars.stop()

    def started(self, name: str, total: int | None) -> None:
        again = name == self.name
        self.name, self.bytes, self.began = name, 0, time.monotonic()
        if not self.bars:
            size, how = f" ({size_in_words(total)})" if total else "", ", from the start" if again else ""
            self.told(f"fetching {name}{size}{how}")
            return
        self.bars.start()
        if again and self.task is not None:
            self.bars.remove_task(self.task)
        self.task = self.bars.add_task(name, total=total)

    def advanced(self, count: int) -> None:
        self.bytes += count
        if self.bars and self.task is not None:
            self.bars.advance(self.task, count)

    def finished(self) -> None:
        if not self.bars:
            self.told(f"{self.name} is there: {size_in_words(self.bytes)} in {time.monotonic() - self.began:.0f} s")
        elif self.task is not None:
            self.bars.update(self.task, total=self.bytes, completed=self.bytes)

    def told(self, message: str) -> None:
        if self.bars:
            self.bars.console.print(message, markup=False)
        else:
            print(message, file=self.stream, flush=True)


def _bars(stream: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(file=stream, highlight=False))
