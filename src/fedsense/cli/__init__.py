"""The command line. Commands import what they need when they run, so that help comes at once."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click
import typer

from fedsense.cli.commands import app
from fedsense.errors import FedsenseError, Interrupted


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit with 0 done, 1 failed, 2 the input is wrong, 130 interrupted."""
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="fedsense", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return Interrupted.exit_code
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a folder that cannot be written, a full disk
        if os.environ.get("FEDSENSE_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, PermissionError | FileNotFoundError | FileExistsError | NotADirectoryError) else 1
    except FedsenseError as error:
        if os.environ.get("FEDSENSE_DEBUG"):
            raise
        print(error if isinstance(error, Interrupted) else f"error: {error}", file=sys.stderr)
        return error.exit_code


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt
