"""FedPAC: shares of heads by hand and by scipy, statistics by numpy, a round in plain PyTorch, what it reduces to."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.nn import functional as F

from conftest import blobs, plain_net, quick, run, same_bits
from fedsense.bundle import part, to_bytes, within
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.joining import join
from fedsense.methods import FedPAC
from fedsense.methods.fedpac import feature_statistics
from fedsense.models.spec import ModelSpec
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def shares(h, v):
    """α of clients whose h are single numbers, or rows of them."""
    h = torch.tensor(h, dtype=torch.float64)
    return FedPAC().shares(h.reshape(len(v), 1, -1), torch.tensor(v, dtype=torch.float64)).numpy()


def twins(*ids):
    """Clients with the very same recordings."""
    one = blobs(clients=1)
    return one.with_clients([dataclasses.replace(one.clients[0], id=who) for who in ids])


def first_client(method, federation=None, who="c00"):
    site = Site(federation or blobs(), method, PLAIN, seed=0)
    return site.client(who), method.broadcast(site.first_server, who)


def test_clients_alike_share_in_inverse_proportion_to_their_variance():
    """No bias. 1/V is 1 and 1/3: ¾ and ¼, for both of them."""
    np.testing.assert_allclose(shares([5.0, 5.0], [1.0, 3.0]), [[0.75, 0.25], [0.75, 0.25]], atol=1e-9)


def test_two_clients_by_hand():
    """Client a: (1 − β)²·V_a + β²·(V_b + δ²), least at β = V_a/(V_a + V_b + δ²).

    With V = 1 and 2, δ = 1: β is 1/4; and what b takes of a is 2/4.
    """
    np.testing.assert_allclose(shares([0.0, 1.0], [1.0, 2.0]), [[0.75, 0.25], [0.5, 0.5]], atol=1e-9)


def test_very_different_clients_keep_their_own_heads():
    """δ = 40: β = 1/1602 < 10⁻³, which is none. At δ = 30 it is 1/902, which is not."""
    assert shares([0.0, 40.0], [1.0, 1.0]).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    np.testing.assert_allclose(shares([0.0, 30.0], [1.0, 1.0])[0], [901 / 902, 1 / 902], atol=1e-9)


def test_biases_to_both_sides_cancel():
    """Seen from 0, those at −1 and 1 are together unbiased: with V = 1 each has a third."""
    np.testing.assert_allclose(shares([-1.0, 0.0, 1.0], [1.0, 1.0, 1.0])[1], [1 / 3, 1 / 3, 1 / 3], atol=1e-9)


def test_what_is_cut_off_is_shared_out():
    """Two alike and one far away: ½ and ½, exactly 0, and a sum of 1."""
    alpha = shares([0.0, 0.0, 500.0], [1.0, 1.0, 1.0])
    np.testing.assert_allclose(alpha, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], atol=1e-9)
    assert alpha[0, 2] == alpha[2, 0] == 0.0
    np.testing.assert_allclose(alpha.sum(1), 1.0, rtol=1e-12)


def test_if_all_are_too_small_none_is_cut(monkeypatch):
    """Of thousands alike each has less than 10⁻³, and there is nobody else to take it: here, six and a limit of ⅕."""
    monkeypatch.setattr("fedsense.methods.fedpac.SMALL", 0.2)
    np.testing.assert_allclose(shares([1.0] * 6, [1.0] * 6), 1 / 6, atol=1e-9)
    np.testing.assert_allclose(shares([1.0] * 4, [1.0, 1.0, 1.0, 9.0])[0], [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-9)


def test_shares_are_those_scipy_finds_for_the_form_written_out():
    rng = np.random.default_rng(0)
    h, v = 0.3 * rng.normal(size=(5, 3, 4)), rng.uniform(0.2, 1, 5)
    ours = FedPAC().shares(torch.from_numpy(h), torch.from_numpy(v)).numpy()
    for i in range(5):
        bias = np.zeros((5, 5))
        for j, k in np.ndindex(5, 5):
            bias[j, k] = sum((h[i, c] - h[j, c]) @ (h[i, c] - h[k, c]) for c in range(3))
        form = np.diag(v) + bias
        found = minimize(
            lambda a, form=form: a @ form @ a,
            np.full(5, 0.2),
            jac=lambda a, form=form: 2 * form @ a,
            bounds=[(0, 1)] * 5,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            options={"ftol": 1e-16},
        ).x
        assert not ((found > 1e-9) & (found < 2e-3)).any(), "else it would have been cut"
        np.testing.assert_allclose(ours[i], found, atol=1e-6)


def test_statistics_are_class_sums_over_n_and_the_variance_of_their_estimate():
    """h(c) and the trace of the covariance of 1{y = c}·z, over n, by numpy."""
    client, _ = first_client(FedPAC(), who="c02")
    got = feature_statistics(client, client.initial)
    z = client.model.infer(client.initial, client.train.x).features.detach().numpy().astype(float)
    y = client.train.y.numpy()
    variance = 0.0
    for c in range(3):
        only = np.where((y == c)[:, None], z, 0.0)
        np.testing.assert_allclose(got["mean"][c], (y == c).mean() * z[y == c].mean(0), rtol=1e-5, atol=1e-7)
        variance += np.trace(np.cov(only.T, bias=True)) / len(y)
    assert got["variance"].item() == pytest.approx(variance, rel=1e-5)


def test_statistics_by_hand_of_one_sample():
    """All of its data is one class, and its mean the sample: no variance."""
    federation = blobs(clients=1)
    one = federation.clients[0].change(lambda split, s: s.take(slice(1)) if split == "train" else s)
    client, _ = first_client(FedPAC(), federation.with_clients([one]))
    got = feature_statistics(client, client.initial)
    z = client.model.infer(client.initial, client.train.x).features.detach()
    torch.testing.assert_close(got["mean"][client.train.y], z)
    assert 0 <= got["variance"].item() < 1e-12


def test_a_round_is_that_of_plain_pytorch():
    """Head first, at its own rate, then encoder with the prototypes; statistics before, prototypes after."""
    method = FedPAC(epochs=2, head_epochs=1, batch=8, lr=0.05, head_lr=0.2, align=2.0)
    client, down = first_client(method)
    rng = torch.Generator().manual_seed(1)
    proto = {"mean": torch.randn(3, 8, generator=rng), "count": torch.tensor([1.0, 2, 0])}
    head = {name: torch.randn(t.shape, generator=rng) for name, t in part(client.initial, "head").items()}
    work = Work(0, 4, "c00", 8)
    reply = method.local_update(client, {}, down | {"proto": proto, "head": head}, work)
    net = plain_net((2, 6), 3)
    net.load_state_dict(client.initial | head)
    before = feature_statistics(client, net.state_dict())
    for part_of_net, rate, epochs in (
        (net.head, 0.2, work.epochs(1, "head")),
        (net.encoder, 0.05, work.epochs(2, "encoder")),
    ):
        optimiser = torch.optim.SGD(part_of_net.parameters(), lr=rate, momentum=0.9)
        for step in epochs.steps(client.samples):
            x, y = client.train.x[step.samples], client.train.y[step.samples]
            out = net(x)
            loss = F.cross_entropy(out.logits, y)
            if part_of_net is net.encoder:
                gap = ((out.features - proto["mean"][y]) ** 2).mean(1)
                loss = loss + 2.0 * (gap * (y != 2)).sum() / len(y)  # class 2 has no prototype
            net.zero_grad()
            loss.backward()
            optimiser.step()
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(reply.model[name], tensor)
        torch.testing.assert_close(reply.upload[name.split(".")[0]][name], tensor)
    for name, tensor in before.items():
        torch.testing.assert_close(reply.upload["statistics"][name], tensor)
    features = net(client.train.x).features.detach()
    for c in range(3):
        torch.testing.assert_close(reply.upload["proto"]["mean"][c], features[client.train.y == c].mean(0))
    assert reply.state == {}


def sent(value, n, h, v):
    """What a client with one class, one feature and one weight in each part sends."""
    return {
        "encoder": {"encoder.w": torch.tensor([value])},
        "head": {"head.w": torch.tensor([10 * value])},
        "proto": {"mean": torch.tensor([[value]]), "count": torch.tensor([float(n)])},
        "statistics": {"mean": torch.tensor([[h]]), "variance": torch.tensor(v)},
        "size": {"n": torch.tensor(float(n))},
    }


def test_a_round_of_the_server_by_hand():
    """n = 1 and 3: (1·2 + 3·6)/4 = 5, encoder and prototype. Shares ¾, ¼ and ½, ½ of heads 20 and 60: 30 and 40."""
    uploads = {"a": sent(2.0, 1, 0.0, 1.0), "b": sent(6.0, 3, 1.0, 2.0)}
    server = {"encoder": {}, "proto": {"mean": torch.zeros(1, 1), "count": torch.zeros(1)}}
    after = FedPAC().aggregate(server, uploads)
    assert after["encoder"]["encoder.w"].tolist() == [5.0]
    assert after["proto"]["mean"].tolist() == [[5.0]]
    heads = {who: FedPAC().broadcast(after, who)["head"]["head.w"].item() for who in uploads}
    assert heads == pytest.approx({"a": 30.0, "b": 40.0})
    apart = FedPAC(combine=False).aggregate(server, uploads)
    assert {who: FedPAC().broadcast(apart, who)["head"]["head.w"].item() for who in uploads} == {"a": 20.0, "b": 60.0}


def test_who_sits_out_keeps_its_head_and_who_never_came_has_none():
    """The second round is b's and c's: a's head stays as it was, and its statistics are not asked for again."""
    server = {"encoder": {}, "proto": {"mean": torch.zeros(1, 1), "count": torch.zeros(1)}}
    method = FedPAC()
    once = method.aggregate(server, {"a": sent(2.0, 1, 0.0, 1.0), "b": sent(6.0, 3, 1.0, 2.0)})
    twice = method.aggregate(once, {"b": sent(1.0, 1, 0.0, 1.0), "c": sent(3.0, 1, 0.0, 1.0)})
    assert torch.equal(method.broadcast(twice, "a")["head"]["head.w"], method.broadcast(once, "a")["head"]["head.w"])
    assert method.broadcast(twice, "b")["head"]["head.w"].item() == pytest.approx(20.0)
    assert method.broadcast(twice, "c")["head"]["head.w"].item() == pytest.approx(20.0)
    assert method.broadcast(twice, "d").keys() == {"encoder", "proto"}
    assert method.broadcast(once, "c").keys() == {"encoder", "proto"}


def test_a_client_gets_its_own_head_and_no_other():
    engine = run(quick("fedpac"), moment="received")
    heads = within(engine.server, "heads")
    assert heads.keys() == {"head.weight", "head.bias"}
    for who in engine.federation.ids:
        down = engine.method.broadcast(engine.server, who)
        assert down.keys() == {"encoder", "proto", "head"}
        assert torch.equal(engine.personal_parameters(who)["head.weight"], heads["head.weight"][who])
    up = engine.record.ledger[-1]["clients"]["c00"]["up"]
    assert up.keys() == {"encoder", "head", "proto", "statistics", "size", "header"}
    assert up["statistics"] == 4 * (3 * 8 + 1)
    assert up["proto"] == 4 * (3 * 8 + 3)
    assert engine.method.global_model(engine.server) is None


@pytest.mark.parametrize("fields", [{}, {"moment": "received"}, {"participation": 0.5}])
def test_without_alignment_and_mixing_it_is_fedrep_to_the_bit(fields):
    ours = run(quick("fedpac", align=0.0, combine=False, head_epochs=1, head_lr=0.02), **fields)
    theirs = run(quick("fedrep", head_epochs=1, encoder_epochs=2, head_lr=0.02), **fields)
    assert to_bytes({"encoder": ours.server["encoder"]}) == to_bytes({"encoder": theirs.server["encoder"]})
    assert ours.record.scores == theirs.record.scores
    for name, each in within(ours.server, "heads").items():
        assert each
        assert all(torch.equal(head, theirs.states[who]["head"][name]) for who, head in each.items())


def test_without_mixing_it_is_protohar_that_keeps_no_momentum():
    ours = run(quick("fedpac", combine=False))
    fields = {"head_epochs": 1, "encoder_epochs": 2, "head_lr": 0.05, "keep_momentum": False, "clip": None}
    theirs = run(quick("protohar", **fields))
    for group in ("encoder", "proto"):
        assert to_bytes({group: ours.server[group]}) == to_bytes({group: theirs.server[group]})
    assert ours.record.scores == theirs.record.scores


def test_one_client_alone_mixes_nothing():
    federation = blobs(clients=1)
    ours, theirs = (run(quick("fedpac", combine=combine), federation) for combine in (True, False))
    same_bits(ours, theirs)


def test_the_first_round_aligns_nothing_and_later_ones_do():
    for rounds, same in ((1, True), (2, False)):
        ours, theirs = (run(quick("fedpac", align=align), rounds=rounds) for align in (1.0, 0.0))
        weights = [engine.server["encoder"]["encoder.0.weight"] for engine in (ours, theirs)]
        assert torch.equal(*weights) == same


def test_clients_with_the_same_recordings_have_the_mean_of_their_heads():
    """Statistics are the same, so shares are alike, however different minibatches made the heads."""
    method = quick("fedpac")
    federation = twins("a", "b", "c")
    site = Site(federation, method, PLAIN, seed=0)
    uploads = {}
    for who in federation.ids:
        down = method.broadcast(site.first_server, who)
        uploads[who] = method.local_update(site.client(who), {}, down, Work(0, 1, who, 8)).upload
    server = method.aggregate(site.first_server, uploads)
    each = torch.stack([upload["head"]["head.weight"] for upload in uploads.values()])
    assert each.var(0).max() > 0
    for who in federation.ids:
        head = method.broadcast(server, who)["head"]["head.weight"]
        torch.testing.assert_close(head, each.mean(0), rtol=1e-4, atol=1e-5)


def test_clients_who_name_classes_otherwise_do_not_share_heads():
    """Half of the clients have other numbers for the same classes: mixing stays within each half."""
    federation = blobs(clients=6, train=60)
    turned = [
        client.change(lambda _, s: dataclasses.replace(s, y=(s.y + 1) % 3)) if i % 2 else client
        for i, client in enumerate(federation.clients)
    ]
    method = quick("fedpac")
    site = Site(federation.with_clients(turned), method, PLAIN, seed=0)
    found = [feature_statistics(site.client(who), site.client(who).initial) for who in site.federation.ids]
    alpha = method.shares(torch.stack([f["mean"] for f in found]), torch.stack([f["variance"] for f in found]))
    across = torch.tensor([[(i + j) % 2 for j in range(6)] for i in range(6)]).bool()
    assert alpha[across].sum() < 0.2 * alpha[~across].sum()


def test_finishing_and_joining_train_the_head_alone(tmp_path):
    federation = blobs(clients=5)
    some = federation.with_clients(federation.clients[:4])
    engine = run(quick("fedpac"), some, tmp_path, ModelSpec(("flic-mlp",)), finish=True)
    newcomer = join(tmp_path, federation.with_clients(federation.clients[4:])).models["c04"]
    for model in (newcomer, engine.personal_parameters("c00")):
        for name, tensor in engine.server["encoder"].items():
            assert torch.equal(model[name], tensor), name
        assert not torch.equal(model["head.weight"], engine.site.client("c00").initial["head.weight"])
    own = engine.method.broadcast(engine.server, "c00")["head"]["head.weight"]
    assert not torch.equal(engine.personal_parameters("c00")["head.weight"], own)


def test_what_does_not_suit_is_refused():
    one, two = blobs(clients=1), blobs(clients=1, shape=(3, 6))
    mixed = Federation("mixed", one.task, (*one.clients, dataclasses.replace(two.clients[0], id="watch")))
    with pytest.raises(UserError, match=r"fedpac shares 'encoder.1.weight', but client 'c00'.*'watch'"):
        Site(mixed, FedPAC(), PLAIN, seed=0)
    values = {"a": {s: (np.zeros((4, 2, 6), "f"), np.linspace(0, 1, 4)) for s in ("train", "test")}}
    with pytest.raises(UserError, match="fedpac works with classes"):
        Site(Federation.from_arrays(values, ["speed"], kind="regression"), FedPAC(), PLAIN, seed=0)
    for field in ("align", "head_epochs", "head_lr"):
        with pytest.raises(UserError, match=f"{field} is -1; it cannot be negative"):
            FedPAC(**{field: -1})
