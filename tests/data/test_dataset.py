"""What every dataset shares, on two tiny ones: one of recordings, one of samples."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsense.data import cache, load, splits
from fedsense.data.dataset import Card, Found, Read, Signals
from fedsense.data.files import Files, only_known
from fedsense.data.packing import pack_federation, unpack_federation
from fedsense.data.splits import Split
from fedsense.data.tables import read_table, stacked
from fedsense.data.windows import Collected, Recording, collected
from fedsense.errors import UserError
from fedsense.federation import Federation

CLASSES = ("sit", "walk", "run")
CHANNELS = ("acc_x", "acc_y", "light")
READS = []  # one entry each time files are read


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSENSE_CACHE", str(tmp_path / "kept"))
    READS.clear()
    return tmp_path / "kept"


def card(name):
    return Card(name, f"Toy {name}", *["…"] * 8)


def read_signals(files: Files, gain: float = 1.0) -> Iterator[Recording]:
    READS.append(gain)
    for file in files.all("*.csv"):
        table = read_table(file, dict.fromkeys(CHANNELS, float) | {"label": str})
        labels = np.array([CLASSES.index(only_known(file, name, CLASSES)) for name in table["label"]])
        client, _, session = file.base.removesuffix(".csv").partition("-")
        yield Recording(
            client, gain * stacked(table, CHANNELS), labels, 100.0, CHANNELS, session=int(session or 0),
            traits={"age": np.int64(30), "hands": ("left", "right")},
        )  # fmt: skip


def read_samples(files: Files) -> list[Collected]:
    READS.append(1)
    table = read_table(files.one("all.csv"), {"client": str, "x": float, "y": int}, missing=True)
    clients = np.unique(table["client"])
    pick = {name: table["client"] == name for name in clients}
    return [collected(name, stacked(table, ["x"])[pick[name]], table["y"][pick[name]], session=0) for name in clients]


SIGNALS = Signals(card("signals"), read_signals, ("*.csv",), CLASSES, window=20)
SAMPLES = Read(card("samples"), read_samples, ("all.csv",), ("0", "1", "2"), split=Split("random", 0.3, 0.1))


def recordings(folder, clients=("anna", "ben"), rows=400, seed=0, spoil=lambda text: text):
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for client in clients:
        labels = np.repeat(CLASSES, rows)
        values = rng.normal([0, 10, 100], 1, (len(labels), 3))
        lines = [f"{x:.4f},{y:.4f},{z:.4f},{label}" for (x, y, z), label in zip(values, labels, strict=True)]
        (folder / f"{client}.csv").write_text(spoil("\n".join(["acc_x,acc_y,light,label", *lines]) + "\n"))
    return folder


def samples(folder, count=60):
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    rows = [f"{'ab'[i % 2]},{rng.normal():.4f},{rng.integers(3)}" for i in range(count)]
    (folder / "all.csv").write_text("\n".join(["client,x,y", *rows]))
    return folder


def build(dataset, folder, missing="refuse", **options):
    return dataset.build(dataset.parse({"root": str(folder), **options}), missing)


def same(first: Federation, second: Federation):
    assert (first.name, first.task, first.description) == (second.name, second.task, second.description)
    assert first.fingerprint == second.fingerprint
    for group in ("clients", "newcomers"):
        assert len(getattr(first, group)) == len(getattr(second, group))
        for one, other in zip(getattr(first, group), getattr(second, group), strict=True):
            assert (one.id, one.traits, one.model) == (other.id, other.traits, other.model)
            for split in ("train", "val", "test"):
                a, b = one.split(split), other.split(split)
                assert torch.equal(a.x, b.x)
                assert torch.equal(a.y, b.y)
                assert (a.origin is None) == (b.origin is None)
                assert a.origin is None or torch.equal(a.origin, b.origin)


def test_recordings_become_a_federation(tmp_path):
    made = build(SIGNALS, recordings(tmp_path / "data"))
    assert made.ids == ["anna", "ben"]
    assert made.task.classes == CLASSES
    anna = made["anna"]
    assert anna.traits == {"age": 30, "hands": ["left", "right"], "channels": list(CHANNELS)}
    # 400 rows of a class at 100 Hz are 200 at 50 Hz: 19 windows of 20, half overlapping; 6 tested, 2 validated,
    # and at each of the two borders one is lost
    assert [torch.bincount(anna.split(name).y).tolist() for name in ("train", "val", "test")] == [
        [10, 10, 10],
        [1, 1, 1],
        [6, 6, 6],
    ]
    assert made.description == "Toy signals: 102 samples of 2 clients"
    for client in made:
        assert client.input_shape == (3, 20)
        torch.testing.assert_close(client.train.x.mean((0, 2)), torch.zeros(3), atol=1e-4, rtol=0)
        for first, second in (("train", "test"), ("train", "val"), ("val", "test")):
            assert splits.shared(client.split(first).origin, client.split(second).origin) == 0


def test_files_are_read_once_and_the_result_is_the_same(tmp_path):
    data = recordings(tmp_path / "data")
    first = build(SIGNALS, data)
    same(build(SIGNALS, data), first)
    build(SIGNALS, data, window=10)  # cut anew, but not read anew
    assert READS == [1.0]
    build(SIGNALS, data, gain=2.0)  # the reader's own option
    assert READS == [1.0, 2.0]
    (tmp_path / "data" / "ben.csv").rename(tmp_path / "data" / "carl.csv")
    assert build(SIGNALS, data).ids == ["anna", "carl"]
    assert READS == [1.0, 2.0, 1.0]
    recordings(data, ["carl"], seed=5)
    assert build(SIGNALS, data).fingerprint != first.fingerprint
    assert len(READS) == 4


def test_without_a_cache_files_are_read_once_a_build_and_the_result_is_the_same(tmp_path, kept, monkeypatch):
    data = recordings(tmp_path / "data")
    first = build(SIGNALS, data)
    monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", "0")
    same(build(SIGNALS, data), first)
    assert len(READS) == 2


def test_another_code_reads_anew(tmp_path, monkeypatch):
    data = recordings(tmp_path / "data")
    build(SIGNALS, data)
    monkeypatch.setattr("fedsense.data.dataset.code_key", lambda: "another")
    build(SIGNALS, data)
    assert len(READS) == 2


def test_writing_into_a_loaded_federation_does_not_change_the_next(tmp_path):
    data = recordings(tmp_path / "data")
    first = build(SIGNALS, data)
    before = first["anna"].train.x.clone()
    first["anna"].train.x.zero_()
    first["anna"].train.y.fill_(2)
    assert torch.equal(build(SIGNALS, data)["anna"].train.x, before)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t.replace("walk", "wlak", 1), "anna.csv: label 'wlak' is unknown; did you mean 'walk'?"),
        (lambda t: t.replace("\n", "\nx", 1), "anna.csv: line 2, column 1 ('acc_x'): 'x0.1257' is no number"),
        (lambda t: t[: t.rindex(",")], "anna.csv: line 1201 has 3 cells, expected 4 (acc_x, acc_y, light, label)"),
        (lambda t: "", "anna.csv: the file is empty"),
        (lambda t: t.replace("light", "lihgt"), "anna.csv: line 1 names no column 'light'; did you mean 'lihgt'?"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_kept(tmp_path, kept, spoil, message):
    data = recordings(tmp_path / "data", spoil=spoil)
    with pytest.raises(UserError) as error:
        build(SIGNALS, data)
    assert str(error.value) == f"{data}/{message}"
    assert not list(kept.glob("*.safetensors")) + list(kept.glob("*.lock")) + list(kept.glob("*.partial"))


def test_wrong_folders(tmp_path):
    with pytest.raises(UserError, match="dataset 'signals': there is no folder or file"):
        build(SIGNALS, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty holds no file like '\*\.csv'"):
        build(SIGNALS, tmp_path / "empty")
    data = recordings(tmp_path / "data", rows=5)
    with pytest.raises(UserError, match=f"dataset 'signals': {data} gives no sample to train on with these options"):
        build(SIGNALS, data)


def test_clients_with_nothing_to_train_on_are_left_out(tmp_path):
    data = recordings(tmp_path / "data", ["anna"])
    recordings(data, ["ben"], rows=5)
    made = build(SIGNALS, data)
    assert made.ids == ["anna"]
    assert made.description.endswith("; 1 left out, who have nothing to train on (ben)")


def test_classes_are_chosen_and_numbered_as_asked(tmp_path):
    data = recordings(tmp_path / "data")
    whole, two = build(SIGNALS, data, normalise="none"), build(SIGNALS, data, classes=["run", "sit"], normalise="none")
    assert two.task.classes == ("run", "sit")
    for new, old in ((0, 2), (1, 0)):
        for split in ("train", "test"):
            one, other = two["anna"].split(split), whole["anna"].split(split)
            assert torch.equal(one.x[one.y == new], other.x[other.y == old])
    with pytest.raises(UserError, match=r"dataset 'signals' has no class 'rum'; did you mean 'run'\?"):
        build(SIGNALS, data, classes=["rum"])
    with pytest.raises(UserError, match="classes names 'run' twice; name it once"):
        SIGNALS.parse({"classes": ["run", "sit", "run"]})


def test_channels_are_chosen_by_name_or_sensor(tmp_path):
    data = recordings(tmp_path / "data")
    whole = build(SIGNALS, data, normalise="none")["anna"].train.x
    for asked, places in ((["acc"], [0, 1]), (["light", "acc_y"], [2, 1]), (["acc_y", "acc"], [1, 0])):
        got = build(SIGNALS, data, channels=asked, normalise="none")["anna"]
        assert got.traits["channels"] == [CHANNELS[i] for i in places]
        assert torch.equal(got.train.x, whole[:, places])
    for wrong in ("gyro", ""):
        with pytest.raises(
            UserError, match=f"client 'anna' has no channel '{wrong}'; valid names: acc, acc_x, acc_y, light"
        ):
            build(SIGNALS, data, channels=[wrong])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windw": 10}, "dataset 'signals' has no option 'windw'; did you mean 'window'?"),
        ({"window": 0}, "window = 0; give at least 1 sample"),
        ({"overlap": 1.0}, "overlap = 1; give a share from 0 up to, not including, 1"),
        ({"rate": -5}, "rate = -5; give a rate above 0 Hz"),
        ({"gain": "much"}, "dataset 'signals': 'gain' is 'much'; expected a number"),
        ({"samples": 0}, "samples = 0; give at least 1"),
        ({"clients": 0}, "clients = 0; give at least 1"),
        (
            {"clients": 5, "partition": "natural-id"},
            "natural-id keeps the clients as recorded; leave out clients = 5, or deal anew with another partition",
        ),
        ({"split": {"kind": "chronologic"}}, None),
        ({"skew": "XS"}, None),
        ({"partition": "nobody-knows"}, None),
        ({"classes-per-client": 0}, None),
    ],
)
def test_options_are_checked_before_anything_is_read(options, message):
    with pytest.raises(UserError) as error:
        SIGNALS.parse(options)
    assert message is None or str(error.value) == message
    assert "\n" not in str(error.value)


def test_a_pool_that_nobody_recorded_has_no_natural_clients():
    pool = replace(SAMPLES, partition="iid", clients=5)
    for given in ("natural-id", {"kind": "natural-id"}):
        with pytest.raises(UserError, match="dataset 'samples' does not say who recorded what; leave natural-id out"):
            pool.parse({"partition": given})
    assert SAMPLES.parse({"partition": "natural-id"})["partition"] == "natural-id"


def test_what_is_drawn_is_skewed_and_held_out_as_what_is_read():
    whole = load("synthetic-imu", clients=6, samples=60, seed=2)
    skewed = load(
        "synthetic-imu", clients=6, samples=60, seed=2, held_out=2, skew=[{"kind": "keep-classes", "count": 3}]
    )
    assert len(skewed) == 4
    assert {c.id for c in (*skewed.clients, *skewed.newcomers)} == set(whole.ids)
    assert {len(c.train.y.unique()) for c in (*skewed.clients, *skewed.newcomers)} == {3}
    tenth = load("synthetic-imu", clients=6, samples=60, seed=2, skew="FS+QS")
    assert all(len(few.train) < len(all_.train) / 2 for few, all_ in zip(tenth, whole, strict=True))
    with pytest.raises(UserError, match="there is no skew 'drop-clases'; did you mean 'drop-classes'"):
        load("synthetic-imu", skew="drop-clases")


def test_defaults_are_complete():
    defaults = SIGNALS.defaults()
    assert set(defaults) == set(SIGNALS.types())
    assert defaults["gain"] == 1.0
    assert defaults["window"] == 20
    assert SIGNALS.parse({"window": 30}) == defaults | {"window": 30}


def test_samples_are_capped_evenly_over_classes(tmp_path):
    made = build(SIGNALS, recordings(tmp_path / "data"), samples=7, seed=3)
    for client in made:
        assert sorted(torch.bincount(client.train.y).tolist()) == [2, 2, 3]
        assert len(client.test) == 18
        torch.testing.assert_close(client.train.x.mean((0, 2)), torch.zeros(3), atol=1e-4, rtol=0)  # fitted on these


def test_two_skews_of_a_kind_draw_numbers_of_their_own(tmp_path):
    half = {"kind": "fraction", "keep": 0.5}
    options = SIGNALS.parse({"skew": [half, half], "classes_per_client": 2})
    assert [skew.position for skew in SIGNALS._skews(options)] == [0, 1, 2]


def test_newcomers_survive_the_cache(tmp_path):
    data = recordings(tmp_path / "data", ["anna", "ben", "carl"])
    first = build(SIGNALS, data, held_out=["ben"])
    assert [client.id for client in first.newcomers] == ["ben"]
    same(build(SIGNALS, data, held_out=["ben"]), first)


def test_rates_are_brought_together(tmp_path):
    data = recordings(tmp_path / "data", ["anna"])
    assert len(build(SIGNALS, data, rate=None, overlap=0.0, split={"test": 0.0, "val": 0.0})["anna"].train) == 60
    assert len(build(SIGNALS, data, rate=25, overlap=0.0, split={"test": 0.0, "val": 0.0})["anna"].train) == 15


def test_sessions(tmp_path):
    data = recordings(tmp_path / "data", ["anna-0", "anna-1"])
    made = build(SIGNALS, data, split="session")
    assert made["anna"].test.origin[:, 0].unique().tolist() == [1]
    assert made["anna"].train.origin[:, 0].unique().tolist() == [0]


def test_samples_become_a_federation(tmp_path):
    data = samples(tmp_path / "data")
    made = build(SAMPLES, data)
    assert made.ids == ["a", "b"]
    assert sum(len(client.split(name)) for client in made for name in ("train", "val", "test")) == 60
    same(build(SAMPLES, data), made)
    assert READS == [1]
    assert len(build(SAMPLES, data, clients=5)) == 5
    # a file by itself is a root too
    assert build(SAMPLES, data / "all.csv").fingerprint == made.fingerprint


def test_missing_values_are_refused_dropped_or_zero_and_spoil_nothing_else(tmp_path):
    data = samples(tmp_path / "data")
    text = (data / "all.csv").read_text().splitlines()
    text[1] = "a,,0"
    (data / "all.csv").write_text("\n".join(text))
    keep_all = {"split": {"test": 0.0, "val": 0.0}, "normalise": "channel"}
    with pytest.raises(UserError, match="1 of 30 values in train are not finite"):
        build(SAMPLES, data, **keep_all)
    assert len(build(SAMPLES, data, "drop", **keep_all)["a"].train) == 29
    zeroed = build(SAMPLES, data, "zero", **keep_all)["a"].train
    assert zeroed.x.isfinite().all()
    assert (zeroed.x == 0).sum() == 1


def test_a_reader_may_find_out_the_classes(tmp_path):
    def read_found(files: Files) -> Found:
        READS.append(1)
        return Found([collected("anna", np.arange(6.0)[:, None], [0, 1, 2, 0, 1, 2])], ("2", "4", "8"))

    counting = Read(card("found"), read_found, ("*.csv",), kind="counting", split=Split("random", 0.0, 0.0))
    data = samples(tmp_path / "data")
    for _ in range(2):
        made = build(counting, data)
        assert made.task.classes == ("2", "4", "8")
        assert made.task.values == (2.0, 4.0, 8.0)
    assert READS == [1]
    assert build(counting, data, classes=["8", "2"]).task.values == (8.0, 2.0)


def test_samples_without_a_label_are_never_those_of_the_last_class(tmp_path):
    def read_unlabelled(files: Files) -> list[Collected]:
        return [collected("anna", np.arange(4.0)[:, None], [0, -1, 1, -1])]

    dataset = Read(card("unlabelled"), read_unlabelled, ("*.csv",), ("a", "b"), split=Split("random", 0.0, 0.0))
    data = samples(tmp_path / "data")
    assert build(dataset, data, classes=["b", "a"])["anna"].train.x.tolist() == [[0.0], [2.0]]
    with pytest.raises(UserError, match="holds label -1"):
        build(dataset, data)


def test_packed_and_unpacked(federation):
    pack = cache.cached("federation", lambda: pack_federation(federation))
    same(unpack_federation(pack), federation)
    assert unpack_federation(pack).synthetic == federation.synthetic
