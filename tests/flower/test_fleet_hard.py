"""Real fleets that have it hard: killed nodes and servers, a network that is gone, garbage, many nodes for long.

make experiments, or: pytest -m experiment -s tests/flower/test_fleet_hard.py
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fleets import SEVEN, clients_of, embedded, lines, recipe, same_results
from machines import HERE, PATIENCE, RealFleet, as_toml

from fedsense.engine.folder import read_json
from fedsense.experiment import find_runs
from fedsense.flower.running import stop_server
from fedsense.flower.setup import create

pytestmark = [pytest.mark.experiment, pytest.mark.timeout(1800)]
DATA = {"name": "synthetic-imu", "clients": 2, "samples": 16, "window": 32, "seed": 0}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Two nodes that wait for a server, for all tests of this file."""
    made = RealFleet(tmp_path_factory.mktemp("hard"), recipe(data=DATA))
    try:
        for name in clients_of(made.asked):
            made.node(name)
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("methods", [SEVEN, ("fedali",)], ids=["seven", "fedali"])
def test_methods_are_what_they_are_on_one_machine(methods, fleet, tmp_path):
    own = {"data": {**DATA, "window": 128}, "model": "hart"} if methods == ("fedali",) else {"data": DATA}
    asked = recipe(*methods, **own)
    server = fleet.server(asked, f"of-{methods[0]}", "--nodes", 2, log=f"of-{methods[0]}.log")
    assert server.wait() == 0, server.said()
    here = embedded(asked, tmp_path / "here")
    assert len(find_runs(here)) == len(methods)
    for run in find_runs(here):
        same_results(fleet.folder / f"of-{methods[0]}", here, run.name)


def test_nodes_that_are_refused_say_why(fleet):
    """A node with a key nobody knows, one of another fleet, and one with the key of a node that is connected."""
    name = clients_of(fleet.asked)[0]
    other, stranger = fleet.folder / "other", fleet.folder / "stranger"
    create(other, [name])  # another fleet's authority and key
    stranger.mkdir()
    (stranger / "ca.crt").write_bytes((fleet.keys(name) / "ca.crt").read_bytes())
    (stranger / "node.key").write_bytes((other / "nodes" / name / "node.key").read_bytes())
    asked = recipe(data=DATA, rounds=100)
    server = fleet.server(asked, "refused", "--nodes", 2, log="refused.log")
    server.wait_for("round 1 of 100")
    unknown = fleet.node(name, stranger, "unknown.log")
    distrusts = fleet.node(name, other / "nodes" / name, "distrusts.log")
    twin = fleet.node(name, None, "twin.log", "--keep", fleet.folder / "twin")
    unknown.wait_for("the server does not know this node's key, or another node uses it just now")
    distrusts.wait_for("certificate is not of this fleet's authority")
    twin.wait_for("the server does not know this node's key, or another node uses it just now")
    for each in (unknown, distrusts, twin):
        each.end()
    stop_server(fleet.folder / "fleet")
    assert server.wait() == 130
    assert not any(line.get("failed") for line in lines(fleet.folder / "refused" / "fedavg-seed0", "ledger"))


def test_a_killed_server_goes_on_with_another_superlink(fleet, tmp_path):
    """The server dies in the middle of a round; in the end it is as if nothing had happened."""
    asked = recipe("fedcoad", rounds=3, data=DATA)
    words = ("--nodes", 2, "--quorum", 1)
    server = fleet.server(asked, "killed", *words, log="first.log")
    server.wait_for("round 1 of 3")
    server.kill()
    done = len(lines(fleet.folder / "killed" / "fedcoad-seed0", "ledger"))
    assert 1 <= done < 3
    server = fleet.server(asked, "killed", *words, "--resume", log="second.log")
    assert server.wait() == 0, server.said()
    same_results(fleet.folder / "killed", embedded(asked, tmp_path / "here"), "fedcoad-seed0")


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_server_goes_on_with_the_same_database(how, fleet, tmp_path):
    asked = recipe("scaffold", rounds=4, data=DATA)
    words = ("--nodes", 2, "--quorum", 1, "--database", fleet.folder / f"{how}.db")
    server = fleet.server(asked, f"database-{how}", *words, log=f"{how}-1.log")
    server.wait_for("round 1 of 4")
    if how == "killed":
        server.kill()
    else:
        stop_server(fleet.folder / "fleet")
        assert server.wait() == 130
    server = fleet.server(asked, f"database-{how}", *words, "--resume", log=f"{how}-2.log")
    assert server.wait() == 0, server.said()
    same_results(fleet.folder / f"database-{how}", embedded(asked, tmp_path / "here"), "scaffold-seed0")


def test_a_killed_node_comes_back(fleet, tmp_path):
    """Nobody else is enough (quorum 1): the round waits for it, and in the end it is as if nothing had happened."""
    name = clients_of(fleet.asked)[1]
    asked = recipe("scaffold", rounds=5, data=DATA)
    server = fleet.server(asked, "lost", "--nodes", 2, "--deadline", 90, "--quorum", 1, log="lost.log")
    server.wait_for("round 2 of 5")
    fleet.running(name).kill()
    fleet.node(name)
    assert server.wait() == 0, server.said()
    same_results(fleet.folder / "lost", embedded(asked, tmp_path / "here"), "scaffold-seed0")


def test_a_node_without_a_network_is_missed_and_used_again(fleet):
    """For two rounds and more nothing comes through the wire of one node; the other goes on alone."""
    here, away = clients_of(fleet.asked)
    asked = recipe("scaffold", rounds=400, data=DATA)
    server = fleet.server(asked, "cut", "--nodes", 2, "--deadline", 10, "--quorum", 0.5, log="cut.log")
    server.wait_for("round 2 of 400")
    ledger = lambda: lines(fleet.folder / "cut" / "scaffold-seed0", "ledger")  # noqa: E731
    fleet.wires[away].cut = True
    _until(lambda: sum(away in line.get("failed", {}) for line in ledger()) >= 2)
    fleet.wires[away].cut = False
    healed = len(ledger())
    _until(lambda: any(away in line["clients"] for line in ledger()[healed:]))
    stop_server(fleet.folder / "fleet")
    assert server.wait() == 130
    missed = [line["round"] for line in ledger() if away in line.get("failed", {})]
    print(f"\ncut: missed {missed}, of {len(ledger())} rounds")
    assert all(here in line["clients"] for line in ledger())
    assert not any(line["clients"].get(away, {}).get("anew") for line in ledger())  # its state was not lost


def _until(true):
    end = time.monotonic() + 2 * PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


GARBAGE = """
import math, sys
import torch
from fedsense.flower import node
from fedsense.flower.records import answers_to_records

how = sys.argv.pop(1)

def spoiled(answers, text=None):
    for answer in answers:
        model = answer.bundles.get("upload", {}).get("model")
        if model and how == "shapes":
            model["head.bias"] = torch.zeros(3)
        elif model and how == "nan":
            model["head.bias"][0] = math.nan
        elif model and how == "size":
            answer.bundles["upload"]["more"] = {"x": torch.zeros(10_000_000)}
    return answers_to_records(answers, text)

node.answers_to_records = spoiled
from fedsense.cli import main
main()
"""


def test_garbage_of_a_real_node_is_refused_by_name(fleet, tmp_path):
    """Wrong shapes, NaN, ten times the allowed size, from a node that has a key: the rest is used."""
    good, bad = clients_of(fleet.asked)
    fleet.running(bad).end()
    (tmp_path / "garbage.py").write_text(GARBAGE)
    where = ("--server", f"{HERE}:{fleet.port}", "--keys", fleet.keys(bad), "--client", bad)
    try:
        for how, said in (("shapes", "has shape [3], not"), ("nan", "not finite"), ("size", "MB are allowed")):
            words = [sys.executable, str(tmp_path / "garbage.py"), how, "fleet", "node", *map(str, where)]
            spoiler = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                server = fleet.server(recipe(data=DATA), f"garbage-{how}", "--nodes", 2, log=f"garbage-{how}.log")
                assert server.wait() == 0, server.said()
            finally:
                spoiler.terminate()
                spoiler.wait(30)
            for line in lines(fleet.folder / f"garbage-{how}" / "fedavg-seed0", "ledger"):
                assert list(line["clients"]) == [good]
                assert "refused" in line["failed"][bad]
                assert said in line["failed"][bad]
    finally:
        fleet.node(bad)


def test_flowers_simulation_gives_the_same(tmp_path):
    pytest.importorskip("ray", reason="needs fedsense[fleet-sim]")
    asked = recipe("scaffold", data=DATA)
    (tmp_path / "small.toml").write_text(as_toml(asked.model_dump(mode="json")))
    words = ["run", str(tmp_path / "small.toml"), "--executor", "flower", "--out", str(tmp_path / "flower")]
    done = subprocess.run([sys.executable, "-m", "fedsense", *words], capture_output=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    same_results(tmp_path / "flower", embedded(asked, tmp_path / "here"), "scaffold-seed0")


def memory(pid):
    """MB that a process and all it started hold; what asks Flower how a run goes comes and goes, and is left out."""
    here = Path(f"/proc/{pid}")
    try:
        if b"fedsense.flower.cli" in (here / "cmdline").read_bytes():
            return 0.0
        children = [child for task in (here / "task").iterdir() for child in (task / "children").read_text().split()]
        pages = int((here / "statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return pages * 4096 / 1e6 + sum(memory(int(child)) for child in children)


NODES, ROUNDS, SETTLED, MB_A_ROUND = 16, 20, 5, 1.0


@pytest.mark.timeout(3600)
def test_a_soak_does_not_grow(tmp_path):
    """Sixteen nodes, twenty rounds: memory of the server and of the nodes, each with its SuperNode, round by round."""
    asked = recipe(rounds=ROUNDS, data={**DATA, "clients": NODES}, model={"name": "flic-mlp", "hidden": 8})
    fleet = RealFleet(tmp_path, asked, plain=True)
    table = []
    try:
        nodes = [fleet.node(name) for name in clients_of(asked)]
        server = fleet.server(asked, "soak", "--nodes", NODES, "--quorum", 1, "--wait", 1800)
        status, seen = tmp_path / "soak" / "status.json", 0
        while server.process.poll() is None:
            time.sleep(0.1)
            now = read_json(status) if status.exists() else {}
            if now.get("round", 0) > seen:
                seen = now["round"]
                each = [memory(node.process.pid) for node in nodes]
                table.append((seen, now["at"], memory(server.process.pid), np.mean(each), max(each)))
        assert server.process.returncode == 0, server.said()
    finally:
        fleet.close()
    print("\n| round | s | server MB | node MB, mean | node MB, largest |\n|---|---|---|---|---|")
    for before, row in zip([table[0], *table], table, strict=False):
        print(f"| {row[0]} | {row[1] - before[1]:.1f} | {row[2]:.1f} | {row[3]:.1f} | {row[4]:.1f} |")
    late = np.array([row for row in table if row[0] > SETTLED])
    slopes = [float(np.polyfit(late[:, 0], late[:, column], 1)[0]) for column in (2, 3)]
    print(f"MB a round after round {SETTLED}: server {slopes[0]:.3f}, a node {slopes[1]:.3f}")
    print(json.dumps({"seconds_a_round": float(np.median(np.diff(late[:, 1])))}))
    assert len(late) >= 10
    assert max(slopes) < MB_A_ROUND
