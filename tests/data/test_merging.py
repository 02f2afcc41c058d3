"""Several federations as one: ids, classes and their names, who and what is left out, and mistakes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsense
from conftest import real, run
from fedsense import Federation, UserError, merge
from fedsense.data.merging import merged
from fedsense.data.skews import hold_out
from fedsense.federation import ClientData, Samples
from fedsense.methods import METHODS
from fedsense.models.spec import ModelSpec
from fedsense.recipe import load_recipe
from fedsense.work import stream

SPLITS = ("train", "val", "test")


def made(name, classes, labels, shape=(2, 8), **task):
    """A federation whose clients have these labels in each split; the first value of a sample says which it is."""
    clients = {}
    for number, (client, y) in enumerate(labels.items()):
        x = stream(name, client).normal(0, 1, (len(y), *shape)).astype("float32")
        x[:, 0, 0] = number * 1000 + np.arange(len(y))
        clients[client] = {split: (x + place * 100_000, y) for place, split in enumerate(SPLITS)}
    return Federation.from_arrays(clients, classes, name, **task)


def phones(**task):
    labels = {"1": [0, 1, 2, 0], "2": [1, 1, 0, 2]}
    return made("phones", ["seated", "walking", "turning"], labels, (6, 20), **task)


def watches(**task):
    return made("watches", ["walking", "sitting", "typing"], {"1": [0, 1, 2, 2], "3": [1, 0]}, (3, 50), **task)


SEATED = {"phones": {"seated": "sitting"}}


def content(federation, split="train"):
    """What each client has: (mark of the sample, name of its class)."""
    return {
        c.id: [
            (float(x[0, 0]), federation.task.classes[y])
            for x, y in zip(c.split(split).x, c.split(split).y, strict=True)
        ]
        for c in federation.everyone
    }


def test_common_classes_under_common_names():
    both = merge([phones(), watches()], rename=SEATED)
    assert both.name == "phones + watches"
    assert both.ids == ["phones/1", "phones/2", "watches/1", "watches/3"]
    assert both.task.classes == ("sitting", "walking")
    assert [client.input_shape for client in both] == [(6, 20), (6, 20), (3, 50), (3, 50)]
    for place, split in enumerate(SPLITS):
        kept = {
            c: [(mark - place * 100_000, name) for mark, name in found] for c, found in content(both, split).items()
        }
        assert kept == {
            "phones/1": [(0, "sitting"), (1, "walking"), (3, "sitting")],
            "phones/2": [(1000, "walking"), (1001, "walking"), (1002, "sitting")],
            "watches/1": [(0, "walking"), (1, "sitting")],
            "watches/3": [(1000, "sitting"), (1001, "walking")],
        }
    assert both.description == (
        "phones: 18 samples of 2 clients, 6 of other classes left out (6 turning); "
        "watches: 12 samples of 2 clients, 6 of other classes left out (6 typing)"
    )


def test_all_classes_and_who_alone_has_one():
    both, remarks = merged([phones(), watches()], "all", SEATED)
    assert both.task.classes == ("sitting", "walking", "turning", "typing")
    assert remarks == ["only 'phones' has turning", "only 'watches' has typing"]
    assert all(remark in both.description for remark in remarks)
    assert sum(len(c.train) for c in both) == 14
    one, remarks = merged([phones()], "all")
    assert remarks == []
    assert one.ids == ["phones/1", "phones/2"]


def test_listed_classes_in_their_order():
    both, remarks = merged([phones(), watches()], ["walking", "typing"])
    assert both.task.classes == ("walking", "typing")
    assert content(both)["watches/1"] == [(0, "walking"), (2, "typing"), (3, "typing")]
    assert remarks == ["only 'watches' has typing"]


def test_two_classes_of_one_name_become_one():
    stairs = made("hapt", ["up", "down", "walking"], {"1": [0, 1, 2, 1]})
    other = made("wisdm", ["walking", "stairs"], {"9": [0, 1]})
    both = merge([stairs, other], rename={"hapt": {"up": "stairs", "down": "stairs"}})
    assert both.task.classes == ("stairs", "walking")
    assert content(both)["hapt/1"] == [(0, "stairs"), (1, "stairs"), (2, "walking"), (3, "stairs")]
    swapped = merge([stairs], rename={"hapt": {"up": "down", "down": "up"}})
    assert [name for _, name in content(swapped)["hapt/1"]] == ["down", "up", "walking", "up"]


def test_what_nobody_trains_on_is_not_common():
    """A dataset may know more classes than its files hold."""
    partial = made("watches", ["walking", "sitting", "turning"], {"1": [0, 1, 1]})
    both = merge([phones(), partial], rename=SEATED)
    assert both.task.classes == ("sitting", "walking")
    with pytest.raises(UserError, match="no data has a class 'eating'; 'watches' knows it, but has no sample of it"):
        merge([phones(), made("watches", ["walking", "eating"], {"1": [0]})], ["walking", "eating"])


def test_clients_left_with_nothing_are_left_out():
    lone = made("more", ["walking", "sitting", "cycling"], {"a": [0, 1], "b": [2, 2]})
    both, remarks = merged([watches(), lone])
    assert both.ids == ["watches/1", "watches/3", "more/a"]
    assert remarks == ["1 left out, who have nothing to train on of these classes (more/b)"]


def test_people_held_out_stay_so():
    held = hold_out(phones(), ["2"], seed=0)
    both, remarks = merged([held, watches()], rename=SEATED)
    assert [client.id for client in both.newcomers] == ["phones/2"]
    assert [name for _, name in content(both)["phones/2"]] == ["walking", "walking", "sitting"]
    assert "phones: 18 samples of 1 clients and 1 held out" in both.description
    assert remarks == []


def test_somebody_held_out_with_one_device_only_is_told():
    def of(device, held):
        federation = made("duo", ["walking", "sitting"], {f"{i}-{device}": [0, 1] for i in range(3)})
        people = federation.change(lambda c: replace(c, traits={"person": c.id[0]}))
        return hold_out(people, [f"{i}-{device}" for i in held], seed=0)

    _, remarks = merged([of("phone", [0, 1]), of("watch", [2])], labels=["phones", "watches"])
    assert remarks == [
        "'0' of duo (and 2 more) is held out in 'phones', but trains in 'watches'; name who is held out in both"
    ]
    assert merged([of("phone", [0]), of("watch", [0])], labels=["phones", "watches"])[1] == []


def test_traits_models_and_origins_stay():
    origin = torch.tensor([[0, 0, 8], [0, 8, 16], [0, 16, 24]])
    samples = Samples(torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1]), origin)
    client = ClientData("a", samples, samples, samples, {"device": "phone"}, model="coad-cnn")
    first = replace(phones(), clients=(client,))
    both = merge([first, watches()], rename=SEATED)
    kept = both["phones/a"]
    assert kept.traits == {"device": "phone"}
    assert kept.model == "coad-cnn"
    assert kept.train.origin.tolist() == [[0, 0, 8], [0, 16, 24]]


def test_recordings_that_are_not_made_yet_are_not_made():
    def imu(**options):
        return fedsense.load("synthetic-imu", clients=3, samples=24, **options)

    slow, fast = imu(window=40, rate=20.0, seed=1), imu(window=128, seed=2)
    asked = {"slow": {"walking": "strolling"}, "fast": {"walking": "strolling"}}
    whole = merge([slow, fast], rename=asked, labels=["slow", "fast"])
    lazy = [split.recordings for client in whole for split in client.splits]
    assert all(recordings is not None and recordings.here is None for recordings in lazy)
    back = merge([slow, fast], "all", {"slow": asked["slow"]}, ["slow", "fast"])
    assert all(split.recordings is not None and split.recordings.here is None for c in back for split in c.splits)
    assert back.fingerprint != merge([slow, fast], labels=["slow", "fast"]).fingerprint, "labels differ, data alike"
    for client in slow:
        then, now = client.train, back[f"slow/{client.id}"].train
        names = ["strolling" if slow.task.classes[y] == "walking" else slow.task.classes[y] for y in then.y]
        assert [back.task.classes[y] for y in now.y] == names
        assert torch.equal(then.x, now.x)
    twice = merge([merge([back], labels=["one"])], rename={"one": {"strolling": "walking"}})
    assert {twice.task.classes[y] for c in twice for y in c.train.y} == {*slow.task.classes, "walking"}
    some = merge([slow, fast], ["walking", "sitting"], labels=["slow", "fast"])
    assert all(set(client.train.y.tolist()) <= {0, 1} for client in some)
    assert whole.synthetic


NAMES = [f"c{i}" for i in range(6)]


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(
        st.tuples(
            st.permutations(NAMES).flatmap(lambda names: st.integers(2, 6).map(lambda n: names[:n])),
            st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 5),
)
def test_every_sample_of_a_chosen_class_is_kept_with_its_class(parts, seed):
    federations, renames = [], {}
    for number, (names, clients) in enumerate(parts):
        labels = {str(i): [y % len(names) for y in ys] for i, ys in enumerate(clients)}
        federations.append(made(f"f{number}", names, labels))
        rng = stream(seed, number)
        renames[f"f{number}"] = {n: NAMES[rng.integers(6)] for n in names if rng.random() < 0.4}
    whole = merge(federations, "all", renames)
    assert sum(len(c.train) for f in federations for c in f) == sum(len(c.train) for c in whole)
    for f in federations:
        new = renames[f.name]
        for client, found in content(f).items():
            expected = [(mark, new.get(name, name)) for mark, name in found]
            assert content(whole)[f"{f.name}/{client}"] == expected
    held = [Counter(name for c, found in content(whole).items() if c.startswith(f"{f.name}/") for _, name in found)
            for f in federations]  # fmt: skip
    shared = [name for name in whole.task.classes if all(counts[name] for counts in held)]
    if len(shared) < 2:
        with pytest.raises(UserError, match="in common"):
            merge(federations, "common", renames)
    else:
        common = merge(federations, "common", renames)
        assert list(common.task.classes) == shared
        assert sum(len(c.train) for c in common) == sum(counts[name] for counts in held for name in shared)


def counted(name, classes, values=()):
    return made(name, classes, {"1": list(range(len(classes)))}, kind="counting", values=values)


def test_counts_keep_what_they_stand_for():
    both = merge([counted("a", ["none", "two", "five"], (0.0, 2.0, 5.0)), counted("b", ["two", "none"], (2.0, 0.0))])
    assert both.task.kind == "counting"
    assert dict(zip(both.task.classes, both.task.values, strict=True)) == {"none": 0.0, "two": 2.0}
    with pytest.raises(UserError, match="class 'two' stands for 2 in 'a' and for 3 in 'b'; rename one"):
        merge([counted("a", ["none", "two"], (0.0, 2.0)), counted("b", ["two", "none"], (3.0, 0.0))])
    with pytest.raises(UserError, match="different tasks: 'a' of counting, 'phones' of classification; only"):
        merge([counted("a", ["walking", "turning"]), phones()])


def test_values_of_a_regression_stay_as_they_are():
    def speeds(name, quantity, shape):
        return made(name, [quantity], {"1": [0.5, 1.5, -2.0]}, shape, kind="regression")

    both = merge([speeds("a", "speed", (6, 20)), speeds("b", "pace", (3, 20))], rename={"b": {"pace": "speed"}})
    assert both.task.classes == ("speed",)
    assert both.task.kind == "regression"
    assert both["b/1"].train.y.tolist() == [0.5, 1.5, -2.0]
    with pytest.raises(UserError, match="'a' predicts speed, and 'b' pace; rename what means the same"):
        merge([speeds("a", "speed", (6, 20)), speeds("b", "pace", (3, 20))])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"only 'walking' in common, .* 'phones' has seated, walking, turning; 'watches' has walking, sitting"),
        ({"rename": {"phones": {"walking": "going"}}}, r"the data have no class in common, .*; rename classes"),
        ({"rename": {"phones": {"seatd": "sitting"}}}, r"'phones' has no class 'seatd'; did you mean 'seated'"),
        ({"rename": {"phons": {}}}, r"rename names 'phons', and no federation is called so; did you mean 'phones'"),
        ({"rename": {"phones": "sitting"}}, r'rename of \'phones\' is \'sitting\'; give .* \{"seated": "…"\}'),
        ({"rename": {"phones": {"seated": 3}}}, r"'phones' calls 'seated' 3; give a name"),
        ({"classes": "comon"}, r"classes is 'comon'; say \"common\""),
        ({"classes": 3}, r"classes is 3; say"),
        ({"classes": ["walking"]}, r"name at least two"),
        ({"classes": ["walking", "walking"]}, r"names 'walking' twice"),
        ({"classes": ["walking", "siting"]}, r"no data has a class 'siting'; did you mean 'sitting'"),
        ({"classes": ["seated", "turning"]}, r"'watches' has none of the classes seated, turning, but walking"),
        ({"labels": ["a"]}, r"2 federations, but 1 labels"),
        ({"labels": ["a", "a"]}, r"two federations are called 'a'; give each a label"),
        ({"labels": ["a/b", "c"]}, r"label 'a/b': give a word without /"),
        ({"labels": ["", "c"]}, r"label '': give a word"),
    ],
)
def test_mistakes_are_explained(arguments, message):
    with pytest.raises(UserError, match=message):
        merge([phones(), watches()], **arguments)


def test_mistakes_in_federations_are_explained():
    for wrong in (phones(), ["hapt"]):
        with pytest.raises(UserError, match="a list of federations"):
            merge(wrong)
    with pytest.raises(UserError, match="nothing to merge"):
        merge([])
    with pytest.raises(UserError, match="client 'x' of 'odd' has labels from 0 to 7, but there are 2 classes"):
        merge([made("odd", ["walking", "sitting"], {"x": [0, 7]}), watches()])


def test_phones_watches_and_caps_train_in_one_federation():
    """6, 3, 8 and 22 channels at different rates: methods for clients that differ run, others say why not."""
    kinds = {"phones": (6, 100), "watches": (3, 20), "caps": (8, 64), "large-caps": (22, 32)}
    parts = [made(name, ["a", "b", "c"], {"1": [0, 1, 2] * 4, "2": [0, 1] * 4}, shape) for name, shape in kinds.items()]
    mixed = merge(parts)
    spec = ModelSpec(("sensor-cnn",), {"width": 4, "latent": 8, "shared": 6})
    for name in ("local", "hetfedrep", "fedapa"):
        engine = run(METHODS[name](epochs=1), mixed, model=spec, rounds=2)
        assert set(engine.record.scores[-1]["scores"]["personal"]["test"]["accuracy"]) == set(mixed.ids)
    with pytest.raises(UserError) as error:
        run(METHODS["fedavg"](), mixed, model=spec)
    for word in ("adapter.0.weight", "'phones/1'", "'watches/1'", "flic", "hetfedrep", "sensor-cnn", "local"):
        assert word in str(error.value)
    assert str(error.value).endswith("(docs/how-to/mixed-sensors.md)")


def test_the_recipe_of_mixed_sensors_on_real_recordings():
    archives = {"phones": "sp-sw-har", "watches": "sp-sw-har", "wisdm": "wisdm2019-watch", "hapt": "hapt"}
    roots = [f"data.{label}.root={real(f'{name}.tar.xz')}" for label, name in archives.items()]
    recipe = load_recipe("flic/mixed-sensors", roots)
    federation = recipe.federation(0)
    groups = {label: [c for c in federation if c.id.startswith(f"{label}/")] for label in archives}
    assert {label: len(clients) for label, clients in groups.items()} == {
        "phones": 23,
        "watches": 23,
        "wisdm": 51,
        "hapt": 30,
    }
    shapes = {label: {client.input_shape for client in clients} for label, clients in groups.items()}
    assert shapes == {"phones": {(6, 100)}, "watches": {(3, 100)}, "wisdm": {(3, 20)}, "hapt": {(6, 50)}}
    trained = {
        label: {federation.task.classes[y] for c in clients for y in c.train.y} for label, clients in groups.items()
    }
    assert trained["phones"] == trained["watches"] == {"walking", "sitting", "standing-up", "sitting-down"}
    assert trained["wisdm"] == {"walking", "sitting", "standing", "stairs"}
    assert trained["hapt"] == set(recipe.classes)
    common = load_recipe("flic/mixed-sensors", [*roots, "classes=common"]).federation(0)
    assert common.task.classes == ("sitting", "walking")
    spec = recipe.model_spec()
    fedsense.Engine(federation, METHODS["hetfedrep"](), spec, fedsense.Settings(rounds=1))  # shapes are checked here
    with pytest.raises(UserError, match=r"fedavg shares 'adapter.0.weight', but client 'phones/s01-phone'"):
        fedsense.Engine(federation, METHODS["fedavg"](), spec, fedsense.Settings(rounds=1))
