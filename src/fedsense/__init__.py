"""fedsense: personalised federated learning for sensing.

    import fedsense

    federation = fedsense.load("synthetic-imu", clients=12)
    result = fedsense.run(federation, method="fedavg", model="coad-cnn", rounds=10, seed=0)
    print(result.table())
    mine = result.personal_model(federation.ids[0])

Names are imported when they are first used, so that ``import fedsense`` and the command line start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedsense.api import compare, run
    from fedsense.bundle import Bundle
    from fedsense.client import Client
    from fedsense.data import load, merge
    from fedsense.engine.rounds import Engine
    from fedsense.engine.settings import Settings
    from fedsense.errors import FedsenseError, RunFailed, UserError
    from fedsense.federation import ClientData, Federation, Samples, Task
    from fedsense.joining import join
    from fedsense.method import Method, Reply
    from fedsense.personal import PersonalModel, load_personal
    from fedsense.result import Result
    from fedsense.training import fit
    from fedsense.work import Work

_HOMES = {
    "run": "api",
    "compare": "api",
    "Bundle": "bundle",
    "Client": "client",
    "load": "data",
    "merge": "data",
    "Engine": "engine.rounds",
    "Settings": "engine.rounds",
    "FedsenseError": "errors",
    "RunFailed": "errors",
    "UserError": "errors",
    "ClientData": "federation",
    "Federation": "federation",
    "Samples": "federation",
    "Task": "federation",
    "fit": "training",
    "join": "joining",
    "pretrain": "pretraining",
    "Method": "method",
    "Reply": "method",
    "PersonalModel": "personal",
    "load_personal": "personal",
    "Result": "result",
    "Work": "work",
}

__all__ = [
    "Bundle",
    "Client",
    "ClientData",
    "Engine",
    "Federation",
    "FedsenseError",
    "Method",
    "PersonalModel",
    "Reply",
    "Result",
    "RunFailed",
    "Samples",
    "Settings",
    "Task",
    "UserError",
    "Work",
    "__version__",
    "compare",
    "fit",
    "join",
    "load",
    "load_personal",
    "merge",
    "pretrain",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsense' has no attribute '{name}'")
    value = getattr(import_module(f"fedsense.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
