"""FedAPA: its equations by hand and by literal loops, its variants, partial participation, and what it sends."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine

from conftest import NET, blobs, plain_net, quick, run, same_bits
from fedsense.bundle import to_bytes
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import Settings
from fedsense.engine.site import Call, Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import METHODS, FedAPA
from fedsense.models import MODELS
from fedsense.models.spec import ModelSpec
from fedsense.work import Work, stream

FOUR = ("a", "b", "c", "d")


def uploads(mean, count):
    """What clients send: the prototypes of the classes they hold, and counts."""
    return {
        who: {"proto": {"mean": torch.from_numpy(mean[i][count[i] > 0]).float(), "count": torch.tensor(count[i])}}
        for i, who in enumerate(FOUR[: len(mean)])
    }


def shares_in(method, server):
    return method.shares(server["table"]["mean"], server["table"]["count"] > 0)


@pytest.fixture
def table():
    """Three clients, four classes: class 3 at nobody, class 2 at the last one only."""
    mean = np.random.default_rng(0).normal(size=(3, 4, 5))
    return mean, np.array([[3.0, 1, 0, 0], [2, 2, 0, 0], [5, 0, 4, 0]], dtype=np.float32)


def test_eq11_by_hand():
    """Half a cosine over 50 rounds: 0 before, ½ at 25, (1 − cos 18°)/2 at 5, and 1 from 50 on."""
    warm = FedAPA()
    assert [warm.strength(t) for t in (0, 25, 50, 99)] == pytest.approx([0.0, 0.5, 1.0, 1.0])
    assert warm.strength(5) == pytest.approx((1 - math.cos(math.radians(18))) / 2)
    assert warm.strength(1) == pytest.approx(0.001, abs=1e-4)
    assert FedAPA(align=2.0, align_start=1.0, warm_up=10).strength(5) == pytest.approx(1.5)
    assert [FedAPA(align=0.3, warm_up=0).strength(t) for t in (1, 9)] == [0.3, 0.3]


@pytest.mark.parametrize("aggregation", ["similarity", "average"])
@pytest.mark.parametrize("padding", ["uniform", "samples"])
def test_eq5_to_8_against_a_literal_loop(table, aggregation, padding):
    mean, count = table
    tau, has = 0.3, count > 0
    method = FedAPA(temperature=tau, aggregation=aggregation, padding=padding)
    server = method.aggregate({}, uploads(mean, count))
    share = shares_in(method, server)
    for i in range(3):
        for c in range(4):
            holders = [j for j in range(3) if has[j, c]]
            if has[i, c]:
                score = [math.exp((1 - cosine(mean[i, c], mean[j, c])) / tau) for j in holders]
                score = score if aggregation == "similarity" else [1.0] * len(holders)
                expected = sum(s * mean[j, c] for s, j in zip(score, holders, strict=True)) / sum(score)
                own = mean[i, c]
                shares = np.zeros(3)
                shares[holders] = np.array(score) / sum(score)
                np.testing.assert_allclose(share[i, :, c], shares, rtol=1e-5, atol=1e-7)
            else:
                weight = [count[j, c] if padding == "samples" else 1.0 for j in holders]
                total = sum(w * mean[j, c] for w, j in zip(weight, holders, strict=True))
                own = expected = total / sum(weight) if holders else np.zeros(5)
            np.testing.assert_allclose(server["personal"]["mean"][i, c], expected, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(server["padded"]["mean"][i, c], own, rtol=1e-4, atol=1e-6)
    down = FedAPA().broadcast(server, "b")
    assert down["known"]["classes"].tolist() == [True, True, True, False]
    assert torch.equal(down["personal"]["mean"], server["personal"]["mean"][1])
    assert down["peers"]["mean"].shape == (3, 4, 5)


def test_eq6_by_hand():
    """Prototypes (1,0), (2,0) and (0,1), τ = ½: client a gives e², e², e⁰, shares 0.468, 0.468, 0.063."""
    mean = np.array([[[1.0, 0.0]], [[2.0, 0.0]], [[0.0, 1.0]]])
    share = shares_in(FedAPA(), FedAPA().aggregate({}, uploads(mean, np.ones((3, 1), np.float32))))
    e2 = math.exp(2)
    assert share[0, :, 0].tolist() == pytest.approx([e2 / (2 * e2 + 1), e2 / (2 * e2 + 1), 1 / (2 * e2 + 1)])
    assert share[2, :, 0].tolist() == pytest.approx([1 / (e2 + 2), 1 / (e2 + 2), e2 / (e2 + 2)])


def test_eq7_may_average_directions():
    """(2,0) and (0,4), alike: raw (1, 2); of length 1 first (½, ½)."""
    mean = np.array([[[2.0, 0.0]], [[0.0, 4.0]]])
    for normalise, expected in ((False, [1.0, 2.0]), (True, [0.5, 0.5])):
        method = FedAPA(aggregation="average", normalise=normalise)
        personal = method.aggregate({}, uploads(mean, np.ones((2, 1), np.float32)))["personal"]["mean"]
        assert personal[0, 0].tolist() == pytest.approx(expected)


def test_eq12_is_cross_entropy_plus_both_contrasts():
    """One gradient step on one full batch, against Eq. 9, 10 and 12 written out with plain PyTorch."""
    federation = blobs(clients=3)
    method = FedAPA(batch=64, epochs=1, lr=0.1, momentum=0.0, warm_up=0, align=0.7, temperature=0.4)
    site = Site(federation, method, ModelSpec.of(plain_net), seed=0)
    client = site.client("c00")
    rng = torch.Generator().manual_seed(3)
    personal, peers = torch.randn(3, 8, generator=rng), torch.randn(3, 3, 8, generator=rng)
    down = {"personal": {"mean": personal}, "peers": {"mean": peers}, "known": {"classes": torch.tensor([True] * 3)}}
    reply = method.local_update(client, {"model": client.initial}, down, Work(0, 5, "c00", 64))
    net = plain_net((2, 6), 3)
    net.load_state_dict(client.initial)
    out = net(client.train.x)

    def contrast(prototypes):
        cosines = torch.nn.functional.cosine_similarity(out.features[:, None], prototypes[None], dim=2)
        return torch.nn.functional.cross_entropy(cosines / 0.4, client.train.y)

    others = torch.stack([contrast(p) for p in peers]).mean()  # Eq. 10: over all N, own prototypes included
    loss = torch.nn.functional.cross_entropy(out.logits, client.train.y) + 0.7 * (contrast(personal) + others)
    loss.backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(reply.state["model"][name], p.detach() - 0.1 * p.grad)
    assert reply.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_without_alignment_everyone_learns_alone():
    alone, apart = run(quick("local")), run(quick("fedapa", align=0.0))
    for client in alone.states:
        assert to_bytes(alone.states[client]) == to_bytes(apart.states[client])
    one, other = run(quick("local"), rounds=1), run(quick("fedapa", warm_up=0), rounds=1)
    assert to_bytes(one.states["c00"]) == to_bytes(other.states["c00"]), (
        "there is nothing to contrast with in round one"
    )
    assert to_bytes(alone.states["c00"]) != to_bytes(run(quick("fedapa", warm_up=0)).states["c00"])


def test_only_prototypes_and_counts_go_up_and_only_of_the_classes_held():
    narrow = blobs().change(lambda c: c.change(lambda _, s: s.take(s.y != 2)) if c.id == "c01" else c)
    engine = run(quick("fedapa"), narrow, rounds=2)
    for line in engine.record.ledger:
        for who, entry in line["clients"].items():
            classes = 2 if who == "c01" else 3
            assert set(entry["up"]) == {"proto", "header"}
            assert entry["up"]["proto"] == 4 * (classes * 8 + 3)
    first, second = (line["clients"]["c00"]["down"] for line in engine.record.ledger)
    assert first == {}
    assert (second["personal"], second["peers"], second["known"]) == (4 * 3 * 8, 4 * 4 * 3 * 8, 3)
    lean = run(quick("fedapa", peers=False), narrow, rounds=2).record.ledger[1]["clients"]["c00"]["down"]
    assert set(lean) == {"personal", "known", "header"}


def test_table_v_the_ledger_shows_the_reduction_on_the_large_network():
    """Six clients, 21 classes, 256 features: (6 + 1)·21·256·4 B = 150,528 B down (the paper's 150.53 KB), 21·256·4 up.

    FedAvg moves 463,748 parameters (464,005 with 21 outputs) and the statistics of BatchNorm both ways.
    """
    rng = stream("table-v")
    clients = {
        f"room{i}": {"train": (rng.normal(size=(42, 1, 16, 16)).astype("f"), np.arange(42) % 21)} for i in range(6)
    }
    federation = Federation.from_arrays(clients, classes=21, kind="counting")
    cost = {}
    for name in ("fedavg", "fedapa"):
        method = METHODS[name](epochs=1, batch=42)
        engine = run(method, federation, model=ModelSpec.of("convnet4-large"), rounds=2, views=("global",))
        cost[name] = engine.record.ledger[1]["clients"]["room0"]
    down, up = cost["fedapa"]["down"], cost["fedapa"]["up"]
    assert down["personal"] + down["peers"] == 150_528
    assert up["proto"] == 21 * 256 * 4 + 21 * 4
    statistics = 4 * 2 * (16 + 32 + 64 + 128 + 256)
    assert cost["fedavg"]["up"]["model"] == 4 * (463_748 + 257) + statistics
    total = {name: {way: sum(entry[way].values()) for way in ("down", "up")} for name, entry in cost.items()}
    saved = {way: 1 - total["fedapa"][way] / total["fedavg"][way] for way in ("down", "up")}
    assert saved["down"] == pytest.approx(0.919, abs=0.001)
    assert saved["up"] == pytest.approx(0.988, abs=0.001)
    both = 1 - sum(total["fedapa"].values()) / sum(total["fedavg"].values())
    assert both == pytest.approx(0.954, abs=0.001)
    assert 1 - 150_528 / sum(total["fedavg"].values()) == pytest.approx(0.96, abs=0.001), "as the paper counts"
    assert MODELS["convnet4-large"].paper_parameters == 463_748


def images(clients=3):
    rng = stream("images")
    centre = rng.normal(size=(4, 1, 8, 8))
    made = {}
    for i in range(clients):
        y = np.arange(16) % 4
        made[f"r{i}"] = {s: ((centre[y] + rng.normal(0, 0.3, (16, 1, 8, 8))).astype("f"), y) for s in ("train", "test")}
    return Federation.from_arrays(made, classes=4)


def test_different_architectures_learn_side_by_side():
    sizes = ModelSpec.of(["convnet4-tiny", "convnet4-middle", "convnet4-large"])
    method = FedAPA(epochs=2, batch=8, lr=0.02, warm_up=2)
    engine = run(method, images(), model=sizes, rounds=8)
    assert [engine.site.task.members[c].architecture for c in sorted(engine.states)] == list(sizes.names)
    assert len({len(to_bytes(state)) for state in engine.states.values()}) == 3
    assert engine.server["personal"]["mean"].shape == (3, 4, 256)
    scores = engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]
    assert min(scores.values()) > 0.5, scores
    with pytest.raises(UserError, match=r"fedavg shares .* for clients that differ: .* fedapa, local \(docs"):
        run(METHODS["fedavg"](), images(), model=sizes)


def test_fedavg_among_clients_with_the_same_network():
    """Six clients, three networks: two and two and two are averaged, and with one network it is plain FedAvg."""
    sizes = ModelSpec.of(["convnet4-tiny", "convnet4-middle", "convnet4-large"])
    method = METHODS["fedavg"](epochs=1, batch=8, by_architecture=True)
    engine = run(method, images(6), model=sizes, rounds=2, moment="received", participation=0.5)
    assert engine.method.global_model(engine.server) is None
    taken = {c for line in engine.record.ledger for c in line["clients"]}
    heard = {int(engine.server["architecture"][c]) for c in taken}
    assert {name for name in engine.server if name.startswith("model-")} == {f"model-{kind}" for kind in heard}
    whole = run(method, images(6), model=sizes, rounds=1, moment="received")
    for first, second, other in (("r0", "r3", "r1"), ("r1", "r4", "r2"), ("r2", "r5", "r0")):
        a, b, c = (to_bytes({"m": whole.personal_parameters(who)}) for who in (first, second, other))
        assert a == b != c
    ours, theirs = (run(quick("fedavg", by_architecture=apart)) for apart in (True, False))
    assert to_bytes({"m": ours.server["model-0"]}) == to_bytes({"m": theirs.server["model"]})
    assert ours.record.scores[-1]["scores"]["personal"] == theirs.record.scores[-1]["scores"]["personal"]


def test_feature_spaces_of_different_width_are_refused():
    narrow = run(quick("fedapa"), rounds=1)
    member = narrow.site.task.members
    wide = replace(narrow.site.task, members={**member, "c01": replace(member["c01"], features=9)})
    with pytest.raises(
        UserError, match=r"'c00' \(small_net\) has 8 features and client 'c01' \(small_net\) 9; .*width"
    ):
        FedAPA().requires(wide)


@pytest.mark.parametrize("width", [128, 512])
def test_feature_widths(width):
    sizes = ModelSpec(("convnet4-middle",), {"width": width})
    engine = run(FedAPA(epochs=1, batch=8), images(), model=sizes, rounds=2)
    assert engine.server["table"]["mean"].shape == (3, 4, width)


def test_absent_clients_stay_in_the_table_and_grow_older():
    mean, count = np.ones((3, 2, 4)), np.ones((3, 2), np.float32)
    method = FedAPA()
    everyone = uploads(mean, count)
    server = method.aggregate({}, {"c": everyone["c"]})
    server = method.aggregate(server, {"a": everyone["a"], "c": everyone["c"]})
    server = method.aggregate(server, {"b": everyone["b"]})
    assert list(server["row"]) == ["a", "b", "c"]
    assert server["table"]["age"].tolist() == [1, 0, 1]
    assert method.observe(server)["ages"] == {"a": 1, "b": 0, "c": 1}
    assert torch.equal(server["table"]["mean"], torch.ones(3, 2, 4))
    server = method.aggregate(server, {"b": everyone["b"]})
    assert server["table"]["age"].tolist() == [2, 0, 2]


def test_a_client_not_heard_of_yet_gets_the_average(table):
    mean, count = table
    server = FedAPA().aggregate({}, uploads(mean, count))
    assert torch.equal(FedAPA().broadcast(server, "newcomer")["personal"]["mean"], server["padding"]["mean"])


def test_who_learns_from_whom_is_recorded(tmp_path):
    narrow = blobs().change(lambda c: c.change(lambda _, s: s.take(s.y != 2)) if c.id == "c01" else c)
    engine = run(quick("fedapa"), narrow, folder=tmp_path, rounds=4, every=2)
    lines = [json.loads(line) for line in (tmp_path / "observations.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 4]
    assert lines == engine.record.observations
    graph = lines[-1]["collaboration"]
    assert set(graph) == {"0", "1", "2"}
    assert set(graph["2"]) == {"c00", "c02", "c03"}, "who does not hold a class has no peers in it"
    assert all("c01" not in peers for peers in graph["2"].values())
    for peers in (peers for of_class in graph.values() for peers in of_class.values()):
        assert sum(peers.values()) == pytest.approx(1, abs=1e-3)
    for i, who in enumerate(sorted(engine.server["row"])):
        assert graph["0"][who]["c02"] == pytest.approx(
            float(shares_in(engine.method, engine.server)[i, 2, 0]), abs=1e-5
        )


def test_of_many_peers_the_strongest_are_recorded():
    many = 30
    mean = np.random.default_rng(0).normal(size=(many, 1, 4))
    sent = {
        f"c{i:02}": {"proto": {"mean": torch.from_numpy(mean[i]).float(), "count": torch.ones(1)}} for i in range(many)
    }
    method = FedAPA(temperature=0.1)
    server = method.aggregate({}, sent)
    shown = method.observe(server)["collaboration"]["0"]["c00"]
    assert len(shown) == 20
    strongest = shares_in(method, server)[0, :, 0].topk(20).values
    assert sorted(shown.values(), reverse=True) == pytest.approx(strongest.tolist(), abs=1e-5)


def slow_and_fast():
    """Two of six devices are eight times as slow; the trait says so."""
    federation = blobs(clients=6)
    speeds = [1.0, 1.0, 1.0, 1.0, 0.125, 0.125]
    return federation.with_clients(replace(c, traits={"speed": s}) for c, s in zip(federation, speeds, strict=True))


def test_a_diverse_choice_spares_slow_devices_and_leaves_nobody_out():
    rounds = 60
    method = quick("fedapa", selection="diverse", epochs=1)
    engine = run(method, slow_and_fast(), rounds=rounds, participation=0.34, every=rounds)
    turns = {c: sum(c in line["clients"] for line in engine.record.ledger) for c in engine.trainees}
    assert sum(turns.values()) == 3 * rounds
    assert max(turns["c04"], turns["c05"]) < min(turns[c] for c in ("c00", "c01", "c02", "c03"))
    assert min(turns.values()) >= 3
    assert engine.site.task.members["c05"].speed == 0.125


def test_a_diverse_choice_resumes_and_spreads_to_the_bit(tmp_path):
    fields = {"selection": "diverse", "epochs": 1}
    whole = run(quick("fedapa", **fields), slow_and_fast(), rounds=6, participation=0.5)
    same_bits(whole, run(quick("fedapa", **fields), slow_and_fast(), rounds=6, participation=0.5, workers=2))
    run(quick("fedapa", **fields), slow_and_fast(), rounds=3, participation=0.5, folder=tmp_path)
    same_bits(whole, run(quick("fedapa", **fields), slow_and_fast(), rounds=6, participation=0.5, folder=tmp_path))
    random = run(quick("fedapa", epochs=1), slow_and_fast(), rounds=6, participation=0.5)
    assert [set(line["clients"]) for line in random.record.ledger] != [set(ln["clients"]) for ln in whole.record.ledger]


def test_loads_are_samples_times_operations_over_speed():
    engine = Engine(slow_and_fast(), FedAPA(selection="diverse"), NET, Settings(workers=1))
    load = {c: float(t) for c, t in engine.server["load"].items()}
    operations = 2 * (12 * 8 + 8 * 8 + 8 * 3)  # a multiplication and an addition a weight
    assert load["c00"] == 24 * operations
    assert load["c05"] == 29 * operations / 0.125


@pytest.mark.parametrize("speed", [0, -1, "fast", True, float("nan")])
def test_a_speed_that_is_none_is_refused(speed):
    one = blobs(clients=2)
    odd = one.with_clients([replace(one.clients[0], traits={"speed": speed}), one.clients[1]])
    with pytest.raises(UserError, match=r"client 'c00': its trait speed is .*; give a positive number"):
        Engine(odd, FedAPA(), NET, Settings(workers=1))


def test_samples_of_a_class_nobody_is_known_to_hold_are_not_contrasted():
    """A first-time client brings a class that is not in the table yet; nothing becomes infinite."""
    federation = blobs(clients=2)
    first, second = federation.clients
    first = first.change(lambda _, s: s.take(s.y != 2))
    federation = federation.with_clients([first, second])
    method = quick("fedapa", warm_up=0)
    site = Site(federation, method, NET, seed=0)
    call = Call("update", ("c00",), 1, {"down": {}})
    server = method.aggregate({}, {"c00": site.handle(call).bundles["upload"]})
    answer = site.handle(Call("update", ("c01",), 2, {"down": method.broadcast(server, "c01")}))
    assert math.isfinite(answer.data["metrics"]["loss"])


def test_the_diverse_choice_looks_at_prototypes_and_ages():
    """Clients a and b have the same prototypes, c others: who has a does not take b. An old client comes first."""
    mean = np.array([[[1.0, 0.0]], [[2.0, 0.0]], [[0.0, 1.0]]])
    method = FedAPA(selection="diverse")
    server = method.aggregate({}, uploads(mean, np.ones((3, 1), np.float32)))
    server |= {"load": {c: torch.tensor(1.0) for c in "abc"}, "rounds": {"done": torch.tensor(1)}}
    for i in range(30):
        chosen = method.choose(server, list("abc"), 2, stream("choice", i))
        assert "c" in chosen
        assert len(chosen) == 2
    server["table"]["age"] = torch.tensor([0, 0, 10**6])
    assert all(method.choose(server, list("abc"), 1, stream("old", i)) == ["c"] for i in range(30))
    server["rounds"]["done"] = torch.tensor(10**9)  # d was never heard of in a long time
    server["load"]["d"] = torch.tensor(1.0)
    assert all(method.choose(server, list("abcd"), 1, stream("new", i)) == ["d"] for i in range(30))
