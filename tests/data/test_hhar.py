"""HHAR: clocks of every sort, the gyroscope at the accelerometer's times, clients, and mistakes."""

import zipfile

import numpy as np
import pytest

import fedsense.data.hhar as hhar
from fedsense.data import find_dataset, load
from fedsense.errors import UserError

HEADER = "Index,Arrival_Time,Creation_Time,x,y,z,User,Model,Device,gt\n"
START = 1_424_696_633_000  # ms
SIX = list(hhar.ACTIVITIES)


def lines(user, device, labels, rate=100, value=lambda i: (i, -i, 9.5), late=0.0, creation=None):
    """Rows of one device, ``late`` seconds after the start; ``creation`` maps seconds to its clock."""
    tick = creation or (lambda s: START * 10**6 + round(s * 1e9))
    rows = []
    for i, label in enumerate(labels):
        seconds = late + i / rate
        x, y, z = value(i)
        arrival = START + round(seconds * 1000)
        model = device.rpartition("_")[0]
        rows.append(f"{i},{arrival},{tick(seconds)},{x},{y},{z},{user},{model},{device},{label}\n")
    return "".join(rows)


def write(folder, acc, gyro, kind="Phones"):
    (folder / f"{kind}_accelerometer.csv").write_text(HEADER + acc)
    (folder / f"{kind}_gyroscope.csv").write_text(HEADER + gyro)
    return folder


def recordings(root, **given):
    dataset = find_dataset("hhar")
    options = dataset.parse({"root": str(root), **given})
    return dataset.recordings(dataset.files(options), f"{root}{given}", options)


def test_gyroscope_is_read_at_the_accelerometers_times(tmp_path):
    labels = ["null"] * 50 + ["walk"] * 200 + ["stairsdown"] * 50
    gyro = lines("a", "s3mini_1", labels, value=lambda i: (2 * i, 0, -1), late=0.005)
    write(tmp_path, lines("a", "s3mini_1", labels), gyro)
    (one,) = recordings(tmp_path)
    assert (one.client, one.rate) == ("a-s3mini", 100)
    assert one.traits == {"person": "a", "device": "s3mini", "gyro": True}
    assert one.labels.tolist() == [-1] * 50 + [3] * 200 + [5] * 50
    np.testing.assert_allclose(one.signal[100], [100, -100, 9.5, 199, 0, -1], rtol=1e-4)
    assert np.isnan(one.signal[0, 3:]).all()
    np.testing.assert_allclose(np.diff(one.times), 0.01, atol=1e-6)


@pytest.mark.parametrize(
    "creation",
    [
        lambda s: 27_920_678_471_000 + round(s * 1e9),  # ns since it was switched on
        lambda s: 27_920_678_471 + round(s * 1e6),  # µs
        lambda s: START + round(s * 1000),  # ms
        lambda s: START * 10**6 + round(s * 1e9) + (7_200_000_000_000 if s > 1.5 else 0),  # set while it runs
        lambda s: START * 10**6 + round(s * 1e9) - (90_000_000_000 if s > 1.5 else 0),
        lambda s: 0,  # does not go
    ],
)
def test_clocks_with_another_unit_zero_or_a_jump(tmp_path, creation):
    labels = ["sit"] * 300
    acc = lines("b", "gear_2", labels, creation=creation)
    gyro = lines("b", "gear_2", labels, creation=lambda s: START * 10**6 + round(s * 1e9))
    (one,) = recordings(write(tmp_path, acc, gyro, "Watch"), devices="watches")
    np.testing.assert_allclose(np.diff(one.times), 0.01, atol=2e-3)
    np.testing.assert_allclose(one.signal[10:-10, 3], np.arange(10, 290), atol=0.3)


def test_rows_out_of_order_and_twice(tmp_path):
    rows = lines("c", "nexus4_1", ["bike"] * 100, rate=200).splitlines(keepends=True)
    mixed = "".join(rows[:10] + rows[20:30] + rows[10:20] + rows[30:] + rows[40:45])
    (one,) = recordings(write(tmp_path, mixed, "".join(rows)))
    assert one.signal[:, 0].tolist() == list(range(100))
    assert (one.signal[:, 3] == one.signal[:, 0]).all()


def test_clients_by_model_or_device_complete_or_not_and_without_gyroscope(tmp_path):
    every = [label for label in SIX for _ in range(300)]
    acc = "".join(lines("a", device, every, 50) for device in ("samsungold_1", "samsungold_2"))
    acc += lines("h", "s3_1", np.repeat(every[300:], 2), 150)
    gyro = lines("a", "samsungold_1", every, 50) + lines("h", "s3_1", np.repeat(every[300:], 2), 150)
    archive = tmp_path / "outer.zip"
    write(tmp_path, acc, gyro)
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as box:
        for name in ("Phones_accelerometer.csv", "Phones_gyroscope.csv"):
            box.write(tmp_path / name, f"Activity recognition exp/{name}")
    with zipfile.ZipFile(archive, "w") as box:
        box.write(tmp_path / "inner.zip", "Activity recognition exp.zip")
    given = {"root": str(archive), "split": {"test": 0.0, "val": 0.0}, "normalise": "none"}
    federation = load("hhar", **given)
    assert federation.ids == ["a-samsungold", "h-s3"]
    assert len(federation["a-samsungold"].train) == 2 * 6 * 3  # 300 rows at 50 Hz: 3 windows, two phones
    assert federation["h-s3"].train.x.shape == (5 * 2, 6, 128)  # 600 rows at 150 Hz are 200 at 50 Hz
    assert load("hhar", **given, complete=True).ids == ["a-samsungold"]
    alone = load("hhar", **given, client="device", window=50)
    assert alone.ids == ["a-samsungold_1", "a-samsungold_2", "h-s3_1"]
    assert (alone["a-samsungold_2"].train.x[:, 3:] == 0).all()
    assert alone["a-samsungold_2"].traits["gyro"] is False
    without = load("hhar", **given, client="device", no_gyro="leave-out", window=50)
    assert without.ids == ["a-samsungold_1", "h-s3_1"]


def test_blocks_make_no_difference(tmp_path, monkeypatch):
    labels = ["walk"] * 40 + ["null"] * 40 + ["sit"] * 40
    rows = "".join(lines(user, "s3_1", labels, 150) for user in "abc")
    whole = recordings(write(tmp_path, rows, rows))
    monkeypatch.setattr(hhar, "BLOCK", 1000)
    options = find_dataset("hhar").parse({"root": str(tmp_path)})
    parts = list(hhar.read(find_dataset("hhar").files(options)))
    assert [r.client for r in parts] == ["a-s3", "b-s3", "c-s3"]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one.signal, other.signal)
        np.testing.assert_array_equal(one.labels, other.labels)


GOOD = lines("a", "s3_1", ["walk"] * 60)


@pytest.mark.parametrize(
    ("acc", "message"),
    [
        (GOOD + "60,1,2,0,0,0,a,s3,s3_1,wakl\n", "line 62, column 'gt': 'wakl' is unknown; did you mean 'walk'?"),
        (GOOD + "60,1,2,0,zero,0,a,s3,s3_1,walk\n", "line 62, column 5 ('y'): 'zero' is no number"),
        (GOOD + "60,1,2,0,0,0,a,s9,s9_1,walk\n", "model 's9' is unknown; did you mean 's3'?"),
        ("", "holds no rows"),
    ],
)
def test_mistakes_are_named_by_their_line_in_the_file(tmp_path, acc, message, monkeypatch):
    monkeypatch.setattr(hhar, "BLOCK", 1000)
    with pytest.raises(UserError) as error:
        load("hhar", root=str(write(tmp_path, acc, GOOD)))
    assert str(error.value) == f"{tmp_path / 'Phones_accelerometer.csv'}: {message}"
