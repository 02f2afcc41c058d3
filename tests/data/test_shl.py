"""SHL preview: files of the official layout; columns, the join on time, sessions, memory-sparing pieces, mistakes."""

import zipfile

import numpy as np
import pytest

from fedsense.data import find_dataset, load, shl
from fedsense.data.cache import content_key
from fedsense.errors import UserError

START = 1_498_120_056_700  # ms
PHONES = ("Bag", "Hand", "Hips", "Torso")


def motion(rows, first=0, value=0.0):
    """23 columns at 100 Hz; a cell is value + its column (from 1) / 100."""
    cells = " ".join(f"{value + column / 100:.2f}" for column in range(2, 24))
    return "".join(f"{START + 10 * (first + row)}.00 {cells}\n" for row in range(rows))


def label(coarse, first=0):
    return "".join(f"{START + 10 * (first + row)} {number} 1 0 0 0 0 0\n" for row, number in enumerate(coarse))


def placed(folder, days, **change):
    """``days``: path of the day → (rows of motion, coarse labels)."""
    for day, (rows, coarse) in days.items():
        place = folder / "SHLDataset_preview_v1" / day
        place.mkdir(parents=True)
        for number, phone in enumerate(PHONES):
            (place / f"{phone}_Motion.txt").write_text(change.get(phone, motion(rows, value=number)))
        (place / "Label.txt").write_text(change.get("Label", label(coarse)))
    return str(folder)


def recordings(root, **options):
    dataset = find_dataset("shl")
    options = dataset.parse({"root": root, **options})
    files = dataset.files(options)
    return {(r.client, r.session): r for r in dataset.recordings(files, content_key(files), options)}


def test_columns_and_clients(tmp_path):
    found = recordings(placed(tmp_path, {"User1/220617": (4, [1, 2, 8, 0])}))
    assert sorted(found) == [("u1-bag", 0), ("u1-hand", 0), ("u1-hips", 0), ("u1-torso", 0)]
    hand = found["u1-hand", 0]
    assert hand.channels == ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
    np.testing.assert_allclose(hand.signal[0], [1.02, 1.03, 1.04, 1.05, 1.06, 1.07], rtol=1e-6)
    assert hand.labels.tolist() == [0, 1, 7, -1]
    np.testing.assert_allclose(hand.times - hand.times[0], [0, 0.01, 0.02, 0.03], atol=1e-6)
    assert hand.traits["placement"] == "hand"


def test_positions_and_magnetometer_are_chosen(tmp_path):
    found = recordings(placed(tmp_path, {"User3/030717": (3, [1, 1, 1])}), positions=["hips"], magnetometer=True)
    assert list(found) == [("u3-hips", 0)]
    hips = found["u3-hips", 0]
    assert hips.channels[6:] == ("mag_x", "mag_y", "mag_z")
    np.testing.assert_allclose(hips.signal[0, 6:], [2.08, 2.09, 2.10], rtol=1e-6)


def test_days_are_sessions_in_the_order_of_time(tmp_path):
    days = {"User3/030717": (3, [2] * 3), "User3/140617": (3, [1] * 3), "User3/070717": (3, [3] * 3)}
    found = recordings(placed(tmp_path, days), positions=["bag"])
    assert [found["u3-bag", session].labels[0] for session in range(3)] == [0, 1, 2]


def test_labels_are_joined_on_time(tmp_path):
    # labels begin 2 samples late, end 1 early, and are stamped 3 ms off
    late = "".join(f"{START + 20 + 3 + 10 * row} 4 1 0 0 0 0 0\n" for row in range(3))
    found = recordings(placed(tmp_path, {"User1/220617": (6, [])}, Label=late), positions=["hand"])
    assert found["u1-hand", 0].labels.tolist() == [-1, -1, 3, 3, 3, -1]


def test_what_is_far_from_any_label_is_left_out(tmp_path):
    coarse = [0] * 500 + [5] * 300 + [0] * 500 + [5] * 300
    found = recordings(placed(tmp_path, {"User1/220617": (1600, coarse)}), positions=["hand"])
    hand = found["u1-hand", 0]
    assert len(hand.labels) == 100 + 300 + 200 + 300
    assert hand.labels.tolist() == [-1] * 100 + [4] * 300 + [-1] * 200 + [4] * 300
    federation = load("shl", root=str(tmp_path), positions=["hand"], window=50, overlap=0.0, split={"val": 0.0})
    client = federation["u1-hand"]
    assert len(client.train) + len(client.test) == 3 + 3
    assert client.test.origin[:, 0].tolist() == [1, 1]  # 3 s apart: another recording


def test_pieces_of_a_file_give_what_the_whole_does(tmp_path, monkeypatch):
    root = placed(tmp_path, {"User1/220617": (40, [1] * 40)}, Hand=motion(20) + motion(20, 20, value=3).rstrip("\n"))
    whole = recordings(root, positions=["hand"])["u1-hand", 0]
    monkeypatch.setattr(shl, "BLOCK", 300)
    monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", "0")
    pieces = recordings(root, positions=["hand"])["u1-hand", 0]
    assert len(whole.signal) == 40
    np.testing.assert_array_equal(whole.signal, pieces.signal)
    np.testing.assert_array_equal(whole.times, pieces.times)


def test_a_mistake_in_a_later_piece_has_its_line_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(shl, "BLOCK", 300)
    text = motion(30) + motion(1, 30).replace("0.04", "x") + motion(5, 31)
    with pytest.raises(UserError, match=r"Hand_Motion\.txt: line 31, column 4 \('acc_z'\): 'x' is no number$"):
        load("shl", root=placed(tmp_path, {"User1/220617": (40, [1] * 40)}, Hand=text))


def test_missing_values_are_kept_for_the_pipeline(tmp_path):
    text = motion(2) + motion(1, 2).replace("0.03", "NaN") + motion(2, 3)
    found = recordings(placed(tmp_path, {"User1/220617": (5, [1] * 5)}, Hand=text), positions=["hand"])
    assert np.isnan(found["u1-hand", 0].signal).sum() == 1
    assert np.isnan(found["u1-hand", 0].signal[2, 1])


def test_three_archives_in_a_folder(tmp_path):
    for user in (1, 2, 3):
        with zipfile.ZipFile(tmp_path / f"SHLDataset_preview_v1_part{user}.zip", "w") as box:
            day = f"SHLDataset_preview_v1/User{user}/140617"
            for phone in PHONES:
                box.writestr(f"{day}/{phone}_Motion.txt", motion(2000))
                box.writestr(f"{day}/{phone}_Location.txt", "…")
            box.writestr(f"{day}/Label.txt", label([2] * 2000))
    federation = load("shl", root=str(tmp_path))
    assert len(federation) == 12
    assert federation.clients[0].input_shape == (6, 128)
    assert set(federation.clients[0].train.y.tolist()) == {1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Label": label([1, 9])}, "Label.txt: line 2, column 2 ('coarse'): 9 is none of 0 to 8"),
        ({"Label": label([1, "NaN"])}, "Label.txt: line 2, column 2 ('coarse'): nan is none of 0 to 8"),
        ({"Label": ""}, "Label.txt: the file is empty"),
        (
            {"Label": "1 2 3\n"},
            "Label.txt: line 1 has 3 cells, expected 8 (time, coarse, fine, road, traffic, tunnels, social, food)",
        ),
        ({"Hand": motion(3)[:-40]}, "Hand_Motion.txt: line 3 has 15 cells, expected 23 ("),
        ({"Hand": motion(1) + "NaN" + motion(1, 1)[16:]}, "Hand_Motion.txt: line 2, column 1 ('time'): it is missing"),
        (
            {"Hand": motion(1) + motion(1, 1).rstrip() + " 7\n"},
            "Hand_Motion.txt: line 2 has 24 cells, expected 23 (" + ", ".join(shl.MOTION) + ")",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    with pytest.raises(UserError) as error:
        load("shl", root=placed(tmp_path, {"User1/220617": (3, [1, 1, 1])}, **change))
    assert message in str(error.value)


def test_wrong_paths_and_options_are_named(tmp_path):
    root = placed(tmp_path, {"User1/day1": (3, [1, 1, 1])})
    with pytest.raises(UserError, match=r"the path gives no user and day; expected one like User1/220617/Label\.txt$"):
        load("shl", root=root)
    with pytest.raises(UserError, match=r"^positions = \[\]; name at least one, and each once$"):
        load("shl", root=root, positions=[])


def test_a_missing_phone_is_named(tmp_path):
    root = placed(tmp_path, {"User1/220617": (3, [1, 1, 1])})
    (tmp_path / "SHLDataset_preview_v1/User1/220617/Torso_Motion.txt").unlink()
    with pytest.raises(UserError, match=r"holds no file 'User1/220617/torso_Motion.txt'; expected: "):
        load("shl", root=root)
