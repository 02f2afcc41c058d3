"""What every dataset must pass: a complete card, options that can be named, federations that are sound."""

import json
import re

import numpy as np
import pytest
import torch

from conftest import real
from fedsense.cli import _run as cli
from fedsense.data import DATASETS, find_dataset, load
from fedsense.data.dataset import Read
from fedsense.data.splits import shared
from fedsense.errors import UserError
from fedsense.federation import SPLITS
from fedsense.recipe import make_recipe

# the names users were promised
PROMISED = [
    "synthetic-imu", "synthetic-csi", "synthetic-eeg", "toy-noisy-features", "toy-linear-map", "hhar",
    "realworld", "motionsense", "wisdm", "wisdm2019", "uci-har", "hapt", "pamap2", "usc-had", "unimib-shar",
    "harbox", "mobiact", "shl", "sp-sw-har", "csi-counting", "wical", "moabb", "ssvep-exo", "mnist", "usps",
    "digits", "femnist", "cifar10", "cifar100", "textcaps", "folder",
]  # fmt: skip
GENERATED = {
    "synthetic-imu": {"clients": 4, "samples": 40},
    "synthetic-csi": {"clients": 2, "samples": 30, "window": 40, "subcarriers": 12, "people": 3},
    "synthetic-eeg": {"clients": 3, "samples": 40},
    "toy-noisy-features": {"clients": 20, "samples": 200, "test_samples": 100},
    "toy-linear-map": {"clients": 20, "samples": 200, "test_samples": 100},
}
RECORDED = {
    "hapt": ("hapt.tar.xz", {}),
    "wisdm2019": ("wisdm2019-watch.tar.xz", {}),
    "sp-sw-har": ("sp-sw-har.tar.xz", {}),
    "wical": ("wical-counting.npz", {}),
    "ssvep-exo": ("ssvep-exo.tar.xz", {}),
    "mnist": ("mnist.tar", {"clients": 20}),
    "usps": ("usps.tar.xz", {"clients": 20}),
    "cifar10": ("cifar10-subset.tar.xz", {"clients": 10}),
}


def of(name, **options):
    if name in GENERATED:
        return load(name, **GENERATED[name], **options)
    archive, own = RECORDED[name]
    return load(name, root=str(real(archive)), **own, **options)


def test_names():
    assert list(DATASETS) == PROMISED


@pytest.mark.parametrize("name", PROMISED)
def test_card_is_complete(name):
    dataset = find_dataset(name)
    card = dataset.card
    assert card.name == name
    for entry in ("title", "what", "who", "licence", "citation", "address", "layout", "sizes", "client", "paper"):
        assert getattr(card, entry).strip(), f"{name} says nothing of its {entry}"
    assert len(card.what) < 220
    assert card.synthetic or card.downloads or card.by_hand, "how is it got?"
    for download in card.downloads:
        assert re.fullmatch(r"https?://\S+", download.url)
        assert download.md5 is None or re.fullmatch(r"[0-9a-f]{32}", download.md5)
        assert download.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", download.sha256)


@pytest.mark.parametrize("name", PROMISED)
def test_described_on_the_command_line(name, capfd):
    assert cli(["data", "describe", name, "--json"]) == 0
    card = json.loads(capfd.readouterr().out)
    assert card["name"] == name
    assert card["options"]
    assert cli(["data", "describe", name]) == 0
    assert find_dataset(name).card.title.split()[0] in capfd.readouterr().out


@pytest.mark.parametrize("name", PROMISED)
def test_defaults_are_valid_options(name):
    dataset = find_dataset(name)
    given = {key: value for key, value in dataset.defaults().items() if value is not None}
    assert {**dataset.defaults(), **dataset.parse(given)} == {**dataset.defaults(), **dataset.parse({})}


@pytest.mark.parametrize("name", PROMISED)
def test_recipe_names_a_wrong_option(name):
    raw = {"data": {"name": name, "sede": 3}, "model": "coad-cnn", "method": "fedavg"}
    with pytest.raises(UserError, match=f"dataset '{name}' has no option 'sede'; did you mean 'seed'"):
        make_recipe(raw)


@pytest.mark.parametrize(
    "name", [name for name in PROMISED if isinstance(find_dataset(name), Read) and name != "moabb"]
)
def test_where_is_it(name, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=f"where is dataset '{name}'.*FEDSENSE_DATA"):
        load(name)
    with pytest.raises(UserError, match="there is no folder or file"):
        load(name, root=str(tmp_path / "nowhere"))
    monkeypatch.setenv("FEDSENSE_DATA", str(tmp_path))
    with pytest.raises(UserError, match=f"dataset '{name}' is not in FEDSENSE_DATA"):
        load(name)
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"holds no file.*; expected: .") as error:
        load(name, root=str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [*GENERATED, *RECORDED])
def test_federation_is_sound_and_the_same_again(name, monkeypatch):
    first = of(name, seed=3)
    monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", "0")  # made anew, not kept
    again = of(name, seed=3)
    assert first.fingerprint == again.fingerprint
    assert first.synthetic == find_dataset(name).card.synthetic
    for client, other in zip(first, again, strict=True):
        assert client.traits == other.traits
        assert len(client.train)
        for split in SPLITS:
            samples, same = client.split(split), other.split(split)
            assert torch.equal(samples.x, same.x)
            assert torch.equal(samples.y, same.y)
            assert samples.x.dtype in (torch.float32, torch.uint8)
            assert samples.x.isfinite().all()
    assert sum(len(client.test) for client in first) > 0


@pytest.mark.parametrize("name", [*GENERATED, *RECORDED])
def test_no_sample_is_on_two_sides(name):
    for client in of(name):
        for one, other in (("train", "test"), ("train", "val"), ("val", "test")):
            assert shared(client.split(one).origin, client.split(other).origin) == 0, client.id


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in ("mnist", "cifar10")])
def test_skews_go_with_real_recordings(name):
    whole = of(name, split={"kind": "random", "val": 0.0})
    small = of(name, split={"kind": "random", "val": 0.0}, skew=[{"kind": "fraction", "keep": 0.5}], held_out=1)
    assert len({c.traits.get("person", c.id) for c in small.newcomers}) == 1, "all devices of one person"
    assert len(small) == len(whole) - len(small.newcomers)
    for client in small:
        before = whole[client.id]
        assert len(client.train) == pytest.approx(len(before.train) / 2, abs=len(whole.task.classes))
        assert len(client.test) == len(before.test)


def test_normalisation_is_fitted_after_the_skew():
    """On what the client really trains on: a tenth of it."""
    for client in of("hapt", skew="QS"):
        assert np.abs(client.train.x.mean((0, 2)).numpy()).max() < 1e-3
