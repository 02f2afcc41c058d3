"""Each network against its paper: parameter counts worked out by hand, and a forward pass written out anew."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsense.models import MODELS, Batch, Model, build_model
from fedsense.models.alp import open_layers

SMALL = {  # a small input of each model
    "protohar-cnn": (6, 64),
    "coad-cnn": (3, 64),
    "convnet4-tiny": (24, 20),
    "convnet4-middle": (24, 20),
    "convnet4-large": (1, 72, 40),
    "flic-mlp": (7,),
    "flic-cnn": (1, 16, 16),
    "hart": (6, 32),
    "vit-tiny": (3, 8, 8),
    "sensor-cnn": (3, 33),
}
WITH_ADAPTER = ("flic-mlp", "flic-cnn", "sensor-cnn")
TRANSFORMERS = ("hart", "vit-tiny")


def samples(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def batch_of(x: Tensor, noise: int = 0, parts: tuple[str, ...] = ("adapter", "encoder", "head")) -> Batch:
    return Batch(x, torch.zeros(len(x), dtype=torch.long), torch.ones(len(x)), torch.tensor(noise), parts)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        ("protohar-cnn", (6, 512), 12, {}, 2_977_420),
        ("protohar-cnn", (9, 100), 5, {"width": 725}, 1_605_251),
        ("coad-cnn", (3, 200), 6, {}, 176_582),
        ("convnet4-tiny", (1000, 242), 20, {}, 7_956),
        ("convnet4-middle", (1000, 242), 20, {}, 18_436),
        ("convnet4-large", (1, 1000, 242), 20, {}, 463_748),
        ("flic-mlp", (30,), 20, {}, 11_604),
        ("flic-mlp", (30,), 20, {"shared": 100}, 18_824),
        ("flic-cnn", (1, 28, 28), 10, {}, 38_046),
        ("flic-cnn", (16, 16), 10, {}, 18_846),
        ("hart", (6, 128), 6, {}, 1_445_918),
        ("vit-tiny", (3, 32, 32), 10, {}, 1_806_154),
        ("sensor-cnn", (6, 128), 6, {}, 40_486),
        ("sensor-cnn", (3, 40), 6, {"shared": 100}, 46_722),
    ],
)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, options: dict[str, int], count: int) -> None:
    """FedAPA's are Table II (7.96 K, 18.44 K, 463.75 K), HART's is FedAli's Table 3 (5.8 MB).

    By hand, weights + biases of each layer in turn:

    - protohar-cnn: 160 + 4,640 + 18,496 for the convolutions; 7680·384+384 = 2,949,504 and 384·12+12 = 4,620 for
      USC-HAD; 2176·725+725 = 1,578,325 and 725·5+5 = 3,630 for HARBOX.
    - coad-cnn: 3·32·24+32 = 2,336; 32·64·16+64 = 32,832; 64·96·8+96 = 49,248; 96·256+256 = 24,832; 256·256+256 =
      65,792; 256·6+6 = 1,542.
    - flic-mlp: 30·64+64 = 1,984; 2 · (64·64+64) = 8,320; Class 64·20+20 = 1,300; HL 64·100+100 = 6,500 and 2,020.
    - flic-cnn: 832 + 16,020; 320·64+64 = 20,544 (MNIST) or 20·64+64 = 1,344 (USPS); 64·10+10 = 650.
    - hart: 2 · (3·16·96+96) = 9,408; 8·192 = 1,536; six blocks of 768 for norms, 2 · (3 · (48·144+144) + 144·48+48) =
      56,256 for attention and 192·384+384 + 384·192+192 = 148,032; kernels 4 · (3+7+15+3·31) = 472; 384; 192·1024+1024
      = 197,632; 1024·6+6 = 6,150.
    - vit-tiny: 3·16·192+192 = 9,408; 64·192 = 12,288; six blocks of 768 + 4 · (192·192+192) + 148,032; 384; 1,930.
    - sensor-cnn: 6·32·5+32 = 992 (3·32·5+32 = 512 of three channels); 32·64·5+64 = 10,304; 64·64·5+64 = 20,544;
      128·64+64 = 8,256; 64·6+6 = 390, or with a shared layer 64·100+100 = 6,500 and 100·6+6 = 606.
    """
    assert build_model(name, shape, classes, **options).parameter_count == count


def test_hart_with_prototypes() -> None:
    """FedAli's Table 3, 2.38 times HART: 2 · 4032 · 192 prototypes, 6 · (192·384+384) to process them, 6 switches."""
    model = build_model("hart", (6, 128), 6, partial(open_layers, prototypes=2048))
    assert model.parameter_count == 1_445_918 + 444_672
    numbers = sum(math.prod(shape) for shape in model.shapes.values())
    assert numbers == 1_445_918 + 444_672 + 1_548_288 + 6
    assert round(numbers / 1_445_918, 2) == 2.38


@pytest.mark.parametrize("name", MODELS)
def test_paper_parameters_need_no_random_numbers(name: str) -> None:
    entry = MODELS[name]
    before = torch.get_rng_state()
    count = entry.paper_parameters
    assert torch.equal(torch.get_rng_state(), before)
    assert count == build_model(name, entry.paper_input, entry.paper_classes, **entry.options).parameter_count


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_parts(name: str) -> None:
    model = build_model(name, SMALL[name], 5)
    params = model.init(0)
    logits, features, _ = model.infer(params, samples(3, *SMALL[name]))
    assert logits.shape == (3, 5)
    assert features.shape == (3, model.features)
    assert model.architecture == name
    assert {key: tuple(tensor.shape) for key, tensor in params.items()} == model.shapes
    # Who has an adapter has no encoder, unless a shared layer is asked for (FLIC-HL).
    expected = {"adapter", "head"} if name in WITH_ADAPTER else {"encoder", "head"}
    expected |= {"adapter"} if name in TRANSFORMERS else set()  # which makes tokens
    assert {key.split(".")[0] for key in params} == expected
    assert all(tensor.dtype == torch.float32 for tensor in params.values())


@pytest.mark.parametrize(
    ("name", "prototypes"), [*((name, 0) for name in MODELS), *((name, 8) for name in TRANSFORMERS)]
)
def test_of_no_samples_nothing_is_said(name: str, prototypes: int) -> None:
    """A client may have no test data; not every network can do with a batch of none."""
    complete = partial(open_layers, prototypes=prototypes) if prototypes else None
    model = build_model(name, SMALL[name], 5, complete)
    out = model.predict(model.init(0), samples(0, *SMALL[name]))
    assert out.logits.shape == (0, 5)
    assert out.features.shape == (0, model.features)
    assert out.latent is not None
    assert len(out.latent) == 0


@pytest.mark.parametrize("name", WITH_ADAPTER)
def test_shared_layer_is_the_encoder(name: str) -> None:
    model = build_model(name, SMALL[name], 5, shared=100)
    assert model.features == 100
    assert {key: shape for key, shape in model.shapes.items() if key.startswith("encoder.")} == {
        "encoder.0.weight": (100, 64),
        "encoder.0.bias": (100,),
    }
    assert model.shapes["head.weight"] == (5, 100)


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(TRANSFORMERS)))
def test_width_options_reach_the_features(name: str) -> None:
    option = "latent" if name in WITH_ADAPTER else "width"
    model = build_model(name, SMALL[name], 4, **{option: 48})
    assert model.features == 48
    assert model.infer(model.init(0), samples(2, *SMALL[name])).features.shape == (2, 48)


# The same networks written out with functions


def protohar_by_hand(p: list[Tensor], x: Tensor, pools: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Along the last dimension instead, so [B, maps, channels, time], until it is flattened time before channels."""
    z = x[:, None]
    z = F.conv2d(z, p[0].transpose(2, 3), p[1]).relu()
    for layer, pool in zip((2, 4), pools, strict=True):
        z = F.max_pool2d(F.conv2d(z, p[layer].transpose(2, 3), p[layer + 1]).relu(), (pool, 2))
    z = (z.transpose(2, 3).flatten(1) @ p[6].T + p[7]).relu()
    return z @ p[8].T + p[9], z


@pytest.mark.parametrize(("channels", "pools"), [(9, (2, 2)), (6, (2, 2)), (3, (2, 1)), (2, (2, 1)), (1, (1, 1))])
def test_protohar_forward(channels: int, pools: tuple[int, int]) -> None:
    model = build_model("protohar-cnn", (channels, 50), 4, width=20)
    params = model.init(0)
    x = samples(3, channels, 50)
    expected = protohar_by_hand(list(params.values()), x, pools)
    torch.testing.assert_close(model.infer(params, x)[:2], expected)


def test_protohar_as_the_authors_for_three_channels() -> None:
    model = build_model("protohar-cnn", (3, 151), 4, channel_pool=1)  # UniMiB SHAR: 151 steps
    params = model.init(0)
    x = samples(2, 3, 151)
    torch.testing.assert_close(model.infer(params, x)[:2], protohar_by_hand(list(params.values()), x, (1, 1)))


@settings(max_examples=25, deadline=None)
@given(channels=st.integers(1, 13), steps=st.integers(36, 70), pool=st.integers(1, 3))
def test_protohar_runs_on_any_size(channels: int, steps: int, pool: int) -> None:
    model = build_model("protohar-cnn", (channels, steps), 3, width=8, channel_pool=pool)
    assert model.infer(model.init(0), torch.zeros(1, channels, steps)).logits.shape == (1, 3)


def test_coad_forward() -> None:
    model = build_model("coad-cnn", (3, 60), 4)
    params = model.init(0)
    x = samples(3, 3, 60)
    p = list(params.values())
    z = x
    for layer in (0, 2, 4):
        z = F.conv1d(z, p[layer], p[layer + 1]).relu()
    z = z.max(dim=2).values
    z = (z @ p[6].T + p[7]).relu() @ p[8].T + p[9]
    torch.testing.assert_close(model.infer(params, x)[:2], (z @ p[10].T + p[11], z))
    assert (z < 0).any()  # the projection ends without ReLU


def test_coad_starts_xavier_normal() -> None:
    """Std of Xavier-normal is √(2 / (fan_in + fan_out)), fans times the kernel's size; zero bias."""
    params = build_model("coad-cnn", (3, 200), 6).init(3)
    fans = {
        "encoder.0": (3 + 32) * 24,
        "encoder.3": (32 + 64) * 16,
        "encoder.6": (64 + 96) * 8,
        "encoder.10": 96 + 256,
        "encoder.12": 256 + 256,
        "head": 256 + 6,
    }
    assert {name.rsplit(".", 1)[0] for name in params} == set(fans)
    for name, fan in fans.items():
        weight = params[f"{name}.weight"]
        assert weight.std().item() == pytest.approx(math.sqrt(2 / fan), rel=0.06)
        # Normal, not uniform: a uniform distribution of this variance ends at √3 standard deviations.
        assert weight.abs().max() > 2.5 * weight.std()
        assert not params[f"{name}.bias"].any()


@pytest.mark.parametrize(("name", "blocks", "mix"), [("tiny", 1, False), ("middle", 2, True), ("large", 5, True)])
def test_convnet4_forward(name: str, blocks: int, mix: bool) -> None:
    model = build_model(f"convnet4-{name}", (50, 34), 4)
    params = model.init(0)
    for key, tensor in params.items():  # statistics other than 0 and 1
        if key.endswith("running_mean"):
            tensor.copy_(samples(1, *tensor.shape, seed=1)[0])
        if key.endswith("running_var"):
            tensor.copy_(samples(1, *tensor.shape, seed=2)[0].square() + 0.5)
    x = samples(3, 50, 34)
    p = list(params.values())
    z = x[:, None]
    for start in range(0, 5 * blocks, 5):
        weight, scale, shift, mean, variance = (t[..., None, None] for t in p[start : start + 5])
        z = F.conv2d(z, weight[..., 0, 0], stride=2, padding=1)
        z = ((z - mean) / (variance + 1e-5).sqrt() * scale + shift).relu()
    z = z.mean((2, 3))
    rest = p[5 * blocks :]
    if mix:
        z = z @ rest.pop(0)[..., 0, 0].T + rest.pop(0)
    torch.testing.assert_close(model.infer(params, x)[:2], (z @ rest[0].T + rest[1], z))


@pytest.mark.parametrize(("leaky", "dropout"), [(False, 0.0), (True, 0.5)])
def test_flic_mlp_forward(leaky: bool, dropout: float) -> None:
    model = build_model("flic-mlp", (2, 3), 4, shared=10, leaky=leaky, dropout=dropout)
    params = model.init(0)
    x = samples(3, 2, 3)
    p = list(params.values())
    slope = 0.01 if leaky else 0.0
    z = x.reshape(3, 6)
    for layer in (0, 2):
        z = F.leaky_relu(z @ p[layer].T + p[layer + 1], slope)
    z = z @ p[4].T + p[5]
    z = F.leaky_relu(z @ p[6].T + p[7], 0.01)
    torch.testing.assert_close(model.infer(params, x)[:2], (z @ p[8].T + p[9], z))


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (16, 16), (17, 30), (3, 20, 18)])
def test_flic_cnn_forward(shape: tuple[int, ...]) -> None:
    model = build_model("flic-cnn", shape, 4)
    params = model.init(0)
    x = samples(3, *shape)
    p = list(params.values())
    z = x if len(shape) == 3 else x[:, None]
    z = F.max_pool2d(F.conv2d(z, p[0], p[1]), 2).sigmoid()
    z = F.max_pool2d(F.conv2d(z, p[2], p[3]), 2).sigmoid()
    z = z.flatten(1) @ p[4].T + p[5]
    torch.testing.assert_close(model.infer(params, x)[:2], (z @ p[6].T + p[7], z))


@pytest.mark.parametrize(("channels", "steps"), [(1, 16), (3, 20), (6, 128), (22, 250), (8, 101)])
def test_sensor_cnn_forward(channels: int, steps: int) -> None:
    model = build_model("sensor-cnn", (channels, steps), 4, width=6, shared=10, dropout=0.5)
    params = model.init(0)
    x = samples(3, channels, steps)
    p = list(params.values())
    z = F.max_pool1d(F.conv1d(x, p[0], p[1], padding=2).relu(), 2)
    z = F.max_pool1d(F.conv1d(z, p[2], p[3], padding=2).relu(), 2)
    z = F.conv1d(z, p[4], p[5], padding=2).relu()
    z = torch.cat([z.mean(2), z.max(2).values], 1) @ p[6].T + p[7]
    z = F.leaky_relu(z @ p[8].T + p[9], 0.01)
    torch.testing.assert_close(model.infer(params, x)[:2], (z @ p[10].T + p[11], z))


def test_sensor_cnns_of_different_sensors_differ_in_what_they_read_only() -> None:
    """All but the first convolution has the same shape, and what clients may share starts alike."""
    phone, cap = (build_model("sensor-cnn", shape, 4, shared=10) for shape in ((6, 128), (22, 50)))
    assert {name for name in phone.shapes if phone.shapes[name] != cap.shapes[name]} == {"adapter.0.weight"}
    values, others = phone.init(3), cap.init(3)
    assert all(torch.equal(values[name], others[name]) for name in values if not name.startswith("adapter."))


def test_flic_cnn_drops_whole_maps_before_the_sigmoid() -> None:
    """A dropped map is zero, hence one half after the sigmoid; a kept one is doubled before the sigmoid."""
    model = build_model("flic-cnn", (28, 28), 4, latent=320)
    params = model.init(0)
    params["adapter.9.weight"] = torch.eye(320)  # shows what the last layer reads
    params["adapter.9.bias"] = torch.zeros(320)
    x = samples(2, 28, 28)
    whole = model.infer(params, x).features.view(2, 20, 16)
    dropped = model(params, batch_of(x, noise=4)).features.view(2, 20, 16)
    zero = (dropped == 0.5).all(2)
    assert 0 < zero.sum() < zero.numel()
    torch.testing.assert_close(dropped[~zero], (2 * whole[~zero].logit()).sigmoid())


@pytest.mark.parametrize("name", ["convnet4-tiny", "convnet4-middle", "convnet4-large", "flic-cnn"])
def test_images_with_and_without_channel_dimension(name: str) -> None:
    flat, deep = build_model(name, (40, 36), 3), build_model(name, (1, 40, 36), 3)
    assert flat.shapes == deep.shapes
    x = samples(2, 40, 36)
    assert torch.equal(flat.infer(flat.init(1), x).logits, deep.infer(deep.init(1), x[:, None]).logits)


@pytest.mark.parametrize("name", ["convnet4-tiny", "convnet4-middle", "convnet4-large"])
def test_images_of_several_channels(name: str) -> None:
    model = build_model(name, (3, 30, 20), 4)
    assert model.shapes["encoder.1.weight"][1] == 3
    assert model.infer(model.init(0), samples(2, 3, 30, 20)).logits.shape == (2, 4)


# BatchNorm


def statistics(params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in params.items() if "running_" in name}


def test_batchnorm_updates_the_statistics_it_was_given() -> None:
    """running ← 0.9 · running + 0.1 · batch, with the unbiased variance; from 0 and 1."""
    model = build_model("convnet4-tiny", (10, 8), 3)
    params = model.init(0)
    x = samples(4, 10, 8)
    maps = F.conv2d(x[:, None], params["encoder.1.weight"], stride=2, padding=1).transpose(0, 1).flatten(1)
    model(params, batch_of(x))
    torch.testing.assert_close(params["encoder.2.running_mean"], 0.1 * maps.mean(1))
    torch.testing.assert_close(params["encoder.2.running_var"], 0.9 + 0.1 * maps.var(1))


@pytest.mark.parametrize("name", ["convnet4-tiny", "convnet4-middle", "convnet4-large"])
def test_batchnorm_state(name: str) -> None:
    model = build_model(name, SMALL[name], 3)
    params = model.init(0)
    assert not any("num_batches_tracked" in key for key in params)
    assert set(statistics(params)) == model.buffers
    before = {key: tensor.clone() for key, tensor in params.items()}
    x = samples(4, *SMALL[name])
    plain = model.infer(params, x).logits
    frozen = model(params, batch_of(x, parts=("head",))).logits
    assert torch.equal(frozen, plain)
    assert all(torch.equal(tensor, before[key]) for key, tensor in params.items())
    trained = model(params, batch_of(x, parts=("encoder",))).logits
    assert not torch.allclose(trained, plain)
    moved = {key for key, tensor in params.items() if not torch.equal(tensor, before[key])}
    assert moved == set(statistics(params))


def test_batchnorm_with_one_sample_takes_the_running_statistics() -> None:
    """One sample on a 1×1 map has no variance: PyTorch stops there; we normalise as in inference, and go on."""
    model = build_model("convnet4-large", (20, 20), 3)  # 20 → 10 → 5 → 3 → 2 → 1
    params = model.init(0)
    one = samples(1, 20, 20)
    weights = {name: tensor.requires_grad_() for name, tensor in params.items() if name not in model.buffers}
    before = {name: tensor.clone() for name, tensor in statistics(params).items()}
    logits = model(params, batch_of(one)).logits
    grads = torch.autograd.grad(logits.square().sum(), list(weights.values()))
    assert all(grad.isfinite().all() for grad in grads)
    assert grads[0].any()
    torch.testing.assert_close(logits, model.infer(params, one).logits)
    assert all(torch.equal(tensor, before[name]) for name, tensor in statistics(params).items())
    model(params, batch_of(samples(2, 20, 20)))
    assert not any(torch.equal(tensor, before[name]) for name, tensor in statistics(params).items())


# All models under Model's promises


@pytest.mark.parametrize("name", MODELS)
def test_init_is_a_function_of_the_seed(name: str) -> None:
    torch.manual_seed(1)
    first = build_model(name, SMALL[name], 4)
    torch.manual_seed(2)
    second = build_model(name, SMALL[name], 4)
    params = first.init(5)
    with torch.no_grad():  # whatever the network holds, every tensor is drawn anew
        for tensor in second.network.state_dict().values():
            tensor.fill_(math.nan)
    for key, tensor in second.init(5).items():
        assert torch.equal(tensor, params[key]), key
    other = first.init(6)
    weights = [key for key in params if key.endswith("weight") and params[key].ndim > 1]
    assert weights
    assert not any(torch.equal(other[key], params[key]) for key in weights)


@pytest.mark.parametrize("name", MODELS)
def test_no_global_generator_is_read(name: str) -> None:
    before = torch.get_rng_state()
    model = build_model(name, SMALL[name], 4)
    assert torch.equal(torch.get_rng_state(), before)
    params = model.init(0)
    assert torch.equal(torch.get_rng_state(), before)
    model(params, batch_of(torch.ones(2, *SMALL[name])))
    model.infer(params, torch.ones(2, *SMALL[name]))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in MODELS), ("flic-mlp", {"dropout": 0.5, "shared": 10})]
)
def test_clients_side_by_side_equal_one_after_another(name: str, options: dict[str, float]) -> None:
    """vmap over stacked parameters, inputs and dropout seeds: outputs, gradients, running statistics."""
    model = build_model(name, SMALL[name], 4, **options)
    clients = [model.init(seed) for seed in range(3)]
    stacked = {key: torch.stack([params[key] for params in clients]) for key in clients[0]}
    trained = [key for key in stacked if key not in model.buffers]
    for params in (*clients, stacked):
        for key in trained:
            params[key].requires_grad_()
    xs = samples(3, 2, *SMALL[name])
    noises = torch.tensor([11, 2**62, 2**63 - 1])

    def run(params: dict[str, Tensor], x: Tensor, noise: Tensor) -> Tensor:
        return model(params, Batch(x, torch.zeros(2), torch.ones(2), noise)).logits

    together = torch.vmap(run)(stacked, xs, noises)
    together.square().sum().backward()
    for number, params in enumerate(clients):
        alone = run(params, xs[number], noises[number])
        torch.testing.assert_close(together[number], alone, rtol=1e-4, atol=1e-5)
        alone.square().sum().backward()
        for key in params:
            torch.testing.assert_close(stacked[key][number], params[key], rtol=1e-4, atol=1e-5)
            if key in trained:
                grad = stacked[key].grad
                assert grad is not None
                torch.testing.assert_close(grad[number], params[key].grad, rtol=1e-3, atol=1e-4)


def test_encoder_and_head_start_alike_under_any_adapter() -> None:
    models: list[Model] = [
        build_model("flic-mlp", (5,), 4, shared=100),
        build_model("flic-mlp", (2, 30), 4, shared=100, hidden=20),
        build_model("flic-cnn", (28, 28), 4, shared=100),
    ]
    first, *others = (model.init(9) for model in models)
    shared = [key for key in first if not key.startswith("adapter.")]
    assert shared == ["encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias"]
    for params in others:
        assert all(torch.equal(params[key], first[key]) for key in shared)
        assert not torch.equal(params["adapter.1.bias"][:20], first["adapter.1.bias"][:20])


@pytest.mark.parametrize(("name", "options"), [("coad-cnn", {}), ("flic-mlp", {"dropout": 0.5}), ("flic-cnn", {})])
def test_dropout_in_training_only(name: str, options: dict[str, float]) -> None:
    model = build_model(name, SMALL[name], 4, **options)
    params = model.init(0)
    x = samples(4, *SMALL[name])
    plain = model.infer(params, x).logits
    trained = model(params, batch_of(x, noise=1)).logits
    assert not torch.allclose(trained, plain)
    assert torch.equal(model(params, batch_of(x, noise=1)).logits, trained)
    assert not torch.allclose(model(params, batch_of(x, noise=2)).logits, trained)
    assert torch.equal(model(params, batch_of(x, noise=1, parts=("head",))).logits, plain)
    assert torch.equal(model.infer(params, x).logits, plain)
