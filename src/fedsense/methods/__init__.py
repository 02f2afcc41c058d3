"""Federated algorithms, by the names users type."""

from __future__ import annotations

from fedsense.errors import UserError, nearest
from fedsense.method import Method
from fedsense.methods.centralized import Centralized
from fedsense.methods.fedali import FedAli
from fedsense.methods.fedapa import FedAPA
from fedsense.methods.fedavg import FedAvg
from fedsense.methods.fedavgm import FedAvgM
from fedsense.methods.fedcoad import FedCoad
from fedsense.methods.fedhenn import FedHeNN
from fedsense.methods.fedpac import FedPAC
from fedsense.methods.fedper import FedPer
from fedsense.methods.fedproto import FedProto
from fedsense.methods.fedprox import FedProx
from fedsense.methods.fedrep import FedRep
from fedsense.methods.flic import Flic
from fedsense.methods.hetfedrep import HetFedRep
from fedsense.methods.local import Local
from fedsense.methods.moon import Moon
from fedsense.methods.protohar import ProtoHAR
from fedsense.methods.scaffold import Scaffold

METHODS: dict[str, type[Method]] = {
    m.name: m
    for m in (
        Local,
        Centralized,
        FedAvg,
        FedAvgM,
        FedProx,
        Scaffold,
        Moon,
        FedCoad,
        FedPer,
        FedRep,
        FedProto,
        FedPAC,
        ProtoHAR,
        FedAPA,
        FedAli,
        HetFedRep,
        Flic,
        FedHeNN,
    )
}

__all__ = [
    "METHODS",
    "Centralized",
    "FedAPA",
    "FedAli",
    "FedAvg",
    "FedAvgM",
    "FedCoad",
    "FedHeNN",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "Flic",
    "HetFedRep",
    "Local",
    "Moon",
    "ProtoHAR",
    "Scaffold",
    "find_method",
]


def find_method(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise UserError(f"there is no method '{name}'; {nearest(name, METHODS)}", about=name)
    return METHODS[name]
