"""Groups of clients whose updates point the same way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F


def cosine_distances(directions: Tensor) -> NDArray[np.float64]:
    """1 − cos of every two rows ``[m, d]``, ``[m, m]``; a row of zeros is 1 away from every other."""
    unit = F.normalize(directions.double(), dim=1)
    away = (1 - unit @ unit.T).clamp(0, 2).fill_diagonal_(0)
    found: NDArray[np.float64] = ((away + away.T) / 2).numpy()
    return found


def groups(away: NDArray[np.float64], threshold: float, most: int | None = None) -> list[int]:
    """The number of each row's group, by average linkage; groups are numbered in the order of their first rows.

    Groups are merged, nearest first, as long as the mean distance between their members is at most ``threshold``; or,
    with ``most``, until so many are left.
    """
    if len(away) < 2:
        return [0] * len(away)
    from scipy.cluster.hierarchy import fcluster, linkage  # takes a while to import
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(away, checks=False), "average")
    found = fcluster(tree, threshold, "distance") if most is None else fcluster(tree, most, "maxclust")
    first = {int(group): None for group in found}  # in the order of their first rows
    number = {group: i for i, group in enumerate(first)}
    return [number[int(group)] for group in found]
