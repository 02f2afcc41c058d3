"""Flower's own programs, started with what a fleet needs, and ended with whoever started them."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fedsense.engine.executors import PR_SET_PDEATHSIG
from fedsense.errors import RunFailed

POLL = 0.5  # seconds between two looks of Flower's task starter for something to start; its own default is 1
PATIENCE = 60.0  # seconds a program may take to start
GENTLE = 3.0  # seconds a program has to end when it is told to


def environment(home: Path) -> dict[str, str]:
    """What Flower's programs shall know: their own home, no telemetry, no look for updates, our programs first."""
    here = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(POLL),
        "PATH": os.pathsep.join([here, os.environ.get("PATH", "")]),
    }


def free_port() -> int:
    """A port of loopback nobody uses now."""
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return int(end.getsockname()[1])


class Program:
    """A program in a group of its own; it ends with this process, however that ends (on Linux)."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], output: Path) -> None:
        self.output = output
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as file:
            self.process = _started(words, env, file)

    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Until it is ready; says what it printed if it ended before."""
        end = time.monotonic() + PATIENCE
        while not ready():
            if not self.alive() or time.monotonic() > end:
                raise RunFailed(f"{what} did not start; the end of {self.output}:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 12) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """The whole group ends, in the end by force."""
        for how, wait in ((signal.SIGTERM, GENTLE), (signal.SIGKILL, GENTLE)):
            try:
                os.killpg(self.process.pid, how)
            except ProcessLookupError:
                return
            try:
                self.process.wait(wait)
            except subprocess.TimeoutExpired:
                continue
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # what it started and did not end itself
        except ProcessLookupError:
            return


def end_with_parent(how: signal.Signals = signal.SIGTERM) -> None:
    """This process gets a signal when the one that started it ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)


def _started(words: Sequence[str], env: Mapping[str, str], file: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(words),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


def answers(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


def flwr(env: Mapping[str, str], *commands: Sequence[str]) -> list[dict[str, Any]]:
    """What commands of Flower's command line answer; one that begins with ``-`` may fail."""
    words = [word for command in commands for word in (*command, "--")][:-1]
    done = subprocess.run([sys.executable, "-m", "fedsense.flower.cli", *words], env=dict(env), capture_output=True)
    said = (done.stderr + done.stdout).decode(errors="replace").strip()
    if done.returncode:
        raise RunFailed(f"Flower does not do what it was asked to: {said}")
    text = done.stdout.decode()
    read = json.JSONDecoder().raw_decode
    found: list[dict[str, Any]] = [read(text, start.start())[0] for start in re.finditer(r"^\{", text, re.M)]
    for answer in found:
        if not answer.get("success", True):
            raise RunFailed(f"Flower does not do what it was asked to: {answer.get('error-message', said).strip()}")
    return found


def toml(values: Mapping[str, Any]) -> str:
    """As Flower's ``--run-config`` wants it."""
    return " ".join(f"{key}={_literal(value)}" for key, value in values.items())


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else f"'{value}'"
