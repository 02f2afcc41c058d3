"""FLIC: its objective by hand, its phases, and what it is without its terms."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedsense
from conftest import NET, blobs, quick, run, same_bits
from fedsense.bundle import part
from fedsense.client import Client
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import Settings
from fedsense.engine.site import Site
from fedsense.errors import UserError
from fedsense.federation import Federation
from fedsense.methods import Flic, HetFedRep
from fedsense.methods.flic import _anchor_of
from fedsense.models.network import Batch, Model, Network
from fedsense.models.spec import ModelSpec
from fedsense.work import Work, stream

CLASS, HIDDEN = (
    ModelSpec(("flic-mlp",), {"latent": 5, "hidden": 6}),
    ModelSpec(("flic-mlp",), {"latent": 5, "hidden": 6, "shared": 7}),
)


def widths(*sizes, train=20, test=12, classes=3, seed=0):
    """A client for each width, its classes seen through a matrix of its own."""
    centres = stream(seed, "centres").normal(0, 2, (classes, 4))

    def draw(i, width, split, count):
        rng = stream(seed, i, split)
        y = rng.integers(0, classes, count)
        seen = stream(seed, i, "map").normal(0, 1, (4, width))
        return ((centres[y] + rng.normal(0, 0.5, (count, 4))) @ seen).astype("float32"), y

    return Federation.from_arrays(
        {
            f"c{i:02}": {"train": draw(i, w, "train", train + i), "test": draw(i, w, "test", test)}
            for i, w in enumerate(sizes)
        },
        classes=classes,
    )


def differ(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("model", [CLASS, HIDDEN], ids=["class", "hidden"])
@pytest.mark.parametrize("fields", [{}, {"optimiser": "adam", "clip": 1.0}, {"head_epochs": 3, "encoder_epochs": 2}])
def test_without_its_terms_it_is_hetfedrep_to_the_bit(model, fields):
    federation, settings = widths(3, 9, 5, 9), {"participation": 0.7, "finish": True, "executor": "cohort"}
    none = {"lambda_align": 0.0, "lambda_calibrate": 0.0, "pretrain": 0}
    common = {"batch": 8, "epochs": 2, "lr": 0.05, "optimiser": "sgd", **fields}
    plain = run(HetFedRep(**common), federation, model=model, **settings)
    flic = run(Flic(**common, **none), federation, model=model, **settings)
    flic.server = {"encoder": flic.server["encoder"]}
    moved = [line["prototypes moved"]["anchors"] for line in flic.record.observations]
    assert moved
    assert max(moved) < 1e-5  # the mean of equal anchors, but for rounding
    flic.record.observations.clear()  # HetFedRep has none
    same_bits(plain, flic)


class Tiny(nn.Module):
    """x ↦ 2x, in the latent space."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * x


def tiny(**fields):
    """A client whose latent space is the plane, whose logits are the latent coordinates, and its objective."""
    model = Model(Network(nn.Identity(), nn.Identity(), 2, Tiny()), redraw=False)
    federation = blobs(1, classes=2, shape=(2,))
    client = Client("c00", federation.clients[0], model, federation.task, model.init(0), torch.device("cpu"))
    method = Flic(**fields)
    return client, method, method._objective(client)


def test_eq3_by_hand():
    """Two samples of class 0 and one of class 1; a fourth row is padding.

    Latent: (2, 0), (4, 2); (0, 6). Class means (3, 1) and (0, 6); anchors (1, 1) and (0, 3): distances 4 + 9 = 13.
    """
    client, _, loss = tiny(lambda_align=0.5, lambda_calibrate=0.25)
    x = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 3.0], [9.0, 9.0]])
    xi = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [5.0, 5.0]])
    y, mask = torch.tensor([0, 0, 1, 0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    params = client.initial | {"anchors.mean": torch.tensor([[1.0, 1.0], [0.0, 3.0]])}
    batch = Batch(x, y, mask, torch.tensor(0), beside={"xi": xi})

    def cost(logits, label):  # −log softmax, by hand
        return math.log(sum(math.exp(v) for v in logits)) - logits[label]

    task = (cost((2, 0), 0) + cost((4, 2), 0) + cost((0, 6), 1)) / 3
    drawn = (cost((2, 1), 0) + cost((1, 3), 0)) / 2 + cost((0, 3), 1)  # v + ξ, mean of each class, summed
    assert loss(params, batch).item() == pytest.approx(task + 0.5 * 13 + 0.25 * drawn, rel=1e-5)


def test_eq3_with_learned_covariance_draws_through_the_factor():
    """One sample of class 0: ‖v − z‖² + tr Σ; and Z = v + Lξ = (1, 1) + (2·1, 1·1 + 3·1) = (3, 5)."""
    client, _, loss = tiny(lambda_align=1.0, lambda_calibrate=1.0, alignment="gaussian", covariance="learned")
    factor = torch.tensor([[[2.0, 0.0], [1.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]]])
    params = client.initial | {"anchors.mean": torch.tensor([[1.0, 1.0], [0.0, 3.0]]), "anchors.factor": factor}
    batch = Batch(
        torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.ones(1), torch.tensor(0), beside={"xi": torch.ones(1, 2)}
    )
    task = math.log(1 + math.exp(-2))
    drawn = math.log(1 + math.exp(2))
    assert loss(params, batch).item() == pytest.approx(task + (1 + 1 + 4 + 1 + 9) + drawn, rel=1e-4)


def test_meta_classes_share_an_anchor():
    task = blobs(classes=4).task
    assert _anchor_of((("0", "2"),), task).tolist() == [0, 1, 0, 2]
    with pytest.raises(UserError, match="'9', which is no class"):
        _anchor_of((("0", "9"),), task)
    with pytest.raises(UserError, match="two groups"):
        _anchor_of((("0", "1"), ("1", "2")), task)
    engine = run(quick("flic", meta_classes=(("0", "2"),)), blobs(classes=4), model=CLASS)
    assert engine.server["anchors"]["anchors.mean"].shape == (3, 5)


def test_a_point_of_a_meta_class_may_be_taken_for_any_of_its_classes():
    """Logits (1, 3), both classes of one meta-class: the loss of what is drawn is −log 1 = 0."""
    client, _, loss = tiny(lambda_align=0.0, lambda_calibrate=1.0, meta_classes=(("0", "1"),))
    params = client.initial | {"anchors.mean": torch.tensor([[1.0, 3.0]])}
    one = Batch(
        *(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.ones(1), torch.tensor(0)),
        beside={"xi": torch.zeros(1, 2)},
        given={"anchor": torch.tensor([0, 0])},
    )
    assert loss(params, one).item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-5)


def site_of(method, federation=None, model=HIDDEN, **settings):
    return Site(federation or widths(3, 9), method, model, seed=0, metrics=("accuracy",), **settings)


def update_of(site, who="c00", round=1):
    client, down = site.client(who), site.method.broadcast(site.first_server, who)
    state = site.method.init_client(client, client.initial, down, Work(0, 0, who, site.method.batch))
    return client, state, down, site.method.local_update(client, state, down, Work(0, round, who, site.method.batch))


def test_who_trains_what():
    site = site_of(quick("flic", pretrain=0))
    _, state, down, reply = update_of(site)
    assert set(reply.upload) == {"encoder", "anchors", "size"}
    assert {name.split(".")[0] for name in reply.state["head"]} == {"adapter", "head"}
    assert differ(reply.upload["encoder"], down["encoder"]) > 0
    assert differ(reply.upload["anchors"], down["anchors"]) > 0
    assert differ(reply.state["head"], state["head"]) > 0


def test_anchors_that_are_fixed_stay_and_classes_a_client_lacks_do_not_move():
    fixed = update_of(site_of(quick("flic", anchors="fixed")))
    assert differ(fixed[3].upload["anchors"], fixed[2]["anchors"]) == 0
    federation = widths(4, 4, classes=4)
    kept = federation.with_clients(
        c.change(lambda _, s: s.take(s.y < 3)) if c.id == "c00" else c for c in federation.clients
    )
    _, _, down, reply = update_of(site_of(quick("flic", optimiser="adam"), kept))
    moved = (reply.upload["anchors"]["anchors.mean"] - down["anchors"]["anchors.mean"]).abs().amax(1)
    assert (moved[:3] > 0).all()
    assert moved[3] == 0


def test_the_shared_part_rests_until_its_round():
    method = quick("flic", shared_from=3)
    early, late = update_of(site_of(method), round=2), update_of(site_of(method), round=3)
    assert differ(early[3].upload["encoder"], early[2]["encoder"]) == 0
    assert differ(late[3].upload["encoder"], late[2]["encoder"]) > 0


def test_pre_training_brings_samples_to_their_anchors():
    def gap(pretrain):
        site = site_of(quick("flic", pretrain=pretrain, optimiser="adam", lr=0.01, pretrain_batch=4))
        client, down = site.client("c01"), site.first_server
        state = site.method.init_client(client, client.initial, down, Work(0, 0, "c01", 8))
        z = client.model.predict(client.initial | state["head"], client.train.x).latent
        goal = down["anchors"]["anchors.mean"][client.train.y]
        return float((z - goal).square().sum(1).mean())

    assert gap(200) < 0.2 * gap(0)


def test_everyone_gets_ready_once_and_a_stopped_run_does_not_do_it_again(tmp_path, monkeypatch):
    started = []
    init_client = Flic.init_client
    monkeypatch.setattr(
        Flic, "init_client", lambda self, client, *a: started.append(client.id) or init_client(self, client, *a)
    )
    settings = {"participation": 0.5, "rounds": 2, "executor": "serial"}
    whole = run(quick("flic"), widths(3, 9, 5, 9), tmp_path / "whole", HIDDEN, **settings)
    assert sorted(started) == ["c00", "c01", "c02", "c03"]
    assert [line["round"] for line in whole.record.ledger] == [0, 1, 2]
    assert whole.record.ledger[0]["clients"]["c00"]["down"]["anchors"] > 0
    cut = Engine(
        widths(3, 9, 5, 9), quick("flic"), HIDDEN, Settings(metrics=("accuracy",), **settings), tmp_path / "cut"
    )
    monkeypatch.setattr(cut, "_one_round", lambda round: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    started.clear()
    same_bits(whole, run(quick("flic"), widths(3, 9, 5, 9), tmp_path / "cut", HIDDEN, **settings))
    assert not started, "their first states were kept"


@pytest.mark.parametrize("name", ["flic", "hetfedrep", "local"])
@pytest.mark.parametrize("fields", [{}, {"optimiser": "adam", "weight_decay": 0.01}, {"clip": 0.5}])
def test_different_widths_side_by_side_are_what_they_are_alone(name, fields):
    """Inputs and the first weights are filled up with zeros, which changes nothing but the rounding."""
    federation = widths(3, 40, 5, 9, 17)
    alone = run(quick(name, **fields), federation, model=HIDDEN, executor="serial")
    together = run(quick(name, **fields), federation, model=HIDDEN, executor="cohort")
    assert together.record.ledger[-1]["clients"]["c00"]["together"] >= 2, together.site._company.refused
    for client in federation.ids:
        a, b = alone.personal_parameters(client), together.personal_parameters(client)
        assert {k: v.shape for k, v in a.items()} == {k: v.shape for k, v in b.items()}
        assert differ(a, b) < 2e-4


def test_images_of_different_sizes_are_flattened_and_filled_up():
    federation = Federation.from_arrays(
        {
            f"c{i}": {"train": (stream(i).normal(size=(12, *shape)).astype("float32"), np.arange(12) % 3)}
            for i, shape in enumerate([(1, 4, 4), (1, 3, 5), (2, 7)])
        },
        classes=3,
    )
    alone, together = (
        run(quick("flic"), federation, model=CLASS, executor=executor, views=("personal",))
        for executor in ("serial", "cohort")
    )
    for client in federation.ids:
        assert differ(alone.personal_parameters(client), together.personal_parameters(client)) < 1e-4


@pytest.mark.parametrize(
    "fields",
    [
        {"alignment": "gaussian"},
        {"alignment": "gaussian", "covariance": "learned"},
        {"alignment": "gaussian", "covariance": "learned", "barycentre": "exact"},
        {"alignment": "mmd"},
        {"alignment": "transport"},
        {"anchors": "along"},
        {"realign": 1},
        {"base": "fedavg-ft"},
        {"base": "l2gd", "mixing": 0.3},
        {"meta_classes": (("0", "1"),)},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_every_way_of_it_learns_and_side_by_side_as_alone(fields):
    federation = widths(4, 6, 9, 12, train=30)
    method = quick("flic", optimiser="adam", lr=0.02, batch=10, epochs=4, lambda_align=0.01, spread=10.0, **fields)
    alone, together = (
        run(method, federation, model=HIDDEN, rounds=4, executor=executor) for executor in ("serial", "cohort")
    )
    scores = alone.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]
    assert np.mean(list(scores.values())) > 0.8
    many = together.record.ledger[-1]["clients"]["c00"]["together"]
    assert (many == 1) == (fields.get("alignment") == "transport"), together.site._company.refused
    # Where gradients of kernels vanish, Adam magnifies rounding: 4e-5 after the first round, then ever more.
    close = 5e-2 if fields.get("alignment") == "mmd" else 5e-3
    for client in federation.ids:
        assert differ(alone.personal_parameters(client), together.personal_parameters(client)) < close


def test_learned_covariances_move_and_the_barycentre_is_one():
    site = site_of(quick("flic", alignment="gaussian", covariance="learned", barycentre="exact", lambda_align=1.0))
    uploads = {who: update_of(site, who)[3].upload for who in ("c00", "c01")}
    assert differ(part(uploads["c00"]["anchors"], "anchors"), site.first_server["anchors"]) > 0
    server = site.method.aggregate(site.first_server, uploads)
    # of two commuting covariances aI and bI with weights u, v it is (u√a + v√b)² I
    uploads["c00"]["anchors"]["anchors.factor"] = 2 * torch.eye(5).repeat(3, 1, 1)
    uploads["c01"]["anchors"]["anchors.factor"] = 4 * torch.eye(5).repeat(3, 1, 1)
    n = [float(uploads[who]["size"]["n"]) for who in ("c00", "c01")]
    server = site.method.aggregate(site.first_server, uploads)
    scale = (2 * n[0] + 4 * n[1]) / sum(n)
    torch.testing.assert_close(server["anchors"]["anchors.factor"], scale * torch.eye(5).repeat(3, 1, 1))


def test_l2gd_mixes_shared_and_own_weights():
    """Table 2: θ_i = ω α + (1 − ω) β_i."""
    site = site_of(quick("flic", base="l2gd", mixing=0.25))
    client, _state, down, reply = update_of(site)
    personal = site.method.personalise(client, reply.state, down, Work(0, 1, "c00", 8))
    name = "head.weight"
    want = 0.25 * down["encoder"][f"shared.{name}"] + 0.75 * reply.state["head"][name]
    torch.testing.assert_close(personal[name], want)
    assert set(personal) == set(client.initial)
    assert reply.upload["encoder"].keys() == set(down["encoder"])
    assert differ(reply.upload["encoder"], down["encoder"]) > 0


def test_fedavg_ft_shares_all_but_the_embedding():
    site = site_of(quick("flic", base="fedavg-ft"))
    _, _, _, reply = update_of(site)
    assert {name.split(".")[0] for name in reply.upload["encoder"]} == {"encoder", "head"}
    assert {name.split(".")[0] for name in reply.state["head"]} == {"adapter"}


def test_finishing_trains_own_parts_only_and_scores_them():
    engine = run(quick("flic"), widths(3, 9, 5, 9), model=HIDDEN, participation=0.5, rounds=2, finish=True)
    personal = engine.personal_parameters("c03")
    assert all(torch.equal(personal[name], value) for name, value in engine.server["encoder"].items())
    assert differ(part(personal, "head"), part(engine.states["c03"]["head"], "head")) > 0
    assert [line["round"] for line in engine.record.ledger] == [0, 1, 2, 3]
    plain = run(quick("flic"), widths(3, 9, 5, 9), model=HIDDEN, participation=0.5, rounds=2)
    assert plain.record.scores[-1] != engine.record.scores[-1]


@pytest.mark.parametrize("name", ["hetfedrep", "fedavg", "local"])
def test_those_who_were_never_chosen_finish_too_and_a_finished_run_can_be_read_again(name, tmp_path):
    federation, settings = widths(5, 5, 5, 5), {"participation": 0.25, "rounds": 1, "finish": True, "model": CLASS}
    engine = run(quick(name), federation, tmp_path, **settings)
    again = run(quick(name), federation, tmp_path, **settings)  # nothing is left to do
    same_bits(engine, again)
    for client in federation.ids:
        assert differ(engine.personal_parameters(client), again.personal_parameters(client)) == 0
        assert differ(engine.personal_parameters(client), engine.site.client(client).initial) > 0


def test_a_run_that_has_finished_goes_no_further(tmp_path):
    settings = {"model": HIDDEN, "finish": True}
    run(quick("flic"), widths(3, 9), tmp_path, rounds=1, **settings)
    with pytest.raises(UserError, match="has finished after round 1"):
        run(quick("flic"), widths(3, 9), tmp_path, rounds=2, **settings)
    run(quick("flic"), widths(3, 9), tmp_path, rounds=1, **settings)  # being refused changed nothing


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match='say alignment = "gaussian"'):
        Flic(covariance="learned")
    with pytest.raises(UserError, match="0 to 1"):
        Flic(mixing=1.5)

    def no_adapter(shape, classes):
        return Network(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), nn.Linear(4, classes), 4)

    with pytest.raises(UserError, match=r"gives no vectors.*flic-mlp"):
        Site(blobs(), quick("flic"), ModelSpec.of(no_adapter), seed=0)

    def other_widths(shape, classes):
        return Network(
            nn.Identity(), nn.Linear(shape[0], classes), shape[0], nn.Sequential(nn.Linear(shape[0], shape[0]))
        )

    with pytest.raises(UserError, match=r"'c00' .* vectors of 3 and that of 'c01' .* vectors of 9"):
        Site(widths(3, 9), quick("flic"), ModelSpec.of(other_widths), seed=0)


def test_anchors_are_far_apart_and_of_the_seed():
    a, b, c = (Site(widths(3, 9), Flic(), CLASS, seed=s).first_server["anchors"]["anchors.mean"] for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    wide = Site(widths(3, 9, classes=3), Flic(spread=10.0), ModelSpec(("flic-mlp",), {"latent": 512}), seed=0)
    assert float(wide.first_server["anchors"]["anchors.mean"].std()) == pytest.approx(10.0, rel=0.05)
    assert F.pdist(wide.first_server["anchors"]["anchors.mean"]).min() > 100


def slopes(*sizes, train=40, test=30):
    """Values 0 to 1 of a quantity that each client sees through features of its own."""

    def draw(i, width, split, count):
        rng = stream(i, split)
        y = rng.uniform(0, 1, count)
        seen = stream(i, "map").normal(0, 1, width)
        return (y[:, None] * seen + rng.normal(0, 0.05, (count, width))).astype("float32"), y

    return Federation.from_arrays(
        {
            f"c{i:02}": {"train": draw(i, w, "train", train), "test": draw(i, w, "test", test)}
            for i, w in enumerate(sizes)
        },
        classes=["slope"],
        kind="regression",
    )


def test_regression_anchors_lie_on_a_line():
    """a = (1, 0), b = (0, 2); y = 0.25: m = (0.25, 1.5); z = (2, 0): gap 1.75² + 1.5² = 5.3125; loss (2 + 0 − …)."""
    method = Flic(lambda_align=1.0, lambda_calibrate=0.0)
    params = {"anchors.mean": torch.tensor([[1.0, 0.0], [0.0, 2.0]])}
    batch = Batch(torch.zeros(2, 1), torch.tensor([0.25, 0.9]), torch.tensor([1.0, 0.0]), torch.tensor(0))
    z = torch.tensor([[2.0, 0.0], [9.0, 9.0]])
    assert method._apart(z, params, batch).item() == pytest.approx(1.75**2 + 1.5**2)


@pytest.mark.parametrize("name", ["flic", "hetfedrep", "local", "fedhenn"])
def test_regression_learns(name):
    method = quick(name, optimiser="adam", lr=0.02, batch=10, epochs=6)
    engine = run(method, slopes(3, 7, 5, 9), model=HIDDEN, metrics=("rmse", "r2"), views=("personal",), rounds=4)
    scores = engine.record.scores[-1]["scores"]["personal"]["test"]
    assert np.mean(list(scores["rmse"].values())) < 0.12  # of a quantity whose standard deviation is 0.29
    assert np.mean(list(scores["r2"].values())) > 0.7
    assert engine.site.first_server.get("anchors", {"anchors.mean": torch.zeros(2, 5)})["anchors.mean"].shape == (2, 5)


def test_what_does_not_suit_a_regression_is_refused():
    with pytest.raises(UserError, match=r'say metrics = \["rmse", "r2"\]'):
        run(quick("flic"), slopes(3, 5), model=HIDDEN)
    with pytest.raises(UserError, match="works with classes"):
        Site(slopes(3, 3), quick("protohar"), HIDDEN, seed=0)
    with pytest.raises(UserError, match="anchors are N"):
        Site(slopes(3, 3), quick("flic", alignment="mmd"), HIDDEN, seed=0)
    with pytest.raises(UserError, match="name the one quantity"):
        Federation.from_arrays({"a": {"train": (np.zeros((2, 1)), [0.1, 0.2])}}, classes=3, kind="regression")
    with pytest.raises(UserError, match="not finite"):
        Federation.from_arrays(
            {"a": {"train": (np.zeros((2, 1)), [0.1, np.nan])}}, classes=["v"], kind="regression"
        ).check()


class Onward(Network):
    def onward(self, latent):
        z = self.encoder(latent)
        return super().onward(latent)._replace(logits=self.head((5 * z).tanh()))


def hooked(width):
    network = Network(nn.Identity(), nn.Linear(4, 3), 4, nn.Sequential(nn.Flatten(), nn.Linear(width, 4)))
    network.adapter.register_forward_hook(lambda *_: None)
    return network


def test_only_networks_that_are_alike_after_their_first_layer_are_a_family():
    def of(width, last=4, kind=Network):
        return Model(kind(nn.Identity(), nn.Linear(last, 3), last, nn.Sequential(nn.Flatten(), nn.Linear(width, last))))

    assert of(5).family == of(9).family != of(5, last=6).family
    assert of(5).family is not None
    assert of(5, kind=Onward).family is None
    assert not of(5, kind=Onward).plain
    assert Model(hooked(5)).family is None
    with_norm = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.BatchNorm1d(4))
    assert Model(Network(nn.Identity(), nn.Linear(4, 3), 4, with_norm)).family is None


def test_l2gd_refuses_running_statistics_and_heads_that_differ():
    with pytest.raises(UserError, match="running statistics"):
        Site(blobs(), quick("flic", base="l2gd"), NET, seed=0)

    def other_heads(shape, classes):
        middle = 4 + shape[0]
        encoder = nn.Linear(5, middle)
        return Network(encoder, nn.Linear(middle, classes), middle, nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 5)))

    with pytest.raises(UserError, match=r"shares 'encoder\.bias'"):
        Site(widths(3, 9), quick("flic", base="l2gd"), ModelSpec.of(other_heads), seed=0)


def test_a_pool_does_not_finish_for_itself():
    engine = run(quick("centralized"), blobs(), rounds=2, finish=True)
    assert [line["round"] for line in engine.record.ledger] == [1, 2]


def test_runs_begun_before_there_was_a_seed_in_the_task_go_on(tmp_path):
    run(quick("fedavg"), blobs(), tmp_path, rounds=1)
    about = json.loads((tmp_path / "run.json").read_text())
    del about["task"]["seed"], about["settings"]["finish"]
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert run(quick("fedavg"), blobs(), tmp_path, rounds=2).round == 2


def test_a_personal_model_of_a_regression_gives_values():
    result = fedsense.run(
        slopes(3, 5), quick("flic", optimiser="adam", lr=0.02, epochs=6), HIDDEN, rounds=2, metrics="rmse",
        views="personal", progress=False,
    )  # fmt: skip
    mine, data = result.personal_model("c00"), result.engine.federation["c00"].test
    assert np.abs(mine.values(data.x) - data.y.numpy()).mean() < 0.2
    with pytest.raises(UserError, match="not classes; ask values"):
        mine.probabilities(data.x)
