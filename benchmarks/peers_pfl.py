"""pfl-research, its workers started as its guide to distributed simulations says: a process each, told by environment.

Worker 0 is this process; it starts the others with the same command and a rank of their own. Each trains its share of a
round's clients on data it holds, and torch.distributed (gloo) sums what they found.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import torch
from peers_work import Outcome, Workload

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def run(work: Workload, rounds: int, workers: int, threads: int) -> Outcome:
    torch.set_num_threads(threads)
    others = _start_others(workers) if workers > 1 and RANK not in os.environ else []
    try:
        from peers_pfl_worker import simulate  # pfl joins its workers together when it is imported

        done = simulate(work, rounds, int(os.environ.get(RANK, "0")))
        for other in others:
            other.wait(timeout=60)
        return done
    finally:
        for other in others:
            other.kill()


def _start_others(workers: int) -> list[subprocess.Popen[bytes]]:
    ports = []
    for _ in range(workers):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    os.environ |= {RANK: "0", ADDRESSES: ",".join(f"localhost:{port}" for port in ports)}
    return [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, RANK: str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(1, workers)
    ]
