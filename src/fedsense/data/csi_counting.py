"""Counting people from Wi-Fi: your own channel measurements, prepared as FedAPA does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsense.data.arrays import NUMBERS, read_npy, read_npz
from fedsense.data.card import Card
from fedsense.data.dataset import Read
from fedsense.data.files import File, Files
from fedsense.data.matlab import read_mat
from fedsense.data.splits import Split
from fedsense.data.tables import read_table, stacked
from fedsense.data.windows import UNLABELLED, Collected
from fedsense.errors import UserError

Array = NDArray[Any]
# subcarriers 802.11ac uses on either side of the centre, first and last, of all there are: 56, 114, 242
USED = {64: (1, 28), 128: (2, 58), 256: (2, 122)}
ODD = 10  # times the usual amplitude, or a share of it, that a subcarrier in use does not have


@dataclass(frozen=True)
class Stream:
    """Amplitudes ``[packets, subcarriers]`` of one file, and how many people were there."""

    file: File
    people: int
    amplitude: Array


def read(
    files: Files,
    window: int = 1000,
    overlap: float = 0.0,
    null: str | list[int] = "auto",
    order: Literal["centred", "fft"] = "centred",
    people: int = 20,
) -> Iterator[Collected]:
    """One client an environment: windows ``[n, 1, window, subcarriers]`` of the amplitude.

    ``null`` subcarriers are left out: "auto" those that 802.11ac does not use, where there are 64, 128 or 256, and
    those that never change; "none"; or a list of numbers from 0. ``order`` says how they are numbered: from the lowest
    frequency ("centred"), or from the centre upwards and then from the lowest ("fft").
    """
    if window < 1 or not 0 <= overlap < 1:
        raise UserError(f"window = {window} and overlap = {overlap:g}; give 1 packet or more, and a share from 0 to 1")
    if isinstance(null, str) and null not in ("auto", "none"):
        raise UserError(f'null = \'{null}\'; give "auto", "none" or a list of subcarriers', about="null")
    found = [_stream(file, people, order) for file in files.files]
    kept = {}
    for width in _widths(found):
        mine = [stream for stream in found if stream.amplitude.shape[1] == width]
        kept[width] = _kept(mine, width, null, order)
    folders = {stream.file.name.rpartition("/")[0] for stream in found}
    unique = len({folder.rpartition("/")[2] for folder in folders}) == len(folders)
    for folder in sorted(folders):
        mine = [stream for stream in found if stream.file.name.rpartition("/")[0] == folder]
        environment = folder.rpartition("/")[2] if unique else folder.replace("/", "-")
        width = mine[0].amplitude.shape[1]
        for stream in mine:
            if stream.amplitude.shape[1] != width:
                raise stream.file.wrong(f"has {stream.amplitude.shape[1]} subcarriers, and {mine[0].file.base} {width}")
        yield _windows(environment, mine, kept[width], window, max(1, round(window * (1 - overlap))))


def _widths(streams: Sequence[Stream]) -> list[int]:
    return sorted({stream.amplitude.shape[1] for stream in streams})


def _kept(streams: Sequence[Stream], width: int, null: str | list[int], order: str) -> Array:
    """Numbers of the subcarriers that are no null subcarriers."""
    keep = np.ones(width, bool)
    if isinstance(null, list):
        if wrong := [number for number in null if not 0 <= number < width]:
            raise UserError(f"null names subcarrier {wrong[0]}, and there are 0 to {width - 1}", about="null")
        keep[null] = False
    elif null == "auto":
        if width in USED:
            first, last = USED[width]
            distance = np.abs(np.arange(width) - width // 2)
            keep &= (first <= distance) & (distance <= last)
            _refuse_other_order(streams, ~keep, order)
        lowest = np.min([stream.amplitude.min(0) for stream in streams], axis=0)
        keep &= np.max([stream.amplitude.max(0) for stream in streams], axis=0) > lowest
    if not keep.any():
        raise UserError(f"no subcarrier of {streams[0].file.place} is left; give null another value", about="null")
    return np.flatnonzero(keep)


def _refuse_other_order(streams: Sequence[Stream], null: Array, order: str) -> None:
    """Null subcarriers are nearly zero or far too large; they tell where they stand."""
    other = {"centred": "fft", "fft": "centred"}[order]
    elsewhere = np.fft.ifftshift(null)
    for stream in streams:
        usual = np.median(stream.amplitude, axis=0)
        odd = (usual < np.median(usual) / ODD) | (usual > np.median(usual) * ODD)
        if odd[elsewhere & ~null].mean() > 0.5 > odd[null & ~elsewhere].mean():
            raise stream.file.wrong(
                f'the subcarriers that carry nothing stand where order = "{other}" has them; say order = "{other}"'
            )


def _windows(environment: str, streams: Sequence[Stream], kept: Array, window: int, step: int) -> Collected:
    cut, labels, origins = [np.zeros((0, 1, window, len(kept)), np.float32)], [], []
    for number, stream in enumerate(streams):
        starts = np.arange(0, len(stream.amplitude) - window + 1, step)
        if len(starts):
            values = stream.amplitude[:, kept]
            cut.append(np.stack([values[start : start + window] for start in starts])[:, None])
        labels.append(np.full(len(starts), stream.people))
        origins.append(np.stack([np.full_like(starts, number), starts, starts + window], axis=1))
    y = np.concatenate(labels)
    traits = {"environment": environment, "subcarriers": len(kept)}
    return Collected(environment, np.concatenate(cut), y, np.concatenate(origins), np.full(len(y), UNLABELLED), traits)


def _stream(file: File, people: int, order: str) -> Stream:
    count = int(re.match(r"\d+", file.base)[0])  # type: ignore[index]  # the patterns want a digit first
    if count > people:
        raise file.wrong(f"counts {count} people, and people = {people}; say people = {count}, or name it otherwise")
    values = _values(file)
    if values.ndim != 2 or not values.size or values.dtype.kind not in NUMBERS:
        raise file.wrong(
            f"holds {values.dtype} of shape {list(values.shape)}, expected numbers [packets, subcarriers]; "
            "save one antenna pair a file"
        )
    amplitude = np.ascontiguousarray(np.abs(values), np.float32)
    if not np.isfinite(amplitude).all():
        packet, subcarrier = np.argwhere(~np.isfinite(amplitude))[0]
        raise file.wrong(f"packet {packet}, subcarrier {subcarrier} is not finite; leave such packets out")
    return Stream(file, count, np.fft.fftshift(amplitude, axes=1) if order == "fft" else amplitude)


def _values(file: File) -> Array:
    ending = file.base.lower().rpartition(".")[2]
    if ending == "npy":
        return read_npy(file)
    if ending == "csv":
        content = file.read()
        columns = [str(number) for number in range(content.split(b"\n", 1)[0].count(b",") + 1)]
        return stacked(read_table(file, dict.fromkeys(columns, float), header=False, text=content), columns)
    arrays = read_npz(file) if ending == "npz" else read_mat(file)
    if "csi" not in arrays and len(arrays) != 1:
        raise file.wrong(f"holds {', '.join(arrays) or 'no array'}; call the measurements 'csi'")
    return np.asarray(arrays["csi"] if "csi" in arrays else next(iter(arrays.values())))


ENDINGS = ("npy", "npz", "mat", "csv")

DATASET = Read(
    card=Card(
        name="csi-counting",
        title="CSI counting",
        what="amplitude of Wi-Fi channel measurements, packets by subcarriers, and how many people are there, 0 to 20",
        who="in the paper six environments with up to 20 people; here yours",
        licence="that of your recordings",
        citation="FedAPA (Guo et al.), for the preparation",
        address="none: the paper's recordings are not public",
        layout="ENVIRONMENT/COUNT*.npy (or .npz, .mat, .csv), such as living-room/03-people-take1.npy: amplitude or "
        "complex values [packets, subcarriers] of one antenna pair",
        sizes="yours",
        client="an environment: the folder a file lies in",
        paper="FedAPA",
        notes="The number a name begins with is the count, and files of one count are in order of their names. Complex "
        "values become magnitudes. Null subcarriers are left out: of 256, of 80 MHz of 802.11ac, 242 stay. Subcarriers "
        'are taken to be numbered from the lowest frequency; order = "fft" is for numbers that begin at the centre, as '
        "Nexmon writes them. Windows of 1,000 packets without overlap have shape (1, 1000, 242); packets after the "
        "last whole window are left out. Of each count the last fifth is tested on. Where a .npz or .mat "
        "holds several arrays, 'csi' is taken. The paper "
        "says nothing of normalisation: by default one mean and one deviation a client.",
        by_hand="record it yourself, for example with the Nexmon CSI extractor; synthetic-csi is a made-up stand-in",
    ),
    read=read,
    wanted=tuple(f"*/[0-9]*.{ending}" for ending in ENDINGS),
    classes=lambda people: tuple(str(count) for count in range(people + 1)),
    kind="counting",
    split=Split("chronological", test=0.2, val=0.1),
    normalise="channel",
)
