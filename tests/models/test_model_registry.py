"""Names, options and sizes users may get wrong, and what they are told."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from fedsense.errors import UserError
from fedsense.models import MODELS, build_model


def test_names_are_the_promised_ones() -> None:
    promised = "protohar-cnn coad-cnn convnet4-tiny convnet4-middle convnet4-large flic-mlp flic-cnn sensor-cnn"
    assert set(promised.split()) <= set(MODELS)
    for name, entry in MODELS.items():
        assert entry.name == name
        assert entry.paper
        assert "\n" not in entry.description


@pytest.mark.parametrize(
    ("name", "hint"),
    [("protohar_cnn", "'protohar-cnn'"), ("convnet4-larg", "'convnet4-large'"), ("zzz", "valid names: coad-cnn, ")],
)
def test_unknown_name(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"unknown model '{name}'.*{hint}"):
        build_model(name, (6, 512), 4)


def test_unknown_option() -> None:
    with pytest.raises(UserError, match="coad-cnn has no option 'droput'; did you mean 'dropout'"):
        build_model("coad-cnn", (3, 200), 4, droput=0.2)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("protohar-cnn", {"width": 0}, "'width' must be a whole number, 1 or more, and is 0"),
        ("protohar-cnn", {"width": "wide"}, "'width' must be a whole number, 1 or more, and is 'wide'"),
        ("protohar-cnn", {"width": True}, "'width' must be a whole number"),
        ("flic-mlp", {"shared": -1}, "'shared' must be a whole number, 0 or more, and is -1"),
        ("flic-mlp", {"leaky": 1}, "'leaky' must be true or false, and is 1"),
        ("coad-cnn", {"dropout": 1.0}, "'dropout' must be a number from 0 to below 1, and is 1.0"),
        ("coad-cnn", {"dropout": "some"}, "'dropout' must be a number from 0 to below 1"),
    ],
)
def test_option_of_the_wrong_kind(name: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=f"{name}: option {expected}"):
        build_model(name, (3, 200), 4, **options)


@pytest.mark.parametrize(
    ("name", "fits", "too_small"),
    [
        ("protohar-cnn", (6, 36), (6, 35)),
        ("protohar-cnn", (1, 36), (6, 10)),
        ("coad-cnn", (3, 46), (3, 45)),
        ("sensor-cnn", (22, 16), (22, 15)),
        ("flic-cnn", (16, 16), (16, 15)),
        ("flic-cnn", (1, 16, 40), (1, 15, 40)),
    ],
)
def test_least_size(name: str, fits: tuple[int, ...], too_small: tuple[int, ...]) -> None:
    model = build_model(name, fits, 3)
    assert model.infer(model.init(0), torch.zeros(2, *fits)).logits.shape == (2, 3)
    with pytest.raises(UserError) as error:
        build_model(name, too_small, 3)
    assert name in str(error.value)
    assert str(too_small) in str(error.value)
    assert "at least" in str(error.value)


@pytest.mark.parametrize("name", ["convnet4-tiny", "convnet4-middle", "convnet4-large"])
def test_convnet4_takes_any_image(name: str) -> None:
    model = build_model(name, (1, 1), 3)
    assert model.infer(model.init(0), torch.zeros(2, 1, 1)).logits.shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("protohar-cnn", (512,)),
        ("protohar-cnn", (1, 6, 512)),
        ("coad-cnn", (0, 200)),
        ("sensor-cnn", (36,)),
        ("sensor-cnn", (1, 28, 28)),
        ("convnet4-large", (1000,)),
        ("flic-cnn", (1, 1, 28, 28)),
        ("flic-cnn", (0, 28, 28)),
        ("flic-mlp", ()),
        ("flic-mlp", (3, 0)),
    ],
)
def test_wrong_dimensions(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as error:
        build_model(name, shape, 3)
    assert str(error.value).startswith(name)
    assert str(shape) in str(error.value)


def test_no_classes() -> None:
    with pytest.raises(UserError, match="flic-mlp needs at least one class, and was given 0"):
        build_model("flic-mlp", (3,), 0)


def test_shape_may_be_a_list() -> None:
    assert build_model("coad-cnn", [3, 200], 6).shapes == build_model("coad-cnn", (3, 200), 6).shapes


def test_importing_models_is_cheap() -> None:
    code = "import sys, fedsense.models; print(*{'scipy', 'sklearn', 'matplotlib', 'pydantic'} & set(sys.modules))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
