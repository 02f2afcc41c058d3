"""UniMiB-SHAR: MATLAB files of the official layout; axes, names, overlapping windows, mistakes."""

import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from fedsense.data import find_dataset, load
from fedsense.data.cache import content_key
from fedsense.data.splits import shared
from fedsense.errors import UserError
from fedsense.work import stream

DAILY = [
    "StandingUpFS",
    "StandingUpFL",
    "Walking",
    "Running",
    "GoingUpS",
    "Jumping",
    "GoingDownS",
    "LyingDownFS",
    "SittingDown",
]
FALLS = [
    "FallingForw",
    "FallingRight",
    "FallingBack",
    "HittingObstacle",
    "FallingWithPS",
    "FallingBackSC",
    "Syncope",
    "FallingLeft",
]


def cells(names):
    table = np.empty((2, len(names)), dtype=object)
    table[0] = [f"description of {name}" for name in names]
    table[1] = names
    return table


def trial(seed, starts):
    """Windows of one trial, ``[n, 453]``: 151 x, 151 y, 151 z."""
    signal = stream(seed, "trial").normal(size=(3, 8000))
    return np.stack([signal[:, start : start + 151].ravel() for start in starts])


def official(folder, stem="acc", short=(*DAILY, *FALLS), **change):
    """Person 5 walks twice (windows 60 apart; trial 2 first in the file) and faints; person 30 falls left."""
    data = np.concatenate(
        [trial("b", range(0, 300, 60)), trial("a", range(0, 300, 60)), trial("c", [0]), trial("d", [0, 500])]
    )
    labels = np.array([[3, 5, 2]] * 5 + [[3, 5, 1]] * 5 + [[16, 5, 1]] + [[17, 30, 1]] * 2, float)
    whole = {"data": data, "labels": labels, "names": cells(list(short)), **change}
    place = folder / "UniMiB-SHAR" / "data"
    place.mkdir(parents=True, exist_ok=True)
    for kind, value in whole.items():
        savemat(place / f"{stem}_{kind}.mat", {f"{stem}_{kind}": value}, do_compression=True)
    return str(folder)


def gathered(root, **options):
    dataset = find_dataset("unimib-shar")
    options = dataset.parse({"root": root, **options})
    files = dataset.files(options)
    return {client.id: client for client in dataset.gather(files, content_key(files), options)}


def test_axes_labels_and_people(tmp_path):
    clients = gathered(official(tmp_path))
    assert list(clients) == ["s05", "s30"]
    names = find_dataset("unimib-shar").classes(part="all")
    assert len(names) == 17
    fifth = clients["s05"]
    assert [names[label] for label in fifth.y] == ["walking"] * 5 + ["syncope"] + ["walking"] * 5  # trial 1, then 2
    assert fifth.x.shape == (11, 3, 151)
    np.testing.assert_allclose(fifth.x[0].ravel(), trial("a", [0])[0], rtol=1e-6)
    assert [names[label] for label in clients["s30"].y] == ["falling-left"] * 2


def test_overlapping_windows_are_one_recording(tmp_path):
    clients = gathered(official(tmp_path))
    assert clients["s05"].origin[:, 0].tolist() == [0] * 5 + [1] + [2] * 5
    assert clients["s05"].origin[:5, 1].tolist() == [0, 60, 120, 180, 240]
    assert clients["s30"].origin.tolist() == [[0, 0, 151], [1, 0, 151]]
    federation = load("unimib-shar", root=str(tmp_path), split={"test": 0.2, "val": 0.0})
    client = federation["s05"]
    assert shared(client.train.origin, client.test.origin) == 0
    # 2 of 10 walks are tested on, the last of each trial; the two before each share samples with it and are given up
    assert (len(client.test), len(client.train)) == (2, 4 + 1)


def test_every_trial_is_trained_and_tested_on(tmp_path):
    """The first trial is of the right pocket, the second of the left: a split in order of trials tests on one alone."""
    official(tmp_path, data=trial("far", range(0, 8000, 400)), labels=np.array([[3, 5, 1]] * 10 + [[3, 5, 2]] * 10))
    client = load("unimib-shar", root=str(tmp_path), split={"test": 0.3, "val": 0.1}, normalise="none")["s05"]
    first = {tuple(window) for window in trial("far", range(0, 4000, 400)).astype(np.float32)[:, :4].tolist()}
    for part, count in ((client.train, 6), (client.val, 1), (client.test, 3)):
        assert len(part) == 2 * count
        assert sum(tuple(x[0, :4].tolist()) in first for x in part.x) == count


def test_classes_are_numbered_by_the_names_in_the_file(tmp_path):
    clients = gathered(official(tmp_path, short=(*FALLS, *DAILY)))
    names = find_dataset("unimib-shar").classes(part="all")
    assert names[clients["s30"].y[0]] == "sitting-down"


@pytest.mark.parametrize(
    ("part", "stem", "short", "expected"),
    [("daily", "adl", DAILY, "walking"), ("falls", "fall", FALLS, "falling-back")],
)
def test_parts(tmp_path, part, stem, short, expected):
    root = official(tmp_path, stem, short, data=trial("e", [0, 200, 400]), labels=np.array([[3, 1, 1]] * 3))
    federation = load("unimib-shar", root=root, part=part)
    assert federation.task.classes[federation["s01"].train.y[0]] == expected
    assert len(federation.task.classes) == len(short)


def test_through_a_zip(tmp_path):
    official(tmp_path)
    with zipfile.ZipFile(tmp_path / "u.zip", "w") as box:
        for path in sorted((tmp_path / "UniMiB-SHAR").rglob("*.mat")):
            box.write(path, path.relative_to(tmp_path))
    assert len(load("unimib-shar", root=str(tmp_path / "u.zip"))) == 2


def labels(place, value):
    found = np.array([[3, 5, 1]] * 13, float)
    found[place] = value
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((13, 450))}, "acc_data.mat: 'acc_data' is 13 × 450 numbers, expected rows of 453 numbers"),
        ({"data": np.full((13, 453), np.nan)}, "acc_data.mat: row 1 is not finite"),
        ({"labels": np.ones((12, 3))}, "acc_labels.mat: has 12 rows, and acc_data.mat 13; get both again"),
        ({"labels": np.ones((13, 2))}, "acc_labels.mat: 'acc_labels' is 13 × 2 numbers, expected rows of 3 numbers"),
        ({"labels": labels((4, 0), 18)}, "acc_labels.mat: row 5: class 18 is none of 1 to 17"),
        ({"labels": labels((4, 1), 0)}, "acc_labels.mat: row 5: subject 0 is none of 1 to 30"),
        ({"labels": labels((4, 1), 2.5)}, "acc_labels.mat: row 5: subject 2.5 is none of 1 to 30"),
        ({"names": cells(DAILY)}, "acc_names.mat: 'acc_names' is 2 × 9, expected 2 × 17 (descriptions, short names)"),
        (
            {"names": cells([*DAILY, *FALLS[:7], "FallingLef"])},
            "acc_names.mat: class 'FallingLef' is unknown; did you mean 'FallingLeft'?",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    with pytest.raises(UserError) as error:
        load("unimib-shar", root=official(tmp_path, **change))
    assert str(error.value).endswith(message)


def test_a_file_cut_short_is_told(tmp_path):
    root = official(tmp_path)
    path = tmp_path / "UniMiB-SHAR" / "data" / "acc_data.mat"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"acc_data\.mat is no MATLAB file, or damaged or cut short; get it again$"):
        load("unimib-shar", root=root)


def test_a_missing_part_is_told(tmp_path):
    with pytest.raises(UserError, match=r"holds no file 'adl_data.mat'; expected: "):
        load("unimib-shar", root=official(tmp_path), part="daily")
