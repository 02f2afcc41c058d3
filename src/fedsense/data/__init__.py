"""Datasets, by the names users type. Each gives a Federation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedsense.errors import UserError, nearest
from fedsense.federation import Federation, Missing
from fedsense.options import checked, options_of


@dataclass(frozen=True)
class DatasetEntry:
    """A dataset users can name."""

    name: str
    loader: Callable[[], Callable[..., Federation]]  # imported when it is used
    description: str
    paper: str
    synthetic: bool = False


def _imu() -> Callable[..., Federation]:
    from fedsense.data.synthetic.imu import synthetic_imu

    return synthetic_imu


DATASETS: dict[str, DatasetEntry] = {
    entry.name: entry
    for entry in (
        DatasetEntry(
            "synthetic-imu",
            _imu,
            "generated phones and watches on different people; eight activities, accelerometer and gyroscope",
            "fedsense (embedded, needs no download)",
            synthetic=True,
        ),
    )
}


def find_dataset(name: str) -> DatasetEntry:
    """The dataset of that name."""
    if name not in DATASETS:
        raise UserError(f"there is no dataset '{name}'; {nearest(name, DATASETS)}", about=name)
    return DATASETS[name]


def load(
    name: str,
    *,
    missing: Missing = "refuse",
    default_seed: int | None = None,
    **options: Any,
) -> Federation:
    """The named federation, checked: ``load("synthetic-imu", clients=12, seed=3)``.

    ``missing`` says what becomes of values that are not finite. ``default_seed`` is for datasets that draw anything,
    where ``options`` do not give a seed.
    """
    loader = find_dataset(name).loader()
    allowed = options_of(loader)
    if default_seed is not None and "seed" in allowed:
        options.setdefault("seed", default_seed)
    return loader(**checked(f"dataset '{name}'", options, allowed)).check(missing)
