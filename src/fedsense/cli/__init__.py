"""The command line. Everything is imported when it is used, so that help comes at once and Ctrl-C is met anywhere."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import warnings
from typing import Any

from fedsense.errors import FedsenseError, Interrupted, RunFailed, UserError


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit with 0 done, 1 failed, 2 the input is wrong, 130 interrupted."""
    signal.signal(signal.SIGTERM, _stop)
    _warn_in_lines()
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _run(arguments: list[str]) -> int:
    try:
        return _command(arguments)
    except KeyboardInterrupt:
        return _explain(Interrupted("interrupted"), arguments)
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FedsenseError, OSError) as error:  # OSError: a folder that cannot be written, a full disk
        if os.environ.get("FEDSENSE_DEBUG"):
            raise
        return _explain(_full_disk() if getattr(error, "errno", None) == errno.ENOSPC else error, arguments)
    except (MemoryError, RuntimeError) as error:
        if os.environ.get("FEDSENSE_DEBUG") or not _is_lack_of_memory(error):
            raise
        return _explain(UserError(f"{_out_of_memory(error)}, ask for fewer samples or clients"), arguments)


def _in_words(error: OSError) -> str:
    """Which file, and what of it; not the number the system has for it, nor the name it is written under at first."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{str(error.filename).removesuffix('.partial')}: {error.strerror[0].lower()}{error.strerror[1:]}"


def _full_disk() -> RunFailed:
    return RunFailed(
        "the disk is full. What runs had saved is kept: make room, and the same command goes on (with --resume, if "
        "it is a run). Models of finished runs take most of it; fedsense pack keeps what was measured, without them"
    )


def _is_lack_of_memory(error: MemoryError | RuntimeError) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)  # torch's is a RuntimeError


def _out_of_memory(error: MemoryError | RuntimeError) -> str:
    lines = str(error).rpartition("can't allocate memory: ")[2].splitlines()  # Python's own error says nothing
    return f"out of memory: {lines[0].rstrip('.')}" if lines else "out of memory"


def _command(arguments: list[str]) -> int:
    import click
    import typer

    from fedsense.cli.commands import app

    try:
        code = typer.main.get_command(app).main(arguments, prog_name="fedsense", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None


def _explain(error: FedsenseError | OSError, arguments: list[str]) -> int:
    """The message on standard error; with --json also a document for the program that asked."""
    told = _in_words(error) if isinstance(error, OSError) else str(error)
    print(told if isinstance(error, Interrupted) else f"error: {told}", file=sys.stderr)
    if "--json" in arguments:
        document: dict[str, Any] = {} if arguments[0] == "data" else {"results": [], "cost": [], "folder": None}
        print(json.dumps({**document, "error": told}))
    if isinstance(error, FedsenseError):
        return error.exit_code
    return 2 if isinstance(error, PermissionError | FileNotFoundError | FileExistsError | NotADirectoryError) else 1


def _warn_in_lines() -> None:
    """Say each warning once, in a line; where in the code it arose is of no use to who typed a command."""
    said = set()

    def say(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in said:
            said.add(text)
            print(f"warning: {text}", file=sys.stderr)

    warnings.showwarning = say


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt
