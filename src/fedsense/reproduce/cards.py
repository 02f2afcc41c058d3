"""A paper's card, ``recipes/<paper>/published.toml``: what it prints, number by number, and where ours comes from.

A number stands in a row and a column of a table. What gives ours (a :class:`Cell`) is said piece by piece by the table,
the group of columns, the column and the row; of two that say the same the later wins, and their settings are joined.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from fedsense.errors import UserError, nearest
from fedsense.evaluation.summary import check_selection
from fedsense.options import explain
from fedsense.recipe import Table

CARD_FILE = "published.toml"
NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?")
ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "X": 10}

Measure = Literal["score", "rounds", "speedup", "drop", "traffic", "time", "holds"]
Draw = Literal["curves", "lines", "clients", "counts", "embedding", "confusion"]


class Cell(Table):
    """Where a number of ours comes from."""

    setting: str = ""
    set: tuple[str, ...] = ()  # overrides of the setting's recipe
    small: tuple[str, ...] = ()  # and with --scale small
    method: str = ""  # its label in the recipe
    view: str = "personal"
    metric: str = "accuracy"
    summary: str = "final"
    # score: of view and metric. rounds: until it is as good as method ``of`` at its best, or at its end (``target``);
    # speedup: that of ``of`` over that. drop: from the score without the item's overrides. traffic: KB of a client and
    # round, both ways; time: seconds of local training; holds: MB a client keeps between rounds, model and state; these
    # three as a multiple of ``of``, if there is one.
    measure: Measure = "score"
    of: str = ""
    target: Literal["best", "final"] = "best"
    spread: Literal["seeds", "clients"] = "seeds"  # what the number after ± is a standard deviation over
    weighted: bool = False  # clients by their test samples
    why: str = ""  # not computed, and why

    @field_validator("summary")
    @classmethod
    def _known(cls, value: str) -> str:
        check_selection(value)
        return value

    def said(self) -> dict[str, Any]:
        """What of a cell it says itself."""
        return {name: getattr(self, name) for name in self.model_fields_set if name in Cell.model_fields}


class Column(Cell):
    """A column, or a group of columns."""

    name: str


class Row(Cell):
    """A row: its name, as the paper's text has it if that is spelled differently, and its numbers."""

    name: str
    printed: str = ""
    values: str = ""  # a word a column: 97.42±3.30, or what the paper has where there is no number
    at: dict[str, dict[str, Any]] = Field({})  # group or column → what is different there


@dataclass(frozen=True)
class Entry:
    """One number: where it stands, what is printed there, and where ours comes from."""

    row: str
    group: str
    column: str
    cell: Cell
    value: float | None = None
    std: float | None = None

    @property
    def heading(self) -> str:
        return " ".join(filter(None, (self.group, self.column)))


class Item(Cell):
    """A table or a figure."""

    id: str
    title: str
    printed: str  # the beginning of its caption
    unit: str = "%"
    across: tuple[Column, ...] = ()  # groups, each with all columns
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    shows: str = ""  # of a figure: what is in it, and that the paper prints no numbers
    draw: Draw | None = None
    axis: str = ""  # of lines: what is under them, if not the title
    classes: tuple[str, ...] = ()  # of an embedding: only these
    own: str = ""  # a figure that plain runs do not give: the name of what does (reproduce/own); columns are its own
    note: str = ""

    @property
    def is_figure(self) -> bool:
        return bool(self.shows)

    @property
    def runs(self) -> bool:
        """Whether anything is computed."""
        return bool(self.columns or self.own)

    @property
    def methods_are_columns(self) -> bool:
        """Whether each column is a method's, and not each row."""
        return any("method" in column.model_fields_set for column in self.columns)

    def entries(self) -> list[Entry]:
        """Row by row, every number."""
        return list(self._entries())

    def _entries(self) -> Iterator[Entry]:
        places = [(group, column) for group in self.across or (None,) for column in self.columns]
        for row in self.rows or (Row(name=""),):
            values = row.values.split() or ["-"] * len(places)
            if len(values) != len(places):
                raise UserError(f"{self.id}, row '{row.name}': {len(values)} values for {len(places)} columns")
            for (group, column), text in zip(places, values, strict=True):
                parts = [self.said(), *([group.said()] if group else []), column.said(), row.said()]
                parts += [row.at[name] for name in (group.name if group else "", column.name) if name in row.at]
                number = NUMBER.fullmatch(text)
                value, std = (float(n) if n else None for n in number.groups()) if number else (None, None)
                yield Entry(row.name, group.name if group else "", column.name, _merged(parts), value, std)


class Setting(Table):
    """A recipe, changed to what the paper has."""

    recipe: str
    set: tuple[str, ...] = ()
    small: tuple[str, ...] = ()  # with --scale small
    beside: tuple[str, ...] = ()  # datasets it needs beside its recipe's; the nearest needs none
    nearest: tuple[str, ...] = ()  # the nearest dataset that is easier to get


class Card(Table):
    """A paper."""

    paper: str
    title: str
    small: tuple[str, ...] = ()  # of all settings, with --scale small
    setting: dict[str, Setting] = Field({})
    table: tuple[Item, ...] = Field(())
    figure: tuple[Item, ...] = Field(())

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.table, *self.figure)

    def item(self, name: str) -> Item:
        """The table or figure a person means: T3, "Table 3", III (a table), F7a, "Fig. 7a"."""
        known = {item.id.upper(): item for item in self.items}
        wanted = _plain(name)
        if wanted in known:
            return known[wanted]
        parts = [item for key, item in known.items() if re.fullmatch(rf"{re.escape(wanted)}[A-Z]", key)]
        if len(parts) > 1:
            raise UserError(f"{self.paper}'s {name} has parts; say {' or '.join(item.id for item in parts)}")
        raise UserError(f"{self.paper} has no '{name}'; {nearest(wanted, [item.id for item in self.items])}")


def papers() -> dict[str, Traversable]:
    """Name → card of the papers that come with fedsense."""
    folders = (resources.files("fedsense") / "recipes").iterdir()
    found = {folder.name: folder / CARD_FILE for folder in folders if folder.is_dir()}
    return {name: card for name, card in sorted(found.items()) if card.is_file()}


def load_card(paper: str) -> Card:
    """The card of a paper, by its name; or of any other, by its file."""
    known = papers()
    file: Traversable | None = known.get(paper.lower())
    if file is None and Path(paper).is_file():
        file = Path(paper)
    if file is None and paper.endswith(".toml"):
        raise UserError(f"{paper}: there is no such file; a card's name will do as well: {', '.join(known)}")
    if file is None:
        raise UserError(f"there is no card of a paper '{paper}'; {nearest(paper.lower(), known)}")
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        if "method" in tables and "paper" not in tables:
            raise UserError(f"{file} is a recipe, not the card of a paper; run it: fedsense run {file}")
        return Card.model_validate(tables)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file} is not valid TOML: {error}") from error
    except ValidationError as error:
        lines = [f"'{'.'.join(map(str, e['loc']))}': {explain(e)}" for e in error.errors()]
        raise UserError(f"{file}: " + "; ".join(lines)) from error


def _merged(parts: Sequence[Mapping[str, Any]]) -> Cell:
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            whole[key] = (*whole.get(key, ()), *value) if key in ("set", "small") else value
    return Cell.model_validate(whole)


def _plain(name: str) -> str:
    """``Table III`` → T3, ``Fig. S2`` → FS2, ``iv`` → T4."""
    text = re.sub(r"[\s.:_-]", "", name.upper())
    text = re.sub(r"^(TABLE|TAB)", "T", text)
    text = re.sub(r"^(FIGURE|FIG)", "F", text)
    if text in ROMAN:
        return f"T{ROMAN[text]}"
    return f"T{ROMAN[text[1:]]}" if text[:1] == "T" and text[1:] in ROMAN else text
