"""FedCLAR: groups by hand and by scipy, and found again; what it is before, with one group, and with one for each."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from conftest import blobs, plain_net, quick, run, same_bits
from fedsense.bundle import payload
from fedsense.errors import UserError
from fedsense.methods import FedCLAR
from fedsense.models.spec import ModelSpec
from fedsense.ops import cosine_distances, groups
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)
ODD = ("c01", "c03", "c05")


def two_kinds(clients=6, **options):
    """Half of the clients have the classes the other way round."""
    federation = blobs(clients=clients, train=40, **options)
    return federation.with_clients(
        c.change(lambda _, s: type(s)(s.x, 2 - s.y)) if c.id in ODD else c for c in federation
    )


def mean_accuracy(engine):
    scores = engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"].values()
    return sum(scores) / len(scores)


def test_distances_are_scipys():
    rows = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(cosine_distances(rows), cdist(rows, rows, "cosine"), atol=1e-7)
    rows[2] = 0
    assert cosine_distances(rows)[2].tolist() == [1, 1, 0, 1, 1]


def test_groups_by_hand():
    """0 and 2 are 0.1 apart, 1 and 3 0.3; the pairs are (0.8 + 0.9 + 1.0 + 0.7) / 4 = 0.85 apart on average."""
    away = np.zeros((4, 4))
    for (i, j), d in {(0, 2): 0.1, (1, 3): 0.3, (0, 1): 0.8, (0, 3): 0.9, (2, 1): 1.0, (2, 3): 0.7}.items():
        away[i, j] = away[j, i] = d
    expected = {0.05: [0, 1, 2, 3], 0.2: [0, 1, 0, 2], 0.8: [0, 1, 0, 1], 0.84: [0, 1, 0, 1], 0.86: [0, 0, 0, 0]}
    for threshold, numbers in expected.items():
        assert groups(away, threshold) == numbers, threshold
    assert groups(away, 0.0, most=2) == [0, 1, 0, 1]
    assert groups(away[:1, :1], 0.0) == [0]


@pytest.mark.parametrize("fields", [{"warm_up": 3}, {"warm_up": 2, "clusters": 1, "personal_heads": False}])
def test_before_there_are_groups_and_with_a_single_one_it_is_fedavg(fields):
    ours, theirs = run(quick("fedclar", **fields), participation=0.7), run(quick("fedavg"), participation=0.7)
    model = theirs.server["model"]
    if fields["warm_up"] == 2:
        assert all(torch.equal(t, model[name]) for name, t in ours.server["model-0"].items())
    for mine, other in zip(ours.record.scores, theirs.record.scores, strict=True):
        assert mine["scores"] == {view: other["scores"][view] for view in ("personal", "generalisation")}
    assert payload(ours.method.broadcast(ours.site.first_server, "c00")) == payload({"model": model})


def test_where_everyone_is_a_group_everyone_trains_alone():
    """After one round of FedAvg a client goes on with what it uploaded, and nothing but its own data."""
    method = quick("fedclar", warm_up=1, threshold=0.0)
    others = blobs().with_clients([blobs()["c02"], *blobs(seed=5).clients[:2]])
    a, b = (run(method, federation, executor="serial") for federation in (blobs(), others))
    assert len(a.record.observations[-1]["groups"]) == 4
    mine, same = (engine.personal_parameters("c02") for engine in (a, b))
    assert all(torch.equal(t, same[name]) for name, t in mine.items())


@pytest.mark.parametrize("by", ["cosine", "performance"])
@pytest.mark.parametrize("fields", [{}, {"layers": "all", "clusters": 2}])
def test_groups_that_differ_are_found(by, fields):
    method = quick("fedclar", warm_up=1, by=by, **fields)
    engine = run(method, two_kinds(), rounds=4, model=PLAIN)
    found = engine.record.observations[-1]["groups"]
    assert sorted(found.values()) == [["c00", "c02", "c04"], list(ODD)]
    assert engine.record.observations[0]["round"] == 1


def test_groups_do_better_than_one_model_and_than_nobody():
    """Heads shared within the group: with received models each has learned from three clients."""
    fields = {"warm_up": 1, "personal_heads": False}
    ours = run(quick("fedclar", **fields), two_kinds(), rounds=5, model=PLAIN, moment="received")
    theirs = run(quick("fedavg"), two_kinds(), rounds=5, model=PLAIN, moment="received")
    assert mean_accuracy(ours) > mean_accuracy(theirs) + 0.15


def test_a_groups_model_is_the_mean_of_its_members_by_samples():
    method = FedCLAR(warm_up=1, clusters=2)

    def sent(encoder, head, n):
        model = {"encoder.w": torch.tensor([encoder]), "head.w": torch.tensor(head)}
        return {"model": model, "size": {"n": torch.tensor(float(n))}}

    start = {"encoder.w": torch.zeros(1), "head.w": torch.zeros(2)}
    server = {"model": start, "rounds": {"done": torch.tensor(0)}, "compared": {"head.w": torch.zeros(())}}
    uploads = {"a": sent(2.0, [1.0, 0.0], 1), "b": sent(9.0, [0.0, 1.0], 5), "c": sent(6.0, [2.0, 0.1], 3)}
    after = method.aggregate(server, uploads)
    assert method.observe(after) == {"groups": {"0": ["a", "c"], "1": ["b"]}}
    assert after["model-0"]["encoder.w"].item() == 5.0  # (1·2 + 3·6) / 4
    assert after["model-0"]["head.w"].tolist() == pytest.approx([1.75, 0.075])
    assert method.broadcast(after, "b") == {"encoder": {"encoder.w": torch.tensor([9.0])}}
    assert set(method.broadcast(after, "stranger")) == {"group-0", "group-1"}
    assert "model" not in after
    assert "update" not in after
    encoder = {"model": {"encoder.w": torch.tensor([1.0])}, "size": {"n": torch.tensor(1.0)}}
    later = method.aggregate(after, {"c": encoder, "stranger": encoder | {"chosen": {"number": torch.tensor(1)}}})
    assert later["model-0"]["encoder.w"].item() == 1.0
    assert later["model-1"]["encoder.w"].item() == 1.0  # of b, who sat out, nothing is left, as in FedAvg
    assert method.observe(later) == {"groups": {"0": ["a", "c"], "1": ["b", "stranger"]}}
    assert later["model-0"]["head.w"] is after["model-0"]["head.w"]


def test_of_a_client_that_sat_out_the_last_update_counts():
    method = quick("fedclar", warm_up=3)
    engine = run(method, blobs(clients=8), rounds=3, participation=0.4)
    trained = {client for line in engine.record.ledger for client in line["clients"]}
    last = set(engine.record.ledger[-1]["clients"])
    assert last < trained < set(engine.federation.ids)
    members = [client for group in engine.record.observations[-1]["groups"].values() for client in group]
    assert sorted(members) == sorted(trained)


@pytest.mark.parametrize("by", ["cosine", "performance"])
def test_who_comes_late_goes_where_its_loss_is_least(by):
    federation = two_kinds()
    federation = federation.with_clients([c for c in federation if c.id < "c04"], newcomers=federation.clients[4:])
    method = quick("fedclar", warm_up=1, by=by)
    engine = run(method, federation, rounds=4, model=PLAIN, views=("personal", "new-client"))
    assert len(engine.record.observations[-1]["groups"]) == 2
    for newcomer, like in (("c04", "c00"), ("c05", "c01")):
        down = method.broadcast(engine.server, newcomer)
        chosen = method._start(engine.site.client(newcomer), {}, down)[1]["number"]
        assert int(chosen) == int(engine.server["group"][like])
    new = engine.record.scores[-1]["scores"]["new-client"]["test"]["accuracy"]
    assert min(new.values()) > 0.6


def test_by_performance_a_client_in_the_wrong_group_goes_to_the_right_one():
    """One whose head has not settled with the wrong group's encoder; by cosine it stays where it was put."""
    federation, moved = two_kinds(), {}
    for by in ("cosine", "performance"):
        method = quick("fedclar", warm_up=1, by=by, personal_heads=False)
        engine = run(method, federation, rounds=3, model=PLAIN)
        right = engine.server["group"]
        wrong = engine.server | {"group": right | {"c00": 1 - right["c00"]}}
        client, down = engine.site.client("c00"), method.broadcast(wrong, "c00")
        reply = method.local_update(client, {}, down, Work(0, 4, "c00", 8))
        after = method.aggregate(wrong, {"c00": reply.upload})["group"]
        moved[by] = int(after["c00"]) == int(right["c00"])
    assert moved == {"cosine": False, "performance": True}


def test_heads_are_ones_own_once_there_are_groups():
    engine = run(quick("fedclar", clusters=1, warm_up=1), moment="received")
    a, b = (engine.personal_parameters(c) for c in ("c00", "c01"))
    assert not torch.equal(a["head.weight"], b["head.weight"])
    assert torch.equal(a["encoder.0.weight"], b["encoder.0.weight"])
    up = [line["clients"]["c00"]["up"]["model"] for line in engine.record.ledger]
    head = 4 * (3 * 8 + 3)
    assert up == [up[0], up[0] - head, up[0] - head]
    assert engine.method.global_model(engine.server) is None


def test_finishing_tunes_the_head_alone():
    engine = run(quick("fedclar", warm_up=1, clusters=2), finish=True)
    own, group = engine.personal_parameters("c00"), engine.server[f"model-{int(engine.server['group']['c00'])}"]
    assert all(torch.equal(own[name], t) != name.startswith("head.") for name, t in group.items())


def test_performance_resumes_to_the_bit(tmp_path):
    method, settings = quick("fedclar", warm_up=1, by="performance", clusters=2), {"rounds": 4, "participation": 0.5}
    whole = run(method, **settings)
    run(method, **{**settings, "rounds": 2}, folder=tmp_path)
    same_bits(whole, run(method, **settings, folder=tmp_path))


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="warm_up is 0; it must be at least 1"):
        FedCLAR(warm_up=0)
    with pytest.raises(UserError, match="clusters is 5, but only 4 clients train"):
        run(quick("fedclar", clusters=5))
