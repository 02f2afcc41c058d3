"""A real SuperLink and real SuperNodes on loopback, with TLS and keys, as `fedsense fleet` starts them: the quick part.

One server runs a recipe on two nodes that read their recordings from a folder; every wire is recorded. What takes
longer is in test_fleet_hard.py.
"""

import json
import socket
import ssl

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from fleets import embedded, lines, recipe, same_results, write_recordings
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from machines import HERE, RealFleet

from fedsense.bundle import from_bytes
from fedsense.engine.record import totals
from fedsense.experiment import find_runs
from fedsense.flower.running import status_of
from fedsense.flower.setup import create

pytestmark = pytest.mark.timeout(900)  # on a busy machine Flower's programs take their time to start
PEOPLE = ("anna", "ben")
METHODS = ("scaffold", "protohar")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A fleet that ran a recipe; ``met`` is what others met with who knocked while it did."""
    folder = tmp_path_factory.mktemp("real")
    for who, labels in zip(PEOPLE, ("ab", "ba"), strict=True):
        write_recordings(folder / "recordings", who, labels, minutes=0.8)
    data = {"name": "folder", "root": str(folder / "recordings"), "window": 16, "normalise": "channel"}
    split = {"kind": "random", "test": 0.3}
    asked = recipe(*METHODS, data={**data, "split": split}, model={"name": "flic-mlp", "hidden": 256})
    fleet = RealFleet(folder, asked)
    try:
        for wire in fleet.wires.values():
            wire.records = True
        for who in PEOPLE:
            fleet.node(who, None, None, "--data", folder / "recordings")
        server = fleet.server(asked, "out", "--nodes", 2)
        server.wait_for("round 1 of 2")
        fleet.status = status_of(folder / "fleet", None)
        fleet.met = _knock(fleet, {who: int(node) for who, node in fleet.status["clients"].items()})
        assert server.wait() == 0, server.said()
        yield fleet
    finally:
        fleet.close()


def _client(fleet, key, authority=None):
    trust = (authority or fleet.folder / "fleet" / "server" / "ca.crt").read_bytes()
    signs = NodeAuthHttpInterceptor(key, key.public_key())
    return FleetHttpClient.from_server_address(f"{HERE}:{fleet.port}", False, trust, [signs])


def _knock(fleet, nodes):
    """Everything a node could say that is not its own to say, to a server at work: what → how it was answered."""
    met = {}
    for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/fleet/../control/list-runs", "/docs"):
        met[path] = _status(fleet, path)
    met["no key"] = _status(fleet, "/v1/fleet/pull-messages")
    mine, other = (Node(node_id=nodes[who]) for who in PEOPLE)
    key = load_ssh_private_key((fleet.keys("anna") / "node.key").read_bytes(), None)
    public = public_key_to_bytes(key.public_key())

    def pushed(node, **metadata):
        about = Metadata(run_id=int(fleet.status["flower_run"]), message_type="train", ttl=60, **metadata)
        trees = [ObjectTree(object_id=about.message_id)]
        return PushMessagesRequest(node=node, messages_list=[Message(metadata=about)], message_object_trees=trees)

    answer = {"message_id": "1" * 64, "reply_to_message_id": "2" * 64, "dst_node_id": 1}
    order = {"message_id": "3" * 64, "src_node_id": 1, "dst_node_id": other.node_id}
    requests = {
        "its own": ("PullMessages", PullMessagesRequest(node=mine)),
        "pull as another": ("PullMessages", PullMessagesRequest(node=other)),
        "heartbeat as another": ("SendNodeHeartbeat", SendNodeHeartbeatRequest(node=other, heartbeat_interval=30)),
        "send another away": ("DeactivateNode", DeactivateNodeRequest(node_id=other.node_id)),
        "push as another": ("PushMessages", pushed(other, src_node_id=other.node_id, **answer)),
        "answer of another": ("PushMessages", pushed(mine, src_node_id=other.node_id, **answer)),
        "order of the server": ("PushMessages", pushed(mine, **order)),
        "connected twice": ("ActivateNode", ActivateNodeRequest(public_key=public, heartbeat_interval=30)),
        "register": ("RegisterNode", RegisterNodeFleetRequest(public_key=public)),
    }
    with _client(fleet, key) as client:
        for what, (call, request) in requests.items():
            met[what] = _answered(getattr(client, call), request)
    stranger = ec.generate_private_key(ec.SECP384R1())
    strange = public_key_to_bytes(stranger.public_key())
    with _client(fleet, stranger) as client:
        activate = ActivateNodeRequest(public_key=strange, heartbeat_interval=30)
        met["unknown key"] = _answered(client.ActivateNode, activate)
        met["unknown registers"] = _answered(client.RegisterNode, RegisterNodeFleetRequest(public_key=strange))
        activate = ActivateNodeRequest(public_key=public, heartbeat_interval=30)
        met["key of another, unsigned"] = _answered(client.ActivateNode, activate)
    create(fleet.folder / "other", [])
    with _client(fleet, key, fleet.folder / "other" / "server" / "ca.crt") as client:
        met["another authority"] = _answered(client.PullMessages, PullMessagesRequest(node=mine))
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{HERE}:{fleet.port}/v1/fleet/pull-messages", timeout=5)
    return met


def _answered(call, request):
    try:
        call(request)
        return 200
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    except httpx.ConnectError as error:
        return str(error)


def _status(fleet, path):
    trust = ssl.create_default_context(cafile=str(fleet.folder / "fleet" / "server" / "ca.crt"))
    with socket.create_connection((HERE, fleet.port)) as raw, trust.wrap_socket(raw, server_hostname=HERE) as end:
        kind = "Content-Type: application/x-protobuf"
        end.sendall(f"POST {path} HTTP/1.1\r\nHost: {HERE}\r\n{kind}\r\nContent-Length: 0\r\n\r\n".encode())
        return int(end.recv(4096).split()[1])


def test_a_fleet_is_what_one_machine_is(ran, tmp_path):
    here = embedded(ran.asked, tmp_path / "here")
    for run in find_runs(here):
        same_results(ran.folder / "out", here, run.name)


def test_status_tells_who_is_connected_and_how_it_goes(ran):
    assert ran.status["running"]
    assert sorted(ran.status["clients"]) == list(PEOPLE)
    assert ran.status["bytes_up"] > 0


def test_whoever_is_not_a_node_of_the_fleet_is_refused(ran):
    """The node's own request is answered, so refusals are not for another reason; the run was not disturbed."""
    assert ran.met["its own"] == 200
    assert {code for path, code in ran.met.items() if path.startswith("/")} == {404}
    assert ran.met["no key"] >= 400
    for what in ("pull as another", "heartbeat as another", "send another away", "push as another"):
        assert ran.met[what] == 401, what
    assert ran.met["key of another, unsigned"] == 401
    for what in ("answer of another", "order of the server"):  # by the gate: Flower itself does not look
        assert ran.met[what] == 403, what
    for what in ("unknown key", "unknown registers", "register", "connected twice"):
        assert 400 <= ran.met[what] < 500, what
    assert "CERTIFICATE_VERIFY_FAILED" in ran.met["another authority"]


def test_the_wire_carries_what_the_ledger_says(ran):
    counted = 0
    for run in find_runs(ran.folder / "out"):
        cost = totals(lines(run, "ledger"))
        counted += cost["bytes_down"] + cost["bytes_up"] + sum(line.get("bytes", 0) for line in lines(run, "scores"))
    gate = json.loads((ran.folder / "out" / "traffic.json").read_text())
    carried = gate["received"] + gate["sent"]
    assert carried - gate["idle"] == pytest.approx(counted, rel=0.05)
    wire = sum(len(part) for each in ran.wires.values() for part in (*each.up, *each.down))
    assert wire == pytest.approx(carried, rel=0.05)  # also first lines of HTTP, and those of the last moment


KINDS = ("<f4", "<f8", ">f4", ">f8", "<f2")


def pieces(rows, kinds=KINDS):
    """All eight bytes in a row that lists of numbers have if they are written as these kinds of number."""
    found = []
    for kind in kinds:
        several = 8 // np.dtype(kind).itemsize
        for row in rows:
            each = np.lib.stride_tricks.sliding_window_view(row.astype(kind), several)
            each = each[(each != each[:, :1]).any(1) | ((several == 1) & (each[:, 0] != 0))]  # padding is nobody's
            found.append(np.ascontiguousarray(each).view("u8")[:, 0])
    return np.unique(np.concatenate(found))


def sixteen(data, wanted):
    """How often sixteen bytes in a row are two of the wanted pieces: four float32, two float64."""
    found = 0
    for start in range(8):
        numbers = np.frombuffer(data, "u8", (len(data) - start) // 8, start)
        place = np.searchsorted(wanted, numbers).clip(max=len(wanted) - 1)
        hit = wanted[place] == numbers
        found += int((hit[1:] & hit[:-1]).sum())
    return found


def _recorded(who, ran):
    """What a client has that must not be sent: columns as they were recorded, windows as they are trained on."""
    text = (ran.folder / "recordings" / f"{who}.csv").read_text().splitlines()[1:]
    columns = np.array([line.split(",")[1:3] for line in text], float)
    windows = np.concatenate([split.x.numpy() for split in ran.asked.federation(0)[who].splits])
    by_time = windows.transpose(0, 2, 1)
    return [*columns.T, columns.ravel(), *windows.reshape(len(windows), -1), *by_time.reshape(len(windows), -1)]


def test_no_raw_sample_is_on_the_wire(ran):
    """In what was read from the wires in the clear; the same search finds parameters that are known to be sent."""
    for who in PEOPLE:
        up, down = (b"".join(parts) for parts in (ran.wires[who].up, ran.wires[who].down))
        (kept,) = (ran.keys(who) / "keep").glob(f"*-protohar-seed0/{who}/round-00002.safetensors")
        server = ran.folder / "out" / "protohar-seed0" / "checkpoints" / "server-00001.safetensors"
        for wire, params in ((up, from_bytes(kept.read_bytes())["trained"]), (down, _all(server))):
            sent = max((t for name, t in params.items() if not name.startswith("head")), key=lambda t: t.numel())
            assert sixteen(wire, pieces([sent.numpy().ravel()])) >= sent.numel() // 4 - 2
        recorded = _recorded(who, ran)
        wanted = pieces(recorded)
        for row in (recorded[0], recorded[-1]):
            for kind in KINDS:
                assert sixteen(up[:5001] + row[:12].astype(kind).tobytes(), wanted) > 0  # so it can be found
        assert sixteen(up, wanted) == 0
        assert sixteen(down, wanted) == 0


def _all(path):
    return {name: t for params in from_bytes(path.read_bytes()).values() for name, t in params.items()}


def test_neither_labels_nor_lines_of_recordings_are_on_the_wire(ran):
    for who in PEOPLE:
        wire = b"".join((*ran.wires[who].up, *ran.wires[who].down))
        assert who.encode() in wire  # its name is
        for line in (ran.folder / "recordings" / f"{who}.csv").read_text().splitlines()[1::20]:
            x, y = line.split(",")[1:3]
            assert f"{x},{y}".encode() not in wire
        for split in ran.asked.federation(0)[who].splits:
            labels = split.y.numpy()
            assert len(labels) >= 16
            assert len(set(labels.tolist())) == 2
            for kind in ("u1", "<i4", "<i8", "<f4"):
                assert labels.astype(kind).tobytes() not in wire
            for between in (b",", b", "):
                assert between.join(b"%d" % label for label in labels) not in wire
