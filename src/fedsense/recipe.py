"""A recipe is one TOML file: one experiment. A mistake in it is named, with its place and the nearest valid word."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedsense.data import find_dataset, load
from fedsense.engine.executors import Kind
from fedsense.engine.rounds import VIEWS, Settings
from fedsense.engine.store import DEFAULT_MB
from fedsense.errors import UserError, nearest
from fedsense.evaluation.summary import check_selection
from fedsense.federation import Federation, Missing
from fedsense.method import Method
from fedsense.methods import find_method
from fedsense.models import MODELS, check_options
from fedsense.models.spec import ModelSpec
from fedsense.options import checked, explain, options_of


class Table(BaseModel):
    """A table of a recipe: no keys but those it has."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Evaluation(Table):
    """When and how clients are scored."""

    every: int = Field(1, ge=1)
    views: tuple[str, ...] = VIEWS
    metrics: tuple[str, ...] = ("accuracy", "macro-f1")
    moment: Literal["trained", "received"] = "trained"
    pool: int | None = Field(2000, ge=0)  # 0: no limit
    summary: str = "final"  # "final", "last-K", "validation" or "best-on-test"

    @field_validator("summary")
    @classmethod
    def _known(cls, value: str) -> str:
        check_selection(value)
        return value


class Training(Table):
    """How clients train, for every method whose own table does not say otherwise."""

    batch: int | None = None
    epochs: int | None = None
    optimiser: Literal["sgd", "adam"] | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    clip: float | None = None


class Recipe(Table):
    """One experiment: a federation, a model, methods and seeds."""

    name: str = Field("experiment", pattern=r"^[\w.-]+$")
    description: str = ""
    paper: str = ""  # what it carries out, or resembles
    rounds: int = Field(20, ge=1, strict=True)
    participation: float = Field(1.0, gt=0, le=1)
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    executor: Kind = "auto"
    workers: int | None = Field(None, ge=1, strict=True)
    device: str = "auto"
    state_memory: int = Field(DEFAULT_MB, ge=0, strict=True)  # MB
    data: dict[str, Any]
    model: dict[str, Any]
    evaluation: Evaluation = Evaluation()
    training: Training = Training()
    method: tuple[dict[str, Any], ...] = Field(min_length=1)

    @field_validator("seeds")
    @classmethod
    def _different(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise UserError(f"seeds {list(value)} name one twice; the same seed gives the same run")
        return value

    def methods(self) -> dict[str, Method]:
        """Label → method, in the recipe's order."""
        result: dict[str, Method] = {}
        defaults = self.training.model_dump(exclude_none=True)
        for table in self.method:
            own = {key: value for key, value in table.items() if key not in ("name", "label")}
            if not isinstance(table.get("name"), str):
                raise UserError("a [[method]] table needs a name, text in quotes")
            kind = find_method(table["name"])
            allowed = options_of(kind)
            own = checked(f"method '{kind.name}'", own, allowed)
            label = str(table.get("label", kind.name))
            if not re.fullmatch(r"[\w.=+ -]+", label):
                raise UserError(f"label '{label}': use letters, digits, spaces and . = + - _")
            if label in result:
                raise UserError(f"two methods are called '{label}'; give each a label of its own: label = \"…\"")
            result[label] = kind(**{**{k: v for k, v in defaults.items() if k in allowed}, **own})
        return result

    def settings(self, seed: int) -> Settings:
        e = self.evaluation
        return Settings(
            rounds=self.rounds,
            seed=seed,
            participation=self.participation,
            every=e.every,
            views=e.views,
            metrics=e.metrics,
            moment=e.moment,
            pool=e.pool,
            executor=self.executor,
            workers=self.workers,
            device=self.device,
            state_memory=self.state_memory,
        )

    def federation(self, seed: int) -> Federation:
        """The data, drawn with the run's seed unless the recipe fixes one of its own."""
        options = {key.replace("-", "_"): value for key, value in self.data.items() if key != "name"}
        return load(self.data["name"], default_seed=seed, **options)

    def model_spec(self) -> ModelSpec:
        options = {key.replace("-", "_"): value for key, value in self.model.items() if key != "name"}
        names = self.model["name"]
        spec = ModelSpec.of(names if isinstance(names, str) else list(names))
        for name in spec.names:
            if name not in MODELS:
                raise UserError(f"there is no model '{name}'; {nearest(name, MODELS)}", about=name)
            check_options(name, options)
        return ModelSpec(spec.names, options)


def load_recipe(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a file, or one that comes with fedsense by its name; ``overrides`` are ``a.b=c``."""
    path = Path(source)
    if path.is_dir():
        raise UserError(f"'{source}' is a folder; give a recipe file (.toml), or the name of a recipe")
    if path.is_file():
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError) as error:
            raise UserError(f"{where} cannot be read as text: {error}") from error
    elif str(source) in builtin_recipes():
        text, where = builtin_recipes()[str(source)], f"recipe '{source}'"
    else:
        known = builtin_recipes()
        raise UserError(f"there is no recipe file '{source}', nor does a recipe of that name come with fedsense; "
                        f"{nearest(str(source), known)}")  # fmt: skip
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where} is not valid TOML: {error}") from error
    raw = _normal(raw)
    for text_of in overrides:
        override(raw, text_of)
        raw = _normal(raw)
        key = re.escape(text_of.partition("=")[0].split(".")[-1].strip())
        text = re.sub(rf"(?m)^\s*{key}\s*=.*$", "", text)  # what is overridden is not in any line of the file
    return make_recipe(raw, where, text)


def make_recipe(raw: Mapping[str, Any], where: str = "recipe", text: str = "") -> Recipe:
    """A recipe from plain tables, every mistake explained."""
    try:
        recipe = Recipe.model_validate(_normal(raw))
        _check_names(recipe)
        recipe.methods()
        recipe.settings(0)
        return recipe
    except ValidationError as error:
        raise UserError("\n".join(_explain(e, where, text) for e in error.errors())) from error
    except UserError as error:
        raise UserError(f"{where}{_line(text, error.about)}: {error}", error.about) from error


def builtin_recipes() -> dict[str, str]:
    """Name → text of the recipes that come with fedsense; those of a paper are in a folder of its name."""
    folder = resources.files("fedsense") / "recipes"
    found = {}
    for entry in folder.iterdir():
        for file in [entry] if entry.is_file() else entry.iterdir():
            name = file.name if entry.is_file() else f"{entry.name}/{file.name}"
            if name.endswith(".toml"):
                found[name.removesuffix(".toml")] = file.read_text(encoding="utf-8")
    return dict(sorted(found.items(), key=lambda item: ("/" in item[0], item[0])))


def _check_names(recipe: Recipe) -> None:
    for table in ("data", "model"):
        name = getattr(recipe, table).get("name")
        if name is None:
            raise UserError(f"[{table}] needs a name")
        several = table == "model" and isinstance(name, list) and all(isinstance(n, str) for n in name)
        if not isinstance(name, str) and not several:
            raise UserError(f"{table}.name is {name!r}; it must be text in quotes", about="name")
    dataset = find_dataset(recipe.data["name"])
    options = {key: value for key, value in recipe.data.items() if key != "name"}
    checked("data", {key: options.pop(key) for key in ("missing",) if key in options}, {"missing": Missing})
    dataset.parse(options)
    recipe.model_spec()


def _normal(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``weight-decay`` is ``weight_decay``; data, model or method named by a word alone is a table with that name."""
    tables = {key.replace("-", "_"): value for key, value in raw.items()}
    for name in ("evaluation", "training"):
        if isinstance(tables.get(name), Mapping):
            tables[name] = {key.replace("-", "_"): value for key, value in tables[name].items()}
    for name in ("data", "model"):
        if isinstance(tables.get(name), str):
            tables[name] = {"name": tables[name]}
    methods = tables.get("method")
    if isinstance(methods, str | Mapping):
        methods = [methods]
    if isinstance(methods, list):
        tables["method"] = [{"name": method} if isinstance(method, str) else method for method in methods]
    return tables


def override(raw: dict[str, Any], setting: str) -> None:
    """Put ``a.b=c`` into the tables. A method is found by its name or label, or by its number from 0."""
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"--set {setting}: write it as table.key=value, for example --set training.lr=0.1")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    place: Any = raw
    for depth, key in enumerate(keys[:-1]):
        if isinstance(place, list):
            place = _entry(place, key, setting)
        else:
            place = place.setdefault(key, {})
        if not isinstance(place, dict | list):
            raise UserError(f"--set {setting}: '{'.'.join(keys[: depth + 1])}' is a value, not a table")
    if isinstance(place, list):
        place[place.index(_entry(place, keys[-1], setting))] = value
    else:
        place[keys[-1]] = value


def _entry(tables: list[Any], key: str, override: str) -> Any:
    for i, table in enumerate(tables):
        if key in (str(i), table.get("label"), table.get("name")):
            return table
    names = [str(t.get("label", t.get("name"))) for t in tables]
    raise UserError(f"--set {override}: the recipe has no method '{key}'; {nearest(key, names)}")


def _explain(error: Mapping[str, Any], where: str, text: str) -> str:
    place = [str(part) for part in error["loc"]]
    name = ".".join(place)
    if error["type"] == "extra_forbidden":
        table: Any = Recipe
        for part in place[:-1]:
            table = {"evaluation": Evaluation, "training": Training}.get(part, table)
        return f"{where}{_line(text, place[-1])}: unknown key '{name}'; {nearest(place[-1], table.model_fields)}"
    if error["type"] == "missing":
        return f"{where}: '{name}' is missing; " + _EXAMPLES.get(name, "it is required")
    if error["type"] == "value_error":
        return f"{where}{_line(text, place[-1])}: {error['ctx']['error']}"
    given = f" is {error['input']!r}" if not isinstance(error["input"], dict | list) else ""
    return (
        f"{where}{_line(text, next(p for p in reversed(place) if not p.isdigit()))}: '{name}'{given}; {explain(error)}"
    )


_EXAMPLES = {
    "data": 'say which data, for example\n    [data]\n    name = "synthetic-imu"',
    "model": 'say which network, for example\n    [model]\n    name = "coad-cnn"',
    "method": 'name at least one, for example\n    [[method]]\n    name = "fedavg"',
}


def _line(text: str, word: str) -> str:
    """Where in the file: the line that has the word as a key, or else as a value."""
    key = re.escape(word).replace("_", "[-_]")
    for pattern in (rf"^\s*\[?{key}\]?\s*$", rf"^\s*\"?{key}\"?\s*=", rf"=.*[\"']{key}[\"']", rf"\b{key}\b\s*="):
        for number, line in enumerate(text.splitlines() if word else (), 1):
            if re.search(pattern, line):
                return f", line {number}"
    return ""
