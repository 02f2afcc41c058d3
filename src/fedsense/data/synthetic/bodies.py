"""What the synthetic IMU federation is made of: activities, where devices are worn, and how badly they measure."""

from __future__ import annotations

from dataclasses import dataclass

ACTIVITIES = ("walking", "stairs-up", "stairs-down", "running", "sitting", "standing", "lying", "cycling")


@dataclass(frozen=True)
class Gait:
    """How an average person does an activity; accelerations in g, angles in rad."""

    stride: float  # Hz; a pedal's turn in cycling
    bounce: float  # up and down, every step
    surge: float  # forward, every step
    roll: float  # left and right, every stride
    impact: float  # what the next harmonic keeps of the last
    lag: float  # phase of surge behind bounce
    leg: float  # swing of the thigh
    arm: float  # swing of the forearm
    twist: float  # of the trunk
    sway: float = 0.008  # slow movement when the body is at rest


GAITS = {
    "walking": Gait(0.95, 0.30, 0.17, 0.11, 0.55, 1.0, 0.36, 0.32, 0.09),
    "stairs-up": Gait(0.80, 0.26, 0.20, 0.16, 0.35, 0.0, 0.42, 0.26, 0.12),
    "stairs-down": Gait(1.00, 0.32, 0.12, 0.12, 0.80, 2.2, 0.28, 0.22, 0.06),
    "running": Gait(1.32, 0.46, 0.22, 0.13, 0.50, 1.0, 0.38, 0.36, 0.10),
    "sitting": Gait(0, 0, 0, 0, 0, 0, 0, 0, 0, sway=0.010),
    "standing": Gait(0, 0, 0, 0, 0, 0, 0, 0, 0, sway=0.014),
    "lying": Gait(0, 0, 0, 0, 0, 0, 0, 0, 0, sway=0.008),
    "cycling": Gait(1.15, 0.10, 0.10, 0.14, 0.30, 0.3, 0.36, 0.08, 0.05, sway=0.02),
}


@dataclass(frozen=True)
class Placement:
    """Where a device is worn: its mounting, what swings there, and how each activity holds that part of the body."""

    name: str
    mounting: tuple[float, float, float]  # degrees about forward, left, up
    leg: float  # share of the swing of the thigh
    arm: float
    lever: float  # metres from the joint that swings
    restless: float  # sway there, in those of the waist
    pitch: tuple[float, ...]  # degrees, by activity
    tilt: tuple[float, ...]  # sideways
    devices: tuple[str, ...]


PLACEMENTS = (
    Placement(
        "waist", (0, 0, 0), 0.12, 0.0, 0.1, 1.0,
        (3, 8, 0, 10, -30, 0, -75, -20), (0, 0, 0, 0, 5, 0, 20, 0), ("phone", "old-phone"),
    ),
    Placement(
        "wrist", (0, 20, 0), 0.0, 1.0, 0.35, 2.0,
        (6, 10, 6, 18, 45, 0, 70, 40), (0, 0, 0, 4, 20, 0, 45, 16), ("watch", "band"),
    ),
    Placement(
        "pocket", (-10, 0, 30), 0.9, 0.0, 0.2, 1.0,
        (6, 11, 7, 11, 60, 0, 74, 45), (0, 0, 0, 0, 6, 0, 40, 6), ("phone", "old-phone"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Device:
    """What measures, and how badly."""

    name: str
    rate: float  # Hz, before resampling
    noise: float  # g; twice as many rad/s
    lost: float  # gaps a second
    held: bool = True  # a gap repeats the last sample; else it is interpolated
    gain: tuple[float, ...] = (1.0,) * 6
    bias: tuple[float, ...] = (0.0,) * 6
    faulty: bool = False
    speed: float = 1.0  # of learning, relative to the others


DEVICES = {
    "phone": Device("phone", 100.0, 0.08, 0.1),
    "old-phone": Device("old-phone", 40.0, 0.12, 0.6, speed=0.5),
    "watch": Device("watch", 64.0, 0.08, 0.2, held=False, speed=0.25),
    "band": Device("band", 32.0, 0.10, 0.4, held=False, speed=0.125),
}
