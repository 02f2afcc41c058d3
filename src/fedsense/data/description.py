"""What a dataset.toml says of one's own recordings; every mistake in it is explained."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field
from typing import Any, Literal

from fedsense.data.files import File
from fedsense.data.windows import cut
from fedsense.errors import UserError, nearest
from fedsense.federation import Kind
from fedsense.options import checked, options_of

DESCRIPTION = "dataset.toml"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# what one unit is in the unit the pipeline uses: m/s² and rad/s
UNITS = {"m/s2": 1.0, "g": 9.80665, "mg": 9.80665e-3, "rad/s": 1.0, "deg/s": math.pi / 180}
RESERVED = ("time", "label")  # what columns that are no channels are called in the readers


@dataclass(frozen=True)
class Layout:
    """How a client's files are written: the [recording] table, or a client's own [clients.NAME]."""

    columns: list[str] | dict[str, str] = field(default_factory=list)  # channels, or channel → column of the file
    units: dict[str, str] = field(default_factory=dict)  # sensor (or channel) → unit
    rate: float | None = None  # Hz; None: found from the time column
    time: str | None = None  # a column; "" takes back what [recording] says
    time_unit: Literal["s", "ms", "us", "ns", "iso"] = "s"  # iso: dates and times of day in words
    label: str | None = None  # a column
    label_from: Literal["column", "file-name", "intervals"] = "column"
    separator: Literal[",", ";", "\t"] = ","  # of CSV files
    decimal: Literal[".", ","] = "."
    speed: float | None = None  # of the device, relative to the others; a method may spare slow ones (FedAPA)

    def named(self) -> dict[str, str]:
        """Channel → column."""
        return self.columns if isinstance(self.columns, dict) else {name: name for name in self.columns}


@dataclass(frozen=True)
class Description:
    """What a dataset.toml says."""

    name: str = "mine"
    kind: Kind = "classification"
    classes: list[str] | None = None
    rate: float | None = None
    window: int = 128
    overlap: float = 0.5
    intervals: str = "intervals.csv"
    recording: dict[str, Any] = field(default_factory=dict)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)

    def layout(self, client: str) -> Layout:
        """The [recording] table, with what [clients.NAME] says instead."""
        allowed = options_of(Layout)
        common = checked(f"{DESCRIPTION}, [recording]", self.recording, allowed, dashes=True)
        own = checked(f"{DESCRIPTION}, [clients.{client}]", self.clients.get(client, {}), allowed, dashes=True)
        return Layout(**{**common, **own})


def read_description(file: File) -> Description:
    """The description, every mistake explained."""
    try:
        table = tomllib.loads(file.read().decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise file.wrong(f"not valid TOML: {error}") from error
    try:
        description = Description(**checked(DESCRIPTION, table, options_of(Description)))
        _check(description)
        for client in ("", *description.clients):
            check_layout(description.layout(client), client, bool(client or not description.clients))
    except UserError as error:
        raise file.wrong(str(error).removeprefix(f"{DESCRIPTION}, ").removeprefix(f"{DESCRIPTION}: ")) from error
    return description


def _check(description: Description) -> None:
    name, classes = description.name, description.classes or []
    if not name.strip() or "/" in name or "\\" in name:
        raise UserError(f"name is '{name}'; give a name without slashes")
    if twice := [word for word in classes if classes.count(word) > 1]:
        raise UserError(f"classes names '{twice[0]}' twice; name it once")
    cut([], description.rate, description.window, description.overlap)  # which has something to say of wrong numbers


def check_layout(layout: Layout, client: str, whole: bool) -> None:
    """``whole``: nothing is left to say. [recording] may leave it to the tables of the clients."""
    where = f"[clients.{client}]" if client else "[recording]"
    columns = [*layout.named().values()]
    reserved = [name for name in RESERVED if name in layout.named()]
    for wrong, message in (
        (whole and not columns, 'names no columns; say columns = ["acc_x", …], the columns to learn from'),
        (len(set(columns)) < len(columns), f"names a column twice ({', '.join(columns)})"),
        (layout.label in columns, f"learns from '{layout.label}', which is the label; take it out of columns"),
        (layout.time in columns, f"learns from '{layout.time}', which is the time; take it out of columns"),
        (bool(reserved), f"calls a channel '{''.join(reserved[:1])}'; give it another name: columns = {{ other = … }}"),
        (layout.rate is not None and layout.rate <= 0, f"has rate = {layout.rate}; give Hz above 0"),
        (layout.speed is not None and layout.speed <= 0,
         f"has speed = {layout.speed}; give a number above 0, such as 0.25 for a device four times as slow as others"),
        (layout.decimal == layout.separator, 'has decimal = "," and cells separated by "," too; say separator = ";"'),
        (whole and not layout.rate and not layout.time,
         "needs rate = (Hz), or time = (the column that holds the time)"),
        (whole and layout.label_from == "column" and not layout.label,
         'needs label = (a column), or label-from = "file-name" or "intervals"'),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"{where} {message}")
    sensors = {*layout.named(), *(name.rpartition("_")[0] for name in layout.named())} - {""}
    for what, unit in layout.units.items():
        if sensors and what not in sensors:
            raise UserError(f"{where}: units names '{what}', which is no sensor of columns; {nearest(what, sensors)}")
        if unit not in UNITS:
            raise UserError(f"{where}: unit '{unit}' of '{what}' is unknown; {nearest(unit, UNITS)}")
