"""Several commands of Flower's command line in one process, because each takes a second or two to start.

They are separated by ``--``; one that begins with ``-`` may fail.
"""

from __future__ import annotations

import sys


def main() -> None:
    import typer
    from click import ClickException
    from flwr.cli.app import app

    command = typer.main.get_command(app)
    commands: list[list[str]] = [[]]
    for word in sys.argv[1:]:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    for words in commands:
        may_fail = words[0] == "-"
        try:
            failed = command.main(words[may_fail:], prog_name="flwr", standalone_mode=False)
        except (ClickException, typer.Exit, SystemExit) as error:
            failed = error
        if failed and not may_fail:
            sys.exit(f"{failed}")


if __name__ == "__main__":
    main()
