"""HARBOX: files of the official layout; how rows become windows, people who lack an activity, mistakes."""

import zipfile

import numpy as np
import pytest

from fedsense.data import find_dataset, load
from fedsense.data.cache import content_key
from fedsense.data.splits import shared
from fedsense.errors import UserError
from fedsense.work import stream


def rows(windows, first=0):
    """Ten columns: a counter, then value = row + column / 100."""
    return "".join(
        f"{1000 + row} " + " ".join(f"{first + row + column / 100:.2f}" for column in range(1, 10)) + "\n"
        for row in range(100 * windows)
    )


def placed(folder, files):
    for name, content in files.items():
        path = folder / "large_scale_HARBox" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(folder)


def gathered(root):
    dataset = find_dataset("harbox")
    options = dataset.parse({"root": root})
    files = dataset.files(options)
    return {client.id: client for client in dataset.gather(files, content_key(files), options)}


def test_a_hundred_rows_are_a_window_and_the_first_column_goes(tmp_path):
    files = {"2/Wave_train.txt": rows(1), "2/Call_train.txt": rows(3), "11/typing_train.txt": rows(2)}
    clients = gathered(placed(tmp_path, files))
    assert list(clients) == ["u002", "u011"]
    second = clients["u002"]
    assert second.x.shape == (4, 9, 100)
    assert second.y.tolist() == [0, 0, 0, 4]
    assert clients["u011"].y.tolist() == [2, 2]
    np.testing.assert_allclose(second.x[1, :, 7], 107 + np.arange(1, 10) / 100, rtol=1e-6)
    assert second.traits["channels"][:4] == ["acc_x", "acc_y", "acc_z", "gyro_x"]
    assert second.origin[:, 0].tolist() == [0, 1, 2, 3]  # nothing is shared


def test_windows_that_overlap_stay_on_one_side(tmp_path):
    signal = stream("harbox").normal(size=(600, 9)).round(3)
    slid = np.concatenate([signal[start : start + 100] for start in range(0, 501, 50)])
    text = "".join("0 " + " ".join(map(str, row)) + "\n" for row in slid)
    root = placed(tmp_path, {"1/Walk_train.txt": text})
    assert gathered(root)["u001"].origin[:3].tolist() == [[0, 0, 100], [0, 50, 150], [0, 100, 200]]
    client = load("harbox", root=root, split={"test": 0.3, "val": 0.0})["u001"]
    assert (len(client.train), len(client.test)) == (7, 3)
    assert shared(client.train.origin, client.test.origin) == 0


def test_through_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "harbox.zip", "w") as box:
        for who in range(1, 4):
            for name in ("Call", "Hop", "typing", "Walk", "Wave"):
                box.writestr(f"large_scale_HARBox/{who}/{name}_train.txt", rows(4))
                box.writestr(f"__MACOSX/large_scale_HARBox/{who}/._{name}_train.txt", "Mac")
        box.writestr("large_scale_HARBox/data_pre.py", "import numpy")
    federation = load("harbox", root=str(tmp_path / "harbox.zip"))
    assert federation.ids == ["u001", "u002", "u003"]
    assert federation.task.classes == ("call", "hop", "typing", "walk", "wave")
    assert federation.clients[0].input_shape == (9, 100)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "1/Hop_train.txt",
            rows(2)[:-1].rpartition("\n")[0],
            "has 199 rows, expected a multiple of 100 (a window each)",
        ),
        (
            "1/Hop_train.txt",
            rows(1) + "1 2 3\n",
            "line 101 has 3 cells, expected 10 (time, "
            "acc_x, acc_y, acc_z, gyro_x, gyro_y, gyro_z, mag_x, mag_y, mag_z)",
        ),
        ("1/Hop_train.txt", rows(1).replace("5.02", "five", 1), "line 6, column 3 ('acc_y'): 'five' is no number"),
        ("1/Hop_train.txt", rows(1).replace("5.02", "nan", 1), "line 6, column 3 ('acc_y'): 'nan' is no number"),
        ("1/Hop_train.txt", "", "the file is empty"),
        ("1/Run_train.txt", rows(1), "the name gives no person and activity; expected a name like 1/Call_train.txt"),
        ("one/Hop_train.txt", rows(1), "the name gives no person and activity; expected a name like 1/Call_train.txt"),
    ],
)
def test_mistakes_are_named(tmp_path, name, content, message):
    with pytest.raises(UserError) as error:
        load("harbox", root=placed(tmp_path, {"1/Call_train.txt": rows(1), name: content}))
    assert str(error.value).endswith(f"{name}: {message}")


def test_two_files_of_one_activity_are_refused(tmp_path):
    root = placed(tmp_path, {"1/Call_train.txt": rows(1), "old/1/Call_train.txt": rows(1)})
    with pytest.raises(UserError, match=r"old/1/Call_train\.txt: there is another 1/Call_train\.txt; keep one$"):
        load("harbox", root=root)
