"""FedAli: the server's side by hand and by scikit-learn, what travels, and what is left when β is 0."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from conftest import blobs, quick, run
from fedsense.bundle import payload
from fedsense.errors import UserError
from fedsense.methods import FedAli, FedAvg
from fedsense.models import ALP, Network
from fedsense.models.spec import ModelSpec

HART = ModelSpec(("hart",), {"dropout": 0.0})


def moving(clients=4, shape=(6, 32)):
    return blobs(clients=clients, train=12, shape=shape)


def little(**fields):
    return quick("fedali", **{"epochs": 1, "batch": 8, "optimiser": "adam", "lr": 0.001, **fields})


def upload(proto, n, weight=0.0):
    return {
        "model": {"head.weight": torch.full((1,), weight), "layer.aligned": torch.zeros(())},
        "proto": {"layer": torch.tensor(proto)},
        "size": {"n": torch.tensor(float(n))},
    }


def test_global_prototypes_are_the_centres_of_everyones_from_the_weighted_mean():
    """Two clients, two prototypes on a line. Means by 3 : 1 are 1 and 9; nearest to them are {0, 4} and {8, 12}."""
    server = {"model": {}, "proto": {"layer": torch.tensor([[0.0], [8.0]])}}
    uploads = {"a": upload([[0.0], [8.0]], 3, 1.0), "b": upload([[4.0], [12.0]], 1, 5.0)}
    after = FedAli().aggregate(server, uploads)
    assert after["proto"]["layer"].tolist() == [[2.0], [10.0]]
    assert after["model"]["head.weight"].item() == 2.0
    assert after["model"]["layer.aligned"].item() == 1.0  # from now on prototypes are used
    assert after["moved"]["layer"].item() == 2.0
    assert FedAli().observe(after) == {"prototypes moved": {"layer": 2.0}}
    mean = FedAli(aggregation="average").aggregate(server, uploads)
    assert mean["proto"]["layer"].tolist() == [[1.0], [9.0]]


def test_prototypes_of_different_clients_that_mean_the_same_meet():
    """What k-means is for: clients who gave their prototypes other numbers. The mean would put both in the middle."""
    server = {"model": {}, "proto": {"layer": torch.zeros(2, 1)}}
    uploads = {"a": upload([[0.0], [10.0]], 3), "b": upload([[10.1], [0.1]], 1)}
    after = FedAli().aggregate(server, uploads)["proto"]["layer"]
    np.testing.assert_allclose(sorted(after[:, 0].tolist()), [0.05, 10.05], atol=1e-5)


def test_equals_scikit_learn():
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(12, 5, generator=generator)
    each = {f"c{i}": (base + torch.randn(12, 5, generator=generator)).tolist() for i in range(6)}
    uploads = {c: upload(p, i + 1) for i, (c, p) in enumerate(each.items())}
    ours = FedAli().aggregate({"model": {}, "proto": {"layer": base}}, uploads)["proto"]["layer"]
    mean = np.average([each[c] for c in each], axis=0, weights=range(1, 7)).astype(np.float32)
    points = np.concatenate([each[c] for c in each]).astype(np.float32)
    theirs = KMeans(12, init=mean, n_init=1, max_iter=300, tol=1e-4).fit(points).cluster_centers_
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-4)


def test_without_weight_it_is_fedavg_on_the_backbone_to_the_bit():
    ours = run(little(blend=0.0), moving(), model=HART, rounds=2)
    fields = {"epochs": 1, "batch": 8, "optimiser": "adam", "lr": 0.001}
    theirs = run(FedAvg(**fields), moving(), model=HART, rounds=2)
    assert not ours.server["proto"]
    assert all(torch.equal(ours.server["model"][name], t) for name, t in theirs.server["model"].items())
    assert ours.record.scores == theirs.record.scores


def test_first_round_only_learns_prototypes():
    """Whatever β: in the first round nothing is drawn anywhere, so runs part in the second."""
    weak, strong = (run(little(blend=b), moving(), model=HART, rounds=2).server["model"] for b in (0.1, 0.6))
    first = [run(little(blend=b), moving(), model=HART, rounds=1).server["model"] for b in (0.1, 0.6)]
    assert all(torch.equal(first[0][name], first[1][name]) for name in first[0])
    assert not all(torch.equal(weak[name], strong[name]) for name in weak)


def test_clients_begin_a_round_with_global_prototypes_and_are_scored_with_local_ones():
    engine = run(little(), moving(), model=HART, rounds=2)
    layer = "encoder.0.align"
    mine, theirs = (engine.personal_parameters(c) for c in ("c00", "c01"))
    assert torch.equal(mine[f"{layer}.global_prototypes"], theirs[f"{layer}.global_prototypes"])
    assert not torch.equal(mine[f"{layer}.local_prototypes"], theirs[f"{layer}.local_prototypes"])
    assert not torch.equal(mine[f"{layer}.local_prototypes"], mine[f"{layer}.global_prototypes"])
    common = engine.method.global_model(engine.server)
    assert torch.equal(common[f"{layer}.local_prototypes"], common[f"{layer}.global_prototypes"])
    assert set(common) == set(mine)


def test_one_set_of_prototypes_travels_each_way():
    engine = run(little(prototypes=16), moving(), model=HART, rounds=1)
    down = payload(engine.method.broadcast(engine.server, "c00"))
    numbers = 16 + 8 + 4 + 2 + 1 + 1
    assert down["proto"] == numbers * 192 * 4
    for entry in engine.record.ledger[-1]["clients"].values():
        assert entry["up"]["proto"] == down["proto"]
        assert entry["metrics"]["moved.encoder.0.align"] > 0


def test_a_network_without_a_place_for_prototypes_is_refused():
    with pytest.raises(UserError, match="'flic-mlp' has no ALP layer; take hart"):
        run(little(), moving(), model=ModelSpec(("flic-mlp",)), rounds=1)
    with pytest.raises(UserError, match="blend is 2; it must be between 0 and 1"):
        FedAli(blend=2)


def test_layers_opened_by_whoever_built_the_network_stay_as_they_are():
    def own(input_shape, classes):
        encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4), ALP(4).open(3, beta=0.4), ALP(4))
        return Network(encoder, torch.nn.Linear(4, classes), features=4)

    engine = run(little(prototypes=8), moving(), model=ModelSpec.of(own), rounds=1)
    assert {name: tuple(t.shape) for name, t in engine.server["proto"].items()} == {
        "encoder.2": (3, 4),
        "encoder.3": (4, 4),
    }
    layers = [m for m in engine.site.client("c00").model.network.modules() if isinstance(m, ALP)]
    assert [layer.beta for layer in layers] == [0.4, 0.2]


@pytest.mark.parametrize(
    "fields",
    [
        {"glu": False},
        {"sets": "local"},
        {"sets": "global"},
        {"matching": "cosine"},
        {"matching": "euclidean"},
        {"update": "hard"},
        {"update": "appendix"},
        {"inference": "sample"},
        {"aggregation": "average"},
    ],
)
def test_every_variant_is_another_algorithm(fields):
    few = moving(clients=2)
    plain, other = (run(little(blend=0.5, decay=0.5, **f), few, model=HART, rounds=2, every=2) for f in ({}, fields))
    params = [engine.personal_parameters("c00") for engine in (plain, other)]
    if fields in ({"inference": "sample"}, {"sets": "global"}):  # trained alike, used otherwise
        assert all(torch.equal(t, params[1][name]) for name, t in params[0].items())
        clients = [engine.site.client("c00") for engine in (plain, other)]
        said = [c.model.predict(p, c.train.x).logits for c, p in zip(clients, params, strict=True)]
        assert not torch.allclose(*said)
    else:
        assert any(not torch.equal(t, params[1][name]) for name, t in params[0].items() if name in params[1])
