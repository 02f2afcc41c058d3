"""USC-HAD: MATLAB files of the official layout; the file's name counts, and damage is told in one line."""

import io
import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from fedsense.data import find_dataset, load
from fedsense.data.cache import content_key
from fedsense.errors import UserError


def readings(rows, offset=0.0):
    """Six columns; a value is its row + its column / 10."""
    return np.arange(rows)[:, None] + np.arange(6) / 10 + offset


def mat(rows=600, number="1", field="activity_number", version="5", **more):
    stream = io.BytesIO()
    fields = {"title": "USC Human Motion Database", "subject": "1", "trial": "1", "sensor_readings": readings(rows)}
    savemat(stream, {**fields, field: number, **more}, format=version, do_compression=version == "5")
    return stream.getvalue()


def placed(folder, files):
    for name, content in files.items():
        path = folder / "USC-HAD" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(folder)


def recordings(root):
    dataset = find_dataset("usc-had")
    options = dataset.parse({"root": root})
    files = dataset.files(options)
    return dataset.recordings(files, content_key(files), options)


def test_name_gives_person_activity_and_trial(tmp_path):
    root = placed(
        tmp_path, {"Subject13/a11t4.mat": mat(number="11", field="activity_numbr"), "Subject2/a1t2.mat": mat()}
    )
    first, second = recordings(root)
    assert (first.client, first.session, set(first.labels.tolist())) == ("s13", 3, {10})
    assert (second.client, second.session, set(second.labels.tolist())) == ("s02", 1, {0})
    assert first.channels == ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
    assert first.rate == 100
    np.testing.assert_allclose(first.signal[7], [7, 7.1, 7.2, 7.3, 7.4, 7.5], rtol=1e-6)


def test_windows_of_512_without_overlap_through_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "usc-had.zip", "w") as box:
        for trial in range(1, 6):
            box.writestr(f"USC-HAD/Subject1/a6t{trial}.mat", mat(1100, "6"))
        box.writestr("USC-HAD/Readme.txt", "…")
    federation = load("usc-had", root=str(tmp_path / "usc-had.zip"), split={"test": 0.3, "val": 0.0}, normalise="none")
    client = federation["s01"]
    assert (len(client.train), len(client.test)) == (7, 3)
    assert client.train.x.shape[1:] == (6, 512)
    assert set(client.train.y.tolist()) == {5}
    assert client.train.origin.tolist()[:3] == [[0, 0, 512], [0, 512, 1024], [1, 0, 512]]
    assert client.train.x[1, 0, 0] == 512  # time runs along the last axis


def test_sessions_are_trials(tmp_path):
    root = placed(tmp_path, {f"Subject1/a1t{trial}.mat": mat(1100) for trial in range(1, 6)})
    client = load("usc-had", root=root, split={"kind": "session", "val": 0.0})["s01"]
    assert (len(client.train), len(client.test)) == (8, 2)
    assert client.test.origin[:, 0].tolist() == [4, 4]


def test_another_number_inside_is_warned_of_and_the_name_followed(tmp_path):
    root = placed(tmp_path, {"Subject1/a2t1.mat": mat(number="3")})
    with pytest.warns(UserWarning, match="a2t1.mat says activity 3 inside and 2 by its name, which is followed"):
        (only,) = recordings(root)
    assert set(only.labels.tolist()) == {1}


@pytest.mark.parametrize("number", ["?", "", 2.0, 2])
def test_a_number_inside_that_cannot_be_compared_is_no_matter(tmp_path, number):
    (only,) = recordings(placed(tmp_path, {"Subject1/a2t1.mat": mat(number=number)}))
    assert set(only.labels.tolist()) == {1}


def test_old_matlab_files_are_read(tmp_path):
    (only,) = recordings(placed(tmp_path, {"Subject1/a1t1.mat": mat(version="4")}))
    assert len(only.signal) == 600


HDF5 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400)
DAMAGED = "/Subject1/a1t1.mat is no MATLAB file, or damaged or cut short; get it again"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a1t1.mat", mat()[:3000], DAMAGED),
        ("a1t1.mat", mat()[:130], DAMAGED),
        ("a1t1.mat", mat()[:60], DAMAGED),
        ("a1t1.mat", b"", DAMAGED),
        ("a1t1.mat", b"<!DOCTYPE html><html><body>Not found</body></html>" * 20, DAMAGED),
        ("a1t1.mat", HDF5, "a1t1.mat: is MATLAB 7.3, which is not read; save it in MATLAB with -v7"),
        (
            "a1t1.mat",
            mat(sensor_readings=readings(9)[:, :5]),
            "a1t1.mat: 'sensor_readings' is 9 × 5 numbers, expected rows of 6 numbers",
        ),
        (
            "a1t1.mat",
            mat(sensor_readings="none"),
            "a1t1.mat: 'sensor_readings' is 1 no numbers, expected rows of 6 numbers",
        ),
        ("a13t1.mat", mat(), "a13t1.mat: activity 13 is none of 1 to 12"),
        ("about.mat", mat(), "about.mat: the name gives no activity and trial; expected a name like Subject1/a1t1.mat"),
    ],
)
def test_mistakes_are_named(tmp_path, name, content, message):
    with pytest.raises(UserError) as error:
        load("usc-had", root=placed(tmp_path, {f"Subject1/{name}": content}))
    assert str(error.value).endswith(message)
    assert "\n" not in str(error.value)


def test_a_file_cut_anywhere_is_told_or_whole(tmp_path):
    whole = mat(50)
    path = tmp_path / "Subject1" / "a1t1.mat"
    path.parent.mkdir()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut short|no variable"):
            recordings(str(tmp_path))
