"""Tables of text: right numbers from untidy files, and a bad cell named by file, line and column."""

import csv
import gzip
import io
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsense.data import tables
from fedsense.data.files import File
from fedsense.data.tables import SPACES, read_table, side_by_side, stacked
from fedsense.errors import UserError

XYZ = {"x": float, "y": float, "z": float}


def file(content, name="a.csv"):
    data = content if isinstance(content, bytes) else content.encode()
    return File(name, f"data/{name}", lambda: io.BytesIO(data))


def table(content, columns=XYZ, **options):
    return {name: values.tolist() for name, values in read_table(file(content), columns, **options).items()}


def message(content, columns=XYZ, **options):
    with pytest.raises(UserError) as error:
        read_table(file(content), columns, **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith("data/a.csv: ")
    return text.removeprefix("data/a.csv: ")


@pytest.mark.parametrize(
    "content",
    [
        "x,y,z\n1,2,3\n4,5,6\n",
        "x,y,z\n1,2,3\n4,5,6",
        "x,y,z\r\n1,2,3\r\n4,5,6\r\n",
        "x,y,z\r1,2,3\r4,5,6\r",
        "\ufeffx,y,z\n1,2,3\n4,5,6\n",
        "x,y,z,\n1,2,3,\n4,5,6,\n",
        "x,y,z\n1,2,3,\r\n4,5,6,\r\n",
        "x,y,z,\n1,2,3\n4,5,6\n",
        " x , y ,z \n 1, 2 ,3\n 4,5 ,6 \n",
        '"x","y","z"\n"1","2","3"\n"4","5","6"\n',
        'x, "y", z\n1, "2", 3\n4, "5", 6\n',
        "x,y,z\n\n1,2,3\n\n\n4,5,6\n\n",
        "x,y,z\n1,2,3\n   \n4,5,6\n",
        "z,w,y,x\n3,hello,2,1\n6,you,5,4\n",
        'z,w,y,x\n3,"a, b",2,1\n6,"two\nlines",5,4\n',
        "z,,y,x,\n3,0,2,1,\n6,0,5,4,\n",
        "x,y,z,w,w\n1,2,3,4,5\n4,5,6,7,8\n",
        "x,y,z\n+1,2.0,3e0\n4.,.5e1,6\n",
    ],
)
def test_untidy_tables_with_a_header(content):
    assert table(content) == {"x": [1, 4], "y": [2, 5], "z": [3, 6]}


@pytest.mark.parametrize("sep", [",", ";", "\t", SPACES])
def test_tables_without_a_header(sep):
    mark = "  " if sep == SPACES else sep
    for content in (f"1{mark}2{mark}3\n4{mark}5{mark}6\n", f"\ufeff1{mark}2{mark}3{mark}\r\n 4{mark}5{mark}6{mark}"):
        assert table(content, header=False, sep=sep) == {"x": [1, 4], "y": [2, 5], "z": [3, 6]}


def test_spaces_and_tabs_with_a_header():
    assert table(" x\ty   z \n  1 2\t3\n\n4 5 6", sep=SPACES) == {"x": [1, 4], "y": [2, 5], "z": [3, 6]}


def test_a_gz_is_unpacked():
    packed = file(gzip.compress(b"x,y,z\n1,2,3\n"), "a.csv.gz")
    assert read_table(packed, XYZ)["z"].tolist() == [3]


def test_text_stands_for_the_content():
    assert read_table(file(b"rubbish"), XYZ, text=b"x,y,z\n1,2,3\n")["z"].tolist() == [3]


def test_types():
    got = read_table(
        file("id,name,value\n007,01 ,1\n-8, b c,2.5\n"), {"id": int, "name": str, "value": float}, missing=False
    )
    assert got["id"].tolist() == [7, -8]
    assert got["id"].dtype == np.int64
    assert got["name"].tolist() == ["01", "b c"]
    assert got["value"].dtype == np.float64
    # a name with spaces around it in the header is text all the same
    assert table(" id , name \n1,01\n", {"name": str}) == {"name": ["01"]}


def test_large_whole_numbers_are_exact():
    assert table("t\n1424696633908457983\n-9223372036854775808\n", {"t": int}) == {
        "t": [1424696633908457983, -9223372036854775808]
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("x,y,z\n1,2,3\n4,x,6\n", "line 3, column 2 ('y'): 'x' is no number"),
        ("x,y,z\n1,2,3\n4,,6\n", "line 3, column 2 ('y'): the cell is empty"),
        ("x,y,z\n1,2,\n", "line 2, column 3 ('z'): the cell is empty"),
        ("x,y,z\n1,NaN,3\n", "line 2, column 2 ('y'): 'NaN' is no number"),
        ("x,y,z\n1,2,inf\n", "line 2, column 3 ('z'): 'inf' is not finite"),
        ("x,y,z\n1,2,1e400\n", "line 2, column 3 ('z'): '1e400' is not finite"),
        ("x,y,z\ninf,2,3\n-inf,2,3\n", "line 2, column 1 ('x'): 'inf' is not finite"),
        ("x,y,z\n1,0x1F,3\n", "line 2, column 2 ('y'): '0x1F' is no number"),
        ("x,y,z\n1,1_000,3\n", "line 2, column 2 ('y'): '1_000' is no number"),
        ("x,y,z\n1,True,3\n1,False,3\n", "line 2, column 2 ('y'): 'True' is no number"),
        ("x,y,z\n1,٣,3\n", "line 2, column 2 ('y'): '٣' is no number"),
        ("x,y,z\n1,2;5,3\n", "line 2, column 2 ('y'): '2;5' is no number"),
        ("x,y,z\n1,2,3\n1,5,2,5,3,5\n", "line 3 has 6 cells, expected 3 (x, y, z)"),  # decimal commas
        ("x,y,z\n1,2,3,4\n1,2,3\n", "line 2 has 4 cells, expected 3 (x, y, z)"),
        ("x,y,z\n1,2,3\n1,2,3,4\n", "line 3 has 4 cells, expected 3 (x, y, z)"),
        ("x,y,z\n1,2,3\n\n1,2\n", "line 4 has 2 cells, expected 3 (x, y, z)"),
        ("x,y,z\n1,2,3\n  \n1,b,3\n", "line 4, column 2 ('y'): 'b' is no number"),
        ('x,y,z\n1,2,"3\n"\n1,b,3\n', "line 4, column 2 ('y'): 'b' is no number"),
        ("x,y,w\n1,2,3\n", "line 1 names no column 'z'; valid names: w, x, y"),
        ("x,y,x,z\n1,2,3,4\n", "line 1 names column 'x' 2 times; keep one"),
        ("x,y,z\n", "there is a header, and no row below it"),
        ("x,y,z", "there is a header, and no row below it"),
        ("", "the file is empty"),
        ("\n \r\n", "the file is empty"),
        ("\ufeff", "the file is empty"),
        ('x,y,z\n1,2,3\n1,"2,3\n1,2,3\n', "line 4 has 2 cells, expected 3 (x, y, z)"),
    ],
)
def test_mistakes_are_named(content, expected):
    assert message(content) == expected


def test_bytes_that_are_no_text_are_named():
    assert message(b"x,y,z\n1,2,3\n1,\xe9,3\n") == (
        "line 3, column 2: byte 0xe9 is no UTF-8 text; save the file as UTF-8"
    )
    assert message(b"x,y,z,w\n1,2,3,caf\xe9\n") == (
        "line 2, column 4: byte 0xe9 is no UTF-8 text; save the file as UTF-8"
    )
    assert message(b"1 2 3\n1 2 \xff\n", header=False, sep=SPACES).startswith("line 2, column 3: byte 0xff")
    assert message("x,y,z\n1,2,3\n".encode("utf-16")) == "is no text in UTF-8; save it as UTF-8"


def test_an_open_quote_over_a_long_file_is_named():
    content = 'x,y,z\n1,2,3\n1,"2,3\n' + "1,2,3\n" * 40_000
    assert message(content) == (
        "the row after line 2 is not one of a table (field larger than field limit (131072)); is a quote left open?"
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1 2 3\n4 5\n", "line 2 has 2 cells, expected 3 (x, y, z)"),
        ("1 2 3 4\n4 5 6\n", "line 1 has 4 cells, expected 3 (x, y, z)"),
        ("1 2 3 4 5 6\n4 5 6\n", "line 1 has 6 cells, expected 3 (x, y, z)"),
        ("1 2 3\n4 5 6 NaN\n", "line 2 has 4 cells, expected 3 (x, y, z)"),
        ("1 2 3\n\n4 b 6\n", "line 3, column 2 ('y'): 'b' is no number"),
        ("x y z\n1 2 3\n", "line 1, column 1 ('x'): 'x' is no number"),
    ],
)
def test_mistakes_without_a_header(content, expected):
    for missing in (False, True):
        assert message(content, header=False, sep=SPACES, missing=missing) == expected
        assert message(content.replace(" ", ","), header=False, missing=missing) == expected


def test_a_row_cut_short_is_no_missing_value():
    assert table("x,y,z\n1,,3\n1,2,\n,,\n", missing=True)["y"][1] == 2
    assert message("x,y,z\n1,,3\n1,2\n", missing=True) == "line 3 has 2 cells, expected 3 (x, y, z)"
    # also where a longer row makes up for it, and the last column is not asked for
    assert message("x,y,z,w\n1,2,3,4,5\n1,2,3\n") == "line 2 has 5 cells, expected 4 (x, y, z, w)"
    assert message("x,y,z,w\n1,2,3\n1,2,3,4,5\n") == "line 2 has 3 cells, expected 4 (x, y, z, w)"


@pytest.mark.parametrize("word", ["", "nan", "NaN", "NA", "N/A", "null", "None"])
def test_missing_cells(word):
    got = read_table(file(f"x,name\n{word},{word}\n1,a\n"), {"x": float, "name": str}, missing=True)
    assert np.isnan(got["x"][0])
    assert got["x"][1] == 1
    assert got["name"].tolist() == ["", "a"]
    said = "the cell is empty" if not word else f"'{word}' is no name"
    assert message(f"x,name\n1,{word}\n", {"x": float, "name": str}) == f"line 2, column 2 ('name'): {said}"


def test_a_missing_whole_number_is_named():
    assert message("t,x\n1,1\n,1\n", {"t": int}, missing=True) == "line 3, column 1 ('t'): the cell is empty"


@pytest.mark.parametrize("cell", ["1.0", "1e3", "a", "1.5", "99999999999999999999999999", "9223372036854775808"])
def test_what_is_no_whole_number(cell):
    said = f"'{cell}' is too large a number" if cell.isdigit() else f"'{cell}' is no whole number"
    assert message(f"t\n1\n{cell}\n", {"t": int}) == f"line 3, column 1 ('t'): {said}"


def test_huge_numbers_do_not_warn():
    assert table("x\n1e308\n1e308\n", {"x": float}) == {"x": [1e308, 1e308]}


def test_many_columns_are_not_all_listed():
    names = [f"c{i}" for i in range(40)]
    text = message("1,2\n", dict.fromkeys(names, float), header=False)
    assert text == "line 1 has 2 cells, expected 40 (c0, c1, …, c39)"


number = st.floats(-1e6, 1e6, width=32).map(repr)


@given(st.lists(st.tuples(number, number, st.sampled_from(["a", "b c", "ü"])), min_size=1, max_size=8), st.data())
def test_numbers_are_those_of_pythons_csv(rows, data):
    """And a spoiled cell is named where it was spoiled."""
    text = io.StringIO()
    writer = csv.writer(text, quoting=data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])))
    writer.writerows([("x", "y", "label"), *rows])
    columns = {"label": str, "y": float, "x": float}
    got = read_table(file(text.getvalue()), columns)
    assert got["label"].tolist() == [row[2] for row in rows]
    np.testing.assert_allclose(got["x"], [float(row[0]) for row in rows], rtol=1e-14)
    np.testing.assert_allclose(got["y"], [float(row[1]) for row in rows], rtol=1e-14)
    line, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 1))
    spoiled = [list(row) for row in rows]
    spoiled[line][column] = "1..2"
    content = "\n".join(",".join(row) for row in [["x", "y", "label"], *spoiled])
    assert message(content, columns) == f"line {line + 2}, column {column + 1} ('{'xy'[column]}'): '1..2' is no number"


@given(st.lists(st.lists(st.sampled_from(["1", "22", ""]), min_size=1, max_size=4), min_size=1, max_size=12))
def test_uneven_rows_are_found_in_blocks_of_any_size(rows):
    content = "\n".join(",".join(row) for row in rows).encode()
    kept = [row for row in rows if row != [""]]
    wrong = any(len(row) != 3 and not (len(row) == 4 and row[3] == "") for row in kept)
    for block in (1, 5, 1 << 20):
        before, tables.BLOCK = tables.BLOCK, block
        try:
            assert tables._uneven(content, ",", 3) == wrong
        finally:
            tables.BLOCK = before


@given(
    st.lists(st.sampled_from(["1,2.5,a", "-3,nan,b", ",4,c", "", "5,6,d,", '7,8,"e\nf"', "9,10", "x,1,g"]), min_size=1),
    st.sampled_from([True, False]),
)
def test_a_large_table_gives_what_a_small_one_gives(lines, header):
    """Cut into pieces of a few bytes, parsed side by side: the same columns, or the same complaint."""
    content = "\n".join([*(["x,y,label"] if header else []), *lines]).encode()
    columns = {"x": float, "y": float, "label": str}

    def result(large):
        before, tables.LARGE = tables.LARGE, large
        try:
            table = read_table(file(content), columns, header=header, missing=True)
            return {name: [str(value) for value in values] for name, values in table.items()}
        except UserError as error:
            return str(error)
        finally:
            tables.LARGE = before

    assert result(4) == result(1 << 30)


def test_large_tables_of_numbers_are_cut_between_lines(monkeypatch):
    monkeypatch.setattr(tables, "LARGE", 10)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    rows = [[i, i / 8] for i in range(100)]
    content = "".join(f"{a} {b} \n" for a, b in rows).encode()
    assert len(tables._pieces(content)) == 3
    assert b"".join(tables._pieces(content)) == content
    assert tables.read_numbers(file(content), ("a", "b"), sep=tables.SPACES).tolist() == rows


def test_stacked():
    got = stacked({"a": np.array([1, 2]), "b": np.array([0.5, 1.5]), "c": np.zeros(2)}, ["b", "a"])
    assert got.tolist() == [[0.5, 1.0], [1.5, 2.0]]
    assert got.dtype == np.float32


def test_side_by_side_keeps_the_order_and_the_first_mistake(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    barrier = threading.Barrier(2, timeout=20)

    def slow(item):
        if item < 2:
            barrier.wait()  # two are at work at once
        return item * item

    assert side_by_side(slow, iter(range(5))) == [0, 1, 4, 9, 16]
    assert side_by_side(str, []) == []

    def wrong(item):
        raise UserError(f"item {item}")

    with pytest.raises(UserError, match="item 0"):
        side_by_side(wrong, range(5))
