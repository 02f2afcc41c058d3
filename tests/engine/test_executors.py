"""Executors: side by side is the same as one after another, for every method, and for losses that make it hard."""

import json
import threading
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import blobs, plain_net, quick, run, same_bits, small_net
from fedsense.bundle import to_bytes
from fedsense.client import Client
from fedsense.engine.settings import Settings
from fedsense.engine.shared import Region
from fedsense.engine.site import Call, Site
from fedsense.errors import RunFailed, UserError
from fedsense.method import Method, Reply
from fedsense.methods import METHODS, FedAvg, FedRep, Local, ProtoHAR
from fedsense.models.alp import ALP
from fedsense.models.network import Dropout, Model, Network
from fedsense.models.spec import ModelSpec
from fedsense.ops import classify, cross_entropy
from fedsense.optim import sgd
from fedsense.training import Fit, fit, train
from fedsense.work import Work

FEDERATED = sorted(name for name, method in METHODS.items() if not method.pools)


def dropout_net(input_shape, classes):
    width = int(np.prod(input_shape))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.Tanh(), Dropout(0.3), ALP(8))
    return Network(encoder, nn.Sequential(Dropout(0.2), nn.Linear(8, classes)), features=8)


def uneven():
    """Clients with 40, 17, 8, 1 and 25 samples: other numbers of steps, minibatches that end early or hold one."""
    federation = blobs(clients=5, train=40)
    sizes = dict(zip(federation.ids, (40, 17, 8, 1, 25), strict=True))
    return federation.with_clients(
        c.change(lambda split, s, n=sizes[c.id]: s.take(slice(n)) if split == "train" else s) for c in federation
    )


def furthest(a, b):
    """The largest difference between the personal models of two runs, relative to their largest value."""
    gaps = []
    for client in a.federation.ids:
        ours, theirs = a.personal_parameters(client), b.personal_parameters(client)
        gaps += [float((ours[n] - theirs[n]).abs().max() / (1 + theirs[n].abs().max())) for n in ours]
    return max(gaps)


def together(engine):
    return max(entry.get("together", 1) for line in engine.record.ledger for entry in line["clients"].values())


@pytest.mark.parametrize(
    ("name", "net"),
    [
        (name, net)
        for name in FEDERATED
        for net in (plain_net, dropout_net, small_net)
        if name not in ("flic", "fedbn") or net is small_net  # they need an adapter, or BatchNorm
    ],
)
def test_side_by_side_gives_the_same_numbers_but_for_rounding(name, net):
    """One round of a network with BatchNorm, which makes much of small differences; three of the others."""
    settings = {"rounds": 1 if net is small_net else 3, "model": ModelSpec.of(net)}
    method = quick(name, epochs=3, clip=1.0, optimiser="sgd")  # Adam makes whole steps of what rounding leaves of zero
    one_by_one = run(method, uneven(), executor="serial", **settings)
    side_by_side = run(method, uneven(), executor="cohort", **settings)
    assert together(side_by_side) >= 2, side_by_side.site._company.refused
    assert furthest(one_by_one, side_by_side) < (1e-4 if net is small_net else 3e-6)
    for line, other in zip(one_by_one.record.ledger, side_by_side.record.ledger, strict=True):
        if not line["round"]:  # nothing but getting ready
            continue
        for client, entry in line["clients"].items():
            assert entry["metrics"]["loss"] == pytest.approx(other["clients"][client]["metrics"]["loss"], rel=1e-3)


@pytest.mark.parametrize("name", FEDERATED)
def test_side_by_side_any_number_of_workers_gives_the_same_bits(name):
    method = quick(name, optimiser="adam", lr=0.01)
    one = run(method, blobs(clients=9), executor="cohort", participation=0.8)
    for workers in (2,) if len(name) % 2 else (3,):  # each number for half of the methods
        same_bits(one, run(method, blobs(clients=9), executor="cohort", participation=0.8, workers=workers))


def test_resumed_side_by_side_equals_uninterrupted(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsense.engine.rounds.CHECKPOINT_SHARE", 1e9)
    settings = {"executor": "cohort", "participation": 0.7}
    method = ProtoHAR(epochs=2, batch=8, optimiser="adam")  # keeps Adam's memory, whose counts come to differ
    whole = run(method, blobs(clients=8), rounds=4, **settings)
    run(method, blobs(clients=8), tmp_path, rounds=2, **settings)
    same_bits(whole, run(method, blobs(clients=8), tmp_path, rounds=4, **settings))


def test_another_executor_is_another_run_unless_it_gives_the_same_bits(tmp_path):
    run(FedAvg(epochs=1), folder=tmp_path, rounds=1, executor="serial")
    run(FedAvg(epochs=1), folder=tmp_path, rounds=2, executor="workers", workers=2)
    with pytest.raises(UserError, match="executor"):
        run(FedAvg(epochs=1), folder=tmp_path, rounds=3, executor="cohort")


@dataclass(frozen=True, kw_only=True)
class Own(Method):
    """Local training with a loss that is made by ``kind`` of a test."""

    name: ClassVar[str] = "own"
    kind: ClassVar[str] = ""

    def init_client(self, client, params, down, work):
        return {"model": params}

    def local_update(self, client, state, down, work):
        if self.kind == "raises" and client.id == "c02":
            raise ZeroDivisionError("no")
        loss = getattr(self, self.kind, classify)(client)
        done = fit(loss, state["model"], client, work.epochs(self.epochs), self.optim())
        return Reply(state={"model": done.params}, metrics={"loss": done.loss})

    def aggregate(self, server, uploads):
        return server

    @staticmethod
    def keeps_a_tensor(client):
        weight = torch.tensor(1.0 + int(client.id[-1]))
        return lambda params, batch: weight * cross_entropy(client.model(params, batch).logits, batch)

    @staticmethod
    def keeps_a_number(client):
        weight = 1.0 + int(client.id[-1])
        return lambda params, batch: weight * cross_entropy(client.model(params, batch).logits, batch)

    @staticmethod
    def asks_the_client(client):
        return lambda params, batch: client.samples * 0.05 * cross_entropy(client.model(params, batch).logits, batch)

    @staticmethod
    def looks_at_values(client):
        def loss(params, batch):
            value = cross_entropy(client.model(params, batch).logits, batch)
            return value if value.item() > 0.5 else 2 * value

        return loss

    @staticmethod
    def forgets_the_mask(client):
        return lambda params, batch: nn.functional.cross_entropy(client.model(params, batch).logits, batch.y)


@pytest.mark.parametrize(
    "kind", ["keeps_a_tensor", "keeps_a_number", "asks_the_client", "looks_at_values", "forgets_the_mask"]
)
def test_a_loss_that_cannot_serve_several_clients_is_computed_for_one(kind, monkeypatch):
    """Never wrong, only slower: what is a client's own is found out, in whatever way the loss comes by it."""
    monkeypatch.setattr(Own, "kind", kind)
    method = Own(epochs=2, batch=8, lr=0.05)
    one_by_one = run(method, uneven(), executor="serial", model=ModelSpec.of(plain_net))
    asked_for = run(method, uneven(), executor="cohort", model=ModelSpec.of(plain_net))
    same_bits(one_by_one, asked_for)
    why = {"asks_the_client": "client.samples", "looks_at_values": "item", "forgets_the_mask": "batch.mask"}
    assert why.get(kind, "") in asked_for.site._company.refused


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_names_the_client_it_met(workers, monkeypatch):
    monkeypatch.setattr(Own, "kind", "raises")
    with pytest.raises(RunFailed, match=r"own, round 1, client 'c02': ZeroDivisionError: no"):
        run(Own(epochs=1), executor="cohort", workers=workers)


def wide_net(input_shape, classes):
    width = int(np.prod(input_shape))
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(width, 4096), nn.ReLU()), nn.Linear(4096, classes), 4096)


def conv_net(input_shape, classes):
    encoder = nn.Sequential(nn.Conv1d(input_shape[0], 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    return Network(encoder, nn.Linear(4, classes), 4)


@pytest.mark.parametrize(("net", "batch", "expected"), [(plain_net, 8, 2), (wide_net, 400, 1), (conv_net, 8, 1)])
def test_auto_puts_small_steps_side_by_side_and_says_so(net, batch, expected, tmp_path):
    engine = run(FedAvg(epochs=1, batch=batch), folder=tmp_path, rounds=1, model=ModelSpec.of(net), executor="auto")
    assert together(engine) == expected
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["side_by_side"] == {f"{net.__name__} (2, 6)": expected > 1}


def test_wrong_executors_are_refused():
    with pytest.raises(UserError, match=r"no executor 'cohorts'.*cohort"):
        Settings(executor="cohorts")
    with pytest.raises(UserError, match=r"serial.*workers is 2"):
        Settings(executor="serial", workers=2)


def test_who_is_side_by_side_with_whom_depends_on_the_calls_alone():
    """Nine clients are two jobs, those with most samples first."""
    site = Site(blobs(clients=9), quick("fedavg"), ModelSpec.of(plain_net), seed=0, executor="cohort")
    calls = [Call("update", (client,), 1) for client in site.federation.ids]
    assert site.jobs(calls) == [[8, 7, 6, 5, 4], [3, 2, 1, 0]]
    assert site.jobs(calls[:3]) == [[2, 1, 0]]
    assert site.jobs([Call("global", ("c00", "c01"), 1)]) == [[0]]
    many = Site(blobs(clients=80, train=4), quick("fedavg"), ModelSpec.of(plain_net), seed=0, executor="cohort")
    jobs = many.jobs([Call("update", (client,), 1) for client in many.federation.ids])
    assert [len(job) for job in jobs] == [20] * 4
    one_by_one = Site(blobs(clients=9), quick("fedavg"), ModelSpec.of(plain_net), seed=0, executor="serial")
    assert one_by_one.jobs(calls) == [[i] for i in range(9)]


class Reads(TorchDispatchMode):
    """Counts what makes the processor wait for a GPU: values read back, and tensors whose size depends on values."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        waits = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique"}
        self.count += func.overloadpacket.__name__ in waits
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("many", [1, 3])
def test_a_step_reads_nothing_back_from_the_device(many):
    """However many steps there are, as much is read back: what the whole training needs, nothing for a step."""
    federation = blobs()
    model = Model(plain_net((2, 6), 3))

    def asked(data, epochs):
        client = Client(data.id, data, model, federation.task, model.init(0), torch.device("cpu"))
        schedule = Work(0, 1, data.id, 8).epochs(epochs)
        return Fit(classify(client), client.initial, client, schedule, sgd(0.1, 0.9), ("encoder", "head"), None)

    counts = []
    for epochs in (1, 6):
        with Reads() as reads:
            train([asked(data, epochs) for data in federation.clients[:many]])
        counts.append(reads.count)
    assert counts[0] == counts[1]


def test_what_a_resting_encoder_sees_is_computed_once(monkeypatch):
    """Nine epochs of the head need one pass of the encoder over the 24 samples, not nine."""
    seen = []
    run_network = Model._run
    monkeypatch.setattr(Model, "_run", lambda self, params, x: seen.append(len(x)) or run_network(self, params, x))
    federation = blobs(clients=1)
    data = federation.clients[0]
    model = Model(plain_net((2, 6), 3))
    client = Client(data.id, data, model, federation.task, model.init(0), torch.device("cpu"))
    epochs = Work(0, 1, data.id, 8).epochs(9)
    done = fit(classify(client), client.initial, client, epochs, sgd(0.1), only="head")
    assert sum(seen) == 24
    assert done.steps == 27

    def without(params, batch):
        return cross_entropy(model(params, batch._replace(seen=None)).logits, batch)

    slowly = fit(without, client.initial, client, epochs, sgd(0.1), only="head")
    for name, tensor in slowly.params.items():
        torch.testing.assert_close(done.params[name], tensor, rtol=1e-5, atol=1e-6)


def test_fedrep_is_protohar_without_prototypes():
    fields = {"batch": 8, "lr": 0.05, "head_lr": 0.02, "head_epochs": 2, "encoder_epochs": 1, "clip": 50.0}
    ours, theirs = run(FedRep(**fields)), run(ProtoHAR(align=0.0, keep_momentum=False, **fields))
    assert to_bytes({"encoder": ours.server["encoder"]}) == to_bytes({"encoder": theirs.server["encoder"]})
    for client in ours.federation.ids:
        assert to_bytes(ours.states[client]) == to_bytes(theirs.states[client])


def test_shared_memory_gives_back_what_was_written():
    region = Region()
    tensors = [
        torch.arange(6.0).view(2, 3).T,
        torch.tensor(7),
        torch.tensor([True, False]),
        torch.empty(0, 4),
        torch.randn(300_000),  # grows
        torch.tensor([1, 255], dtype=torch.uint8),
    ]
    places = [region.write(t) for t in tensors]
    for tensor, place in zip(tensors, places, strict=True):
        found = region.read(place)
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)
    filled = region._filled
    assert region.write(tensors[4]) == places[4]
    assert region._filled == filled, "the very same tensor is not written again"
    region.clear()
    assert region.write(torch.tensor(1.0))[2] == 0
    region.close()


def test_local_alone_and_in_company_of_itself():
    """A cohort of one is the client alone, to the bit."""
    same_bits(run(Local(epochs=2), blobs(clients=1)), run(Local(epochs=2), blobs(clients=1), executor="cohort"))


def centred_net(input_shape, classes):
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    width = int(np.prod(input_shape))
    return Network(nn.Sequential(nn.Flatten(), nn.Linear(width, 8), Centred()), nn.Linear(8, classes), 8)


def test_a_network_that_mixes_samples_is_run_for_one_client_where_minibatches_were_filled_up():
    method = quick("fedavg")
    settings = {"model": ModelSpec.of(centred_net), "rounds": 1}
    same_bits(
        run(method, uneven(), executor="serial", **settings), run(method, uneven(), executor="cohort", **settings)
    )


def test_bytes_and_numbers_are_not_put_together():
    """Bytes are shares of 255 to a network; beside other numbers they would not be."""
    federation = blobs(clients=4)
    byte = federation.with_clients(
        c if i % 2 else c.change(lambda _, s: s.__class__((s.x * 20 + 100).clamp(0, 255).to(torch.uint8), s.y))
        for i, c in enumerate(federation)
    )
    settings = {"model": ModelSpec.of(plain_net), "rounds": 2}
    one_by_one = run(quick("local"), byte, executor="serial", **settings)
    assert furthest(one_by_one, run(quick("local"), byte, executor="cohort", **settings)) < 1e-5


@dataclass(frozen=True, kw_only=True)
class WritesIntoWhatCame(FedAvg):
    """Does what a method may not."""

    name: ClassVar[str] = "writes"

    def local_update(self, client, state, down, work):
        down["model"]["head.bias"].add_(1)
        return super().local_update(client, state, down, work)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_method_that_writes_into_what_came_is_told(workers):
    with pytest.raises(RunFailed, match="in place; clone"):
        run(WritesIntoWhatCame(epochs=1), workers=workers)


def test_threads_end_with_the_run():
    before = threading.active_count()
    run(quick("fedavg"), executor="cohort")
    assert threading.active_count() == before
