"""One worker of a simulation with pfl-research: its FedAvg, its model, its sampler, its store of what users keep."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from peers_loop import Net, moved, optimiser, shared_part, shuffled, tensors
from peers_work import SEED, Outcome, Workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import CrossSiloUserSampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.bridge import FrameworkBridgeFactory
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Taught(Net):
    """The network with the loss pfl asks it for."""

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        self.total, self.steps = torch.zeros(()), 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        value = nn.functional.cross_entropy(self(x), y)
        if next(self.body.parameters()).requires_grad:  # where heads are personal, the bodies' steps count
            self.total += value.detach()
            self.steps += 1
        return value

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        raise NotImplementedError("nothing is evaluated here")


class Shuffled(Dataset):
    """A client's tensors, in a new order every epoch; pfl's own would give the same minibatches again and again."""

    def iter(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return shuffled(*self.raw_data, batch_size)


class Averaging(FederatedAveraging):
    """pfl's FedAvg without the evaluation it makes in the first round; there is no setting against it."""

    def get_next_central_contexts(self, *given: Any, **named: Any) -> Any:
        contexts, model, metrics = super().get_next_central_contexts(*given, **named)
        return contexts and tuple(replace(c, do_evaluation=False) for c in contexts), model, metrics


class PersonalHeads(Averaging):
    """Two phases of pfl's own training; the head comes from pfl's store and goes back to it.

    The store is a dictionary of this process, which is right because the sampler leaves each user with one worker.
    """

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.work, self.heads = work, InMemoryUserStateStorage()
        first = Net(work).head.state_dict()
        for user in range(work.clients):
            self.heads.save_state(first, str(user))

    def train_one_user(self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any) -> Any:
        net = model.pytorch_model
        net.head.load_state_dict(self.heads.load_state(user_dataset.user_id))
        for part, epochs in ((net.head, self.work.head_epochs), (net.body, self.work.epochs)):
            net.requires_grad_(False)
            part.requires_grad_(True)
            params = replace(central_context.model_train_params, local_num_epochs=epochs)
            FrameworkBridgeFactory.sgd_bridge().do_sgd(model, user_dataset, params)
        kept = {name: value.clone() for name, value in net.head.state_dict().items()}
        self.heads.save_state(kept, user_dataset.user_id)
        return model.get_model_difference(initial_model_state), Metrics()


class Watch(TrainingProcessCallback):
    def __init__(self, net: Taught) -> None:
        self.net, self.times, self.loss = net, list[float](), float("nan")

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.times.append(time.time())
        return Metrics()

    def after_central_iteration(self, *given: Any, **named: Any) -> tuple[bool, Metrics]:
        self.times.append(time.time())
        self.loss = float(self.net.total) / self.net.steps  # of this worker's clients
        self.net.total, self.net.steps = torch.zeros(()), 0
        return False, Metrics()


def simulate(work: Workload, rounds: int, rank: int) -> Outcome:
    np.random.seed(SEED)  # noqa: NPY002  # pfl samples from it, and needs the same in every worker
    torch.manual_seed(SEED + rank)
    net = Taught(work)
    if work.personal_heads:
        net.head.requires_grad_(False)  # what is frozen when pfl first sees it is not averaged
    shared = shared_part(net, work)

    def local(parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        return optimiser(work, [p for p in parameters if p.requires_grad])

    x, y = tensors(work)
    users = {str(i): Shuffled((x[i], y[i]), user_id=str(i)) for i in range(work.clients)}
    sampler = CrossSiloUserSampler(sampling_type="minimize_reuse", user_ids=list(users))
    watch = Watch(net)
    (PersonalHeads(work) if work.personal_heads else Averaging()).run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds,
            train_cohort_size=work.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(FederatedDataset(users.__getitem__, sampler), None),
        PyTorchModel(net, local, torch.optim.SGD(shared.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.lr),
        callbacks=[watch],
        send_metrics_to_platform=False,
    )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    versions = {"pfl": importlib.metadata.version("pfl")}
    return Outcome(watch.times, watch.loss, moved(shared.state_dict(), work), versions)
