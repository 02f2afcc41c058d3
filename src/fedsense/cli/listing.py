"""What ``fedsense list`` shows."""

from __future__ import annotations

import tomllib

Entry = dict[str, str | int]


def entries(kind: str) -> list[Entry]:
    """Name, description and origin of everything of a kind."""
    return {"methods": _methods, "models": _models, "datasets": _datasets, "recipes": _recipes}[kind]()


def _methods() -> list[Entry]:
    from fedsense.method import GROUPS
    from fedsense.methods import METHODS

    listed = sorted(METHODS.values(), key=lambda m: GROUPS.index(m.group))  # within a group as in the registry
    return [
        {"group": m.group, "name": m.name, "description": (m.__doc__ or "").strip(), "paper": m.paper} for m in listed
    ]


def _models() -> list[Entry]:
    from fedsense.models import MODELS

    return [
        {
            "name": m.name,
            "description": m.description,
            "paper": m.paper,
            "input": "×".join(map(str, m.paper_input)),
            "classes": m.paper_classes,
            "parameters": m.paper_parameters,
        }
        for m in MODELS.values()
    ]


def _datasets() -> list[Entry]:
    from fedsense.data import DATASETS, find_dataset

    cards = [find_dataset(name).card for name in DATASETS]
    return [{"name": card.name, "description": card.what, "paper": card.paper} for card in cards]


def _recipes() -> list[Entry]:
    from fedsense.recipe import builtin_recipes

    parsed = {name: tomllib.loads(text) for name, text in builtin_recipes().items()}
    return [
        {"name": name, "description": recipe.get("description", ""), "paper": recipe.get("paper", "fedsense")}
        for name, recipe in parsed.items()
    ]
