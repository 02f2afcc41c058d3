"""The adapter without a network: the engine on a Grid whose nodes are objects in this process."""

import json
import math
import shutil
from dataclasses import dataclass, field, fields, replace

import httpx
import numpy as np
import pytest
import torch
from fleets import IMU, Inside, clients_of, embedded, inside, lines, recipe, run_inside, same_results, write_recordings
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.runtime_pb2 import SendTaskHeartbeatResponse

from fedsense.bundle import from_bytes, to_bytes
from fedsense.engine.rounds import Engine
from fedsense.errors import RunFailed, UserError
from fedsense.flower.fleet import Fleet, Terms
from fedsense.flower.node import Node, Source
from fedsense.flower.pace import Patience
from fedsense.flower.records import answers_from_records, answers_to_records, text_of
from fedsense.flower.tasks import still_at_it
from fedsense.methods import METHODS, Scaffold
from fedsense.personal import load_personal
from fedsense.result import Result

ALONE = [name for name in METHODS if not METHODS[name].pools]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    monkeypatch.setattr("fedsense.report.page.write", lambda *_: None)


MODELS = {"fedali": {"name": "hart"}, "fedbn": {"name": "convnet4-tiny", "width": 8}}


@pytest.mark.parametrize("name", ALONE)
def test_a_fleet_gives_what_one_machine_gives(name, tmp_path):
    """The same bits on the server, the same scores and bytes; some clients sit rounds out, and begin late."""
    data = {"name": "synthetic-imu", "clients": 3, "samples": 16, "window": 128 if name == "fedali" else 32}
    asked = recipe(name, model=MODELS.get(name, "flic-mlp"), data=data, participation=0.6, rounds=3)
    fleet = run_inside(inside(asked, tmp_path / "keep"), asked, tmp_path / "fleet")
    same_results(fleet, embedded(asked, tmp_path / "here"), f"{name}-seed0")


@pytest.mark.parametrize(
    "tables",
    [
        {"evaluation": {"views": ["personal", "global"], "metrics": ["accuracy"], "moment": "received", "every": 2}},
        {"evaluation": {"views": ["personal"], "metrics": ["accuracy"], "every": 2}},
        {"finish": True},
        {"seeds": [0, 1], "data": {**IMU, "seed": 0}},
    ],
    ids=["received", "seldom", "finish", "seeds"],
)
def test_whatever_the_recipe_says(tables, tmp_path):
    asked = recipe("protohar", "scaffold", rounds=3, participation=0.6, **tables)
    fleet = run_inside(inside(asked, tmp_path / "keep", share=2), asked, tmp_path / "fleet")
    here = embedded(asked, tmp_path / "here")
    for run in ("protohar-seed0", "scaffold-seed0", *(["scaffold-seed1"] if "seeds" in tables else [])):
        same_results(fleet, here, run)


def test_networks_that_differ_are_dealt_as_on_one_machine(tmp_path):
    asked = recipe("fedapa", model={"name": ["convnet4-tiny", "convnet4-middle"], "width": 16}, rounds=2)
    fleet = run_inside(inside(asked, tmp_path / "keep"), asked, tmp_path / "fleet")
    same_results(fleet, embedded(asked, tmp_path / "here"), "fedapa-seed0")


def test_the_server_holds_no_states_and_nodes_do(tmp_path):
    asked = recipe("scaffold")
    out = run_inside(inside(asked, tmp_path / "keep"), asked, tmp_path / "fleet")
    assert not list(out.glob("*/checkpoints/clients-*"))
    kept = sorted((tmp_path / "keep").glob("*/*/*/round-*.safetensors"))
    assert len(kept) >= 3
    for path in kept:
        assert from_bytes(path.read_bytes()).keys() >= {"state.variate"}


def spoiled(changes, when=lambda text: True):
    """Replies of node 11 to updates are changed."""

    def spoil(node, asked, reply):
        text = text_of(asked)
        if node != 11 or "calls" not in text or text["calls"][0]["job"] != "update" or not when(text):
            return reply
        answers = answers_from_records(reply)
        return changes(answers, reply)

    return spoil


def _other_shape(answers, _):
    model = answers[0].bundles["upload"]["model"]
    model["head.bias"] = torch.zeros(3)
    return answers_to_records(answers)


def _not_finite(answers, _):
    answers[0].bundles["upload"]["model"]["head.bias"][0] = math.nan
    return answers_to_records(answers)


def _too_large(answers, _):
    answers[0].bundles["upload"]["more"] = {"x": torch.zeros(10_000_000)}
    return answers_to_records(answers)


def _something_else(answers, _):
    answers[0].bundles["upload"]["other"] = {"x": torch.zeros(3)}
    return answers_to_records(answers)


def _missing(answers, _):
    del answers[0].bundles["upload"]["model"]["head.bias"]
    return answers_to_records(answers)


def _no_message(*_):
    return RecordDict({"fedsense": ConfigRecord({"text": "{"})})


def _no_array(_, reply):
    key = next(key for key in reply.array_records if key.endswith("model"))
    reply[key] = ArrayRecord({"safetensors": Array("uint8", (8,), "safetensors", b"nonsense")})
    return reply


def _no_answers(_, reply):
    return answers_to_records([])


def _no_times(answers, _):
    answers[0].data["seconds"] = "long"
    return answers_to_records(answers)


GARBAGE = {
    _other_shape: "'head.bias' has shape [3], not [8]",
    _not_finite: "'head.bias' has values that are not finite",
    _too_large: "it sent 40.1 MB, and",
    _something_else: "it sent 'other/x', which others of its network do not",
    _missing: "something that others of its network send is missing",
    _no_message: "it is no message of fedsense",
    _no_array: "cannot be read",
    _no_answers: "it sent 0 answers to 1 questions",
    _no_times: "it does not say how long it took",
}


@pytest.mark.parametrize("change", GARBAGE, ids=lambda change: change.__name__)
def test_garbage_is_refused_by_name_and_the_rest_is_used(change, tmp_path):
    """The run is that of the others alone: the upload that was refused leaves no trace in the server's Bundle."""
    asked = recipe("fedavg", rounds=2)
    grid = inside(asked, tmp_path / "keep")
    grid.spoil = spoiled(change)
    out = run_inside(grid, asked, tmp_path / "fleet")
    _, bad, _ = clients_of(asked)
    for line in lines(out / "fedavg-seed0", "ledger"):
        assert len(line["clients"]) == 2
        assert GARBAGE[change] in line["failed"][bad]
    assert f"client '{bad}': refused" in (out / "fleet.log").read_text()

    grid = inside(asked, tmp_path / "keep2")  # the same with a client that never answers
    grid.spoil = spoiled(lambda *_: None)
    silent = run_inside(grid, asked, tmp_path / "silent", deadline=0.5)
    for name in ("server-00001.safetensors", "server-00002.safetensors"):
        mine, theirs = (f / "fedavg-seed0" / "checkpoints" / name for f in (out, silent))
        assert mine.read_bytes() == theirs.read_bytes()


def test_a_client_that_fails_says_why_and_the_run_goes_on(tmp_path):
    asked = recipe("fedavg", rounds=1)
    grid = inside(asked, tmp_path / "keep")
    grid.nodes[12]._at = lambda run: (_ for _ in ()).throw(OSError("the disk is full"))
    out = run_inside(grid, asked, tmp_path / "fleet")
    (line,) = lines(out / "fedavg-seed0", "ledger")
    assert line["failed"] == {clients_of(asked)[2]: "OSError: the disk is full"}
    (scores,) = lines(out / "fedavg-seed0", "scores")
    assert scores["scores"]["personal"]["test"]["accuracy"][clients_of(asked)[2]] is None
    assert scores["unscored"] == line["failed"]
    assert "the disk is full" in (out / "fleet.log").read_text()
    assert Result.read(out / "fedavg-seed0").rows()[0].mean > 0


def test_too_few_answers_end_the_run_which_goes_on_later(tmp_path):
    asked = recipe("scaffold", rounds=3)
    grid = inside(asked, tmp_path / "keep")
    grid.spoil = lambda node, asked, reply: None if text_of(asked).get("calls", [{}])[0].get("round") == 2 else reply
    with pytest.raises(RunFailed, match=r"round 2: 0 of 3 clients answered, and 2 are needed.*go on with --resume"):
        run_inside(grid, asked, tmp_path / "fleet", deadline=0.05)
    again = Inside(grid.nodes)
    run_inside(again, asked, tmp_path / "fleet", resume=True)
    same_results(tmp_path / "fleet", embedded(asked, tmp_path / "here"), "scaffold-seed0")


def test_a_reply_that_is_lost_leaves_no_state_behind(tmp_path):
    """Node 11 trains in round 2, but its answer is lost: in round 3 it starts from what it had after round 1."""
    asked = recipe("scaffold", rounds=3)
    names = clients_of(asked)
    grid = inside(asked, tmp_path / "keep")
    lost = lambda answers, reply: None  # noqa: E731
    grid.spoil = spoiled(lost, when=lambda text: text["calls"][0]["round"] == 2)
    run_inside(grid, asked, tmp_path / "fleet", deadline=0.5)
    bases = [
        entry["base"][names[1]]
        for node, message in grid.sent
        for entry in text_of(message.content).get("calls", [])
        if node == 11 and entry["job"] == "update"
    ]
    assert bases == [-1, 1, 1]

    # the same without a fleet: the client sits round two out
    method = Sits(**{f.name: getattr(asked.methods()["scaffold"], f.name) for f in fields(Scaffold)}, who=names[1])
    engine = Engine(asked.federation(0), method, asked.model_spec(), asked.settings(0))
    engine.run()
    server = tmp_path / "fleet" / "scaffold-seed0" / "checkpoints" / "server-00003.safetensors"
    assert server.read_bytes() == to_bytes(engine.server)


@dataclass(frozen=True, kw_only=True)
class Sits(Scaffold):
    """SCAFFOLD in which one client sits round two out."""

    who: str = ""
    calls: list = field(default_factory=list)

    def choose(self, server, clients, count, rng):
        self.calls.append(1)
        return [client for client in clients if client != self.who or len(self.calls) != 2]


def test_a_node_that_lost_what_it_kept_begins_anew_and_says_so(tmp_path):
    asked = recipe("scaffold", rounds=2)
    grid = inside(asked, tmp_path / "keep")

    def forget(node, asked, reply):
        if node == 11:
            shutil.rmtree(tmp_path / "keep" / "1", ignore_errors=True)
        return reply

    grid.spoil = forget
    out = run_inside(grid, asked, tmp_path / "fleet")
    first, second = (line["clients"][clients_of(asked)[1]] for line in lines(out / "scaffold-seed0", "ledger"))
    assert "anew" not in first
    assert second["anew"] is True


def test_a_node_that_comes_back_with_another_number_is_known_again(tmp_path):
    asked = recipe("scaffold", rounds=3)
    grid = inside(asked, tmp_path / "keep")

    def moves(node, asked, reply):
        text = text_of(asked)
        if node == 11 and text.get("calls", [{}])[0].get("round") == 1 and text["calls"][0]["job"] == "global":
            grid.nodes[99] = grid.nodes.pop(11)
        return reply

    grid.spoil = moves
    run_inside(grid, asked, tmp_path / "fleet")
    assert any(node == 99 for node, _ in grid.sent)
    same_results(tmp_path / "fleet", embedded(asked, tmp_path / "here"), "scaffold-seed0")


def test_somebody_elses_recordings_are_refused(tmp_path):
    """A node that claims to be a client of the run, with other recordings, gets nothing to do."""
    asked = recipe("fedavg", rounds=1)
    grid = inside(asked, tmp_path / "keep")
    other = recipe("fedavg", data={**IMU, "seed": 5})
    impostor = Node(Source(clients=clients_of(asked)[:1]), tmp_path / "keep" / "x")
    impostor._federation = lambda *_: other.federation(0).with_clients(
        [replace(other.federation(0).clients[0], id=clients_of(asked)[0])]
    )
    fleet = Fleet(grid, tmp_path / "fleet", Terms(nodes=3))
    fleet.federation(asked, 0)
    grid.nodes[5] = impostor
    fleet.meet()
    assert fleet.home[clients_of(asked)[0]] == 10


def test_two_clients_of_one_name_are_refused(tmp_path):
    asked = recipe("fedavg")
    nodes = {i: Node(Source(clients=tuple(clients_of(asked)[:1])), tmp_path / str(i)) for i in (1, 2)}
    with pytest.raises(UserError, match="two nodes have a client called"):
        run_inside(Inside(nodes), asked, tmp_path / "fleet")


def test_too_few_nodes_are_waited_for_and_then_told(tmp_path):
    asked = recipe("fedavg")
    grid = inside(asked, tmp_path / "keep")
    with pytest.raises(RunFailed, match=r"3 of 4 nodes came within 0\.1 s"):
        run_inside(grid, asked, tmp_path / "fleet", nodes=4, wait=0.1)


def test_a_node_with_classes_of_its_own_gets_the_numbers_of_all(tmp_path):
    """Two folders know different activities; the federation's classes are both's, and each node's labels follow."""
    for who, labels in {"anna": "ab", "ben": "bc"}.items():
        write_recordings(tmp_path / who, who, labels)
    asked = recipe("fedavg", data={"name": "folder", "window": 16, "split": {"kind": "random", "test": 0.3}})
    nodes = {i: Node(Source(str(tmp_path / who)), tmp_path / "keep" / who) for i, who in enumerate(("anna", "ben"))}
    out = run_inside(Inside(nodes), asked, tmp_path / "fleet")
    about = json.loads((out / "fedavg-seed0" / "run.json").read_text())
    assert about["task"]["classes"] == ["a", "b", "c"]
    (_, site) = nodes[1]._site
    labels = set(site.client("ben").data.train.y.tolist())
    assert labels == {1, 2}


def test_views_that_need_everyones_recordings_are_left_out(tmp_path):
    asked = recipe("fedavg", rounds=1, evaluation={"metrics": ["accuracy"]})
    out = run_inside(inside(asked, tmp_path / "keep"), asked, tmp_path / "fleet")
    (line,) = lines(out / "fedavg-seed0", "scores")
    assert line["scores"].keys() == {"personal", "global"}
    assert "views left out" in (out / "fleet.log").read_text()


def test_what_scoring_costs_is_written_down(tmp_path):
    asked = recipe("fedavg", rounds=1)
    out = run_inside(inside(asked, tmp_path / "keep"), asked, tmp_path / "fleet")
    (line,) = lines(out / "fedavg-seed0", "scores")
    (ledger,) = lines(out / "fedavg-seed0", "ledger")
    down = [sum(entry["down"].values()) for entry in ledger["clients"].values()]
    assert line["bytes"] == sum(down)  # FedAvg's model, once to each node


def test_personal_models_are_on_the_nodes(tmp_path):
    asked = recipe("fedavg", rounds=1)
    out = run_inside(inside(asked, tmp_path / "keep"), asked, tmp_path / "fleet")
    first = clients_of(asked)[0]
    with pytest.raises(UserError, match="personal models are on the nodes"):
        Result.read(out / "fedavg-seed0").personal_model(first)


@pytest.mark.parametrize("name", ["fedavg", "protohar", "fedapa", "flic", "fedali", "local"])
def test_a_node_exports_what_one_machine_has(name, here, tmp_path):
    data = {"name": "synthetic-imu", "clients": 2, "samples": 16, "window": 128 if name == "fedali" else 32}
    asked = recipe(name, model=MODELS.get(name, "flic-mlp"), data=data)
    run_inside(inside(asked, tmp_path / "keep"), asked, tmp_path / "fleet")
    one = Result.read(embedded(asked, tmp_path / "here") / f"{name}-seed0")
    for place, client in enumerate(asked.federation(0)):
        code, _, err = here("export", f"keep/{place}", "--out", "mine.safetensors")
        assert code == 0, err
        mine, x = load_personal(tmp_path / "mine.safetensors"), client.test.x
        assert mine.client == client.id
        expected = one.personal_model(client.id).probabilities(x)
        np.testing.assert_allclose(mine.probabilities(x), expected, atol=1e-6)  # numbers of a file lie otherwise
    assert "has no client 'nobody'" in here("export", "keep/0", "--client", "nobody")[2]


def test_a_node_that_was_given_half_a_model_has_none_to_export(here, tmp_path):
    scored = {"views": ["personal"], "metrics": ["accuracy"], "moment": "received"}
    asked = recipe("protohar", rounds=1, evaluation=scored)
    run_inside(inside(asked, tmp_path / "keep"), asked, tmp_path / "fleet")
    assert "the recipe scores what was received" in here("export", "keep/0")[2]


def test_whoever_waits_for_long_looks_less_often(monkeypatch):
    now = 100.0
    monkeypatch.setattr("fedsense.flower.pace.time.monotonic", lambda: now)
    patience = Patience(0.2, 3.0)
    assert patience.pause() == 0.2
    now += 10
    assert patience.pause() == pytest.approx(1.0)  # a tenth of what was waited
    now += 100
    assert patience.pause() == 3.0
    patience.over()
    assert patience.pause() == 0.2


def test_a_task_that_was_given_up_does_not_end_the_node():
    """Flower's own heartbeat would send this process an interrupt."""

    class Gone:
        def SendTaskHeartbeat(self, request):
            return SendTaskHeartbeatResponse(success=False)

    class Away:
        def SendTaskHeartbeat(self, request):
            raise httpx.ConnectError("nobody there")

    assert still_at_it(Gone())
    assert not still_at_it(Away())


def test_a_node_that_did_not_say_who_it_is_is_asked_again(tmp_path):
    """As after a restart of the server, when Flower's database still has nodes as connected that are not."""
    asked = recipe("fedavg", rounds=1)
    grid = inside(asked, tmp_path / "keep")
    run_inside(grid, asked, tmp_path / "fleet")
    silent = []

    def first_is_silent(node, question, reply):
        if "calls" not in text_of(question) and len(silent) < 2:
            silent.append(node)
            return "Node Unavailable"
        return reply

    again = Inside(grid.nodes)
    again.spoil = first_is_silent
    fleet = Fleet(again, tmp_path / "fleet", Terms(nodes=3))
    fleet.federation(asked, 0)
    assert len(silent) == 2
    assert sorted(fleet.home) == clients_of(asked)
