"""Every client's samples in one space, by a projection that knows nothing of the other clients.

What FLIC's paper (S3.7) compares itself with: FedRep on t-SNE projections. All inputs then have one width, but a class
lies somewhere else for every client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense.errors import UserError, nearest
from fedsense.federation import SPLITS, ClientData, Federation, Samples, in_shares
from fedsense.work import seed_of

How = Literal["t-sne", "mds", "pca"]
Array = NDArray[Any]
PERPLEXITY = (
    30.0  # of t-SNE, scikit-learn's default; a third of the neighbours where a client has fewer than 91 samples
)


def projected(federation: Federation, how: How = "t-sne", width: int = 64, seed: int = 0) -> Federation:
    """A copy whose samples are vectors of ``width`` numbers: each client's (and newcomer's), on its own.

    ``how`` is t-SNE (with random beginnings, as the paper's), multi-dimensional scaling (least stress, from the
    principal components on) or the principal components.

    A client's training, validation and test samples are projected *together*, because t-SNE and MDS cannot place a new
    sample: inputs of the test set take part, labels never do. Scores on it are therefore of a client that has seen all
    its inputs beforehand, and flatter the baseline. Projections are moved to mean 0 and scaled, by one number, to
    variance 1 over all coordinates; where there are more coordinates than principal components, the rest are 0. (Where
    inputs are no wider than ``width`` nothing is lost, and MDS is what the principal components are.)

    t-SNE takes time in the square of a client's samples: for more than three coordinates there is only the exact one.
    """
    if how not in get_args(How):
        raise UserError(f"there is no projection '{how}'; {nearest(how, get_args(How))}", about=how)
    if width < 1:
        raise UserError(f"width is {width}; a projection has at least one coordinate", about="width")
    made = federation.change(lambda client: _projected(client, how, width, seed))
    said = f"each client's samples projected to {width} numbers by {how}"
    return replace(made, description=f"{federation.description}; {said}" if federation.description else said)


def _projected(client: ClientData, how: How, width: int, seed: int) -> ClientData:
    x = in_shares(Samples.join(client.splits).x).flatten(1).double().numpy()
    places = _standardised(_project(x, how, width, seed_of(seed, "projection", how, client.id))).astype(np.float32)
    cuts = np.cumsum([len(split) for split in client.splits])[:-1]
    rows = dict(zip(SPLITS, np.split(places, cuts), strict=True))
    return client.change(lambda name, samples: replace(samples.made, x=torch.tensor(rows[name])))


def _project(x: Array, how: How, width: int, seed: int) -> Array:
    """The samples' places ``[n, width]``."""
    from threadpoolctl import threadpool_limits  # comes with scikit-learn, which is slow to import

    if not len(x) or (x == x[0]).all():  # nothing to tell apart
        return np.zeros((len(x), width))
    with threadpool_limits(1):  # so that the number of cores does not change the numbers
        return _PROJECTIONS[how](x, width, seed % 2**32)


def _t_sne(x: Array, width: int, seed: int) -> Array:
    """In up to three coordinates as scikit-learn does it; in more, exactly, and with gentler steps.

    The usual steps (50 at least) and the usual exaggeration of neighbourhoods in the beginning are made for a plane. In
    R^64 they drive points apart without end, or all onto one place: the divergence ends at 5 to 25, where the classes
    are lost, instead of below 1.
    """
    from sklearn.manifold import TSNE

    gentle = {"method": "exact", "learning_rate": len(x) / (2 * width), "early_exaggeration": 1.0} if width > 3 else {}
    perplexity = min(PERPLEXITY, max(1.0, (len(x) - 1) / 3))
    tsne = TSNE(width, perplexity=perplexity, init="random", random_state=seed, **gentle)
    return np.asarray(tsne.fit_transform(x), dtype=np.float64)


def _mds(x: Array, width: int, seed: int) -> Array:
    from scipy.spatial.distance import pdist, squareform
    from sklearn.manifold import smacof

    start, apart = _pca(x, width, seed), squareform(pdist(x))
    places, _ = smacof(apart, n_components=width, init=start, n_init=1, normalized_stress=False)
    return np.asarray(places, dtype=np.float64)


def _pca(x: Array, width: int, seed: int) -> Array:
    from sklearn.decomposition import PCA

    many = min(width, *x.shape)
    scores = PCA(many, svd_solver="full").fit_transform(x)
    return np.pad(scores, ((0, 0), (0, width - many)))


def _standardised(places: Array) -> Array:
    if not len(places):
        return places
    centred = places - places.mean(0)
    return np.asarray(centred / (np.sqrt((centred**2).mean()) or 1.0), dtype=np.float64)


_PROJECTIONS: dict[How, Callable[[Array, int, int], Array]] = {"t-sne": _t_sne, "mds": _mds, "pca": _pca}
