"""What `data check` finds: leakage, copies, still channels, missing values, uneven clocks."""

import numpy as np
import pytest
import torch

from fedsense.data.check import examine, look_at
from fedsense.data.windows import Recording
from fedsense.federation import Federation, Samples
from fedsense.work import stream


def arrays(client, count, classes=2, shape=(2, 8)):
    rng = stream("check", client)
    return rng.normal(0, 1, (count, *shape)).astype("float32"), rng.permutation(np.arange(count) % classes)


def federation(**clients):
    return Federation.from_arrays(clients, classes=2)


def test_nothing_wrong_is_said_of_sound_data():
    report = look_at(federation(a={"train": arrays("a", 10), "test": arrays("at", 6)}))
    (only,) = report.clients
    assert only.windows == {"train": 10, "val": 0, "test": 6}
    assert only.classes == {"0": 8, "1": 8}
    assert report.warnings == []


def test_copies_between_train_and_test_and_between_clients():
    x, y = arrays("a", 10)
    report = look_at(
        federation(
            a={"train": (x, y), "test": (np.concatenate([x[:3], arrays("t", 2)[0]]), [0, 0, 0, 1, 1])},
            b={"train": (np.concatenate([x[4:8], arrays("b", 4)[0]]), [0, 1] * 4), "test": arrays("bt", 4)},
        )
    )
    assert [client.duplicates for client in report.clients] == [3, 0]
    assert report.twins == (("a", "b", 4),)
    assert "'a' leakage: 3 test windows are in training too, value for value" in report.warnings
    assert "'a' and 'b' hold 4 windows that are the same, value for value" in report.warnings


def test_windows_at_rest_are_not_copies():
    still = np.zeros((5, 2, 8), "float32")
    report = look_at(federation(a={"train": (still, [0, 1, 0, 1, 0]), "test": (still, [0, 1, 0, 1, 0])}))
    assert report.clients[0].duplicates == 0
    assert report.clients[0].constant == ("0", "1")


def test_shared_measurements_are_counted_from_origins():
    base = federation(a={"train": arrays("a", 3), "test": arrays("t", 3)})
    spans = {"train": [[0, 0, 8], [0, 8, 16], [1, 0, 8]], "val": [], "test": [[0, 12, 20], [0, 16, 24], [1, 8, 16]]}
    client = base.clients[0].change(
        lambda name, s: Samples(s.x, s.y, torch.tensor(spans[name], dtype=torch.int64).reshape(-1, 3))
    )
    (report,) = look_at(base.with_clients([client])).clients
    assert report.shared == 1  # 12 to 20 of recording 0 meets 8 to 16; the others touch nothing


def test_missing_values_and_uneven_clocks():
    times = np.cumsum(np.where(np.arange(100) % 2, 0.015, 0.025))
    times[50:] += 3.0
    signal = np.ones((100, 2), np.float32)
    signal[3:6, 1] = np.nan
    recording = Recording("a", signal, np.zeros(100, np.int64), 50.0, ("v_x", "v_y"), times)
    report = look_at(federation(a={"train": arrays("a", 4), "test": arrays("t", 4)}), [recording])
    (only,) = report.clients
    assert only.missing == 3
    assert only.rate == 50.0
    assert only.longest_gap == pytest.approx(3.0, abs=0.03)
    assert any("3 missing values" in text for text in report.warnings)
    assert any("a gap of 3.02 s; recordings are cut there" in text for text in report.warnings)


def test_a_clock_that_is_even_for_the_most_part_is_uneven_all_the_same():
    """Steps of 20, 20, 35, 5, 20 ms: deviations of 15 ms in two of five, √(2 · 15² / 5) = 9.5 ms."""
    times = np.cumsum(np.tile([0.02, 0.02, 0.035, 0.005, 0.02], 40))
    recording = Recording("a", np.ones((200, 1)), np.zeros(200), 50.0, ("v",), times)
    (only,) = look_at(federation(a={"train": arrays("a", 4)}), [recording]).clients
    assert only.jitter == pytest.approx(9.487 / 20, abs=0.01)
    assert any("sampled unevenly (jitter 4" in text for text in only.warnings)


@pytest.mark.parametrize("spread", [0.0, 0.002, 0.006])
def test_jitter_is_the_deviation_of_the_interval(spread):
    steps = 0.02 + stream("jitter").normal(0, 1, 5000) * spread
    recording = Recording("a", np.ones((5000, 1)), np.zeros(5000), 50.0, ("v",), np.cumsum(steps))
    found = look_at(federation(a={"train": arrays("a", 4)}), [recording]).clients[0].jitter
    assert found == pytest.approx(spread / 0.02, rel=0.06, abs=1e-6)


def test_one_class_and_empty_test_are_said():
    x, _ = arrays("a", 4)
    said = look_at(federation(a={"train": (x, [1, 1, 1, 1])})).warnings
    assert said == ["'a' has nothing to test on", "'a' has one class only (1)"]


def test_a_dataset_by_name():
    report = examine("synthetic-imu", clients=3, samples=40)
    assert len(report.clients) == 3
    document = report.as_json()
    assert document["clients"][report.clients[0].id]["windows"]["train"] > 0
    assert document["dataset"] == "synthetic-imu"


def test_who_is_left_out_and_what_is_not_read_is_said(tmp_path):
    (tmp_path / "dataset.toml").write_text('window = 50\n[recording]\ncolumns = ["v"]\nrate = 10\nlabel = "l"\n')
    for name, rows in (("anna", 300), ("bert", 20)):
        text = "v,l\n" + "".join(f"{i % 7},{'a' if i < 150 else 'b'}\n" for i in range(rows))
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "dora.csv").write_text("v,l\n" + "".join(f",{'A' if i % 2 else 'a'}\n" for i in range(300)))
    (tmp_path / "emil.csv").write_text("v,l\n" + "".join(f"{i},\n" for i in range(300)))
    (tmp_path / "notes.xlsx").write_bytes(b"")
    (tmp_path / "carl").mkdir()
    said = examine("folder", root=str(tmp_path)).warnings
    assert "'bert' is left out: no window to train on; its longest recording lasts 2 s" in said
    assert "'dora' is left out: no window to train on; channels that hold nothing: v" in said
    assert "'emil' is left out: no window to train on; no row has a label" in said
    assert "classes that differ in case only: A, a" in said
    assert "not read: notes.xlsx" in said
    assert "empty folders: carl" in said
