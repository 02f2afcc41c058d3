"""PAMAP2: files of the official layout, in the official zip within a zip; columns, labels, missing values, mistakes."""

import io
import zipfile

import numpy as np
import pytest

from fedsense.data import find_dataset, load
from fedsense.data.cache import content_key
from fedsense.errors import UserError


def rows(activities, first=8.38):
    """54 columns, 100 Hz; a cell is its row + its column (from 1) / 100, heart rate only in every tenth row."""
    lines = []
    for row, activity in enumerate(activities):
        cells = [f"{first + row / 100:.2f}", str(activity), "104" if row % 10 == 0 else "NaN"]
        cells += [f"{row + column / 100:.2f}" for column in range(4, 55)]
        lines.append(cells)
    return lines


def text(lines):
    return "".join(" ".join(cells) + "\n" for cells in lines)


def zipped(folder, files):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as box:
        for name, content in files.items():
            box.writestr(f"PAMAP2_Dataset/{name}", content)
    with zipfile.ZipFile(folder / "pamap2.zip", "w") as box:
        box.writestr("readme.pdf", "…")
        box.writestr("PAMAP2_Dataset.zip", inner.getvalue())
    return str(folder / "pamap2.zip")


def recordings(root, **options):
    dataset = find_dataset("pamap2")
    options = dataset.parse({"root": root, **options})
    files = dataset.files(options)
    return dataset.recordings(files, content_key(files), options)


def official(folder, **more):
    return zipped(folder, {"Protocol/subject101.dat": text(rows([0, 1, 24, 17, 10])), **more})


def test_columns_are_where_the_authors_say(tmp_path):
    (only,) = recordings(official(tmp_path))
    assert only.client == "s101"
    assert only.rate == 100
    assert len(only.channels) == 27
    where = dict(zip(only.channels, only.signal[0].tolist(), strict=True))
    # counted from 1: hand 4 to 20, chest 21 to 37, ankle 38 to 54; in a unit ±16 g 2 to 4, gyroscope 8, magnetometer 11
    for name, column in {
        "hand_acc_x": 5, "hand_acc_z": 7, "hand_gyro_x": 11, "hand_mag_y": 15, "chest_acc_x": 22, "chest_gyro_z": 30,
        "ankle_acc_x": 39, "ankle_gyro_x": 45, "ankle_mag_z": 50,
    }.items():  # fmt: skip
        assert where[name] == pytest.approx(column / 100), name
    np.testing.assert_allclose(only.times, [8.38, 8.39, 8.40, 8.41, 8.42])


def test_labels_are_numbered_without_transients_and_optional_activities(tmp_path):
    (only,) = recordings(official(tmp_path))
    names = find_dataset("pamap2").classes(optional=False)
    assert len(names) == 12
    assert [names[label] if label >= 0 else None for label in only.labels] == [
        None, "lying", "rope-jumping", "ironing", None,
    ]  # fmt: skip


def test_placements_and_sensors_are_chosen(tmp_path):
    (only,) = recordings(official(tmp_path), placements=["ankle", "hand"], sensors=["acc6"], heart_rate=True)
    assert only.channels == (
        "ankle_acc6_x", "ankle_acc6_y", "ankle_acc6_z", "hand_acc6_x", "hand_acc6_y", "hand_acc6_z", "heart_rate",
    )  # fmt: skip
    np.testing.assert_allclose(only.signal[0], [0.42, 0.43, 0.44, 0.08, 0.09, 0.10, 104], rtol=1e-5)
    assert np.isnan(only.signal[1, 6])


def test_optional_activities(tmp_path):
    root = official(tmp_path, **{"Optional/subject101.dat": text(rows([10, 20, 0]))})
    assert len(recordings(root)) == 1
    protocol, optional = recordings(root, optional=True)
    names = find_dataset("pamap2").classes(optional=True)
    assert len(names) == 18
    assert names[protocol.labels[4]] == "computer-work"
    assert [names[label] for label in optional.labels[:2]] == ["computer-work", "playing-soccer"]
    assert (protocol.session, optional.session) == (-1, -1)  # other activities: no session to test on


def test_windows_at_a_third_of_the_rate_and_lost_samples(tmp_path):
    lines = rows([4] * 3000)
    for row in range(1000, 1030):  # 0.3 s of the hand: bridged
        lines[row][3:20] = ["NaN"] * 17
    for row in range(2000, 2200):  # 2 s: no label
        lines[row][3:20] = ["NaN"] * 17
    root = official(tmp_path, **{"Protocol/subject105.dat": text(lines)})
    dataset = find_dataset("pamap2")
    options = dataset.parse({"root": root, "sensors": ["acc"], "overlap": 0.0})
    files = dataset.files(options)
    client = next(c for c in dataset.gather(files, content_key(files), options) if c.id == "s105")
    # 667 of 1000 samples come before the long gap, and 266 after it
    assert client.x.shape == (3 + 1, 9, 171)
    assert (client.y == 3).all()
    # a cell grows by 1 a row, so by 3 from sample to sample, also where it was bridged
    np.testing.assert_allclose(np.diff(client.x[1, 0]), 3, atol=0.02)


KNOWN = "0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 24"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda lines: lines[1].__setitem__(1, "8"),
            f"line 2, column 2 ('activity'): 8 is none of {KNOWN}",
        ),
        (
            lambda lines: lines[1].__setitem__(1, "99"),
            f"line 2, column 2 ('activity'): 99 is none of {KNOWN}",
        ),
        (lambda lines: lines[1].__setitem__(4, "1.2.3"), "line 2, column 5 ('hand_acc_x'): '1.2.3' is no number"),
        (lambda lines: lines[1].__setitem__(1, "NaN"), "line 2, column 2 ('activity'): 'NaN' is no number"),
        (lambda lines: lines[1].__setitem__(0, "NaN"), "line 2, column 1 ('time'): it is missing"),
        (
            lambda lines: lines[0].append("1"),
            "line 1 has 55 cells, expected 54 (time, activity, …, ankle_orientation_3)",
        ),
        (
            lambda lines: lines[2].append("1"),
            "line 3 has 55 cells, expected 54 (time, activity, …, ankle_orientation_3)",
        ),
        (
            lambda lines: lines[-1].__delitem__(slice(20, None)),
            "line 4 has 20 cells, expected 54 (time, activity, …, ankle_orientation_3)",
        ),
        (lambda lines: lines.clear(), "the file is empty"),
    ],
)
def test_mistakes_are_named(tmp_path, edit, message):
    lines = rows([1, 1, 1, 1])
    edit(lines)
    with pytest.raises(UserError) as error:
        load("pamap2", root=zipped(tmp_path, {"Protocol/subject101.dat": text(lines)}))
    assert str(error.value).endswith(f"Protocol/subject101.dat: {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placements": []}, "placements = []; name at least one, and each once"),
        ({"sensors": ["acc", "acc"]}, "sensors = ['acc', 'acc']; name at least one, and each once"),
        ({"placements": ["foot"]}, "dataset 'pamap2': 'placements' is ['foot']; expected 'hand', 'chest' or 'ankle'"),
    ],
)
def test_wrong_options_are_named(tmp_path, options, message):
    with pytest.raises(UserError) as error:
        load("pamap2", root=official(tmp_path), **options)
    assert str(error.value) == message
