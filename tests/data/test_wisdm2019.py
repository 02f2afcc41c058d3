"""WISDM 2019: the real recordings of the watch, the official form with stamps, and mistakes."""

import zipfile

import numpy as np
import pytest

from conftest import real
from fedsense.data import find_dataset, load
from fedsense.errors import UserError


def recordings(root, **given):
    dataset = find_dataset("wisdm2019")
    options = dataset.parse({"root": str(root), **given})
    return dataset.recordings(dataset.files(options), f"{root}{given}", options)


def test_published_counts_of_the_reduced_form():
    found = recordings(real("wisdm2019-watch.tar.xz"))
    assert sum(len(r.signal) for r in found) == 744_000
    assert len({r.client for r in found}) == 51
    counts = np.bincount(np.concatenate([r.labels for r in found]), minlength=18)
    assert counts[[0, 1, 2, 3, 4, 12]].tolist() == [124_800, 122_400, 122_400, 124_800, 124_800, 124_800]
    assert counts.sum() == 744_000
    first = next(r for r in found if r.client == "1642-watch")
    np.testing.assert_allclose(first.signal[0], [5.28116, -4.601057, 6.171803], rtol=1e-6)
    assert first.times is None


def test_federation_of_real_recordings():
    federation = load("wisdm2019", root=str(real("wisdm2019-watch.tar.xz")))
    assert len(federation) == 51
    assert federation.ids[0] == "1600-watch"
    assert federation["1600-watch"].train.x.shape[1:] == (3, 200)
    assert sorted(federation["1600-watch"].train.y.unique().tolist()) == [0, 1, 2, 3, 4, 12]


def write(folder, sensor, text, device="phone", subject=1600):
    place = folder / "wisdm-dataset" / "raw" / device / sensor
    place.mkdir(parents=True, exist_ok=True)
    (place / f"data_{subject}_{sensor}_{device}.txt").write_text(text)


START = 252207666810782


def test_gyroscope_is_brought_to_the_accelerometers_stamps(tmp_path):
    # the gyroscope runs 25 ms late and is the line 2 t; the accelerometer repeats its first two rows at the end
    rows = [f"1600,B,{START + 50_000_000 * i},{i},-{i},0.5;\n" for i in range(20)]
    write(tmp_path, "accel", "".join(rows + rows[:2]))
    write(
        tmp_path, "gyro", "".join(f"1600,B,{START + 50_000_000 * i + 25_000_000},{2 * i},0, -1;\n" for i in range(20))
    )
    write(tmp_path, "accel", "".join(rows).replace("1600,", "1601,"), subject=1601)
    one, other = recordings(tmp_path)
    assert one.client == "1600-phone"
    assert one.traits == {"person": "1600", "device": "phone", "placement": "pocket"}
    assert one.signal.shape == (20, 6)
    assert one.labels.tolist() == [1] * 20
    np.testing.assert_allclose(one.signal[5], [5, -5, 0.5, 2 * 4.5, 0, -1], atol=1e-4)
    assert np.isnan(one.signal[0, 3:]).all()  # before the first turn
    np.testing.assert_allclose(np.diff(one.times), 0.05, atol=1e-6)
    assert np.isnan(other.signal[:, 3:]).all()  # 1601 has no gyroscope file
    assert other.signal.shape == (20, 6)


def test_official_archive_in_an_archive(tmp_path):
    rows = "".join(f"1650,S,{START + 50_000_000 * i},1,2,-3;\n" for i in range(600))
    inner = tmp_path / "wisdm-dataset.zip"
    with zipfile.ZipFile(inner, "w") as box:
        for device in ("phone", "watch"):
            box.writestr(f"wisdm-dataset/raw/{device}/accel/data_1650_accel_{device}.txt", rows)
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as box:
        box.write(inner, "wisdm-dataset.zip")
    federation = load("wisdm2019", root=str(tmp_path / "outer.zip"), normalise="none", split={"test": 0, "val": 0})
    assert federation.ids == ["1650-phone", "1650-watch"]
    assert federation["1650-watch"].train.y.tolist() == [17] * 5
    assert federation["1650-watch"].train.x[0, :, 3].tolist() == [1, 2, -3]
    assert load("wisdm2019", root=str(tmp_path / "outer.zip"), device="phone").ids == ["1650-phone"]


@pytest.mark.parametrize(
    ("accel", "gyro", "message"),
    [
        ("1600,A,1,2,3,4;\n1600,N,2,3,4,5;\n", "",
         "data_1600_accel_phone.txt: line 2, column 2 ('activity'): activity 'N' is unknown; valid names: A, B, C, "
         "D, E, F, G, H, I, J, K, L, M, O, P, Q, R, S"),
        ("1600,A,2,3,4;\n1600,A,2,3,z;\n", "", "data_1600_accel_phone.txt: line 2, column 5 ('z'): 'z' is no number"),
        ("1600,A,1,2,3,4;\n", "1600,A,2,3,4;\n",
         "data_1600_gyro_phone.txt: its rows do not go with those of data_1600_accel_phone.txt, and not both have "
         "stamps; get both again"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, accel, gyro, message):
    write(tmp_path, "accel", accel)
    if gyro:
        write(tmp_path, "gyro", gyro)
    with pytest.raises(UserError) as error:
        load("wisdm2019", root=str(tmp_path))
    assert str(error.value).endswith(message)
