"""Small federations and networks the tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from torch import nn

from fedsense.bundle import to_bytes
from fedsense.cli import _run as cli
from fedsense.engine.rounds import Engine
from fedsense.engine.settings import Settings
from fedsense.federation import Federation
from fedsense.method import Method
from fedsense.methods import METHODS
from fedsense.models.alp import ALP
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.work import stream

torch.set_num_threads(1)
hypothesis.settings.register_profile("busy machines", deadline=None)
hypothesis.settings.load_profile("busy machines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no core waits for it in the end."""
    items.sort(key=lambda item: "test_embedded_is_hard" not in item.nodeid)


def real(name: str) -> Path:
    """An archive of real recordings; a test that asks for one is skipped where there is none."""
    default = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("FEDSENSE_TEST_DATA", default)) / name
    if not path.exists():
        pytest.skip(f"needs the real recordings {name}: set FEDSENSE_TEST_DATA to the folder that holds it")
    return path


def paper(name: str) -> str:
    """The text of a paper; a test that asks for one is skipped where there is none."""
    default = Path(__file__).parents[2] / "shared" / "papers"
    path = Path(os.environ.get("FEDSENSE_TEST_PAPERS", default)) / f"{name}.txt"
    if not path.exists():
        pytest.skip(f"needs the text of the paper {name}: set FEDSENSE_TEST_PAPERS to the folder that holds {name}.txt")
    return path.read_text(encoding="utf-8")


SMALL_RECIPE = """\
name = "small"
rounds = 4
seeds = [0, 1]

[data]
name = "synthetic-imu"
clients = 3
samples = 24
classes-per-client = 3

[model]
name = "flic-mlp"

[training]
epochs = 1

[[method]]
name = "local"

[[method]]
name = "fedavg"
"""


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests keep what they read to themselves."""
    before = {name: os.environ.pop(name, None) for name in ("FEDSENSE_CACHE", "FEDSENSE_DATA", "FEDSENSE_CACHE_LIMIT")}
    os.environ["FEDSENSE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("FEDSENSE_CACHE")
    os.environ.update({name: value for name, value in before.items() if value is not None})


def blobs(
    clients: int = 4,
    train: int = 24,
    test: int = 20,
    val: int = 8,
    classes: int = 3,
    shape: tuple[int, ...] = (2, 6),
    seed: int = 0,
) -> Federation:
    """Clients with Gaussian classes, each client's shifted a little: quick to learn, not trivial."""
    centres = stream(seed, "centres").normal(0, 1.2, (classes, *shape))

    def draw(client: int, split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        rng = stream(seed, client, split)
        y = rng.integers(0, classes, count)
        shift = stream(seed, client, "shift").normal(0, 0.5, shape)
        return (centres[y] + shift + rng.normal(0, 1, (count, *shape))).astype("float32"), y

    sizes = {"train": train, "val": val, "test": test}
    return Federation.from_arrays(
        {
            f"c{i:02}": {name: draw(i, name, n + (i if name == "train" else 0)) for name, n in sizes.items()}
            for i in range(clients)
        },
        classes=classes,
        name="blobs",
    )


def small_net(input_shape: tuple[int, ...], classes: int) -> Network:
    """A network with everything a network can have: adapter, BatchNorm, a place for prototypes, head."""
    width = int(np.prod(input_shape))
    encoder = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), ALP(8))
    adapter = nn.Sequential(nn.Flatten(), nn.Linear(width, 8))
    return Network(encoder, nn.Linear(8, classes), features=8, adapter=adapter)


def plain_net(input_shape: tuple[int, ...], classes: int) -> Network:
    """A small network without running state."""
    width = int(np.prod(input_shape))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.Tanh(), ALP(8))
    return Network(encoder, nn.Linear(8, classes), features=8)


NET = ModelSpec.of(small_net)


def run(
    method: Method,
    federation: Federation | None = None,
    folder: Path | None = None,
    model: ModelSpec = NET,
    **settings: Any,
) -> Engine:
    """A short run of a method, done."""
    settings = {"rounds": 3, "workers": 1, "metrics": ("accuracy",), **settings}
    engine = Engine(federation or blobs(), method, model, Settings(**settings), folder)
    engine.run()
    return engine


LITTLE = {  # settings with which a method has little work to do, and comes to all it does within three rounds
    "flic": {"pretrain": 3},
    "fedali": {"prototypes": 8, "decay": 0.9},
    "fedclar": {"warm_up": 2},
    "modcl": {"pretrain_rounds": 1},
}


def quick(name: str, **fields: Any) -> Method:
    """The method of that name, with little work to do."""
    return METHODS[name](**{"epochs": 2, "batch": 8, "lr": 0.05, **LITTLE.get(name, {}), **fields})


def same_bits(a: Engine, b: Engine) -> None:
    """Two runs ended alike: the server's Bundle, clients' states and models, scores and observations."""
    assert to_bytes(a.server) == to_bytes(b.server)
    assert a.states.keys() == b.states.keys()
    for client in a.states:
        assert to_bytes(a.states[client]) == to_bytes(b.states[client])
        assert to_bytes(a.trained.get(client, {})) == to_bytes(b.trained.get(client, {}))
    assert a.record.scores == b.record.scores
    assert a.record.observations == b.record.observations


@pytest.fixture
def federation() -> Federation:
    return blobs()


def take_step(transform, params, grads, memory, together=False):
    """One step of an optimiser; the gradients as it left them."""
    left = list(grads.values())
    transform.begin(params, memory, transform.given, together)(left)
    return left


@pytest.fixture
def here(tmp_path, monkeypatch, capfd):
    """Runs a command in a folder of its own: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capfd.readouterr()
        code = cli(list(arguments))
        said = capfd.readouterr()
        assert "Traceback" not in said.out + said.err
        return code, said.out, said.err

    return run
