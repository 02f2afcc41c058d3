"""Real SuperLinks and SuperNodes on loopback, with TLS and keys, as `fedsense fleet` starts them."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from fleets import SEVEN, clients_of, embedded, lines, recipe, same_results

from fedsense.engine.record import totals
from fedsense.experiment import find_runs
from fedsense.flower.processes import free_port
from fedsense.flower.running import status_of, stop_server
from fedsense.flower.setup import add_node, create

pytestmark = pytest.mark.timeout(600)  # on a busy machine Flower's programs take their time to start
HERE = "127.0.0.1"
PATIENCE = 150  # seconds


class Started:
    """A command of fedsense in a process of its own; its output is in a file."""

    def __init__(self, log, *words):
        self.log = log
        env = {**os.environ, "FEDSENSE_FLEET_POLL": "0.1"}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedsense", "fleet", *map(str, words)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=env,
            )

    def said(self):
        return self.log.read_text(errors="replace")

    def wait_for(self, text):
        end = time.monotonic() + PATIENCE
        while text not in self.said():
            assert time.monotonic() < end, f"'{text}' was never said:\n{self.said()}"
            time.sleep(0.1)

    def wait(self):
        self.process.wait(PATIENCE)
        return self.process.returncode

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


class RealFleet:
    """A folder with keys, nodes that run, and servers one after another at one port."""

    def __init__(self, folder, asked):
        self.folder, self.asked, self.port = folder, asked, free_port()
        self.started = []
        create(folder / "fleet", [])
        for name in clients_of(asked):
            add_node(folder / "fleet", name)

    def keys(self, name):
        return self.folder / "fleet" / "nodes" / name

    def start(self, log, *words):
        self.started.append(Started(self.folder / log, *words))
        return self.started[-1]

    def node(self, name, keys=None, log=None):
        where = ("--server", f"{HERE}:{self.port}", "--keys", keys or self.keys(name), "--client", name)
        return self.start(log or f"{name}.log", "node", *where)

    def server(self, asked, out, *words, log="server.log"):
        toml = self.folder / f"{out}.toml"
        toml.write_text(_toml(asked.model_dump(mode="json")))
        where = ("--fleet", self.folder / "fleet", "--out", self.folder / out, "--host", HERE, "--port", self.port)
        return self.start(log, "server", toml, "--wait", 60, *where, *words)

    def close(self):
        for each in self.started:
            if each.process.poll() is None:
                each.process.terminate()
        for each in self.started:
            each.end()


def _toml(tables, prefix=""):
    """Enough of TOML for a recipe."""
    plain, rest = [], []
    for key, value in tables.items():
        if isinstance(value, dict):
            rest.append(f"\n[{prefix}{key}]\n{_toml(value, f'{prefix}{key}.')}")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            rest += [f"\n[[{prefix}{key}]]\n{_toml(entry, f'{prefix}{key}.')}" for entry in value]
        elif value is not None:
            plain.append(f"{key} = {json.dumps(value)}\n")
    return "".join(plain) + "".join(rest)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two nodes that wait for a server, for all tests of this file."""
    made = RealFleet(tmp_path_factory.mktemp("real"), recipe(data={"name": "synthetic-imu", **DATA}))
    try:
        for name in clients_of(made.asked):
            made.node(name)
        yield made
    finally:
        made.close()


DATA = {"clients": 2, "samples": 16, "window": 32, "seed": 0}


def test_seven_methods_are_what_they_are_on_one_machine(fleet, tmp_path):
    """Same bits; and while they run: nobody comes in without a key, the wire carries what the ledger says."""
    names = clients_of(fleet.asked)
    asked = recipe(*SEVEN, data={"name": "synthetic-imu", **DATA}, model={"name": "flic-mlp", "hidden": 256})
    server = fleet.server(asked, "seven", "--nodes", 2)
    server.wait_for("listening at")

    other = fleet.folder / "other"
    create(other, [names[0]])  # another fleet's authority and key
    stranger = fleet.folder / "stranger"
    stranger.mkdir()
    (stranger / "ca.crt").write_bytes((fleet.keys(names[0]) / "ca.crt").read_bytes())
    (stranger / "node.key").write_bytes((other / "nodes" / names[0] / "node.key").read_bytes())
    unknown = fleet.node(names[0], keys=stranger, log="unknown.log")
    distrusts = fleet.node(names[0], keys=other / "nodes" / names[0], log="distrusts.log")

    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/../control/list-runs", "/docs"):
        assert _status(fleet, path) == 404
    assert 400 <= _status(fleet, "/v1/fleet/pull-messages") < 500
    with pytest.raises((ssl.SSLError, ConnectionError, urllib.error.URLError)):
        urllib.request.urlopen(f"http://{HERE}:{fleet.port}/v1/fleet/pull-messages", data=b"", timeout=5)

    server.wait_for("fedavg: round 1 of 2")
    status = status_of(fleet.folder / "fleet", None)
    assert status["running"]
    assert sorted(status["clients"]) == names
    assert status["bytes_up"] > 0
    unknown.wait_for("the server does not know this node's key")
    distrusts.wait_for("certificate is not of this fleet's authority")
    unknown.end()
    distrusts.end()
    assert server.wait() == 0, server.said()
    here = embedded(asked, tmp_path / "here")
    for run in find_runs(here):
        same_results(fleet.folder / "seven", here, run.name)

    counted = 0
    for run in find_runs(fleet.folder / "seven"):
        cost = totals(lines(run, "ledger"))
        counted += cost["bytes_down"] + cost["bytes_up"] + sum(line.get("bytes", 0) for line in lines(run, "scores"))
    wire = json.loads((fleet.folder / "seven" / "traffic.json").read_text())
    assert wire["received"] + wire["sent"] == pytest.approx(counted, rel=0.05)


def _status(fleet, path):
    trust = ssl.create_default_context(cafile=str(fleet.folder / "fleet" / "server" / "ca.crt"))
    with socket.create_connection((HERE, fleet.port)) as raw, trust.wrap_socket(raw, server_hostname=HERE) as end:
        kind = "Content-Type: application/x-protobuf"
        end.sendall(f"POST {path} HTTP/1.1\r\nHost: {HERE}\r\n{kind}\r\nContent-Length: 0\r\n\r\n".encode())
        return int(end.recv(4096).split()[1])


@pytest.mark.experiment
def test_a_killed_server_goes_on_and_fedali_is_what_it_is(fleet, tmp_path):
    """The server dies in the middle of a round; in the end it is as if nothing had happened."""
    data = {"name": "synthetic-imu", **DATA, "window": 128}
    asked = recipe("fedali", rounds=3, data=data, model={"name": "hart"})
    server = fleet.server(asked, "killed", "--nodes", 2, log="first.log")
    server.wait_for("round 1 of 3")
    server.kill()
    done = len(lines(fleet.folder / "killed" / "fedali-seed0", "ledger"))
    assert 1 <= done < 3
    server = fleet.server(asked, "killed", "--nodes", 2, "--resume", log="second.log")
    assert server.wait() == 0, server.said()
    same_results(fleet.folder / "killed", embedded(asked, tmp_path / "here"), "fedali-seed0")


@pytest.mark.experiment
def test_a_killed_node_comes_back(fleet, tmp_path):
    """Flower notices within a minute that a node that was killed is gone; only then its key is let in again."""
    names = clients_of(fleet.asked)
    asked = recipe("scaffold", rounds=5, data={"name": "synthetic-imu", **DATA})
    server = fleet.server(asked, "lost", "--nodes", 2, "--deadline", 60, "--quorum", 1, log="lost.log")
    server.wait_for("round 2 of 5")
    victim = next(s for s in fleet.started if s.log.name == f"{names[1]}.log" and s.process.poll() is None)
    victim.kill()
    fleet.node(names[1])
    assert server.wait() == 0, server.said()
    same_results(fleet.folder / "lost", embedded(asked, tmp_path / "here"), "scaffold-seed0")


@pytest.mark.experiment
@pytest.mark.timeout(900)
def test_a_node_without_a_network_is_missed_and_used_again(fleet, tmp_path):
    """A proxy between one node and the server drops everything for two rounds; the other goes on alone."""
    names = clients_of(fleet.asked)
    mine = next(s for s in fleet.started if s.log.name == f"{names[1]}.log" and s.process.poll() is None)
    mine.end()
    proxy = Proxy(fleet.port)
    try:
        where = ("--server", f"{HERE}:{proxy.port}", "--keys", fleet.keys(names[1]), "--client", names[1])
        cut = fleet.start("cut.log", "node", *where)
        asked = recipe("scaffold", rounds=12, data={"name": "synthetic-imu", **DATA})
        server = fleet.server(asked, "cut", "--nodes", 2, "--deadline", 8, "--quorum", 0.5, log="cut-server.log")
        server.wait_for("round 2 of 12")
        proxy.drops = True
        server.wait_for("round 4 of 12")
        proxy.drops = False
        server.process.wait(600)
        assert server.process.returncode == 0, server.said()
        ledger = lines(fleet.folder / "cut" / "scaffold-seed0", "ledger")
        missed = [line["round"] for line in ledger if names[1] in line.get("failed", {})]
        assert missed
        assert names[1] in ledger[-1]["clients"]
        assert all(names[0] in line["clients"] for line in ledger)
        cut.end()
    finally:
        proxy.close()
        fleet.node(names[1])


class Proxy:
    """Passes bytes on between a port of its own and another, or drops connections."""

    def __init__(self, to):
        self.to, self.drops, self._ends = to, False, []
        self._door = socket.create_server((HERE, 0))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._door.accept()
                try:
                    other = None if self.drops else socket.create_connection((HERE, self.to))
                except OSError:
                    other = None
                if other is None:
                    end.close()
                    continue
                for a, b in ((end, other), (other, end)):
                    threading.Thread(target=self._pass_on, args=(a, b), daemon=True).start()

    def _pass_on(self, a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                if self.drops:
                    break
                b.sendall(data)
        for end in (a, b):
            end.close()

    def close(self):
        self._door.close()


@pytest.mark.experiment
def test_flowers_simulation_gives_the_same(tmp_path):
    pytest.importorskip("ray", reason="needs fedsense[fleet-sim]")
    asked = recipe("scaffold", data={"name": "synthetic-imu", **DATA})
    (tmp_path / "small.toml").write_text(_toml(asked.model_dump(mode="json")))
    words = ["run", str(tmp_path / "small.toml"), "--executor", "flower", "--out", str(tmp_path / "flower")]
    done = subprocess.run([sys.executable, "-m", "fedsense", *words], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    same_results(tmp_path / "flower", embedded(asked, tmp_path / "here"), "scaffold-seed0")


@pytest.mark.experiment
def test_a_server_that_is_told_to_stop_goes_on_later(fleet, tmp_path):
    """On Flower's own database in a file, the same both times."""
    asked = recipe("scaffold", rounds=4, data={"name": "synthetic-imu", **DATA})
    words = ("--nodes", 2, "--database", fleet.folder / "flower.db")
    server = fleet.server(asked, "stopped", *words, log="stop-1.log")
    server.wait_for("round 1 of 4")
    stop_server(fleet.folder / "fleet")
    assert server.wait() == 130
    server = fleet.server(asked, "stopped", *words, "--resume", log="stop-2.log")
    assert server.wait() == 0, server.said()
    same_results(fleet.folder / "stopped", embedded(asked, tmp_path / "here"), "scaffold-seed0")
