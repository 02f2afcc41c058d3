"""Any EEG dataset MOABB serves: band-passed, a covariance per trial, tangent vectors; one client per subject.

Datasets with different electrodes and classes stand side by side in one federation, as in FLIC's brain-computer
interfaces.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsense.data.cache import key_of
from fedsense.data.card import Card
from fedsense.data.dataset import Found
from fedsense.data.eeg import NEEDED, Covariances, covariances, versions
from fedsense.data.files import Files, find_root
from fedsense.data.splits import Split
from fedsense.data.telling import expect, one_done
from fedsense.data.windows import Collected, collected
from fedsense.errors import UserError, nearest
from fedsense.federation import Federation, Missing

FLIC_EVENTS = ("left_hand", "right_hand", "feet", "tongue", "rest")
FLIC_DATASETS = ("AlexMI", "BNCI2014_001", "BNCI2014_002", "BNCI2014_004", "Weibo2014", "Zhou2016")


def read(
    files: Files,
    datasets: list[str] = ["BNCI2014_001"],  # noqa: B006
    subjects: int | None = None,
    events: list[str] | None = None,
    fmin: float = 8.0,
    fmax: float = 30.0,
) -> Found:
    """Covariances of every trial of the first ``subjects`` (None: all) of every dataset.

    ``events`` are the classes; None: of motor imagery FLIC's five, of everything else what the dataset has.
    """
    found = [_dataset(name) for name in datasets]
    jobs = [(dataset, subject) for dataset in found for subject in dataset.subject_list[:subjects]]
    classes = _classes(found, events)
    expect(len(jobs))
    clients = []
    for dataset, subject in jobs:
        clients.append(_subject(dataset, subject, classes, fmin, fmax))
        one_done()
    return Found(clients, classes)


def _moabb() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own dependencies, at import
            import moabb
            import moabb.datasets
            import moabb.datasets.fake
            import moabb.datasets.utils
            import moabb.paradigms
    except ImportError as error:
        raise UserError(NEEDED) from error
    moabb.set_log_level("error")
    return moabb


def _dataset(name: str) -> Any:
    moabb = _moabb()
    known = {kind.__name__: kind for kind in moabb.datasets.utils.dataset_list}
    known["FakeDataset"] = moabb.datasets.fake.FakeDataset  # random signals, for trying things out
    if name not in known:
        raise UserError(f"MOABB has no dataset '{name}'; {nearest(name, known)}", about="datasets")
    return known[name]()


def _classes(datasets: Sequence[Any], events: Sequence[str] | None) -> tuple[str, ...]:
    """The asked events that occur; or, if none are asked for, FLIC's or all."""
    there = dict.fromkeys(event for dataset in datasets for event in dataset.event_id)
    if events is not None:
        for event in events:
            if event not in there:
                raise UserError(f"none of the datasets has an event '{event}'; {nearest(event, there)}", about="events")
        return tuple(events)
    flic = tuple(event for event in FLIC_EVENTS if event in there)
    return flic if flic and all(dataset.paradigm == "imagery" for dataset in datasets) else tuple(there)


def _paradigm(dataset: Any, classes: Sequence[str], fmin: float, fmax: float) -> Any:
    paradigms, mine = _moabb().paradigms, [event for event in dataset.event_id if event in classes]
    if not mine:
        raise UserError(f"MOABB's {dataset.code} has none of the events {', '.join(classes)}", about="events")
    if dataset.paradigm == "imagery":
        return paradigms.MotorImagery(events=mine, n_classes=len(mine), fmin=fmin, fmax=fmax)
    if dataset.paradigm == "ssvep":
        return paradigms.SSVEP(events=mine, n_classes=len(mine), fmin=fmin, fmax=fmax)
    if dataset.paradigm == "p300":
        return paradigms.P300(fmin=fmin, fmax=fmax)
    if dataset.paradigm == "cvep":
        return paradigms.CVEP(events=mine, n_classes=len(mine), fmin=fmin, fmax=fmax)
    raise UserError(
        f"MOABB's {type(dataset).__name__} is of the kind '{dataset.paradigm}', which has no trials of classes; "
        "fedsense takes imagery, ssvep, p300 and cvep",
        about="datasets",
    )


def _subject(dataset: Any, subject: Any, classes: tuple[str, ...], fmin: float, fmax: float) -> Collected:
    name, paradigm = type(dataset).__name__, _paradigm(dataset, classes, fmin, fmax)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            epochs, labels, about = paradigm.get_data(dataset, subjects=[subject], return_epochs=True)
    except Exception as error:  # what a download or a damaged file makes MOABB raise has no common ancestor
        raise UserError(
            f"MOABB could not give subject {subject} of {name}: {str(error).splitlines()[0][:200]}; it downloads what "
            "it lacks: connect to the network once, or set MNE_DATA to the folder that has it"
        ) from error
    asked = np.isin(labels, classes)
    epochs, labels, about = epochs[asked], labels[asked], about[asked]
    sessions = {name: number for number, name in enumerate(dict.fromkeys(about["session"]))}
    return collected(
        f"{name}-{subject:02d}" if isinstance(subject, int) else f"{name}-{subject}",
        covariances(epochs.get_data(copy=False) * 1e6),  # µV
        np.array([classes.index(label) for label in labels]),
        session=np.array([sessions[name] for name in about["session"]]),
        channels=list(epochs.ch_names),
        dataset=name,
    )


@contextmanager
def _served_from(root: Path | None) -> Iterator[None]:
    """MOABB looks in this folder for a while; None: where it always looks."""
    if root is None:
        yield
        return
    before = os.environ.get("MNE_DATA")
    os.environ["MNE_DATA"] = str(root)
    try:
        yield
    finally:
        os.environ.pop("MNE_DATA")
        if before is not None:
            os.environ["MNE_DATA"] = before


@dataclass(frozen=True)
class Moabb(Covariances):
    """MOABB finds and keeps the files; ``root`` is where (its own MNE_DATA, if not said)."""

    def files(self, options: Mapping[str, Any]) -> Files:
        if options["root"] is None:
            return Files(Path(os.environ.get("MNE_DATA", ".")), ())
        root = find_root(self.name, options["root"])
        if not root.is_dir():
            raise UserError(f"dataset 'moabb': {root} is no folder", about="root")
        return Files(root, ())

    def build(self, options: Mapping[str, Any], missing: Missing) -> Federation:
        with _served_from(options["root"] and self.files(options).root):
            return super().build(options, missing)

    def content(self, files: Files) -> str:
        # what MOABB serves under a name does not change but with its version
        return key_of("moabb", _moabb().__version__, versions())


DATASET = Moabb(
    card=Card(
        name="moabb",
        title="MOABB",
        what="EEG of motor imagery, SSVEP or P300: any dataset that MOABB serves, electrodes as they were",
        who="see the dataset at MOABB",
        licence="see the dataset at MOABB",
        citation="V. Jayaram, A. Barachant, 'MOABB: trustworthy algorithm benchmarking for BCIs', Journal of Neural "
        "Engineering 15, 2018; and the dataset's own",
        address="https://moabb.neurotechx.com/docs/dataset_summary.html",
        layout="as MOABB keeps it (MNE_DATA)",
        sizes="see the dataset at MOABB",
        client="a subject; several datasets may stand side by side",
        paper="FLIC, with datasets = " + str(list(FLIC_DATASETS)).replace("'", '"'),
        notes="Needs the extra fedsense[eeg]. 8 to 30 Hz, Ledoit-Wolf covariances, tangent vectors at the mean of the "
        "client's training trials; the last session is tested on, or a quarter of the trials of a subject with one. "
        'electrodes = "common" keeps those that every cap has (FLIC\'s BCI-common: C3, Cz, C4).',
        by_hand="MOABB downloads what it lacks when the dataset is first used, into root or MNE_DATA; a path "
        "configured for one dataset in MNE's settings wins over both",
    ),
    read=read,
    wanted=(),
    split=Split("session", test=0.25, val=0.1),
)
