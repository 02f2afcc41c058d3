"""HetFedRep: FedRep for clients whose inputs differ (Rakotomamonjy et al., TMLR 2024, section 6).

server  encoder        client  adapter, head
down    encoder        up      encoder, n

Each client maps its own inputs into a common space by an adapter φ_i of its own, and has a head of its own; what lies
between is shared. Nothing makes clients use the common space in the same way: that is what FLIC adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedsense.methods.fedrep import FedRep


@dataclass(frozen=True, kw_only=True)
class HetFedRep(FedRep):
    """Adapters and heads of one's own around a shared encoder."""

    name: ClassVar[str] = "hetfedrep"
    paper: ClassVar[str] = "Rakotomamonjy et al., TMLR 2024"
    group: ClassVar[str] = "different inputs"
    equation: ClassVar[str] = "(φᵢ, hᵢ) ← arg min L, then αᵢ ← arg min L; α = Σ nᵢαᵢ / Σ nᵢ"
    assumes: ClassVar[str] = "one encoder between adapters and heads, which may differ"
    use: ClassVar[str] = "beside flic: what its alignment is worth"
    own: ClassVar[tuple[str, ...]] = ("adapter", "head")
    shared: ClassVar[tuple[str, ...]] = ("encoder",)
