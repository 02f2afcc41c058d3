"""SSVEP-exo: EEG of people who look at lamps that flicker at 13, 17 or 21 Hz, or at none; MNE files on disk."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from glob import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedsense.data.card import Card
from fedsense.data.eeg import NEEDED, Array, Covariances, band_passed, covariances
from fedsense.data.files import File, Files, ends_as
from fedsense.data.splits import Split
from fedsense.data.tables import side_by_side
from fedsense.data.windows import Collected
from fedsense.errors import UserError

CLASSES = ("rest", "13", "17", "21")
# event number → class. The files' own numbers: 1 rest, 2 13 Hz, 3 21 Hz, 4 17 Hz (the README's Label_00 to Label_03).
EVENTS = {1: 0, 2: 1, 3: 3, 4: 2}
MICROVOLT = 1e6
RECORDS, RUNS = "subject*/record-*_raw.fif", "subject*_run*_raw.fif"  # the authors' names, MOABB's names
# Sessions the authors left out of their papers because something went wrong (their README); MOABB does not have them.
FAILED = ("2013.04.06-16.22.32", "2014.02.26-15.10.48", "2014.02.26-15.50.09", "2014.02.24-17.56.37",
          "2014.02.24-18.02.40")  # fmt: skip


def read(
    files: Files,
    bands: list[tuple[float, float]] = [(12.5, 13.5), (16.5, 17.5), (20.5, 21.5)],  # noqa: B006
    interval: tuple[float, float] = (2.0, 5.0),
    sessions: Literal["published", "all"] = "published",
) -> Iterator[Collected]:
    """Covariances of every trial over ``interval`` (seconds after its cue), the ``bands`` (Hz) one below the other.

    ``sessions`` are those of the authors' papers, or all, also those in which something failed.
    """
    recordings = files.some(RUNS) or files.all(RECORDS)
    if sessions == "published":
        recordings = [file for file in recordings if not any(stamp in file.base for stamp in FAILED)]
    subjects: dict[str, list[File]] = {}
    for file in recordings:
        subjects.setdefault(_subject(file), []).append(file)
    with _quiet():
        cut = side_by_side(lambda file: _trials(files, file, bands, interval), recordings)
    trials = dict(zip(recordings, cut, strict=True))
    for subject, mine in subjects.items():
        x, y, origin, names = zip(*(trials[file] for file in mine), strict=True)
        number = np.repeat(np.arange(len(y)), [len(part) for part in y])
        spans = np.concatenate(origin)
        yield Collected(
            subject,
            np.concatenate(x),
            np.concatenate(y),
            np.column_stack([number, spans]),
            number,
            {"channels": list(names[0])},
        )


def _quiet() -> AbstractContextManager[Any]:
    """MNE's level of talk is one for all threads, and each call puts back what it found: so it is low before."""
    try:
        import mne
    except ImportError as error:
        raise UserError(NEEDED) from error
    level: AbstractContextManager[Any] = mne.use_log_level("ERROR")
    return level


def _subject(file: File) -> str:
    name = file.base if ends_as(file.name, RUNS) else file.folder
    number = re.match(r"subject(\d+)", name, re.IGNORECASE)
    if number is None:
        raise file.wrong(f"'{name}' gives no subject; expected subject01 or the like")
    return f"s{number[1]}"


def _trials(files: Files, file: File, bands: list[tuple[float, float]], interval: tuple[float, float]) -> tuple[
    Array, Array, Array, list[str]
]:  # fmt: skip
    import mne

    try:
        raw = mne.io.read_raw_fif(io.BytesIO(file.read()), preload=True, verbose="ERROR")
    except UserError:
        raise
    except Exception as error:  # what a damaged file makes MNE raise has no common ancestor
        raise file.wrong(f"not a whole MNE file ({error})") from error
    electrodes = mne.pick_types(raw.info, eeg=True)
    if not len(electrodes):
        raise file.wrong("holds no EEG channel")
    rate, signal = float(raw.info["sfreq"]), raw.get_data(picks=electrodes) * MICROVOLT
    if ends_as(file.name, RUNS):
        events = _within(file, raw)
    else:
        events = _events(files.one(escape(f"{file.folder}/{file.base.replace('_raw.fif', '-eve.fif')}")))
    unknown = sorted(set(events[:, 2].tolist()) - set(EVENTS))
    if unknown:
        raise file.wrong(f"event {unknown[0]} is unknown; expected {', '.join(map(str, EVENTS))}")
    starts = events[:, 0] - raw.first_samp + round(interval[0] * rate)
    length = round((interval[1] - interval[0]) * rate)
    if length < 1 or (starts < 0).any() or (starts + length > signal.shape[1]).any():
        raise file.wrong(f"interval {list(interval)} s after a cue lies outside the recording")
    filtered = np.concatenate([band_passed(signal, rate, low, high) for low, high in bands])
    cut = np.stack([filtered[:, start : start + length] for start in starts])
    labels = np.array([EVENTS[number] for number in events[:, 2]])
    names = [raw.ch_names[number] for number in electrodes]
    return covariances(cut), labels, np.stack([starts, starts + length], axis=1), names


def _within(file: File, raw: Any) -> Array:
    """Events on the recording's own channel of triggers."""
    import mne

    try:
        found = np.asarray(mne.find_events(raw, verbose="ERROR"))
    except ValueError as error:
        raise file.wrong(f"no events are found in it ({error})") from error
    if not len(found):
        raise file.wrong("its channel of triggers holds no event")
    return found


def _events(file: File) -> Array:
    """MNE reads events from a path only."""
    import mne

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "session-eve.fif")
        path.write_bytes(file.read())
        try:
            return np.asarray(mne.read_events(path, verbose="ERROR"))
        except Exception as error:
            raise file.wrong(f"not a whole MNE file of events ({error})") from error


DATASET = Covariances(
    card=Card(
        name="ssvep-exo",
        title="SSVEP-exo",
        what="EEG of 8 electrodes, 256 Hz; which of three flickering lamps (13, 17, 21 Hz) a person looks at, or none",
        who="12 subjects of 20 to 28 years, 2 to 5 sessions of 32 trials each (6 with those that failed)",
        licence="CC0",
        citation="E. K. Kalunga, S. Chevallier, Q. Barthélemy et al., "
        "'Online SSVEP-based BCI using Riemannian geometry', Neurocomputing 191, 2016",
        address="https://github.com/sylvchev/dataset-ssvep-exoskeleton",
        layout="subjectNN/record-[…]_raw.fif and subjectNN/record-[…]-eve.fif, as the authors' repository has them, or "
        "subjectNN_runN_raw.fif, as MOABB (Kalunga2016) downloads them",
        sizes="27 sessions, 864 trials; 32 and 1,024 with those that failed; MOABB has 3 sessions more",
        client="a subject (12); `electrodes = [4, 8]` leaves each a random subset of its electrodes",
        paper="EEG in the manner of FLIC",
        notes="Features are tangent vectors of one covariance over three narrow bands at the flicker rates (24 × 24); "
        "bands = [[8, 30]] gives FLIC's one broad band, in which the rates cannot be told apart well. Five sessions of "
        'three subjects failed in some way and are left out, as in the authors\' papers; sessions = "all" keeps them.',
        by_hand="clone the repository at the address and give its folder as root; or let MOABB download it "
        '(python -c "from moabb.datasets import Kalunga2016; Kalunga2016().download()") and give MOABB\'s folder',
    ),
    read=read,
    wanted=(RECORDS, "subject*/record-*-eve.fif", RUNS),
    classes=CLASSES,
    split=Split("session", test=0.25, val=0.1),
)
