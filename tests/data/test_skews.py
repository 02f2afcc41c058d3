"""Skews take away what was asked, from whom it was asked, and nothing else; a client's draw is its own."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import blobs
from fedsense.data.partitions import Dirichlet, Iid, Size, redeal
from fedsense.data.skews import (
    SKEWS,
    CapPerClass,
    Deal,
    DropClasses,
    Fraction,
    KeepClasses,
    Quantity,
    apply_skews,
    hold_out,
    parse_skews,
)
from fedsense.errors import UserError
from fedsense.federation import SPLITS, ClientData, Federation, Samples, Task
from fedsense.work import seed_of, stream


def client(name, train, test=(4, 4, 4, 4), val=(1, 1, 1, 1)):
    """A client with so many samples of each class in each split, in mixed order, each with a number of its own."""

    def samples(counts, start):
        y = np.repeat(np.arange(len(counts)), counts)
        y = torch.from_numpy(stream(name, start).permutation(y))
        number = start + torch.arange(len(y))
        return Samples(number.float().reshape(-1, 1, 1), y, torch.stack([number % 3, number, number + 1], dim=1))

    return ClientData(name, samples(train, 0), samples(val, 1000), samples(test, 2000), {"name": name}, "mlp")


def federation(*trains, newcomers=()):
    made = [client(f"p{i}", train) for i, train in enumerate((*trains, *newcomers))]
    return Federation(
        "small", Task(("a", "b", "c", "d")), tuple(made[: len(trains)]), False, "", tuple(made[len(trains) :])
    )


def counts(data, split="train"):
    return torch.bincount(data.split(split).y, minlength=4).tolist()


def same(one, other):
    return one.ids == other.ids and one.fingerprint == other.fingerprint


FOUR = [(10, 20, 30, 40), (5, 5, 5, 5), (7, 8, 9, 10), (40, 1, 1, 1)]
shapes = st.lists(st.tuples(*[st.integers(1, 15)] * 4), min_size=1, max_size=4)
skews = st.one_of(
    st.builds(DropClasses, st.integers(0, 3), st.sampled_from(["all", "train"])),
    st.builds(DropClasses, st.tuples(st.integers(0, 1), st.integers(1, 3))),
    st.builds(KeepClasses, st.integers(1, 4), st.sampled_from(["all", "train"])),
    st.builds(Fraction, st.floats(0.001, 1), st.sampled_from(["all", "train"])),
    st.builds(CapPerClass, st.integers(1, 20), st.sampled_from(["all", "train"])),
    st.builds(Quantity, st.floats(0, 5), st.sampled_from(["all", "train"])),
)


@settings(max_examples=200, deadline=None)
@given(shapes, shapes, skews, st.integers(0, 3))
def test_a_skew_only_leaves_out_samples(trains, newcomers, skew, seed):
    before = federation(*trains, newcomers=newcomers)
    untouched = federation(*trains, newcomers=newcomers)
    after = skew.apply(before, seed)
    assert same(before, untouched)
    assert same(after, skew.apply(before, seed))
    everyone = [(*f.clients, *f.newcomers) for f in (before, after)]
    for old, new in zip(*everyone, strict=True):
        assert (new.id, new.traits, new.model) == (old.id, old.traits, old.model)
        for split in SPLITS:
            was, now = old.split(split), new.split(split)
            kept = torch.isin(was.x.flatten(), now.x.flatten())
            expected = was.take(kept)  # in the order they were
            assert torch.equal(now.x, expected.x)
            assert torch.equal(now.y, expected.y)
            assert torch.equal(now.origin, expected.origin)
            if split != "train" and skew.splits == "train":
                assert len(now) == len(was)
        assert len(new.train) > 0


@settings(max_examples=60, deadline=None)
@given(skews.filter(lambda skew: not isinstance(skew, Quantity)), st.integers(0, 5))
def test_what_a_client_loses_does_not_depend_on_who_else_is_there(skew, seed):
    full = federation(*FOUR)
    alone = full.with_clients(full.clients[2:3])
    as_newcomer = full.with_clients(full.clients[:1], newcomers=full.clients[2:3])
    found = [skew.apply(full, seed).clients[2], skew.apply(alone, seed).clients[0]]
    if skew.splits == "all":
        found.append(skew.apply(as_newcomer, seed).newcomers[0])
    for other in found[1:]:
        assert all(torch.equal(found[0].split(s).x, other.split(s).x) for s in SPLITS)


def test_dropped_classes_go_everywhere_or_from_training_only():
    before = federation(*FOUR)
    for old, new in zip(before, DropClasses(2).apply(before, 0), strict=True):
        gone = [c for c in range(4) if counts(new)[c] == 0]
        assert len(gone) == 2
        for split in SPLITS:
            assert counts(new, split) == [0 if c in gone else n for c, n in enumerate(counts(old, split))]
    for old, new in zip(before, DropClasses(2, "train").apply(before, 0), strict=True):
        assert sum(n > 0 for n in counts(new)) == 2
        assert counts(new, "test") == counts(old, "test")


def test_dropped_numbers_are_drawn_uniformly_with_both_ends():
    many = federation(*[(1, 1, 1, 1)] * 900)
    after = DropClasses((0, 2), "train").apply(many, 0)
    left = np.bincount([len(c.train) for c in after], minlength=5)
    assert left[:2].sum() == 0
    assert np.abs(left[2:] - 300).max() < 60  # four deviations
    by_class = np.array([counts(c) for c in after]).sum(0)
    assert np.abs(by_class - 675).max() < 60  # each client keeps 3 of 4 on average


def test_kept_classes_are_those_of_the_client_and_no_others():
    lacks_b = federation((5, 0, 5, 5))  # it is tested on b all the same
    for seed in range(10):
        (kept,) = KeepClasses(2).apply(lacks_b, seed)
        assert sum(n > 0 for n in counts(kept)) == 2
        assert [n > 0 for n in counts(kept, "test")] == [n > 0 for n in counts(kept)]
    sizes = {sum(n > 0 for n in counts(KeepClasses((1, 3)).apply(lacks_b, s).clients[0])) for s in range(30)}
    assert sizes == {1, 2, 3}


def test_a_fraction_is_alike_in_every_class():
    before = federation(*FOUR)
    after = Fraction(0.1).apply(before, 0)
    # a tenth of 10, 20, 30, 40; of 5, 5, 5, 5 (half a sample each, but at least one); of 7, 8, 9, 10 (3.4 in all)
    assert [counts(c) for c in after][:3] == [[1, 2, 3, 4], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert counts(after.clients[3]) == [4, 1, 1, 1]
    assert counts(Fraction(0.5).apply(federation((7, 3, 5, 1)), 0).clients[0]) in (
        [4, 1, 2, 1], [3, 2, 2, 1], [3, 1, 3, 1], [4, 2, 2, 1], [4, 1, 3, 1], [3, 2, 3, 1],
    )  # fmt: skip
    assert len(Fraction(0.5).apply(federation((7, 3, 5, 2)), 0).clients[0].train) == 9  # 8.5, half up
    assert same(Fraction(1.0).apply(before, 0), before)


def test_which_samples_remain_is_random_and_differs_between_seeds_and_positions():
    before = federation((50, 50, 50, 50))
    found = [Fraction(0.1).apply(before, seed) for seed in (0, 1)] + [Fraction(0.1, position=1).apply(before, 0)]
    assert len({f.fingerprint for f in found}) == 3
    chosen = np.zeros(200)
    for seed in range(400):
        chosen[Fraction(0.1).apply(before, seed).clients[0].train.x.flatten().long().numpy()] += 1
    assert np.abs(chosen - 40).max() < 5 * math.sqrt(400 * 0.1 * 0.9)


def test_the_stream_is_that_of_seed_position_kind_and_client():
    before = federation((1, 1, 1, 1))
    rng = stream(7, "skew", 3, "drop-classes", "p0")
    gone = rng.permutation(np.arange(4))[:2]
    (after,) = DropClasses(2, position=3).apply(before, 7)
    assert sorted(set(range(4)) - set(after.train.y.tolist())) == sorted(gone.tolist())


def test_classes_are_capped():
    after = CapPerClass(8).apply(federation(*FOUR), 0)
    assert [counts(c) for c in after] == [[8, 8, 8, 8], [5, 5, 5, 5], [7, 8, 8, 8], [8, 1, 1, 1]]
    assert counts(CapPerClass().apply(federation(*FOUR), 0).clients[0]) == [10, 20, 20, 20]
    assert counts(CapPerClass(2, "all").apply(federation(*FOUR), 0).clients[0], "test") == [2, 2, 2, 2]


def test_quantity_is_log_normal_and_the_largest_keeps_all():
    many = federation(*[(100, 100, 100, 100)] * 150)
    shares = np.array([len(c.train) / 400 for c in Quantity(0.5).apply(many, 0)])
    assert shares.max() == 1
    assert np.log(shares).std() == pytest.approx(0.5, rel=0.2)
    for share, c in zip(shares, Quantity(0.5).apply(many, 0), strict=True):
        assert max(counts(c)) - min(counts(c)) <= 1
        z = stream(0, "skew", 0, "quantity", c.id).standard_normal()
        top = max(stream(0, "skew", 0, "quantity", other.id).standard_normal() for other in many)
        assert share == pytest.approx(math.exp(0.5 * (z - top)), abs=0.5 / 400 + 1e-9)
    assert same(Quantity(0.0).apply(many, 0), many)
    assert {len(c.train) for c in Quantity(1e9).apply(many, 0)} == {400, 4}


def test_newcomers_are_skewed_as_clients_are_unless_only_training_is():
    before = federation((10, 10, 10, 10), newcomers=[(10, 10, 10, 10)])
    after = CapPerClass(3, "all").apply(before, 0)
    assert counts(after.newcomers[0]) == [3, 3, 3, 3]
    sizes = [len(c.train) for c in Quantity(1.0, "all").apply(before, 0).everyone]
    assert max(sizes) == 40
    assert min(sizes) < 40
    for skew in (CapPerClass(3), Quantity(1.0), *parse_skews("LS+QS")):
        assert skew.apply(before, 0).newcomers == before.newcomers


def test_empty_splits_stay_empty():
    bare = client("bare", (4, 4, 4, 4), test=(0, 0, 0, 0), val=(0, 0, 0, 0))
    before = Federation("bare", Task(tuple("abcd")), (bare,))
    for skew in (DropClasses(1), KeepClasses(2), Fraction(0.5, "all"), CapPerClass(1, "all"), Quantity(1.0, "all")):
        (after,) = skew.apply(before, 0)
        assert len(after.val) == len(after.test) == 0
        assert after.test.x.shape == (0, 1, 1)


LS, QS = DropClasses((0, 2), "train"), Fraction(0.1, "train")


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("FS", ()),
        ("LS", (LS,)),
        ("FS+QS", (QS,)),
        ("FS+LS+QS", (LS, Fraction(0.1, position=1))),
        ("QS + LS", (LS, Fraction(0.1, position=1))),
        ([], ()),
        ("cap-per-class", (CapPerClass(20),)),
        ({"kind": "drop_classes", "count": 2}, (DropClasses(2, "all"),)),
        ([{"kind": "drop-classes", "count": [0, 2]}, "QS"], (DropClasses((0, 2)), Fraction(0.1, position=1))),
        ([{"kind": "keep-classes", "count": 3, "splits": "train"}], (KeepClasses(3, "train"),)),
        ({"kind": "quantity", "sigma": 1}, (Quantity(1.0),)),
        ("iid", (Deal(Iid()),)),
        (
            ["QS", {"kind": "dirichlet", "alpha": 0.3, "min-partition-size": 4, "clients": 20}],
            (QS, Deal(Dirichlet(0.3, 4), 20, position=1)),
        ),
    ],
)
def test_skews_as_recipes_write_them(written, made):
    assert parse_skews(written) == made


@pytest.mark.parametrize(
    ("written", "message", "about"),
    [
        ("LS+XS", "there is no short form 'XS' in 'LS+XS'; did you mean 'QS'?", "LS+XS"),
        ("LS+LS", "'LS+LS' names LS twice; once is enough", "LS+LS"),
        ({"kind": "LS"}, "'LS' is a short form and stands alone: skew = \"LS\"", "LS"),
        ("fractoin", "there is no skew 'fractoin'; did you mean 'fraction'?", "fractoin"),
        ({"kind": "dirichelt", "alpha": 1}, "there is no skew 'dirichelt'; did you mean 'dirichlet'?", "dirichelt"),
        ({"kind": "fraction"}, "fraction needs 'keep', for example {kind = \"fraction\", keep = 0.1}", "fraction"),
        ({"kind": "fraction", "kep": 1}, "fraction has no option 'kep'; did you mean 'keep'?", "kep"),
        ({"kind": "fraction", "keep": 0.1, "position": 1}, "fraction has no option 'position'; valid names: keep, "
         "splits", "position"),
        ({"kind": "fraction", "keep": 1.5}, "fraction: keep is 1.5; give a share above 0 and at most 1", "keep"),
        ({"kind": "fraction", "keep": 0}, "fraction: keep is 0; give a share above 0 and at most 1", "keep"),
        ({"kind": "fraction", "keep": 0.1, "splits": "test"}, "fraction: 'splits' is 'test'; expected 'all' or "
         "'train'", "splits"),
        ({"kind": "drop-classes", "count": True}, "drop-classes: 'count' must be a number, and is true", "count"),
        ({"kind": "drop-classes", "count": -1}, "drop-classes: count is -1; give at least 0", "count"),
        ({"kind": "drop-classes", "count": [2, 1]}, "drop-classes: count is [2, 1]; give a number, or [low, high]",
         "count"),
        ({"kind": "keep-classes", "count": [0, 1]}, "keep-classes: count is [0, 1]; give at least 1", "count"),
        ({"kind": "cap-per-class", "count": 0}, "cap-per-class: count is 0; give at least 1", "count"),
        ({"kind": "quantity", "sigma": -1}, "quantity: sigma is -1; give 0 (none) or more", "sigma"),
        ({"kind": "iid", "client": 3}, "iid has no option 'client'; did you mean 'clients'?", "client"),
        ({"kind": "iid", "clients": 0}, "iid: clients = 0; give at least 1", "clients"),
        ({"kind": "iid", "clients": 2.5}, "iid: 'clients' is 2.5; expected a whole number", "clients"),
        (3, 'skew is 3; expected a list: [{kind = "…", …}, …]', "skew"),
        ([3], 'a skew is 3; expected its name, or a table: {kind = "…", …}', ""),
    ],
)  # fmt: skip
def test_mistakes_in_skews_are_explained(written, message, about):
    with pytest.raises(UserError) as caught:
        parse_skews(written)
    assert str(caught.value) == message
    assert caught.value.about == about


@pytest.mark.parametrize("seed", range(5))
def test_a_client_with_few_classes_keeps_one(seed):
    before = federation((5, 5, 5, 5), (5, 0, 0, 5), (0, 7, 0, 0))
    after = DropClasses(2).apply(before, seed)
    assert [len(client.train.y.unique()) for client in after] == [2, 1, 1]
    kept = KeepClasses(3).apply(before, seed)
    assert [len(client.train.y.unique()) for client in kept] == [3, 2, 1]


@pytest.mark.parametrize(
    ("skew", "message"),
    [
        (DropClasses(4), "drop-classes: no client trains on more than 4 classes, and one must stay, but count is 4; "
         "give at most 3"),
        (DropClasses((0, 9)), "drop-classes: no client trains on more than 4 classes, and one must stay, but count is "
         "[0, 9]; give at most 3"),
        (KeepClasses(5), "keep-classes: no client trains on more than 4 classes, but count is 5; give at most 4"),
    ],
)  # fmt: skip
def test_what_no_client_can_give_is_refused(skew, message):
    with pytest.raises(UserError) as caught:
        skew.apply(federation((5, 5, 5, 5), (5, 0, 0, 5)), 0)
    assert str(caught.value) == message


def test_every_skew_is_registered_by_its_name():
    assert sorted(SKEWS) == ["cap-per-class", "drop-classes", "fraction", "keep-classes", "quantity"]
    assert all(entry.kind == kind for kind, entry in SKEWS.items())


@pytest.mark.parametrize("kind", ["iid", "linear", "square", "exponential"])
def test_partitions_can_be_named_in_the_list(kind):
    after = apply_skews(federation((40, 40, 40, 40), (30, 30, 30, 30)), parse_skews([{"kind": kind, "clients": 3}]), 0)
    assert sum(len(client.train) for client in after) == 280
    assert len(after) == 3


def test_skews_are_applied_in_order():
    before = federation((40, 40, 40, 40), (30, 30, 30, 30))
    after = apply_skews(before, parse_skews("FS+LS+QS"), 5)
    step = Fraction(0.1, position=1).apply(DropClasses((0, 2), "train").apply(before, 5), 5)
    assert same(after, step)
    for old, new in zip(before, after, strict=True):
        assert all(n in (0, max(counts(old)) // 10) for n in counts(new))
        assert sum(n > 0 for n in counts(new)) >= 2
        assert counts(new, "test") == counts(old, "test")


def test_a_partition_in_the_list_deals_anew():
    before = blobs(clients=5)
    for table, clients in (({"kind": "iid"}, 5), ({"kind": "iid", "clients": 3}, 3),
                           ({"kind": "size", "partition_sizes": [9, 8]}, 2)):  # fmt: skip
        (skew,) = parse_skews(table)
        assert len(skew.apply(before, 0)) == clients
    again = redeal(before, Size((9, 8)), 2, seed_of(0, "skew", 0, "size"))
    assert same(skew.apply(before, 0), again)
    after = apply_skews(before, parse_skews([{"kind": "dirichlet", "alpha": 0.5, "clients": 6}, "QS"]), 0)
    assert after.ids[-1] == "client-005"
    assert sum(len(c.train) for c in after) < 0.4 * sum(len(c.train) for c in before)


@pytest.mark.parametrize(
    ("which", "held"),
    [(0, 0), (1, 1), (4, 4), (0.2, 1), (0.21, 2), (0.0, 0), (0.6, 3), (["c03", "c01"], 2), ("c02", 1)],
)
def test_held_out_clients_become_newcomers(which, held):
    before = blobs(clients=5)
    after = hold_out(before, which, 0)
    assert len(after.newcomers) == held
    assert sorted([*after.ids, *(c.id for c in after.newcomers)]) == before.ids
    assert after.ids == sorted(after.ids)
    if isinstance(which, list):
        assert after.ids == ["c00", "c02", "c04"]


def test_who_is_held_out_is_drawn_for_each_client_alone():
    before = blobs(clients=8)
    one, more = ({c.id for c in hold_out(before, n, 3).newcomers} for n in (2, 5))
    assert one < more
    backwards = before.with_clients(reversed(before.clients))
    assert {c.id for c in hold_out(backwards, 2, 3).newcomers} == one
    assert len({hold_out(before, 1, seed).newcomers[0].id for seed in range(40)}) > 4
    twice = hold_out(hold_out(before, ["c05"], 0), ["c01"], 0)
    assert [c.id for c in twice.newcomers] == ["c05", "c01"]


def test_a_share_is_rounded_up_but_not_by_the_machine():
    names = {f"c{i:03}": {"train": (np.zeros((1, 1)), [0])} for i in range(100)}
    many = Federation.from_arrays(names, classes=1)
    assert 0.07 * 100 > 7
    assert len(hold_out(many, 0.07, 0).newcomers) == 7


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (3, "held-out takes 3 of the 3 clients of 'blobs'; at least one must remain"),
        (7, "held-out takes 7 of the 3 clients of 'blobs'; at least one must remain"),
        (0.7, "held-out takes 3 of the 3 clients of 'blobs'; at least one must remain"),
        (["c00", "c01", "c02"], "held-out takes 3 of the 3 clients of 'blobs'; at least one must remain"),
        (["c0l"], "no client 'c0l' in 'blobs'; did you mean 'c02'?"),
        (-1, "held-out is -1; give a number of clients from 0, or a share from 0 to 1"),
        (1.5, "held-out is 1.5; give a number of clients from 0, or a share from 0 to 1"),
        (True, "held-out is True; give a number of clients, a share, or a list of their ids"),
        (None, "held-out is None; give a number of clients, a share, or a list of their ids"),
    ],
)
def test_mistakes_in_holding_out_are_explained(which, message):
    with pytest.raises(UserError) as caught:
        hold_out(blobs(clients=3), which, 0)
    assert str(caught.value) == message


def test_all_devices_of_a_person_are_held_out_together():
    """Six clients are three people; a third of them is one person, and nobody held out trains with another device."""
    six = blobs(clients=6)
    owned = six.with_clients(replace(c, traits={"person": f"p{i // 2}"}) for i, c in enumerate(six))
    for which, held in ((0.3, 2), (1, 2), (2, 4), (["c01"], 1)):
        after = hold_out(owned, which, 0)
        assert len(after.newcomers) == held
        if not isinstance(which, list):
            assert {c.traits["person"] for c in after}.isdisjoint(c.traits["person"] for c in after.newcomers)
    with pytest.raises(UserError, match="held-out takes 3 of the 3 people of 'blobs'; at least one must remain"):
        hold_out(owned, 3, 0)
