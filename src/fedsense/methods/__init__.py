"""Federated algorithms, by the names users type."""

from __future__ import annotations

from fedsense.errors import UserError, nearest
from fedsense.method import Method
from fedsense.methods.caring import Caring
from fedsense.methods.centralized import Centralized
from fedsense.methods.ditto import Ditto
from fedsense.methods.fedala import FedALA
from fedsense.methods.fedali import FedAli
from fedsense.methods.fedamp import FedAMP
from fedsense.methods.fedapa import FedAPA
from fedsense.methods.fedavg import FedAvg
from fedsense.methods.fedavgm import FedAvgM
from fedsense.methods.fedbn import FedBN
from fedsense.methods.fedclar import FedCLAR
from fedsense.methods.fedcoad import FedCoad
from fedsense.methods.fedhenn import FedHeNN
from fedsense.methods.fedhome import FedHome
from fedsense.methods.fedpac import FedPAC
from fedsense.methods.fedper import FedPer
from fedsense.methods.fedproto import FedProto
from fedsense.methods.fedprox import FedProx
from fedsense.methods.fedrep import FedRep
from fedsense.methods.flic import Flic
from fedsense.methods.hetfedrep import HetFedRep
from fedsense.methods.l2gd import L2GD
from fedsense.methods.lg_fedavg import LGFedAvg
from fedsense.methods.local import Local
from fedsense.methods.meta_har import MetaHAR
from fedsense.methods.modcl import ModCL
from fedsense.methods.moon import Moon
from fedsense.methods.protohar import ProtoHAR
from fedsense.methods.scaffold import Scaffold
from fedsense.methods.wifederated import WiFederated

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
        LGFedAvg,
        FedBN,
        Ditto,
        L2GD,
        FedAMP,
        FedALA,
        WiFederated,
        FedHome,
        Caring,
        FedCLAR,
        MetaHAR,
        ModCL,
    )
}

__all__ = [
    "L2GD",
    "METHODS",
    "Caring",
    "Centralized",
    "Ditto",
    "FedALA",
    "FedAMP",
    "FedAPA",
    "FedAli",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCLAR",
    "FedCoad",
    "FedHeNN",
    "FedHome",
    "FedPAC",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "Flic",
    "HetFedRep",
    "LGFedAvg",
    "Local",
    "MetaHAR",
    "ModCL",
    "Moon",
    "ProtoHAR",
    "Scaffold",
    "WiFederated",
    "find_method",
]


def find_method(name: str) -> type[Method]:
    """The method of that name."""
    if name not in METHODS:
        raise UserError(f"there is no method '{name}'; {nearest(name, METHODS)}", about=name)
    return METHODS[name]
