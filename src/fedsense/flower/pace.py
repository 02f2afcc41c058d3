"""How long Flower waits before it looks again, shortened: of a short round that was most.

Flower 1.41 has no settings for these. A SuperNode that found no message sleeps for three seconds, one that waits for
an answer half a second; whoever asks for a piece of a message that is still on its way waits a second, then two, …
Here whoever has waited for long looks less often (:class:`Patience`): a tenth of the time it has waited is added to it
at most, and a server is not busy with nodes that ask for nothing. Where a later version does not have what is changed
here, nothing is changed.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from types import SimpleNamespace
from typing import Any

LOOK = 0.2  # seconds between two looks for a message at least, unless FEDSENSE_FLEET_POLL says otherwise
IDLE = 3.0  # seconds Flower itself sleeps when there was none
FIRST, LONGEST = 0.05, 1.0  # seconds after which a piece that was not there is asked for again
SHARE = 0.1  # of the time somebody has waited, until it looks again


class Patience:
    """Pauses that grow with the time waited so far."""

    def __init__(self, shortest: float, longest: float) -> None:
        self.shortest, self.longest = shortest, longest
        self._since: float | None = None

    def over(self) -> None:
        """What was waited for came."""
        self._since = None

    def pause(self) -> float:
        """Seconds until the next look."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return min(self.longest, max(self.shortest, SHARE * (now - self._since)))


def quicken() -> None:
    """Pieces of messages, in this process."""
    from flwr.supercore.inflatable import inflatable_utils

    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        waits: dict[str, Any] = getattr(getattr(inflatable_utils, name, None), "__kwdefaults__", None) or {}
        if {"initial_backoff", "backoff_cap"} <= waits.keys():
            waits |= {"initial_backoff": FIRST, "backoff_cap": LONGEST}


def supernode() -> None:
    """``flower-supernode``, at this pace."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode

    quicken()
    patience = Patience(float(os.environ.get("FEDSENSE_FLEET_POLL", LOOK)), IDLE)
    module: Any = loop
    if getattr(module, "time", None) is time:
        module.time = SimpleNamespace(sleep=lambda seconds: time.sleep(_shortened(seconds, patience)))
    try:
        flower_supernode()
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # its other threads would keep a SuperNode that has given up from ending


def _shortened(seconds: float, patience: Patience) -> float:
    if seconds >= IDLE:  # there was no message
        return patience.pause()
    patience.over()  # there is one: its answer is waited for, or sent
    return min(seconds, patience.shortest)


if __name__ == "__main__":
    supernode()
