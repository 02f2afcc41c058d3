"""The rooms where Wi-Fi counts people: the physics that makes it possible, honest splits, rooms that differ."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedsense.data.synthetic.csi import (
    CHANNELS,
    LIGHT,
    TAKE,
    Options,
    _human_paths,
    _images,
    draw_room,
    draw_takes,
    paths_to_channel,
    record,
    split_counts,
    synthetic_csi,
    tones,
    walk,
)
from fedsense.errors import UserError
from fedsense.federation import SPLITS
from fedsense.work import stream

SMALL = {"people": 4, "samples": 24, "window": 50, "subcarriers": 16, "rate": 100.0}


def options(**changes):
    plain = Options(
        samples=40,
        people=20,
        classes_per_client=None,
        window=200,
        subcarriers=32,
        rate=100.0,
        feature_skew=1.0,
        val=0.1,
        test=0.2,
        seed=3,
    )
    return replace(plain, **changes)


def same(one, other):
    return one.id == other.id and all(torch.equal(one.split(s).x, other.split(s).x) for s in SPLITS)


def test_the_subcarriers_are_those_of_80_mhz():
    starts, steps = tones(242)
    used = ((starts[:, None] + steps) / 312_500).reshape(2, -1)[:, :121].ravel()
    np.testing.assert_allclose(used, [*range(-122, -1), *range(2, 123)])


@pytest.mark.parametrize("subcarriers", [1, 2, 7, 30, 242])
def test_the_channel_is_the_sum_over_paths(subcarriers):
    rng = stream("paths")
    length, amplitude = rng.uniform(1, 40, (5, 6)), rng.uniform(0, 1, (5, 6))
    half = (subcarriers + 1) // 2
    upper = np.linspace(2, 122, half) if half > 1 else np.array([2.0])
    lower = np.linspace(-122, -2, half) if half > 1 else np.array([-122.0])
    frequency = 5.775e9 + 312_500 * np.concatenate([lower, upper])[:subcarriers]
    plain = (amplitude[..., None] * np.exp(-2j * np.pi * frequency * length[..., None] / LIGHT)).sum(1)
    fast = paths_to_channel(length, amplitude, 5.775e9, subcarriers)
    assert fast.dtype == np.complex64
    np.testing.assert_allclose(fast, plain, atol=2e-5)
    assert not paths_to_channel(np.zeros((5, 0)), np.zeros((5, 0)), 5.775e9, subcarriers).any()  # nobody there


def test_a_path_off_a_person_in_the_middle_of_a_link_four_metres_long():
    room = replace(
        draw_room(0, options(feature_skew=0.0)),
        size=np.array([6.0, 5.0, 3.0]),
        transmitter=np.array([1.0, 2.0, 1.0]),
        receiver=np.array([5.0, 2.0, 1.0]),
        walls=np.full((3, 2), 0.5),
    )
    length, amplitude = _human_paths(room, np.array([[[3.0, 2.0, 1.0]]]), stream(0))
    # 2 + 2 m; by way of the wall y = 0, the image stands at (1, -2): √20 + 2; of y = 5, at (1, 8): √40 + 2
    assert length[0].tolist() == pytest.approx([4, 20**0.5 + 2, 40**0.5 + 2])
    assert (0.4 / (4 * np.pi)) ** 0.5 / 4 <= amplitude[0, 0] <= (0.9 / (4 * np.pi)) ** 0.5 / 4
    assert amplitude[0, 1] / amplitude[0, 0] == pytest.approx(0.5 * 2 / 20**0.5)
    mirrored = np.linalg.norm(_images(room) - room.receiver, axis=-1)
    assert mirrored.ravel().tolist() == pytest.approx([6, 6, 32**0.5, 52**0.5, 20**0.5, 32**0.5])


def test_people_walk_at_human_speed_inside_the_room():
    room = draw_room(1, options())
    place = walk(room, 60, 2000, 100.0, stream(1))
    assert (place > 0).all()
    assert (place < room.size).all()
    speed = np.linalg.norm(np.diff(place[..., :2], axis=0), axis=-1) * 100
    assert speed.max() < 2.3  # m/s, with the breath
    average = speed.mean(0)
    assert 0.4 < np.median(average) < 1.5
    assert 0 < (average < 0.1).sum() < 20  # some stand
    assert walk(room, 0, 10, 100.0, stream(1)).shape == (10, 0, 3)


def test_more_people_make_the_channel_vary_more():
    for number in range(4):
        asked = options(rate=50.0)
        room = draw_room(number, asked)
        varies = [
            np.mean([record(room, count, 200, asked, stream(number, count, take)).std(0).mean() for take in range(8)])
            for count in range(0, 21, 2)
        ]
        assert spearmanr(range(0, 21, 2), varies).statistic > 0.9
        # as the root of their number while they are few (twenty against four: 2.2); then the amplitude saturates
        assert varies[-1] > 1.25 * varies[2] > 1.5 * varies[0]


def test_an_empty_room_varies_by_noise_and_gain_alone():
    asked = options()
    room = replace(draw_room(0, asked), noise=0.0)
    empty = record(room, 0, 400, asked, stream(2))
    factors = empty / empty[:1]  # one factor a packet: the gain's step, or an outlier
    assert np.ptp(factors, axis=1).max() < 1e-4
    decibels = 20 * np.log10(factors[:, 0])
    assert (np.abs(decibels / 0.75 - np.round(decibels / 0.75)) < 1e-3).mean() > 0.97


def test_rooms_differ_with_the_skew_and_not_without():
    rooms = [draw_room(number, options()) for number in range(40)]
    assert np.std([room.size[0] for room in rooms]) > 1
    assert {room.channel for room in rooms} == set(CHANNELS)
    for room in rooms:
        inside = np.stack([room.transmitter, room.receiver, *room.furniture])
        assert (inside > 0).all()
        assert (inside < room.size).all()
        assert np.linalg.norm(room.transmitter - room.receiver) > 1
    alike = [draw_room(number, options(feature_skew=0.0)) for number in range(3)]
    for room in alike[1:]:
        for name, value in vars(alike[0]).items():
            np.testing.assert_array_equal(getattr(room, name), value)

    def apart(skew):
        """How far profiles of empty rooms over the subcarriers lie apart, of their own height."""
        asked = options(feature_skew=skew)
        profiles = [record(draw_room(n, asked), 0, 100, asked, stream(4, n)).mean(0) for n in range(6)]
        profiles = np.array([profile / profile.mean() for profile in profiles])
        return profiles.std(0).mean()

    assert apart(1.0) > 3 * apart(0.0)


def test_a_simple_classifier_counts_within_a_room():
    def statistics(samples):
        """Of each window: how much it varies over time and from packet to packet, and its level."""
        x = samples.x[:, 0].numpy()
        varies, steps = x.std(1), np.abs(np.diff(x, axis=1))
        level = x.mean((1, 2))
        return np.stack([*np.log([varies.mean(1), np.median(varies, 1), varies.max(1), steps.mean((1, 2))]), level], 1)

    hits, errors = [], []
    made = synthetic_csi(clients=3, people=4, samples=200, window=300, subcarriers=24, rate=100.0, test=0.4, seed=1)
    for room in made:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        guess = model.fit(statistics(room.train), room.train.y.numpy()).predict(statistics(room.test))
        hits.append((guess == room.test.y.numpy()).mean())
        errors.append(np.abs(guess - room.test.y.numpy()).mean())
    assert min(hits) > 0.33  # chance is 0.2
    assert np.mean(hits) > 0.4
    assert np.mean(errors) < 0.9  # always saying 2 is off by 1.2


def test_shapes_labels_and_values():
    federation = synthetic_csi(clients=3, **SMALL, seed=1).check()
    assert federation.task.classes == ("0", "1", "2", "3", "4")
    assert federation.task.kind == "counting"
    assert federation.task.counts == (0, 1, 2, 3, 4)
    assert federation.synthetic
    assert federation.description.startswith("Synthetic: ")
    for client in federation:
        assert [len(client.split(name)) for name in SPLITS] == [17, 2, 5]
        for name in SPLITS:
            samples = client.split(name)
            assert samples.x.shape == (len(samples), 1, 50, 16)
            assert samples.x.dtype == torch.float32
            assert samples.x.is_contiguous()
            assert samples.y.dtype == torch.int64
        assert set(client.train.y.tolist()) == set(range(5))


def test_the_default_windows_are_those_of_fedapa():
    client = synthetic_csi(clients=1, samples=32).clients[0]
    assert client.input_shape == (1, 1000, 242)
    assert set(client.train.y.tolist()) == set(range(21))


def test_normalised_by_the_training_part_alone():
    client = synthetic_csi(clients=1, **SMALL, feature_skew=0.0).clients[0]
    assert float(client.train.x.mean()) == pytest.approx(0, abs=1e-4)
    assert float(client.train.x.std()) == pytest.approx(1, abs=1e-3)
    asked = options(**SMALL, feature_skew=0.0, seed=0)
    room, takes = draw_room(0, asked), draw_takes(0, asked)
    place = int(client.test.origin[0, 0])
    raw = record(room, takes[place].count, 50 * takes[place].windows, asked, asked.rng(0, "take", place))[:50]
    scale, shift = np.polyfit(raw.ravel(), client.test.x[0, 0].numpy().ravel(), 1)
    np.testing.assert_allclose(client.test.x[0, 0], scale * raw + shift, atol=1e-3)
    train = [record(room, take.count, 50 * take.windows, asked, asked.rng(0, "take", i)) for i, take in enumerate(takes)
             if take.split == 0]  # fmt: skip
    assert 1 / scale == pytest.approx(np.concatenate(train).std(), rel=1e-3)


def test_no_take_stands_in_two_splits_and_windows_do_not_overlap():
    federation = synthetic_csi(clients=2, **(SMALL | {"samples": 100}), classes_per_client=3)
    for client in federation:
        takes = [set(client.split(name).origin[:, 0].tolist()) for name in SPLITS]
        assert len(set.union(*takes)) == sum(len(part) for part in takes)
        for name in SPLITS:
            samples = client.split(name)
            spans = samples.origin.tolist()
            assert len({tuple(span) for span in spans}) == len(samples)
            assert all(stop - start == 50 and start % 50 == 0 and start < TAKE * 50 for _, start, stop in spans)
            counts = {take: set(samples.y[samples.origin[:, 0] == take].tolist()) for take, _, _ in spans}
            assert all(len(seen) == 1 for seen in counts.values())
        everything = torch.cat([client.split(name).x.flatten(1) for name in SPLITS])
        assert len(torch.unique(everything, dim=0)) == 100


def test_a_room_may_see_a_range_of_counts():
    federation = synthetic_csi(clients=12, **(SMALL | {"people": 9}), classes_per_client=4, seed=2)
    ranges = []
    for client in federation:
        seen = sorted(set(client.train.y.tolist()))
        assert seen == [*range(seen[0], seen[0] + 4)]
        assert client.traits["counts"] == f"{seen[0]}-{seen[-1]}"
        assert set(client.test.y.tolist()) | set(client.val.y.tolist()) <= set(seen)
        ranges.append(seen[0])
    assert len(set(ranges)) > 3
    assert 0 <= min(ranges) <= max(ranges) <= 6


def test_samples_are_shared_among_splits_and_classes():
    counts = split_counts(40, 21, 0.1, 0.2, stream(1))
    assert counts.sum(1).tolist() == [28, 4, 8]
    assert counts[0].min() == 1
    even = split_counts(100, 5, 0.1, 0.2, stream(1))
    assert even.sum(0).tolist() == [20] * 5
    assert even[2].tolist() == [4] * 5
    assert even[1].tolist() == [2] * 5
    assert split_counts(7, 3, 0.0, 0.0, stream(1)).sum(1).tolist() == [7, 0, 0]


def test_the_seed_decides_everything():
    first, again, other = (synthetic_csi(clients=2, **SMALL, seed=seed) for seed in (5, 5, 6))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


def test_a_client_does_not_depend_on_how_many_there_are():
    few, many = (synthetic_csi(clients=count, **SMALL, classes_per_client=3, seed=2) for count in (2, 5))
    assert all(same(one, other) for one, other in zip(few, many.clients[:2], strict=True))
    assert not torch.equal(many.clients[0].train.x, many.clients[1].train.x)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"people": 0},
        {"samples": 29},
        {"classes_per_client": 0},
        {"classes_per_client": 22},
        {"window": 2},
        {"subcarriers": 0},
        {"subcarriers": 300},
        {"rate": 0.0},
        {"feature_skew": -1.0},
        {"feature_skew": float("nan")},
        {"val": 0.5, "test": 0.5},
        {"val": -0.1},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_wrong_options_are_named(wrong):
    with pytest.raises(UserError, match=f"synthetic-csi: {next(iter(wrong))} = ") as caught:
        synthetic_csi(**wrong)
    assert "\n" not in str(caught.value)


def test_the_least_number_of_samples_is_said_and_is_enough():
    with pytest.raises(UserError, match="give at least 30"):
        synthetic_csi(samples=29)
    asked = options(samples=30)
    assert {take.count for take in draw_takes(0, asked) if take.split == 0} == set(range(21))
