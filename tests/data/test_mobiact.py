"""MobiAct: files of the official layout; columns by name, uneven time stamps, labels of each sample, mistakes."""

import zipfile

import numpy as np
import pytest

from fedsense.data import find_dataset, load
from fedsense.data.cache import content_key
from fedsense.errors import UserError

HEADER = "timestamp,rel_time,acc_x,acc_y,acc_z,gyro_x,gyro_y,gyro_z,azimuth,pitch,roll,label"


def table(labels, step=5_000_000, start=1_974_921_153_000, header=HEADER):
    """A row every 5 ms; acc_x is the time in s, acc_y 1.5, acc_z 9.8, gyro 0.1, 0.2, 0.3."""
    lines = [header]
    for row, label in enumerate(labels):
        stamp = start + row * step
        lines.append(f"{stamp},{row * step / 1e9:.3f},{row * step / 1e9:.4f},1.5,9.8,0.1,0.2,0.3,120,-80,5,{label}")
    return "\n".join(lines) + "\n"


def placed(folder, files):
    for name, content in files.items():
        path = folder / "MobiAct_Dataset_v2.0" / "Annotated Data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(folder)


def found(root, **options):
    dataset = find_dataset("mobiact")
    options = dataset.parse({"root": root, **options})
    files = dataset.files(options)
    content = content_key(files)
    return dataset.recordings(files, content, options), dataset.gather(files, content, options)


def test_values_times_and_labels(tmp_path):
    fall = ["STD"] * 3 + ["FOL"] * 2 + ["LYI"]
    root = placed(
        tmp_path, {"FOL/FOL_7_2_annotated.csv": table(fall), "WAL/WAL_67_1_annotated.csv": table(["WAL"] * 3)}
    )
    first, second = found(root)[0]
    assert (first.client, second.client) == ("s07", "s67")
    np.testing.assert_allclose(first.times, np.arange(6) * 0.005, atol=1e-9)
    np.testing.assert_allclose(first.signal[2], [0.01, 1.5, 9.8, 0.1, 0.2, 0.3], rtol=1e-6)
    assert first.channels == ("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z")
    assert first.labels.tolist() == [0, 0, 0, -1, -1, 11]  # a fall has no label among daily activities
    assert second.labels.tolist() == [1, 1, 1]


def test_falls_are_classes_if_asked_for(tmp_path):
    root = placed(tmp_path, {"SDL/SDL_1_1_annotated.csv": table(["STD", "SDL", "LYI"])})
    dataset = find_dataset("mobiact")
    assert len(dataset.classes(activities="daily")) == 12
    names = dataset.classes(activities="all")
    (only,) = found(root, activities="all")[0]
    assert [names[label] for label in only.labels] == ["standing", "sideward-lying", "lying"]
    assert len(names) == 16


def test_columns_are_found_by_name(tmp_path):
    other = "label,timestamp,gyro_z,gyro_y,gyro_x,acc_z,acc_y,acc_x"
    root = placed(tmp_path, {"JOG/JOG_1_1_annotated.csv": f"{other}\nJOG,0,6,5,4,3,2,1\n"})
    assert found(root)[0][0].signal.tolist() == [[1, 2, 3, 4, 5, 6]]


def test_time_stamps_bring_samples_to_50_hz(tmp_path):
    # 100 Hz, not the 200 Hz that are usual: acc_x tells the time
    root = placed(tmp_path, {"WAL/WAL_1_1_annotated.csv": table(["WAL"] * 600, step=10_000_000)})
    (only,) = found(root, overlap=0.0)[1]
    assert only.x.shape == (2, 6, 128)
    np.testing.assert_allclose(np.diff(only.x[0, 0, 20:]), 0.02, atol=1e-4)


def test_a_gap_in_time_cuts_the_recording(tmp_path):
    late = table(["WAL"] * 600, start=1_974_921_153_000 + 10_000_000_000).split("\n", 1)[1]
    root = placed(tmp_path, {"WAL/WAL_1_1_annotated.csv": table(["WAL"] * 600) + late})
    (only,) = found(root, overlap=0.0, window=100)[1]
    assert only.origin[:, 0].tolist() == [0, 1]


def test_through_a_zip_with_windows_style_lines(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as box:
        for trial in range(1, 4):
            text = table(["JOG"] * 1200).replace("\n", "\r\n")
            box.writestr(f"MobiAct_Dataset_v2.0/Annotated Data/JOG/JOG_3_{trial}_annotated.csv", text)
            box.writestr(f"MobiAct_Dataset_v2.0/Raw Data/JOG/JOG_acc_3_{trial}.txt", "#")
    federation = load("mobiact", root=str(tmp_path / "m.zip"))
    assert federation.ids == ["s03"]
    assert federation.task.classes[federation["s03"].train.y[0]] == "jogging"


GOOD = table(["WAL"] * 3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "WAL_1_1_annotated.csv",
            GOOD.replace("WAL\n", "WLK\n", 1),
            "line 2, column 'label': 'WLK' is unknown; did you mean 'WAL'?",
        ),
        ("WAL_1_1_annotated.csv", GOOD.replace("9.8", "g", 1), "line 2, column 5 ('acc_z'): 'g' is no number"),
        ("WAL_1_1_annotated.csv", GOOD.replace("9.8", "", 1), "line 2, column 5 ('acc_z'): the cell is empty"),
        (
            "WAL_1_1_annotated.csv",
            GOOD.replace("gyro_x", "gyrox"),
            "line 1 names no column 'gyro_x'; did you mean 'gyrox'?",
        ),
        (
            "WAL_1_1_annotated.csv",
            GOOD[:-20],
            f"line 4 has 7 cells, expected 12 ({HEADER.replace(',', ', ')})",
        ),
        (
            "WAL_1_annotated.csv",
            GOOD,
            "the name gives no activity, person and trial; expected a name like WAL_1_1_annotated.csv",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, name, content, message):
    with pytest.raises(UserError) as error:
        load("mobiact", root=placed(tmp_path, {f"WAL/{name}": content}))
    assert str(error.value).endswith(f"{name}: {message}")
