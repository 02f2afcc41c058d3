"""A recipe is one TOML file: one experiment. A mistake in it is named, with its place and the nearest valid word."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from fedsense.data import find_dataset, load, merge
from fedsense.data.merging import Classes, check_classes, check_label
from fedsense.data.projections import How as Projection
from fedsense.engine.executors import Kind
from fedsense.engine.settings import VIEWS, Settings
from fedsense.engine.store import DEFAULT_MB
from fedsense.errors import UserError, nearest
from fedsense.evaluation.summary import check_selection
from fedsense.federation import Federation, Missing
from fedsense.method import Method
from fedsense.methods import find_method
from fedsense.models import MODELS, check_options
from fedsense.models.spec import ModelSpec
from fedsense.options import checked, explain, options_of

# what [data], and a table of [[data]], may say besides a dataset's options
OF_DATA: dict[str, Any] = {"missing": Missing, "projection": Projection}
OF_A_TABLE: dict[str, Any] = OF_DATA | {"label": str, "rename": dict[str, str]}


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
    track: tuple[str, ...] = ()  # who else is told how runs go: "tensorboard", "mlflow", "wandb"
    finish: bool = Field(False, strict=True)  # after the last round everyone trains once more, for itself
    classes: Any = None  # of several [[data]]: "common", "all" or a list
    data: Any  # [data], a table; or [[data]], a tuple of them
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

    @field_validator("track", mode="before")
    @classmethod
    def _known_trackers(cls, value: Any) -> Any:
        from fedsense.trackers import check_trackers

        names = (value,) if isinstance(value, str) else value
        if isinstance(names, list | tuple):
            check_trackers([str(name) for name in names])
        return names

    @field_validator("data")
    @classmethod
    def _tables(cls, value: Any) -> dict[str, Any] | tuple[dict[str, Any], ...]:
        if isinstance(value, Mapping):
            return dict(value)
        if not isinstance(value, list | tuple):
            raise UserError(f"'data' is {value!r}; expected a table")
        if not value:
            raise UserError("'data' is empty; name at least one")
        for number, table in enumerate(value):
            if not isinstance(table, Mapping):
                raise UserError(f"'data.{number}' is {table!r}; expected a table")
        return tuple(map(dict, value))

    @field_validator("classes")
    @classmethod
    def _choice(cls, value: Any) -> Classes | None:
        return None if value is None else check_classes(value)

    @model_serializer(mode="wrap")
    def _without_what_is_not_asked(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """One [data] has no choice of classes, and its resolved recipe does not speak of it; nor of no trackers."""
        written: dict[str, Any] = write(self)
        if self.classes is None:
            written.pop("classes", None)
        if not self.track:
            written.pop("track", None)
        return written

    @property
    def several(self) -> dict[str, dict[str, Any]]:
        """Label → table of [[data]]; none if there is one [data]."""
        return {} if isinstance(self.data, dict) else {_label(table): table for table in self.data}

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
            finish=self.finish,
        )

    def federation(self, seed: int) -> Federation:
        """The data, drawn with the run's seed unless the recipe fixes one of its own."""
        parts = {label: load(**options) for label, options in self.data_options(seed).items()}
        if self.several:
            return merge(list(parts.values()), self.classes, self.renamed, list(parts))
        (federation,) = parts.values()
        return federation

    def data_options(self, seed: int) -> dict[str, dict[str, Any]]:
        """Label → what ``load`` takes, of every data table; ``seed`` where a dataset draws and the table has none."""
        options = {}
        for label, table in (self.several or {"": self.data}).items():
            options[label] = {k.replace("-", "_"): v for k, v in table.items() if k not in ("label", "rename")}
            if "seed" in find_dataset(table["name"]).defaults():
                options[label].setdefault("seed", seed)
        return options

    @property
    def renamed(self) -> dict[str, dict[str, str]]:
        """Label → a dataset's class → its common name."""
        return {label: table.get("rename", {}) for label, table in self.several.items()}

    def model_spec(self) -> ModelSpec:
        options = {key.replace("-", "_"): value for key, value in self.model.items() if key not in ("name", "start")}
        names = self.model["name"]
        spec = ModelSpec.of(names if isinstance(names, str) else list(names))
        for name in spec.names:
            if name not in MODELS:
                raise UserError(f"there is no model '{name}'; {nearest(name, MODELS)}", about=name)
            check_options(name, options)
        start = self.model.get("start")
        if start is not None and not isinstance(start, str):
            raise UserError(f"model.start is {start!r}; name a file that `fedsense pretrain` wrote", about="start")
        return ModelSpec(spec.names, options, start=None if start is None else str(Path(start).absolute()))


def _label(table: Mapping[str, Any]) -> str:
    return str(table.get("label", table.get("name")))


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
    return make_recipe(raw, f"{where} with what --set changes" if overrides else where, text)


def make_recipe(raw: Mapping[str, Any], where: str = "recipe", text: str = "") -> Recipe:
    """A recipe from plain tables, every mistake explained."""
    try:
        tables = _normal(raw)
        if isinstance(tables.get("data"), list | tuple):
            tables.setdefault("classes", "common")
        recipe = Recipe.model_validate(tables)
        _check_names(recipe)
        recipe.methods()
        recipe.settings(0)
        return recipe
    except ValidationError as error:
        raise UserError("\n".join(_explain(e, where, text) for e in error.errors())) from error
    except UserError as error:
        within = error.within if isinstance(error, _InData) else None
        raise UserError(f"{where}{_line(text, error.about, within)}: {error}", error.about) from error


class _InData(UserError):
    """A mistake in one of several [[data]] tables, the one of this number."""

    def __init__(self, message: str, about: str, within: int) -> None:
        super().__init__(message, about)
        self.within = within


@cache
def builtin_recipes() -> dict[str, str]:
    """Name → text of the recipes that come with fedsense; those of a paper are in a folder of its name."""
    folder = resources.files("fedsense") / "recipes"
    found = {}
    for entry in folder.iterdir():
        for file in [entry] if entry.is_file() else entry.iterdir():
            name = file.name if entry.is_file() else f"{entry.name}/{file.name}"
            if name.endswith(".toml") and not name.endswith("/published.toml"):  # that is a paper's card
                found[name.removesuffix(".toml")] = file.read_text(encoding="utf-8")
    return dict(sorted(found.items(), key=lambda item: ("/" in item[0], item[0])))


def _check_names(recipe: Recipe) -> None:
    if isinstance(recipe.data, dict):
        _check_single(recipe)
    else:
        for number, table in enumerate(recipe.data):
            try:
                _check_table(table, f"data.{number}", OF_A_TABLE)
                check_label(_label(table))
            except UserError as error:
                raise _InData(str(error), error.about, number) from error
        _refuse_one_label_twice(recipe.data)
    name = _name_of("model", recipe.model)
    several = isinstance(name, list) and all(isinstance(n, str) for n in name)
    if not isinstance(name, str) and not several:
        raise UserError(f"model.name is {name!r}; it must be text in quotes", about="name")
    recipe.model_spec()


def _check_single(recipe: Recipe) -> None:
    for key in ("label", "rename"):
        if key in recipe.data:
            raise UserError(f"{key} is for several data tables; write each as [[data]]", about=key)
    if recipe.classes is not None:
        raise UserError(
            "classes chooses among those of several [[data]] tables; of one, say it in [data]: classes = […]",
            about="classes",
        )
    _check_table(recipe.data, "data", OF_DATA)


def _check_table(table: Mapping[str, Any], where: str, besides: Mapping[str, Any]) -> None:
    """The dataset there is, its options, and what a table may say ``besides``."""
    name = _name_of("data", table, where)
    if not isinstance(name, str):
        raise UserError(f"{where}.name is {name!r}; it must be text in quotes", about="name")
    dataset = find_dataset(name)
    options = {key: value for key, value in table.items() if key != "name"}
    checked("data", {key: options.pop(key) for key in besides if key in options}, besides)
    dataset.parse(options)


def _name_of(what: str, table: Mapping[str, Any], where: str = "") -> Any:
    if table.get("name") is None:
        raise UserError(f"[{where or what}] needs a name")
    return table["name"]


def _refuse_one_label_twice(tables: Sequence[Mapping[str, Any]]) -> None:
    seen: set[str] = set()
    for number, table in enumerate(tables):
        if _label(table) in seen:
            raise _InData(
                f"two [[data]] tables are called '{_label(table)}'; give each a label of its own: label = \"…\"",
                "label" if "label" in table else str(table["name"]),
                number,
            )
        seen.add(_label(table))


def _normal(raw: Mapping[str, Any]) -> dict[str, Any]:
    """``weight-decay`` is ``weight_decay``; data, model or method named by a word alone is a table with that name."""
    tables = {key.replace("-", "_"): value for key, value in raw.items()}
    for name in ("evaluation", "training"):
        if isinstance(tables.get(name), Mapping):
            tables[name] = {key.replace("-", "_"): value for key, value in tables[name].items()}
    for name in ("data", "model"):
        if isinstance(tables.get(name), str):
            tables[name] = {"name": tables[name]}
    if isinstance(tables.get("method"), str | Mapping):
        tables["method"] = [tables["method"]]
    for name in ("data", "method"):
        if isinstance(tables.get(name), list):
            tables[name] = [{"name": entry} if isinstance(entry, str) else entry for entry in tables[name]]
    return tables


def override(raw: dict[str, Any], setting: str) -> None:
    """Put ``a.b=c`` into the tables. A method, or a data table, is found by its name or label, or by its number."""
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
            place = place[_entry(place, key, setting, keys[:depth])]
        else:
            place = place.setdefault(key, {})
        if not isinstance(place, dict | list):
            raise UserError(f"--set {setting}: '{'.'.join(keys[: depth + 1])}' is a value, not a table")
    if isinstance(place, list):
        place[_entry(place, keys[-1], setting, keys[:-1])] = value
    else:
        place[keys[-1]] = value


def _entry(tables: list[Any], key: str, setting: str, path: Sequence[str]) -> int:
    """Which of the tables is meant: by number, label or name."""
    names = [[str(t[k]) for k in ("label", "name") if k in t] if isinstance(t, dict) else [] for t in tables]
    found = [i for i, known in enumerate(names) if key in (str(i), *known)]
    what = path[-1]
    if what == "data" and len(found) > 1:
        ways = ", ".join(f"data.{i}" for i in found)
        raise UserError(f"--set {setting}: several data tables are '{key}'; say which by its label or number: {ways}")
    if found:
        return found[0]
    shown = [known[0] if known else str(i) for i, known in enumerate(names)]
    if what == "data":
        raise UserError(
            f"--set {setting}: the recipe has {len(tables)} data tables, and none is '{key}'; "
            f"say which by its label or number, such as data.{shown[0]}.root=…; labels: {', '.join(shown)}"
        )
    raise UserError(f"--set {setting}: the recipe has no {what} '{key}'; {nearest(key, shown)}")


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


def _line(text: str, word: str, within: int | None = None) -> str:
    """Where in the file: the line that has the word as a key, or else as a value.

    ``within`` is the number of the [[data]] table to look in, if the file has it.
    """
    key = re.escape(word).replace("_", "[-_]")
    lines = text.splitlines() if word else []
    places = range(len(lines)) if within is None else _data_table(lines, within)
    for pattern in (rf"^\s*\[?{key}\]?\s*$", rf"^\s*\"?{key}\"?\s*=", rf"=.*[\"']{key}[\"']", rf"\b{key}\b\s*="):
        for number in places:
            if re.search(pattern, lines[number]):
                return f", line {number + 1}"
    return ""


def _data_table(lines: Sequence[str], number: int) -> range:
    """The lines of the [[data]] table of this number; all lines, if tables are written in another way."""
    starts = [i for i, line in enumerate(lines) if re.match(r"\s*\[", line)]
    mine = [i for i in starts if re.match(r"\s*\[\[\s*data\s*\]\]", lines[i])]
    if number >= len(mine):
        return range(len(lines))
    after = [i for i in starts if i > mine[number] and not re.match(r"\s*\[+\s*data\.", lines[i])]
    return range(mine[number], min(after, default=len(lines)))
