"""The shape of the code: data flow one way, and what must not stand in it."""

import ast
from pathlib import Path

import pytest

import fedsense

ROOT = Path(fedsense.__file__).parent


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("methods", ("flower", "engine", "data", "cli", "report", "recipe", "experiment", "result")),
        ("ops", ("flower", "engine", "data", "cli", "report", "methods", "recipe", "experiment", "result")),
        ("models", ("flower", "engine", "data", "cli", "report", "methods", "ops", "method", "training")),
        ("data", ("flower", "engine", "cli", "report", "methods", "ops", "models", "method", "training")),
        ("evaluation", ("flower", "engine", "cli", "report", "methods", "data", "result")),
        ("engine", ("flower", "cli", "report", "data", "methods", "recipe", "experiment", "result")),
        (
            "report",
            (
                "flower",
                "cli",
            ),
        ),
    ],
)
def test_imports_go_one_way(folder, forbidden):
    for path in (ROOT / folder).rglob("*.py"):
        for module in imports(path):
            top = module.split(".")[1] if module.startswith("fedsense.") else ""
            assert top not in forbidden, f"{path.name} imports {module}"


def test_fit_is_the_only_training_loop():
    """Gradients are taken in one place, and asked for in one loop."""
    texts = {p.name: p.read_text() for p in ROOT.rglob("*.py")}
    assert [name for name, text in texts.items() if "autograd.grad(" in text or ".backward()" in text] == ["replay.py"]
    assert [name for name, text in texts.items() if "Recorder(" in text] == ["training.py"]


def test_no_global_generator_is_read():
    # model initialisation and building, both inside fork_rng
    allowed = {"network.py", "alp.py", "spec.py", "pretraining.py", "__init__.py"}
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if "torch.manual_seed" in text or "fork_rng" in text:
            assert path.name in allowed
        for line in text.splitlines():
            words = (
                "np.random.seed",
                "np.random.rand",
                "np.random.normal",
                "random.random",
                "torch.randn",
                "torch.rand",
            )
            assert "generator=" in line or not any(f"{word}(" in line for word in words), f"{path.name}: {line}"
