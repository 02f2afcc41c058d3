"""Contrast between models, and control variates, against numbers worked out by hand and plain PyTorch."""

import math

import pytest
import torch
from torch.nn import functional as F

from conftest import blobs, plain_net, take_step
from fedsense.engine.site import Site
from fedsense.federation import Member, Task
from fedsense.methods import Local
from fedsense.models.network import Batch
from fedsense.models.spec import ModelSpec
from fedsense.ops import add_changes, corrected, model_contrast, new_variates, seen_by, trainers, variate_change
from fedsense.optim import sgd


def batch(mask):
    return Batch(torch.zeros(len(mask), 1), torch.zeros(len(mask)).long(), torch.tensor(mask), torch.tensor(0))


def test_eq2_by_hand():
    """z = (1,0), global (2,0), previous (0,1): cosines 1 and 0, τ = ½: −log e²/(e² + 1) = log(1 + e⁻²)."""
    z, toward, away = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert model_contrast(z, batch([1.0]), toward, away, 0.5).item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert model_contrast(z, batch([1.0]), away, toward, 0.5).item() == pytest.approx(math.log(1 + math.exp(2)))


@pytest.mark.parametrize("temperature", [0.01, 0.5, 5.0])
def test_eq2_is_cross_entropy_over_two_cosines(temperature):
    """As the authors write it: two logits, the first is right. The last sample is padding."""
    z, toward, away = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    logits = torch.stack([F.cosine_similarity(z, toward), F.cosine_similarity(z, away)], 1)[:5] / temperature
    theirs = F.cross_entropy(logits, torch.zeros(5).long())
    ours = model_contrast(z, batch([1.0] * 5 + [0.0]), toward, away, temperature)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, z)[0] for loss in (ours, theirs)))


def test_equal_models_leave_log_two_and_no_pull():
    z, other = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    loss = model_contrast(z, batch([1.0] * 4), other, other, 0.5)
    assert loss.item() == pytest.approx(math.log(2))
    assert torch.autograd.grad(loss, z)[0].abs().max().item() < 1e-7


def test_views_are_inference_features_of_each_model():
    site = Site(blobs(), Local(), ModelSpec.of(plain_net), seed=0)
    client = site.client("c00")
    other = {name: t + 0.1 for name, t in client.initial.items()}
    seen = seen_by(client, client.initial, other)
    torch.testing.assert_close(seen["toward"], client.model.infer(client.initial, client.train.x).features)
    torch.testing.assert_close(seen["away"], client.model.infer(other, client.train.x).features)
    assert not seen["toward"].requires_grad
    same = seen_by(client, client.initial, client.initial)
    assert same["away"] is same["toward"], "one pass where both are one model"


def test_eq7_by_hand():
    """c_i − c + (x − y)/(K·lr) = 1 − 0.5 + (3 − 2)/(4·0.1) = 3; the change that goes up is 3 − 1 = 2."""
    own, shared = {"w": torch.tensor([1.0])}, {"w": torch.tensor([0.5])}
    new = new_variates(own, shared, {"w": torch.tensor([3.0])}, {"w": torch.tensor([2.0])}, steps=4, lr=0.1)
    assert new["w"].tolist() == pytest.approx([3.0])
    assert variate_change(new, own)["w"].tolist() == pytest.approx([2.0])
    assert new_variates(own, shared, own, own, steps=0, lr=0.1)["w"].tolist() == [1.0], "who took no step"


def test_eq8_averages_over_all_clients_not_only_those_who_took_part():
    """Four clients train, two take part: 1 + (2 + 6)/4 = 3. The fifth has no training data and does not count."""
    members = {f"c{i}": Member(f"c{i}", 10 if i < 4 else 0, "net", {}) for i in range(5)}
    server = {"variate": {"w": torch.tensor([1.0])}, "trainers": trainers(Task(("a",), members=members))}
    uploads = {c: {"variate": {"w": torch.tensor([change])}} for c, change in (("c0", 2.0), ("c1", 6.0))}
    assert add_changes(server, uploads)["w"].tolist() == [3.0]
    assert server["variate"]["w"].tolist() == [1.0]


def test_eq4_to_6_correct_the_step_as_scaffold_corrects_the_gradient():
    """w = 1, g = 2, c = 0.5, c_i = 0.2, lr = 0.1: 1 − 0.1·(2 − 0.2 + 0.5) = 0.77."""
    own, shared = {"w": torch.tensor([0.2])}, {"w": torch.tensor([0.5])}
    transform = corrected(sgd(0.1), 0.1, own, shared)
    w = {"w": torch.tensor([1.0])}
    take_step(transform, w, {"w": torch.tensor([2.0])}, transform.init(w))
    assert w["w"].tolist() == pytest.approx([0.77])


def test_under_momentum_the_correction_has_the_scale_of_the_steps():
    """A client whose gradient is always 1 goes 1/(1 − 0.9) = 10 steps' worth in the long run, and its variate says so.

    If everyone else stands still (c = 0), its correction then stops it: the mean step is zero. Shifting the gradient
    instead would throw it nine times as far the other way.
    """
    lr, momentum = 0.1, 0.9
    w = {"w": torch.tensor([0.0])}
    plain, memory = sgd(lr, momentum), {"momentum": {"w": torch.tensor([10.0])}}  # long under way
    start = w["w"].clone()
    for _ in range(5):
        take_step(plain, w, {"w": torch.tensor([1.0])}, memory)
    own = new_variates({"w": torch.zeros(1)}, {"w": torch.zeros(1)}, {"w": start}, w, 5, lr)
    assert own["w"].tolist() == pytest.approx([10.0])
    transform = corrected(plain, lr, own, {"w": torch.zeros(1)})
    before = w["w"].clone()
    take_step(transform, w, {"w": torch.tensor([1.0])}, {"0.momentum": memory["momentum"]})
    assert (w["w"] - before).tolist() == pytest.approx([0.0], abs=1e-6)
