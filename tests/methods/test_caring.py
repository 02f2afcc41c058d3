"""CARING: who counts how much."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import blobs, plain_net, quick, run
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import Caring
from fedsense.models.spec import ModelSpec
from fedsense.ops import average
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def mixed():
    """Two clients with signals of two channels and two of three, whose networks differ in width."""
    wide = blobs(clients=2, shape=(3, 6))
    others = (replace(c, id=f"w{c.id}") for c in wide)
    return wide.with_clients([*blobs(clients=2), *others])


def sent(**scored):
    """Uploads: client → its weight w and its accuracy."""
    return {
        c: {"model": {"w": torch.tensor([w])}, "score": {"accuracy": torch.tensor(score)}}
        for c, (w, score) in scored.items()
    }


def test_the_average_by_hand():
    """Mean accuracy 0.7: a and b count 1, c 0.3, so (1 + 2 + 0.3·10)/2.3 = 6/2.3. With low = 0 c is left out."""
    uploads = sent(a=(1.0, 0.9), b=(2.0, 0.7), c=(10.0, 0.5))
    assert Caring().weights(uploads) == {"a": 1.0, "b": 1.0, "c": 0.3}
    assert Caring().aggregate({}, uploads)["model"]["w"].item() == pytest.approx(6 / 2.3)
    assert Caring(low=0.0).aggregate({}, uploads)["model"]["w"].item() == pytest.approx(1.5)


@pytest.mark.parametrize("score", [0.1, 1 / 3, 0.7, 1.0])
@pytest.mark.parametrize("many", [1, 3, 7])
def test_of_equals_it_is_the_uniform_average(score, many):
    uploads = sent(**{f"c{i}": (0.1 * i + 1 / 3, score) for i in range(many)})
    assert torch.equal(Caring().aggregate({}, uploads)["model"]["w"], average(uploads, "model", uniform=True)["w"])


def test_where_the_low_count_in_full_it_is_fedavg_of_equals():
    alike = blobs()
    alike = alike.with_clients(c.change(lambda s, d: d.take(slice(24)) if s == "train" else d) for c in alike)
    ours, theirs = run(quick("caring", low=1.0), alike), run(quick("fedavg"), alike)
    assert all(torch.equal(t, theirs.server["model"][n]) for n, t in ours.server["model"].items())
    assert ours.record.scores == theirs.record.scores


@pytest.mark.parametrize("validation", [8, 0])
def test_accuracy_is_the_trained_models_on_validation_data_or_without_any_on_training_data(validation):
    method = quick("caring", epochs=1, lr=0.01)
    client = Site(blobs(val=validation), method, PLAIN, seed=0).client("c00")
    reply = method.local_update(client, {}, {"model": client.initial}, Work(0, 1, "c00", 8))
    judged = client.data.val if validation else client.train
    right = client.model.predict(reply.model, judged.x).logits.argmax(1) == judged.y
    assert float(reply.upload["score"]["accuracy"]) == pytest.approx(int(right.sum()) / len(judged))
    assert 0 < int(right.sum()) < len(judged)
    assert set(reply.upload) == {"model", "score"}


def test_a_client_with_wrong_labels_counts_less():
    federation = blobs(clients=4, train=40, val=30)
    rng = np.random.Generator(np.random.Philox(0))
    federation = federation.with_clients(
        c.change(lambda _, s: type(s)(s.x, torch.from_numpy(rng.integers(0, 3, len(s))))) if c.id == "c01" else c
        for c in federation
    )
    site = Site(federation, quick("caring"), PLAIN, seed=0)
    down = site.method.broadcast(site.first_server, "c00")
    uploads = {
        c: site.method.local_update(site.client(c), {}, down, Work(0, 1, c, 8)).upload for c in sorted(federation.ids)
    }
    weights = site.method.weights(uploads)
    assert weights.pop("c01") == 0.3
    assert 1.0 in weights.values()


def test_networks_are_compared_and_averaged_among_their_likes():
    method = Caring(by_architecture=True)
    server = {"architecture": {c: torch.tensor(kind) for c, kind in (("a", 0), ("b", 0), ("c", 1), ("d", 1))}}
    uploads = sent(a=(1.0, 0.9), b=(2.0, 0.8), c=(1.0, 0.2), d=(2.0, 0.1))
    after = method.aggregate(server, uploads)
    for group in ("model-0", "model-1"):  # (1 + 0.3·2)/1.3 in both, though c and d are far below the round's mean
        assert after[group]["w"].item() == pytest.approx(1.6 / 1.3)
    engine = run(quick("caring", by_architecture=True), mixed(), rounds=2)
    assert {"model-0", "model-1"} < engine.server.keys()
    with pytest.raises(UserError, match="caring shares"):
        run(quick("caring"), mixed())


def test_values_have_no_accuracy():
    ones = np.ones((4, 1), np.float32)
    federation = Federation.from_arrays({"a": {"train": (ones, np.ones(4))}}, classes=["level"], kind="regression")
    with pytest.raises(UserError, match="caring works with classes"):
        run(quick("caring"), federation, model=PLAIN, metrics=("rmse",))
