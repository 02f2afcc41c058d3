"""As many samples of every class: SMOTE (Chawla et al., JAIR 2002)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def smote(z: Tensor, y: Tensor, neighbours: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Points ``z`` ``[n, d]`` with their classes ``y``, and after them new ones until every class is as large as any.

    A new point lies on the way from one of the class to one of its ``neighbours`` nearest of the class, anywhere on it:
    z_i + u (z_j − z_i), u from 0 to 1. Points of the class take turns as z_i. A class of one point has that repeated; a
    class of none stays so.
    """
    counts = torch.bincount(y)
    largest, found, labels = int(counts.max()), [z], [y]
    for label, count in enumerate(counts.tolist()):
        many = largest - count
        if not count or not many:
            continue
        own = z[y == label]  # [m, d]
        at = torch.from_numpy(np.resize(rng.permutation(count), many)).to(z.device)
        share = torch.from_numpy(rng.random((many, 1))).to(z)
        among = min(neighbours, count - 1)
        new = own[at]
        if among:
            near = torch.cdist(own, own).fill_diagonal_(torch.inf).topk(among, largest=False).indices  # [m, k]
            which = torch.from_numpy(rng.integers(among, size=many)).to(z.device)
            new = torch.lerp(new, own[near[at, which]], share)
        found.append(new)
        labels.append(y.new_full((many,), label))
    return torch.cat(found), torch.cat(labels)
