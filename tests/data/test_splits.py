"""Splits: no time step on two sides, the promised shares; normalisation fitted on what is trained on."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from fedsense.data.splits import (
    DROPPED,
    TEST,
    TRAIN,
    VAL,
    Split,
    at_most,
    client_data,
    in_floats,
    normalised,
    parse_split,
    shared,
    split_client,
)
from fedsense.data.windows import Collected, Recording, collected, cut
from fedsense.errors import UserError
from fedsense.federation import ClientData, Federation, Samples, Task


def slow_shared(first, second):
    """Time step by time step."""
    steps = [{(r, t) for t in range(a, b)} for r, a, b in second]
    return sum(any({(r, t) for t in range(a, b)} & other for other in steps) for r, a, b in first)


def client(starts, window=4, labels=None, recordings=None, session=None):
    starts = np.asarray(starts)
    zeros = np.zeros(len(starts), np.int64)
    recordings = zeros if recordings is None else np.asarray(recordings)
    labels = zeros if labels is None else np.asarray(labels)
    origin = np.stack([recordings, starts, starts + window], axis=1)
    session = zeros - 1 if session is None else np.asarray(session)
    return Collected("anna", starts[:, None].astype(np.float32), labels, origin, session)


spans = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(1, 6)).map(lambda s: (s[0], s[1], s[1] + s[2])),
    max_size=8,
)


@given(spans, spans)
def test_shared_is_what_counting_every_time_step_says(first, second):
    as_tensor = [torch.tensor(s, dtype=torch.int64).reshape(-1, 3) for s in (first, second)]
    assert shared(*as_tensor) == slow_shared(first, second)


def test_shared_of_what_is_not_known():
    known = torch.tensor([[0, 0, 4]])
    assert shared(None, known) == shared(known, None) == shared(known[:0], known) == 0
    assert shared(known, torch.tensor([[0, 4, 8]])) == 0  # one ends where the other begins
    assert shared(known, torch.tensor([[0, 3, 7]])) == 1


# ---------------------------------------------------------------- chronological

runs = st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 40)), min_size=1, max_size=6)


@settings(max_examples=150)
@given(
    st.lists(runs, min_size=1, max_size=3),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9]),
    st.sampled_from([(0.3, 0.1), (0.3, 0.0), (0.5, 0.4), (0.0, 0.2), (0.05, 0.05), (0.9, 0.0)]),
)
def test_chronological_shares_nothing(recordings, window, overlap, shares):
    made = []
    for number, parts in enumerate(recordings):
        labels = np.repeat([p[0] for p in parts], [p[1] for p in parts])
        made.append(Recording("anna", np.zeros((len(labels), 1)), labels, 50.0, ("acc_x",), session=number % 2))
    (whole,) = cut(made, None, window, overlap)
    side = split_client(whole, Split("chronological", *shares), 0)
    assert len(side) == len(whole.y)
    origin = [whole.origin[side == number] for number in (TRAIN, VAL, TEST)]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert slow_shared(origin[first], origin[second]) == 0
        assert shared(torch.from_numpy(origin[first]), torch.from_numpy(origin[second])) == 0
    for label in np.unique(whole.y):
        mine = whole.y == label
        spread = [side[mine & (side != DROPPED)] == number for number in (TRAIN, VAL, TEST)]
        assert spread[TRAIN].any()
        apart = slow_shared(whole.origin[mine], whole.origin[mine][-1:]) < mine.sum()
        if shares[0] and apart:  # two windows that share nothing: one is tested on
            assert spread[TEST].any()
        # what is tested on came last
        when = [tuple(row) for row in np.column_stack([whole.session, whole.origin])[mine].tolist()]
        latest = {n: [w for w, s in zip(when, side[mine], strict=True) if s == n] for n in (TRAIN, VAL, TEST)}
        for earlier, later in ((TRAIN, VAL), (TRAIN, TEST), (VAL, TEST)):
            if latest[earlier] and latest[later]:
                assert max(latest[earlier]) < min(latest[later])


def test_chronological_by_hand():
    # ten windows of 4, half overlapping: 3 tested, 1 validated, each border costs one
    side = split_client(client(range(0, 20, 2)), Split("chronological", 0.3, 0.2), 0)
    assert side.tolist() == [TRAIN] * 4 + [DROPPED, VAL, DROPPED] + [TEST] * 3
    # without overlap nothing is lost
    side = split_client(client(range(0, 40, 4)), Split("chronological", 0.3, 0.2), 0)
    assert side.tolist() == [TRAIN] * 5 + [VAL] * 2 + [TEST] * 3


def test_sessions_come_in_their_order_not_in_that_of_the_files():
    whole = client([0, 4, 0, 4], recordings=[0, 0, 1, 1], session=[1, 1, 0, 0])
    assert split_client(whole, Split("chronological", 0.5, 0.0), 0).tolist() == [TEST, TEST, TRAIN, TRAIN]


def test_a_class_too_short_for_its_share_is_tested_on_less():
    # windows of 8 at every step: only the first and the last two share nothing
    side = split_client(client(range(10), window=8), Split("chronological", 0.5, 0.2), 0)
    assert side[0] == TRAIN
    assert side[-1] == TEST
    # and one that cannot be on two sides is trained on
    assert split_client(client(range(5), window=8), Split(), 0).tolist() == [TRAIN] * 5
    assert split_client(client([0]), Split(), 0).tolist() == [TRAIN]


def test_windows_of_different_classes_that_overlap_are_kept_apart():
    labels = [0, 1] * 10
    whole = client(range(0, 40, 2), labels=labels)
    side = split_client(whole, Split("chronological", 0.3, 0.2), 0)
    origin = [whole.origin[side == number] for number in (TRAIN, VAL, TEST)]
    assert all(len(part) for part in origin)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert slow_shared(origin[first], origin[second]) == 0


# ---------------------------------------------------------------- the other kinds


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.sampled_from([(0.3, 0.1), (0.5, 0.0), (0.0, 0.5), (0.01, 0.01), (0.9, 0.09), (0.0, 0.0)]),
    st.sampled_from(["random", "chronological"]),
)
def test_shares_of_every_class(labels, shares, kind):
    """Within half a sample, but one of each class is trained on and one of two is tested on."""
    labels = np.array(labels)
    side = split_client(collected("anna", np.zeros((len(labels), 1)), labels), Split(kind, *shares), 3)
    assert not (side == DROPPED).any()
    for label in np.unique(labels):
        mine = side[labels == label]
        count = len(mine)
        tested, validated = int((mine == TEST).sum()), int((mine == VAL).sum())
        assert (mine == TRAIN).sum() >= 1
        assert abs(tested - count * shares[0]) <= 0.5 or tested in (1, count - 1)
        assert tested >= (1 if shares[0] and count > 1 else 0)
        assert abs(validated - count * shares[1]) <= 0.5 or validated + tested == count - 1
        if not shares[0]:
            assert tested == 0


def test_random_depends_on_the_seed_and_the_client_only():
    whole = collected("anna", np.zeros((40, 1)), np.zeros(40))
    first = split_client(whole, Split("random"), 0)
    assert split_client(whole, Split("random"), 0).tolist() == first.tolist()
    assert split_client(whole, Split("random"), 1).tolist() != first.tolist()
    other = collected("ben", np.zeros((40, 1)), np.zeros(40))
    assert split_client(other, Split("random"), 0).tolist() != first.tolist()


@pytest.mark.parametrize("kind", ["session", "official"])
def test_the_last_session_is_tested_on(kind):
    session = np.array([0, 1] * 20)
    whole = collected("anna", np.zeros((40, 1)), np.arange(40) // 20, session)
    side = split_client(whole, Split(kind, 0.3, 0.1), 0)
    assert ((side == TEST) == (session == 1)).all()
    for label in (0, 1):
        assert (side[whole.y == label] == VAL).sum() == 1  # a tenth of the ten that are left


def test_a_client_of_one_session_is_split_at_random_or_apart_if_windows_overlap():
    trials = collected("anna", np.zeros((40, 1)), np.zeros(40), session=0)
    assert (split_client(trials, Split("session", 0.25, 0.1), 0) == TEST).sum() == 10
    windows = client(range(0, 80, 2), session=[0] * 40)
    side = split_client(windows, Split("session", 0.25, 0.1), 0)
    assert (side == TEST).sum() == 10
    assert slow_shared(windows.origin[side == TRAIN], windows.origin[side == TEST]) == 0


def test_official_splits():
    zeros = np.zeros((4, 1))
    with pytest.raises(UserError, match=r"client 'anna' has no official split; say split = .chronological."):
        split_client(collected("anna", zeros, np.zeros(4)), Split("official"), 0)
    only_train, only_test = (collected("anna", zeros, np.zeros(4), session=number) for number in (0, 1))
    assert split_client(only_train, Split("official", val=0.25), 0).tolist().count(TRAIN) == 3
    assert split_client(only_test, Split("official"), 0).tolist() == [TEST] * 4


@pytest.mark.parametrize("kind", ["chronological", "random", "session", "official"])
def test_a_client_without_samples(kind):
    empty = collected("anna", np.zeros((0, 1)), np.zeros(0))
    assert split_client(empty, Split(kind), 0).tolist() == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"test": 0.6, "val": 0.5}, "split: test = 0.6 and val = 0.5; give shares that leave something to train on"),
        ({"test": -0.1}, "split: test = -0.1 and val = 0.1; give shares that leave something to train on"),
        ({"tset": 0.3}, "split has no option 'tset'; did you mean 'test'?"),
        ("rendom", "split: 'kind' is 'rendom'; expected 'chronological', 'random', 'session' or 'official'"),
        ({"test": "much"}, "split: 'test' is 'much'; expected a number"),
    ],
)
def test_mistakes_in_a_split(value, message):
    with pytest.raises(UserError) as error:
        parse_split(value, Split())
    assert str(error.value) == message


def test_what_is_not_said_is_as_in_the_default():
    default = Split("session", 0.25, 0.0)
    assert parse_split(None, default) == default
    assert parse_split("random", default) == Split("random", 0.25, 0.0)
    assert parse_split({"val": 0.2}, default) == Split("session", 0.25, 0.2)


def test_client_data_takes_every_sample_to_its_side():
    whole = client(range(0, 24, 4), labels=[0, 1, 0, 1, 0, 1])
    data = client_data(whole, np.array([TEST, TRAIN, DROPPED, VAL, TRAIN, TEST]))
    assert data.train.x.tolist() == [[4], [16]]
    assert data.train.y.tolist() == [1, 0]
    assert data.val.origin.tolist() == [[0, 12, 16]]
    assert data.test.x.tolist() == [[0], [20]]
    images = collected("anna", np.frombuffer(bytes([0, 51, 255]), np.uint8).reshape(3, 1), np.zeros(3))
    pixels = client_data(images, np.zeros(3, int))
    assert pixels.train.x.dtype == torch.uint8
    torch.testing.assert_close(in_floats(pixels).train.x, torch.tensor([[0.0], [0.2], [1.0]]))


# ---------------------------------------------------------------- normalisation


def federation(train, test=None, channels=None):
    def samples(x):
        x = torch.as_tensor(np.asarray(x, np.float32))
        return Samples(x, torch.zeros(len(x), dtype=torch.int64))

    train = samples(train)
    test = samples(test if test is not None else train.x[:0])
    traits = {"channels": channels} if channels else {}
    return Federation("mine", Task(("a",)), (ClientData("anna", train, samples(train.x[:0]), test, traits),))


def test_channels_as_scikit_learn_scales_them():
    rng = np.random.default_rng(0)
    scale, shift = np.array([1e-7, 1.0, 50.0])[:, None], np.array([0.0, 9.81, -1000.0])[:, None]
    train, test = (rng.normal(size=(n, 3, 20)) * scale + shift for n in (30, 10))
    train[:, :, 3] *= 1.5
    got = normalised(federation(train, test), "channel").clients[0]
    flat = train.astype(np.float32).transpose(0, 2, 1).reshape(-1, 3).astype(np.float64)
    scaler = StandardScaler().fit(flat)
    for x, result in ((train, got.train.x), (test, got.test.x)):
        expected = scaler.transform(x.astype(np.float32).transpose(0, 2, 1).reshape(-1, 3))
        np.testing.assert_allclose(result.numpy().transpose(0, 2, 1).reshape(-1, 3), expected, atol=2e-4)


def test_features_and_images_are_scaled_too():
    rng = np.random.default_rng(0)
    features = rng.normal(3, 2, (50, 4))
    got = normalised(federation(features), "channel").clients[0].train.x
    np.testing.assert_allclose(got, StandardScaler().fit_transform(features), atol=1e-5)
    images = rng.normal(3, 2, (20, 2, 5, 6))
    got = normalised(federation(images), "channel").clients[0].train.x
    assert got.shape == images.shape
    np.testing.assert_allclose(got.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(got.std((0, 2, 3), correction=0), 1, atol=1e-5)


def test_sensors_by_hand():
    # acc: the values 0, 2 | 4, 6 have mean 3 and variance 5; a channel alone is its own sensor
    train = [[[0, 2], [4, 6], [10, 30]]]
    got = normalised(federation(train, channels=["acc_x", "acc_y", "pressure"]), "sensor").clients[0].train.x
    root = np.sqrt(5)
    expected = [[[-3 / root, -1 / root], [1 / root, 3 / root], [-1, 1]]]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_without_names_every_channel_is_a_sensor():
    train = np.random.default_rng(0).normal(5, 3, (10, 3, 8))
    made = [normalised(federation(train), how).clients[0].train.x for how in ("sensor", "channel")]
    torch.testing.assert_close(*made)


def test_what_is_tested_on_does_not_matter_for_what_is_trained_on():
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(10, 2, 8)), rng.normal(size=(10, 2, 8))
    for how in ("channel", "sensor"):
        one, other = (normalised(federation(train, t, ["acc_x", "acc_y"]), how).clients[0] for t in (test, 1e6 * test))
        assert torch.equal(one.train.x, other.train.x)
        # and the test samples are only shifted and scaled by what was learnt from train
        torch.testing.assert_close(one.test.x.diff(dim=2) * 1e6, other.test.x.diff(dim=2), rtol=1e-2, atol=20)


def test_a_channel_that_stands_still_is_only_shifted():
    train = np.full((5, 2, 4), 9.81)
    train[:, 1] = 0
    got = normalised(federation(train, train + 1), "channel").clients[0]
    np.testing.assert_allclose(got.train.x, 0, atol=1e-5)
    np.testing.assert_allclose(got.test.x, 1, atol=1e-5)


def test_missing_values_spoil_nothing_else():
    train = np.array([[[1.0, 3.0]], [[np.nan, np.inf]], [[1.0, 3.0]]])
    got = normalised(federation(train), "channel").clients[0].train.x
    assert got[0].tolist() == got[2].tolist() == [[-1.0, 1.0]]
    assert not got[1].isfinite().any()
    left = normalised(federation(train), "channel").check("drop").clients[0]
    assert len(left.train) == 2


def test_newcomers_are_scaled_by_their_own():
    one = federation([[[0.0, 2.0]]])
    other = ClientData("ben", *(Samples(torch.tensor([[[10.0, 30.0]]]), torch.zeros(1).long()),) * 3)
    both = normalised(Federation("mine", one.task, one.clients, newcomers=(other,)), "channel")
    assert both.newcomers[0].test.x.tolist() == [[[-1.0, 1.0]]]
    assert normalised(one, "none") is one


def test_at_most():
    y = torch.tensor([0] * 50 + [1] * 2 + [2] * 20)
    train = Samples(torch.arange(72.0)[:, None], y)
    whole = Federation("mine", Task(("a", "b", "c")), (ClientData("anna", train, train, train),))
    got = at_most(whole, 10, 0).clients[0]
    assert torch.bincount(got.train.y).tolist() == [4, 2, 4]
    assert len(got.test) == 72
    assert (got.train.x[:, 0].diff() > 0).all()
    assert torch.equal(y[got.train.x[:, 0].long()], got.train.y)
    assert torch.equal(at_most(whole, 10, 0).clients[0].train.x, got.train.x)
    assert not torch.equal(at_most(whole, 10, 1).clients[0].train.x, got.train.x)
    assert len(at_most(whole, 100, 0).clients[0].train) == 72
    assert len(at_most(whole, 1, 0).clients[0].train) == 1


def test_features_are_scaled_one_by_one_whatever_their_shape():
    """The first value of a sample is 1 or 3, the second 10 or 50, the third stands still; one number would not do."""
    train = np.array([[[1.0, 10.0, 7.0]], [[3.0, 50.0, 7.0]]])
    test = np.array([[[2.0, 70.0, 8.0]]])
    for shape in ((-1, 1, 3), (-1, 3)):
        got = normalised(federation(train.reshape(shape), test.reshape(shape)), "feature").clients[0]
        assert got.train.x.reshape(2, 3).tolist() == [[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]
        assert got.test.x.flatten().tolist() == [0.0, 2.0, 1.0]
        assert got.train.x.shape[1:] == got.test.x.shape[1:] == train.reshape(shape).shape[1:]
