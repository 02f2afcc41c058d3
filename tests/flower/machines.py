"""Real fleets on loopback: servers and nodes as processes of their own, and a wire between them that can be read."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fleets import clients_of

from fedsense.flower.pace import LOOK
from fedsense.flower.processes import answers, free_port
from fedsense.flower.setup import add_node, create
from fedsense.recipe import Recipe

HERE = "127.0.0.1"
PATIENCE = 240  # seconds


class Started:
    """A command of fedsense in a process of its own; its output is in a file."""

    def __init__(self, log: Path, *words: Any, poll: str = "0.1") -> None:
        self.log = log
        env = {**os.environ, "FEDSENSE_FLEET_POLL": poll}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedsense", "fleet", *map(str, words)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + PATIENCE
        while text not in self.said():
            assert time.monotonic() < end, f"'{text}' was never said:\n{self.said()}"
            assert self.process.poll() is None or text in self.said(), f"it ended without '{text}':\n{self.said()}"
            time.sleep(0.1)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class RealFleet:
    """A folder with keys, nodes that run, each at the end of a wire, and servers one after another at one port."""

    def __init__(self, folder: Path, asked: Recipe, plain: bool = False) -> None:
        """``plain``: as users have it, without wires that can be read and at the usual pace."""
        self.folder, self.asked, self.port, self.plain = folder, asked, free_port(), plain
        self.started: list[Started] = []
        self.wires: dict[str, Wire] = {}
        create(folder / "fleet", [])
        for name in clients_of(asked):
            add_node(folder / "fleet", name)
            if not plain:
                self.wires[name] = Wire(self.port, folder / "fleet" / "server")

    def keys(self, name: str) -> Path:
        return self.folder / "fleet" / "nodes" / name

    def start(self, log: str, *words: Any) -> Started:
        self.started.append(Started(self.folder / log, *words, poll=str(LOOK) if self.plain else "0.1"))
        return self.started[-1]

    def node(self, name: str, keys: Path | None = None, log: str | None = None, *words: Any) -> Started:
        port = self.port if self.plain else self.wires[name].port
        where = ("--server", f"{HERE}:{port}", "--keys", keys or self.keys(name), "--client", name)
        return self.start(log or f"{name}.log", "node", *where, *words)

    def running(self, name: str) -> Started:
        """The node that has a client."""
        return next(s for s in self.started if s.log.name == f"{name}.log" and s.process.poll() is None)

    def server(self, asked: Recipe, out: str, *words: Any, log: str = "server.log") -> Started:
        toml = self.folder / f"{out}.toml"
        toml.write_text(as_toml(asked.model_dump(mode="json")))
        where = ("--fleet", self.folder / "fleet", "--out", self.folder / out, "--host", HERE, "--port", self.port)
        return self.start(log, "server", toml, "--wait", 120, *where, *words)

    def close(self) -> None:
        for each in self.started:
            if each.process.poll() is None:
                each.process.terminate()
        for each in self.started:
            each.end()
        for wire in self.wires.values():
            wire.close()


class Wire:
    """Between one node and the server: passes bytes on, keeps them if it ``records``, swallows them while ``cut``.

    It has the server's key, so it reads what is encrypted for everyone else; what goes on is encrypted anew.
    """

    def __init__(self, to: int, certificates: Path) -> None:
        self.to, self.port = to, free_port()
        self.records = self.cut = False
        self.up: list[bytearray] = []  # what the node sent, a connection each
        self.down: list[bytearray] = []
        self._over = False
        self._inwards = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._inwards.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self._outwards = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        """Something listens here as long as something listens there."""
        while not self._over:
            if not answers(self.to):
                time.sleep(0.2)
                continue
            with socket.create_server((HERE, self.port)) as door:
                door.settimeout(0.5)
                while not self._over:
                    try:
                        end = door.accept()[0]
                    except TimeoutError:
                        if answers(self.to):
                            continue
                        break
                    threading.Thread(target=self._connect, args=(end,), daemon=True).start()

    def _connect(self, end: socket.socket) -> None:
        with contextlib.ExitStack() as open, contextlib.suppress(OSError, ValueError):
            open.callback(end.close)
            while self.cut and not self._over:  # whoever called is not answered
                time.sleep(0.1)
            end.settimeout(30)
            inner = open.enter_context(self._inwards.wrap_socket(end, server_side=True))
            raw = open.enter_context(socket.create_connection((HERE, self.to), 30))
            self._pass_on(inner, open.enter_context(self._outwards.wrap_socket(raw, server_hostname=HERE)))

    def _pass_on(self, inner: ssl.SSLSocket, outer: ssl.SSLSocket) -> None:
        other, kept = {inner: outer, outer: inner}, {inner: bytearray(), outer: bytearray()}
        self.up.append(kept[inner])
        self.down.append(kept[outer])
        while not self._over:
            decrypted = [side for side in other if side.pending()]
            for side in decrypted or select.select([*other], [], [], 1)[0]:
                side.settimeout(0.1)
                try:
                    data = side.recv(1 << 16)
                except TimeoutError:  # something of TLS itself
                    continue
                if not data:
                    return
                if self.records:
                    kept[side] += data
                while self.cut and not self._over:
                    time.sleep(0.1)
                other[side].settimeout(30)
                other[side].sendall(data)

    def close(self) -> None:
        self._over = True


def as_toml(tables: dict[str, Any], prefix: str = "") -> str:
    """Enough of TOML for a recipe."""
    plain, rest = [], []
    for key, value in tables.items():
        if isinstance(value, dict):
            rest.append(f"\n[{prefix}{key}]\n{as_toml(value, f'{prefix}{key}.')}")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            rest += [f"\n[[{prefix}{key}]]\n{as_toml(entry, f'{prefix}{key}.')}" for entry in value]
        elif value is not None:
            plain.append(f"{key} = {json.dumps(value)}\n")
    return "".join(plain) + "".join(rest)
