"""The training loop against a plain PyTorch loop; what it must leave alone."""

import dataclasses
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch

from conftest import blobs, plain_net, small_net
from fedsense.client import Client
from fedsense.flows import Alone, Together
from fedsense.models.network import Model
from fedsense.ops import classify
from fedsense.optim import chain, clip, sgd
from fedsense.replay import Recorder
from fedsense.training import Fit, fit, train
from fedsense.work import Work


def client_of(builder, federation=None):
    federation = federation or blobs()
    data = federation.clients[0]
    model = Model(builder(data.input_shape, len(federation.task.classes)))
    return Client(data.id, data, model, federation.task, model.init(0), torch.device("cpu"))


def test_equals_a_plain_loop():
    client = client_of(plain_net)
    schedule = Work(0, 1, client.id, batch=8).epochs(3)
    done = fit(classify(client), client.initial, client, schedule, sgd(0.1, momentum=0.9))

    network = plain_net(client.data.input_shape, 3)
    network.load_state_dict(client.initial)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in schedule.steps(client.samples):
        loss = torch.nn.functional.cross_entropy(
            network(client.train.x[step.samples]).logits, client.train.y[step.samples]
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(done.params[name], tensor, rtol=1e-5, atol=1e-6)
    assert done.steps == len(losses) == 3 * 3
    assert done.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_what_comes_in_is_left_as_it_is():
    client = client_of(small_net)
    before = {name: t.clone() for name, t in client.initial.items()}
    done = fit(classify(client), client.initial, client, Work(0, 1, client.id).epochs(2), sgd(0.1))
    assert all(torch.equal(client.initial[name], before[name]) for name in before)
    assert not any(t.requires_grad for t in [*client.initial.values(), *done.params.values()])
    assert not torch.equal(done.params["head.weight"], before["head.weight"])


def test_only_the_named_parts_change_running_statistics_included():
    client = client_of(small_net)
    work = Work(0, 1, client.id, batch=8)
    head = fit(classify(client), client.initial, client, work.epochs(2), sgd(0.1), only="head").params
    rest = fit(classify(client), client.initial, client, work.epochs(2), sgd(0.1), only=("adapter", "encoder")).params
    for name, tensor in client.initial.items():
        in_head = name.startswith("head.")
        assert torch.equal(head[name], tensor) == (not in_head), name
        if name not in ("adapter.1.bias", "encoder.0.bias"):  # BatchNorm takes the mean away: no gradient
            assert torch.equal(rest[name], tensor) == in_head, name


def test_running_statistics_move_when_their_part_trains():
    client = client_of(small_net)
    done = fit(classify(client), client.initial, client, Work(0, 1, client.id).epochs(1), sgd(0.0))
    assert not torch.equal(done.params["encoder.1.running_mean"], client.initial["encoder.1.running_mean"])
    assert torch.equal(done.params["encoder.0.weight"], client.initial["encoder.0.weight"])


def test_memory_goes_on_where_it_was():
    client = client_of(plain_net)
    loss, work, optimiser = classify(client), Work(0, 1, client.id), sgd(0.1, momentum=0.9)
    first = fit(loss, client.initial, client, work.epochs(1, "one"), optimiser)
    kept = fit(loss, first.params, client, work.epochs(1, "two"), optimiser, memory=first.optimiser)
    fresh = fit(loss, first.params, client, work.epochs(1, "two"), optimiser)
    assert not torch.equal(kept.params["head.bias"], fresh.params["head.bias"])
    again = fit(loss, first.params, client, work.epochs(1, "two"), optimiser, memory=first.optimiser)
    assert torch.equal(kept.params["head.bias"], again.params["head.bias"]), "the memory given must not be written into"


def test_a_client_without_samples_stays_where_it_is():
    client = client_of(plain_net, blobs(clients=1, train=0))
    done = fit(classify(client), client.initial, client, Work(0, 1, client.id).epochs(5), sgd(0.1))
    assert done.steps == 0
    assert all(torch.equal(done.params[name], t) for name, t in client.initial.items())


def test_nothing_to_train_in_a_part_without_parameters():
    client = client_of(plain_net)
    done = fit(classify(client), client.initial, client, Work(0, 1, client.id).epochs(1), sgd(0.1), only="adapter")
    assert done.steps == 0


def test_what_goes_beside_a_sample_comes_with_it():
    """Every batch carries the rows of its own samples, in their order."""
    client = client_of(plain_net)
    rows = torch.arange(client.samples).float()[:, None] + torch.tensor([[0.0, 0.5]])
    seen = []

    def loss(params, batch):
        assert set(batch.beside) == {"rows"}
        for x, row in zip(batch.x, batch.beside["rows"], strict=True):
            assert torch.equal(x, client.train.x[int(row[0])])
            assert row[1] == row[0] + 0.5
        seen.append(len(batch.y))
        return classify(client)(params, batch)

    fit(loss, client.initial, client, Work(0, 1, client.id, 8).epochs(2), sgd(0.1), beside={"rows": rows})
    assert sum(seen) == 2 * client.samples


def test_the_order_of_parameters_does_not_matter_to_the_bit():
    """Files give tensors back in any order; a norm over all of them (clip) must not depend on it."""
    client = client_of(small_net)
    turned = dict(reversed(client.initial.items()))
    work = Work(0, 1, client.id, 8).epochs(3)
    a, b = (fit(classify(client), p, client, work, chain(clip(0.01), sgd(0.5))) for p in (client.initial, turned))
    assert all(torch.equal(t, b.params[name]) for name, t in a.params.items())


def of_heads(loss_of):
    """What several clients ask for whose heads train, all with one encoder; minibatches are all of one size."""
    federation = blobs(clients=3, train=24)
    model = Model(plain_net(federation.clients[0].input_shape, 3))
    first, asked = model.init(0), []
    for data in federation.clients:
        even = dataclasses.replace(data, train=data.train.take(slice(0, 24)))
        client = Client(data.id, even, model, federation.task, first, torch.device("cpu"))
        schedule = Work(0, 1, client.id, batch=4).epochs(30)
        asked.append(Fit(loss_of(client), first, client, schedule, sgd(0.1), ("head",), None))
    return asked


def test_what_rests_is_neither_copied_nor_changed():
    asked = of_heads(classify)
    together = train(asked)
    for fit_, done in zip(asked, together, strict=True):
        alone = train([fit_])[0]
        for name, tensor in done.params.items():
            rests = not name.startswith("head.")
            assert (tensor.data_ptr() == fit_.params[name].data_ptr()) == rests
            torch.testing.assert_close(tensor, alone.params[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("side_by_side", [True, False])
def test_samples_are_looked_up_only_for_a_loss_that_reads_them(side_by_side, monkeypatch):
    """Where features stand for samples; a loss that reads samples all the same is given them in every step."""
    monkeypatch.setattr("fedsense.flows.LOOKED_UP", 1)  # a step at a time
    monkeypatch.setattr(Recorder, "_tapes", OrderedDict())

    def reads(client):
        plain = classify(client)
        return lambda params, batch: plain(params, batch) * batch.x.square().mean()

    for loss_of, spared in ((classify, True), (reads, False)):
        asked = of_heads(loss_of)[: 3 if side_by_side else 1]
        for again in range(3):  # recorded, checked, played
            flow = Together(asked) if side_by_side else Alone(asked[0])
            gradients, unread = Recorder(asked[0], flow), []
            with torch.no_grad():
                for batch in flow:
                    unread.append(bool(batch.x.isnan().all()))
                    values, *grads = gradients(batch)
                    assert values.isfinite().all()
                    flow.step(grads)
            assert unread[-1] == spared
            assert not unread[0]
            if again == 2:
                assert sum(unread) == (len(unread) - 1 if spared else 0)


def test_a_process_that_trains_does_not_wait_for_sympy():
    """PyTorch imports it to look at a gradient it is given: a second of every worker process."""
    code = """
import sys, numpy as np, fedsense
rng = np.random.default_rng(0)
data = {c: {"train": (rng.normal(size=(8, 4)).astype("f"), np.arange(8) % 2)} for c in "ab"}
federation = fedsense.Federation.from_arrays(data, 2)
for executor in ("serial", "cohort"):
    fedsense.run(federation, "fedavg", "flic-mlp", rounds=1, executor=executor, workers=1, progress=False)
sys.exit("sympy" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
