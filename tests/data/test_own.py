"""One's own recordings: folders, formats, clients that differ, and every mistake named."""

import gzip
import math

import numpy as np
import pytest

from fedsense.data import load
from fedsense.data.template import write_description
from fedsense.errors import UserError

PLAIN = """
name = "kitchen"
window = 10
overlap = 0.0
[recording]
columns = ["acc_x", "acc_y"]
rate = 10
label = "activity"
"""


TIMED = PLAIN.replace("rate = 10", 'time = "t"\ntime-unit = "ms"')


def csv(path, rows=60, header="acc_x,acc_y,activity", label=lambda i: "walk" if i < 30 else "sit", cells=None):
    path.parent.mkdir(exist_ok=True)
    cells = cells or (lambda i: f"{i},{-i}")
    path.write_text("\n".join([header, *(f"{cells(i)},{label(i)}" for i in range(rows))]) + "\n")


def folder(tmp_path, description=PLAIN):
    (tmp_path / "dataset.toml").write_text(description)
    return tmp_path


def of(root, **options):
    return load("folder", root=str(root), normalise="none", split={"test": 0.34, "val": 0.0}, **options)


def test_one_folder_per_client(tmp_path):
    root = folder(tmp_path)
    csv(root / "anna" / "one.csv")
    csv(root / "anna" / "two.csv", rows=30)
    csv(root / "bert.csv", label=lambda i: "walk")
    federation = of(root)
    assert federation.name == "kitchen"
    assert federation.ids == ["anna", "bert"]
    assert federation.task.classes == ("sit", "walk")
    assert len(federation["anna"].train) + len(federation["anna"].test) == 9  # 3 + 3 windows, and 3 of the second file
    assert federation["bert"].train.x[0].tolist() == [list(range(10)), [-i for i in range(10)]]
    assert federation["bert"].train.y.tolist() == [1] * 4


def test_clients_with_other_columns_rates_and_units(tmp_path):
    """A watch at 5 Hz in g, beside a phone at 10 Hz in m/s²."""
    root = folder(
        tmp_path,
        PLAIN + '[clients.watch]\nrate = 5\ncolumns = { acc_x = "ax" }\nunits = { acc = "g" }\n',
    )
    csv(root / "phone.csv")
    csv(root / "watch.csv", header="ax,other,activity", cells=lambda i: "1.5,0")
    federation = of(root)
    assert federation["phone"].input_shape == (2, 10)
    assert federation["watch"].input_shape == (1, 10)
    assert np.allclose(federation["watch"].train.x, 1.5 * 9.80665)
    same = of(root, rate=10.0)  # brought to one rate, the watch has twice as many samples
    assert len(same["watch"].train) + len(same["watch"].test) == 12


@pytest.mark.parametrize("form", ["csv.gz", "npz", "npz-x", "npy", "parquet"])
def test_every_format_gives_the_same(tmp_path, form):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for root in (ours, theirs):
        root.mkdir()
        folder(root)
    csv(ours / "anna.csv")
    count = np.arange(60)
    labels = np.where(count < 30, "walk", "sit")
    if form == "csv.gz":
        (theirs / "anna.csv.gz").write_bytes(gzip.compress((ours / "anna.csv").read_bytes()))
    elif form == "npz":
        np.savez(theirs / "anna.npz", acc_x=count, acc_y=-count, activity=labels)
    elif form == "npz-x":
        np.savez(theirs / "anna.npz", x=np.stack([count, -count], 1), y=labels)
    elif form == "npy":
        folder(theirs, PLAIN.replace('"activity"', '"2"').replace("[recording]", 'classes = ["1", "0"]\n[recording]'))
        np.save(theirs / "anna.npy", np.stack([count, -count, count < 30], 1).astype(float))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        table = pyarrow.table({"activity": labels, "acc_y": -count, "acc_x": count})
        parquet.write_table(table, theirs / "anna.parquet")
    a, b = of(ours)["anna"], of(theirs)["anna"]
    assert a.train.x.tolist() == b.train.x.tolist()
    if form != "npy":  # whose classes are named in another order
        assert a.train.y.tolist() == b.train.y.tolist()


def test_windows_already_cut(tmp_path):
    root = folder(tmp_path)
    np.savez(root / "anna.npz", x=np.arange(120).reshape(6, 2, 10), y=["a", "b", "a", "b", "a", ""])
    client = of(root)["anna"]
    assert client.input_shape == (2, 10)
    assert len(client.train) + len(client.test) == 5  # the last has no label
    assert client.train.x[0, 0, 0] == 0


def test_labels_from_file_names_and_time_stamps(tmp_path):
    root = folder(
        tmp_path,
        'window = 10\noverlap = 0.0\n[recording]\ncolumns = ["v"]\n'
        'time = "t"\ntime-unit = "ms"\nlabel-from = "file-name"\n',
    )
    (root / "anna").mkdir()
    for name in ("walk_1", "sit_1"):
        rows = "\n".join(f"{100 * i},{i}" for i in range(40))
        (root / "anna" / f"{name}.csv").write_text("t,v\n" + rows + "\n")
    federation = of(root)
    assert federation.task.classes == ("sit", "walk")
    assert sum(federation.class_counts("train")["anna"]) == 6


def test_labels_from_intervals(tmp_path):
    """10 Hz, no time column: 1 s to 3 s is rows 10 to 29."""
    root = folder(
        tmp_path, 'window = 10\noverlap = 0.0\n[recording]\ncolumns = ["v"]\nrate = 10\nlabel-from = "intervals"\n'
    )
    (root / "anna").mkdir()
    (root / "anna" / "take.csv").write_text("v\n" + "\n".join(str(i) for i in range(60)) + "\n")
    (root / "intervals.csv").write_text("file,start,stop,label\nanna/take.csv,1,3,walk\nanna/take.csv,4,6,sit\n")
    client = of(root)["anna"]
    first = {int(x[0, 0]) for x in [*client.train.x, *client.test.x]}
    assert first == {10, 20, 40, 50}


def test_counting(tmp_path):
    root = folder(tmp_path, 'kind = "counting"\n' + PLAIN)
    csv(root / "room.csv", label=lambda i: str(10 * (i // 30)))
    task = of(root).task
    assert task.kind == "counting"
    assert task.counts == (0.0, 10.0)


def test_missing_cells_are_bridged_or_leave_no_label(tmp_path):
    root = folder(tmp_path)
    csv(root / "anna.csv", label=lambda i: "walk", cells=lambda i: "," if i == 5 or 30 <= i < 45 else f"{i},{-i}")
    client = of(root)["anna"]
    assert client.train.x[0, 0].tolist() == list(range(10))  # one missing value: a straight line
    starts = {int(x[0, 0]) for x in [*client.train.x, *client.test.x]}
    assert starts == {0, 10, 20, 45}  # 1.5 s are missing from row 30 on: nothing is cut there


BROKEN = [
    (PLAIN, "anna.csv", "acc_x,acc_y,activity\n1,2,walk\n1,abc,walk\n",
     "anna.csv: line 3, column 2 ('acc_y'): 'abc' is no number"),
    (PLAIN, "anna.csv", "acc_x,accy,activity\n1,2,walk\n",
     "anna.csv: line 1 names no column 'acc_y'; did you mean 'accy'?"),
    (PLAIN.replace("[rec", 'classes = ["walk", "sit"]\n[rec'), "anna.csv", "acc_x,acc_y,activity\n1,2,walc\n",
     "anna.csv: label 'walc' is none of the classes of dataset.toml; did you mean 'walk'?"),
    (PLAIN + "wimdow = 3\n", "anna.csv", "", "dataset.toml: [recording] has no option 'wimdow'"),
    ("wimdow = 3\n" + PLAIN, "anna.csv", "", "dataset.toml has no option 'wimdow'; did you mean 'window'?"),
    (PLAIN.replace("rate = 10", ""), "anna.csv", "", "[recording] needs rate = (Hz), or time = (the column that holds"),
    (PLAIN.replace('label = "activity"', ""), "anna.csv", "", "[recording] needs label = (a column), or label-from"),
    (PLAIN.replace('["acc_x", "acc_y"]', "[]"), "anna.csv", "", "[recording] names no columns; say columns ="),
    (PLAIN + 'units = { acc = "furlong" }\n', "anna.csv", "", "unit 'furlong' of 'acc' is unknown"),
    (PLAIN + "[clients.anne]\nrate = 5\n", "anna.csv", "acc_x,acc_y,activity\n1,2,walk\n",
     "[clients.anne]: no such client; did you mean 'anna'?"),
    (PLAIN.replace('"acc_y"', '"t"').replace("rate = 10", 'time = "t"'), "anna.csv", "",
     "[recording] learns from 't', which is the time; take it out of columns"),
    (PLAIN.replace('["acc_x", "acc_y"]', '{ label = "acc_x" }'), "anna.csv", "",
     "[recording] calls a channel 'label'; give it another name"),
    (PLAIN.replace("[rec", 'classes = ["walk", "sit", "walk"]\n[rec'), "anna.csv", "",
     "dataset.toml: classes names 'walk' twice; name it once"),
    (PLAIN.replace('"kitchen"', '"../kitchen"'), "anna.csv", "",
     "dataset.toml: name is '../kitchen'; give a name without slashes"),
    (PLAIN.replace("window = 10", "window = 0"), "anna.csv", "", "dataset.toml: window = 0; give at least 1 sample"),
    (PLAIN.replace("[recording]", '[recording]\ntimeunit = "ms"'), "anna.csv", "",
     "[recording] has no option 'timeunit'; did you mean 'time-unit'?"),
    (PLAIN, "anna.csv", f"acc_x,acc_y,{'x' * 140_000}\n1,2,3\n", "anna.csv: line 1 is no line of names"),
    ("name = [", "anna.csv", "", "dataset.toml: not valid TOML"),
    (PLAIN, "anna.npz", "not an npz", "anna.npz: is no whole .npz file"),
    (PLAIN, "anna.npy", "not an npy", "anna.npy: is no .npy file"),
    (PLAIN, "anna.parquet", "no parquet", "anna.parquet: not a Parquet file, or cut short"),
    (PLAIN, "readme.txt", "", "holds no recordings beside dataset.toml"),
]  # fmt: skip


@pytest.mark.parametrize(("description", "name", "content", "message"), BROKEN)
def test_mistakes_are_named(tmp_path, description, name, content, message):
    root = folder(tmp_path, description)
    (root / name).write_text(content)
    with pytest.raises(UserError) as error:
        of(root)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_pickles_in_numpy_files_are_not_read(tmp_path):
    root = folder(tmp_path)
    np.save(root / "anna.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match=r"anna.npy: holds Python objects, which are not trusted"):
        of(root)


def test_time_that_runs_backwards(tmp_path):
    root = folder(tmp_path, TIMED)
    rows = [f"{i if i != 7 else 3},{i},{i},walk" for i in range(60)]
    (root / "anna.csv").write_text("\n".join(["t,acc_x,acc_y,activity", *rows[:4], "", " ", *rows[4:]]))
    with pytest.raises(UserError, match=r"anna.csv: line 11, column 't': time runs backwards; sort the rows"):
        of(root)  # blank lines count
    (root / "anna.csv").unlink()
    np.savez(root / "anna.npz", t=[0.0, 2.0, 1.0], acc_x=[1, 2, 3], acc_y=[1, 2, 3], activity=["a", "a", "a"])
    with pytest.raises(UserError, match=r"anna.npz: row 3, column 't': time runs backwards; sort the rows"):
        of(root)
    np.savez(root / "anna.npz", t=[0.0, np.nan, 1.0], acc_x=[1, 2, 3], acc_y=[1, 2, 3], activity=["a", "a", "a"])
    with pytest.raises(UserError, match=r"anna.npz: row 2, column 't': the cell is empty"):
        of(root)


@pytest.mark.parametrize("batch", [2, 4])
def test_rows_that_share_a_stamp_are_spread_until_the_next(tmp_path, batch):
    """10 Hz, handed over in batches: a stamp for several rows."""
    root = folder(tmp_path, TIMED.replace('"ms"', '"s"'))
    csv(
        root / "anna.csv",
        header="t,acc_x,acc_y,activity",
        cells=lambda i: f"{(i - i % batch) / 10},{math.sin(i)},{i}",
        label=lambda i: "walk",
    )
    client = of(root)["anna"]
    assert len(client.train) + len(client.test) == 6
    assert np.allclose(client.train.x[0], [[math.sin(i) for i in range(10)], list(range(10))], atol=1e-5)


def test_rows_written_twice_count_once(tmp_path):
    root = folder(tmp_path, TIMED.replace('"ms"', '"s"'))
    csv(
        root / "anna.csv",
        rows=120,
        header="t,acc_x,acc_y,activity",
        cells=lambda i: f"{i // 2 / 10},{i // 2},{-(i // 2)}",
        label=lambda i: "walk",
    )
    client = of(root)["anna"]
    assert len(client.train) + len(client.test) == 6
    assert np.allclose(client.train.x[0, 0], np.arange(10))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_dates_and_times_of_day(tmp_path, form):
    """10 Hz, around midnight."""
    root = folder(tmp_path, TIMED.replace('"ms"', '"iso"'))
    times = np.datetime64("2026-11-15T23:59:58") + np.arange(60) * np.timedelta64(100, "ms")
    if form == "csv":
        words = [str(t).replace("T", " ") for t in times]
        csv(root / "anna.csv", header="t,acc_x,acc_y,activity", cells=lambda i: f"{words[i]},{i},{-i}")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        count = np.arange(60)
        labels = np.where(count < 30, "walk", "sit")
        parquet.write_table(
            pyarrow.table({"t": times, "acc_x": count, "acc_y": -count, "activity": labels}), root / "anna.parquet"
        )
    client = of(root)["anna"]
    assert len(client.train) + len(client.test) == 6
    assert np.allclose(client.train.x[0, 0], np.arange(10), atol=1e-4)


def test_a_date_that_is_none_and_dates_that_are_taken_for_numbers(tmp_path):
    root = folder(tmp_path, TIMED.replace('"ms"', '"iso"'))
    csv(root / "anna.csv", header="t,acc_x,acc_y,activity", cells=lambda i: f"{'noon' if i == 3 else '2026-01-01'},1,2")
    with pytest.raises(UserError, match=r"anna.csv: line 5, column 't': 'noon' is no date and time"):
        of(root)
    folder(tmp_path, TIMED)
    csv(root / "anna.csv", header="t,acc_x,acc_y,activity", cells=lambda i: "2026-01-01 10:00:00,1,2")
    with pytest.raises(UserError, match=r"10:00:00' is no number; if it is the time, say time-unit = \"iso\"$"):
        of(root)
    (root / "anna.csv").unlink()
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    stamps = np.arange(3).astype("datetime64[s]")
    table = pyarrow.table({"t": stamps, "acc_x": [1, 2, 3], "acc_y": [1, 2, 3], "activity": ["a"] * 3})
    parquet.write_table(table, root / "anna.parquet")
    with pytest.raises(
        UserError, match=r"anna.parquet: column 't' holds dates; if it is the time, say time-unit = \"iso"
    ):
        of(root)


def test_decimal_commas_and_a_separator_that_was_not_said(tmp_path):
    root = folder(tmp_path, PLAIN + 'separator = ";"\ndecimal = ","\n')
    (root / "anna.csv").write_text("acc_x;acc_y;activity\n" + "".join(f"{i},5;-{i},25;walk\n" for i in range(30)))
    assert of(root)["anna"].train.x[0, :, 1].tolist() == [1.5, -1.25]
    folder(tmp_path)
    with pytest.raises(UserError, match=r'anna.csv: its cells seem to be separated by semicolons; say separator = ";"'):
        of(root)
    folder(tmp_path, PLAIN + 'separator = ";"\n')
    with pytest.raises(UserError, match=r"""line 2, column 1 \('acc_x'\): '0,5' is no number; say decimal = ",\""""):
        of(root)
    folder(tmp_path, PLAIN + 'decimal = ","\n')
    with pytest.raises(UserError, match=r'\[recording\] has decimal = "," and cells separated by "," too'):
        of(root)


def test_clients_are_told_apart(tmp_path):
    root = folder(tmp_path)
    csv(root / "anna.phone.csv")
    csv(root / "anna.watch.csv")
    csv(root / "intervals" / "one.csv")  # a folder may be called so
    assert of(root).ids == ["anna.phone", "anna.watch", "intervals"]
    csv(root / "anna.watch" / "one.csv")
    with pytest.raises(UserError, match=r"client 'anna.watch' is anna.watch.csv already; rename one of them"):
        of(root)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("take.csv,1,3,walk", "line 2, column 'file': 'take.csv' is anna/take.csv and bert/take.csv; name the folder"),
        ("anna/take.csv,1,3,walk\n\n\nanna/TAKE.csv,2,4,sit", "line 5: 2 to 4 overlaps with another interval"),
        ("anna/take.csv,100,300,walk", "line 2: no row of take.csv is within; it goes from 0 to 5.9 s. Is the unit"),
        ("anna/take.csv,one,3,walk", "line 2, column 'start': 'one' is no number"),
        ("anna/take.csv,3,3,walk", "line 2: stop (3) must be after start (3)"),
        ("carl/take.csv,1,3,walk", "line 2, column 'file': there is no recording 'carl/take.csv'"),
    ],
)
def test_intervals_that_are_wrong(tmp_path, rows, message):
    root = folder(tmp_path, PLAIN.replace('label = "activity"', 'label-from = "intervals"'))
    csv(root / "anna" / "take.csv")
    csv(root / "bert" / "take.csv")
    (root / "intervals.csv").write_text(f"file,start,stop,label\n{rows}\n")
    with pytest.raises(UserError) as error:
        of(root)
    assert f"intervals.csv: {message}" in str(error.value)


def test_intervals_in_dates_and_with_semicolons(tmp_path):
    root = folder(tmp_path, TIMED.replace('"ms"', '"iso"').replace('label = "activity"', 'label-from = "intervals"'))
    words = [str(np.datetime64("2026-11-15T10:00:00") + np.timedelta64(100 * i, "ms")) for i in range(60)]
    csv(root / "anna.csv", header="t,acc_x,acc_y,x", cells=lambda i: f"{words[i]},{i},{-i}")
    (root / "intervals.csv").write_text(
        "file;start;stop;label\nanna.csv;2026-11-15 10:00:01;2026-11-15T10:00:04;walk\n"
    )
    client = of(root)["anna"]
    assert sorted(round(float(x[0, 0])) for x in [*client.train.x, *client.test.x]) == [10, 20, 30]


def test_columns_that_are_no_columns(tmp_path):
    root = folder(tmp_path)
    for x, message in ((np.zeros((4, 2)), "has shape [4, 2]"), (np.float64(3), "has shape []")):
        np.savez(root / "anna.npz", acc_x=x, acc_y=np.zeros(4), activity=["a"] * 4)
        with pytest.raises(UserError) as error:
            of(root)
        assert f"anna.npz: column 'acc_x' {message}, expected one number a row" in str(error.value)


def test_numbers_too_large_are_missing(tmp_path):
    root = folder(tmp_path)
    csv(root / "anna.csv", label=lambda i: "walk", cells=lambda i: f"{1e300 if i == 5 else i},{-i}")
    assert of(root)["anna"].train.x[0, 0].tolist() == list(range(10))


def test_new_description_is_filled_in_and_reads(tmp_path):
    """What `data new` writes is a valid description of the folder it was written for."""
    csv(tmp_path / "anna" / "one.csv", header="t,acc_x,activity", cells=lambda i: f"{20 * i},{math.sin(i)}", rows=900)
    path = write_description(tmp_path)
    text = path.read_text()
    assert 'columns = ["acc_x"]' in text
    assert 'time = "t"' in text
    assert 'label = "activity"' in text
    federation = load("folder", root=str(tmp_path))
    assert federation["anna"].input_shape == (1, 128)
    with pytest.raises(UserError, match="is there already"):
        write_description(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        write_description(tmp_path / "nowhere")


def test_semicolons_units_and_times_that_cannot_be(tmp_path):
    root = folder(tmp_path, PLAIN + 'separator = ";"\n')
    (root / "anna.csv").write_text("acc_x;acc_y;activity\n" + "".join(f"{i};{-i};walk\n" for i in range(30)))
    assert of(root)["anna"].train.x[0].tolist() == [list(range(10)), [-i for i in range(10)]]
    folder(tmp_path, PLAIN + 'separator = ";"\nunits = { gyro = "deg/s" }\n')
    with pytest.raises(UserError, match="units names 'gyro', which is no sensor of columns; valid names: acc, acc_x"):
        of(root)
    folder(tmp_path, PLAIN.replace("rate = 10", 'time = "t"\ntime-unit = "ns"') + 'separator = ";"\n')
    (root / "anna.csv").write_text("t;acc_x;acc_y;activity\n" + "".join(f"{i};{i};{-i};walk\n" for i in range(30)))
    with pytest.raises(UserError, match=r"its times are 1e-09 s apart, which is 1e[+]09 Hz; is time-unit right"):
        of(root)


def test_intervals_that_overlap_and_a_label_that_is_learnt_from(tmp_path):
    root = folder(tmp_path, PLAIN.replace('label = "activity"', 'label-from = "intervals"'))
    csv(root / "anna.csv")
    (root / "intervals.csv").write_text("file,start,stop,label\nanna.csv,0,3,walk\nanna.csv,2,4,sit\n")
    with pytest.raises(UserError, match=r"intervals.csv: line 3: 2 to 4 overlaps with another interval of the file"):
        of(root)
    folder(tmp_path, PLAIN.replace('"acc_y"', '"activity"'))
    with pytest.raises(UserError, match=r"\[recording\] learns from 'activity', which is the label"):
        of(root)


def test_new_description_of_clients_that_differ(tmp_path):
    """What `data new` writes of them reads as it is."""
    csv(tmp_path / "anna" / "1.csv", 900, "t,acc_x,activity", cells=lambda i: f"{20 * i},{math.sin(i)}")
    csv(tmp_path / "bert.csv", 900, "t,acc_x,activity", cells=lambda i: f"{20 * i},{math.sin(i)}")
    rows = "".join(f"{i / 50:.2f};{i % 7},5;{'run' if i < 450 else 'sit'};left\n" for i in range(900)).replace(".", ",")
    (tmp_path / "Jörg's “watch” \\ 2.csv").write_text("Time;X;class;hand\n" + rows, encoding="utf-8")
    seconds, labels = np.arange(900) / 50, np.where(np.arange(900) < 450, "walk", "sit")
    np.savez(tmp_path / "cap.npz", timestamp=seconds, eeg=np.sin(seconds), label=labels)
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    dates = np.datetime64("2026-11-15T23:59:58") + (seconds * 1000).astype("timedelta64[ms]")
    parquet.write_table(
        pyarrow.table({"time": dates, "ax": np.cos(seconds), "activity": labels}), tmp_path / "dora.parquet"
    )
    csv(tmp_path / "emil.csv", 900, "acc_x,activity", cells=lambda i: f"{math.sin(i)}")
    path = write_description(tmp_path)
    federation = load("folder", root=str(tmp_path))
    assert federation.task.classes == ("run", "sit", "walk")
    assert {client.id: client.traits["channels"] for client in federation} == {
        "anna": ["acc_x"], "bert": ["acc_x"], "Jörg's “watch” \\ 2": ["X"], "cap": ["eeg"], "dora": ["ax"],
        "emil": ["acc_x"],
    }  # fmt: skip
    assert all(len(client.train) > 5 for client in federation)
    text = path.read_text()
    assert text.count("[clients.") == 4 + 1  # and the example
    assert "rate = 50   # Hz of the recordings: no column looks like the time" in text


def test_new_description_says_what_is_missing(tmp_path):
    csv(tmp_path / "anna.csv", header="t,acc_x,foo", cells=lambda i: f"{20 * i},{i}")
    text = write_description(tmp_path).read_text()
    assert 'label = ""   # fill this in: no column looks like the label' in text
    with pytest.raises(UserError, match=r"\[recording\] needs label = \(a column\)"):
        of(tmp_path)
    (tmp_path / "dataset.toml").unlink()
    (tmp_path / "intervals.csv").write_text("file,start,stop,label\nanna.csv,0,1000,walk\n")
    text = write_description(tmp_path).read_text()
    assert 'label-from = "intervals"\n' in text
    assert "[clients.intervals]" not in text
    assert len(of(tmp_path, window=10)["anna"].train)


@pytest.mark.parametrize(("step", "unit"), [(0.02, "s"), (20, "ms"), (20_000, "us"), (20_000_000, "ns")])
def test_the_unit_of_time_is_guessed(tmp_path, step, unit):
    csv(tmp_path / "anna.csv", header="t,acc_x,activity", cells=lambda i: f"{step * i},{i}")
    assert f'time-unit = "{unit}"' in write_description(tmp_path).read_text()


def test_windows_already_cut_that_overlap_are_known_by_their_numbers(tmp_path):
    root = folder(tmp_path)
    signal = np.sin(np.arange(200.0) ** 1.5)
    windows = np.stack([np.stack([signal[i : i + 10]] * 2) for i in range(0, 100, 5)])
    np.savez(root / "anna.npz", x=windows, y=["a"] * len(windows))
    client = of(root)["anna"]
    assert len(client.train) + len(client.test) == len(windows) - 1  # one at the border is left out
    assert client.train.origin[1].tolist() == [0, 5, 15]


def test_the_speed_of_a_device(tmp_path):
    root = folder(tmp_path, PLAIN + "[clients.watch]\nspeed = 0.25\n")
    csv(root / "phone.csv")
    csv(root / "watch.csv")
    traits = {client.id: client.traits for client in of(root)}
    assert traits["watch"]["speed"] == 0.25
    assert "speed" not in traits["phone"]
    for wrong in ("0", "-1"):
        folder(tmp_path, PLAIN + f"[clients.watch]\nspeed = {wrong}\n")
        with pytest.raises(UserError, match=r"\[clients.watch\] has speed = .*; give a number above 0"):
            of(root)
