"""FedHome: what SMOTE makes, by hand and by what must hold; the server is FedAvg's, and a client's head is tuned."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import blobs, plain_net, quick, run, small_net
from fedsense.bundle import to_bytes
from fedsense.engine.site import Call, Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import FedHome
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.ops import classify, smote
from fedsense.training import FEATURES, fit
from fedsense.work import Work, stream

PLAIN = ModelSpec.of(plain_net)


def skewed(federation, keep=3):
    """Of class 0 only a few training samples are left, and test data are as they were."""

    def fewer(split, s):
        rows = (s.y != 0) | ((s.y == 0).cumsum(0) <= keep)
        return s.take(rows) if split == "train" else s

    return federation.with_clients(c.change(fewer) for c in federation)


def test_with_one_neighbour_by_hand():
    """Class 1 is at 0, 1 and 5 on a line: 0 and 1 have one another, 5 has 1."""
    z = torch.tensor([[9.0], [0.0], [9.0], [1.0], [9.0], [5.0]] + [[9.0]] * 60)
    y = torch.tensor([0, 1, 0, 1, 0, 1] + [0] * 60)
    rng, again = stream("smote"), stream("smote")
    new_z, new_y = smote(z, y, 1, rng)
    assert torch.equal(new_z[:66], z)
    assert torch.equal(new_y[:66], y)
    assert new_y[66:].tolist() == [1] * 60
    turn, share = np.resize(again.permutation(3), 60), again.random((60, 1))
    way = {0: (0.0, 1.0), 1: (1.0, 0.0), 2: (5.0, 1.0)}
    expected = [way[t][0] + u * (way[t][1] - way[t][0]) for t, (u,) in zip(turn, share, strict=True)]
    assert new_z[66:, 0].tolist() == pytest.approx(expected, abs=1e-6)
    assert sum(1.0 < float(v) < 5.0 for v in new_z[66:]) == 20  # each had its turns


@pytest.mark.parametrize("neighbours", [1, 3, 50])
def test_new_points_lie_between_a_point_and_a_near_one_of_its_class(neighbours):
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 40 + [1] * 12 + [3] * 2 + [4])
    z = torch.randn(len(y), 3, generator=generator) + 10 * y[:, None]
    new_z, new_y = smote(z, y, neighbours, stream("a"))
    assert torch.bincount(new_y).tolist() == [40, 40, 0, 40, 40]
    for point, label in zip(new_z[len(z) :], new_y[len(z) :], strict=True):
        own = z[y == label].numpy()
        if label == 4:
            assert np.array_equal(point.numpy(), own[0])
            continue
        found = False
        for i, a in enumerate(own):
            others = sorted((j for j in range(len(own)) if j != i), key=lambda j: np.linalg.norm(own[j] - a))
            for j in others[:neighbours]:
                way = own[j] - a
                u = float((point.numpy() - a) @ way / (way @ way))
                found |= -1e-4 <= u <= 1 + 1e-4 and np.allclose(a + u * way, point.numpy(), atol=1e-4)
        assert found


def test_balanced_classes_stay_as_they_are():
    z, y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 2, 1, 0])
    new = smote(z, y, 5, stream("a"))
    assert torch.equal(new[0], z)
    assert torch.equal(new[1], y)


def test_the_server_is_fedavgs_and_without_tuning_clients_are_too():
    ours, theirs = (run(quick(name), participation=0.5, moment="received") for name in ("fedhome", "fedavg"))
    assert to_bytes(ours.server) == to_bytes(theirs.server)
    assert ours.record.scores != theirs.record.scores
    plain = run(quick("fedhome", tune_epochs=0), participation=0.5, moment="received")
    assert plain.record.scores == theirs.record.scores


def meeting(method, federation=None, net=PLAIN):
    site = Site(federation or blobs(), method, net, seed=0)
    return site.client("c00"), site.first_server["model"], Work(0, 1, "c00", method.batch)


def test_where_classes_are_balanced_the_head_is_tuned_plainly():
    federation = blobs(clients=1)
    same = federation.with_clients(
        c.change(lambda _, s: s.take(torch.cat([(s.y == k).nonzero()[:4, 0] for k in range(3)]))) for c in federation
    )
    method = quick("fedhome", tune_epochs=3)
    client, model, work = meeting(method, same)
    assert torch.bincount(client.train.y).tolist() == [4, 4, 4]
    want = fit(classify(client), model, client, work.epochs(3, "tune"), method.optim(), only="head").params
    got = method.personalise(client, {}, {"model": model}, work)
    assert all(torch.equal(t, want[name]) for name, t in got.items())
    assert not torch.equal(got["head.weight"], model["head.weight"])


@pytest.mark.parametrize("net", [plain_net, small_net])
def test_a_tuned_head_is_that_of_plain_pytorch_on_the_balanced_features(net):
    method = FedHome(batch=8, tune_epochs=2, tune_lr=0.1, neighbours=2)
    client, model, work = meeting(method, skewed(blobs()), ModelSpec.of(net))
    features = client.model.infer(model, client.train.x).features
    z, y = smote(features, client.train.y, 2, work.rng("smote"))
    assert len(y) > client.samples
    head = torch.nn.Linear(8, 3)
    head.load_state_dict({name: model[f"head.{name}"] for name in ("weight", "bias")})
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    for step in work.epochs(2, "tune").steps(len(y)):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(head(z[step.samples]), y[step.samples]).backward()
        optimiser.step()
    got = method.personalise(client, {}, {"model": model}, work)
    torch.testing.assert_close(got["head.weight"], head.weight.detach())
    torch.testing.assert_close(got["head.bias"], head.bias.detach())
    assert all(torch.equal(t, model[name]) for name, t in got.items() if not name.startswith("head."))


def noisy(client):
    def more(split, s):
        noise = stream(client.id, split).standard_normal(tuple(s.x.shape))
        return type(s)(s.x + 1.5 * torch.from_numpy(noise).float(), s.y)

    return client.change(more)


def test_rare_classes_are_found_more_often():
    """Recall of a class of three samples, beside a head tuned without balance."""
    federation = skewed(blobs(clients=4, train=60, test=60), keep=3).change(noisy)
    engine = run(quick("fedhome", tune_epochs=10), federation, rounds=2, model=PLAIN)
    recall = {"balanced": [], "plain": []}
    for who in engine.federation.ids:
        client, work = engine.site.client(who), Work(0, 3, who, 8)
        model = engine.server["model"]
        test = client.data.test.take(client.data.test.y == 0)
        plain = fit(classify(client), model, client, work.epochs(10, "tune"), engine.method.optim(), only="head").params
        balanced = engine.method.personalise(client, {}, {"model": model}, work)
        for name, params in (("balanced", balanced), ("plain", plain)):
            recall[name].append(float((client.model.infer(params, test.x).logits.argmax(1) == 0).float().mean()))
    assert np.mean(recall["balanced"]) > np.mean(recall["plain"]) + 0.05, recall


def test_clients_are_tuned_side_by_side():
    method, answers = quick("fedhome"), {}
    for executor in ("serial", "cohort"):
        site = Site(skewed(blobs(clients=3)), method, PLAIN, seed=0, executor=executor)
        calls = [Call("finish", (c,), 1, {"down": method.broadcast(site.first_server, c)}) for c in site.trainees.ids]
        answers[executor] = site.answer(calls) if executor == "cohort" else [site.handle(call) for call in calls]
    assert [a.data["together"] for a in answers["cohort"]] == [3, 3, 3], site._company.refused
    for alone, together in zip(answers["serial"], answers["cohort"], strict=True):
        for name, tensor in alone.bundles["model"]["model"].items():
            torch.testing.assert_close(together.bundles["model"]["model"][name], tensor, rtol=1e-4, atol=1e-5)


def test_features_stand_for_samples_only_where_the_head_alone_trains():
    method = quick("fedhome")
    client, model, work = meeting(method)
    z = torch.zeros(client.samples, 8)
    with pytest.raises(ValueError, match="only where the head alone trains"):
        fit(classify(client), model, client, work.epochs(1), method.optim(), beside={FEATURES: z})
    empty = replace(client, data=replace(client.data, train=replace(client.train.made, x=torch.full((len(z), 1), 7.0))))
    done = fit(classify(client), model, empty, work.epochs(1), method.optim(), only="head", beside={FEATURES: z})
    assert torch.equal(done.params["head.weight"], model["head.weight"])  # of features of zero only the bias learns
    assert not torch.equal(done.params["head.bias"], model["head.bias"])


class Odd(Network):
    def forward(self, x):
        return super().forward(-x)


def odd_net(shape, classes):
    plain = plain_net(shape, classes)
    return Odd(plain.encoder, plain.head, plain.features)


def test_what_does_not_suit_is_refused():
    with pytest.raises(UserError, match="Odd has a forward pass of its own"):
        run(quick("fedhome"), model=ModelSpec.of(odd_net))
    with pytest.raises(UserError, match="neighbours is 0"):
        FedHome(neighbours=0)
    x, y = torch.randn(8, 2, 6).numpy(), torch.randn(8).numpy()
    values = Federation.from_arrays({"a": {"train": (x, y), "test": (x, y)}}, classes=["speed"], kind="regression")
    with pytest.raises(UserError, match="fedhome works with classes"):
        run(quick("fedhome"), values, metrics=("rmse",))
