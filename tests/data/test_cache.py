"""The cache: never out of date, whole or not at all, one maker at a time, and no more than it may hold."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsense.data import cache
from fedsense.data.cache import cached, code_key, content_key, key_of, limit
from fedsense.data.files import Files
from fedsense.errors import UserError


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """The folder of the entries."""
    monkeypatch.setenv("FEDSENSE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def maker(value=1.0, count=10):
    """Something to make, and how often it was made."""
    made = []

    def make():
        made.append(1)
        return {"x": np.full(count, value, np.float32)}, {"value": value}

    return make, made


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_entry_is_made_once(kept):
    make, made = maker(3.0)
    first, second = cached("a", make), cached("a", make)
    assert made == [1]
    for pack in (first, second):
        assert pack.arrays["x"].tolist() == [3.0] * 10
        assert pack.about == {"value": 3.0}
    assert names(kept) == ["a.safetensors"]  # no lock, nothing half-written


def test_all_kinds_of_arrays_come_back(kept):
    arrays = {
        "empty": np.zeros((0, 3, 5), np.float32),
        "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "bytes": np.frombuffer(b"abc", np.uint8),  # may not be written into
        "foreign": np.arange(4, dtype=">i4"),
        "every second": np.arange(10)[::2],
        "flags": np.array([True, False]),
        "short": np.arange(3, dtype=np.int16),
    }
    about = {"n": np.int64(3), "f": np.float32(0.5), "list": (1, 2), "array": np.arange(2), "text": "ü", "none": None}
    for pack in (cached("a", lambda: (arrays, about)), cached("a", lambda: pytest.fail("made again"))):
        assert pack.about == {"n": 3, "f": 0.5, "list": [1, 2], "array": [0, 1], "text": "ü", "none": None}
        for name, array in arrays.items():
            np.testing.assert_array_equal(pack.arrays[name].numpy(), array)
            assert pack.arrays[name].shape == array.shape


def test_without_a_cache_the_result_is_the_same(kept, monkeypatch):
    arrays = {"b": np.frombuffer(b"abc", np.uint8), "f": np.arange(4, dtype=">f4")[::2]}
    about = {"pair": (1, np.int64(2))}
    with_cache = cached("a", lambda: (arrays, about))
    monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", "0")
    without = cached("b", lambda: (arrays, about))
    assert without.about == with_cache.about == {"pair": [1, 2]}
    for name in arrays:
        assert torch.equal(without.arrays[name], with_cache.arrays[name])
        assert without.arrays[name].dtype == with_cache.arrays[name].dtype
    assert names(kept) == ["a.safetensors"]


def test_writing_into_what_was_loaded_does_not_reach_the_file(kept):
    make, made = maker()
    before = cached("a", make)
    before.arrays["x"].fill_(99.0)
    before.arrays["x"].numpy()[:] = 98.0
    assert cached("a", make).arrays["x"].tolist() == [1.0] * 10
    assert made == [1]


@pytest.mark.parametrize("length", [0, 1, 7, 40, 100, -1])
def test_an_entry_cut_short_is_made_anew(kept, length):
    make, made = maker()
    cached("a", make)
    path = kept / "a.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert cached("a", make).arrays["x"].tolist() == [1.0] * 10
    assert len(made) == 2
    cached("a", make)
    assert len(made) == 2


def test_an_entry_of_rubbish_is_made_anew(kept):
    make, made = maker()
    kept.mkdir()
    for rubbish in (b"rubbish" * 100, b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"):
        (kept / "a.safetensors").write_bytes(rubbish)
        assert cached("a", make).about == {"value": 1.0}
    assert len(made) == 3


def test_an_entry_asked_for_on_the_way_is_written_meanwhile(kept):
    """The inner entry's writer waits for the outer one's maker: were they one after another, neither would go on."""
    going_on, write = threading.Event(), cache._write
    cache._write = lambda path, *rest: (going_on.wait(20) if path.stem == "inner" else True) and write(path, *rest)

    def make():
        inner = cached("inner", maker(2.0)[0])
        assert names(kept) == ["inner.lock", "outer.lock"]  # whoever else wants it waits
        going_on.set()
        return {"y": inner.arrays["x"].numpy() + 1}, {}

    try:
        assert cached("outer", make).arrays["y"].tolist() == [3.0] * 10
    finally:
        cache._write = write
    assert names(kept) == ["inner.safetensors", "outer.safetensors"]
    assert cached("inner", lambda: pytest.fail("made again")).arrays["x"].tolist() == [2.0] * 10


def test_a_mistake_after_an_inner_entry_keeps_that(kept):
    def wrong():
        cached("inner", maker()[0])
        raise UserError("no client has two classes")

    with pytest.raises(UserError, match="no client has two classes"):
        cached("outer", wrong)
    assert names(kept) == ["inner.safetensors"]


def test_many_pieces_are_one_array_however_little_is_written_at_once(kept, monkeypatch):
    pieces = [np.arange(length, dtype=np.int32) for length in (3, 0, 1, 700, *range(1200))]
    monkeypatch.setattr(cache, "AT_ONCE", 1000)
    found = cached("a", lambda: ({"x": pieces, "y": [np.zeros((0, 2), np.float32)]}, None))
    assert found.arrays["x"].tolist() == np.concatenate(pieces).tolist()
    assert found.arrays["y"].shape == (0, 2)


def test_a_mistake_leaves_nothing_behind(kept):
    def wrong():
        raise UserError("line 3 is wrong")

    def unreadable():
        raise PermissionError("not yours")

    with pytest.raises(UserError, match="line 3 is wrong"):
        cached("a", wrong)
    with pytest.raises(PermissionError, match="not yours"):  # not taken for a fault of the cache
        cached("a", unreadable)
    assert names(kept) == []


def test_a_folder_that_cannot_be_written_is_warned_of_once_and_all_works(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDSENSE_CACHE", str(tmp_path / "file" / "cache"))
    make, made = maker(2.0)
    with pytest.warns(UserWarning, match=r"nothing is kept in .*cache .*; set FEDSENSE_CACHE to a folder of yours"):
        assert cached("a", make).arrays["x"].tolist() == [2.0] * 10
    assert made == [1]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), cache.SafetensorError("no space")])
def test_a_full_disk_is_warned_of_and_the_work_is_not_done_twice(kept, monkeypatch, error):
    def full(path, target):
        raise error

    monkeypatch.setattr(Path, "replace", full)
    make, made = maker(2.0)
    with pytest.warns(UserWarning, match="nothing is kept in"):
        assert cached("a", make).arrays["x"].tolist() == [2.0] * 10
    assert made == [1]
    assert names(kept) == []


def test_a_limit_that_is_no_number_is_told(monkeypatch):
    monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", "lots")
    with pytest.raises(UserError, match="FEDSENSE_CACHE_LIMIT is 'lots'; give a number of GB"):
        limit()
    for given, size in (("", 20e9), ("0.5", 5e8), ("-1", -1e9)):
        monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", given)
        assert limit() == size


def test_the_folder(monkeypatch, tmp_path):
    assert cache.folder() == tmp_path / "kept"
    monkeypatch.delenv("FEDSENSE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "fedsense"


def test_what_was_used_longest_ago_goes_first_and_the_newest_never(kept, monkeypatch):
    monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", str(25_000 / 1e9))
    for number, key in enumerate("abc"):  # 4 kB each
        cached(key, maker(count=1000)[0])
        os.utime(kept / f"{key}.safetensors", (number, number))
    cached("a", maker()[0])  # used again
    cached("d", maker(count=4000)[0])  # 16 kB: one of the old ones has to go
    assert names(kept) == ["a.safetensors", "c.safetensors", "d.safetensors"]
    pack = cached("e", maker(5.0, count=10_000)[0])  # 40 kB, more than the limit by itself
    assert names(kept) == ["e.safetensors"]
    assert pack.arrays["x"].unique().tolist() == [5.0]


def test_an_entry_in_use_can_be_trimmed(kept, monkeypatch):
    old = cached("a", maker(7.0, count=100_000)[0])
    monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", "0.0000001")
    cached("b", maker()[0])
    assert names(kept) == ["b.safetensors"]
    assert old.arrays["x"].unique().tolist() == [7.0]


def test_what_a_killed_process_left_is_cleared_away(kept):
    kept.mkdir()
    for name, age in (("old", 2 * cache.ABANDONED), ("new", 10)):
        (kept / f"{name}.partial").write_bytes(b"half")
        os.utime(kept / f"{name}.partial", (time.time() - age,) * 2)
    cached("a", maker()[0])
    assert names(kept) == ["a.safetensors", "new.partial"]


def _build(folder, key, log, barrier, sleep):
    os.environ["FEDSENSE_CACHE"] = folder
    barrier.wait()

    def make():
        with open(log, "a") as file:  # noqa: PTH123
            file.write("made\n")
        time.sleep(sleep)
        return {"x": np.arange(1000)}, os.getpid()

    pack = cached(key, make)
    assert pack.arrays["x"].sum() == 499_500


def test_of_several_processes_one_makes_it(kept, tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    log = tmp_path / "log"
    arguments = (str(kept), "a", str(log), barrier, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
        workers = [context.Process(target=_build, args=arguments) for _ in range(3)]
        for worker in workers:
            worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert log.read_text() == "made\n"
    assert names(kept) == ["a.safetensors"]


def test_of_several_threads_one_makes_it(kept):
    made = []

    def make():
        made.append(1)
        time.sleep(0.1)
        return {"x": np.arange(3)}, None

    threads = [threading.Thread(target=cached, args=("a", make)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert made == [1]


def test_after_a_failure_there_is_still_one_maker_at_a_time(kept):
    steps = {name: threading.Event() for name in ("first works", "first fails", "second works", "second ends")}
    made = []

    def first():
        steps["first works"].set()
        steps["first fails"].wait(20)
        raise UserError("wrong")

    def second():
        made.append("second")
        steps["second works"].set()
        steps["second ends"].wait(20)
        return {"x": np.arange(3)}, None

    def third():
        made.append("third")
        return {"x": np.arange(3)}, None

    def failing():
        with pytest.raises(UserError):
            cached("a", first)

    threads = [
        threading.Thread(target=failing),
        *(threading.Thread(target=cached, args=("a", m)) for m in (second, third)),
    ]
    threads[0].start()
    assert steps["first works"].wait(20)
    threads[1].start()
    time.sleep(0.1)  # it waits for the first
    steps["first fails"].set()
    assert steps["second works"].wait(20)
    threads[2].start()
    time.sleep(0.1)  # it waits for the second
    steps["second ends"].set()
    for thread in threads:
        thread.join(20)
    assert made == ["second"]
    assert names(kept) == ["a.safetensors"]


def test_whoever_waits_goes_on_when_the_maker_fails_or_is_killed(kept):
    code = (
        "import os, signal\n"
        "from fedsense.data.cache import cached\n"
        "def make():\n"
        "    print('making', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "cached('a', make)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "making\n"
    make, made = maker(4.0)
    packs = []
    waiting = threading.Thread(target=lambda: packs.append(cached("a", make)))
    waiting.start()
    time.sleep(0.2)
    assert not made
    other.kill()
    other.wait(20)
    other.stdout.close()
    waiting.join(20)
    assert packs[0].about == {"value": 4.0}
    assert names(kept) == ["a.safetensors"]


# ---------------------------------------------------------------- keys


def test_keys_tell_options_apart():
    keys = [key_of("a", options) for options in ({}, {"x": 1}, {"x": 2}, {"x": None}, {"x": [1]}, {"y": 1}, {"x": "1"})]
    assert len(set(keys)) == len(keys)
    assert key_of({"x": 1, "y": 2}) == key_of({"y": 2, "x": 1})
    assert key_of("a", "b") != key_of("ab")
    assert key_of(1) != key_of(True)


def test_the_key_of_the_code_is_that_of_its_files(tmp_path, monkeypatch):
    for name in ("data/cache.py", "data/synthetic/x.py", "federation.py", "work.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "data" / "cache.py"))

    def key():
        code_key.cache_clear()
        return code_key()

    try:
        seen = {key()}
        assert key() in seen
        for name in ("data/cache.py", "data/synthetic/x.py", "federation.py", "work.py"):
            (tmp_path / name).write_text("changed")
            assert key() not in seen
            seen.add(key())
    finally:
        code_key.cache_clear()


def data_of(folder, content=(("a.txt", "first"), ("sub/b.txt", "second"))):
    for name, text in content:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def content_of(root):
    return content_key(Files(root, ("*.txt",)))


def test_content_not_place_or_time_makes_the_key(tmp_path):
    one, two = data_of(tmp_path / "one"), data_of(tmp_path / "two")
    os.utime(two / "a.txt", (1, 1))
    key = content_of(one)
    assert content_of(two) == key
    (two / "readme.md").write_text("nobody asks for it")
    assert content_of(two) == key
    (two / "sub" / "b.txt").rename(two / "sub" / "c.txt")
    assert content_of(two) != key


def aged(monkeypatch, seconds=10):
    """As if it were so much later: files are settled."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + int(seconds * 1e9))


def test_a_change_is_seen_though_size_and_time_stay(tmp_path, monkeypatch):
    root = data_of(tmp_path / "data")
    aged(monkeypatch)
    before = content_of(root)
    times = (root / "a.txt").stat()
    time.sleep(0.02)
    (root / "a.txt").write_text("fIrst")
    os.utime(root / "a.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (root / "a.txt").stat().st_mtime_ns == times.st_mtime_ns
    assert content_of(root) != before
    (root / "a.txt").write_text("first")
    assert content_of(root) == before


def test_settled_files_are_digested_once_and_new_ones_again(tmp_path, monkeypatch):
    root = data_of(tmp_path / "data")
    digested = []
    digest = cache._digest_of
    monkeypatch.setattr(cache, "_digest_of", lambda file, size: digested.append(file.name) or digest(file, size))
    keys = {content_of(root), content_of(root)}
    assert len(digested) == 4  # written this very moment
    aged(monkeypatch)
    keys |= {content_of(root), content_of(root), content_of(root)}
    assert len(digested) == 6
    data_of(root, [("c.txt", "third")])
    keys |= {content_of(root)}
    assert len(digested) == 7
    assert len(keys) == 2


def test_every_block_of_a_large_file_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "BLOCK", 10)
    texts = ["0123456789" * 3, "0123456789" * 2 + "012345678x", "x123456789" + "0123456789" * 2, "0123456789" * 2, ""]
    keys = [content_of(data_of(tmp_path / str(i), [("a.txt", text)])) for i, text in enumerate(texts)]
    assert len(set(keys)) == len(texts)


def test_a_file_that_changes_while_it_is_digested_is_digested_again(tmp_path, monkeypatch):
    root = data_of(tmp_path / "data")
    aged(monkeypatch)
    digest = cache._digest_of

    def changing(file, size):
        result = digest(file, size)
        if file.name.endswith("a.txt"):
            time.sleep(0.02)
            (root / "a.txt").write_text("newer")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(cache, "_digest_of", changing)
        stale = content_of(root)
    fresh = content_of(data_of(tmp_path / "other", [("a.txt", "newer"), ("sub/b.txt", "second")]))
    assert content_of(root) == fresh != stale


def test_damaged_notes_of_digests_are_ignored(tmp_path, kept, monkeypatch):
    root = data_of(tmp_path / "data")
    aged(monkeypatch)
    key = content_of(root)
    (notes,) = kept.glob("digests-*.json")
    path = str(root / "a.txt")
    for rubbish in ("", "{", "[]", json.dumps({path: 3}), json.dumps({path: []}), json.dumps({path: [1, 2, 3]})):
        notes.write_text(rubbish)
        assert content_of(root) == key


def test_a_file_by_itself_is_known_by_its_name_too(tmp_path):
    data_of(tmp_path, [("anna.txt", "same"), ("ben.txt", "same")])
    assert content_of(tmp_path / "anna.txt") != content_of(tmp_path / "ben.txt")


def test_a_link_to_nothing_is_told(tmp_path):
    root = data_of(tmp_path / "data")
    (root / "gone.txt").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"gone\.txt cannot be read: No such file or directory"):
        content_of(root)


def test_nothing_is_written_without_a_cache(tmp_path, kept, monkeypatch):
    aged(monkeypatch)
    monkeypatch.setenv("FEDSENSE_CACHE_LIMIT", "0")
    assert content_of(data_of(tmp_path / "data")) == content_of(tmp_path / "data")
    assert not kept.exists()
