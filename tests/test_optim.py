"""Gradient transforms against torch's own optimisers and hand-worked steps."""

import pytest
import torch

from conftest import take_step
from fedsense.optim import adam, chain, clip, keep_between, sgd, shift


def start():
    return {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([[0.5]])}


def gradients(step):
    return {"a": torch.tensor([0.3, -0.1]) * (step + 1), "b": torch.tensor([[2.0 - step]])}


def apply(transform, steps, params=None, memory=None, first=0):
    params = params or start()
    memory = transform.init(params) if memory is None else memory
    for i in range(first, first + steps):
        take_step(transform, params, gradients(i), memory)
    return params, memory


def with_torch(make, steps, limit=None):
    params = {name: t.clone().requires_grad_() for name, t in start().items()}
    optimiser = make(list(params.values()))
    for i in range(steps):
        for name, gradient in gradients(i).items():
            params[name].grad = gradient
        if limit:
            torch.nn.utils.clip_grad_norm_(params.values(), limit)
        optimiser.step()
    return {name: t.detach() for name, t in params.items()}


@pytest.mark.parametrize(
    ("ours", "theirs", "limit"),
    [
        (sgd(0.1), lambda p: torch.optim.SGD(p, lr=0.1), None),
        (sgd(0.1, 0.9, 0.01), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01), None),
        (adam(0.05), lambda p: torch.optim.Adam(p, lr=0.05), None),
        (adam(0.05, weight_decay=0.1), lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.1), None),
        (chain(clip(0.5), sgd(0.1, 0.9)), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 0.5),
        (chain(clip(50.0), adam(0.05)), lambda p: torch.optim.Adam(p, lr=0.05), 50.0),
    ],
)
def test_equals_torch(ours, theirs, limit):
    got, _ = apply(ours, 6)
    want = with_torch(theirs, 6, limit)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("transform", [sgd(0.1, 0.9), adam(0.05), chain(clip(1.0), sgd(0.1, 0.5))])
def test_memory_kept_between_rounds_is_one_long_run(transform):
    whole, _ = apply(transform, 6)
    params, memory = apply(transform, 2)
    params, _ = apply(transform, 4, params, memory, first=2)
    for name in whole:
        assert torch.equal(params[name], whole[name])


def test_shift_before_sgd_is_scaffolds_correction():
    """By hand: w − lr·(g + (c − c_i)) = 1 − 0.1·(0.3 + 0.5) = 0.92 and −2 − 0.1·(−0.1 + 0.5) = −2.04."""
    correction = {"a": torch.tensor([0.5, 0.5]), "b": torch.zeros(1, 1)}
    got, _ = apply(chain(shift(correction), sgd(0.1)), 1)
    torch.testing.assert_close(got["a"], torch.tensor([0.92, -2.04]))


def test_shift_after_an_optimiser_moves_the_step():
    """By hand: 1 − 0.1·0.3 + 0.5 = 1.47."""
    by = {"a": torch.tensor([0.5, 0.0]), "b": torch.zeros(1, 1)}
    got, _ = apply(chain(sgd(0.1), shift(by, "parameters")), 1)
    torch.testing.assert_close(got["a"], torch.tensor([1.47, -1.99]))


def test_clip_scales_the_joint_norm():
    """‖(3, 4)‖ = 5, cut to 1: (0.6, 0.8)."""
    grads = take_step(clip(1.0), {}, {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, {})
    torch.testing.assert_close(torch.cat(grads), torch.tensor([0.6, 0.8]), rtol=1e-5, atol=0)


def test_parameters_are_put_back_into_an_interval():
    """By hand: 1 − 0.1·0.3 = 0.97 stays, −2 + 0.01 becomes −1, 0.5 − 0.1·2 = 0.3 stays."""
    got, _ = apply(chain(sgd(0.1), keep_between(-1.0, 0.98)), 1)
    torch.testing.assert_close(got["a"], torch.tensor([0.97, -1.0]))
    torch.testing.assert_close(got["b"], torch.tensor([[0.3]]))
    above, _ = apply(chain(sgd(0.1), keep_between(-1.0, 0.9)), 1)
    assert above["a"].tolist() == pytest.approx([0.9, -1.0])


def test_parameters_that_share_a_gradient_are_clipped_once():
    shared = torch.tensor([3.0])
    transform = chain(clip(1.0), shift({"a": torch.tensor([1.0]), "b": torch.tensor([0.0])}))
    grads = take_step(transform, {"a": torch.ones(1), "b": torch.ones(1)}, {"a": shared, "b": shared}, {})
    torch.testing.assert_close(torch.cat(grads), torch.tensor([0.5**0.5 + 1, 0.5**0.5]))


@pytest.mark.parametrize(
    "transform",
    [
        sgd(0.1, 0.9, 0.01),
        adam(0.05),
        chain(clip(0.5), sgd(0.1)),
        chain(clip(50.0), adam(0.05)),
        chain(sgd(0.1), keep_between(-1.9, 0.7)),
    ],
)
def test_several_clients_together_step_as_each_alone(transform):
    """Stacked along the first dimension; gradients of the second client are three times as large, and clipped so."""
    alone, memories = [], []
    for factor in (1.0, 3.0):
        params = start()
        memory = transform.init(params)
        for i in range(4):
            grads = {name: factor * g for name, g in gradients(i).items()}
            take_step(transform, params, grads, memory)
        alone.append(params)
        memories.append(transform.init(start()))
    params = {name: torch.stack([t, t]) for name, t in start().items()}
    memory = {s: {n: torch.stack([m[s][n] for m in memories]) for n in memories[0][s]} for s in memories[0]}
    for i in range(4):
        grads = {name: torch.stack([g, 3 * g]) for name, g in gradients(i).items()}
        take_step(transform, params, grads, memory, together=True)
    for name in params:
        torch.testing.assert_close(params[name], torch.stack([a[name] for a in alone]), rtol=1e-5, atol=1e-7)
