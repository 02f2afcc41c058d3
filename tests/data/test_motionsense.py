"""MotionSense: how acceleration is formed, trials and sessions, the official zip, and mistakes."""

import zipfile

import numpy as np
import pytest

from fedsense.data import find_dataset, load
from fedsense.errors import UserError

HEADER = (
    ",attitude.roll,attitude.pitch,attitude.yaw,gravity.x,gravity.y,gravity.z,rotationRate.x,rotationRate.y,"
    "rotationRate.z,userAcceleration.x,userAcceleration.y,userAcceleration.z\n"
)
ROW = "{},1.5,-0.7,0.7,0.75,0.5,-0.25,0.125,-2,3,0.25,-0.5,1\n"


def trial(rows=500):
    return HEADER + "".join(ROW.format(i) for i in range(rows))


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(folder)


def recordings(root, **given):
    dataset = find_dataset("motionsense")
    options = dataset.parse({"root": str(root), **given})
    return dataset.recordings(dataset.files(options), f"{root}{given}", options)


def test_total_acceleration_is_user_acceleration_plus_gravity(tmp_path):
    write(tmp_path, "A_DeviceMotion_data/ups_12/sub_7.csv", trial(3))
    write(tmp_path, "B_Accelerometer_data/ups_12/sub_7.csv", ",x,y,z\n0,0.1,-0.2,0.3\n")
    write(tmp_path, "C_Gyroscope_data/ups_12/sub_7.csv", ",x,y,z\n0,9,9,9\n")
    (total,) = recordings(tmp_path)
    assert total.channels == ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
    assert total.signal.tolist() == [[1, 0, 0.75, 0.125, -2, 3]] * 3
    assert (total.client, total.rate, total.session, total.labels.tolist()) == ("s07", 50, 1, [1, 1, 1])
    (user,) = recordings(tmp_path, acceleration="user")
    assert user.signal[0].tolist() == [0.25, -0.5, 1, 0.125, -2, 3]
    (raw,) = recordings(tmp_path, acceleration="raw")
    np.testing.assert_allclose(raw.signal, [[0.1, -0.2, 0.3]], rtol=1e-6)
    assert raw.channels == ("acc_x", "acc_y", "acc_z")


def test_official_zip_and_the_split_by_trial(tmp_path):
    archive = tmp_path / "A_DeviceMotion_data.zip"
    with zipfile.ZipFile(archive, "w") as box:
        for name in ("dws_1", "dws_2", "dws_11", "sit_5", "sit_13"):
            for subject in (1, 10):
                box.writestr(f"A_DeviceMotion_data/{name}/sub_{subject}.csv", trial())
        box.writestr("__MACOSX/A_DeviceMotion_data/dws_1/._sub_1.csv", b"\x00\x05")
    federation = load(
        "motionsense", root=str(archive), channels=["acc"], split={"kind": "session", "val": 0.0}, normalise="none"
    )
    assert federation.ids == ["s01", "s10"]
    client = federation["s01"]
    assert client.train.x.shape[1:] == (3, 200)
    assert sorted(client.train.y.tolist()) == [0] * 8 + [5] * 4  # a trial of 500 rows gives 4 windows
    assert sorted(client.test.y.tolist()) == [0] * 4 + [5] * 4  # the short trials, 11 and 13


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("dws_1/sub_1.csv", trial(2).replace("-2", "two"),
         "sub_1.csv: line 2, column 9 ('rotationRate.y'): 'two' is no number"),
        ("dws_1/sub_1.csv", trial(2).replace("gravity.z", "g.z"),
         "sub_1.csv: line 1 names no column 'gravity.z'; did you mean 'gravity.y'?"),
        ("run_1/sub_1.csv", trial(2),
         "sub_1.csv: activity 'run' is unknown; valid names: dws, jog, sit, std, ups, wlk"),
        ("dws_1/sub_x.csv", trial(2), "sub_x.csv: its path is not of the form dws_1/sub_1.csv"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, name, text, message):
    root = write(tmp_path, f"A_DeviceMotion_data/{name}", text)
    with pytest.raises(UserError) as error:
        load("motionsense", root=root)
    assert str(error.value).endswith(message)


def test_a_part_that_is_not_there_is_named(tmp_path):
    root = write(tmp_path, "A_DeviceMotion_data/dws_1/sub_1.csv", trial(2))
    with pytest.raises(UserError, match=r"B_Accelerometer_data.*acceleration = \"raw\" needs it"):
        load("motionsense", root=root, acceleration="raw")
