"""What a node's clients keep between rounds, on the node's disk, because Flower keeps a node's memory in memory only.

    KEEP/RUN/CLIENT/round-00007.safetensors
    KEEP/RUN/models.json                      how to build the clients' models, for ``fedsense export``

A file holds what a client had after a round: its state, and the model it trained where the state does not hold it. The
server says with every call which round's it takes as the client's (the last whose upload it used). So a state counts
only once the server has acknowledged it: one that a lost reply left behind is not used, and is overwritten. The one
before is kept, too, for a server that goes on from its previous checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedsense.bundle import Bundle, from_bytes, nested, to_bytes, within
from fedsense.engine.folder import read_json, write_atomically, write_json
from fedsense.errors import UserError, nearest
from fedsense.personal import PersonalModel, build

KEPT_BACK = 1  # rounds before the acknowledged one
MODELS_FILE = "models.json"


class Keep:
    """The store of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error}); name another folder to keep states in") from error

    def read(self, run: str, client: str, round: int) -> dict[str, Bundle] | None:
        """State and model as they were after a round, as a call holds them; None if there is no such (sound) file."""
        try:
            kept = from_bytes(self._path(run, client, round).read_bytes())
        except FileNotFoundError:
            return None
        except Exception:  # safetensors' own errors: a damaged file is as good as none
            return None
        model = {"model": {"model": kept["trained"]}} if "trained" in kept else {}
        return {"state": within(kept, "state"), **model}

    def write(self, run: str, client: str, round: int, state: Bundle, model: Bundle, base: int) -> None:
        """What a client has after a round that began with what it had after round ``base``."""
        path = self._path(run, client, round)
        path.parent.mkdir(parents=True, exist_ok=True)
        trained = {"trained": model["model"]} if model else {}
        write_atomically(path, to_bytes(nested("state", state) | trained))
        older = sorted(r for r in self.rounds(run, client) if r < base)
        for gone in older[: max(0, len(older) - KEPT_BACK)]:
            self._path(run, client, gone).unlink(missing_ok=True)

    def describe(self, run: str, models: Mapping[str, Any]) -> None:
        """Client → what it takes to build its model."""
        path = self._path(run, "any", 0).parents[1] / MODELS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, models)

    def rounds(self, run: str, client: str) -> list[int]:
        """The rounds there are files of."""
        names = [path.stem for path in self._path(run, client, 0).parent.glob("round-*.safetensors")]
        return sorted(int(name.removeprefix("round-")) for name in names)

    def _path(self, run: str, client: str, round: int) -> Path:
        if not re.fullmatch(r"[\w.=+-]+", run) or run.startswith("."):
            raise UserError(f"a run is called {run!r}, which is no name for a folder")
        whose = quote(client, safe=" ").replace(".", "%2E")  # no client's name leads out of the folder
        return self.folder / run / whose / f"round-{round:05}.safetensors"


def taken_home(folder: Path, client: str | None) -> PersonalModel:
    """A client's personal model as its node last trained it, from what the node keeps of one run."""
    models = read_json(folder / MODELS_FILE)
    if client is None:
        if len(models) > 1:
            raise UserError(f"{folder} has several clients; {nearest('', models)} (--client)")
        (client,) = models
    if client not in models:
        raise UserError(f"{folder} has no client '{client}'; {nearest(client, models)}")
    keep = Keep(folder.parent)
    done = keep.rounds(folder.name, client)
    kept = keep.read(folder.name, client, done[-1]) if done else None
    if kept is None:
        raise UserError(f"'{client}' has not trained yet in {folder}")
    about = models[client]
    if about is None:
        raise UserError(f"'{client}' has a network or a method of its own, which fedsense alone cannot build")
    params = kept["model"]["model"] if "model" in kept else kept["state"].get("model")
    if params is None:
        raise UserError(
            f"{folder} holds parts of the model of '{client}' only: the recipe scores what was received (moment), and "
            "the rest is the server's"
        )
    return build(client, params, about)
