"""Options by name: of a dataset, a method or a command, checked against what the function or class really takes."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedsense.errors import UserError, nearest

Made = TypeVar("Made")
_STRICT_ENOUGH = ConfigDict(strict=False, allow_inf_nan=False)


def options_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Name → type of the keywords a function takes, or of the fields of a dataclass."""
    return dict(_options_of(target))


@cache  # working out what annotations mean takes time
def _options_of(target: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(target)
    if dataclasses.is_dataclass(target):
        return {f.name: hints[f.name] for f in dataclasses.fields(target) if f.init}
    return {name: hints.get(name, Any) for name in inspect.signature(target).parameters}


def checked(what: str, given: Mapping[str, Any], allowed: Mapping[str, Any], *, dashes: bool = False) -> dict[str, Any]:
    """The given options with the right names and types, or a UserError that says which is wrong and what is right.

    ``classes-per-client`` and ``classes_per_client`` are the same; ``dashes``: messages write them with dashes.
    """
    result = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in allowed:
            dashed = dashes or "-" in key  # as the user writes them
            names = [n.replace("_", "-") for n in allowed] if dashed else [*allowed]
            raise UserError(f"{what} has no option '{key}'; {nearest(key, names)}", about=key)
        kinds = get_args(allowed[name]) or (allowed[name],)
        if isinstance(value, bool) and bool not in kinds and (int in kinds or float in kinds):
            raise UserError(f"{what}: '{key}' must be a number, and is {str(value).lower()}", about=key)
        try:
            result[name] = TypeAdapter(allowed[name], config=_STRICT_ENOUGH).validate_python(value)
        except ValidationError as error:
            raise UserError(f"{what}: '{key}' is {value!r}; {explain(error.errors()[0])}", about=key) from error
    return result


def kind_and_options(table: Any, kinds: Iterable[str], what: str) -> tuple[str, dict[str, Any]]:
    """The kind a table (or a word alone) names, one of ``kinds``, and its other entries."""
    if isinstance(table, str):
        table = {"kind": table}
    if not isinstance(table, Mapping):
        raise UserError(f'a {what} is {table!r}; expected its name, or a table: {{kind = "…", …}}')
    if "kind" not in table:
        raise UserError(f"a {what} needs a kind; valid names: {', '.join(sorted(kinds))}")
    kind = str(table["kind"]).replace("_", "-")
    if kind not in kinds:
        raise UserError(f"there is no {what} '{table['kind']}'; {nearest(kind, kinds)}", about=str(table["kind"]))
    return kind, {key: value for key, value in table.items() if key != "kind"}


def built(target: type[Made], options: Mapping[str, Any], without: tuple[str, ...] = ()) -> Made:
    """A dataclass with a ``kind`` from options a user wrote, but for the fields ``without``."""
    entry: Any = target
    allowed = {name: hint for name, hint in options_of(entry).items() if name not in without}
    written = {key.replace("-", "_"): key for key in options}
    given = checked(entry.kind, options, allowed)
    for name, key in written.items():  # true is 1 to a union of types
        if isinstance(options[key], bool) and allowed[name] is not bool:
            raise UserError(f"{entry.kind}: '{key}' must be a number, and is {str(options[key]).lower()}", about=key)
    for field in dataclasses.fields(entry):
        if field.default is dataclasses.MISSING and field.name not in given:
            example = f'{{kind = "{entry.kind}", {entry.example}}}'
            raise UserError(f"{entry.kind} needs '{field.name}', for example {example}", about=entry.kind)
    try:
        return target(**given)
    except UserError as error:
        raise UserError(str(error), written.get(error.about, error.about)) from error


def explain(error: Mapping[str, Any]) -> str:
    """A pydantic error in the words of this project."""
    kind = error["type"]
    plain = {
        "int_type": "expected a whole number",
        "int_parsing": "expected a whole number",
        "int_from_float": "expected a whole number",
        "float_type": "expected a number",
        "float_parsing": "expected a number",
        "finite_number": "expected a finite number",
        "bool_type": "expected true or false",
        "bool_parsing": "expected true or false",
        "string_type": "expected text in quotes",
        "list_type": "expected a list: [ … ]",
        "tuple_type": "expected a list: [ … ]",
        "dict_type": "expected a table",
        "missing": "it is required",
    }
    if kind in plain:
        return plain[kind]
    limits = {"greater_than": "above", "greater_than_equal": "at least", "less_than_equal": "at most"}
    if kind in limits:
        return f"it must be {limits[kind]} {next(iter(error['ctx'].values())):g}"
    if kind == "literal_error":
        return f"expected {error['ctx']['expected']}"
    if kind == "too_short":
        return "name at least one"
    if kind == "string_pattern_mismatch":
        return "use letters, digits, and . _ -"
    message = str(error["msg"])
    return message[:1].lower() + message[1:]
