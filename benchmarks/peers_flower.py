"""Flower's simulation on Ray, with its message API and its own FedAvg.

Ray's workers hold the data and a network, made once in each; only parameters travel. They import this module by its
name, so that no code travels with a message either.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

# Read when Flower and Ray are imported.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}

import ray
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers_loop import Net, local_update, moved, shared_part, tensors
from peers_work import SEED, WORKLOADS, Outcome, Workload
from torch import Tensor

client_app = ClientApp()


@cache
def _held(name: str) -> tuple[Tensor, Tensor, Net]:
    """What a worker keeps: all data, and one network for whichever client it is asked to be."""
    torch.set_num_threads(int(os.environ.get("PEERS_THREADS", "1")))
    torch.manual_seed(SEED + os.getpid())
    return *tensors(WORKLOADS[name]), Net(WORKLOADS[name])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work = WORKLOADS[str(message.content["config"]["workload"])]
    x, y, net = _held(work.name)
    began = time.time()
    client = int(context.node_config["partition-id"])
    shared_part(net, work).load_state_dict(message.content["arrays"].to_torch_state_dict())
    if work.personal_heads:  # Flower's place for what a client keeps is its context's state, which goes along
        start = context.state["head"].to_torch_state_dict() if "head" in context.state else Net(work).head.state_dict()
        net.head.load_state_dict(start)
    loss = local_update(net, x[client], y[client], work)
    if work.personal_heads:
        context.state["head"] = ArrayRecord(net.head.state_dict())
    numbers = MetricRecord({"loss": loss, "began": began, "num-examples": len(x[client])})
    arrays = ArrayRecord(shared_part(net, work).state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": numbers}), reply_to=message)


class Timed(FedAvg):
    """Flower's FedAvg with a clock."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.times: list[float] = []
        self.loss = float("nan")

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        if failed := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(failed[0])
        numbers = [reply.content["metrics"] for reply in replies]
        if not self.times:  # the server begins before Ray is up: the first round begins when a client does
            self.times.append(min(float(n["began"]) for n in numbers))
        self.loss = sum(float(n["loss"]) for n in numbers) / len(numbers)
        done = super().aggregate_train(server_round, replies)
        self.times.append(time.time())
        return done


def run(work: Workload, rounds: int, workers: int, threads: int) -> Outcome:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ["PEERS_THREADS"] = str(threads)
    found: list[Outcome] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        grid.pull_interval = 0.01  # type: ignore[attr-defined]  # looks for replies ten times as often as by default
        share = work.cohort / work.clients
        strategy = Timed(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=work.clients)
        first = ArrayRecord(shared_part(Net(work), work).state_dict())
        config = ConfigRecord({"workload": work.name})
        result = strategy.start(grid, first, num_rounds=rounds, train_config=config)
        versions = {name: importlib.metadata.version(name) for name in ("flwr", "ray")}
        found.append(Outcome(strategy.times, strategy.loss, moved(result.arrays.to_torch_state_dict(), work), versions))

    with tempfile.TemporaryDirectory(prefix="peers") as folder:
        os.environ["FLWR_HOME"] = folder
        run_simulation(
            server_app,
            client_app,
            num_supernodes=work.clients,
            backend_config={
                "client_resources": {"num_cpus": threads, "num_gpus": 0.0},
                "init_args": {
                    "num_cpus": workers * threads,
                    "include_dashboard": False,
                    "log_to_driver": False,
                    "logging_level": "ERROR",
                    "object_store_memory": 256 * 1024**2,
                    "_temp_dir": folder,
                },
            },
        )
        ray.shutdown()
    return found[0]
