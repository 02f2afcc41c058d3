"""UCI HAR: files of the official layout, in the official zip within a zip; overlaps and mistakes."""

import io
import zipfile

import numpy as np
import pytest

from fedsense.data import find_dataset, load
from fedsense.data.cache import content_key
from fedsense.data.splits import shared
from fedsense.errors import UserError
from fedsense.work import stream

NAMES = [f"{sensor}_{axis}" for sensor in ("total_acc", "body_gyro", "body_acc") for axis in "xyz"]


def bout(seed, count):
    """``count`` windows of 128 with half overlap: ``[9, count, 128]``."""
    signal = stream(seed, "bout").normal(size=(9, 64 * (count + 1))).round(4)
    return np.stack([signal[:, 64 * k : 64 * k + 128] for k in range(count)], axis=1)


def official():
    """Path → content. Person 3 walks twice and sits, person 1 lies (train); person 2 stands (test)."""
    parts = {
        "train": [(3, 1, bout("a", 6)), (3, 4, bout("b", 5)), (3, 1, bout("c", 6)), (1, 6, bout("d", 4))],
        "test": [(2, 5, bout("e", 3))],
    }
    files = {}
    for part, bouts in parts.items():
        for number, name in enumerate(NAMES):
            rows = np.concatenate([x[number] for *_, x in bouts])
            # as the authors write them: blanks first, and exponents of three digits
            text = "".join(
                "".join(f" {v: .7e}".replace("e-0", "e-00").replace("e+0", "e+00") for v in r) + "\n" for r in rows
            )
            files[f"{part}/Inertial Signals/{name}_{part}.txt"] = text
        files[f"{part}/y_{part}.txt"] = "".join(f"{label}\n" * x.shape[1] for _, label, x in bouts)
        files[f"{part}/subject_{part}.txt"] = "".join(f"{who}\n" * x.shape[1] for who, _, x in bouts)
    return files


def zipped(folder, files):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as box:
        for name, text in files.items():
            box.writestr(f"UCI HAR Dataset/{name}", text)
            box.writestr(f"__MACOSX/UCI HAR Dataset/{name.rpartition('/')[0]}/._{name.rpartition('/')[2]}", "Mac")
    with zipfile.ZipFile(folder / "uci-har.zip", "w") as box:
        box.writestr("UCI HAR Dataset.zip", inner.getvalue())
    return str(folder / "uci-har.zip")


def gathered(root, **options):
    dataset = find_dataset("uci-har")
    options = dataset.parse({"root": root, **options})
    files = dataset.files(options)
    return {client.id: client for client in dataset.gather(files, content_key(files), options)}


def test_values_labels_and_traits(tmp_path):
    clients = gathered(zipped(tmp_path, official()))
    assert {name: len(client.y) for name, client in clients.items()} == {"s01": 4, "s02": 3, "s03": 17}
    assert {name: client.traits["official"] for name, client in clients.items()} == {
        "s01": "train", "s02": "test", "s03": "train",
    }  # fmt: skip
    third = clients["s03"]
    assert third.x.shape == (17, 6, 128)
    assert third.y.tolist() == [0] * 6 + [3] * 5 + [0] * 6
    assert third.traits["channels"] == ["acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"]
    np.testing.assert_allclose(third.x[6:11], bout("b", 5)[:6].swapaxes(0, 1), atol=1e-6)


def test_body_acceleration_is_added(tmp_path):
    client = gathered(zipped(tmp_path, official()), body_acc=True)["s02"]
    assert client.traits["channels"][6:] == ["body_acc_x", "body_acc_y", "body_acc_z"]
    np.testing.assert_allclose(client.x, bout("e", 3).swapaxes(0, 1), atol=1e-6)


def test_windows_that_share_samples_are_one_recording(tmp_path):
    third = gathered(zipped(tmp_path, official()))["s03"]
    assert third.origin[:, 0].tolist() == [0] * 6 + [1] * 5 + [2] * 6
    assert third.origin[6:11, 1].tolist() == [0, 64, 128, 192, 256]
    assert (third.origin[:, 2] - third.origin[:, 1] == 128).all()


def test_chronological_split_shares_no_sample(tmp_path):
    federation = load("uci-har", root=zipped(tmp_path, official()), split={"test": 0.3, "val": 0.0})
    for client in federation:
        assert shared(client.train.origin, client.test.origin) == 0
    third = federation["s03"]
    assert len(third.test) == 4 + 2  # 12 of walking, 5 of sitting
    assert len(third.train) == 7 + 2  # the one before each border is given up


def change(name, edit):
    def changed(files):
        files[name] = edit(files[name])

    return changed


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            change("train/y_train.txt", lambda t: "7\n" + t[2:]),
            "train/y_train.txt: line 1: activity 7 is none of 1 to 6",
        ),
        (
            change("test/y_test.txt", lambda t: t.replace("5", "x", 1)),
            "y_test.txt: line 1, column 1 ('activity'): 'x' is no whole number",
        ),
        (
            change("test/subject_test.txt", lambda t: "31\n" + t[2:]),
            "subject_test.txt: line 1: subject 31 is none of 1 to 30",
        ),
        (
            change("test/subject_test.txt", lambda t: t.replace("2", "3")),
            "subject_test.txt: subject 3 is also in subject_train.txt; the parts share nobody",
        ),
        (
            change("test/subject_test.txt", lambda t: t[2:]),
            "subject_test.txt: has 2 rows, and y_test.txt 3; get both again",
        ),
        (
            change("train/Inertial Signals/body_gyro_y_train.txt", lambda t: t + t.split("\n", 1)[0]),
            "body_gyro_y_train.txt: has 22 rows, and y_train.txt 21; get both again",
        ),
        (
            change("test/Inertial Signals/total_acc_z_test.txt", lambda t: "1 2\n" + t),
            "total_acc_z_test.txt: line 1 has 2 cells, expected 128 (1, 2, …, 128)",
        ),
        (
            change("test/Inertial Signals/total_acc_z_test.txt", lambda t: t.rstrip() + " 1.0\n"),
            "total_acc_z_test.txt: line 3 has 129 cells, expected 128 (1, 2, …, 128)",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, mistake, message):
    files = official()
    mistake(files)
    with pytest.raises(UserError) as error:
        load("uci-har", root=zipped(tmp_path, files))
    assert str(error.value).endswith(message)


def test_a_missing_file_is_named(tmp_path):
    files = official()
    del files["test/Inertial Signals/body_gyro_x_test.txt"]
    with pytest.raises(UserError, match=r"holds no file 'Inertial Signals/body_gyro_x_test.txt'; expected: "):
        load("uci-har", root=zipped(tmp_path, files))
