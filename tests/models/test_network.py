"""Model and Dropout, on networks small enough to work out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedsense.models import Batch, Dropout, Model, Network


def drop(layer: Dropout, seed: Tensor, x: Tensor) -> Tensor:
    layer.seed = seed
    return layer(x)


def batch_of(x: Tensor, noise: int = 0) -> Batch:
    return Batch(x, torch.zeros(len(x)), torch.ones(len(x)), torch.tensor(noise))


@pytest.mark.parametrize("whole_channels", [False, True])
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (0, 1), (0, 4), (None, 2)])
def test_dropout_over_a_cohort_equals_the_loop(dims: tuple[int | None, int | None], whole_channels: bool) -> None:
    layer = Dropout(0.4, whole_channels)
    seeds, inputs = torch.tensor([3, 4, 2**63 - 1]), torch.arange(1.0, 721.0).view(3, 4, 5, 3, 4)
    seed = seeds if dims[0] is not None else seeds[1]
    x = inputs.movedim(0, dims[1]) if dims[1] is not None else inputs[0]
    together = torch.vmap(lambda seed, x: drop(layer, seed, x), in_dims=dims)(seed, x)
    for client in range(3):
        own = (seed if dims[0] is None else seed[client], x if dims[1] is None else inputs[client])
        assert torch.equal(together[client], drop(layer, *own))


@pytest.mark.parametrize("whole_channels", [False, True])
def test_dropout_mask_does_not_depend_on_layout(whole_channels: bool) -> None:
    layer = Dropout(0.5, whole_channels)
    x = torch.ones(3, 4, 5, 6)
    plain = drop(layer, torch.tensor(1), x)
    assert torch.equal(drop(layer, torch.tensor(1), x.contiguous(memory_format=torch.channels_last)), plain)
    assert torch.equal(drop(layer, torch.tensor(1), torch.ones(6, 5, 4, 3).permute(3, 2, 1, 0)), plain)


def test_dropout_keeps_the_mean() -> None:
    """40,000 draws with p = 0.25: the share dropped has a standard deviation of 0.0022."""
    y = drop(Dropout(0.25), torch.tensor(7), torch.full((200, 200), 3.0))
    assert set(y.unique().tolist()) == {0.0, 4.0}
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.008)


def test_dropout_of_whole_channels() -> None:
    y = drop(Dropout(0.5, whole_channels=True), torch.tensor(7), torch.ones(8, 20, 3, 2))
    channels = y.flatten(2)
    assert torch.equal(channels, channels[..., :1].expand(-1, -1, 6))
    assert set(channels[..., 0].unique().tolist()) == {0.0, 2.0}
    assert len({tuple(sample) for sample in channels[..., 0].tolist()}) == 8  # samples differ


def test_dropout_gradient_is_its_mask() -> None:
    x = torch.ones(30, requires_grad=True)
    y = drop(Dropout(0.5), torch.tensor(1), x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_dropout_does_nothing_in_inference() -> None:
    x = torch.ones(50)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


def test_two_dropouts_of_a_network_differ() -> None:
    """With the same mask twice half of the values would be kept; with two masks a quarter."""
    model = Model(Network(nn.Sequential(Dropout(0.5), Dropout(0.5)), nn.Identity(), 10_000))
    features = model({}, batch_of(torch.ones(1, 10_000), noise=5)).features
    assert set(features.unique().tolist()) == {0.0, 4.0}
    assert (features == 4).float().mean().item() == pytest.approx(0.25, abs=0.02)


def linear_model() -> Model:
    return Model(Network(nn.Linear(3, 4), nn.Linear(4, 2), 4, adapter=nn.Linear(5, 3)))


def test_model_runs_adapter_encoder_head() -> None:
    model = linear_model()
    params = model.init(0)
    x = torch.arange(10.0).view(2, 5)
    z = x @ params["adapter.weight"].T + params["adapter.bias"]
    z = z @ params["encoder.weight"].T + params["encoder.bias"]
    out = model.infer(params, x)
    torch.testing.assert_close(out.features, z)
    torch.testing.assert_close(out.logits, z @ params["head.weight"].T + params["head.bias"])
    torch.testing.assert_close(model.head(params, z), out.logits)
    assert model.parameter_count == 18 + 16 + 10


def test_predict_in_pieces() -> None:
    model = linear_model()
    params = {name: tensor.requires_grad_() for name, tensor in model.init(0).items()}
    x = torch.arange(35.0).view(7, 5)
    pieces, whole = model.predict(params, x, batch=3), model.infer(params, x)
    torch.testing.assert_close(pieces.logits, whole.logits)
    torch.testing.assert_close(pieces.features, whole.features)
    assert not pieces.logits.requires_grad


def test_init_gives_copies() -> None:
    model = linear_model()
    first = model.init(0)
    kept = first["head.weight"].clone()
    model.init(1)
    assert torch.equal(first["head.weight"], kept)


def test_a_missing_parameter_is_an_error() -> None:
    model = linear_model()
    params = model.init(0)
    del params["encoder.bias"]
    with pytest.raises(ValueError, match=r"encoder\.bias"):
        model.infer(params, torch.ones(1, 5))
