"""Wi-CaL: how many people are in a room, from features of Wi-Fi channel measurements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from fedsense.data.arrays import NUMBERS, read_npz, wanted
from fedsense.data.card import Card
from fedsense.data.dataset import Read
from fedsense.data.files import Files
from fedsense.data.splits import Split
from fedsense.data.windows import UNLABELLED, Collected

MOST = 10


def read(files: Files, form: Literal["signal", "vector"] = "signal") -> Iterator[Collected]:
    """One client a room and day: features ``[n, 1, 420]`` (or ``[n, 420]``) in the order of the file."""
    file = files.one("*.npz")
    x, room, session, people = wanted(file, read_npz(file), "X", "room", "session", "people")
    if x.ndim != 2 or x.dtype.kind not in NUMBERS:
        raise file.wrong(f"X is {x.dtype} of shape {list(x.shape)}, expected numbers [n, features]")
    for name, column in (("room", room), ("session", session), ("people", people)):
        if column.shape != x.shape[:1] or column.dtype.kind not in "iu":
            raise file.wrong(
                f"{name} is {column.dtype} of shape {list(column.shape)}, expected whole numbers [{len(x)}]"
            )
    if (wrong := (people < 0) | (people > MOST)).any():
        row = int(np.argmax(wrong))
        raise file.wrong(f"people of row {row} is {people[row]}, which is none of 0 to {MOST}")
    x = np.asarray(x, np.float32)
    for r, s in sorted(set(zip(room.tolist(), session.tolist(), strict=True))):
        rows = np.flatnonzero((room == r) & (session == s))
        together = rows[-1] - rows[0] + 1 == len(rows)  # and need not be copied
        mine = slice(rows[0], rows[-1] + 1) if together else rows
        values, y = x[mine], people[mine].astype(np.int64)
        places = np.arange(len(y))
        takes = np.cumsum(np.diff(y, prepend=y[0]) != 0)  # a count was recorded in one go
        # A row is much nearer to the next than to the one after, and 199 rows a count are 100 pieces with half
        # overlap: a row is taken to share measurements with its neighbours.
        origin = np.stack([takes, places, places + 2], axis=1)
        yield Collected(
            f"room{r}-day{s}",
            values[:, None] if form == "signal" else values,
            y,
            origin,
            np.full(len(y), UNLABELLED),
            {"room": r, "day": s},
        )


DATASET = Read(
    card=Card(
        name="wical",
        title="Wi-CaL",
        what="420 features of Wi-Fi channel measurements (ESP32), and how many people are in the room, 0 to 10",
        who="up to 5 people in one room, up to 10 in another, on three days each",
        licence="none stated; ask the authors before any use beyond your own evaluation",
        citation="H. Choi, M. Fujimoto, T. Matsui, S. Misaki, K. Yasumoto, 'Wi-CaL: WiFi sensing and machine learning "
        "based device-free crowd counting and localization', IEEE Access 10, 24395-24410, 2022",
        address="https://doi.org/10.1109/ACCESS.2022.3155812",
        layout="one .npz with X [n, 420], room [n], session [n] and people [n]",
        sizes="10,149 samples: 3 × 1,194 of room 0 (0 to 5 people), 3 × 2,189 of room 1 (0 to 10), 199 a count and day",
        client="a room on a day (6)",
        paper="none of the five; it resembles FedAPA's six environments",
        notes="The features were computed by the authors, it is not known how; raw measurements are not there. A "
        'sample has shape (1, 420), which networks for signals, images and vectors all take; form = "vector" gives '
        "(420,). Each feature is normalised on its own. Rows seem to be in order of time with half overlap "
        "(it is nowhere said): neighbours are taken to share measurements, and the last of each count is tested on. "
        "A count was recorded once a day, so count and moment cannot be told apart within a client.",
        by_hand="no public source is known; ask the authors",
    ),
    read=read,
    wanted=("*.npz",),
    classes=tuple(str(count) for count in range(MOST + 1)),
    kind="counting",
    split=Split("chronological", test=0.2, val=0.1),
    normalise="feature",
    keep=False,
)
