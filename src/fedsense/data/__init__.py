"""Datasets, by the names users type. Each gives a Federation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsense.data.merging import merge
from fedsense.data.projections import How as Projection
from fedsense.data.projections import projected
from fedsense.errors import UserError, nearest
from fedsense.federation import Federation, Missing

if TYPE_CHECKING:
    from fedsense.data.dataset import Dataset

__all__ = ["DATASETS", "find_dataset", "load", "merge"]

# name → where it is, imported when it is used: a module of this folder that holds DATASET, or module:VARIABLE
DATASETS = {
    "synthetic-imu": "synthetic:IMU",
    "synthetic-csi": "synthetic:CSI",
    "synthetic-eeg": "synthetic:EEG",
    "toy-noisy-features": "synthetic:NOISY_FEATURES",
    "toy-linear-map": "synthetic:LINEAR_MAP",
    "hhar": "hhar",
    "realworld": "realworld",
    "motionsense": "motionsense",
    "wisdm": "wisdm",
    "wisdm2019": "wisdm2019",
    "uci-har": "uci_har",
    "hapt": "hapt",
    "pamap2": "pamap2",
    "usc-had": "usc_had",
    "unimib-shar": "unimib_shar",
    "harbox": "harbox",
    "mobiact": "mobiact",
    "shl": "shl",
    "sp-sw-har": "sp_sw_har",
    "csi-counting": "csi_counting",
    "wical": "wical",
    "moabb": "moabb_eeg",
    "ssvep-exo": "ssvep_exo",
    "mnist": "mnist",
    "usps": "usps",
    "digits": "digits",
    "femnist": "femnist",
    "cifar10": "cifar:CIFAR10",
    "cifar100": "cifar:CIFAR100",
    "textcaps": "textcaps",
    "folder": "own",
}


def find_dataset(name: str) -> Dataset:
    """The dataset of that name."""
    if name not in DATASETS:
        raise UserError(f"there is no dataset '{name}'; {nearest(name, DATASETS)}", about=name)
    module, _, variable = DATASETS[name].partition(":")
    dataset: Dataset = getattr(import_module(f"fedsense.data.{module}"), variable or "DATASET")
    return dataset


def load(
    name: str,
    *,
    missing: Missing = "refuse",
    projection: Projection | None = None,
    default_seed: int | None = None,
    **options: Any,
) -> Federation:
    """The named federation, checked: ``load("synthetic-imu", clients=12, seed=3)``.

    ``missing`` says what becomes of values that are not finite. ``projection`` brings every client's samples to 64
    numbers (see :func:`fedsense.data.projections.projected`). ``default_seed`` is for datasets that draw anything,
    where ``options`` do not give a seed.
    """
    dataset = find_dataset(name)
    if default_seed is not None and "seed" in dataset.defaults():
        options.setdefault("seed", default_seed)
    federation = dataset.build(dataset.parse(options), missing)
    return federation if projection is None else projected(federation, projection, seed=options.get("seed", 0))
