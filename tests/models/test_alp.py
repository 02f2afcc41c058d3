"""The ALP layer against the paper's appendix A written out in NumPy, against POT, and its own promises."""

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsense.errors import UserError
from fedsense.models import ALP, Batch, Model, Network, build_model
from fedsense.models.alp import PIECE, _Unit, largest, open_layers, scaling


def appendix(x, local, common, gate, bias, beta, gamma, training, update="appendix"):
    """Appendix A line by line, for embeddings [B, Z, d]: the output, and the local prototypes afterwards.

    "soft" differs from it in two lines, as the authors' code does: weights sum to 1, and embeddings are as they are.
    """
    shape = x.shape
    x = x.reshape(-1, shape[2]).astype(np.float64)
    P = np.concatenate([local, common]) if training else local
    x_norm = x / np.linalg.norm(x, axis=1, keepdims=True)
    P_norm = P / np.linalg.norm(P, axis=1, keepdims=True)
    C = np.exp(x_norm @ P_norm.T / 0.05)
    for _ in range(3):
        C = C / C.sum(axis=1, keepdims=True)
        C = C / P_norm.shape[0]
        C = C / C.sum(axis=0, keepdims=True)
        C = C / x_norm.shape[0]
    C = C * x_norm.shape[0]
    G = len(local)
    if training:
        O_global = C[:, G:].argmax(1)
        matched = common[O_global]
        rows = C[:, :G].T
        k = math.ceil(len(x) / G)
        top = np.argsort(-rows, axis=1, kind="stable")[:, :k]
        weights = np.take_along_axis(rows, top, axis=1)
        if update == "soft":
            weights, taken = weights / weights.sum(axis=1, keepdims=True), x[top]
        else:
            taken = x_norm[top]
        local = gamma * local + (1 - gamma) * (weights[:, :, None] * taken).sum(axis=1)
    else:
        matched = local[C.argmax(1)]
    linear = matched @ gate.T + bias
    d = shape[2]
    glu = linear[:, :d] / (1 + np.exp(-linear[:, d:]))
    out = beta * glu + (1 - beta) * x
    return (out / np.linalg.norm(out, axis=1, keepdims=True)).reshape(shape), local


def layer_of(prototypes, width=6, seed=0, aligned=True, **options):
    torch.manual_seed(seed)
    layer = ALP(width).open(prototypes, **options)
    if aligned:
        layer.aligned.fill_(1.0)
    return layer


def opened(prototypes, **options):
    return lambda network: open_layers(network, prototypes, **options)


def tensors(layer):
    return [t.detach().double().numpy() for t in (layer.local_prototypes, layer.global_prototypes, layer.gate,
                                                   layer.gate_bias)]  # fmt: skip


@pytest.mark.parametrize("update", ["appendix", "soft"])
@pytest.mark.parametrize(("batch", "places", "prototypes"), [(4, 3, 5), (2, 2, 9), (8, 4, 4), (1, 2, 3)])
def test_equals_the_appendix(batch, places, prototypes, update):
    """Forward and update, training and inference; more embeddings than prototypes, fewer, and a batch of one."""
    layer = layer_of(prototypes, beta=0.3, gamma=0.9, update=update)
    x = torch.randn(batch, places, 6)
    before = tensors(layer)
    expected, moved = appendix(x.numpy(), *before, 0.3, 0.9, True, update)
    out = layer.train()(x)
    np.testing.assert_allclose(out.detach().numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(layer.local_prototypes.numpy(), moved, atol=1e-6)
    assert np.abs(moved - before[0]).max() > 1e-3
    np.testing.assert_array_equal(layer.global_prototypes.numpy(), before[1])
    used, _ = appendix(x.numpy(), *tensors(layer), 0.3, 0.9, False)
    np.testing.assert_allclose(layer.eval()(x).detach().numpy(), used, atol=1e-5)
    np.testing.assert_allclose(layer.local_prototypes.numpy(), moved, atol=1e-6)  # in use nothing moves
    assert not np.allclose(used, expected, atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_plan_equals_pots(seed):
    """POT scales its second margin first, so it is given the transpose; its margins are uniform, and sum to 1."""
    rng = np.random.default_rng(seed)
    tokens, prototypes = 7 + seed, 5
    cost = 1 - rng.uniform(-1, 1, (tokens, prototypes))
    kernel = torch.tensor(np.exp(-cost / 0.05))
    u, (v,) = scaling([kernel], 3)
    plan = u[:, None] * kernel * v
    a, b = np.full(prototypes, 1 / prototypes), np.full(tokens, 1 / tokens)
    pots = ot.sinkhorn(a, b, cost.T, 0.05, numItermax=3, stopThr=0, warn=False).T * prototypes
    np.testing.assert_allclose(plan.numpy(), pots, rtol=1e-6)
    np.testing.assert_allclose(plan.sum(0).numpy(), 1, rtol=1e-9)


def test_pieces_of_a_plan_are_the_plan():
    kernel = torch.rand(6, 9, dtype=torch.float64)
    u, (v,) = scaling([kernel], 4)
    w, parts = scaling([kernel[:, :4], kernel[:, 4:]], 4)
    torch.testing.assert_close(u, w)
    torch.testing.assert_close(v, torch.cat(parts))


@pytest.mark.parametrize("columns", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 2048])
def test_the_largest_is_found_piece_by_piece(columns):
    x = torch.randint(0, 50, (40, columns), generator=torch.Generator().manual_seed(columns)).float()
    np.testing.assert_array_equal(largest(x), x.numpy().argmax(1))  # the first of several
    together = torch.vmap(largest)(torch.stack([x, -x]))
    np.testing.assert_array_equal(together[1], (-x).numpy().argmax(1))


def test_hard_update_moves_a_prototype_to_the_mean_of_those_it_is_best_for():
    """Two prototypes along the axes; of three embeddings two are nearest to the first, and none stays unmoved."""
    layer = ALP(2).open(2, gamma=0.5, update="hard", matching="cosine")
    layer.local_prototypes.copy_(torch.eye(2))
    layer.train()(torch.tensor([[[2.0, 0.0], [4.0, 1.0], [0.0, 3.0]]]))
    torch.testing.assert_close(layer.local_prototypes, torch.tensor([[2.0, 0.25], [0.0, 2.0]]))
    layer.train()(torch.tensor([[[2.0, 0.0]]]))  # nobody is near the second
    torch.testing.assert_close(layer.local_prototypes, torch.tensor([[2.0, 0.125], [0.0, 2.0]]))
    layer.train()(torch.tensor([[[0.0, 4.0]]]))  # nor now the first
    torch.testing.assert_close(layer.local_prototypes, torch.tensor([[2.0, 0.125], [0.0, 3.0]]))


@pytest.mark.parametrize("matching", ["transport", "cosine", "euclidean"])
def test_hard_update_of_one_embedding_moves_the_nearest_only(matching):
    layer = ALP(2).open(3, gamma=0.5, update="hard", matching=matching)
    layer.local_prototypes.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]))
    layer.train()(torch.tensor([[[0.0, 3.0]]]))
    torch.testing.assert_close(layer.local_prototypes, torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]]))


@pytest.mark.parametrize(("matching", "expected"), [("cosine", [0, 1, 0]), ("euclidean", [0, 1, 1])])
def test_distances_of_table_4(matching, expected):
    """Prototypes (10, 0) and (0, 1): (1, 0.5) points more to the first, and lies nearer to the second."""
    layer = ALP(2).open(2, beta=0.5, gamma=1.0, matching=matching, glu=False)
    layer.aligned.fill_(1.0)
    for table in (layer.local_prototypes, layer.global_prototypes):
        table.copy_(torch.tensor([[10.0, 0.0], [0.0, 1.0]]))
    x = torch.tensor([[[9.0, 0.0], [0.0, 2.0], [1.0, 0.5]]])
    matched = layer.local_prototypes.clone()[expected]
    for mode in (True, False):
        out = layer.train(mode)(x)
        torch.testing.assert_close(out[0], nn.functional.normalize((matched + x[0]) / 2, dim=-1))


@pytest.mark.parametrize(
    ("sets", "training", "in_use"), [("both", 1.0, 2.0), ("local", 2.0, 2.0), ("global", 1.0, 1.0)]
)
def test_which_prototypes_serve(sets, training, in_use):
    """All global prototypes are (1, 1), all local ones (2, 2); without a GLU it shows whose came out."""
    layer = ALP(2).open(3, beta=0.75, gamma=1.0, sets=sets, glu=False)
    layer.aligned.fill_(1.0)
    layer.global_prototypes.fill_(1.0)
    layer.local_prototypes.fill_(2.0)
    x = torch.tensor([[[0.0, 4.0]]])
    for mode, value in ((True, training), (False, in_use)):
        expected = nn.functional.normalize(torch.tensor([0.75 * value, 0.75 * value + 1.0]), dim=0)
        torch.testing.assert_close(layer.train(mode)(x)[0, 0], expected)


def test_no_gradient_reaches_prototypes_nor_embeddings_through_them():
    layer = layer_of(4, beta=0.5)
    x = torch.randn(3, 2, 6, requires_grad=True)
    layer.train()(x).square().sum().backward()
    assert not layer.local_prototypes.requires_grad
    assert not layer.global_prototypes.requires_grad
    assert x.grad is not None
    assert layer.gate.grad is not None
    layer = layer_of(4, beta=1.0)  # nothing is left of x itself
    layer.train()(x)[..., 0].sum().backward()
    before = x.grad.clone()
    x.grad = None
    layer(x)[..., 0].sum().backward()
    assert not x.grad.any()
    assert before.any()


def test_before_prototypes_were_learned_embeddings_are_only_brought_to_length_1():
    layer, x = layer_of(4, aligned=False), torch.randn(3, 2, 6)
    for mode in (True, False):
        torch.testing.assert_close(layer.train(mode)(x), nn.functional.normalize(x, dim=-1))
    moved = layer.local_prototypes.clone()
    layer.train()(x)
    assert not torch.equal(moved, layer.local_prototypes)  # they are being learned


def test_closed_or_without_weight_it_gives_back_what_it_was_given():
    x = torch.randn(3, 2, 6)
    assert ALP(6)(x) is x
    assert not list(ALP(6).state_dict())
    assert layer_of(4, beta=0.0).train()(x) is x


def test_a_network_starts_as_its_backbone_would_and_without_weight_is_it():
    plain, aligned = build_model("hart", (6, 32), 3), build_model("hart", (6, 32), 3, opened(16))
    ours, theirs = plain.init(4), aligned.init(4)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for module in aligned.network.modules():
        if isinstance(module, ALP):
            module.beta = 0.0
    x = torch.randn(5, 6, 32)
    batch = Batch(x, torch.zeros(5, dtype=torch.int64), torch.ones(5), torch.tensor(3))
    assert torch.equal(plain(ours, batch).logits, aligned(theirs, batch).logits)
    assert torch.equal(plain.infer(ours, x).logits, aligned.infer(theirs, x).logits)


def test_layers_get_half_as_many_each():
    network = build_model("vit-tiny", (3, 8, 8), 3, opened(64)).network
    layers = [module for module in network.modules() if isinstance(module, ALP)]
    assert [layer.prototypes for layer in layers] == [64, 32, 16, 8, 4, 2]
    params = Model(network).init(0)
    first = [params[f"encoder.{i}.align.local_prototypes"][0] for i in range(2)]
    assert not torch.equal(*first)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1e-30, 1e-3, 1.0, 1e3, 1e15]),
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from(["transport", "cosine", "euclidean"]),
    st.sampled_from(["soft", "hard", "appendix"]),
    st.booleans(),
)
def test_numbers_stay_finite(scale, batch, prototypes, matching, update, zeros):
    layer = layer_of(prototypes, matching=matching, update=update, gamma=0.5)
    x = torch.randn(batch, 2, 6) * scale
    if zeros:
        x[0] = 0
    x.requires_grad_()
    for mode in (True, True, False):
        out = layer.train(mode)(x)
        assert out.isfinite().all()
        assert layer.local_prototypes.isfinite().all()
    layer.train()(x).sum().backward()
    assert x.grad.isfinite().all()


def test_opposite_and_equal_embeddings_stay_finite():
    """Similarities as far apart as they can be: e^20 and e^-20."""
    layer = layer_of(3, gamma=0.5)
    one = nn.functional.normalize(torch.randn(6), dim=0)
    for table in (layer.local_prototypes, layer.global_prototypes):
        table.copy_(torch.stack([one, -one, one]))
    out = layer.train()(torch.stack([one, one, -one, one])[:, None])
    assert out.isfinite().all()
    assert layer.local_prototypes.isfinite().all()


@pytest.mark.parametrize("matching", ["transport", "cosine", "euclidean"])
@pytest.mark.parametrize("update", ["soft", "hard", "appendix"])
@pytest.mark.parametrize("sets", ["both", "local"])
def test_samples_that_do_not_count_change_nothing(matching, update, sets):
    """Filled up from 3 to 5 samples, as side by side with larger clients; k is ⌈6/4⌉ = 2, and not ⌈10/4⌉ = 3."""
    for far in (1.0, 300.0):  # fillers may be near where samples are far
        alone, filled = (layer_of(4, matching=matching, update=update, sets=sets, gamma=0.5).train() for _ in range(2))
        x = torch.randn(5, 2, 6)
        x[:3] *= far
        filled.counted = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
        torch.testing.assert_close(alone(x[:3]), filled(x)[:3])
        torch.testing.assert_close(alone.local_prototypes, filled.local_prototypes, rtol=1e-5, atol=1e-4)


def test_inference_by_sample_does_not_depend_on_company():
    x = torch.randn(40, 2, 6)
    for inference, same in (("sample", True), ("batch", False)):
        layer = layer_of(5, inference=inference, beta=0.9).eval()
        assert torch.allclose(layer(x), torch.cat([layer(one) for one in x.split(4)])) is same


def test_the_engine_knows_which_networks_mix_samples():
    assert not build_model("hart", (6, 32), 3).mixes
    assert build_model("hart", (6, 32), 3, opened(4)).mixes
    assert not build_model("hart", (6, 32), 3, opened(4, inference="sample")).mixes
    assert not build_model("hart", (6, 32), 3, opened(4, matching="cosine")).mixes

    def with_closed():
        return Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), ALP(2)), nn.Linear(2, 2), 2)

    assert not Model(with_closed()).mixes
    network = with_closed()
    open_layers(network, 4)
    assert Model(network).mixes


def test_without_global_prototypes_they_are_not_looked_at():
    one, other = (layer_of(4, sets="local", gamma=0.5).train() for _ in range(2))
    other.global_prototypes.normal_()
    x = torch.randn(5, 2, 6)
    assert torch.equal(one(x), other(x))
    assert torch.equal(one.local_prototypes, other.local_prototypes)


def test_gradient_of_lengths_brought_to_1():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: _Unit.apply(x)[0], x)
    ours, theirs = (
        torch.autograd.grad(f(x).square().sum(1).mul(x[:, 0].detach()).sum() + f(x)[:, 0].sum(), x)[0]
        for f in (lambda x: _Unit.apply(x)[0], lambda x: nn.functional.normalize(x, dim=-1))
    )
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prototypes": 0}, "at least one prototype"),
        ({"iterations": 0}, "at least one iteration"),
        ({"beta": 3}, "beta is between 0 and 1"),
        ({"gamma": -1}, "gamma is between 0 and 1"),
        ({"epsilon": 0.01}, "epsilon is at least"),
        ({"matching": "transprot"}, "no matching 'transprot'; did you mean 'transport'"),
        ({"sets": "all"}, "no sets 'all'"),
        ({"update": "easy"}, "no update 'easy'"),
        ({"inference": "batches"}, "no inference 'batches'; did you mean 'batch'"),
    ],
)
def test_mistakes_in_opening_are_named(options, message):
    with pytest.raises(UserError, match=message):
        ALP(3).open(**{"prototypes": 4, **options})
