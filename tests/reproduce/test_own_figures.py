"""Figures that plain runs do not give: made by ``fedsense reproduce``, kept, and never made twice."""

import json
import re

import numpy as np
import pytest
import torch

from conftest import real
from fedsense.cli import _run as cli
from fedsense.data import load
from fedsense.engine.site import Site
from fedsense.models.spec import ModelSpec
from fedsense.reproduce.cards import Cell
from fedsense.reproduce.outcome import measured
from fedsense.reproduce.own import anchors, losses, pretrained, projections
from fedsense.result import Result
from fedsense.work import Work

HEAD = """\
paper = "Mine"
title = "A paper that nobody wrote"

[setting.here]
recipe = "mine.toml"

[[figure]]
id = "F1"
title = "Of its own"
printed = "Fig. 1"
shows = "something"
setting = "here"
metric = "accuracy"
"""
RECIPE = """\
name = "mine"
rounds = 2
executor = "serial"

[data]
name = "synthetic-imu"
clients = 4
samples = 16
held-out = 2

[model]
name = "hart"

[evaluation]
views = ["personal", "generalisation", "global"]
metrics = ["accuracy"]

[training]
epochs = 1

[[method]]
name = "fedavg"

[[method]]
name = "fedali"
prototypes = 8
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSENSE_DATA", raising=False)
    return tmp_path


def reproduce(capfd, *words, code=0):
    assert cli(["reproduce", *words]) == code
    return capfd.readouterr()


def lines_of(item):
    return {(line["row"], line["column"]): line for line in item["lines"]}


def test_theorem_1_is_kept_and_goes_on_with_more_seeds(place, capfd):
    words = ["flic", "F2", "--scale", "small", "--out", "here"]
    said = json.loads(reproduce(capfd, *words, "--dry-run", "--json").out)["items"][0]
    assert (said["experiments"][0]["done"], said["experiments"][0]["seeds"]) == (0, [0])
    assert not (place / "here").exists()
    (item,) = json.loads(reproduce(capfd, *words, "--json").out)["items"]
    found = lines_of(item)
    turned, given = "dist(A(t), QA*), FLIC", "dist(A(t), A*), FedRep given φ*"
    assert found[turned, "factor an iteration"]["ours"] == pytest.approx(0.871, abs=5e-4)  # docs/results/flic.md
    assert found[turned, "first"]["ours"] == pytest.approx(0.15, abs=5e-3)
    assert found[turned, "last"]["ours"] < 1e-13
    assert found[given, "last"]["ours"] < 1e-13
    assert found["dist(A(t), A*), FLIC", "last"]["ours"] > 0.9
    assert found["estimated, true signs told", "last"]["ours"] > 10 * found[turned, "last"]["ours"]
    assert all(line["published"] is None and line["difference"] is None for line in item["lines"])

    kept = (place / "here" / "F2" / "seed0.json").stat().st_mtime_ns
    text = reproduce(capfd, *words).out
    assert "seed 0 (" not in text  # nothing was done
    assert re.search(r"\d\.\de-1[4-7]", text)  # what rounding left, and not 0.00; which digits depends on the machine
    assert "published" not in text
    (item,) = json.loads(reproduce(capfd, *words, "--seeds", "2", "--json").out)["items"]
    assert (place / "here" / "F2" / "seed0.json").stat().st_mtime_ns == kept
    assert lines_of(item)[turned, "factor an iteration"]["seeds"] == 2
    said = reproduce(capfd, *words, "--seeds", "3", "--dry-run").out
    assert "2 of 3 seeds done" in said
    assert "![Theorem 1 on a toy regression](F2.svg)" in (place / "here" / "reproduced.md").read_text()

    assert cli(["gallery", "flic", "--scale", "small", "--reproduced", "here", "--out", "page.md"]) == 0
    page = (place / "page.md").read_text()
    assert "![Theorem 1 on a toy regression](page/F2.svg)" in page
    assert "fedsense reproduce flic F2 --scale small --seeds 2" in page
    assert "1 run in" in page  # with commit, machine and day
    assert "commit not written down" not in page


def test_what_was_made_otherwise_is_made_anew(place, capfd):
    words = ["flic", "F3", "--scale", "small", "--out", "here", "--set", "data.clients=4", "--json"]
    few = lines_of(json.loads(reproduce(capfd, *words, "--set", "data.samples=40").out)["items"][0])
    more = lines_of(json.loads(reproduce(capfd, *words, "--set", "data.samples=80").out)["items"][0])
    assert few["MDS", "among the client's own"] != more["MDS", "among the client's own"]
    sessions = (place / "here" / "F3" / "sessions.jsonl").read_text().splitlines()
    assert len(sessions) == 4  # each began and ended
    assert (place / "here" / "F3.svg").read_text().startswith("<svg")


def test_nearest_neighbours_counted_by_hand():
    """On a line: client 0 has a at 0 and 1, b at 10; client 1 has b at 0.4 and 9, a at 20.

    Own: 0→1 a, 1→0 a, 10→1 a (no); 0.4→9 b, 9→0.4 b, 20→9 b (no): 4 of 6. Others': 0→0.4 b (no), 1→0.4 b (no), 10→9 b;
    0.4→0 a (no), 9→10 b, 20→10 b (no): 2 of 6.
    """
    points = np.array([[0.0], [1.0], [10.0], [0.4], [9.0], [20.0]])
    label, owner = np.array([0, 0, 1, 1, 1, 0]), np.array([0, 0, 0, 1, 1, 1])
    assert projections.nearest_alike(points, label, owner) == pytest.approx((4 / 6, 2 / 6))


def test_samples_come_to_their_anchors(place, capfd, monkeypatch):
    monkeypatch.setattr(anchors, "EPOCHS", (1, 30))
    monkeypatch.setattr(anchors, "MOST", 40)
    words = ["--scale", "small", "--out", "here", "--json", "--set", "data.clients=12", "--set", "data.samples=200"]
    (item,) = json.loads(reproduce(capfd, "flic", "FS4", *words).out)["items"]
    found = lines_of(item)
    early, late = (found[f"{epochs} epochs", "training samples"]["ours"] for epochs in (1, 30))
    assert early + 10 < late <= 100
    assert found["30 epochs", "test samples"]["ours"] > 40  # of five classes
    kept = json.loads((place / "here" / "FS4" / "seed1.json").read_text())["found"]
    assert len(kept["clients"]) == 3
    for one in kept["moments"].values():
        assert len(one["points"]["all"]) == len(one["tested"])
        assert len(one["points"]["train"]) == one["tested"].count(False) < len(one["tested"])
        assert len(one["anchors"]["all"]) == len(kept["classes"])
    drawn = (place / "here" / "FS4.svg").read_text()
    assert drawn.count("and test samples (rings)") == 2


@pytest.fixture(scope="module")
def linear():
    return load("toy-linear-map", clients=4, samples=60, test_samples=40, seed=0)


def update(federation, round, **way):
    """What a client's parts are before and after a local update, and the losses of its epochs."""
    method = losses.Watched(epochs=4, pretrain=1, shared_from=2, **way)
    site = Site(federation, method, ModelSpec(("flic-mlp",), {"shared": 8}), seed=0)
    who = federation.ids[0]
    client = site.client(who)
    down = method.broadcast(site.first_server, who)
    state = method.init_client(client, client.initial, down, Work(0, 0, who, 20))
    reply = method.local_update(client, state, down, Work(0, round, who, 20))
    before = down["encoder"] | down["anchors"] | state["head"]
    after = reply.upload["encoder"] | reply.upload["anchors"] | reply.state["head"]
    moved = {name.split(".")[0] for name, value in after.items() if not torch.equal(value, before[name])}
    return moved, [value for name, value in reply.metrics.items() if name != "loss"]


@pytest.mark.parametrize(
    ("label", "round", "moves"),
    [
        ("the classifier alone", 2, {"head"}),
        ("classifier and shared part", 1, {"head"}),  # what is shared begins in round 2
        ("classifier and shared part", 2, {"head", "encoder", "anchors"}),
        ("all parts", 1, {"adapter", "head"}),
        ("all parts", 2, {"adapter", "head", "encoder", "anchors"}),
    ],
)
def test_only_what_a_way_to_learn_names_trains(linear, label, round, moves):
    moved, seen = update(linear, round, **losses.WAYS[label])
    assert moved == moves
    assert len(seen) == 4
    assert seen[-1] < seen[0]


def test_an_epochs_loss_is_the_loss_over_its_samples(linear):
    """With one minibatch an epoch, the first epoch's is the loss before any step: cross entropy, where no λ is."""
    who = linear.ids[0]
    method = losses.Watched(epochs=1, pretrain=1, embeds=False, shares=False, lambda_align=0.0, lambda_calibrate=0.0)
    site = Site(linear, method, ModelSpec(("flic-mlp",), {"shared": 8}), seed=0)
    client = site.client(who)
    down = method.broadcast(site.first_server, who)
    state = method.init_client(client, client.initial, down, Work(0, 0, who, 1000))
    reply = method.local_update(client, state, down, Work(0, 1, who, 1000))
    logits = client.model.predict(client.initial | down["encoder"] | state["head"], client.train.x).logits
    expected = torch.nn.functional.cross_entropy(logits, client.train.y)
    assert reply.metrics["epoch 0"] == pytest.approx(float(expected), rel=1e-5)


def test_loss_curves_go_on_and_have_an_epoch_after_another(place, capfd):
    words = ["flic", "FS1", "--scale", "small", "--out", "here", "--set", "data.clients=6", "--set", "data.samples=100",
             "--set", "training.epochs=4", "--set", "method.flic.pretrain=2", "--json"]  # fmt: skip
    reproduce(capfd, *words, "--set", "rounds=3")
    folder = place / "here" / "FS1" / "all-parts-seed1"
    before = (folder / "ledger.jsonl").read_bytes()
    (item,) = json.loads(reproduce(capfd, *words, "--set", "rounds=5").out)["items"]
    assert (folder / "ledger.jsonl").read_bytes().startswith(before)  # it went on
    kept = json.loads((place / "here" / "FS1" / "seed1.json").read_text())["found"]
    for curves in kept["curves"].values():
        assert len(curves) == 3
        for curve in curves.values():
            assert len(curve["losses"]) == 4 * len(curve["rounds"])
    found = lines_of(item)
    assert list(dict.fromkeys(row for row, _ in found)) == list(losses.WAYS)
    assert found["all parts", "first epoch"]["ours"] > found["the classifier alone", "first epoch"]["ours"]


def test_pretrained_beginnings_on_half_of_the_people(place, capfd, monkeypatch):
    monkeypatch.setattr(pretrained, "SMALL_EPOCHS", 1)
    (place / "mine.toml").write_text(RECIPE)
    (place / "card.toml").write_text(HEAD + 'own = "pretrained"\n')
    (item,) = json.loads(reproduce(capfd, "card.toml", "F1", "--scale", "small", "--json").out)["items"]
    found = lines_of(item)
    folder = place / "runs" / "reproduce" / "mine-small" / "F1"
    for method in ("fedavg", "fedali"):
        fresh, begun = (
            Result.read(folder / f"{method}-{how}" / f"{method}-seed0") for how in ("scratch", "pretrained")
        )
        assert fresh.ledger[0]["clients"].keys() == begun.ledger[0]["clients"].keys()
        row = next(row for row, _ in found if row.lower() == f"{method}, from scratch")
        personal = next(r for r in fresh.rows("final") if (r.view, r.metric) == ("personal", "accuracy"))
        assert found[row, "Personalization"]["ours"] == pytest.approx(100 * personal.mean)
        losses_of = [next(iter(run.ledger[0]["clients"].values()))["metrics"]["loss"] for run in (fresh, begun)]
        assert losses_of[0] != losses_of[1]  # it began with something else
    assert any("cosine" in row for row, _ in found)


def test_prototypes_of_one_client_move_every_epoch(place, capfd):
    (place / "mine.toml").write_text(RECIPE)
    (place / "card.toml").write_text(HEAD + 'own = "prototypes"\n')
    words = ["card.toml", "F1", "--scale", "small", "--json", "--set", "rounds=4", "--set", "evaluation.every=4"]
    (item,) = json.loads(reproduce(capfd, *words).out)["items"]
    found = lines_of(item)
    assert {column for _, column in found} == {"epoch 1", "epoch 2", "epoch 4"}
    assert all(line["ours"] > 0 for line in found.values())
    run = Result.read(place / "runs" / "reproduce" / "mine-small" / "F1" / "seed0")
    assert all(len(line["clients"]) == 1 for line in run.ledger)


def test_mistakes_and_lacking_data_are_said(place, capfd):
    (place / "mine.toml").write_text(RECIPE)
    (place / "card.toml").write_text(HEAD + 'own = "theorem2"\n')
    assert "no own = 'theorem2'; did you mean 'theorem1'" in reproduce(capfd, "card.toml", code=2).err
    (place / "card.toml").write_text(HEAD.replace('setting = "here"\n', "") + 'own = "losses"\n')
    assert "name a setting" in reproduce(capfd, "card.toml", code=2).err
    for figure in ("F3", "F5"):
        said = reproduce(capfd, "fedali", figure, "--scale", "small", code=2).out
        assert "hhar is not here; get it: `fedsense data fetch hhar`" in said
        assert "waits for hhar" in reproduce(capfd, "fedali", figure, "--scale", "small", "--dry-run").out


def test_what_a_client_holds(place):
    """SCAFFOLD's clients keep variates as large as the model's weights; FedAvg's, and FedRep's heads, are the model."""
    recipe = RECIPE[: RECIPE.index("[[method]]")].replace("hart", "flic-mlp")
    methods = "".join(f'[[method]]\nname = "{name}"\n' for name in ("fedavg", "scaffold", "fedrep"))
    (place / "mine.toml").write_text(recipe + methods)
    assert cli(["run", "mine.toml", "--out", "runs"]) == 0
    runs = {name: [Result.read(place / "runs" / f"{name}-seed0")] for name in ("fedavg", "scaffold", "fedrep")}
    cells = {name: Cell(method=name, measure="holds", of="fedavg") for name in runs}
    assert {name: measured(cell, runs)[0] for name, cell in cells.items()} == {
        "fedavg": [1.0], "scaffold": [2.0], "fedrep": [1.0]}  # fmt: skip
    model = runs["fedavg"][0].personal_model(next(iter(runs["fedavg"][0].test_sizes)))
    bytes_of_it = sum(4 * value.numel() for value in model.params.values())
    assert measured(Cell(method="fedavg", measure="holds"), runs)[0] == [pytest.approx(bytes_of_it / 1e6)]


@pytest.mark.experiment
@pytest.mark.parametrize("figure", ["F3", "F5"])
def test_fedalis_figures_on_real_recordings(figure, place, capfd, monkeypatch):
    data = real("hapt.tar.xz").parent
    monkeypatch.setenv("FEDSENSE_DATA", "elsewhere")  # and so again after it: --data sets it
    words = ["fedali", figure, "--scale", "small", "--nearest", "--data", str(data), "--json"]
    (item,) = json.loads(reproduce(capfd, *words).out)["items"]
    assert {line["published_on"] for line in item["lines"]} == {"hhar"}
    assert all(line["ours"] is not None for line in item["lines"])
