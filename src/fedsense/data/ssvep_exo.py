"""SSVEP-exo: EEG of people who look at lamps that flicker at 13, 17 or 21 Hz, or at none; MNE files on disk."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from glob import escape
from pathlib import Path

import numpy as np

from fedsense.data.card import Card
from fedsense.data.eeg import NEEDED, Array, Covariances, band_passed, covariances
from fedsense.data.files import File, Files
from fedsense.data.splits import Split
from fedsense.data.tables import side_by_side
from fedsense.data.windows import Collected
from fedsense.errors import UserError

CLASSES = ("rest", "13", "17", "21")
# event number → class. The files' own numbers: 1 rest, 2 13 Hz, 3 21 Hz, 4 17 Hz (the README's Label_00 to Label_03).
EVENTS = {1: 0, 2: 1, 3: 3, 4: 2}
MICROVOLT = 1e6


def read(
    files: Files,
    bands: list[tuple[float, float]] = [(12.5, 13.5), (16.5, 17.5), (20.5, 21.5)],  # noqa: B006
    interval: tuple[float, float] = (2.0, 5.0),
) -> Iterator[Collected]:
    """Covariances of every trial over ``interval`` (seconds after its cue), the ``bands`` (Hz) one below the other."""
    recordings = files.all("subject*/record-*_raw.fif")
    subjects: dict[str, list[File]] = {}
    for file in recordings:
        subjects.setdefault(file.folder, []).append(file)
    trials = dict(zip(recordings, side_by_side(lambda f: _trials(files, f, bands, interval), recordings), strict=True))
    for subject, sessions in subjects.items():
        x, y, origin, names = zip(*(trials[file] for file in sessions), strict=True)
        number = np.repeat(np.arange(len(y)), [len(part) for part in y])
        spans = np.concatenate(origin)
        yield Collected(
            subject.replace("subject", "s"),
            np.concatenate(x),
            np.concatenate(y),
            np.column_stack([number, spans]),
            number,
            {"channels": list(names[0])},
        )


def _trials(files: Files, file: File, bands: list[tuple[float, float]], interval: tuple[float, float]) -> tuple[
    Array, Array, Array, list[str]
]:  # fmt: skip
    try:
        import mne
    except ImportError as error:
        raise UserError(NEEDED) from error
    try:
        raw = mne.io.read_raw_fif(io.BytesIO(file.read()), preload=True, verbose="ERROR")
    except UserError:
        raise
    except Exception as error:  # what a damaged file makes MNE raise has no common ancestor
        raise file.wrong(f"not a whole MNE file ({error})") from error
    rate, signal = float(raw.info["sfreq"]), raw.get_data() * MICROVOLT
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
    return covariances(cut), labels, np.stack([starts, starts + length], axis=1), raw.ch_names


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
        who="12 subjects of 20 to 28 years, 2 to 5 sessions of 32 trials each",
        licence="CC0",
        citation="E. K. Kalunga, S. Chevallier, Q. Barthélemy et al., "
        "'Online SSVEP-based BCI using Riemannian geometry', Neurocomputing 191, 2016",
        address="https://github.com/sylvchev/dataset-ssvep-exoskeleton",
        layout="subjectNN/record-[…]_raw.fif and subjectNN/record-[…]-eve.fif, as MOABB (Kalunga2016) keeps them",
        sizes="32 sessions, 1,024 trials",
        client="a subject (12); `electrodes = [4, 8]` leaves each a random subset of its electrodes",
        paper="EEG in the manner of FLIC",
        notes="Features are tangent vectors of one covariance over three narrow bands at the flicker rates (24 × 24); "
        "bands = [[8, 30]] gives FLIC's one broad band, in which the rates cannot be told apart well.",
        by_hand='MOABB downloads it: python -c "from moabb.datasets import Kalunga2016; Kalunga2016().download()", '
        "then give its folder as root",
    ),
    read=read,
    wanted=("subject*/record-*_raw.fif", "subject*/record-*-eve.fif"),
    classes=CLASSES,
    split=Split("session", test=0.25, val=0.1),
)
