"""Errors that say what, where, what was expected and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedsenseError(Exception):
    """Something went wrong that has a plain explanation; the command line shows the message and no traceback."""

    exit_code = 1


class UserError(FedsenseError, ValueError):
    """The input is wrong: a recipe, an option, a federation a method cannot serve. ``about`` is the word at fault."""

    exit_code = 2

    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(message)
        self.about = about


class RunFailed(FedsenseError):
    """A run could not go on."""


class Interrupted(FedsenseError):
    """The user stopped a run; it can be resumed."""

    exit_code = 130


class CheckpointError(FedsenseError):
    """A checkpoint is truncated, altered or unreadable."""


def nearest(name: object, choices: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest valid one, or all of them."""
    known, name = sorted(choices), str(name)
    close = get_close_matches(name.replace("_", "-"), known, n=1, cutoff=0.5) or get_close_matches(
        name.replace("-", "_"), known, n=1, cutoff=0.5
    )
    return f"did you mean '{close[0]}'?" if close else f"valid names: {', '.join(known) or '(none)'}"
