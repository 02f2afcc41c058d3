"""FedHeNN against plain NumPy and PyTorch, and against what it reduces to."""

import dataclasses
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conftest import NET, blobs, plain_net, quick, run, small_net
from fedsense.bundle import to_bytes
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.evaluation.summary import curve
from fedsense.federation import Federation
from fedsense.methods import FedHeNN
from fedsense.methods.fedhenn import cka, kernel
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def by_width(input_shape, classes):
    """Another architecture, and another width of features, for every input shape of :func:`mixed`."""
    if input_shape == (2, 6):
        return plain_net(input_shape, classes)
    if input_shape == (3, 6):
        return small_net(input_shape, classes)
    encoder = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(12, 5), nn.Tanh())
    return Network(encoder, nn.Linear(5, classes), features=5)


def mixed() -> Federation:
    """Two clients of each of three input shapes."""
    each = [(shape, i) for shape in ((2, 6), (3, 6), (1, 5)) for i in range(2)]
    clients = [dataclasses.replace(blobs(shape=s).clients[i], id=f"{s[0]}x{s[1]}-{i}") for s, i in each]
    return blobs().with_clients(clients)


def likeness(engine) -> float:
    """Mean CKA of every two clients' features of points that nobody was aligned on."""
    kernels = []
    for who in engine.trainees:
        client = engine.site.client(who)
        points = engine.method.alignment_data(client, 99, 99)
        kernels.append(kernel(client.model.predict(engine.personal_parameters(who), points).features))
    return float(np.mean([float(cka(a, b)) for a, b in combinations(kernels, 2)]))


def test_cka_is_what_numpy_says():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(20, 3)), rng.normal(size=(20, 7)) + 5
    h, k, l = np.eye(20) - 1 / 20, a @ a.T, b @ b.T  # noqa: E741
    expected = np.trace(k @ h @ l @ h) / np.sqrt(np.trace(k @ h @ k @ h) * np.trace(l @ h @ l @ h))
    ours = cka(kernel(torch.tensor(a)), kernel(torch.tensor(b)))
    assert float(ours) == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(kernel(torch.tensor(b)).numpy(), h @ l @ h, atol=1e-9)


def test_cka_by_hand():
    """Of single centred features a and b: (a·b)² / (‖a‖² ‖b‖²)."""

    def of(a, b):
        return float(cka(*(kernel(torch.tensor(v)[:, None]) for v in (a, b))))

    assert of([1.0, -1.0, 0.0], [1.0, 0.0, -1.0]) == pytest.approx(1 / 4)
    assert of([1.0, -1.0, 0.0], [5.0, 1.0, 3.0]) == pytest.approx(1.0), "a shift and a scale do not matter"
    assert of([1.0, -1.0, 0.0], [1.0, 1.0, -2.0]) == pytest.approx(0.0)


def test_cka_does_not_know_rotations_and_survives_features_that_say_nothing():
    z = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    turned = z @ torch.linalg.qr(z[:4]).Q
    assert float(cka(kernel(z), kernel(turned))) == pytest.approx(1.0)
    dead = torch.full((10, 3), 0.1, requires_grad=True)
    alike = cka(kernel(dead), kernel(z))
    alike.backward()
    assert abs(float(alike.detach())) < 1e-4
    assert dead.grad.abs().max() < 1.0


def test_the_points_are_common_to_all_and_others_every_round():
    method, site = FedHeNN(), Site(mixed(), FedHeNN(), ModelSpec.of(by_width), seed=0)
    of = {c: method.alignment_data(site.client(c), 0, 1).flatten(1) for c in site.federation.ids}
    assert {c: p.shape[1] for c, p in of.items()} == {c.id: np.prod(c.input_shape) for c in site.federation}
    largest = of["3x6-0"]
    assert all(torch.equal(points, largest[:, : points.shape[1]]) for points in of.values())
    assert len(largest) == 100
    assert abs(float(largest.mean())) < 0.1
    assert float(largest.std()) == pytest.approx(1.0, abs=0.1)
    for seed, round in ((0, 2), (1, 1)):
        other = method.alignment_data(site.client("3x6-0"), seed, round).flatten(1)
        assert (other != largest).float().mean() > 0.99


def test_two_rounds_are_those_of_plain_pytorch():
    """Cross-entropy + η_t (1 − CKA) by torch's own modules and optimiser; K_i is of the next round's points."""
    method = FedHeNN(epochs=2, batch=8, lr=0.05, eta=2.0)
    site = Site(blobs(), method, PLAIN, seed=0)
    client, net = site.client("c00"), plain_net((2, 6), 3)
    net.load_state_dict(client.initial)
    state, down = method.init_client(client, client.initial, {}, Work(0, 0, "c00", 8)), {}
    for round in (1, 2):
        work, mean = Work(0, round, "c00", 8), down.get("kernel", {}).get("mean")
        points = method.alignment_data(client, 0, round)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        for step in work.epochs(2).steps(client.samples):
            loss = F.cross_entropy(net(client.train.x[step.samples]).logits, client.train.y[step.samples])
            if mean is not None:
                z = net(points).features
                k = (z - z.mean(0)) @ (z - z.mean(0)).T
                loss = loss + 2.0 * round**0.5 * (1 - (k * mean).sum() / (k.norm() * mean.norm()))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        reply = method.local_update(client, state, down, work)
        for name, tensor in net.state_dict().items():
            torch.testing.assert_close(reply.state["model"][name], tensor, msg=f"round {round}, {name}")
        z = net(method.alignment_data(client, 0, round + 1)).features.detach()
        torch.testing.assert_close(reply.upload["kernel"]["mean"], kernel(z), rtol=1e-4, atol=1e-5)
        target = torch.randn(100, 4, generator=torch.Generator().manual_seed(1))
        state, down = reply.state, {"kernel": {"mean": kernel(target)}}


@pytest.mark.parametrize("federation", [blobs, mixed])
def test_without_pull_it_is_local(federation):
    settings = {"model": ModelSpec.of(by_width) if federation is mixed else NET}
    ours, alone = (run(m, federation(), **settings) for m in (quick("fedhenn", eta=0.0), quick("local")))
    assert all(to_bytes(ours.states[c]) == to_bytes(alone.states[c]) for c in alone.trainees)
    assert ours.record.scores == alone.record.scores


def test_there_is_nothing_to_align_to_in_the_first_round():
    ours, alone = (run(m, rounds=1) for m in (quick("fedhenn", eta=10.0), quick("local")))
    assert all(to_bytes(ours.states[c]) == to_bytes(alone.states[c]) for c in alone.trainees)


def test_clients_of_different_widths_and_architectures_are_drawn_together():
    model = ModelSpec.of(by_width)
    alone, drawn = (run(quick("fedhenn", eta=eta), mixed(), model=model, rounds=8) for eta in (0.0, 1.0))
    widths = {member.features for member in drawn.site.task.members.values()}
    assert widths == {5, 8}
    assert likeness(drawn) > likeness(alone) + 0.1
    assert curve(drawn.record.scores, "personal", "accuracy")[-1][1] > 0.6 > 1 / 3


def test_the_stronger_the_pull_the_more_alike():
    alike = [likeness(run(quick("fedhenn", eta=eta), rounds=5)) for eta in (0.0, 0.1, 1.0)]
    assert alike[0] + 0.05 < alike[1]
    assert alike[1] + 0.02 < alike[2]


@pytest.mark.parametrize("federation", [blobs, mixed])
def test_side_by_side_is_one_by_one(federation):
    settings = {"model": PLAIN if federation is blobs else ModelSpec.of(by_width), "rounds": 2}
    method = quick("fedhenn", eta=1.0)
    one, together = (run(method, federation(), executor=how, **settings) for how in ("serial", "cohort"))
    assert max(entry["together"] for entry in together.record.ledger[-1]["clients"].values()) >= 2
    assert not together.site._company.refused
    for who in one.trainees:
        for name, tensor in one.states[who]["model"].items():
            torch.testing.assert_close(together.states[who]["model"][name], tensor, rtol=1e-3, atol=1e-4)


def test_running_statistics_learn_nothing_from_the_points():
    """With a learning rate of 0 only they move."""
    ours, alone = (run(quick(n, lr=0.0, **f)) for n, f in (("fedhenn", {"eta": 10.0}), ("local", {})))
    assert all(to_bytes(ours.states[c]) == to_bytes(alone.states[c]) for c in alone.trainees)


def test_the_mean_kernel_by_hand():
    """n = 1 and 3: (1·2 + 3·6)/4 = 5, or 4 if clients count alike."""

    def sent(value, n):
        return {"kernel": {"mean": torch.tensor([[value]])}, "size": {"n": torch.tensor(float(n))}}

    for weights, expected in (("samples", 5.0), ("uniform", 4.0)):
        after = FedHeNN(weights=weights).aggregate({}, {"a": sent(2.0, 1), "b": sent(6.0, 3)})
        assert after["kernel"]["mean"].tolist() == [[expected]]


def test_only_kernels_travel():
    engine = run(quick("fedhenn", points=20), mixed(), model=ModelSpec.of(by_width), rounds=2)
    first, second = (list(line["clients"].values()) for line in engine.record.ledger)
    assert all(entry["down"] == {} for entry in first)
    assert all(entry["down"]["kernel"] == 4 * 20 * 20 for entry in second)
    assert all({"kernel": 1600, "size": 4}.items() <= entry["up"].items() for entry in [*first, *second])
    assert engine.method.global_model(engine.server) is None


def test_its_weight_grows_with_the_root_of_the_round_or_not():
    assert [FedHeNN().strength(t) for t in (1, 4)] == pytest.approx([0.01, 0.02])
    assert [FedHeNN(eta=0.1, growth=0).strength(t) for t in (1, 50)] == pytest.approx([0.1, 0.1])
    with pytest.raises(UserError, match="eta is -1; it cannot be negative"):
        FedHeNN(eta=-1)
    with pytest.raises(UserError, match="points is 1; it must be at least 2"):
        FedHeNN(points=1)
