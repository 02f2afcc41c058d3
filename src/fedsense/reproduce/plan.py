"""The experiments a table or figure needs: recipes as they are run, where each is kept, and which data is not there."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fedsense.data import find_dataset
from fedsense.data.files import find_root
from fedsense.engine.folder import digest_of
from fedsense.errors import UserError, nearest
from fedsense.recipe import Recipe, load_recipe
from fedsense.reproduce.cards import Card, Cell, Entry, Item

Scale = Literal["paper", "small"]
Key = tuple[str, tuple[str, ...], tuple[str, ...]]  # setting, set, small


def scale_of(said: str) -> Scale:
    """The size somebody asked for with ``--scale``."""
    if said not in ("paper", "small"):
        raise UserError(f"--scale {said}: say paper or small")
    return "small" if said == "small" else "paper"


@dataclass(frozen=True)
class Ways:
    """How to run: at which size, with how many seeds, with what else overridden, on which data."""

    scale: Scale = "paper"
    seeds: int | None = None
    set: tuple[str, ...] = ()
    nearest: bool = False  # where a dataset is not there, the nearest the card names


@dataclass(frozen=True)
class Experiment:
    """A recipe with the methods that are asked for, and the folder of its runs."""

    name: str
    source: str  # the recipe's name
    overrides: tuple[str, ...]
    recipe: Recipe
    instead: str = ""  # the dataset the paper has, where this is another
    lacking: tuple[str, ...] = ()  # datasets that are not there
    nearest: str = ""  # the dataset that could be taken for them, and is there
    beside: tuple[str, ...] = ()  # datasets it reads beside its recipe's

    @property
    def datasets(self) -> str:
        return " + ".join(names_of(self.recipe))

    @property
    def command(self) -> str:
        """What runs just this by itself: each setting once, and of methods and seeds those that are asked for."""
        whole = _loaded(self.source, self.overrides)
        last: dict[str, str] = {}
        for text in self.overrides:
            path = text.partition("=")[0].strip()
            last.pop(path, None)  # its place is where it was said last
            last[path] = text
        if list(whole.methods()) != list(self.recipe.methods()):
            last = {path: text for path, text in last.items() if path.split(".")[0] != "method"}
            plain = [table["name"] if table.keys() == {"name"} else table for table in self.recipe.method]
            last["method"] = f"method={_inline(plain)}"
        if whole.seeds != self.recipe.seeds:
            last["seeds"] = f"seeds={_inline(self.recipe.seeds)}"
        return shlex.join(
            ["fedsense", "run", self.source, *(word for text in last.values() for word in ("--set", text))]
        )


@dataclass
class Plan:
    """The experiments of an item, by what its cells ask for."""

    item: Item
    experiments: dict[Key, Experiment] = field(default_factory=dict)

    def of(self, cell: Cell) -> Experiment:
        return self.experiments[_key(cell)]

    @property
    def ready(self) -> list[Experiment]:
        return [experiment for experiment in self.experiments.values() if not experiment.lacking]

    @property
    def runs(self) -> list[Experiment]:
        """Of those that are ready, the ones to run as they are: some items need no runs, or have their own."""
        return [] if self.item.own or self.item.draw == "counts" else self.ready

    @property
    def lacking(self) -> list[str]:
        return list(dict.fromkeys(name for each in self.experiments.values() for name in each.lacking))


def make_plan(card: Card, item: Item, ways: Ways) -> Plan:
    """What there is to run for an item."""
    needed: dict[Key, list[str]] = {}
    cells: dict[Key, Cell] = {}
    for entry in computed(item):
        for cell in (entry.cell, reference(item, entry.cell)) if entry.cell.measure == "drop" else (entry.cell,):
            cells.setdefault(_key(cell), cell)
            needed.setdefault(_key(cell), []).extend(filter(None, (cell.method, cell.of)))
    plan = Plan(item)
    for key, cell in cells.items():
        plan.experiments[key] = _experiment(card, cell, needed[key], ways)
    if item.own and item.setting:  # what its numbers are, it knows itself
        plan.experiments[_key(item)] = _experiment(card, item, (), ways)
    return plan


def computed(item: Item) -> list[Entry]:
    """The entries of an item that something is run for; of counts, where no method is, all."""
    return [e for e in item.entries() if not e.cell.why]


def reference(item: Item, cell: Cell) -> Cell:
    """What a drop is measured from: the same without what the item changes."""
    kept = tuple(text for text in cell.set if text not in item.set)
    return cell.model_copy(update={"set": kept, "measure": "score"})


def _inline(value: Any) -> str:
    """As TOML has it on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={_inline(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value, ensure_ascii=False)


def names_of(recipe: Recipe) -> list[str]:
    """The datasets of a recipe."""
    tables = recipe.several.values() or [recipe.data]
    return list(dict.fromkeys(str(table["name"]) for table in tables))


def absent(recipe: Recipe) -> list[str]:
    """The datasets of a recipe that are not there; only where they should be is looked at."""
    tables = recipe.several.values() or [recipe.data]
    return [str(table["name"]) for table in tables if not _is_there(str(table["name"]), table.get("root"))]


def _is_there(name: str, root: str | None) -> bool:
    if find_dataset(name).card.synthetic:
        return True
    if name == "moabb" and root is None:
        return "MNE_DATA" in os.environ
    try:
        find_root(name, root)
    except UserError:
        return name == "digits" and root is None and _is_there("mnist", None) and _is_there("usps", None)
    return True


def _experiment(card: Card, cell: Cell, methods: Sequence[str], ways: Ways) -> Experiment:
    setting = card.setting.get(cell.setting)
    if setting is None:
        raise UserError(f"{card.paper}: there is no setting '{cell.setting}'; {nearest(cell.setting, card.setting)}")
    after = [*cell.set]
    if ways.scale == "small":
        after += [*card.small, *setting.small, *cell.small]
    after += ways.set
    usual = [*setting.set, *after]
    recipe = _restricted(_loaded(setting.recipe, tuple(usual)), methods, ways.seeds)
    made = Experiment(_slug(cell.setting, cell.set), setting.recipe, tuple(usual), recipe, beside=setting.beside)
    lacking = (*absent(recipe), *(name for name in setting.beside if not _is_there(name, None)))
    if not lacking or not setting.nearest:
        return replace(made, lacking=lacking)
    other = [*setting.set, *setting.nearest, *after]
    near = _restricted(_loaded(setting.recipe, tuple(other)), methods, ways.seeds)
    if absent(near):
        return replace(made, lacking=lacking)
    if not ways.nearest:
        return replace(made, lacking=lacking, nearest=" + ".join(names_of(near)))
    name = "+".join(names_of(near)) + f"-for-{made.name}"
    return Experiment(name, setting.recipe, tuple(other), near, instead=made.datasets)


@lru_cache(256)  # tables share settings
def _loaded(source: str, overrides: tuple[str, ...]) -> Recipe:
    return load_recipe(source, overrides)


def _restricted(recipe: Recipe, methods: Iterable[str], seeds: int | None) -> Recipe:
    """Only these methods, in the recipe's order, and so many seeds: the recipe's first, then the next whole numbers."""
    labels = list(recipe.methods())
    wanted = set(methods)
    if unknown := wanted - set(labels):
        raise UserError(f"recipe '{recipe.name}' has no method '{min(unknown)}'; {nearest(min(unknown), labels)}")
    tables = [table for label, table in zip(labels, recipe.method, strict=True) if label in wanted or not wanted]
    numbers = recipe.seeds if seeds is None else tuple(_first(recipe.seeds, seeds))
    return recipe.model_copy(update={"method": tuple(tables), "seeds": numbers})


def _first(seeds: Sequence[int], count: int) -> Iterator[int]:
    yield from seeds[:count]
    yield from range(max(seeds) + 1, max(seeds) + 1 + count - len(seeds))


def _key(cell: Cell) -> Key:
    return cell.setting, cell.set, cell.small


def _slug(setting: str, overrides: Sequence[str]) -> str:
    """A folder's name a person can read: the setting, and what is overridden."""
    parts = [setting]
    for text in overrides:
        path, _, value = text.partition("=")
        short = re.sub(r"[^\w.+-]+", "-", value).strip("-")
        parts.append(f"{path.split('.')[-1]}={short if len(short) <= 24 else digest_of(text.encode()).hexdigest()[:6]}")
    whole = ",".join(parts)
    return whole if len(whole) <= 120 else f"{whole[:110]}-{digest_of(whole.encode()).hexdigest()[:6]}"


def how_to_get(name: str) -> str:
    """Where a dataset comes from, in a line."""
    card = find_dataset(name).card
    if card.downloads:
        return f"`fedsense data fetch {name}` (from {card.address})"
    return card.by_hand or f"see {card.address}"


def folder_of(paper: str, scale: Scale, out: Path | None) -> Path:
    """Where all runs of a paper are kept."""
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out names a folder")
    return out or Path("runs") / "reproduce" / f"{paper.lower()}-{scale}"
