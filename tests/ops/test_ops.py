"""Losses and averages against numbers worked out by hand."""

import math

import pytest
import torch

from fedsense.models.network import Batch
from fedsense.ops import average, cross_entropy, proximal, weighted_average


def batch(y, mask):
    return Batch(torch.zeros(len(y), 1), torch.tensor(y), torch.tensor(mask), torch.tensor(0))


def test_cross_entropy_averages_over_the_mask():
    """Logits (0, 0) give ln 2; (ln 3, 0) with class 0 gives −ln ¾; the third sample is padding."""
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0], [9.0, -9.0]])
    got = cross_entropy(logits, batch([1, 0, 1], [1.0, 1.0, 0.0]))
    assert got.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2, rel=1e-6)


def test_cross_entropy_of_whole_batches_is_torchs():
    logits, y = torch.randn(7, 4, generator=torch.Generator().manual_seed(0)), [0, 1, 2, 3, 0, 1, 2]
    got = cross_entropy(logits, batch(y, [1.0] * 7))
    torch.testing.assert_close(got, torch.nn.functional.cross_entropy(logits, torch.tensor(y)))


def test_proximal_is_half_the_squared_distance_to_the_anchor():
    """½(1² + 2² + 3²) = 7; what has no anchor (a buffer) does not count. Its gradient is w − w_anchor."""
    w = {
        "a": torch.tensor([1.0, 2.0], requires_grad=True),
        "b": torch.tensor([3.0], requires_grad=True),
        "m": torch.ones(1),
    }
    anchor = {"a": torch.zeros(2), "b": torch.zeros(1)}
    value = proximal(w, anchor)
    assert value.item() == pytest.approx(7.0)
    assert torch.autograd.grad(value, w["a"])[0].tolist() == [1.0, 2.0]


def test_average_weights_by_samples():
    """(1·[1, 2] + 3·[5, 6]) / 4 = [4, 5]."""
    uploads = {
        "a": {"model": {"w": torch.tensor([1.0, 2.0])}, "size": {"n": torch.tensor(1.0)}},
        "b": {"model": {"w": torch.tensor([5.0, 6.0])}, "size": {"n": torch.tensor(3.0)}},
    }
    assert average(uploads, "model")["w"].tolist() == [4.0, 5.0]
    assert uploads["a"]["model"]["w"].tolist() == [1.0, 2.0]


def test_weights_may_be_given():
    """(0.3·[1, 2] + 0.9·[5, 6]) / 1.2 = [4, 5]; of clients that are not in the round they do not count."""
    uploads = {"a": {"model": {"w": torch.tensor([1.0, 2.0])}}, "b": {"model": {"w": torch.tensor([5.0, 6.0])}}}
    got = weighted_average(uploads, "model", {"a": 0.3, "b": 0.9, "c": 100.0})
    torch.testing.assert_close(got["w"], torch.tensor([4.0, 5.0]))
