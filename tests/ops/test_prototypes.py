"""Prototypes against numbers worked out by hand, scikit-learn and scipy."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cosine, sqeuclidean
from scipy.special import softmax
from sklearn.neighbors import NearestCentroid

from conftest import blobs, plain_net
from fedsense.engine.site import Site
from fedsense.methods import Local
from fedsense.models.network import Batch
from fedsense.models.spec import ModelSpec
from fedsense.ops import (
    class_prototypes,
    held_only,
    keep_known,
    likeness,
    merge_prototypes,
    no_prototypes,
    prototype_contrast,
    prototype_gap,
    with_absent,
)
from fedsense.ops.prototypes import prototypes_moved


def batch(y, mask=None):
    y = torch.tensor(y)
    return Batch(torch.zeros(len(y), 1), y, torch.ones(len(y)) if mask is None else torch.tensor(mask), torch.tensor(0))


def seen_as(features, y, classes):
    """A client whose model gives these features."""
    model = SimpleNamespace(predict=lambda params, x: SimpleNamespace(features=torch.tensor(features)))
    data = SimpleNamespace(x=torch.zeros(len(y), 1), y=torch.tensor(y))
    return SimpleNamespace(model=model, train=data, task=SimpleNamespace(classes=["c"] * classes))


def test_eq4_a_prototype_is_the_mean_feature_of_a_class():
    """Class 0: ((1,1) + (3,5))/2 = (2,3); class 2: (4,0); nobody does class 1."""
    got = class_prototypes(seen_as([[1.0, 1.0], [4.0, 0.0], [3.0, 5.0]], [0, 2, 0], 3), {})
    assert got["mean"].tolist() == [[2.0, 3.0], [0.0, 0.0], [4.0, 0.0]]
    assert got["count"].tolist() == [2.0, 0.0, 1.0]


def test_eq4_on_a_real_client_is_sklearns_centroid_of_inference_features():
    site = Site(blobs(), Local(), ModelSpec.of(plain_net), seed=0)
    client = site.client("c01")
    features = client.model.infer(client.initial, client.train.x).features.detach().numpy()
    centroids = NearestCentroid().fit(features, client.train.y.numpy()).centroids_
    torch.testing.assert_close(class_prototypes(client, client.initial)["mean"], torch.from_numpy(centroids).float())


def test_eq5_weights_samples_by_their_similarity_to_the_global_prototype():
    """Target (1,0). Cosines of (2,0) and (0,3) are 1 and 0; ε = ln 3 gives weights 3/4 and 1/4: (1.5, 0.75)."""
    client = seen_as([[2.0, 0.0], [0.0, 3.0], [5.0, 5.0], [7.0, 1.0]], [0, 0, 1, 1], 2)
    target = {"mean": torch.tensor([[1.0, 0.0], [0.0, 0.0]]), "count": torch.tensor([4.0, 0.0])}
    got = class_prototypes(client, {}, target, sharpness=math.log(3))
    torch.testing.assert_close(got["mean"][0], torch.tensor([1.5, 0.75]))
    assert got["mean"][1].tolist() == [6.0, 3.0], "without a global prototype it is the plain mean"
    assert got["count"].tolist() == [2.0, 2.0]


def test_eq5_with_any_sharpness_is_scipys_softmax_and_never_nan():
    rng = np.random.default_rng(0)
    features, y, target = rng.normal(size=(9, 4)).astype("f"), [0] * 5 + [1] * 4, rng.normal(size=(3, 4)).astype("f")
    for sharpness in (0.01, 1.0, 10.0, 1e4):
        goal = {"mean": torch.from_numpy(target), "count": torch.ones(3)}
        got = class_prototypes(seen_as(features, y, 3), {}, goal, sharpness)["mean"]
        for c in (0, 1):
            mine = features[np.array(y) == c]
            weight = softmax([sharpness * (1 - cosine(row, target[c])) for row in mine])
            np.testing.assert_allclose(got[c], weight @ mine, rtol=2e-3, atol=1e-5)
        assert got[2].tolist() == [0.0] * 4


def test_eq8_merges_by_samples_or_alike():
    """Class 0: (1·2 + 3·6)/4 = 5, alike 4; class 1 only at the second client; class 2 at nobody."""
    a = {"mean": torch.tensor([[2.0], [0.0], [0.0]]), "count": torch.tensor([1.0, 0.0, 0.0])}
    b = {"mean": torch.tensor([[6.0], [7.0], [0.0]]), "count": torch.tensor([3.0, 2.0, 0.0])}
    by_samples, alike = merge_prototypes([a, b]), merge_prototypes([a, b], uniform=True)
    assert by_samples["mean"].flatten().tolist() == [5.0, 7.0, 0.0]
    assert alike["mean"].flatten().tolist() == [4.0, 7.0, 0.0]
    assert by_samples["count"].tolist() == alike["count"].tolist() == [4.0, 2.0, 0.0]
    old = {"mean": torch.tensor([[9.0], [9.0], [9.0]]), "count": torch.tensor([5.0, 5.0, 5.0])}
    kept = keep_known(by_samples, old)
    assert kept["mean"].flatten().tolist() == [5.0, 7.0, 9.0]
    assert kept["count"].tolist() == [4.0, 2.0, 5.0]


def test_only_classes_that_are_held_are_sent():
    proto = {"mean": torch.tensor([[1.0, 2.0], [0.0, 0.0], [5.0, 6.0]]), "count": torch.tensor([4.0, 0.0, 1.0])}
    sent = held_only(proto)
    assert sent["mean"].tolist() == [[1.0, 2.0], [5.0, 6.0]]
    back = with_absent(sent)
    assert torch.equal(back["mean"], proto["mean"])
    assert torch.equal(back["count"], proto["count"])


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        (
            "l2",
            ((1 + 4) / 2 + 0) / 3,
        ),  # (1,2) to (0,0): (1² + 2²)/2; the second is at its prototype; the third has none
        ("l1", ((1 + 2) / 2 + 0) / 3),
    ],
)
def test_eq10_distances_by_hand(distance, expected):
    target = {"mean": torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]), "count": torch.tensor([1.0, 2.0, 0.0])}
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 5.0]])
    assert prototype_gap(features, batch([0, 1, 2]), target, distance).item() == pytest.approx(expected)


def test_eq10_against_scipy_with_masked_samples():
    rng = np.random.default_rng(1)
    features, mean = rng.normal(size=(4, 5)).astype("f"), rng.normal(size=(2, 5)).astype("f")
    y, mask = [0, 1, 1, 0], [1.0, 1.0, 0.0, 1.0]
    target = {"mean": torch.from_numpy(mean), "count": torch.ones(2)}
    for distance, scipys in (("l2", lambda a, b: sqeuclidean(a, b) / 5), ("cosine", cosine)):
        got = prototype_gap(torch.from_numpy(features), batch(y, mask), target, distance).item()
        assert got == pytest.approx(np.mean([scipys(features[i], mean[y[i]]) for i in (0, 1, 3)]), rel=1e-5)


def test_no_prototypes_pull_nothing():
    task = SimpleNamespace(classes=["a", "b"], features=3)
    features = torch.randn(4, 3, requires_grad=True)
    for distance in ("l2", "l1", "cosine"):
        gap = prototype_gap(features, batch([0, 1, 0, 1]), no_prototypes(task), distance)
        assert gap.item() == 0.0
        assert torch.autograd.grad(gap, features)[0].abs().max().item() == 0.0


def test_fedapa_eq5_likeness_is_cosine_similarity_of_each_class():
    rng = np.random.default_rng(2)
    mean = rng.normal(size=(3, 2, 4)).astype("f")
    got = likeness(torch.from_numpy(mean))
    for i, j, c in np.ndindex(3, 3, 2):
        assert got[i, j, c].item() == pytest.approx(1 - cosine(mean[i, c], mean[j, c]), abs=1e-6)
    assert likeness(torch.zeros(2, 1, 4)).abs().max().item() == 0.0, "a zero prototype is like nothing"


def test_fedapa_eq9_by_hand():
    """z = (1,0); prototypes (1,0) and (0,1): cosines 1 and 0, τ = ½: −log e²/(e² + e⁰) = log(1 + e⁻²)."""
    sets = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    got = prototype_contrast(torch.tensor([[3.0, 0.0]]), batch([0]), sets, torch.tensor([True, True]), 0.5)
    assert got.tolist() == pytest.approx([math.log(1 + math.exp(-2))])


def test_fedapa_contrast_against_a_literal_loop():
    """Eq. 9 and 10 with three sets, a class nobody knows, a sample of it, and a masked sample."""
    rng = np.random.default_rng(3)
    z, sets = rng.normal(size=(5, 6)), rng.normal(size=(3, 4, 6))
    y, mask, known, tau = [0, 1, 2, 3, 1], [1.0, 1.0, 1.0, 1.0, 0.0], [True, True, False, True], 0.7
    unit = torch.nn.functional.normalize(torch.from_numpy(sets), dim=-1)
    got = prototype_contrast(torch.from_numpy(z), batch(y, mask), unit, torch.tensor(known), tau)
    for s in range(3):
        losses = []
        for i in range(5):
            scores = {c: math.exp((1 - cosine(z[i], sets[s, c])) / tau) for c in range(4) if known[c]}
            losses.append(mask[i] * -math.log(scores[y[i]] / sum(scores.values())) if known[y[i]] else 0.0)
        assert got[s].item() == pytest.approx(sum(losses) / sum(mask), rel=1e-6)


def test_fedapa_contrast_has_finite_gradients_where_a_class_is_unknown():
    features = torch.randn(3, 4, requires_grad=True, generator=torch.Generator().manual_seed(0))
    sets = torch.nn.functional.normalize(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
    loss = prototype_contrast(features, batch([0, 2, 2]), sets, torch.tensor([True, True, False]), 0.1).sum()
    grad = torch.autograd.grad(loss, features)[0]
    assert grad.isfinite().all()
    assert grad[0].abs().max() > 0
    assert grad[1:].abs().max() == 0


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=5), st.booleans())
def test_merged_prototypes_lie_within_what_was_merged(counts, uniform):
    rng = np.random.default_rng(len(counts))
    groups = [
        {"mean": torch.from_numpy(rng.normal(size=(3, 2))) * (torch.tensor(n) > 0)[:, None], "count": torch.tensor(n)}
        for n in counts
    ]
    groups = [{"mean": g["mean"], "count": g["count"].double()} for g in groups]
    merged = merge_prototypes(groups, uniform)
    for c in range(3):
        having = [g["mean"][c] for g in groups if g["count"][c] > 0]
        if having:
            low, high = torch.stack(having).amin(0), torch.stack(having).amax(0)
            assert ((merged["mean"][c] >= low - 1e-9) & (merged["mean"][c] <= high + 1e-9)).all()
        else:
            assert merged["mean"][c].abs().max() == 0


def test_how_far_prototypes_moved():
    """Of two classes one moves by (3, 4), a distance of 5, the other was not known before; anchors move by 2 and 0."""
    before = {
        "proto": {"mean": torch.tensor([[0.0, 0.0], [9.0, 9.0]]), "count": torch.tensor([2.0, 0.0])},
        "anchors": {"anchors.mean": torch.tensor([[1.0, 1.0], [0.0, 0.0]])},
        "model": {"encoder.weight": torch.ones(2)},
    }
    after = {
        "proto": {"mean": torch.tensor([[3.0, 4.0], [1.0, 1.0]]), "count": torch.tensor([1.0, 5.0])},
        "anchors": {"anchors.mean": torch.tensor([[1.0, 3.0], [0.0, 0.0]])},
        "model": {"encoder.weight": torch.zeros(2)},
    }
    assert prototypes_moved(before, after) == {"anchors": 1.0, "proto": 5.0}
    assert prototypes_moved({}, after) == {}
    table = {"mean": torch.zeros(1, 2, 2), "count": torch.ones(1, 2)}
    mine, other = ({"row": {name: torch.tensor(0)}, "table": table} for name in ("ann", "bob"))
    assert prototypes_moved(mine, other) == {}, "rows of other clients"
    assert prototypes_moved(mine, mine) == {"table": 0.0}
