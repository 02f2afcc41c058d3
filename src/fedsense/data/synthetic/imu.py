"""A synthetic federation of phones and watches worn by people: eight activities, accelerometer and gyroscope.

A bout (a recording of several seconds) is a sum of harmonics of the stride, gravity, sway and tremor, written as
coefficients ``[6, K]`` in the body's frame, turned into the sensor's frame by how the device is worn, and played over
a basis ``[K, time]`` at the device's own rate; then come the device's noise and lost samples, and resampling to the
common rate. Units before normalisation: g and rad/s. Body axes: forward, left, up.

What makes clients differ: people (cadence, vigour, asymmetry, tremor, and a style: how each one does each activity),
devices (rate, gain, bias, noise, lost samples) and placements (mounting, posture, swing of arm or leg).

Each sensor (three axes together) is shifted and scaled by one mean and one deviation of the client's training windows,
so the direction of gravity stays visible.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import resample_poly
from scipy.spatial.transform import Rotation

from fedsense import work
from fedsense.data.cache import code_of, key_of
from fedsense.data.synthetic import bodies
from fedsense.data.synthetic.bodies import ACTIVITIES, DEVICES, GAITS, PLACEMENTS, Device, Placement
from fedsense.errors import UserError
from fedsense.federation import SPLITS, ClientData, Federation, Samples, Task
from fedsense.work import stream

Array = NDArray[Any]

GRAVITY = 9.81
HARMONICS = 8  # of the stride, which is two steps
BOUT = 5  # windows cut from one bout, at most
MARGIN = 0.3  # seconds recorded at either end and cut off after resampling


@dataclass(frozen=True)
class Person:
    """What a person brings to every recording."""

    cadence: float  # of the average person's
    vigour: float
    asymmetry: float  # of left and right steps
    tremor: float  # g
    tremor_rate: float  # Hz
    style: Array  # [activities, 6, harmonics], complex factors: how this person does each activity
    pace: Array  # [activities], cadence of each activity beside the person's own
    posture: Array  # [activities, 3], rotation vectors in rad
    mounting: Array  # [3], rotation vector: how this person wears the device


@dataclass(frozen=True)
class Client:
    """Who wears what, where."""

    number: int
    person: Person
    device: Device
    placement: Placement

    @property
    def id(self) -> str:
        return _id(self.number, self.device, self.placement)


@dataclass(frozen=True)
class Plan:
    """The bouts of a client: activity, split (number in SPLITS) and how many windows are cut from each."""

    activity: Array
    split: Array
    windows: Array


@dataclass(frozen=True)
class Options:
    samples: int
    classes_per_client: int | None
    window: int
    rate: float
    feature_skew: float
    quantity_skew: float
    val: float
    test: float
    faulty: float
    seed: int

    def rng(self, *key: object) -> np.random.Generator:
        return stream(self.seed, "synthetic-imu", *key)


def synthetic_imu(
    clients: int = 24,
    samples: int = 60,
    classes_per_client: int | None = None,
    window: int = 128,
    rate: float = 50.0,
    feature_skew: float = 1.0,
    quantity_skew: float = 0.0,
    val: float = 0.1,
    test: float = 0.3,
    faulty: float = 0.0,
    seed: int = 0,
) -> Federation:
    """A synthetic federation, ``x`` ``[n, 6, window]`` (accelerometer, gyroscope), that needs no download.

    ``samples`` windows a client (train, val and test together; the mean, when ``quantity_skew``, the deviation of the
    logarithm of sizes, is above 0), of ``classes_per_client`` activities drawn for each client (all, if None).
    ``feature_skew`` scales how much people, devices and placements differ: at 0 all clients are alike. ``faulty`` is
    the share of clients whose device is noisy and loses many samples. A client depends on its number, the seed and the
    options, not on how many clients there are, and is made when its recordings are first asked for.
    """
    options = Options(samples, classes_per_client, window, rate, feature_skew, quantity_skew, val, test, faulty, seed)
    _check(clients, options)
    key = key_of(code_of(__file__, bodies.__file__, work.__file__), asdict(options))
    return Federation(
        name="synthetic-imu",
        task=Task(ACTIVITIES),
        clients=tuple(_client_data(number, options, key) for number in range(clients)),
        synthetic=True,
        description=(
            f"Synthetic: generated accelerometer and gyroscope windows of {window} samples at {rate:g} Hz, "
            f"{len(ACTIVITIES)} activities, {clients} made-up people; no measurement of anyone."
        ),
    )


def _check(clients: int, options: Options) -> None:
    kept = options.classes_per_client
    for wrong, message in (
        (clients < 1, f"clients = {clients}; give at least 1"),
        (options.samples < 2, f"samples = {options.samples}; give at least 2 windows a client"),
        (options.window < 8, f"window = {options.window}; give at least 8 samples"),
        (not 10 <= options.rate <= 200, f"rate = {options.rate}; give 10 to 200 Hz"),
        (kept is not None and not 1 <= kept <= len(ACTIVITIES),
         f"classes_per_client = {kept}; give 1 to {len(ACTIVITIES)}, or leave it out"),
        (min(options.feature_skew, options.quantity_skew) < 0, "a skew is below 0; give 0 (none) or more"),
        (not (options.val >= 0 and options.test >= 0 and options.val + options.test < 1),
         f"val = {options.val} and test = {options.test}; give shares that leave something to train on"),
        (not 0 <= options.faulty <= 1, f"faulty = {options.faulty}; give a share between 0 and 1"),
    ):  # fmt: skip
        if wrong:
            raise UserError(f"synthetic-imu: {message}")


def draw_client(number: int, options: Options) -> Client:
    """Client ``number`` of a seed; at skew 0 the average person with a phone at the waist."""
    person = draw_person(options.rng(number, "person"), options.feature_skew)
    return Client(number, person, *draw_device(number, options))


def draw_device(number: int, options: Options) -> tuple[Device, Placement]:
    """What client ``number`` wears, and where."""
    skew = options.feature_skew
    rng = options.rng(number, "client")
    differs, where, which = rng.random(3)
    placement = PLACEMENTS[int(where * len(PLACEMENTS)) if differs < skew else 0]
    device = DEVICES[placement.devices[int(which * len(placement.devices)) if differs < skew else 0]]
    gain, bias = 1 + 0.03 * skew * rng.standard_normal(6), 0.015 * skew * rng.standard_normal(6)
    device = replace(
        device,
        noise=device.noise * float(np.exp(0.15 * skew * rng.standard_normal())),
        gain=tuple(gain.tolist()),
        bias=tuple(bias.tolist()),
    )
    if rng.random() < options.faulty:
        device = replace(device, noise=device.noise * 8, lost=device.lost * 5 + 1, faulty=True)
    return device, placement


def draw_person(rng: np.random.Generator, skew: float) -> Person:
    """A person who is the average one at skew 0."""
    shape = (len(ACTIVITIES), 6, HARMONICS)
    common, own = rng.standard_normal((2, 1, *shape[1:])), rng.standard_normal((2, *shape))
    size, phase = 0.06 * common + 0.05 * own
    return Person(
        cadence=float(np.exp(0.03 * skew * rng.standard_normal())),
        vigour=float(np.exp(0.12 * skew * rng.standard_normal())),
        asymmetry=0.15 + 0.08 * min(skew, 1.0) * float(rng.uniform(-1, 1)),
        tremor=0.006 * float(np.exp(0.15 * skew * rng.standard_normal())),
        tremor_rate=9.0 + 1.0 * min(skew, 1.0) * float(rng.uniform(-1, 1)),
        style=np.exp(skew * (size + 2j * phase)),
        pace=np.exp(0.02 * skew * rng.standard_normal(len(ACTIVITIES))),
        posture=np.radians(4.0) * skew * rng.standard_normal((len(ACTIVITIES), 3)),
        mounting=np.radians(8.0) * skew * rng.standard_normal(3),
    )


def draw_counts(number: int, options: Options) -> tuple[Array, Array]:
    """The activities a client has, and how many windows of each are in each split, ``[SPLITS, activities]``."""
    rng = options.rng(number, "plan")
    every = len(ACTIVITIES)
    kept = np.sort(rng.permutation(every)[: options.classes_per_client or every])
    spread = options.quantity_skew
    size = options.samples * np.exp(spread * rng.standard_normal() - spread**2 / 2)
    size = max(round(size), 2 * len(kept))
    each = _shares(np.full(len(kept), size / len(kept)), rng)
    test = np.clip(_shares(each * options.test, rng), min(1, int(np.ceil(options.test))), each - 1)
    val = np.minimum(_shares(each * options.val, rng), each - test - 1)
    return kept, np.stack([each - test - val, val, test])


def draw_plan(number: int, options: Options) -> Plan:
    """Which bouts a client records: every activity it has in train, and in test; no bout in two splits."""
    kept, counts = draw_counts(number, options)
    bouts = [
        (activity, split, min(BOUT, count - start))
        for split, row in enumerate(counts.tolist())
        for activity, count in zip(kept.tolist(), row, strict=True)
        for start in range(0, count, BOUT)
    ]
    return Plan(*np.array(bouts).T)


def _shares(wanted: Array, rng: np.random.Generator) -> Array:
    """Whole numbers near ``wanted`` whose sums stay near the sums of ``wanted``."""
    edges = np.floor(np.concatenate([[0.0], np.cumsum(wanted)]) + rng.random() * (1 - 1e-9) + 1e-9)
    return np.diff(edges).astype(np.int64)


def record(
    client: Client, activity: Array, seconds: float, rate: float, rng: np.random.Generator, variation: float = 1.2
) -> Array:
    """One bout of each activity number, resampled: ``[bouts, 6, seconds * rate]``, in g and rad/s.

    ``variation`` scales how much the bouts of one client differ.
    """
    device, bouts = client.device, len(activity)
    length = int(np.ceil((seconds + 2 * MARGIN) * device.rate)) + 1
    pace = np.array([GAITS[name].stride for name in ACTIVITIES]) * client.person.pace * client.person.cadence
    stride = pace[activity] * np.exp(0.08 * variation * rng.standard_normal(bouts))
    gains, bias = np.array(device.gain), np.array(device.bias)
    coefficients = _turned(_coefficients(client, activity, stride, rng, variation), client, activity, rng, variation)
    coefficients *= gains[:, None]
    coefficients[:, :, 0] += bias
    basis = _basis(stride, client.person.tremor_rate, length, device.rate, rng, variation)
    signal = coefficients.astype(np.float32) @ basis
    noise = rng.standard_normal(signal.shape, dtype=np.float32) * np.float32(device.noise)
    noise[:, 3:] *= 2
    signal = _lose(signal + noise, device, rng)
    ratio = Fraction(rate / device.rate).limit_denominator(1000)
    even = signal if ratio == 1 else resample_poly(signal, ratio.numerator, ratio.denominator, axis=-1)
    start = round(MARGIN * rate)
    return np.asarray(even[:, :, start : start + round(seconds * rate)], dtype=np.float32)


def _basis(
    stride: Array, tremor_rate: float, length: int, rate: float, rng: np.random.Generator, variation: float
) -> Array:
    """What coefficients are played over, ``[bouts, 1 + 2 * HARMONICS + 4, length]``: gravity, stride, sway, tremor."""
    bouts = len(stride)
    time = np.arange(length) / rate
    start, turn, slow, swell, sway, shake = rng.uniform(0, 2 * np.pi, (6, bouts, 1))
    wander = 0.12 * variation * np.sin(2 * np.pi * 0.17 * time + slow)
    theta = 2 * np.pi * stride[:, None] * time + start + wander
    envelope = 1 + 0.12 * variation * np.sin(2 * np.pi * 0.21 * time + swell)
    drift = 2 * np.pi * rng.uniform(0.2, 0.5, (bouts, 1)) * time + sway
    tremble = 2 * np.pi * tremor_rate * time + shake + 1.5 * np.sin(2 * np.pi * 0.9 * time + turn)
    basis = np.empty((bouts, 1 + 2 * HARMONICS + 4, length), dtype=np.float32)
    basis[:, 0] = 1
    circle = np.exp(1j * theta).astype(np.complex64)
    power = circle * envelope.astype(np.float32)
    for h in range(HARMONICS):
        basis[:, 1 + h], basis[:, 1 + HARMONICS + h] = power.real, power.imag
        power = power * circle
    basis[:, -4], basis[:, -3] = np.cos(drift), np.sin(drift)
    basis[:, -2], basis[:, -1] = np.cos(tremble), np.sin(tremble)
    return basis


def _harmonics(client: Client) -> tuple[Array, Array]:
    """Complex amplitudes ``[activities, 3, HARMONICS]`` of acceleration (g) and of angle (rad), in the body's frame."""
    person, place = client.person, client.placement
    linear = np.zeros((len(ACTIVITIES), 3, HARMONICS), dtype=np.complex128)
    angle = np.zeros_like(linear)
    for number, name in enumerate(ACTIVITIES):
        gait = GAITS[name]
        fades = gait.impact ** (np.arange(HARMONICS) // 2)
        odd = np.arange(HARMONICS) % 2
        left_right, steps = (1 - odd) * fades, odd * fades
        limp = steps + person.asymmetry * left_right
        linear[number, 0] = gait.surge * limp * np.exp(-1j * gait.lag)
        linear[number, 1] = gait.roll * left_right * np.exp(0.5j * gait.lag)
        linear[number, 2] = gait.bounce * limp * np.exp(1j * gait.lag * np.arange(HARMONICS) / 4)
        swing = place.leg * gait.leg + place.arm * gait.arm
        angle[number, 0] = 0.3 * gait.twist * left_right
        angle[number, 1] = (swing * np.eye(HARMONICS)[0] + 0.2 * swing * np.eye(HARMONICS)[1]) * np.exp(0.5j)
        angle[number, 2] = gait.twist * left_right * np.exp(-0.5j * gait.lag)
    vigour = person.vigour
    return linear * person.style[:, :3] * vigour, angle * person.style[:, 3:] * np.sqrt(vigour)


def _coefficients(client: Client, activity: Array, stride: Array, rng: np.random.Generator, variation: float) -> Array:
    """Coefficients ``[bouts, 6, K]`` over :func:`_basis`, in the body's frame."""
    bouts, person = len(activity), client.person
    linear, angle = (part[activity] for part in _harmonics(client))
    vary = rng.standard_normal((2, bouts, 6, HARMONICS)) * variation
    own = np.exp(0.35 * variation * rng.standard_normal((bouts, 1, 1)) + 0.25 * vary[0] + 0.5j * vary[1])
    linear, angle = linear * own[:, :3], angle * own[:, 3:]
    omega = 2 * np.pi * stride[:, None, None] * np.arange(1, HARMONICS + 1)
    # a part that swings turns gravity into its own frame, and is flung about its joint
    linear[:, 0] += angle[:, 1] * (1 + client.placement.lever * omega[:, 0] ** 2 / GRAVITY)
    linear[:, 1] -= angle[:, 0]
    both = np.concatenate([linear, 1j * omega * angle], axis=1)
    rest = np.array([GAITS[name].sway for name in ACTIVITIES])[activity] * client.placement.restless
    units = np.array([1, 1, 1, 2, 2, 2])[:, None]
    coefficients = np.zeros((bouts, 6, 1 + 2 * HARMONICS + 4))
    coefficients[:, 2, 0] = 1
    coefficients[:, :, 1 : 1 + HARMONICS] = both.real
    coefficients[:, :, 1 + HARMONICS : 1 + 2 * HARMONICS] = -both.imag
    coefficients[:, :, -4:-2] = rest[:, None, None] * units * rng.standard_normal((bouts, 6, 2))
    coefficients[:, :, -2:] = person.tremor * units * rng.standard_normal((bouts, 6, 2))
    return coefficients


def _turned(coefficients: Array, client: Client, activity: Array, rng: np.random.Generator, variation: float) -> Array:
    """From the body's frame into the sensor's: posture, how the device is worn, and a slip from bout to bout."""
    person, place = client.person, client.placement
    posture = np.radians(np.stack([place.tilt, place.pitch, np.zeros(len(ACTIVITIES))], axis=1))[activity]
    slip = np.radians(5.0) * variation * rng.standard_normal((len(activity), 3))
    worn = Rotation.from_euler("xyz", place.mounting, degrees=True) * Rotation.from_rotvec(person.mounting)
    heading = np.radians(60.0) * variation * rng.standard_normal((len(activity), 1)) * [0, 0, 1]
    body = Rotation.from_rotvec(posture) * Rotation.from_rotvec(heading)
    held = Rotation.from_rotvec(person.posture[activity]) * body
    turn = (worn * Rotation.from_rotvec(slip) * held).as_matrix()
    return np.concatenate([turn @ coefficients[:, :3], turn @ coefficients[:, 3:]], axis=1)


def _lose(signal: Array, device: Device, rng: np.random.Generator) -> Array:
    """Gaps of up to a fifth of a second, in all channels at once: filled as the device does."""
    bouts, _, length = signal.shape
    now = np.arange(length)
    begins = rng.random((bouts, length)) < device.lost / device.rate
    ends = np.where(begins, now + rng.integers(1, max(2, int(device.rate / 5)) + 1, (bouts, length)), 0)
    gone = np.maximum.accumulate(ends, axis=1) > now
    gone[:, 0] = gone[:, -1] = False
    before = np.maximum.accumulate(np.where(gone, 0, now), axis=1)
    past = np.take_along_axis(signal, before[:, None], axis=2)
    if device.held:
        return past
    after = np.minimum.accumulate(np.where(gone, length - 1, now)[:, ::-1], axis=1)[:, ::-1]
    weight = (now - before) / np.maximum(after - before, 1)
    future = np.take_along_axis(signal, after[:, None], axis=2)
    return np.asarray(past + weight[:, None].astype(np.float32) * (future - past))


def recordings(number: int, options: Options) -> tuple[Client, Array, Array, Array, Array]:
    """Client ``number`` and its windows before normalisation: windows, labels, split and bout of each."""
    client, plan = draw_client(number, options), draw_plan(number, options)
    longest = int(plan.windows.max())
    seconds = longest * options.window / options.rate
    bouts = record(client, plan.activity, seconds, options.rate, options.rng(number, "bouts"))
    windows = bouts.reshape(len(bouts), 6, longest, options.window).swapaxes(1, 2)
    used = np.arange(longest) < plan.windows[:, None]
    bout = np.broadcast_to(np.arange(len(bouts))[:, None], used.shape)[used]
    return client, windows[used], plan.activity[bout], plan.split[bout], bout


def _client_data(number: int, options: Options, key: str) -> ClientData:
    device, placement = draw_device(number, options)
    train, val, test = draw_counts(number, options)[1].sum(1).tolist()
    traits = {"person": f"p{number:04d}", "device": device.name, "placement": placement.name, "speed": device.speed}
    return ClientData.later(
        _id(number, device, placement),
        lambda: _splits(number, options),
        sizes=(train, val, test),
        input_shape=(6, options.window),
        key=f"{key} {number}",
        traits=traits | ({"faulty": True} if device.faulty else {}),
    )


def _id(number: int, device: Device, placement: Placement) -> str:
    return f"p{number:04d}-{device.name}-{placement.name}"


def _splits(number: int, options: Options) -> tuple[Samples, Samples, Samples]:
    _, x, y, split, _ = recordings(number, options)
    x = _normalised(x, split == SPLITS.index("train"))
    parts = [split == place for place in range(len(SPLITS))]
    train, val, test = (Samples(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in parts)
    return train, val, test


def _normalised(x: Array, train: Array) -> Array:
    sensors = x.reshape(len(x), 2, -1)
    mean, deviation = sensors[train].mean((0, 2))[:, None], sensors[train].std((0, 2))[:, None]
    return np.asarray((sensors - mean) / np.maximum(deviation, 1e-6), dtype=np.float32).reshape(x.shape)
