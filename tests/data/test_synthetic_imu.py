"""The embedded federation of phones and watches: reproducible, honest about its splits, skewed as asked, not linear."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from fedsense.data.synthetic import synthetic_imu
from fedsense.data.synthetic.imu import (
    ACTIVITIES,
    DEVICES,
    GAITS,
    PLACEMENTS,
    Client,
    Options,
    draw_client,
    draw_person,
    draw_plan,
    record,
    recordings,
)
from fedsense.errors import UserError
from fedsense.federation import SPLITS
from fedsense.work import stream

WALKING, SITTING, STANDING = (ACTIVITIES.index(name) for name in ("walking", "sitting", "standing"))


def options(**changes):
    plain = Options(
        samples=40,
        classes_per_client=None,
        window=128,
        rate=50.0,
        feature_skew=1.0,
        quantity_skew=0.0,
        val=0.1,
        test=0.3,
        faulty=0.0,
        seed=3,
    )
    return replace(plain, **changes)


def average(device, **changes):
    """The average person, with this device at the waist."""
    return Client(0, replace(draw_person(stream(0), 0.0), **changes), device, PLACEMENTS[0])


def same(one, other):
    return one.id == other.id and all(
        torch.equal(one.split(s).x, other.split(s).x) and torch.equal(one.split(s).y, other.split(s).y) for s in SPLITS
    )


def test_the_seed_decides_everything():
    first, again, other = (synthetic_imu(clients=4, samples=24, seed=seed) for seed in (5, 5, 6))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    assert all(same(one, two) for one, two in zip(first, again, strict=True))
    assert not any(torch.equal(one.train.x, two.train.x) for one, two in zip(first, other, strict=True))


VARIANTS = [
    {},
    {"samples": 2, "val": 0.0, "test": 0.0},
    {"samples": 37, "classes_per_client": 5, "quantity_skew": 0.9, "faulty": 0.4},
    {"window": 40, "rate": 20.0, "feature_skew": 0.0, "val": 0.3, "test": 0.6},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_sizes_are_known_before_anything_is_made_and_are_the_real_ones(changes):
    federation = synthetic_imu(clients=12, **changes)
    promised = [[len(split) for split in client.splits] for client in federation]
    assert not any(client.train.recordings.here for client in federation)
    for number, (client, sizes) in enumerate(zip(federation, promised, strict=True)):
        assert sizes == [len(split.y) for split in client.splits]
        assert all(tuple(split.x.shape[1:]) == client.input_shape for split in client.splits)
        drawn = draw_client(number, replace(options(), **{"samples": 60, "seed": 0, **changes}))
        assert client.id == drawn.id
        assert client.traits["speed"] == drawn.device.speed


def test_fingerprints_tell_options_apart_and_make_nothing():
    federations = [synthetic_imu(clients=3, **changes) for changes in (*VARIANTS, {"seed": 1})]
    assert len({federation.fingerprint for federation in federations}) == len(federations)
    more = synthetic_imu(clients=5)
    assert more.with_clients(more.clients[:3]).fingerprint == federations[0].fingerprint
    assert more.fingerprint != federations[0].fingerprint
    assert not any(client.train.recordings.here for federation in federations for client in federation)


def test_another_version_of_the_generator_has_another_fingerprint(monkeypatch):
    before = synthetic_imu(clients=2).fingerprint
    monkeypatch.setattr("fedsense.data.synthetic.imu.code_of", lambda *sources: "another")
    assert synthetic_imu(clients=2).fingerprint != before


def test_no_global_generator_is_read_or_moved():
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first = synthetic_imu(clients=2, samples=16, seed=5)
    assert all(client.train.x.isfinite().all() for client in first), "made"
    assert np.array_equal(before[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(before[1], torch.get_rng_state())
    np.random.seed(2)  # noqa: NPY002
    assert all(same(one, two) for one, two in zip(first, synthetic_imu(clients=2, samples=16, seed=5), strict=True))


def test_a_client_does_not_depend_on_how_many_there_are():
    skews = {"samples": 24, "classes_per_client": 5, "quantity_skew": 0.7, "faulty": 0.3, "seed": 2}
    few, many = synthetic_imu(clients=3, **skews), synthetic_imu(clients=11, **skews)
    assert all(same(one, other) for one, other in zip(few, many.clients[:3], strict=True))
    assert not same(many.clients[0], many.clients[1])


@pytest.mark.parametrize(("window", "rate"), [(128, 50.0), (100, 20.0), (64, 32.0)])
def test_shapes_labels_and_values(window, rate):
    federation = synthetic_imu(clients=8, samples=40, window=window, rate=rate, faulty=0.5, seed=1)
    federation.check()
    assert federation.task.classes == ACTIVITIES
    for client in federation:
        for name in SPLITS:
            samples = client.split(name)
            assert samples.x.shape == (len(samples), 6, window)
            assert samples.x.dtype == torch.float32
            assert samples.y.dtype == torch.int64
            assert samples.x.isfinite().all()
        assert sum(len(client.split(name)) for name in SPLITS) == 40


def test_says_that_it_is_synthetic():
    federation = synthetic_imu(clients=1, samples=16)
    assert federation.synthetic
    assert federation.name == "synthetic-imu"
    assert "synthetic" in federation.description.lower()


def test_ids_are_unique_and_sort_by_number_and_traits_are_words():
    clients = [draw_client(number, options()) for number in range(1000)]
    ids = [client.id for client in clients]
    assert len(set(ids)) == 1000
    assert sorted(ids) == ids
    for client in synthetic_imu(clients=6, samples=16):
        person, device, placement = (client.traits[key] for key in ("person", "device", "placement"))
        assert client.id == f"{person}-{device}-{placement}"
        assert device in DEVICES
        assert placement in {place.name for place in PLACEMENTS}


def test_each_sensor_is_normalised_by_the_training_part_and_gravity_keeps_its_direction():
    for number, client in enumerate(synthetic_imu(clients=4, samples=40, seed=3)):
        _, raw, _, split, _ = recordings(number, options())
        for channels in (slice(0, 3), slice(3, 6)):
            train = client.train.x[:, channels]
            assert float(train.mean()) == pytest.approx(0, abs=1e-3)
            assert float(train.std()) == pytest.approx(1, abs=1e-2)
            # one shift and one scale for the three axes, and the same for the test part
            was = raw[split == SPLITS.index("test")][:, channels].ravel()
            now = client.test.x[:, channels].numpy().ravel()
            scale, shift = np.polyfit(was, now, 1)
            assert scale > 0
            np.testing.assert_allclose(now, scale * was + shift, atol=1e-3)


@pytest.mark.parametrize("kept", [1, 3, 5, None])
def test_label_skew_keeps_so_many_classes(kept):
    federation = synthetic_imu(clients=12, samples=48, classes_per_client=kept, seed=4)
    classes = [tuple(np.flatnonzero(counts)) for counts in federation.class_counts("train").values()]
    assert {len(has) for has in classes} == {kept or len(ACTIVITIES)}
    assert kept is None or len(set(classes)) > 1
    for client in federation:
        has = set(client.train.y.tolist())
        assert set(client.test.y.tolist()) == has
        assert set(client.val.y.tolist()) <= has


def test_quantity_skew_spreads_sizes_and_keeps_their_mean():
    def sizes(spread):
        plans = (
            draw_plan(number, options(samples=60, quantity_skew=spread, classes_per_client=2)) for number in range(400)
        )
        return np.array([plan.windows.sum() for plan in plans])

    assert set(sizes(0.0)) == {60}
    spread = sizes(0.6)
    assert np.log(spread).std() == pytest.approx(0.6, abs=0.15)
    assert spread.mean() == pytest.approx(60, rel=0.2)
    assert spread.min() >= 4


def test_even_the_smallest_client_trains_and_tests_every_class():
    for client in synthetic_imu(clients=10, samples=20, quantity_skew=1.5, seed=8):
        assert set(client.train.y.tolist()) == set(client.test.y.tolist()) == set(range(len(ACTIVITIES)))


def test_shares_of_the_splits():
    client = synthetic_imu(clients=1, samples=400, val=0.1, test=0.3).clients[0]
    assert [len(client.split(name)) for name in SPLITS] == pytest.approx([240, 40, 120], abs=4)
    without = synthetic_imu(clients=1, samples=80, val=0.0, test=0.0).clients[0]
    assert [len(without.split(name)) for name in SPLITS] == [80, 0, 0]


def test_without_feature_skew_clients_are_alike():
    def spread(skew):
        """How far clients' mean acceleration when standing lie apart, in g."""
        means = []
        for number in range(12):
            client = draw_client(number, options(feature_skew=skew))
            bouts = record(client, np.full(20, STANDING), 4.0, 50.0, stream(9, number))
            means.append(bouts[:, :3].mean((0, 2)))
        return np.std(means, axis=0).max()

    alike = [draw_client(number, options(feature_skew=0.0)) for number in range(12)]
    assert len({(client.device, client.placement.name) for client in alike}) == 1
    assert len({(client.person.cadence, client.person.vigour, client.person.asymmetry) for client in alike}) == 1
    assert all(np.array_equal(client.person.style, alike[0].person.style) for client in alike)
    assert all(np.array_equal(client.person.mounting, alike[0].person.mounting) for client in alike)
    assert len({draw_client(number, options()).placement.name for number in range(12)}) == len(PLACEMENTS)
    assert spread(0.0) < 0.5 * spread(1.0)


@pytest.mark.parametrize("kept", [None, 4])
def test_no_bout_stands_in_two_splits(kept):
    federation = synthetic_imu(clients=3, samples=60, classes_per_client=kept, seed=3)
    for number, client in enumerate(federation):
        _, windows, label, split, bout = recordings(number, options(samples=60, classes_per_client=kept))
        for recording in np.unique(bout):
            assert len(set(split[bout == recording])) == len(set(label[bout == recording])) == 1
        # the federation holds just these windows, in these splits
        for place, name in enumerate(SPLITS):
            there, samples = windows[split == place], client.split(name)
            assert samples.y.tolist() == label[split == place].tolist()
            for one, other in zip(there, samples.x.numpy(), strict=True):
                assert np.corrcoef(one[:3].ravel(), other[:3].ravel())[0, 1] > 0.999


def test_windows_of_a_bout_follow_one_another():
    quiet = replace(DEVICES["phone"], noise=0.0, lost=0.0)
    whole = record(average(quiet), np.array([WALKING]), 8.0, 50.0, stream(1))
    steps = np.abs(np.diff(whole[0], axis=1))
    assert steps[:, 127::128].max() <= steps.max()  # no jump where windows are cut
    assert steps.max() < 0.5 * np.ptp(whole[0], axis=1).max()


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("cadence", [0.9, 1.2])
def test_resampling_keeps_the_cadence(name, cadence):
    """A walk's strongest frequency is the step, twice the stride, whatever the rate of the device."""
    client = average(DEVICES[name], cadence=cadence, asymmetry=0.0)
    bouts = record(client, np.full(4, WALKING), 20.0, 50.0, stream(2, name), variation=0.0)
    power = (np.abs(np.fft.rfft(bouts[:, :3] - bouts[:, :3].mean(-1, keepdims=True))) ** 2).sum((0, 1))
    strongest = np.fft.rfftfreq(bouts.shape[-1], 1 / 50.0)[power.argmax()]
    assert strongest == pytest.approx(2 * GAITS["walking"].stride * cadence, abs=0.06)


def test_resampling_does_not_alias():
    """Halving the rate of white noise halves its power, if what lies above the new band is taken out first."""
    device = replace(DEVICES["phone"], rate=100.0, noise=0.5, lost=0.0)
    bouts = record(average(device, tremor=0.0), np.full(8, SITTING), 20.0, 50.0, stream(3), variation=0.0)
    assert bouts[:, :3].std(-1).mean() == pytest.approx(0.5 * np.sqrt(0.5), rel=0.08)


@pytest.mark.parametrize("held", [True, False])
def test_lost_samples_are_filled(held):
    lossy = replace(DEVICES["phone"], rate=50.0, noise=0.05, lost=5.0, held=held)
    bouts = record(average(lossy), np.full(4, WALKING), 10.0, 50.0, stream(4))
    again = (np.diff(bouts[:, 0], axis=1) == 0).mean()
    assert np.isfinite(bouts).all()
    assert again > 0.2 if held else again < 0.01


def test_gravity_is_one_g_and_rest_does_not_turn():
    bouts = record(average(DEVICES["phone"]), np.full(6, STANDING), 6.0, 50.0, stream(5))
    assert np.linalg.norm(bouts[:, :3].mean(-1), axis=1) == pytest.approx(1, abs=0.05)
    walk = record(average(DEVICES["phone"]), np.full(6, WALKING), 6.0, 50.0, stream(5))
    assert bouts[:, 3:].std() < walk[:, 3:].std()
    assert bouts[:, :3].std(-1).mean() < walk[:, :3].std(-1).mean()


def test_faulty_devices_are_as_many_as_asked_and_noisier():
    drawn = [draw_client(number, options(faulty=0.4)) for number in range(300)]
    assert np.mean([client.device.faulty for client in drawn]) == pytest.approx(0.4, abs=0.1)
    sound = [draw_client(number, options()) for number in range(300)]
    assert not any(client.device.faulty for client in sound)
    assert all(
        bad.device.noise > good.device.noise for bad, good in zip(drawn, sound, strict=True) if bad.device.faulty
    )
    assert any(client.traits.get("faulty") for client in synthetic_imu(clients=6, samples=16, faulty=1.0))


def test_a_linear_model_is_not_enough():
    """Windows start anywhere in a stride, so weights on single samples see little but the direction of gravity."""
    everyone = synthetic_imu(clients=16, samples=60, feature_skew=1.0, seed=0).pooled().clients[0]
    scale = StandardScaler().fit(everyone.train.x.flatten(1).numpy())
    model = LogisticRegression(C=0.01, max_iter=1000).fit(
        scale.transform(everyone.train.x.flatten(1).numpy()), everyone.train.y.numpy()
    )
    assert model.score(scale.transform(everyone.test.x.flatten(1).numpy()), everyone.test.y.numpy()) < 0.6


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"samples": 1},
        {"classes_per_client": 0},
        {"classes_per_client": 9},
        {"window": 2},
        {"rate": 0.0},
        {"feature_skew": -1.0},
        {"quantity_skew": -0.1},
        {"val": 0.5, "test": 0.5},
        {"faulty": 1.5},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_wrong_options_are_named(wrong):
    with pytest.raises(UserError, match="synthetic-imu: "):
        synthetic_imu(**wrong)
