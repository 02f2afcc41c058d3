"""WISDM v1.1: odd records, clock jumps, signs, and mistakes."""

import io
import tarfile

import numpy as np
import pytest

from fedsense.data import find_dataset, load
from fedsense.errors import UserError

NAME = "WISDM_ar_v1.1_raw.txt"


def recordings(root, **given):
    dataset = find_dataset("wisdm")
    options = dataset.parse({"root": str(root), **given})
    return dataset.recordings(dataset.files(options), str(root), options)


def test_odd_records_are_read_or_left_out(tmp_path):
    (tmp_path / NAME).write_text(
        "33,Jogging,49105962326000,-0.6946377,12.680544,0.50395286;\n"
        "33,Jogging,49106012326000,5.012288,11.264028,-0.95342433;33,Jogging,49106062271000,4.9,10.8,-0.08;\n"  # two
        "\n"
        "33,Jogging,49106112167000,1.0,2.0,;\n"  # no z
        "33,Jogging,49106162305000,1.5,2.5,-3.5,;\r\n"  # a comma too many
        "33,Jogging,49106;\n"  # cut short
        "33,Jogging,0,-1,-2,-3;\n"  # no stamp
        "7,Walking,49106212305000,4,5,6\n"  # no semicolon
    )
    seven, last = recordings(tmp_path)
    assert (seven.client, last.client) == ("s07", "s33")
    np.testing.assert_allclose(
        last.signal,
        [
            [-0.6946377, 12.680544, 0.50395286],
            [5.012288, 11.264028, -0.95342433],
            [4.9, 10.8, -0.08],
            [1.5, 2.5, -3.5],
            [-1, -2, -3],
        ],
        rtol=1e-6,
    )
    assert last.labels.tolist() == [1] * 5
    assert seven.labels.tolist() == [0]
    assert last.channels == ("acc_x", "acc_y", "acc_z")
    assert last.rate == 20


def test_a_jump_of_the_clock_cuts_and_stamps_that_stand_still_do_not(tmp_path):
    stamps = [10**9, 10**9 + 50_000_000, 0, 0, 0, 2 * 10**9, 2 * 10**9, 9 * 10**9, 10**6]
    (tmp_path / NAME).write_text("".join(f"1,Sitting,{t},{i},0,0;\n" for i, t in enumerate(stamps)))
    assert [r.signal[:, 0].tolist() for r in recordings(tmp_path)] == [[0, 1, 2, 3, 4, 5, 6], [7], [8]]


def test_windows_from_the_official_archive(tmp_path):
    rows = [(1, "Walking")] * 1000 + [(1, "Standing")] * 450 + [(2, "Upstairs")] * 400
    text = "".join(f"{u},{a},{(i + 1) * 50_000_000},{i},{-i},9.8;\n" for i, (u, a) in enumerate(rows)).encode()
    archive = tmp_path / "WISDM_ar_latest.tar.gz"
    with tarfile.open(archive, "w:gz") as box:
        info = tarfile.TarInfo(f"WISDM_ar_v1.1/{NAME}")
        info.size = len(text)
        box.addfile(info, io.BytesIO(text))
    federation = load("wisdm", root=str(archive), split={"test": 0.0, "val": 0.0}, normalise="none")
    assert federation.ids == ["s01", "s02"]
    assert federation["s01"].train.y.tolist() == [0] * 9 + [5] * 3  # (n - 200) / 100 + 1 windows
    assert federation["s02"].train.y.tolist() == [2] * 3
    assert federation["s01"].train.x[1, :, 0].tolist() == [100, -100, pytest.approx(9.8)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,Walking,1,2,3,4;1,Walking,1,2,3,4;\n1,Walking,5,6,x,7;\n", "line 2, column 5 ('y'): 'x' is no number"),
        ("1,Walking,1,2,3,4;\n\n1,Waking,5,6,6,7;\n",
         "line 3, column 2 ('activity'): activity 'Waking' is unknown; did you mean 'Walking'?"),
        ("1,Walking,1,2,3,4;\n1,Walking,5,6,6,7,8;\n",
         "line 2 has 7 cells, expected 6 (user, activity, time, x, y, z)"),
        ("1,Walking,1,2,3,4;\none,Walking,5,6,6,7;\n", "line 2, column 1 ('user'): 'one' is no whole number"),
        ("nothing\n", "holds no record 'user,activity,time,x,y,z;'"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, text, message):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(UserError) as error:
        load("wisdm", root=str(tmp_path))
    assert str(error.value) == f"{tmp_path / NAME}: {message}"
