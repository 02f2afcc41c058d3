"""fedsense beside its peers: seconds a round, start-up and memory on three workloads.

    pip install 'fedsense[bench]'
    python benchmarks/peers.py [--workloads W1 W3] [--systems fedsense plain] [--repeat 3] [--rounds 5] [--json FILE]

- W1, cross-device: 100 clients of 128 windows (6×128), a convolutional network of 1.43 M multiplications a window;
  FedAvg, SGD with momentum, minibatches of 32, five local epochs, ten clients a round, 20 rounds.
- W2, cross-silo: the same network, 20 clients of 256 windows, all in every round, minibatches of 64, two epochs,
  5 rounds.
- W3, a tiny network with personal heads (FLIC's MLP trained as FedRep does): 100 clients of 500 samples of 30 numbers;
  nine epochs of the head, then one of the body, which alone is averaged; Adam, minibatches of 100, ten clients a round,
  20 rounds.

Nobody evaluates. Data (noise about a template of each class, from a fixed seed), starting values and amount of work are
the same for all; which clients take part and in which order samples come is each system's own. The loss of the last
round, and how far the averaged parameters have moved from where they started, show that all did the same.

Every system is set up as well as its documentation allows:

- fedsense: ``fedsense.run`` with its defaults.
- flower 2×1: Flower's simulation with two Ray workers of one CPU and one thread. Its own FedAvg and message API, the
  network as an ArrayRecord of its state_dict; evaluation, telemetry, dashboard, usage statistics, memory monitor and
  logs off; data and network made once in each worker; the server looks for replies every 10 ms (100 by default). Heads
  are kept in the client's Context, the only place that follows a client to whichever worker serves it.
- pfl-research 2×1 and 1×2: two workers of one thread joined by torch.distributed (gloo), or one process of two threads.
  Its own FederatedAveraging, PyTorchModel and SimulatedBackend without evaluation and metrics. Heads are kept in its
  InMemoryUserStateStorage, a dictionary of the process, with its CrossSiloUserSampler, which leaves a client with one
  worker: nothing of them travels.
- plain, 1 and 2 threads: a loop over nn.Module and torch.optim in PyTorch's usual layout, one process.
- two-process: the same loop, each process of one thread taking half of a round's clients, averaged in shared memory.

All but fedsense have torch's fused optimisers, and minibatches that are views of a tensor put in order once an epoch.

Each run has processes of its own, and systems take turns: all of them once, then all again. Reported are medians over
repetitions of: the median round after the first; start-up, from the start of the process to the beginning of the first
round (Flower begins its first round before its workers are there, so to the first client's work); the first round,
which in PyTorch's optimisers pays for late imports; the greatest sum over all processes of resident memory (RSS, which
counts what is shared once for each) and of its proportional kind (PSS, which does not). The ratio to fedsense is taken
within a repetition. GFLOP/s are those of ``operations`` in peers_work.py, to be compared with a product of two
1024×1024 matrices on two threads, measured in between.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from peers_work import WORKLOADS

STARTED, MARK = "PEERS_STARTED", "PEERS_MARK"  # environment of a run: when it began; what its processes are known by
RSS_EVERY, PSS_EVERY = 0.2, 1.0  # seconds; PSS costs the system that is looked at, so it is looked at less often
TIMEOUT = 900
QUIET = 0.1  # cores that may be busy with something else while a run is measured


@dataclass(frozen=True)
class System:
    """A module with ``run(workload, rounds, workers, threads)``, and the packages it needs."""

    module: str
    workers: int
    threads: int
    needs: tuple[str, ...] = ()


SYSTEMS = {
    "fedsense": System("peers_fedsense", 2, 1),
    "flower 2x1": System("peers_flower", 2, 1, ("flwr", "ray")),
    "pfl-research 2x1": System("peers_pfl", 2, 1, ("pfl",)),
    "pfl-research 1x2": System("peers_pfl", 1, 2, ("pfl",)),
    "plain 1 thread": System("peers_loop", 1, 1),
    "plain 2 threads": System("peers_loop", 1, 2),
    "two-process": System("peers_loop", 2, 1),
}


def one(name: str, workload: str, rounds: int | None) -> dict[str, Any]:
    """A run in this process."""
    started = float(os.environ.get(STARTED, time.time()))
    system, work = SYSTEMS[name], WORKLOADS[workload]
    outcome = importlib.import_module(system.module).run(work, rounds or work.rounds, system.workers, system.threads)
    return outcome.measured(started, work)  # type: ignore[no-any-return]


def sgemm(size: int = 1024, times: int = 30) -> dict[str, Any]:
    """GFLOP/s of a product of two square matrices on two threads and on one."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    found = {}
    for threads in (2, 1):
        torch.set_num_threads(threads)
        took = []
        for _ in range(times):
            began = time.perf_counter()
            a @ b
            took.append(time.perf_counter() - began)
        found[threads] = 2 * size**3 / statistics.median(took[3:]) / 1e9
    return {
        "gflops": found[2],
        "one_thread": found[1],
        "versions": {"torch": torch.__version__, "numpy": importlib.metadata.version("numpy")},
    }


class Failed(Exception):
    pass


class Family:
    """All processes of a run, with their memory; Ray's, too, that leave their parents."""

    def __init__(self, root: int, mark: str) -> None:
        self.root, self.mark = root, f"{MARK}={mark}".encode()
        self.known = {root: _stat(root).began}  # process → when it started, as numbers are used again
        self.rss = self.pss = 0
        self._pss_at = 0.0
        self._cpu: dict[tuple[int, str], int] = {}
        self._strangers: set[tuple[str, str]] = set()
        self._began, self._busy = time.monotonic(), _busy()

    def look(self) -> None:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in self.known:
                continue
            try:
                stat = _stat(int(entry.name))
                ours = stat.parent in self.known or stat.session == self.root
                if not ours and (entry.name, stat.began) not in self._strangers:
                    ours = self.mark in (entry / "environ").read_bytes()
            except OSError:  # gone, or another user's
                continue
            if ours:
                self.known[int(entry.name)] = stat.began
            else:
                self._strangers.add((entry.name, stat.began))
        self.rss = max(self.rss, sum(map(_rss, self.alive())))
        if time.monotonic() - self._pss_at >= PSS_EVERY:
            self.pss = max(self.pss, sum(map(_pss, self.alive())))
            self._pss_at = time.monotonic()

    def alive(self) -> list[int]:
        for process, began in list(self.known.items()):
            try:
                stat = _stat(process)
            except OSError:
                del self.known[process]
                continue
            if stat.began == began:
                self._cpu[process, began] = stat.ticks
            else:
                del self.known[process]
        return list(self.known)

    def elsewhere(self) -> float:
        """How many cores were busy with something else."""
        ticks = _busy() - self._busy - sum(self._cpu.values())
        return max(0.0, ticks / os.sysconf("SC_CLK_TCK") / (time.monotonic() - self._began))

    def end(self) -> None:
        for process in self.alive():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


class Stat(NamedTuple):
    parent: int
    session: int
    began: str
    ticks: int  # of processor time


def _stat(process: int) -> Stat:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return Stat(int(fields[1]), int(fields[3]), fields[19], int(fields[11]) + int(fields[12]))


def _busy() -> int:
    """Ticks all cores have been busy: as users, niced, system, interrupts."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return user + nice + system + sum(interrupts)


def _rss(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _pss(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def alone(arguments: Sequence[str]) -> dict[str, Any]:
    """Run this file with arguments in a process of its own, watched; what it told, with peaks of memory."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:  # not pipes, which a child may keep open
        env = {**os.environ, MARK: mark, "PYTHONWARNINGS": "ignore", STARTED: repr(time.time())}
        command = [sys.executable, str(Path(__file__).resolve()), *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env, start_new_session=True)
        family, limit = Family(process.pid, mark), time.monotonic() + TIMEOUT
        try:
            while process.poll() is None and time.monotonic() < limit:
                family.look()
                time.sleep(RSS_EVERY)
        finally:
            elsewhere = family.elsewhere()
            family.end()
            code = process.wait()
        out.seek(0), err.seek(0)
        told, complaints = out.read().decode().splitlines(), err.read().decode(errors="replace").splitlines()
    if code or not told:
        late = [f"it was stopped after {TIMEOUT} s"] if time.monotonic() >= limit else []
        raise Failed("\n".join(complaints[-8:] + late) or f"it ended with code {code}")
    peaks = {"peak_rss_mb": family.rss / 1e6, "peak_pss_mb": family.pss / 1e6}
    return {**json.loads(told[-1]), **peaks, "cores_elsewhere": elsewhere}


def missing(system: System) -> list[str]:
    return [package for package in system.needs if importlib.util.find_spec(package) is None]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


Runs = dict[str, dict[int, dict[str, Any]]]  # system → repetition → what it told


def measure(systems: Sequence[str], workloads: Sequence[str], repeat: int, rounds: int | None) -> dict[str, Any]:
    runs: dict[str, Runs] = {workload: {system: {} for system in systems} for workload in workloads}
    products, versions, failed = [], {"python": sys.version.split()[0]}, {}
    short = ["--rounds", str(rounds)] if rounds else []
    for repetition in range(1, repeat + 1):
        for workload in workloads:
            products.append(alone(["--sgemm"]))
            for system in systems:
                if f"{workload} {system}" in failed:
                    continue
                try:
                    told = alone(["--one", system, workload, *short])
                except Failed as error:
                    failed[f"{workload} {system}"] = str(error)
                    note(f"{workload} {system} failed:\n{error}")
                    continue
                versions |= told.pop("versions")
                runs[workload][system][repetition] = told
                note(f"{repetition}/{repeat} {workload} {system}: {told['seconds_per_round']:.3f} s a round")
                if told["cores_elsewhere"] > QUIET:
                    note(f"  not to be trusted: {told['cores_elsewhere']:.1f} cores were busy with something else")
    return {
        **{w: {system: summary(told, runs[w]) for system, told in runs[w].items() if told} for w in workloads},
        "sgemm_gflops": statistics.median(p["gflops"] for p in products),
        "sgemm_1_thread_gflops": statistics.median(p["one_thread"] for p in products),
        "versions": versions | products[0]["versions"],
        "failed": failed,
    }


def summary(told: dict[int, dict[str, Any]], runs: Runs) -> dict[str, float | None]:
    """Medians over the repetitions; the ratio to fedsense is taken within each."""
    base = runs.get("fedsense", {})
    names = next(iter(told.values()))
    found: dict[str, float | None] = {name: statistics.median(one[name] for one in told.values()) for name in names}
    ratios = [one["seconds_per_round"] / base[n]["seconds_per_round"] for n, one in told.items() if n in base]
    return found | {"ratio": statistics.median(ratios) if ratios else None}


def table(found: dict[str, Any], workload: str) -> Iterable[str]:
    heads = ["system", "s/round", "GFLOP/s", "of sgemm", "× fedsense's time", "start-up s", "first round s"]
    heads += ["peak RSS MB", "peak PSS MB", "last loss", "moved"]
    yield f"\n**{workload}**\n"
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for system, row in found[workload].items():
        cells = [
            system.replace("x", "×"),
            f"{row['seconds_per_round']:.3f}",
            f"{row['gflops']:.1f}",
            f"{row['gflops'] / found['sgemm_gflops']:.0%}",
            f"{row['ratio']:.2f}" if row["ratio"] else "–",
            f"{row['startup_s']:.1f}",
            f"{row['first_round_s']:.1f}",
            f"{row['peak_rss_mb']:.0f}",
            f"{row['peak_pss_mb']:.0f}",
            f"{row['loss']:.3f}",
            f"{row['moved']:.3f}",
        ]
        yield f"| {' | '.join(cells)} |"
    noisy = [system for system, row in found[workload].items() if row["cores_elsewhere"] > QUIET]
    if noisy:
        yield f"\nNot to be trusted, as the machine was busy with something else: {', '.join(noisy)}."


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=[*WORKLOADS])
    parser.add_argument("--systems", nargs="+", default=[""], metavar="NAME", help="names, or how they begin")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each system; medians are told")
    parser.add_argument("--rounds", type=int, help="fewer or more rounds than the workload says")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to a file, too; or only them, to -")
    parser.add_argument("--one", nargs=2, metavar=("SYSTEM", "WORKLOAD"), help="a single run, in this process")
    parser.add_argument("--sgemm", action="store_true", help="the matrix product alone")
    given = parser.parse_args()
    for name in given.systems:
        if not any(system.startswith(name) for system in SYSTEMS):
            parser.error(f"there is no system '{name}'; there are {', '.join(SYSTEMS)}")
    return given


def main() -> None:
    given = asked()
    if given.one or given.sgemm:
        print(json.dumps(sgemm() if given.sgemm else one(*given.one, given.rounds)), flush=True)
        return
    systems = []
    for name, system in SYSTEMS.items():
        if not name.startswith(tuple(given.systems)):
            continue
        if lacking := missing(system):
            note(f"{name} is left out, as {' and '.join(lacking)} cannot be found: pip install 'fedsense[bench]'")
        else:
            systems.append(name)
    found = measure(systems, given.workloads, given.repeat, given.rounds)
    if given.json != "-":
        for workload in given.workloads:
            print("\n".join(table(found, workload)))
        print(f"\nsgemm 1024³: {found['sgemm_gflops']:.0f} GFLOP/s on two threads, ", end="")
        print(f"{found['sgemm_1_thread_gflops']:.0f} on one. {json.dumps(found['versions'])}")
        for what, error in found["failed"].items():
            print(f"\n{what} failed:\n{error}")
    if given.json:
        text = json.dumps(found, indent=1)
        print(text) if given.json == "-" else Path(given.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
