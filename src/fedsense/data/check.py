"""What a person should know of a federation before training on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsense.data import find_dataset
from fedsense.data.dataset import Dataset, Signals
from fedsense.data.description import DESCRIPTION
from fedsense.data.files import ARCHIVES
from fedsense.data.formats import ENDINGS
from fedsense.data.merging import Classes, merged
from fedsense.data.splits import shared
from fedsense.data.windows import LONGEST_GAP, Recording
from fedsense.federation import SPLITS, ClientData, Federation, Missing, Samples

Array = NDArray[Any]
JITTER = 0.2  # of a sampling interval: beyond this, a recording is said to be sampled unevenly


@dataclass(frozen=True)
class ClientReport:
    """What was found of one client."""

    id: str
    shape: tuple[int, ...]
    windows: dict[str, int]  # split → how many
    classes: dict[str, int]  # name → windows of all splits
    missing: int = 0  # values that are not numbers, in the recordings as they were read
    constant: tuple[str, ...] = ()  # channels that never change in training
    rate: float | None = None  # Hz, as recorded
    jitter: float | None = None  # deviation of the sampling interval, as a share of it
    longest_gap: float | None = None  # seconds
    shared: int = 0  # test or validation windows that share measurements with a training window
    duplicates: int = 0  # test windows that are also in training, value for value
    untrained: tuple[str, ...] = ()  # classes it is tested on and never trains on
    newcomer: bool = False

    @property
    def warnings(self) -> list[str]:
        """What a person should look at, in words."""
        tested = self.windows["test"]
        untrained = not self.windows["train"]
        said = [
            (untrained, "has nothing to train on"),
            (not tested, "has nothing to test on"),
            (len(self.classes) == 1, f"has one class only ({', '.join(self.classes)})"),
            (self.missing > 0, f"{self.missing:,} missing values in its recordings (short gaps are bridged)"),
            (bool(self.constant), f"constant channels: {', '.join(self.constant)}"),
            ((self.jitter or 0) > JITTER, f"sampled unevenly (jitter {self.jitter or 0:.0%} of an interval)"),
            (
                (self.longest_gap or 0) > LONGEST_GAP,
                f"a gap of {self.longest_gap or 0:.3g} s; recordings are cut there",
            ),
            (bool(self.untrained), f"is tested on what it never trains on: {', '.join(self.untrained)}"),
            (self.shared > 0, f"leakage: {self.shared:,} validation or test windows share measurements with training"),
            (self.duplicates > 0, f"leakage: {self.duplicates:,} test windows are in training too, value for value"),
        ]
        return [text for wrong, text in said if wrong]


@dataclass(frozen=True)
class Report:
    """What was found of a federation."""

    federation: Federation
    clients: tuple[ClientReport, ...]
    twins: tuple[tuple[str, str, int], ...] = ()  # pairs of clients that hold the same windows, and how many
    refusals: dict[str, str] = field(default_factory=dict)  # method → why it would refuse
    remarks: tuple[str, ...] = ()  # on what is not in the federation at all

    @property
    def warnings(self) -> list[str]:
        pairs = [f"'{a}' and '{b}' hold {n:,} windows that are the same, value for value" for a, b, n in self.twins]
        return [*self.remarks, *pairs] + [
            f"'{client.id}' {text}" for client in self.clients for text in client.warnings
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": self.federation.name,
            "description": self.federation.description,
            "classes": list(self.federation.task.classes),
            "kind": self.federation.task.kind,
            "clients": {
                c.id: {
                    "shape": list(c.shape),
                    "windows": c.windows,
                    "classes": c.classes,
                    "missing": c.missing,
                    "constant": list(c.constant),
                    "rate": c.rate,
                    "jitter": c.jitter,
                    "longest_gap": c.longest_gap,
                    "leakage": {"shared": c.shared, "duplicates": c.duplicates},
                    "untrained": list(c.untrained),
                    "held_out": c.newcomer,
                    "warnings": c.warnings,
                }
                for c in self.clients
            },
            "refused_by": self.refusals,
            "warnings": self.warnings,
        }


def examine(name: str, missing: Missing = "refuse", **options: Any) -> Report:
    """Read a dataset as a run would, and look at all of it."""
    federation, recordings, remarks = _as_measured(name, missing, **options)
    return replace(look_at(federation, recordings), remarks=remarks)


def examine_several(
    tables: Mapping[str, Mapping[str, Any]],
    classes: Classes = "common",
    rename: Mapping[str, Mapping[str, str]] | None = None,
) -> Report:
    """Read several datasets, label → name and options, as a run would that merges them, and look at all of it."""
    parts = {label: _as_measured(**table) for label, table in tables.items()}
    federation, said = merged([part for part, _, _ in parts.values()], classes, rename, list(parts))
    recordings = [replace(r, client=f"{label}/{r.client}") for label, (_, found, _) in parts.items() for r in found]
    remarks = [f"{label}: {text}" for label, (_, _, texts) in parts.items() for text in texts]
    return replace(look_at(federation, recordings), remarks=(*remarks, *said))


def _as_measured(
    name: str, missing: Missing = "refuse", projection: str | None = None, **options: Any
) -> tuple[Federation, Sequence[Recording], tuple[str, ...]]:
    """The federation with values as they were measured (not projected), its recordings, remarks on what is left out."""
    dataset = find_dataset(name)
    parsed = dataset.parse(options)
    if "normalise" in parsed:  # what two clients have in common can be seen in values that are not normalised
        parsed["normalise"] = "none"
    federation, recordings = dataset.build(parsed, missing), _recordings(dataset, parsed)
    return federation, recordings, _remarks(federation, recordings, parsed)


def look_at(federation: Federation, recordings: Sequence[Recording] = ()) -> Report:
    """What there is to know of a federation, and of the recordings it was cut from, if they are given."""
    names = federation.task.classes
    by_client: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_client.setdefault(recording.client, []).append(recording)
    digests = {client.id: _digests(client) for client in federation.everyone}
    reports = tuple(
        _client(client, names, by_client.get(client.id, []), digests[client.id], newcomer)
        for group, newcomer in ((federation.clients, False), (federation.newcomers, True))
        for client in group
    )
    return Report(federation, reports, _twins(digests))


def _remarks(federation: Federation, recordings: Sequence[Recording], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Clients no window could be cut from, and files of a folder of one's own that nobody reads."""
    here = {client.id for client in federation.everyone}
    absent: dict[str, list[Recording]] = {}
    if options.get("clients") is None and options.get("partition") is None:
        for recording in recordings:
            if recording.client not in here:
                absent.setdefault(recording.client, []).append(recording)
    said = [f"'{client}' is left out: no window to train on; {_why(mine)}" for client, mine in absent.items()]
    said += [f"classes that differ in case only: {', '.join(names)}" for names in _alike(federation.task.classes)]
    root = Path(str(options.get("root")))
    if (root / DESCRIPTION).is_file():
        known = (*ENDINGS, *ARCHIVES, DESCRIPTION)
        files = [p for p in sorted(root.rglob("*")) if p.is_file() and not p.name.startswith(".")]
        unread = [str(p.relative_to(root)) for p in files if not p.name.lower().endswith(known)]
        empty = [p.name for p in sorted(root.iterdir()) if p.is_dir() and not any(p.rglob("*"))]
        said += [f"not read: {', '.join(unread[:5])}{', …' if len(unread) > 5 else ''}"] if unread else []
        said += [f"empty folders: {', '.join(empty)}"] if empty else []
    return tuple(said)


def _why(recordings: Sequence[Recording]) -> str:
    """What is the matter with recordings that gave no window."""
    channels = recordings[0].channels
    empty = [name for i, name in enumerate(channels) if not any(np.isfinite(r.signal[:, i]).any() for r in recordings)]
    if empty:
        return f"channels that hold nothing: {', '.join(empty)}"
    if not any((r.labels >= 0).any() for r in recordings):
        return "no row has a label"
    return f"its longest recording lasts {max(len(r.signal) / r.rate for r in recordings):.3g} s"


def _alike(names: Sequence[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.casefold(), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _recordings(dataset: Dataset, options: dict[str, Any]) -> Sequence[Recording]:
    if not isinstance(dataset, Signals):
        return ()
    files = dataset.files(options)
    content = dataset.content(files)
    records, _ = dataset.reading(files, content, options)
    if any("signal" not in record for record in records):
        return ()
    return dataset.recordings(files, content, options)


def _client(
    client: ClientData,
    names: Sequence[str],
    recordings: Sequence[Recording],
    digests: dict[str, set[bytes]],
    newcomer: bool,
) -> ClientReport:
    labels = np.concatenate([client.split(s).y.numpy() for s in SPLITS])
    of_values = labels.dtype.kind == "f"  # of a regression: samples, under the name of the quantity
    counts = np.array([len(labels)]) if of_values else np.bincount(labels, minlength=len(names))
    jitter, gap = _evenness(recordings)
    apart = [("val", "train"), ("test", "train"), ("test", "val")]
    return ClientReport(
        id=client.id,
        shape=client.input_shape,
        windows={name: len(client.split(name)) for name in SPLITS},
        classes={name: int(n) for name, n in zip(names, counts, strict=True) if n},
        missing=sum(int((~np.isfinite(r.signal)).sum()) for r in recordings),
        constant=_constant(client),
        rate=recordings[0].rate if recordings else None,
        jitter=jitter,
        longest_gap=gap,
        shared=sum(shared(client.split(a).origin, client.split(b).origin) for a, b in apart),
        duplicates=len(digests["test"] & digests["train"]),
        untrained=tuple(names[i] for i in sorted({*client.test.y.tolist()} - {*client.train.y.tolist()})),
        newcomer=newcomer,
    )


def _constant(client: ClientData) -> tuple[str, ...]:
    x = client.train.x
    if not len(x) or x.dim() != 3:
        return ()
    still = (x.amax((0, 2)) == x.amin((0, 2))).numpy()
    channels = client.traits.get("channels") or [str(i) for i in range(x.shape[1])]
    return tuple(str(channels[i]) for i in np.flatnonzero(still))


def _evenness(recordings: Iterable[Recording]) -> tuple[float | None, float | None]:
    """Deviation of the sampling interval as a share of the median one, and the longest gap in seconds."""
    steps = [np.diff(np.sort(r.times)) for r in recordings if r.times is not None and len(r.times) > 2]
    if not steps:
        return None, None
    every = np.concatenate(steps)
    middle = float(np.median(every))
    if middle <= 0:
        return None, float(every.max())
    usual = every[every < 2.5 * middle]  # longer ones are gaps, and told as such
    return float(np.sqrt(np.mean((usual - middle) ** 2))) / middle, float(every.max())


def _digests(client: ClientData) -> dict[str, set[bytes]]:
    return {name: _rows(client.split(name)) for name in SPLITS}


def _rows(samples: Samples) -> set[bytes]:
    """A fingerprint of every window that changes at all: windows at rest can be alike without being copies."""
    x = samples.x.flatten(1).numpy()
    if not len(x):
        return set()
    moving = x[(x != x[:, :1]).any(1)]
    weights = np.cos(np.arange(1, x.shape[1] + 1) * 12.9898)  # two windows with equal sums are equal, to all purposes
    sums = np.stack([moving.astype(np.float64) @ weights, moving.sum(1, dtype=np.float64)], axis=1)
    return {row.tobytes() for row in sums}


def _twins(digests: dict[str, dict[str, set[bytes]]]) -> tuple[tuple[str, str, int], ...]:
    """Pairs of clients with windows in common."""
    holders: dict[bytes, list[str]] = {}
    for client, parts in digests.items():
        for row in set().union(*parts.values()):
            holders.setdefault(row, []).append(client)
    pairs = Counter((group[0], other) for group in holders.values() for other in group[1:])
    return tuple((a, b, n) for (a, b), n in pairs.most_common())
