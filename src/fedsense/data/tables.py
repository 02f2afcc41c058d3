"""Tables of text, read fast; a bad cell is named by file, line and column."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsense.data.cores import on_all_cores
from fedsense.data.files import File
from fedsense.data.telling import expect, one_done
from fedsense.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas

Array = NDArray[Any]
Item = TypeVar("Item")
Made = TypeVar("Made")
SPACES = r"\s+"
TOGETHER = 16 << 20  # bytes of small files that are parsed as one
LARGE = 2 << 20  # bytes of a table from which on a second parser pays
BLANK = b" \t\r\n\xef\xbb\xbf"
BLOCK = 1 << 22  # bytes looked at at once
MISSING = frozenset({"", "nan", "NaN", "NA", "N/A", "null", "None"})


def read_table(
    file: File,
    columns: Mapping[str, type],
    *,
    header: bool = True,
    sep: str = ",",
    missing: bool = False,
    text: bytes | None = None,
) -> dict[str, Array]:
    """The columns of a table of text, each an array of its type (``float``, ``int`` or ``str``).

    With a ``header`` columns are found by name, whatever their order; without, they are all there are, in this order.
    Cells may be empty or NaN only if ``missing``. ``text`` is the content, where it had to be mended first.
    """
    content, names = _looked_at(file, columns, header, sep, text)
    places = {name: names.index(name) for name in columns}
    words = {places[name] for name, kind in columns.items() if kind is str}
    try:
        frames = _sound(file, content, names, columns, header, sep, missing, words)
        return {
            name: _column(_joined([frame[places[name]].to_numpy() for frame in frames]), kind, missing)
            for name, kind in columns.items()
        }
    except (ValueError, TypeError, OverflowError) as error:  # pandas' own errors are ValueErrors
        raise _fault_found(file, content, names, columns, header, sep, missing, error) from error


def read_numbers(file: File, columns: Sequence[str], *, sep: str = ",", text: bytes | None = None) -> Array:
    """A table of numbers without header or gaps, all at once: ``[rows, columns]`` float32."""
    kinds = dict.fromkeys(columns, float)
    content, names = _looked_at(file, kinds, False, sep, text)
    try:
        frames = _sound(file, content, names, kinds, False, sep, False, set())
        if any(kind.kind == "O" for frame in frames for kind in frame.dtypes):
            raise ValueError("a cell that is no number")
        parts = [_column(frame.to_numpy(np.float64), float, missing=False).astype(np.float32) for frame in frames]
        return _joined(parts)
    except (ValueError, TypeError, OverflowError) as error:
        raise _fault_found(file, content, names, kinds, False, sep, False, error) from error


def _looked_at(
    file: File, columns: Mapping[str, type], header: bool, sep: str, text: bytes | None
) -> tuple[bytes, list[str]]:
    """The content of a table, which is text, and the names of all of its columns."""
    content = _lines_ended(file.unzipped() if text is None else text)
    if _blank(content):
        raise file.wrong("the file is empty")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content[:1000]:
        raise file.wrong("is no text in UTF-8; save it as UTF-8")
    return content, _header(file, content, list(columns), sep) if header else list(columns)


def _sound(
    file: File, content: bytes, names: list[str], columns: Mapping[str, type], header: bool, sep: str, missing: bool,
    words: set[int],
) -> list[pandas.DataFrame]:  # fmt: skip
    """The table, parsed in pieces, with rows that have as many cells as there are names."""
    places = {names.index(name) for name in columns}
    pieces = [(piece, header and not number) for number, piece in enumerate(_pieces(content))]
    frames, even = zip(
        *on_all_cores(lambda piece: _parsed(piece[0], sep, piece[1], len(names), places, words), pieces), strict=True
    )
    if not any(map(len, frames)):
        raise file.wrong("there is a header, and no row below it")
    uneven = not all(even) and _uneven(content, sep, len(names))
    if uneven and (fault := _explained(file, content, names, columns, header, sep, missing)):
        raise fault
    return [frame for frame in frames if len(frame)]


def _pieces(content: bytes) -> list[bytes]:
    """A large table cut between lines, a piece for each core; a quote might hold a line's end."""
    count = min(os.cpu_count() or 1, len(content) // LARGE)
    if count < 2 or b'"' in content:
        return [content]
    cuts = [content.find(b"\n", len(content) * i // count) + 1 or len(content) for i in range(1, count)]
    borders = [0, *cuts, len(content)]
    pieces = (content[begin:end] for begin, end in pairwise(borders))
    return [piece for piece in pieces if not _blank(piece)]


def _blank(content: bytes) -> bool:
    return not (content[:1000].strip(BLANK) or content.strip(BLANK))


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _fault_found(
    file: File, content: bytes, names: list[str], columns: Mapping[str, type], header: bool, sep: str, missing: bool,
    error: Exception,
) -> UserError:  # fmt: skip
    """The fault in words, if it is one of the table's."""
    if isinstance(error, UserError):
        return error
    found = _explained(file, content, names, columns, header, sep, missing)
    return found or file.wrong(f"not a table: {' '.join(str(error).split())}")


def read_tables(
    files: Sequence[File], columns: Mapping[str, type], *, header: bool = True, sep: str = ",", missing: bool = False
) -> list[dict[str, Array]]:
    """``read_table`` of many files of one form, several parsed as one: starting a parser takes as long as 1,000 rows.

    Where anything is out of the ordinary, the files are read one by one, so that a fault is found where it is.
    """
    groups: list[list[File]] = [[]]
    size = 0
    for file in files:
        groups[-1].append(file)
        size += len(file.held or b"") or TOGETHER // 8  # of a file on disk the size is not known yet
        if size > TOGETHER:
            groups.append([])
            size = 0
    form = {"header": header, "sep": sep, "missing": missing}
    made = side_by_side(lambda group: _together(group, columns, form), [group for group in groups if group])
    return [table for group in made for table in group]


def _together(files: Sequence[File], columns: Mapping[str, type], form: dict[str, Any]) -> list[dict[str, Array]]:
    contents = [file.unzipped() for file in files]
    tops = {content[: content.find(b"\n") + 1] for content in contents} if form["header"] else {b""}
    top = min(tops)
    if len(files) > 1 and len(tops) == 1 and all(content.endswith(b"\n") for content in contents):
        rows = [_count(content, ord("\n")) - form["header"] for content in contents]
        text = top + b"".join(content[len(top) :] for content in contents)
        with suppress(UserError):
            table = read_table(files[0], columns, text=text, **form)
            if len(next(iter(table.values()))) == sum(rows):  # no line was empty
                borders = np.cumsum(rows)[:-1]
                parts = {name: np.split(values, borders) for name, values in table.items()}
                return [{name: parts[name][i] for name in columns} for i in range(len(files))]
    return [read_table(file, columns, text=text, **form) for file, text in zip(files, contents, strict=True)]


def numbered(words: Array, names: Sequence[str]) -> Array:
    """The place in ``names`` of every word; -1 for a word that is not there."""
    import pandas

    places, kinds = pandas.factorize(words)
    return np.array([names.index(kind) if kind in names else -1 for kind in kinds], np.int64)[places]


def stacked(table: Mapping[str, Array], names: Sequence[str]) -> Array:
    """Columns side by side: ``[rows, columns]`` float32."""
    result = np.empty((len(table[names[0]]), len(names)), np.float32)
    for number, name in enumerate(names):
        result[:, number] = table[name]
    return result


def side_by_side(function: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """``function`` of every item, in order, on all cores; told as progress."""
    items = list(items)
    expect(len(items))

    def done(item: Item) -> Made:
        made = function(item)
        one_done()
        return made

    return on_all_cores(done, items)


def _column(values: Array, kind: type, missing: bool) -> Array:
    if kind is str:
        import pandas

        places, words = pandas.factorize(values)  # few different words, so that little is done for each row
        if not missing and (places < 0).any():
            raise ValueError("an empty cell")
        return np.array([*(str(word).strip() for word in words), ""], dtype=object)[places]
    if values.dtype == object or values.dtype.kind in "USb":
        raise ValueError("a cell that is no number")
    if kind is int:
        if values.dtype.kind != "i":
            raise ValueError("a cell that is no whole number")
        return values
    numbers = values.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):  # a sum is finite unless something in it is not, or it is too large
        finite = missing or bool(np.isfinite(numbers.sum()))
    if not finite and not np.isfinite(numbers).all():
        raise ValueError("an empty cell")
    return numbers


def _lines_ended(content: bytes) -> bytes:
    """Lines that end in a carriage return alone, as on old Macs, end in a line feed."""
    return content.replace(b"\r", b"\n") if b"\n" not in content and b"\r" in content else content


def _rows(lines: Iterable[str], sep: str) -> Iterator[tuple[int, list[str]]]:
    """Line number (where the row ends) and cells of every row that has any."""
    if sep == SPACES:
        rows = ((number, line.split()) for number, line in enumerate(lines, 1))
    else:
        reader = csv.reader(lines, delimiter=sep, skipinitialspace=True)
        rows = ((reader.line_num, [cell.strip() for cell in row]) for row in reader)
    return ((number, cells) for number, cells in rows if len(cells) > 1 or any(cells))


def _header(file: File, content: bytes, wanted: list[str], sep: str) -> list[str]:
    """The names in the first line, which must have each that is wanted, once."""
    first = content.split(b"\n", 1)[0].decode("utf-8-sig", "replace")
    try:
        _, names = next(_rows([first], sep), (1, []))
    except csv.Error as error:
        raise file.wrong(f"line 1 is no line of names ({error})") from error
    names = [name.strip('"') for name in names]
    for name in wanted:
        if name not in names:
            raise file.wrong(f"line 1 names no column '{name}'; {nearest(name, [n for n in names if n])}")
        if names.count(name) > 1:
            raise file.wrong(f"line 1 names column '{name}' {names.count(name)} times; keep one")
    return names if names[-1] else names[:-1]


def _count(content: bytes, byte: int) -> int:
    return int(np.count_nonzero(np.frombuffer(content, np.uint8) == byte))  # six times as fast as bytes.count


def _ends_blank(content: bytes) -> bool:
    """Does every line end with a space?"""
    text = np.frombuffer(content, np.uint8)
    return bool((text[np.maximum(np.flatnonzero(text == ord("\n")) - 1, 0)] == ord(" ")).all())


def _parsed(
    content: bytes, sep: str, header: bool, width: int, places: set[int], words: set[int]
) -> tuple[pandas.DataFrame, bool]:
    """The columns at ``places``, and whether every row is known to have ``width`` cells.

    If no row is short, which would leave its last cell empty, the sum of the separators tells. pandas is twice as fast
    with a space between cells than with any number of blanks, so that is tried where the first line looks like it.
    """
    import pandas

    first = content[: content.find(b"\n") + 1]
    spaced = sep == SPACES and len(first.rstrip(b" \r\n").split(b" ")) == width
    after_last = spaced and first.endswith(b" \n")  # which pandas takes for one more cell, and leaves out
    frame = pandas.read_csv(
        io.BytesIO(content),
        sep=" " if spaced else sep,
        header=0 if header else None,
        names=list(range(width)),
        index_col=False,
        usecols=sorted({*places, width - 1}),
        skipinitialspace=not spaced,
        encoding="utf-8-sig",
        dtype=dict.fromkeys(words, str),
        na_filter=True,
        keep_default_na=False,
        na_values=sorted(MISSING),
        low_memory=False,
    )
    separator = ord(" " if sep == SPACES else sep)
    fits = _count(content, separator) == (len(frame) + header) * (width - 1 + after_last)
    if after_last and fits:
        fits = _ends_blank(content)
    if spaced and not fits:
        return _parsed(content.replace(b" ", b"\t"), sep, header, width, places, words)  # any number of blanks
    return frame, fits and not frame[width - 1].isna().any()


def _uneven(content: bytes, sep: str, width: int) -> bool:
    """Does a line seem to have other than ``width`` cells? pandas cuts off or fills up rows in silence.

    A separator at the end of a line and empty lines are nothing to worry about. Quotes are not looked at.
    """
    begin = 0
    while begin < len(content):
        end = content.rfind(b"\n", begin, begin + BLOCK) + 1
        end = end or content.find(b"\n", begin) + 1 or len(content)
        block = np.frombuffer(content, np.uint8, end - begin, begin)
        stops = np.flatnonzero(block == ord("\n"))
        if not len(stops) or stops[-1] != len(block) - 1:
            stops = np.append(stops, len(block))
        if sep == SPACES:
            blank = np.isin(block, np.frombuffer(b" \t\r\n", np.uint8))
            marks = np.flatnonzero(~blank & np.concatenate([[True], blank[:-1]]))  # where a cell begins
            cells = np.diff(np.searchsorted(marks, stops), prepend=0)
            even = (cells == width) | (cells == 0)
        else:
            marks = np.flatnonzero(block == ord(sep))
            cells = np.diff(np.searchsorted(marks, stops), prepend=0) + 1
            last = block[np.maximum(stops - 1, 0)]
            last = np.where(last == ord("\r"), block[np.maximum(stops - 2, 0)], last)
            even = (cells == width) | ((cells == width + 1) & (last == ord(sep))) | (last == ord("\n"))
        if not even.all():
            return True
        begin = end
    return False


def _explained(
    file: File,
    content: bytes,
    names: list[str],
    columns: Mapping[str, type],
    header: bool,
    sep: str,
    missing: bool,
) -> UserError | None:
    """The first thing that is wrong, looked for the slow way; None if nothing is found."""
    try:
        lines = io.StringIO(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return file.wrong(_no_text(content, error.start, sep))
    rows = _rows(lines, sep)
    number = 0
    try:
        for number, cells in islice(rows, 1 if header else 0, None):
            if len(cells) != len(names) and not (len(cells) == len(names) + 1 and not cells[-1]):
                listed = ", ".join(names if len(names) < 30 else [*names[:2], "…", names[-1]])
                return file.wrong(f"line {number} has {len(cells)} cells, expected {len(names)} ({listed})")
            for place, (name, cell) in enumerate(zip(names, cells, strict=False), 1):
                if name in columns and (fault := _fault(cell, columns[name], missing)):
                    return file.wrong(f"line {number}, column {place} ('{name}'): {fault}")
    except csv.Error as error:
        return file.wrong(f"the row after line {number} is not one of a table ({error}); is a quote left open?")
    return None


def _no_text(content: bytes, place: int, sep: str) -> str:
    line, begin = content.count(b"\n", 0, place) + 1, content.rfind(b"\n", 0, place) + 1
    before = content[begin:place].decode("utf-8-sig", "replace") + "?"
    column = len(before.split() if sep == SPACES else before.split(sep))
    return f"line {line}, column {column}: byte 0x{content[place]:02x} is no UTF-8 text; save the file as UTF-8"


def _fault(cell: str, kind: type, missing: bool) -> str:
    if cell in MISSING:
        if missing and kind is not int:  # there is no whole number that stands for a missing one
            return ""
        return "the cell is empty" if not cell else f"'{cell}' is no {'name' if kind is str else 'number'}"
    if kind is str:
        return ""
    wrong = f"'{cell}' is no {'whole ' if kind is int else ''}number"
    try:
        value = kind(cell)
    except ValueError:
        return wrong
    if "_" in cell or not cell.isascii():  # Python would take 1_000 for a number
        return wrong
    if kind is int:
        return "" if -(2**63) <= value < 2**63 else f"'{cell}' is too large a number"
    return "" if missing or np.isfinite(value) else f"'{cell}' is not finite"
