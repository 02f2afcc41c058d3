"""Channels-last layers against PyTorch's own: values and gradients, whatever the shape."""

import copy

import pytest
import torch
from torch import nn

from fedsense.errors import UserError
from fedsense.models import MODELS, Batch, Model, Network, build_model
from fedsense.models.layout import Pool, ReLU, channels_last, laid_out


def both(layers, x):
    """Output and gradients (of the input and of every parameter) of layers as they are, and in channels-last order."""
    found = []
    for network in (layers, copy.deepcopy(layers)):
        if found:
            weights = channels_last(network, [network])
            for name, p in network.named_parameters():
                p.data = laid_out(p.data) if name in weights else p.data
        inputs = x.clone().requires_grad_()
        y = network(inputs)
        scale = torch.linspace(-1, 2, y.numel()).view(y.shape)
        grads = torch.autograd.grad((y * scale).sum(), [inputs, *network.parameters()])
        found.append((y, *grads))
    return found


SIGNALS = {
    "plain": nn.Conv1d(3, 5, 4),
    "no bias": nn.Conv1d(3, 5, 4, bias=False),
    "stride": nn.Conv1d(3, 5, 4, stride=3, padding=2),
    "dilation": nn.Conv1d(3, 5, 3, dilation=2, padding="same"),
    "groups": nn.Conv1d(3, 6, 3, groups=3),
    "circular": nn.Conv1d(3, 5, 3, padding=1, padding_mode="circular"),
    "relu": nn.Sequential(nn.Conv1d(3, 5, 4), nn.ReLU(), nn.Conv1d(5, 2, 2), nn.ReLU(), nn.Flatten()),
    "pool": nn.Sequential(nn.Conv1d(3, 5, 4), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(5, 2, 2)),
    "pool alone": nn.Sequential(nn.Conv1d(3, 5, 5), nn.MaxPool1d(2), nn.Sigmoid(), nn.MaxPool1d(2)),
    "pool of three": nn.Sequential(nn.Conv1d(3, 5, 4), nn.ReLU(), nn.MaxPool1d(3)),
    "pool that overlaps": nn.Sequential(nn.Conv1d(3, 5, 4), nn.ReLU(), nn.MaxPool1d(2, stride=1)),
    "pool with an edge": nn.Sequential(nn.Conv1d(3, 5, 4), nn.ReLU(), nn.MaxPool1d(2, padding=1)),
    "pool that keeps the rest": nn.Sequential(nn.Conv1d(3, 5, 4), nn.ReLU(), nn.MaxPool1d(2, ceil_mode=True)),
}
IMAGES = {
    "plain": nn.Conv2d(3, 5, 3),
    "strides": nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=1),
    "one channel": nn.Sequential(nn.Conv2d(3, 1, 3), nn.Conv2d(1, 4, 3), nn.ReLU()),
    "pool": nn.Sequential(nn.Conv2d(3, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    "pool one way": nn.Sequential(nn.Conv2d(3, 5, 2), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Conv2d(5, 2, 2)),
    "pool alone": nn.Sequential(nn.Conv2d(3, 5, 2), nn.MaxPool2d((1, 2)), nn.Sigmoid()),
    "norm": nn.Sequential(nn.Conv2d(3, 5, 2, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2)),
}


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("length", [16, 17])
def test_signals(name, length):
    torch.manual_seed(0)
    for ours, theirs in zip(*both(SIGNALS[name], torch.randn(4, 3, length)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("size", [(8, 9), (7, 6)])
def test_images(name, size):
    torch.manual_seed(0)
    for ours, theirs in zip(*both(IMAGES[name], torch.randn(4, 3, *size)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=3e-5)


def test_of_equal_neighbours_the_first_has_the_gradient_and_below_zero_none():
    """Two by two: (3, 3) → the first; (1, 2) → the second; (−1, −2) → cut off by the ReLU; the last has no other."""
    x = torch.tensor([[[3.0, 3.0, 1.0, 2.0, -1.0, -2.0, 9.0]]], requires_grad=True)
    y = Pool(nn.MaxPool1d(2), (2,), relu=True)(x)
    assert y.tolist() == [[[3.0, 2.0, 0.0]]]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[[1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]]
    plain = torch.nn.functional.max_pool1d(torch.relu(x), 2)
    assert torch.equal(
        torch.autograd.grad(plain.sum(), x)[0], torch.autograd.grad(Pool(nn.MaxPool1d(2), (2,), True)(x).sum(), x)[0]
    )


def test_ties_in_images_go_where_pytorch_sends_them():
    x = torch.tensor([[[[1.0, 5.0, 2.0, 2.0], [5.0, 5.0, 2.0, 2.0]]]], requires_grad=True)
    ours, theirs = Pool(nn.MaxPool2d(2), (3, 2))(x), torch.nn.functional.max_pool2d(x, 2)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (ours, theirs)))


def test_names_and_shapes_are_what_they_were():
    layers = nn.Sequential(nn.Conv1d(2, 3, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(3, 4, 3))
    before = {name: t.shape for name, t in layers.state_dict().items()}
    assert channels_last(layers) == {"0.weight", "3.weight"}
    assert {name: t.shape for name, t in layers.state_dict().items()} == before
    weight = torch.arange(30.0).view(3, 2, 5)
    assert torch.equal(laid_out(weight), weight)
    assert laid_out(weight).stride() == (10, 1, 2), "the channels of one moment are side by side"


def test_layers_between_convolutions_keep_the_order_of_memory():
    """Otherwise a gradient in another order costs more than the convolution it belongs to."""
    layers = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten())
    channels_last(layers, [layers])
    assert [type(layer) for layer in layers] == [nn.Conv1d, Pool, nn.Identity, nn.Conv1d, ReLU, nn.Flatten]
    forwards, backwards = [], []
    for layer in list(layers)[:-1]:
        layer.register_forward_hook(lambda _, __, y: forwards.append(y.stride(1)))
        if isinstance(layer, nn.Conv1d):  # the gradient that reaches a convolution
            layer.register_forward_hook(
                lambda _, __, y: y.register_hook(lambda g: backwards.append(g.stride(1))) and None
            )
    layers(torch.randn(5, 2, 20)).sum().backward()
    assert forwards == [1] * 5, "channels lie side by side after every layer"
    assert backwards == [1] * 2


@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_side_by_side_compute_what_they_compute_alone(name):
    """Three clients under vmap, with their own parameters, samples and dropout."""
    entry = MODELS[name]
    shape = {"convnet4-tiny": (20, 12), "convnet4-middle": (20, 12), "convnet4-large": (20, 12)}.get(name)
    shape = shape or {"flic-mlp": (30,), "flic-cnn": (1, 16, 16)}.get(name, (6, 64))
    model = build_model(name, shape, 4, **entry.options)
    each = [model.init(seed) for seed in range(3)]
    x, noise = torch.randn(3, 5, *shape), torch.tensor([1, 2, 3])
    stacked = {n: torch.stack([p[n] for p in each]) for n in each[0]}

    def one(params, x, noise):
        return model(params, Batch(x, torch.zeros(5), torch.ones(5), noise)).logits

    together = torch.vmap(one)(stacked, x, noise)
    for i, params in enumerate(each):
        alone = one(params, x[i], noise[i])
        torch.testing.assert_close(together[i], alone, rtol=1e-4, atol=1e-4)
        for buffer in model.buffers:
            torch.testing.assert_close(stacked[buffer][i], params[buffer], rtol=1e-4, atol=1e-5)


def test_batch_norm_of_a_minibatch_that_was_filled_up_counts_its_samples_only():
    model = Model(Network(nn.BatchNorm1d(2), nn.Identity(), 2))
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [99.0, 99.0]], [[5.0, 5.0], [99.0, 99.0], [99.0, 99.0]]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    params = {n: torch.stack([t, t]) for n, t in model.init(0).items()}

    def one(params, x, mask):
        return model(params, Batch(x, torch.zeros(3), mask, torch.tensor(0))).features

    got = torch.vmap(one)(params, x, mask)
    for client, count in ((0, 2), (1, 1)):
        own = model.init(0)
        alone = model(own, Batch(x[client, :count], torch.zeros(count), torch.ones(count), torch.tensor(0))).features
        torch.testing.assert_close(got[client, :count], alone, rtol=1e-5, atol=1e-5)
        for name in ("encoder.running_mean", "encoder.running_var"):
            torch.testing.assert_close(params[name][client], own[name], rtol=1e-5, atol=1e-6)


def test_what_pytorch_does_otherwise_is_left_to_pytorch():
    """Layers of one's own, other ranks, values that share memory, layers whose output goes elsewhere, too."""

    class Doubled(nn.Conv1d):
        def _conv_forward(self, x, weight, bias):
            return 2 * super()._conv_forward(x, weight, bias)

    class Halves(nn.MaxPool1d):
        def forward(self, x):
            return super().forward(x) / 2

    for layer, x in (
        (Doubled(3, 2, 3), torch.randn(4, 3, 9)),
        (Halves(2), torch.randn(4, 3, 9)),
        (nn.Conv1d(3, 2, 3), torch.randn(3, 9)),
        (nn.MaxPool1d(2), torch.randn(4, 9)),
        (nn.MaxPool2d((2, 1)), torch.randn(3, 8, 4)),
        (nn.MaxPool2d([2, 2]), torch.randn(2, 3, 8, 4)),
        (nn.MaxPool1d(2), torch.randn(2, 3, 1).expand(2, 3, 8)),
        (nn.MaxPool1d(2), torch.randn(2, 20).unfold(1, 8, 3)),
    ):
        plain, network = nn.Sequential(copy.deepcopy(layer)), nn.Sequential(layer)
        channels_last(network, [network])
        found = []
        for each in (plain, network):
            inputs = x.detach().requires_grad_()
            y = each(inputs)
            found.append((y, torch.autograd.grad((y**2).sum(), inputs)[0]))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)
    layers = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(inplace=True), nn.MaxPool1d(2))
    channels_last(layers)  # not known to be a chain: somebody may look at what is between
    assert layers[1].inplace
    with pytest.raises(RuntimeError, match="output size"):
        layers(torch.randn(1, 2, 3))


def test_the_gradient_of_a_gradient():
    """A penalty on gradients: d/dx of the squared norm of dy/dx, as with PyTorch's layers."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(3, 2, 2), nn.Tanh())
    fast = copy.deepcopy(plain)
    channels_last(fast, [fast])
    found = []
    for network in (plain, fast):
        x = torch.linspace(-2, 2, 2 * 2 * 11).view(2, 2, 11).requires_grad_()
        (slope,) = torch.autograd.grad(network(x).sum(), x, create_graph=True)
        found.append(
            torch.autograd.grad((slope**2).sum(), [x, *network.parameters()], materialize_grads=True, allow_unused=True)
        )
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_weights_that_are_tied_and_counts_outside_the_parameters_are_refused():
    shared = nn.Linear(4, 4)
    with pytest.raises(UserError, match="another name"):
        Model(Network(nn.Sequential(shared, nn.ReLU(), shared), nn.Linear(4, 2), 4))
    with pytest.raises(UserError, match="momentum"):
        Model(Network(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2), 4))
