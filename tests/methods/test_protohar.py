"""ProtoHAR against a plain PyTorch transcription of Algorithm 1, and its variants against what they reduce to."""

import math

import pytest
import torch
from torch.nn import functional as F

from conftest import blobs, plain_net, quick, run, same_bits
from fedsense.bundle import part
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import ProtoHAR
from fedsense.models.spec import ModelSpec
from fedsense.work import Work

PLAIN = ModelSpec.of(plain_net)


def first_client(method, federation=None):
    site = Site(federation or blobs(), method, PLAIN, seed=0)
    client = site.client("c00")
    down = method.broadcast(site.first_server, "c00")
    return client, down, method.init_client(client, client.initial, down, Work(0, 0, "c00", method.batch))


@pytest.mark.parametrize(("epochs", "phases"), [(10, (3, 7)), (5, (2, 3)), (2, (1, 1)), (1, (1, 1))])
def test_epochs_are_divided_three_to_seven(epochs, phases):
    assert ProtoHAR(epochs=epochs).phases == phases


def test_phases_may_be_said_one_by_one():
    assert ProtoHAR(head_epochs=1, encoder_epochs=9).phases == (1, 9)
    assert ProtoHAR(epochs=10, head_epochs=1).phases == (1, 9)
    with pytest.raises(UserError, match="head_epochs is -1; it cannot be negative"):
        ProtoHAR(head_epochs=-1)


def test_two_phases_and_two_rounds_are_those_of_plain_pytorch():
    """Head by Eq. 9 with its own rate, then encoder by Eq. 10, momentum kept: torch's own modules and optimisers."""
    method = ProtoHAR(epochs=3, head_epochs=1, batch=8, lr=0.05, head_lr=0.2, align=2.0, clip=None)
    client, down, state = first_client(method)
    target = {"mean": torch.randn(3, 8, generator=torch.Generator().manual_seed(1)), "count": torch.tensor([1.0, 2, 0])}
    net = plain_net((2, 6), 3)
    net.load_state_dict(client.initial)
    head = torch.optim.SGD(net.head.parameters(), lr=0.2, momentum=0.9)
    body = torch.optim.SGD(net.encoder.parameters(), lr=0.05, momentum=0.9)
    for round in (1, 2):
        work = Work(0, round, "c00", 8)
        net.encoder.load_state_dict({n.removeprefix("encoder."): t for n, t in down["encoder"].items()})
        for optimiser, epochs in ((head, work.epochs(1, "head")), (body, work.epochs(2, "encoder"))):
            for step in epochs.steps(client.samples):
                x, y = client.train.x[step.samples], client.train.y[step.samples]
                out = net(x)
                loss = F.cross_entropy(out.logits, y)
                if optimiser is body:
                    aligned = y != 2  # class 2 has no prototype
                    gap = ((out.features - target["mean"][y]) ** 2).mean(1)
                    loss = loss + 2.0 * (gap * aligned).sum() / len(y)
                optimiser.zero_grad()
                net.zero_grad()
                loss.backward()
                optimiser.step()
        reply = method.local_update(client, state, down | {"proto": target}, work)
        state = reply.state
        for name, tensor in net.state_dict().items():
            torch.testing.assert_close(reply.model[name], tensor, msg=f"round {round}, {name}")


def test_momentum_is_kept_across_rounds_or_not():
    kept, fresh = (run(quick("protohar", keep_momentum=keep), rounds=1) for keep in (True, False))
    assert {"of-head.1.momentum", "of-encoder.1.momentum"} < set(kept.states["c00"])
    assert set(fresh.states["c00"]) == {"head"}
    assert torch.equal(kept.server["encoder"]["encoder.0.weight"], fresh.server["encoder"]["encoder.0.weight"])
    kept, fresh = (run(quick("protohar", keep_momentum=keep), rounds=2) for keep in (True, False))
    assert not torch.equal(kept.server["encoder"]["encoder.0.weight"], fresh.server["encoder"]["encoder.0.weight"])


@pytest.mark.parametrize(("fields", "stays"), [({"encoder_epochs": 0}, "encoder"), ({"head_epochs": 0}, "head")])
def test_a_phase_trains_its_own_part_only(fields, stays):
    method = ProtoHAR(batch=8, epochs=2, **fields)
    client, down, state = first_client(method)
    model = method.local_update(client, state, down, Work(0, 1, "c00", 8)).model
    for name, before in client.initial.items():
        assert torch.equal(model[name], before) == name.startswith(stays), name


def test_without_heads_of_ones_own_and_alignment_it_is_fedavg():
    plain = {"personal_heads": False, "align": 0.0, "keep_momentum": False, "clip": None}
    ours, theirs = run(quick("protohar", **plain)), run(quick("fedavg"))
    assert all(torch.equal(t, theirs.server["model"][n]) for n, t in ours.server["model"].items())
    assert ours.record.scores == theirs.record.scores
    assert ours.method.global_model(ours.server) is not None


def test_heads_stay_at_home_and_encoders_are_one():
    engine = run(quick("protohar"), moment="received")
    a, b = (engine.personal_parameters(c) for c in ("c00", "c01"))
    assert not torch.equal(a["head.weight"], b["head.weight"])
    assert torch.equal(a["encoder.0.weight"], b["encoder.0.weight"])
    assert not any(name.startswith("head") for name in engine.server["encoder"])
    assert engine.method.global_model(engine.server) is None


def drop_class(federation: Federation, clients: list[str], label: int) -> Federation:
    keep = [c.change(lambda _, s: s.take(s.y != label)) if c.id in clients else c for c in federation]
    return federation.with_clients(keep)


def test_a_class_nobody_trained_keeps_its_last_prototype_unless_forgotten():
    federation = blobs(clients=2)
    federation = drop_class(federation, ["c01"], 2)
    method = quick("protohar")
    site = Site(federation, method, PLAIN, seed=0)
    reply = {}
    for who in ("c00", "c01"):
        client = site.client(who)
        down = method.broadcast(site.first_server, who)
        state = method.init_client(client, client.initial, down, Work(0, 0, who, 8))
        reply[who] = method.local_update(client, state, down, Work(0, 1, who, 8)).upload
    both = method.aggregate(site.first_server, reply)
    assert torch.equal(both["proto"]["mean"][2], reply["c00"]["proto"]["mean"][2])
    later = method.aggregate(both, {"c01": reply["c01"]})
    assert torch.equal(later["proto"]["mean"][2], both["proto"]["mean"][2])
    assert later["proto"]["count"][2] == both["proto"]["count"][2] > 0
    forgetful = quick("protohar", forget=True).aggregate(both, {"c01": reply["c01"]})
    assert forgetful["proto"]["count"][2] == 0
    assert forgetful["proto"]["mean"][2].abs().max() == 0


def test_prototypes_go_up_after_training_in_inference():
    method = quick("protohar")
    client, down, state = first_client(method)
    reply = method.local_update(client, state, down, Work(0, 1, "c00", 8))
    features = client.model.infer(reply.model, client.train.x).features
    for c in range(3):
        torch.testing.assert_close(reply.upload["proto"]["mean"][c], features[client.train.y == c].mean(0))


@pytest.mark.parametrize("distance", ["l2", "l1", "cosine"])
def test_eq10_steps_the_encoder_along_each_distance(distance):
    """One full-batch step without head phase, against the distance written out."""
    method = ProtoHAR(head_epochs=0, encoder_epochs=1, batch=64, lr=0.1, momentum=0.0, align=3.0, distance=distance)
    client, down, state = first_client(method)
    target = {"mean": torch.randn(3, 8, generator=torch.Generator().manual_seed(1)), "count": torch.ones(3)}
    got = method.local_update(client, state, down | {"proto": target}, Work(0, 1, "c00", 64)).model
    net = plain_net((2, 6), 3)
    net.load_state_dict(client.initial)
    out, goal = net(client.train.x), target["mean"][client.train.y]
    gap = {
        "l2": lambda: F.mse_loss(out.features, goal),
        "l1": lambda: F.l1_loss(out.features, goal),
        "cosine": lambda: F.cosine_embedding_loss(out.features, goal, torch.ones(len(goal))),
    }[distance]()
    (F.cross_entropy(out.logits, client.train.y) + 3.0 * gap).backward()
    for name, p in net.encoder.named_parameters():
        torch.testing.assert_close(got[f"encoder.{name}"], p.detach() - 0.1 * p.grad)


def test_eq7_and_8_by_hand():
    """n = 1 and 3: (1·2 + 3·6)/4 = 5. Class 0 has 1 and 3 samples: prototype 5, or 4 if clients count alike."""

    def sent(value, n):
        proto = {"mean": torch.tensor([[value]]), "count": torch.tensor([float(n)])}
        return {"encoder": {"encoder.w": torch.tensor([value])}, "proto": proto, "size": {"n": torch.tensor(float(n))}}

    uploads = {"a": sent(2.0, 1), "b": sent(6.0, 3)}
    server = {"encoder": {}, "proto": {"mean": torch.zeros(1, 1), "count": torch.zeros(1)}}
    for weights, expected in (("samples", 5.0), ("uniform", 4.0)):
        after = ProtoHAR(weights=weights).aggregate(server, uploads)
        assert after["encoder"]["encoder.w"].tolist() == [5.0]
        assert after["proto"]["mean"].item() == expected


def test_gradients_are_clipped_at_fifty_as_in_the_authors_code():
    method = ProtoHAR(head_epochs=0, encoder_epochs=1, batch=64, lr=1.0, momentum=0.0, align=1e6)
    client, down, state = first_client(method)
    target = {"mean": torch.full((3, 8), 100.0), "count": torch.ones(3)}
    got = method.local_update(client, state, down | {"proto": target}, Work(0, 1, "c00", 64)).model
    moved = torch.cat([(got[n] - t).flatten() for n, t in client.initial.items()]).norm()
    assert float(moved) == pytest.approx(50.0, rel=1e-4)


def test_reweighted_prototypes_differ_once_there_is_something_to_compare_with():
    plain, weighted = (run(quick("protohar", sharpness=s, align=0.0), rounds=2) for s in (0.0, 10.0))
    assert torch.equal(plain.server["encoder"]["encoder.0.weight"], weighted.server["encoder"]["encoder.0.weight"])
    assert not torch.equal(plain.server["proto"]["mean"], weighted.server["proto"]["mean"])


def test_fifteen_per_cent_of_fourteen_clients_are_three():
    engine = run(quick("protohar", epochs=1), blobs(clients=14), participation=0.15)
    assert [len(line["clients"]) for line in engine.record.ledger] == [math.ceil(0.15 * 14)] * 3


def test_variants_resume_to_the_bit(tmp_path):
    for i, fields in enumerate(({"personal_heads": False}, {"sharpness": 1.0, "forget": True, "weights": "uniform"})):
        whole = run(quick("protohar", **fields), rounds=4, participation=0.5)
        run(quick("protohar", **fields), rounds=2, participation=0.5, folder=tmp_path / str(i))
        same_bits(whole, run(quick("protohar", **fields), rounds=4, participation=0.5, folder=tmp_path / str(i)))


def test_less_goes_up_than_in_fedavg_where_heads_are_larger_than_prototypes():
    """Of the paper's network: prototypes [C, d] instead of a head [C, d] and its bias."""
    up = {n: run(quick(n, epochs=1), rounds=1).record.ledger[0]["clients"]["c00"]["up"] for n in ("fedavg", "protohar")}
    encoder = sum(
        t.numel() * 4 for t in part(run(quick("fedavg"), rounds=1).server["model"], "adapter", "encoder").values()
    )
    assert up["protohar"]["encoder"] == encoder
    assert up["protohar"]["proto"] == 4 * (3 * 8 + 3)
    assert up["fedavg"]["model"] == encoder + 4 * (3 * 8 + 3)
