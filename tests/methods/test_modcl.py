"""ModCL: NT-Xent against a slow transcription, views that depend on their seed only, FedAvg where it reduces to it."""

import numpy as np
import pytest
import torch
from scipy import stats

from conftest import blobs, plain_net, quick, run, same_bits, small_net
from fedsense.bundle import payload, to_bytes
from fedsense.engine.site import Call, Site
from fedsense.errors import UserError
from fedsense.methods import ModCL
from fedsense.models.network import Batch
from fedsense.models.spec import ModelSpec
from fedsense.ops import nt_xent, two_views
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)
ALL = {"jitter": 0.1, "scale": 0.2, "negate": 0.5, "reverse": 0.5}


def slow_nt_xent(z, temperature):
    """Chen et al., Eq. 1, for z[k][v], view v of sample k."""

    def sim(a, b):
        return np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b))

    views = [(k, v) for k in range(len(z)) for v in (0, 1)]
    total = 0.0
    for k, v in views:
        others = [np.exp(sim(z[k][v], z[i][w]) / temperature) for i, w in views if (i, w) != (k, v)]
        total -= np.log(np.exp(sim(z[k][v], z[k][1 - v]) / temperature) / sum(others))
    return total / len(views)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
@pytest.mark.parametrize(("samples", "filled"), [(1, 0), (2, 0), (5, 0), (5, 3), (1, 2)])
def test_nt_xent_is_that_of_a_slow_transcription(samples, filled, temperature):
    z = torch.randn(2 * (samples + filled), 4, generator=torch.Generator().manual_seed(samples), requires_grad=True)
    mask = torch.tensor([1.0] * 2 * samples + [0.0] * 2 * filled)
    found = nt_xent(z, mask, temperature)
    found.backward()
    expected = slow_nt_xent(z.detach().double().numpy()[: 2 * samples].reshape(samples, 2, 4), temperature)
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert z.grad.isfinite().all()
    assert not z.grad[2 * samples :].any()
    assert bool(z.grad[: 2 * samples].any()) == (samples > 1)


def test_views_are_what_they_say():
    x = torch.randn(400, 3, 50, generator=torch.Generator().manual_seed(0))
    twice, seed = x.repeat_interleave(2, 0), torch.tensor(7)
    assert torch.equal(two_views(x, seed), twice)
    noise = two_views(x, seed, jitter=0.3) - twice
    assert stats.kstest(noise.flatten().numpy() / 0.3, "norm").pvalue > 0.01
    factor = two_views(x, seed, scale=0.2) / twice
    assert torch.allclose(factor, factor[:, :, :1].expand_as(factor), atol=1e-3)
    assert stats.kstest((factor[:, :, 0].flatten().numpy() - 1) / 0.2, "norm").pvalue > 0.01
    for name, change in (("negate", torch.neg), ("reverse", lambda t: t.flip(-1))):
        assert torch.equal(two_views(x, seed, **{name: 1.0}), change(twice))
        pairs = torch.zeros(0, 2, dtype=torch.bool)
        for seed in torch.arange(20):
            some = two_views(x, seed, **{name: 0.25})
            changed = (some == change(twice)).flatten(1).all(1)
            assert torch.equal(some, torch.where(changed[:, None, None], change(twice), twice))
            pairs = torch.cat([pairs, changed.view(-1, 2)])
        assert stats.binomtest(int(pairs.sum()), pairs.numel(), 0.25).pvalue > 0.01
        both = int(pairs.all(1).sum())  # two views of a sample are drawn apart
        assert stats.binomtest(both, len(pairs), 0.25**2).pvalue > 0.01


def test_views_depend_on_their_seed_alone_and_not_on_those_that_follow():
    x, seed = torch.randn(9, 2, 6, generator=torch.Generator().manual_seed(0)), torch.tensor(2**63 - 1)
    before, views = torch.get_rng_state(), two_views(x, seed, **ALL)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(views, two_views(x, seed, **ALL))
    assert torch.equal(views[:6], two_views(x[:3], seed, **ALL))
    assert not torch.equal(views, two_views(x, torch.tensor(5), **ALL))
    seeds = torch.tensor([3, 4])
    both = torch.vmap(lambda x, s: two_views(x, s, **ALL))(torch.stack([x, x]), seeds)
    for one, own in zip(both, seeds, strict=True):
        assert torch.equal(one, two_views(x, own, **ALL))


@pytest.mark.parametrize("shape", [(5,), (3, 8, 8)])
def test_views_of_samples_that_are_no_signals(shape):
    x = torch.randint(0, 255, (4, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert two_views(x, torch.tensor(1), **ALL).shape == (8, *shape)
    flipped = two_views(x, torch.tensor(1), reverse=1.0)
    shares = x.repeat_interleave(2, 0) / 255
    assert torch.equal(flipped, shares if len(shape) == 1 else shares.flip(-1))


def test_without_pretraining_it_is_fedavg():
    same_bits(run(quick("modcl", pretrain_rounds=0), participation=0.7), run(quick("fedavg"), participation=0.7))


def test_pretraining_leaves_labels_and_head_alone():
    federation = blobs()
    other = federation.with_clients(c.change(lambda _, s: type(s)(s.x, (s.y + 1) % 3)) for c in federation)
    a, b = (run(quick("modcl", pretrain_rounds=3), f) for f in (federation, other))
    assert to_bytes(a.server) == to_bytes(b.server)
    first = a.site.first_server["model"]
    for name, tensor in a.server["model"].items():
        assert torch.equal(tensor, first[name]) == name.startswith("head."), name
    up = [line["clients"]["c00"]["up"]["model"] for line in a.record.ledger]
    assert up == [payload({"model": {n: t for n, t in first.items() if not n.startswith("head.")}})["model"]] * 3


def test_afterwards_all_learns_or_the_head_alone():
    pretrained = run(quick("modcl", pretrain_rounds=2), rounds=2).server["model"]
    for tunes in ("all", "head"):
        engine = run(quick("modcl", pretrain_rounds=2, tunes=tunes), rounds=3)
        for name, tensor in engine.server["model"].items():
            assert torch.equal(tensor, pretrained[name]) == (tunes == "head" and not name.startswith("head.")), name
    assert set(engine.method.local_update(*meeting(engine.method, 3)).upload["model"]) == {"head.weight", "head.bias"}


def meeting(method, round):
    site = Site(blobs(), method, PLAIN, seed=0)
    return site.client("c00"), {}, method.broadcast(site.first_server, "c00"), Work(0, round, "c00", method.batch)


def test_views_of_a_sample_come_together():
    """After pre-training a view is nearest to its sample's other view more often than before."""
    method = ModCL(batch=32, epochs=30, lr=0.1, temperature=0.2, reverse=0.0, jitter=0.3)
    client, _, down, work = meeting(method, 1)
    after = method.local_update(client, {}, down, work).model

    def found(params):
        views = two_views(client.train.x, torch.tensor(1), jitter=0.3, scale=0.1)
        z = torch.nn.functional.normalize(client.model.infer(params, views).features, dim=1)
        nearest = (z @ z.T).fill_diagonal_(-1).argmax(1)
        return float((nearest == torch.arange(len(z)) ^ 1).float().mean())

    assert found(after) > found(client.initial) + 0.1


def test_the_loss_is_that_of_views_in_this_step():
    method = ModCL(batch=16, temperature=0.3, negate=0.5)
    client, _, down, _ = meeting(method, 1)
    x, seed = client.train.x, torch.tensor(3)
    batch = Batch(x, client.train.y, torch.ones(len(x)), seed, ("adapter", "encoder"))
    views = two_views(x, seed, jitter=0.1, scale=0.1, negate=0.5, reverse=0.5)
    z = client.model.infer(down["model"], views).features.double().numpy().reshape(len(x), 2, -1)
    assert float(method._views_apart(client)(down["model"], batch)) == pytest.approx(slow_nt_xent(z, 0.3), rel=1e-5)


def test_what_was_learned_without_labels_serves_a_head():
    """One round of training the head alone, on the first encoder and on one pre-trained for six rounds."""
    reached = {}
    for many in (0, 6):
        method = quick("modcl", pretrain_rounds=many, tunes="head", epochs=3, reverse=0.0)
        engines = (run(method, blobs(shape=(3, 32)), rounds=many + 1, model=PLAIN, seed=seed) for seed in (0, 1))
        scores = [engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"] for engine in engines]
        reached[many] = np.mean([value for each in scores for value in each.values()])
    assert reached[6] > reached[0] + 0.1, reached


@pytest.mark.parametrize("net", [plain_net, small_net])
def test_clients_of_different_sizes_pretrain_side_by_side(net):
    """Their minibatches are filled up; BatchNorm, too, sees only the views that count."""
    method, answers = quick("modcl", pretrain_rounds=3, epochs=3), {}
    for executor in ("serial", "cohort"):
        site = Site(blobs(clients=3), method, ModelSpec.of(net), seed=0, executor=executor)
        calls = [Call("update", (c,), 1, {"down": method.broadcast(site.first_server, c)}) for c in site.trainees.ids]
        answers[executor] = site.answer(calls) if executor == "cohort" else [site.handle(call) for call in calls]
    assert [a.data["together"] for a in answers["cohort"]] == [3, 3, 3], site._company.refused
    for alone, together in zip(answers["serial"], answers["cohort"], strict=True):
        for name, tensor in alone.bundles["upload"]["model"].items():
            torch.testing.assert_close(together.bundles["upload"]["model"][name], tensor, rtol=1e-3, atol=1e-4)


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="reverse is 2; it is a chance, 0 to 1"):
        ModCL(reverse=2)
    with pytest.raises(UserError, match="batch is 1"):
        ModCL(batch=1)
    ModCL(batch=1, pretrain_rounds=0)
