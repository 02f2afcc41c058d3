"""RealWorld: archives in archives, numbered parts, gyroscope by its clock, and mistakes."""

import io
import zipfile

import numpy as np
import pytest

from fedsense.data import find_dataset, load
from fedsense.errors import UserError

START = 1_435_993_871_000  # ms


def csv(values, start=START, step=20):
    rows = (f"{i + 1},{start + step * i},{x},{y},{z}\n" for i, (x, y, z) in enumerate(values))
    return "id,attr_time,attr_x,attr_y,attr_z\n" + "".join(rows)


def zipped(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as box:
        for name, content in members.items():
            box.writestr(name.replace("__", "."), content)
    return stream.getvalue()


def recordings(root):
    dataset = find_dataset("realworld")
    options = dataset.parse({"root": str(root)})
    return dataset.recordings(dataset.files(options), str(root), options)


def official(path):
    """Subject 1 walks, subject 4 climbs in two parts, which lie one archive deeper; one sensor is 10 ms late."""
    acc = csv([(i, -i, 9.5) for i in range(400)])
    gyro = csv([(i, 0, -1) for i in range(400)], START + 10)
    late = START + 60_000
    climb = {
        "acc_climbingup_1_csv__zip": zipped(acc_climbingup_chest__csv=acc, readMe="x"),
        "acc_climbingup_2_csv__zip": zipped(acc_climbingup_2_chest__csv=csv([(7, 8, 9)] * 300, late)),
    }
    turn = {
        "gyr_climbingup_csv__zip": zipped(Gyroscope_climbingup_chest__csv=gyro),
        "gyr_climbingup_3_csv__zip": zipped(Gyroscope_climbingup_3_chest__csv=csv([(1, 2, 3)] * 300, late)),
    }
    with zipfile.ZipFile(path, "w") as box:
        data = "proband1/data/"
        box.writestr(f"{data}acc_walking_csv.zip", zipped(acc_walking_forearm__csv=acc, acc_walking_waist__csv=acc))
        box.writestr(f"{data}gyr_walking_csv.zip", zipped(Gyroscope_walking_forearm__csv=gyro))
        box.writestr(f"{data}mag_walking_csv.zip", zipped(MagneticField_walking_forearm__csv=gyro))
        box.writestr("proband4/data/acc_climbingup_csv.zip", zipped(**climb))
        box.writestr("proband4/data/gyr_climbingup_csv.zip", zipped(**turn))
    return path


def test_archives_parts_and_the_gyroscopes_clock(tmp_path):
    walk, waist, first, second = recordings(official(tmp_path / "realworld2016_dataset.zip"))
    assert [r.client for r in (walk, waist, first, second)] == ["s01-forearm", "s01-waist", "s04-chest", "s04-chest"]
    assert walk.traits == {"person": "s01", "device": "watch", "placement": "forearm"}
    assert first.traits["device"] == "phone"
    assert (walk.labels == 7).all()
    assert (first.labels == 1).all()
    np.testing.assert_allclose(walk.signal[100], [100, -100, 9.5, 99.5, 0, -1], rtol=1e-4)
    assert np.isnan(walk.signal[0, 3:]).all()  # the gyroscope began 10 ms later
    assert np.isnan(waist.signal[:, 3:]).all()  # no gyroscope file
    assert second.signal[5].tolist() == [7, 8, 9, 1, 2, 3]  # its gyroscope is in a part of another number
    np.testing.assert_allclose(second.times[0] - first.times[0], 60, atol=1e-6)


def test_windows(tmp_path):
    root = str(official(tmp_path / "realworld2016_dataset.zip"))
    given = {"root": root, "split": {"test": 0.0, "val": 0.0}, "normalise": "none"}
    both = load("realworld", **given)
    assert both.ids == ["s01-forearm", "s04-chest"]  # s01-waist has no gyroscope
    assert "1 left out, who have nothing to train on (s01-waist)" in both.description
    assert both["s04-chest"].train.y.tolist() == [1] * (5 + 3)
    alone = load("realworld", **given, channels=["acc"])
    assert alone.ids == ["s01-forearm", "s01-waist", "s04-chest"]
    np.testing.assert_allclose(alone["s01-waist"].train.x[1, :, 0], [64, -64, 9.5], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("proband1/data/acc_walking_chest.csv", csv([(1, 2, 3), (1, "a", 3)]),
         "acc_walking_chest.csv: line 3, column 4 ('attr_y'): 'a' is no number"),
        ("proband1/data/acc_waking_chest.csv", csv([(1, 2, 3)]),
         "acc_waking_chest.csv: activity 'waking' is unknown; did you mean 'walking'?"),
        ("proband1/data/acc_walking_chin.csv", csv([(1, 2, 3)]),
         "acc_walking_chin.csv: position 'chin' is unknown; did you mean 'shin'?"),
        ("subject1/data/acc_walking_chest.csv", csv([(1, 2, 3)]),
         "its path is not of the form proband1/data/acc_walking_csv.zip/acc_walking_chest.csv"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, name, text, message):
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        load("realworld", root=str(tmp_path))
    assert str(error.value).endswith(message)


def test_the_same_recording_twice(tmp_path):
    for folder in ("", "acc_walking_csv/"):
        path = tmp_path / f"proband1/data/{folder}acc_walking_chest.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(csv([(1, 2, 3)]))
    with pytest.raises(UserError, match=r"the same recording as .*; keep one"):
        load("realworld", root=str(tmp_path))
