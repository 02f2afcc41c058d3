"""The page of an experiment that goes on, over HTTP: what is new is asked for and drawn, without loading it again."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedsense.engine.folder import RECIPE_FILE, RUN_FILE, digest_of, read_json
from fedsense.engine.record import whole_lines
from fedsense.errors import UserError
from fedsense.experiment import find_runs, planned
from fedsense.report.gather import LONG_FILE, Document, document
from fedsense.report.page import page
from fedsense.result import Result

PATIENCE = 10.0  # seconds


class Tail:
    """A record file that grows: each line is read once. Of very long observations only the last is kept."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.read = 0

    def __call__(self, path: Path) -> list[dict[str, Any]]:
        if not path.exists():
            self.__init__()  # type: ignore[misc]
            return []
        if path.stat().st_size < self.read:  # a resumed run cuts off what an interrupted round had left
            self.__init__()  # type: ignore[misc]
        with path.open("rb") as file:
            file.seek(self.read)
            data = file.read()
        new = whole_lines(data)
        self.read += data.rfind(b"\n") + 1
        self.lines += new
        if path.name.startswith("observations") and self.read > LONG_FILE:
            del self.lines[:-1]
        return self.lines


class Watched:
    """A folder of runs, finished or not; read again only where files have changed."""

    def __init__(self, folder: Path) -> None:
        if folder.is_file():
            raise UserError(f"{folder} is a file, in which nothing goes on; its page: fedsense report {folder}")
        end = time.monotonic() + PATIENCE  # a run that was begun beside this one may take a moment
        while not (found := self._holds_any(folder)) and time.monotonic() < end:
            time.sleep(0.1)
        if not found:
            raise UserError(
                f"{folder} holds no runs; give a folder that `fedsense run` writes to or has written, such as runs/demo"
            )
        self.folder = folder
        self._tails: dict[Path, Tail] = {}
        self._lock = threading.Lock()
        self._stamp, self._found = "", Document()

    def document(self) -> Document:
        """As the folder is now; ``stamp`` is another when something has changed."""
        with self._lock:
            stamp = self._now()
            if stamp != self._stamp:
                results = [result for run in self._runs() if (result := self._result(run)) is not None]
                recipe = self.folder / RECIPE_FILE
                found = document(self.folder.name, results, read_json(recipe) if recipe.is_file() else None, live=True)
                found["left_out"].append(
                    ["Confusion matrices, class × client, embeddings", f"afterwards: fedsense report {self.folder}"]
                )
                found["progress"] += self._to_come()
                self._stamp, self._found = stamp, found | {"stamp": stamp}
            return self._found

    @classmethod
    def _holds_any(cls, folder: Path) -> bool:
        return folder.is_dir() and ((folder / RECIPE_FILE).is_file() or cls._has_runs(folder))

    @staticmethod
    def _has_runs(folder: Path) -> bool:
        return (folder / RUN_FILE).is_file() or any(folder.glob(f"*/{RUN_FILE}"))

    def _runs(self) -> list[Path]:
        return find_runs(self.folder) if self._has_runs(self.folder) else []

    def _to_come(self) -> list[Document]:
        """Runs of the recipe that have not begun."""
        runs, begun = planned(self.folder), {run.name for run in self._runs()}
        rounds = read_json(self.folder / RECIPE_FILE)["rounds"] if runs else 0
        return [
            {"method": label, "seed": seed, "done": 0, "rounds": rounds}
            for name, (label, seed) in runs.items()
            if name not in begun
        ]

    def _now(self) -> str:
        files = [path for run in self._runs() for path in sorted(run.glob("*.json*")) if path.suffix != ".partial"]
        seen = [(str(path), stat.st_size, stat.st_mtime_ns) for path in files if (stat := path.stat())]
        return digest_of(repr(seen).encode()).hexdigest()

    def _result(self, run: Path) -> Result | None:
        try:
            return Result.read(run, lambda path: self._tails.setdefault(path, Tail())(path))
        except UserError:  # just being written
            return None


def serve(watched: Watched, host: str, port: int) -> ThreadingHTTPServer:
    """A server that answers GET / and GET /data.json, and nothing else; not yet running."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fedsense", ""

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if not self._is_for_us():
                return self.send_error(403, "This is not the name of this server")
            if asked.path == "/":
                return self._answer(lambda: page(watched.document()).encode(), "text/html; charset=utf-8")
            if asked.path == "/data.json":
                have = parse_qs(asked.query).get("have", [""])[0]
                return self._answer(lambda: self._news(have), "application/json")
            return self.send_error(404)

        def _news(self, have: str) -> bytes:
            found = watched.document()
            return b"" if found["stamp"] == have else json.dumps(found, separators=(",", ":"), default=str).encode()

        def _answer(self, make: Callable[[], bytes], kind: str) -> None:
            try:
                data = make()
            except Exception as error:  # whatever a folder holds, whoever watches is told, and can look again
                return self.send_error(503, "The folder cannot be read just now", str(error))
            self.send_response(200 if data else 204)
            headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
            headers |= {"Content-Type": kind, "Content-Length": str(len(data))} if data else {}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):  # the reader has gone
                self.close_connection = True

        def _is_for_us(self) -> bool:
            """On loopback: not a page of somebody else's, whose name leads here (DNS rebinding)."""
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            return not is_loopback(host) or name == host or is_loopback(name)

        def log_message(self, *_: Any) -> None:
            """What was asked for is nobody's business."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        return Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"nothing can be served at {host}, port {port} ({error}); choose another --host or --port"
        ) from error


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
