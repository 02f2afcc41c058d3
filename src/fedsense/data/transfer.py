"""One file over a bad line: in parts, resumed, never two versions glued together."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from fedsense.data.card import Download
from fedsense.errors import RunFailed

CHUNK = 1 << 17
LARGEST = 64 << 30  # bytes taken from a server that does not say how many it sends
OFFLINE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PASSING = (408, 425, 429)  # with every 5xx: answers that may be another one later
REFUSALS = {
    **dict.fromkeys((404, 410), "is not there ({}): the source may have moved; find it and"),
    **dict.fromkeys((401, 403), "is not given to everyone ({}): log in or fill in the source's form,"),
    **dict.fromkeys((300, 301, 302, 303, 307, 308), "leads in circles or to no http address ({});"),
}


class Progress:
    """Hears how a fetch goes, and does nothing about it. A file that has to begin again is ``started`` again."""

    def started(self, name: str, total: int | None) -> None: ...

    def advanced(self, count: int) -> None: ...

    def finished(self) -> None: ...

    def told(self, message: str) -> None: ...


@dataclass(frozen=True)
class Patience:
    """When to give up: after so many tries in a row that bring nothing, or so many beginnings from the start."""

    tries: int = 6
    first: float = 1.0  # seconds before the next try; doubled each time nothing came
    longest: float = 120.0  # seconds, also of what a server may ask for
    timeout: float = 30.0  # seconds a connection may be silent
    sleep: Callable[[float], None] = time.sleep

    def pause(self, fruitless: int, asked: float) -> None:
        self.sleep(min(self.longest, max(asked, self.first * 2.0 ** max(fruitless - 1, 0))))


def beside(target: Path, ending: str) -> Path:
    return target.with_name(target.name + ending)


def by_hand(target: Path) -> str:
    return f"download it by hand and save it as {target}"


class Again(Exception):
    """A try failed in a way that may pass; ``asked`` is how many seconds the server wants to be left alone."""

    def __init__(self, message: str, asked: float = 0.0) -> None:
        super().__init__(message)
        self.asked = asked


@dataclass(frozen=True)
class Version:
    """Which file of the server's a part belongs to."""

    url: str
    etag: str | None = None
    modified: str | None = None
    total: int | None = None

    @property
    def condition(self) -> str | None:
        """For If-Range, which takes no weak ETag."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def contradicts(self, headers: Message) -> bool:
        pairs = ((self.etag, headers["ETag"]), (self.modified, headers["Last-Modified"]))
        return any(ours and theirs and ours != theirs for ours, theirs in pairs)


class _Redirects(request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise HTTPError(req.full_url, code, f"redirected to {newurl}", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    """Speaks http and https, and no file:, ftp: or data:, which the standard opener knows as well."""
    opener = request.OpenerDirector()
    handlers = (request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.UnknownHandler, _Redirects)
    for handler in (*handlers, request.HTTPDefaultErrorHandler, request.HTTPErrorProcessor):
        opener.add_handler(handler())
    opener.addheaders = [("User-Agent", "fedsense")]
    return opener


class Transfer:
    """Brings the part of one file to its full length."""

    def __init__(self, download: Download, target: Path, progress: Progress, patience: Patience) -> None:
        self.download, self.target, self.progress, self.patience = download, target, progress, patience
        self.part, self.note = beside(target, ".part"), beside(target, ".part.json")
        self.host = urlsplit(download.url).hostname
        self.restarts = 0
        self.arrived = False  # whether any byte came: until then a wrong address is likelier than a bad line
        self.shown: int | None = None  # bytes the listener has heard of

    def run(self) -> None:
        fruitless, best, self.restarts = 0, self.held(), 0
        while True:
            began = self.restarts
            try:
                if self.attempt():
                    return self.show(self.held(), self.held())
                problem = Again(f"{self.host} ended the connection early")
            except Again as again:
                problem = again
            best = best if self.restarts == began else 0
            fruitless, best = (0, self.held()) if self.held() > best else (fruitless + 1, best)
            if max(fruitless, self.restarts) >= self.patience.tries:
                kept = f"; the first {size_in_words(self.held())} are kept" if self.held() else ""
                raise RunFailed(f"gave up on {self.download.url}: {problem}{kept}; try again later")
            if problem.asked > self.patience.longest:
                raise RunFailed(f"{problem} and asks to be left alone for {problem.asked:.0f} s; try again after that")
            self.patience.pause(fruitless, problem.asked)

    def held(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def forget(self) -> None:
        self.restarts += self.held() > 0
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def version(self) -> Version:
        """What the part is a part of; one that cannot be told is not continued, unless a checksum will judge it."""
        try:
            version = Version(**json.loads(self.note.read_text("utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            version = Version("")
        judged = self.download.md5 or self.download.sha256
        too_long = self.held() > (version.total or self.download.bytes or LARGEST)
        if version.url != self.download.url or too_long or not (version.condition or judged):
            self.forget()
            return Version(self.download.url)
        return version

    def attempt(self) -> bool:
        """One request; gives whether the part is whole now."""
        version, held = self.version(), self.held()
        if held and held == version.total:
            return True
        asking = request.Request(self.download.url)
        if held:
            asking.add_header("Range", f"bytes={held}-")
            if version.condition:
                asking.add_header("If-Range", version.condition)
        try:
            response = _opener().open(asking, timeout=self.patience.timeout)
        except HTTPError as error:
            with error:
                return self.refused(error, version, held)
        except (OSError, http.client.HTTPException) as error:
            raise self.explained(error) from error
        with response:
            return self.receive(response, version, held)

    def receive(self, response: http.client.HTTPResponse, version: Version, held: int) -> bool:
        headers, whole = response.headers, response.status == 200
        if whole:
            if held:
                self.forget()
            held, end = 0, response.length
            total = self.download.bytes if end is None else end
            version = Version(self.download.url, headers["ETag"], headers["Last-Modified"], total)
        else:
            span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers["Content-Range"] or "")
            if not span or int(span[1]) != held or version.contradicts(headers):
                self.forget()
                raise Again(f"{self.host} sent something else than was asked for")
            end = int(span[2]) + 1
            if span[3] != "*":
                version = replace(version, total=int(span[3]))
        self.check(headers, version.total, held)
        self.note.write_text(json.dumps(asdict(version)), "utf-8")
        self.show(held, version.total)
        with self.part.open("ab") as stream:
            self.copy(response, stream, held, end)
            stream.flush()
            os.fsync(stream.fileno())  # before the whole file gets its name
        return self.held() == version.total or (whole and version.total is None)

    def check(self, headers: Message, total: int | None, held: int) -> None:
        """Refuse, before its first byte, what cannot be right or cannot be kept."""
        wanted, place = self.download, self.target.parent
        if total == 0 or (wanted.bytes is not None and total not in (None, wanted.bytes)):
            raise self.failure(f"has {total} bytes, and {wanted.bytes or 'more'} were expected: the source changed;")
        page = headers.get_content_type() == "text/html" and not wanted.name.endswith((".html", ".htm"))
        if page and not (wanted.md5 or wanted.sha256):
            raise self.shows_a_page()
        missing, free = (total or 0) - held, shutil.disk_usage(place).free
        if missing > free:
            needs = f"{wanted.name} needs {size_in_words(missing)} more"
            raise RunFailed(
                f"{place} has room for {size_in_words(free)}, and {needs}; make room, or name another folder"
            )

    def shows_a_page(self) -> RunFailed:
        why = "a licence to agree to, or a file that was moved"
        return self.failure(f"shows a web page instead of the file ({why}); open it in a browser,")

    def failure(self, what: str) -> RunFailed:
        return RunFailed(f"{self.download.url} {what} {by_hand(self.target)}")

    def copy(self, response: http.client.HTTPResponse, stream: IO[bytes], held: int, end: int | None) -> None:
        limit = self.download.bytes or LARGEST
        while end is None or held < end:
            try:
                data = response.read1(CHUNK if end is None else min(CHUNK, end - held))
            except (OSError, http.client.HTTPException) as error:
                raise self.explained(error) from error
            if not data:
                return
            held += len(data)
            if held > limit:
                stream.truncate(0)
                raise self.failure(f"sends more than the {limit} bytes expected;")
            stream.write(data)
            self.arrived, self.shown = True, held
            self.progress.advanced(len(data))

    def show(self, held: int, total: int | None) -> None:
        if self.shown != held:
            self.progress.started(self.download.name, total)
            if held:
                self.progress.advanced(held)
            self.shown = held

    def refused(self, error: HTTPError, version: Version, held: int) -> bool:
        code = error.code
        if code == 416 and held:
            length = re.fullmatch(r"bytes \*/(\d+)", error.headers["Content-Range"] or "")
            total = int(length[1]) if length else self.download.bytes
            if held == total and not version.contradicts(error.headers):
                return True
            self.forget()
            raise Again(f"{self.host} has no more of the file than {size_in_words(held)}")
        if code in PASSING or code >= 500:
            raise Again(f"{self.host} answers {code} ({error.reason})", _seconds(error.headers["Retry-After"]))
        raise self.failure(REFUSALS.get(code, "is refused ({});").format(code))

    def explained(self, error: OSError | http.client.HTTPException) -> Exception:
        """A broken line is tried again; a line that was never there is not."""
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            return RunFailed(f"{self.host} cannot prove who it is ({cause.verify_message}); check clock and proxy")
        if not self.arrived:
            if isinstance(cause, socket.gaierror) or getattr(cause, "errno", 0) in OFFLINE:
                return RunFailed(f"cannot find {self.host}: go online, or {by_hand(self.target)}")
            if isinstance(cause, ConnectionRefusedError):
                return RunFailed(f"{self.host} refuses the connection: try again later, or {by_hand(self.target)}")
            if "Tunnel connection failed" in str(cause):
                return RunFailed(f"the proxy does not let {self.host} through ({cause}); {by_hand(self.target)}")
        what = "was silent too long" if isinstance(cause, TimeoutError) else f"broke off ({type(cause).__name__})"
        return Again(f"the connection to {self.host} {what}")


def _seconds(retry_after: str | None) -> float:
    """Retry-After: seconds or a date."""
    if retry_after is None:
        return 0.0
    if retry_after.strip().isdecimal():
        return float(retry_after)
    with suppress(ValueError):
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    return 0.0


def size_in_words(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
