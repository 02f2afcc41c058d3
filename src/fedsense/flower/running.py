"""``fedsense fleet server`` and ``fleet node``: what runs as long as they do."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import Any

import httpx
from flwr.app import RecordDict

from fedsense.engine.folder import read_json, write_json
from fedsense.errors import RunFailed, UserError
from fedsense.flower.gate import OpenGate, refuse_taken
from fedsense.flower.node import Node, Source
from fedsense.flower.pace import Patience, quicken
from fedsense.flower.processes import Program, answers, environment, flwr, free_port, toml
from fedsense.flower.setup import write_app
from fedsense.flower.tasks import Tasks
from fedsense.recipe import Recipe

PORT = 9092
BETWEEN = 0.5  # seconds between two looks at how a run goes
AGAIN = 5.0  # seconds after which a SuperNode that ended is started again
LOOK, SLOWEST = 0.1, 1.0  # seconds between two looks for a message the SuperNode has
SELDOM = 30.0  # seconds until Flower is asked whether a run is still under way; each time twice as many
LOST = 30.0  # seconds after which a SuperNode that cannot reach the server ends
RUNNING = "running.json"  # in the fleet's folder: what `fleet status` and `fleet stop` need to know

Say = Callable[[str], None]


def warn_if_open(host: str, insecure: bool) -> None:
    """Nothing goes over a network unencrypted."""
    if not insecure:
        return
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise UserError(f"--insecure is for trying on one machine (127.0.0.1), not for {host}; leave it out")
    print("warning: --insecure: nothing is encrypted, and any node may join", file=sys.stderr)


def serve(
    recipe: Recipe,
    fleet: Path,
    out: Path,
    *,
    host: str = "0.0.0.0",
    port: int = PORT,
    insecure: bool = False,
    resume: bool = False,
    database: Path | None = None,
    terms: Mapping[str, Any] | None = None,
    say: Say = print,
) -> None:
    """A SuperLink, a gate before it, and a run of the recipe; until the run is done or this is interrupted."""
    warn_if_open(host, insecure)
    keys = fleet / "server"
    if not insecure and not (keys / "server.crt").exists():
        raise UserError(f"{fleet} holds no certificates; make them with `fedsense fleet init {fleet}`")
    if not (fleet / "app").exists():
        write_app(fleet / "app")
    refuse_taken(host, port)
    out.mkdir(parents=True, exist_ok=True)
    home, inner = fleet / "flwr", free_port()
    env = environment(home)
    _connection(home, inner, None if insecure else keys / "ca.crt")
    words = ["flower-superlink", "--host", "127.0.0.1", "--port", str(inner)]
    words += ["--disable-runtime-dependency-installation"]
    words += ["--database", str(database)] if database else []
    if insecure:
        words += ["--insecure"]
    else:
        words += ["--enable-supernode-auth", "--ssl-ca-certfile", str(keys / "ca.crt")]
        words += ["--ssl-certfile", str(keys / "server.crt"), "--ssl-keyfile", str(keys / "server.key")]
    resolved = out / "recipe-asked.json"
    write_json(resolved, recipe.model_dump(mode="json"))
    superlink = Program(words, env, fleet / "superlink.log")
    try:
        superlink.wait_until(lambda: answers(inner), "the SuperLink")
        config = {**(terms or {}), "recipe": resolved.resolve(), "out": out.resolve(), "resume": resume}
        known = [] if insecure else sorted((keys / "nodes").glob("*.pub"))
        start = ["run", str(fleet / "app"), "fleet", "--format", "json", "--run-config", toml(config)]
        run = flwr(env, *_enrolments(known), start)[-1]["run-id"]
        with OpenGate(host, port, f"127.0.0.1:{inner}", None if insecure else keys) as gate:  # now nodes are known
            about = {"run": run, "out": str(out.resolve()), "address": f"{host}:{port}", "pid": os.getpid()}
            write_json(fleet / RUNNING, about)
            say(f"listening at {host}:{port}; the run is in {out}")
            _watch(superlink, env, run, out, say)
            carried = {"received": gate.app.received, "sent": gate.app.sent, "idle": gate.app.idle}
            write_json(out / "traffic.json", carried)
    finally:
        (fleet / RUNNING).unlink(missing_ok=True)
        superlink.stop()


def _connection(home: Path, port: int, authority: Path | None) -> None:
    """Flower's own configuration, so that its command line finds the SuperLink."""
    home.mkdir(parents=True, exist_ok=True)
    trust = f'root-certificates = "{authority.resolve()}"' if authority else "insecure = true"
    text = f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "127.0.0.1:{port}"\n{trust}\n'
    (home / "config.toml").write_text(text)


def _enrolments(keys: Sequence[Path]) -> list[list[str]]:
    """The SuperLink is told the nodes' public keys; it refuses those that are in its database already."""
    return [["-", "supernode", "register", str(key), "fleet", "--name", key.stem] for key in keys]


def _watch(superlink: Program, env: Mapping[str, str], run: str, out: Path, say: Say) -> None:
    """Tell how the run goes until it is done."""
    told: Any = None
    looked, seldom = time.monotonic(), SELDOM  # a program of 100 MB has to be started for it
    while True:
        time.sleep(BETWEEN)
        status = _written(out, run)
        now = (status.get("run"), status.get("seed"), status.get("round"))
        if now != told and "round" in status:
            told = now
            say(line_of(status))
        if status.get("state") == "finished":
            return
        if not superlink.alive():
            raise RunFailed(f"the SuperLink ended; the end of {superlink.output}:\n{superlink.tail()}")
        if time.monotonic() - looked > seldom or status.get("state") == "failed":
            looked, seldom = time.monotonic(), 2 * seldom
            state, detail = _state(env, run)
            status = _written(out, run)  # asking took a while
            if status.get("state") == "failed" or (state.startswith("finished") and status.get("state") != "finished"):
                raise RunFailed(f"the run ended: {status.get('error') or detail or state}; see {out / 'fleet.log'}")


def _written(out: Path, run: str) -> dict[str, Any]:
    """What this run wrote down last; nothing if what is there is of one before."""
    status: dict[str, Any] = read_json(out / "status.json") if (out / "status.json").exists() else {}
    return status if status.get("flower_run") == run else {}


def _state(env: Mapping[str, str], run: str) -> tuple[str, str]:
    entry = flwr(env, ["list", "fleet", "--run-id", run, "--format", "json"])[0]["runs"][0]
    return str(entry.get("status")), str(entry.get("status-details", ""))


def line_of(status: Mapping[str, Any]) -> str:
    """How a run goes, in a line."""
    scores = " ".join(f"{name} {value:.3f}" for name, value in status.get("scores", {}).items() if value is not None)
    sent = f"{(status.get('bytes_down', 0) + status.get('bytes_up', 0)) / 1e6:.1f} MB"
    where = f"{status.get('run', '')}: round {status.get('round', 0)} of {status.get('rounds', '?')}"
    lost = f"; no answer: {', '.join(status['failed'])}" if status.get("failed") else ""
    return f"{where}, {len(status.get('clients', {}))} clients, {sent} {scores}{lost}"


def take_part(
    server: str,
    data: str,
    *,
    keys: Path | None,
    clients: Sequence[str] = (),
    keep: Path,
    insecure: bool = False,
    device: str | None = None,
    say: Say = print,
) -> None:
    """A node, until it is interrupted: this process has recordings and models, a SuperNode of Flower the connection."""
    if not server.rpartition(":")[2].isdecimal():
        raise UserError(f"--server {server}: give host and port, such as {server}:{PORT}")
    warn_if_open(server.rpartition(":")[0].strip("[]"), insecure)
    if not insecure and (keys is None or not (keys / "node.key").exists()):
        raise UserError(
            "a node needs its keys: copy the folder `fleet init` made for it (fleet/nodes/NAME) to this machine, and "
            "name it with --keys"
        )
    quicken()
    node = Node(Source(data, tuple(clients)), keep, device)
    connection = Connection(server, keys, insecure, keep, say)
    connection.start()
    patience = Patience(LOOK, SLOWEST)
    try:
        while True:
            if connection.answer_one(node.answer):
                patience.over()
            else:
                time.sleep(patience.pause())
    finally:
        connection.stop()


class Connection(threading.Thread):
    """A SuperNode of Flower; one that ends (the server is gone, or does not know it any more) is started again."""

    def __init__(self, server: str, keys: Path | None, insecure: bool, keep: Path, say: Say) -> None:
        super().__init__(name="supernode", daemon=True)
        self._server, self._keep, self._say = server, keep, say
        self._over = threading.Event()
        self._secret = token_bytes(32)
        self._folder = Path(tempfile.mkdtemp(prefix="fedsense-"))  # readable by its owner only
        (self._folder / "secret").write_bytes(self._secret)
        self._words = [sys.executable, "-m", "fedsense.flower.pace", "--superlink", server, "--host", "127.0.0.1"]
        self._words += ["--isolation", "process", "--superexec-auth-secret-file", str(self._folder / "secret")]
        self._words += ["--max-wait-time", str(LOST)]
        if insecure:
            self._words += ["--insecure"]
        else:
            assert keys is not None
            trust = ["--root-certificates", str(keys / "ca.crt")]
            self._words += [*trust, "--auth-supernode-private-key", str(keys / "node.key")]
        self._tasks: Tasks | None = None

    def answer_one(self, answer: Callable[[RecordDict], RecordDict]) -> bool:
        """Answer a message, if there is a connection and one came over it."""
        if (tasks := self._tasks) is None:
            return False
        try:
            return tasks.answer_one(answer)
        except httpx.ConnectError:  # the SuperNode has just ended
            return False
        except Exception as error:  # whatever it was, the server asks again, or goes on without
            self._say(f"a message could not be answered: {type(error).__name__}: {error}")
            return False

    def run(self) -> None:
        host, _, port = self._server.rpartition(":")
        waits = False
        while not self._over.is_set():
            if not answers(int(port), host.strip("[]")):  # Flower's own waiting grows longer and longer
                if not waits:
                    self._say(f"nothing listens at {self._server} yet; waiting")
                waits = True
                self._over.wait(1)
                continue
            waits = False
            self._connect()

    def _connect(self) -> None:
        self._say(f"connecting to {self._server}")
        here = free_port()
        words = [*self._words, "--port", str(here)]
        began = time.monotonic()
        program = Program(words, environment(self._keep / "flwr"), self._keep / "supernode.log")
        try:
            while program.alive() and not self._over.wait(0.1):
                if self._tasks is None and answers(here):
                    self._tasks = Tasks(f"127.0.0.1:{here}", self._secret)
        finally:
            self._tasks = None
            program.stop()
        if not self._over.is_set():
            self._say(f"not connected: {_reason(program.tail(40))}")
            if time.monotonic() - began < 2 * AGAIN:
                self._over.wait(AGAIN)

    def stop(self) -> None:
        self._over.set()
        self.join()
        shutil.rmtree(self._folder, ignore_errors=True)


def _reason(tail: str) -> str:
    for words, meaning in (
        (
            "CERTIFICATE_VERIFY_FAILED",
            "the server's certificate is not of this fleet's authority, or of another host",
        ),
        ("Failed to activate", "the server does not know this node's key, or another node uses it just now"),
        ("401", "the server does not know this node's key any more"),
        ("ConnectError", "the server cannot be reached"),
        ("Giving up reconnection", "the server is gone"),
    ):
        if words in tail:
            return meaning
    return next((line for line in reversed(tail.splitlines()) if line.strip()), "it ended without a word")


def status_of(fleet: Path, out: Path | None) -> dict[str, Any]:
    """What the server wrote down last, and whether it runs."""
    running = read_json(fleet / RUNNING) if (fleet / RUNNING).exists() else None
    if out is None and running is None:
        raise UserError(f"no server of {fleet} runs on this machine; name the folder of a result with --out")
    folder = out or Path(running["out"])  # type: ignore[index]
    if not (folder / "status.json").exists():
        if running is None:
            raise UserError(f"{folder} was not run on a fleet")
        return {"state": "waiting for nodes", "clients": {}, "running": True}
    found: dict[str, Any] = read_json(folder / "status.json")
    return {**found, "running": running is not None}


def stop_server(fleet: Path) -> str:
    """Tell the server of a fleet to end."""
    if not (fleet / RUNNING).exists():
        raise UserError(f"no server of {fleet} runs on this machine")
    running = read_json(fleet / RUNNING)
    try:
        os.kill(running["pid"], signal.SIGTERM)
    except ProcessLookupError:
        (fleet / RUNNING).unlink(missing_ok=True)
        return f"the server of {fleet} had ended already"
    return f"told the server to end; go on later with fedsense fleet server … --out {running['out']} --resume"
