"""EEG trials as covariance matrices, and their tangent vectors; clients may have different electrodes.

A trial is band-passed and gives one covariance matrix. A client's features are the tangent vectors of its trials at
the Riemannian mean of its training trials (the FLIC authors' code takes the mean of all, test included).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedsense.data.cache import key_of
from fedsense.data.dataset import Read
from fedsense.data.files import Files
from fedsense.errors import UserError
from fedsense.federation import ClientData, Federation, Samples
from fedsense.work import stream

Array = NDArray[Any]
NEEDED = "EEG needs moabb, mne and pyriemann; pip install 'fedsense[eeg]'"


@dataclass(frozen=True)
class Covariances(Read):
    """A dataset of covariance matrices ``[trials, electrodes × bands, electrodes × bands]``."""

    common: ClassVar[dict[str, Any]] = Read.common | {
        # fewest and most of a client, drawn; "common": those that everyone has; None: all it has
        "electrodes": list[int] | Literal["common"] | None,
        "features": Literal["tangent", "covariance"],
    }

    def defaults(self) -> dict[str, Any]:
        return super().defaults() | {"electrodes": None, "features": "tangent"}

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = super().parse(given)
        asked = options["electrodes"]
        if isinstance(asked, list) and not (len(asked) == 2 and 1 <= asked[0] <= asked[1]):
            raise UserError(
                f"electrodes = {asked}; give the fewest and the most of a client: [4, 8]", about="electrodes"
            )
        return options

    def content(self, files: Files) -> str:
        return key_of(super().content(files), versions())

    def finished(self, federation: Federation, options: Mapping[str, Any]) -> Federation:
        asked = options["electrodes"]
        shared = _common([_electrodes(client) for client in federation.everyone]) if asked == "common" else []

        def features(client: ClientData) -> ClientData:
            if asked == "common":
                names = list(map(str.casefold, _electrodes(client)))
                client = _keep(client, [names.index(name) for name in shared])
            elif asked is not None:
                client = _keep(client, _drawn(client, asked, options["seed"]))
            return as_vectors(client, options["features"])

        return super().finished(federation.change(features), options)


def versions() -> list[str]:
    """Of the libraries that the numbers come from."""
    try:
        return [version(name) for name in ("mne", "pyriemann")]
    except PackageNotFoundError as error:
        raise UserError(NEEDED) from error


def band_passed(signal: Array, rate: float, low: float, high: float) -> Array:
    """``signal`` ``[channels, time]`` between two frequencies, without delay (Butterworth, forwards and backwards)."""
    from scipy.signal import butter, sosfiltfilt

    if not 0 < low < high < rate / 2:
        raise UserError(
            f"band [{low:g}, {high:g}] Hz: give 0 < low < high < {rate / 2:g}, half the rate", about="bands"
        )
    return np.asarray(sosfiltfilt(butter(4, [low, high], "bandpass", fs=rate, output="sos"), signal))


def covariances(trials: Array) -> Array:
    """Ledoit-Wolf covariance of each trial ``[trials, channels, time]``."""
    try:
        from pyriemann.estimation import Covariances as Estimator
    except ImportError as error:
        raise UserError(NEEDED) from error
    with threadpool_limits(1):  # matrices this small are slower with threads
        return np.asarray(Estimator("lwf").transform(trials), dtype=np.float64)


def as_vectors(client: ClientData, features: str) -> ClientData:
    """The client's covariance matrices as vectors of n(n + 1)/2 numbers."""
    width = client.train.x.shape[-1]
    if features == "covariance":
        rows, columns = np.triu_indices(width)
        return client.change(lambda _, samples: replace(samples, x=samples.x[:, rows, columns]))
    try:
        from pyriemann.tangentspace import TangentSpace
    except ImportError as error:
        raise UserError(NEEDED) from error
    space = TangentSpace(metric="riemann").fit(client.train.x.double().numpy())

    def vectors(_: str, samples: Samples) -> Samples:
        if not len(samples):
            return replace(samples, x=torch.zeros(0, width * (width + 1) // 2))
        return replace(samples, x=torch.from_numpy(space.transform(samples.x.double().numpy())).float())

    return client.change(vectors)


def _electrodes(client: ClientData) -> list[str]:
    return list(client.traits.get("channels", ()))


def _common(caps: Sequence[Sequence[str]]) -> list[str]:
    """The electrodes of every cap, in the order of the first; C3 and c3 are one."""
    folded = [list(map(str.casefold, cap)) for cap in caps]
    shared = [name for name in folded[0] if all(name in cap for cap in folded)]
    if not shared:
        kinds = dict.fromkeys(", ".join(cap) for cap in caps)
        raise UserError(
            'electrodes = "common", but no electrode is in every cap: ' + "; ".join(kinds), about="electrodes"
        )
    return shared


def _drawn(client: ClientData, asked: Sequence[int], seed: int) -> list[int]:
    """A random subset of the client's electrodes, in their order."""
    (low, high), count = asked, len(_electrodes(client))
    if high > count:
        raise UserError(f"client '{client.id}' has {count} electrodes, fewer than {[low, high]}", about="electrodes")
    rng = stream(seed, "electrodes", client.id)
    return sorted(rng.permutation(count)[: rng.integers(low, high + 1)].tolist())


def _keep(client: ClientData, kept: Sequence[int]) -> ClientData:
    """Only these electrodes, the same in every band."""
    names = _electrodes(client)
    bands = client.train.x.shape[-1] // len(names)
    places = np.concatenate([np.array(kept) + band * len(names) for band in range(bands)])
    chosen = client.change(lambda _, samples: replace(samples, x=samples.x[:, places[:, None], places]))
    return replace(chosen, traits={**client.traits, "channels": [names[i] for i in kept]})
