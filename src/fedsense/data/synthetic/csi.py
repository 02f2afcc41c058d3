"""A synthetic federation of rooms where Wi-Fi counts people: amplitude of the channel, packets by subcarriers.

The channel between two devices is a sum of paths, each of length d(t) and amplitude a(t), at subcarrier frequency f:

    H(t, f) = Σ a(t) exp(-2πi f d(t) / c)

Paths are the line of sight, one reflection off each wall, floor and ceiling (mirror images of the transmitter),
furniture, and one off each person, who walks about or stands and breathes. People near the line of sight shadow it.
Amplitudes are relative to the line of sight over one metre: 1/d for a reflection, √(σ/4π)/(d₁d₂) for a scatterer of
cross-section σ. The receiver adds noise, its own gain and frequency response, steps of its gain control, and outliers.

What makes clients differ: the room (size, walls, furniture, where the devices stand) and the receiver (channel, gain,
response, noise). A take is one session with a fixed number of people; between takes furniture moves a little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense.data.synthetic.shares import check_samples, split_counts
from fedsense.errors import UserError
from fedsense.federation import SPLITS, ClientData, Federation, Samples, Task
from fedsense.work import stream

Array = NDArray[Any]

LIGHT = 299_792_458.0  # m/s
CHANNELS = {155: 5.775e9, 42: 5.21e9, 58: 5.29e9, 106: 5.53e9}  # 802.11ac, 80 MHz wide: number and centre in Hz
SPACING = 312_500.0  # Hz between neighbouring subcarriers
FIRST, LAST = 2, 122  # used subcarriers on either side of the centre: 242 in all
FURNITURE = 8
TAKE = 4  # windows cut from one take, at most
BLOCK = 250  # packets computed at once, to bound memory
MARGIN = 0.3  # metres people keep from walls
STANDING = 0.1  # share of people who stand


@dataclass(frozen=True)
class Room:
    """A client's surroundings and receiver; lengths in metres."""

    size: Array  # [3]
    transmitter: Array  # [3]
    receiver: Array  # [3]
    walls: Array  # [3, 2], reflection coefficients: of either wall along x and y, of floor and ceiling
    furniture: Array  # [FURNITURE, 3]
    sections: Array  # [FURNITURE], cross-sections in m²
    channel: int
    gain: float
    response: Array  # [3], ripple of the receiver's filter over the band: cosines of one to three half turns
    noise: float  # deviation of either part of H, of the line of sight over one metre

    @property
    def name(self) -> str:
        return f"{self.size[0]:.1f} x {self.size[1]:.1f} m"


@dataclass(frozen=True)
class Take:
    """One session: how many people, which split (number in SPLITS) and how many windows are cut from it."""

    count: int
    split: int
    windows: int


@dataclass(frozen=True)
class Options:
    samples: int
    people: int
    classes_per_client: int | None
    window: int
    subcarriers: int
    rate: float
    feature_skew: float
    val: float
    test: float
    seed: int

    @property
    def counts(self) -> int:
        """How many different counts a room sees."""
        return self.classes_per_client or self.people + 1

    def rng(self, *key: object) -> np.random.Generator:
        return stream(self.seed, "synthetic-csi", *key)


def synthetic_csi(
    clients: int = 6,
    samples: int = 40,
    people: int = 20,
    classes_per_client: int | None = None,
    window: int = 1000,
    subcarriers: int = 242,
    rate: float = 200.0,
    feature_skew: float = 1.0,
    val: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
) -> Federation:
    """A synthetic federation of rooms, ``x`` ``[n, 1, window, subcarriers]`` (packets by subcarriers).

    A room has ``samples`` windows (train, val and test together) of 0 to ``people`` people, or of
    ``classes_per_client`` successive counts drawn for each room; train holds each of its counts. ``rate`` is in packets
    a second. ``subcarriers`` are spread over the 80 MHz of a channel; 242 are all that 802.11ac uses. ``feature_skew``
    scales how much rooms and receivers differ: at 0 all are alike. Amplitudes are shifted and scaled by one mean and
    one deviation of the client's training windows. A client depends on its number, the seed and the options, not on
    how many clients there are.
    """
    options = Options(samples, people, classes_per_client, window, subcarriers, rate, feature_skew, val, test, seed)
    _check(clients, options)
    return Federation(
        name="synthetic-csi",
        task=Task(tuple(str(count) for count in range(people + 1)), kind="counting"),
        clients=tuple(_client_data(number, options) for number in range(clients)),
        synthetic=True,
        description=(
            f"Synthetic: computed Wi-Fi channel amplitudes, windows of {window} packets at {rate:g} a second and "
            f"{subcarriers} subcarriers, {clients} made-up rooms with 0 to {people} people; no measurement of anyone."
        ),
    )


def _check(clients: int, options: Options) -> None:
    kept, every = options.classes_per_client, options.people + 1
    shares_fit = options.val >= 0 and options.test >= 0 and options.val + options.test < 1
    for wrong, message in (
        (clients < 1, f"clients = {clients}; give at least 1"),
        (not 1 <= options.people <= 100, f"people = {options.people}; give 1 to 100"),
        (kept is not None and not 1 <= kept <= every,
         f"classes_per_client = {kept}; give 1 to {every}, or leave it out"),
        (options.window < 8, f"window = {options.window}; give at least 8 packets"),
        (not 1 <= options.subcarriers <= 242, f"subcarriers = {options.subcarriers}; give 1 to 242"),
        (not 20 <= options.rate <= 5000, f"rate = {options.rate}; give 20 to 5000 packets a second"),
        (not 0 <= options.feature_skew <= 5, f"feature_skew = {options.feature_skew}; give 0 (none) to 5"),
        (not shares_fit,
         f"val = {options.val} and test = {options.test}; give shares that leave something to train on"),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"synthetic-csi: {message}")
    remedy = " counts, or set people or classes_per_client lower"
    check_samples("synthetic-csi", options.samples, options.counts, options.val, options.test, remedy)


def draw_takes(number: int, options: Options) -> list[Take]:
    """Which takes a room records; no take in two splits."""
    rng = options.rng(number, "takes")
    lowest = int(rng.integers(options.people + 2 - options.counts))
    counts = split_counts(options.samples, options.counts, options.val, options.test, rng)
    return [
        Take(lowest + place, split, min(TAKE, windows - start))
        for split, row in enumerate(counts.tolist())
        for place, windows in enumerate(row)
        for start in range(0, windows, TAKE)
    ]


def draw_room(number: int, options: Options) -> Room:
    """Room ``number`` of a seed; at skew 0 the average room."""
    skew = options.feature_skew
    rng, average = options.rng(number, "room"), options.rng("average room")
    size = np.array([8.0, 6.0, 3.0]) * np.exp(skew * np.array([0.25, 0.25, 0.08]) * rng.standard_normal(3))
    size = np.clip(size, [3.5, 3.0, 2.4], [25.0, 20.0, 5.0])
    height, least, most = 1.0 / size[2], 0.06, 0.94  # places are given in shares of the room
    places = np.array([[0.12, 0.5, height], [0.88, 0.5, height]])
    ends = places + skew * rng.uniform(-1, 1, (2, 3)) * [0.08, 0.4, 0.1]
    usual, own = average.random((FURNITURE, 3)), rng.random((FURNITURE, 3))
    differs, which = rng.random(2)
    mix = min(skew, 1.0)
    return Room(
        size=size,
        transmitter=size * np.clip(ends[0], least, most),
        receiver=size * np.clip(ends[1], least, most),
        walls=np.clip(0.45 + 0.15 * skew * rng.uniform(-1, 1, (3, 2)), 0.1, 0.9),
        furniture=size * np.clip((1 - mix) * usual + mix * own, least, most),
        sections=np.exp(0.5 * skew * rng.standard_normal(FURNITURE)),
        channel=[*CHANNELS][int(which * len(CHANNELS)) if differs < skew else 0],
        gain=float(np.exp(0.3 * skew * rng.standard_normal())),
        response=0.08 * skew * rng.standard_normal(3),
        noise=0.006 * float(np.exp(0.4 * skew * rng.standard_normal())),
    )


def tones(subcarriers: int) -> tuple[Array, Array]:
    """Subcarriers in Hz from the centre, as ``starts[:, None] + steps``: the lower half in blocks, then the upper.

    exp(-2πi (start + step) d/c) is a product, so a sum over paths at all of them is a product of two small matrices.
    """
    half = (subcarriers + 1) // 2
    apart = (LAST - FIRST) / max(half - 1, 1)
    block = int(np.ceil(np.sqrt(half)))
    begins = apart * block * np.arange(-(-half // block))
    starts = np.concatenate([-LAST + begins, FIRST + begins])
    return starts * SPACING, apart * np.arange(block) * SPACING


def paths_to_channel(length: Array, amplitude: Array, centre: float, subcarriers: int) -> Array:
    """H ``[time, subcarriers]`` of paths: lengths in m and amplitudes, both ``[time, paths]``."""
    starts, steps = tones(subcarriers)
    turns = -2 * np.pi * length / LIGHT
    carrier = np.mod(turns * centre, 2 * np.pi).astype(np.float32)  # thousands of radians: too many for 32 bits
    turns = turns.astype(np.float32)
    coarse = carrier[:, None] + turns[:, None] * starts.astype(np.float32)[:, None]
    fine = turns[:, :, None] * steps.astype(np.float32)
    left = amplitude.astype(np.float32)[:, None] * _circle(coarse)  # [time, blocks, paths]
    blocks = (left @ _circle(fine)).reshape(len(length), 2, -1)
    half = (subcarriers + 1) // 2
    return np.asarray(blocks[:, :, :half].reshape(len(length), -1)[:, :subcarriers])


def _circle(angle: Array) -> Array:
    """exp(i angle), ten times as fast as NumPy's exponential of complex numbers."""
    points = np.empty(angle.shape, dtype=np.complex64)
    points.real, points.imag = np.cos(angle), np.sin(angle)
    return points


def _static_paths(room: Room, rng: np.random.Generator) -> tuple[Array, Array]:
    """Lengths and amplitudes of the paths that do not move: six mirror images, then furniture, moved a little."""
    mirrored = np.linalg.norm(_images(room) - room.receiver, axis=-1).ravel()
    furniture = room.furniture + 0.01 * rng.standard_normal(room.furniture.shape)
    length, amplitude = _scattered(room.transmitter, room.receiver, furniture, room.sections)
    return np.concatenate([mirrored, length]), np.concatenate([room.walls.ravel() / mirrored, amplitude])


def _images(room: Room) -> Array:
    """The transmitter mirrored in each wall, floor and ceiling, ``[3, 2, 3]``."""
    images = np.tile(room.transmitter, (3, 2, 1))
    for axis in range(3):
        images[axis, :, axis] = [-room.transmitter[axis], 2 * room.size[axis] - room.transmitter[axis]]
    return images


def _scattered(source: Array, receiver: Array, place: Array, section: Array) -> tuple[Array, Array]:
    """Length d₁ + d₂ and amplitude √(σ/4π)/(d₁d₂) by way of places ``[..., 3]``."""
    there = np.maximum(np.linalg.norm(place - source, axis=-1), 0.8)
    back = np.maximum(np.linalg.norm(place - receiver, axis=-1), 0.8)
    return there + back, np.sqrt(section / (4 * np.pi)) / (there * back)


def _human_paths(room: Room, place: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Paths ``[time, people]`` off people, then those by way of either side wall as well."""
    section = rng.uniform(0.4, 0.9, (place.shape[1],))
    paths = [_scattered(room.transmitter, room.receiver, place, section)]
    for image, wall in zip(_images(room)[1], room.walls[1], strict=True):
        length, amplitude = _scattered(image, room.receiver, place, section)
        paths.append((length, wall * amplitude))
    return np.concatenate([path[0] for path in paths], axis=1), np.concatenate([path[1] for path in paths], axis=1)


def walk(room: Room, people: int, steps: int, rate: float, rng: np.random.Generator) -> Array:
    """Places of so many people, ``[steps, people, 3]``: they turn slowly, change pace, and turn back at walls.

    Some stand and sway. The chest moves 5 mm with the breath.
    """
    time = np.arange(steps)[:, None] / rate
    turning = np.cumsum(rng.standard_normal((steps, people), dtype=np.float32), axis=0) * np.sqrt(0.4 / rate)
    heading = rng.uniform(0, 2 * np.pi, people) + turning
    usual = np.where(rng.random(people) < STANDING, 0.02, rng.uniform(0.5, 1.4, people))  # m/s
    pace = 1 + 0.5 * np.sin(2 * np.pi * rng.uniform(0.05, 0.2, people) * time + rng.uniform(0, 2 * np.pi, people))
    along = np.cumsum(usual * pace * np.exp(1j * heading), axis=0) / rate
    free = room.size[:2] - 2 * MARGIN
    straight = rng.random((people, 2)) * free + np.stack([along.real, along.imag], axis=-1)
    place = np.empty((steps, people, 3))
    place[..., :2] = MARGIN + free - np.abs(np.mod(straight, 2 * free) - free)  # folded at the walls
    place[..., 2] = rng.uniform(0.9, 1.3, people)
    breath = np.sin(2 * np.pi * rng.uniform(0.2, 0.35, people) * time + rng.uniform(0, 2 * np.pi, people))
    place[..., :2] += 0.005 * breath[..., None] * np.sqrt(0.5)
    return place


def record(room: Room, count: int, steps: int, options: Options, rng: np.random.Generator) -> Array:
    """Received amplitudes of one take, ``[steps, subcarriers]``."""
    centre = CHANNELS[room.channel]
    direct = np.linalg.norm(room.receiver - room.transmitter, axis=-1, keepdims=True)[None]
    lengths, amplitudes = _static_paths(room, rng)
    still = paths_to_channel(lengths[None], amplitudes[None], centre, options.subcarriers)
    sight = paths_to_channel(direct, 1 / direct, centre, options.subcarriers)
    length, amplitude = _human_paths(room, walk(room, count, steps, options.rate, rng), rng)
    longer = length[:, :count] - direct  # the way past each person, against the line of sight
    shadow = np.prod(1 - 0.7 * np.exp(-longer / 0.1), axis=1, keepdims=True).astype(np.float32)
    blocks = (slice(first, first + BLOCK) for first in range(0, steps, BLOCK))
    moving = np.concatenate([paths_to_channel(length[b], amplitude[b], centre, options.subcarriers) for b in blocks])
    return _received(still + shadow * sight + moving, room, options.rate, rng)


def _received(channel: Array, room: Room, rate: float, rng: np.random.Generator) -> Array:
    """|H| as the receiver reports it: noise, response, gain, steps of the gain control, outliers."""
    steps, subcarriers = channel.shape
    noise = rng.standard_normal((steps, 2 * subcarriers), dtype=np.float32) * np.float32(room.noise)
    amplitude = np.abs(channel + noise.view(np.complex64))
    band = np.pi * np.linspace(0, 1, subcarriers)
    response = room.gain * np.exp(np.cos(band[:, None] * [1, 2, 3]) @ room.response)
    change = (rng.random(steps) < 0.3 / rate) * rng.choice([-1, 1], steps)
    decibels = 0.75 * np.clip(np.cumsum(change) + rng.integers(-1, 2), -2, 2)
    outlier = np.where(rng.random(steps) < 0.003, rng.uniform(0.3, 3.0, steps), 1.0)
    amplitude *= (10 ** (decibels / 20) * outlier)[:, None].astype(np.float32)
    return np.asarray(amplitude * response.astype(np.float32))


def _client_data(number: int, options: Options) -> ClientData:
    room, takes = draw_room(number, options), draw_takes(number, options)
    parts = [_recorded(number, room, takes, split, options) for split in range(len(SPLITS))]
    deviation, mean = torch.std_mean(parts[0].x, correction=0)
    for part in parts:
        part.x.sub_(mean).div_(deviation.clamp(min=1e-9))
    seen = [take.count for take in takes]
    traits = {"room": room.name, "channel": room.channel, "counts": f"{min(seen)}-{max(seen)}"}
    return ClientData(f"room{number:03d}", parts[0], parts[1], parts[2], traits)


def _recorded(number: int, room: Room, takes: list[Take], split: int, options: Options) -> Samples:
    """The windows of a split, before normalisation: those of its takes, one after the other."""
    mine = [(place, take) for place, take in enumerate(takes) if take.split == split]
    total, window = sum(take.windows for _, take in mine), options.window
    x = np.empty((total, 1, window, options.subcarriers), dtype=np.float32)
    y, origin = np.empty(total, dtype=np.int64), np.empty((total, 3), dtype=np.int64)
    first = 0
    for place, take in mine:
        rows = slice(first, first + take.windows)
        signal = record(room, take.count, take.windows * window, options, options.rng(number, "take", place))
        x[rows] = signal.reshape(take.windows, 1, window, -1)
        begins = window * np.arange(take.windows)
        y[rows], origin[rows] = take.count, np.stack([np.full_like(begins, place), begins, begins + window], axis=1)
        first += take.windows
    return Samples(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(origin))
