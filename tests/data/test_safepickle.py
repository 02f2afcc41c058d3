"""Plain data is read from pickles of every protocol; nothing that could run is."""

import io
import pickle
import struct

import numpy as np
import pytest

from fedsense.data import safepickle
from fedsense.data.files import File
from fedsense.data.safepickle import read_pickle
from fedsense.errors import UserError

BATCH = {
    "data": np.arange(24, dtype=np.uint8).reshape(4, 6),
    "labels": [0, 1, 70_000, -3],
    "big": 10**30,
    "filenames": ["a.png", "ü.png", "a.png"],
    "note": ("x", None, True, False, 1.5, b"\x00\xff"),
    "deep": {"inner": [[1], [2, 3]]},
    "means": np.array([[1.5, -2.0], [3.0, 4.0]], order="F"),
    "many": list(range(2500)),
}


def file_of(content):
    return File("batch", "place/batch", lambda: io.BytesIO(content))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_of_every_protocol(protocol):
    found = read_pickle(file_of(pickle.dumps(BATCH, protocol)))
    assert [*found] == [*BATCH]
    for name, value in BATCH.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)
        else:
            assert found[name] == value


def python2(rows, labels):
    """A batch as Python 2 and its numpy wrote it, protocol 2: strings of bytes, no text."""
    text = lambda value: b"U" + bytes([len(value)]) + value  # noqa: E731
    number = lambda value: b"K" + bytes([value])  # noqa: E731
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + number(0) + b"tb"
    empty = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    )
    shape = b"M" + struct.pack("<H", rows.shape[0]) + b"M" + struct.pack("<H", rows.shape[1]) + b"\x86"
    data = b"T" + struct.pack("<i", rows.size) + rows.tobytes()
    array = empty + b"(" + number(1) + shape + dtype + b"\x89" + data + b"tb"
    return (
        b"\x80\x02}q\x01("
        + text(b"data")
        + array
        + text(b"labels")
        + b"]q\x02("
        + b"".join(map(number, labels))
        + b"eu."
    )


def test_what_python_2_wrote():
    rows = np.arange(0, 240, dtype=np.uint8).reshape(3, 80)
    content = python2(rows, [6, 9, 9])
    official = pickle.loads(content, encoding="latin1")  # the test's own bytes are trusted
    np.testing.assert_array_equal(official["data"], rows)
    found = read_pickle(file_of(content))
    np.testing.assert_array_equal(found["data"], rows)
    assert found["labels"] == official["labels"] == [6, 9, 9]


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def raw(module, name, protocol=4):
    """A pickle that names anything, and calls it."""
    if protocol < 4:
        return f"(dS'x'\nc{module}\n{name}\n(S'true'\ntRs.".encode()
    text = lambda value: b"\x8c" + bytes([len(value)]) + value.encode()  # noqa: E731
    return b"\x80\x04}" + text("x") + text(module) + text(name) + b"\x93" + text("true") + b"\x85Rs."


@pytest.mark.parametrize("protocol", [0, 4])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("subprocess", "Popen"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("__builtin__", "eval"),
        ("pickle", "loads"),
        ("numpy", "load"),
        ("numpy", "ndarray.tofile"),
        ("numpy.testing._private.utils", "runstring"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy.core.multiarray", "scalar"),
        ("_codecs", "decode"),
        ("fedsense.data.safepickle", "read_pickle"),
    ],
)
def test_names_are_refused(module, name, protocol):
    with pytest.raises(UserError) as error:
        read_pickle(file_of(raw(module, name, protocol)))
    told = f"place/batch: names {module}.{name}, which is not trusted: it could run anything; only plain data is read"
    assert str(error.value) == told


def test_nothing_runs(tmp_path):
    witness = tmp_path / "witness"
    for function, arguments in ((exec, f"open({str(witness)!r}, 'w')"), (eval, f"open({str(witness)!r}, 'w')")):
        for content in (pickle.dumps(Call(function, arguments)), pickle.dumps({"data": Call(function, arguments)})):
            with pytest.raises(UserError, match="not trusted"):
                read_pickle(file_of(content))
    assert not witness.exists()


NAMED = b"cnumpy\ndtype\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            pickle.dumps({"x": np.array([{}, "a"], dtype=object)}, 2),
            "holds an array of type 'O8', which is not trusted",
        ),
        (b"(dS'x'\n(S'true'\nios\nsystem\ns.", "names os.system, which"),
        (pickle.dumps({"x": {1, 2}}), "holds a Python object (EMPTY_SET), which"),
        (pickle.dumps({"x": complex(1, 2)}), "names builtins.complex, which"),
        (b"\x80\x02P1\n.", "holds a Python object (PERSID), which"),
        (b"\x80\x02\x82\x01.", "holds a Python object (EXT1), which"),
        (b"\x80\x02" + NAMED + b")\x81.", "holds a Python object (NEWOBJ), which"),
        (pickle.dumps([1, 2]), "holds a list, expected a dict"),
        (b"", "is damaged or cut short, or no pickle at all; get it again"),
        (b"<html>no such page</html>", "is damaged or cut short, or no pickle at all; get it again"),
        (b"}(I1\nI2\nu.", "is damaged"),  # a key that is no text: long tuples as keys can take forever to hash
        (b"}S'x'\n" + NAMED + b"(S'u1'\ntR}bs.", "is damaged"),  # a type with a state of its own
        (b"}S'x'\nh\x07s.", "is damaged"),  # something that was never remembered
        (b"}u.", "is damaged"),
        (b"\x80\x05}\x8c\x01x\x96" + b"\xff" * 7 + b"\x7fabc", "is damaged"),  # says it has 2^63 bytes
    ],
)
def test_oddities_are_one_line(content, message):
    with pytest.raises(UserError) as error:
        read_pickle(file_of(content))
    assert str(error.value).startswith(f"place/batch: {message}")
    assert "\n" not in str(error.value)


def test_a_memory_of_two_to_the_32_places_takes_none():
    assert read_pickle(file_of(b"}S'x'\nr\xff\xff\xff\xff0.")) == {}


def test_every_truncation_is_told():
    for protocol in (0, 2, 4, 5):
        whole = pickle.dumps({"data": np.arange(6, dtype=np.uint8), "labels": [1, 2, 300]}, protocol)
        for length in range(len(whole)):
            with pytest.raises(UserError, match=r"place/batch: (is damaged|names)"):
                read_pickle(file_of(whole[:length]))


def test_size_limit(monkeypatch):
    monkeypatch.setattr(safepickle, "LARGEST", 10)
    with pytest.raises(UserError, match="is larger than 0 GB, which no pickle of a known dataset is"):
        read_pickle(file_of(pickle.dumps(BATCH)))
