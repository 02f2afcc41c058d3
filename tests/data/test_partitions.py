"""Partitions: nothing dealt twice, nothing lost unasked, Dirichlet shares as in the books, and it always ends."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, kstest

from conftest import blobs
from fedsense.data.partitions import (
    PARTITIONS,
    Dirichlet,
    Exponential,
    Iid,
    Linear,
    Pathological,
    Shard,
    Size,
    Square,
    _fill,
    _following,
    apportion,
    parse_partition,
    redeal,
)
from fedsense.errors import UserError
from fedsense.federation import SPLITS, ClientData, Federation, Samples, Task
from fedsense.work import stream

labels = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(lambda values: np.array(values, dtype=np.int64))
alphas = st.one_of(st.floats(1e-6, 1e6), st.sampled_from([1e-320, 1e-9, 1e9, 1e300]))
partitions = st.one_of(
    st.just(Iid()),
    st.builds(Dirichlet, alphas, st.integers(1, 12), st.booleans()),
    st.builds(Pathological, st.integers(1, 6), st.sampled_from(["random", "deterministic", "first-deterministic"])),
    st.builds(Shard, st.integers(1, 4), st.none() | st.integers(1, 9), st.booleans()),
    st.builds(Shard, st.none(), st.integers(1, 9), st.booleans()),
    st.builds(Size, st.lists(st.integers(1, 20), min_size=1, max_size=6).map(tuple)),
    st.just(Linear()),
    st.just(Square()),
    st.just(Exponential()),
)
KEEPS_ALL = (Iid, Dirichlet, Pathological, Linear, Square, Exponential)


def sizes(parts):
    return [len(part) for part in parts]


def table(y, parts, classes):
    return np.stack([np.bincount(y[part], minlength=classes) for part in parts], axis=1)


@settings(max_examples=300, deadline=None)
@given(labels, partitions, st.integers(1, 12), st.integers(0, 5))
def test_each_client_gets_samples_no_sample_goes_twice_and_the_seed_decides(y, partition, clients, seed):
    try:
        parts = partition.deal(y, clients, stream(seed))
    except UserError:
        with pytest.raises(UserError, match=rf"\A{partition.kind}: .*\Z"):  # one line
            partition.deal(y, clients, stream(seed))
        return
    together = np.concatenate(parts)
    assert len(parts) == clients
    assert min(sizes(parts)) >= 1
    assert all((np.diff(part) > 0).all() for part in parts)
    assert len(np.unique(together)) == len(together)
    assert np.isin(together, np.arange(len(y))).all()
    if isinstance(partition, KEEPS_ALL):
        assert len(together) == len(y)
    again = partition.deal(y.copy(), clients, stream(seed))
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


def test_another_seed_deals_otherwise():
    y = np.repeat(np.arange(4), 50)
    options = {"dirichlet": (1.0,), "pathological": (2,), "shard": (2,), "size": ((20, 30, 40, 50),)}
    for kind, make in PARTITIONS.items():
        one, other = (make(*options.get(kind, ())).deal(y, 4, stream(seed)) for seed in (0, 1))
        assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True)), kind


@settings(max_examples=100, deadline=None)
@given(labels, alphas, st.integers(1, 12), st.booleans(), st.data())
def test_dirichlet_always_ends_and_gives_everyone_enough_when_that_is_possible(y, alpha, clients, balanced, data):
    clients = min(clients, len(y))
    least = data.draw(st.integers(1, len(y) // clients))
    parts, note = Dirichlet(alpha, least, balanced).noted(y, clients, stream(1))
    assert min(sizes(parts)) >= least
    assert sum(sizes(parts)) == len(y)
    assert note == "" or note.endswith(f" of {len(y)} samples were moved so that every client has at least {least}")


def drawn_shares(alpha, clients, deals, classes=8, each=4000):
    y = np.repeat(np.arange(classes), each)
    rows = [table(y, Dirichlet(alpha, 1).deal(y, clients, stream("dirichlet", i)), classes) for i in range(deals)]
    return np.stack(rows) / each  # [deals, classes, clients]


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0])
def test_dirichlet_shares_have_the_mean_variance_and_law_of_the_books(alpha):
    clients = 5
    shares = drawn_shares(alpha, clients, deals=150)
    mean, count = 1 / clients, shares[..., 0].size
    variance = mean * (1 - mean) / (clients * alpha + 1)  # of a component of Dirichlet(alpha, ..., alpha)
    assert np.abs(shares.mean((0, 1)) - mean).max() < 4 * np.sqrt(variance / count)
    assert shares.var((0, 1)) == pytest.approx(np.full(clients, variance), rel=0.2)
    covariance = np.mean((shares[..., 0] - mean) * (shares[..., 1] - mean))
    assert covariance == pytest.approx(-variance / (clients - 1), rel=0.35)
    # one component is Beta(alpha, (clients - 1) alpha)
    assert kstest(shares[..., 2].ravel(), beta(alpha, (clients - 1) * alpha).cdf).pvalue > 1e-3


def test_an_alpha_for_each_class_goes_to_the_classes_in_order():
    y = np.repeat([3, 5, 9], 3000)  # class numbers need not be 0, 1, 2
    rows = []
    for i in range(200):
        parts = Dirichlet((0.2, 1.0, 1e6), 1).deal(y, 4, stream(i))
        rows.append(table(y, parts, 10)[[3, 5, 9]] / 3000)
    variance = np.stack(rows).var(0).mean(1)
    expected = [0.25 * 0.75 / (4 * alpha + 1) for alpha in (0.2, 1.0)]
    assert variance[:2] == pytest.approx(expected, rel=0.2)
    assert variance[2] < 1e-6


def test_dirichlet_at_the_ends_of_alpha():
    y = np.repeat(np.arange(5), 40)
    even = Dirichlet(1e6).deal(y, 4, stream(0))
    assert (np.abs(table(y, even, 5) - 10) <= 1).all()
    parts, note = Dirichlet(1e-6, 10).noted(y, 8, stream(0))
    # a class goes to one client whole; 3 clients (or more, where a client won two) have nothing and are given 10
    assert min(sizes(parts)) == 10
    assert int(note.split()[0]) >= 30
    assert all((column > 0).sum() == 1 for column in table(y, parts, 5).T[np.array(sizes(parts)) == 10])


def test_moved_samples_follow_the_mix_the_client_drew():
    counts = np.array([[2, 30, 1], [1, 0, 30], [0, 10, 10]])
    mix = np.array([[2.0, 1, 1], [1, 1, 1], [1e-9, 1, 1]])  # client 0 drew two of class 0 for one of class 1
    wishes = np.log(mix)
    assert _fill(counts, wishes, 9) == 6
    assert counts.tolist() == [[6, 26, 1], [3, 0, 28], [0, 10, 10]]


def test_moving_stops_where_the_giver_would_lack_samples():
    counts = np.array([[0, 3, 0], [0, 0, 6]])  # client 0 wants class 0 only, of which client 1 can spare none
    assert _fill(counts, np.array([[50.0, 0, 0], [0, 0, 0]]), 3) == 3
    assert counts.tolist() == [[0, 3, 0], [3, 0, 3]]


def test_self_balancing_stops_a_client_above_the_average():
    y = np.repeat(np.arange(20), 30)
    spread = [np.ptp(sizes(Dirichlet(0.2, 1, balance).deal(y, 6, stream(3)))) for balance in (False, True)]
    assert spread[1] < spread[0]
    parts = Dirichlet(0.2, 1, True).deal(y, 6, stream(3))
    assert max(sizes(parts)) <= 100 + 30  # the average, and one class on top


def test_pathological_modes():
    y = np.repeat([0, 2, 4, 7], 12)
    parts = Pathological(2, "deterministic").deal(y, 4, stream(0))
    assert [np.unique(y[part]).tolist() for part in parts] == [[0, 2], [2, 4], [4, 7], [0, 7]]
    assert sizes(parts) == [12, 12, 12, 12]
    parts = Pathological(2, "first-deterministic").deal(y, 5, stream(0))
    for first, part in zip([0, 2, 4, 7, 0], parts, strict=True):
        assert first in y[part]
        assert len(np.unique(y[part])) == 2
    for seed in range(50):  # a single random draw leaves a class out about one time in five
        parts = Pathological(1).deal(y, 8, stream(seed))
        assert {len(np.unique(y[part])) for part in parts} == {1}
        assert sum(sizes(parts)) == len(y)


def test_a_class_is_shared_out_evenly_among_those_who_have_it():
    y = np.zeros(11, dtype=np.int64)
    first = [sizes(Pathological(1).deal(y, 3, stream(seed))) for seed in range(40)]
    assert {tuple(sorted(row)) for row in first} == {(3, 4, 4)}
    assert len({tuple(row) for row in first}) == 3  # who gets less is drawn


def test_shards_as_in_the_paper_that_brought_them():
    y = stream(0).permutation(np.repeat(np.arange(10), 60))
    parts = Shard(num_shards_per_partition=2).deal(y, 10, stream(0))
    assert sizes(parts) == [60] * 10
    assert max(len(np.unique(y[part])) for part in parts) <= 2


@pytest.mark.parametrize(
    ("shard", "clients", "expected"),
    [
        (Shard(2, 3), 4, [6, 6, 6, 6]),  # 24 of 31
        (Shard(2, 3, True), 4, [6, 6, 6, 6]),
        (Shard(2), 4, [6, 6, 6, 6]),  # 31 // 8 = 3 a shard
        (Shard(None, 4), 3, [12, 8, 8]),  # 7 shards, 3 samples left out
        (Shard(None, 4, True), 8, [4, 4, 4, 4, 4, 4, 4, 3]),  # 8 shards, the last of 3
    ],
)
def test_sizes_of_shards(shard, clients, expected):
    found = sizes(shard.deal(np.arange(31) // 8, clients, stream(0)))
    assert sorted(found, reverse=True) == expected


@pytest.mark.parametrize(
    ("partition", "samples", "expected"),
    [
        (Iid(), 10, [3, 3, 2, 2]),
        (Linear(), 20, [2, 4, 6, 8]),
        (Linear(), 23, [2, 4, 6, 11]),  # 2.3, 4.6, 6.9, and what is left
        (Square(), 60, [2, 8, 18, 32]),
        (Exponential(), 100, [3, 8, 23, 66]),  # e^i / (e + e² + e³ + e⁴) = .0321, .0871, .2369, .6439
        (Size((1, 2, 3, 4)), 20, [1, 2, 3, 4]),
    ],
)
def test_sizes(partition, samples, expected):
    assert sizes(partition.deal(np.zeros(samples, dtype=np.int64), 4, stream(0))) == expected


Y = np.repeat(np.arange(3), 10)


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (Iid(), 31, "iid: there are 30 samples for 31 clients; ask for at most 30 clients"),
        (Iid(), 0, "iid: clients = 0; give at least 1"),
        (
            Dirichlet(0.3),
            4,
            "dirichlet: 4 clients of at least 10 samples need 40, but there are 30; lower min_partition_size to at "
            "most 7, or ask for fewer clients",
        ),
        (Dirichlet((1, 2)), 2, "dirichlet: alpha lists 2 numbers, but 3 classes occur; give one a class"),
        (Pathological(4), 2, "pathological: num_classes_per_partition is 4, but 3 classes occur; give at most 3"),
        (
            Pathological(1),
            2,
            "pathological: nobody gets class [012]: 2 clients with 1 of 3 classes each leave it out; ask for more "
            "clients, or for more classes a client",
        ),
        (
            Pathological(2, "deterministic"),
            18,
            "pathological: 12 clients want class 0, which has 10 samples; ask for fewer clients, or for fewer classes "
            "a client",
        ),
        (
            Shard(8),
            4,
            "shard: 4 clients with 8 shards of 1 need 32 samples, but there are 30; ask for fewer clients, or fewer "
            "or smaller shards",
        ),
        (
            Shard(2, 5),
            4,
            "shard: 4 clients with 2 shards of 5 need 40 samples, but there are 30; ask for fewer clients, or fewer "
            "or smaller shards",
        ),
        (
            Shard(None, 8),
            4,
            "shard: 30 samples make 3 shards of 8, too few for 4 clients; give a shard_size of at most 7, or ask for "
            "fewer clients",
        ),
        (Size((3, 4)), 3, "size: partition_sizes lists 2 sizes for 3 clients; give one a client"),
        (Size((20, 11)), 2, "size: partition_sizes add up to 31, but there are 30 samples; give smaller sizes"),
        (Exponential(), 5, "exponential: 30 samples leave 2 of 5 clients with none; ask for fewer clients"),
        (Square(), 9, "square: 30 samples leave 3 of 9 clients with none; ask for fewer clients"),
    ],
)
def test_what_cannot_be_dealt_is_explained(partition, clients, message):
    with pytest.raises(UserError, match=rf"\A{message}\Z"):
        partition.deal(Y, clients, stream(0))


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("iid", Iid()),
        ({"kind": "iid"}, Iid()),
        ({"kind": "dirichlet", "alpha": 1}, Dirichlet(1.0)),
        ({"kind": "dirichlet", "alpha": [1, 0.5], "min-partition-size": 2}, Dirichlet((1.0, 0.5), 2)),
        ({"kind": "dirichlet", "alpha": 2.0, "self_balancing": True}, Dirichlet(2.0, self_balancing=True)),
        ({"kind": "pathological", "num-classes-per-partition": 2}, Pathological(2)),
        ({"kind": "shard", "num_shards-per_partition": 2}, Shard(2)),
        ({"kind": "size", "partition-sizes": [4, 5]}, Size((4, 5))),
    ],
)
def test_partitions_as_recipes_write_them(written, made):
    assert parse_partition(written) == made


@pytest.mark.parametrize(
    ("written", "message", "about"),
    [
        ("dirichlett", "there is no partition 'dirichlett'; did you mean 'dirichlet'?", "dirichlett"),
        ({"kind": "dirichlet"}, "dirichlet needs 'alpha', for example {kind = \"dirichlet\", alpha = 0.3}",
         "dirichlet"),
        ({"kind": "dirichlet", "alfa": 1}, "dirichlet has no option 'alfa'; did you mean 'alpha'?", "alfa"),
        ({"kind": "dirichlet", "alpha": 0}, "dirichlet: alpha is 0.0; it must be above 0 and finite", "alpha"),
        ({"kind": "dirichlet", "alpha": True}, "dirichlet: 'alpha' must be a number, and is true", "alpha"),
        ({"kind": "dirichlet", "alpha": "x"}, "dirichlet: 'alpha' is 'x'; expected a number", "alpha"),
        (
            {"kind": "dirichlet", "alpha": 1, "min-partition-size": 0},
            "dirichlet: min_partition_size is 0; give at least 1",
            "min-partition-size",
        ),
        ({"kind": "shard"}, "shard: give num_shards_per_partition, or shard_size, or both", ""),
        ({"kind": "shard", "shard-size": 0}, "shard: shard_size is 0; give at least 1", "shard-size"),
        ({"kind": "size", "partition_sizes": [3, 0]}, "size: partition_sizes is [3, 0]; give each client at least 1",
         "partition_sizes"),
        ({"alpha": 1}, "a partition needs a kind; valid names: dirichlet, exponential, iid, linear, pathological, "
         "shard, size, square", ""),
        (3, 'a partition is 3; expected its name, or a table: {kind = "…", …}', ""),
    ],
)  # fmt: skip
def test_mistakes_in_partitions_are_explained(written, message, about):
    with pytest.raises(UserError) as caught:
        parse_partition(written)
    assert str(caught.value) == message
    assert caught.value.about == about


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda w: sum(w) > 1e-6), st.integers(0, 500))
def test_apportioned_numbers_add_up_and_stay_within_one(weights, total):
    weights = np.array(weights)
    found = apportion(weights, total, stream(0))
    assert found.sum() == total
    assert (np.abs(found - weights / weights.sum() * total) < 1 + 1e-9).all()


def test_test_samples_follow_the_training_samples():
    trains = np.array([[30, 10, 0], [0, 1, 99], [5, 0, 0], [0, 0, 0]])
    found = _following(trains, np.array([8, 10, 3, 7]), stream(0))
    # 8 as 30 : 10; 10 as 1 : 99 is 0.1 and 9.9, but who trains on a class is tested on it; nobody trains on the last
    assert found.tolist() == [[6, 2, 0], [0, 1, 9], [3, 0, 0], [0, 0, 0]]


def test_whoever_trains_is_tested_where_someone_can_spare_a_sample():
    trains = np.array([[20, 20, 1], [20, 0, 0]])
    found = _following(trains, np.array([2, 2]), stream(0))  # client 2 is owed 0.05 of two samples
    assert found.sum(1).tolist() == [2, 2]
    assert (found.sum(0) > 0).all()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), min_size=5, max_size=5), min_size=3, max_size=3),
    st.lists(st.integers(0, 12), min_size=3, max_size=3),
)
def test_no_test_sample_of_a_class_that_is_trained_on_is_lost(trains, held):
    trains, held = np.array(trains), np.array(held)
    found = _following(trains, held, stream(0))
    assert found.sum(1).tolist() == np.where(trains.sum(1) > 0, held, 0).tolist()
    assert (found[trains == 0] == 0).all()
    holders = (trains > 0).sum(1)
    for row, has, size in zip(found, trains > 0, held, strict=True):
        assert (row[has] > 0).all() or size < has.sum()
    if (held >= holders).all():
        assert (found.sum(0)[trains.sum(0) > 0] > 0).all()


def numbered(clients, classes=3, origin=True):
    """Clients whose samples carry a number of their own as x."""
    made, number = [], 0
    for i, per_split in enumerate(clients):
        splits = []
        for split, count in enumerate(per_split):
            x = torch.arange(number, number + count, dtype=torch.float32).reshape(-1, 1, 1)
            recording = torch.arange(count) // 4 + (0 if split == 0 else 1)  # recordings of train go on in the others
            place = torch.stack([recording, torch.arange(count), torch.arange(count) + 1], dim=1)
            splits.append(Samples(x, torch.arange(count) % classes, place if origin else None))
            number += count
        made.append(ClientData(f"p{i}", *splits, traits={"hand": "left"}))
    return Federation("numbered", Task(tuple("abcdef"[:classes])), tuple(made), description="Numbers.")


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(0.5, 2), Pathological(2), Linear()])
def test_redealt_federations_hold_the_same_samples(partition):
    before = numbered([(30, 9, 12), (21, 0, 15), (12, 6, 9)])
    after = redeal(before, partition, 5, seed=4)
    assert after.ids == ["client-000", "client-001", "client-002", "client-003", "client-004"]
    assert all(client.model is None for client in after)
    shared = set.intersection(*(set(client.traits.items()) for client in before))
    assert all(set(client.traits.items()) == shared for client in after)  # what is true of everyone
    for split in SPLITS:
        values = [{float(x): int(y) for c in f for x, y in zip(c.split(split).x, c.split(split).y, strict=True)}
                  for f in (before, after)]  # fmt: skip
        assert values[0] == values[1]
    assert after.description.startswith("Numbers.; dealt anew to 5 clients: ")
    assert redeal(before, partition, 5, seed=4).fingerprint == after.fingerprint
    assert redeal(before, partition, 5, seed=5).fingerprint != after.fingerprint


def test_redealt_recordings_keep_apart_what_came_from_different_clients():
    before = numbered([(10, 0, 8), (6, 0, 5)])
    after = redeal(before, Iid(), 3, seed=0)
    source = {}
    for client in before:
        for split in SPLITS:
            samples = client.split(split)
            for x, place in zip(samples.x, samples.origin.tolist(), strict=True):
                source[float(x)] = (client.id, place)
    pairs = set()
    for client in after:
        for split in ("train", "test"):
            samples = client.split(split)
            for x, (recording, *span) in zip(samples.x, samples.origin.tolist(), strict=True):
                was, (old, *old_span) = source[float(x)]
                assert span == old_span
                pairs.add(((was, old), recording))
    # p0 has recordings 0 to 2, in train and test alike, so those of p1 (0 to 2) become 3 to 5
    assert pairs == {(("p0", i), i) for i in range(3)} | {(("p1", i), i + 3) for i in range(3)}


def test_origins_that_someone_lacks_are_unknown_afterwards():
    known, unknown = numbered([(10, 0, 4)]), numbered([(10, 0, 4)], origin=False)
    other = ClientData("q", *(unknown.clients[0].split(s) for s in SPLITS))
    after = redeal(known.with_clients([*known.clients, other]), Iid(), 2, seed=0)
    assert after.clients[0].train.origin is None
    assert len(after.clients[0].val) == 0
    assert after.clients[0].val.x.shape == (0, 1, 1)


def test_test_mix_follows_train_mix_in_a_federation():
    before = numbered([(300, 60, 120)] * 2)
    after = redeal(before, Dirichlet(0.4, 10), 4, seed=1)
    for split in ("val", "test"):
        train, other = (np.array([*after.class_counts(name).values()]) for name in ("train", split))
        owed = train / train.sum(0) * other.sum(0)
        assert np.abs(other - owed).max() < 2.5
        assert ((other > 0) == (train > 0)).all()


def test_what_cannot_be_pooled_is_explained():
    one, other = blobs(clients=2), blobs(clients=1, shape=(3, 6))
    other = ClientData("wide", *(other.clients[0].split(s) for s in SPLITS))
    with pytest.raises(UserError) as caught:
        redeal(one.with_clients([*one.clients, other]), Iid(), 2, 0)
    assert str(caught.value) == (
        "iid pools all recordings, but clients of 'blobs' differ in input shape: 'c01' has [2, 6], 'wide' has [3, 6]; "
        "leave iid out, or keep the clients of one shape"
    )
    named = ClientData("own", *(one.clients[0].split(s) for s in SPLITS), model="mlp")
    with pytest.raises(UserError) as caught:
        redeal(one.with_clients([*one.clients, named]), Iid(), 2, 0)
    assert str(caught.value) == (
        "iid pools all recordings, but clients of 'blobs' have models of their own: 'c01' has none, 'own' has mlp; "
        "leave iid out, or give all clients one model"
    )
    assert redeal(one.with_clients([named]), Iid(), 2, 0).clients[1].model == "mlp"


def test_newcomers_stay_as_they_are():
    before = blobs(clients=3)
    *rest, last = before.clients
    held = before.with_clients(rest, newcomers=(last,))
    after = redeal(held, Iid(), 4, 0)
    assert after.newcomers == (last,)
    assert sum(len(c.train) for c in after) == sum(len(c.train) for c in rest)
    with pytest.raises(UserError, match=r"^iid: a newcomer is called 'client-000', like a new client; hold out after"):
        redeal(after.with_clients(after.clients[1:], newcomers=after.clients[:1]), Iid(), 2, 0)
