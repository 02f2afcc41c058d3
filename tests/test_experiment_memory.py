"""One run after another in one process: what a run held is given back, and its peak of memory is its own."""

import gc
import sys
import weakref

import pytest
import torch

from fedsense.engine.executors import keep_freed_memory
from fedsense.engine.rounds import Listener
from fedsense.engine.site import forget_peak, peak_memory
from fedsense.errors import CheckpointError
from fedsense.experiment import reopen, run_recipe
from fedsense.recipe import load_recipe


class Watching(Listener):
    def __init__(self, begun):
        self.begun = begun

    def started(self, engine):
        self.begun.append((weakref.ref(engine.site), sum(earlier() is not None for earlier, _ in self.begun)))


def test_a_run_is_gone_when_the_next_begins(tmp_path):
    methods = 'method=["fedavg", "local", "fedper"]'
    small = ["data.clients=3", "data.samples=16", "rounds=1", "executor=serial", methods, "seeds=[0, 1]"]
    begun = []
    gc.disable()  # as it is for long where objects are few and large
    try:
        run_recipe(load_recipe("demo", small), tmp_path, listen=lambda label, seed: [Watching(begun)])
    finally:
        gc.enable()
    assert [alive for _, alive in begun] == [0] * 6


def test_runs_that_have_ended_are_not_loaded_again(tmp_path):
    """More seeds: what the first measured is read, its models are not; what cannot be believed is refused."""
    small = ["data.clients=3", "data.samples=16", "rounds=2", "executor=serial", 'method=["fedavg"]']
    (first,) = run_recipe(load_recipe("demo", [*small, "seeds=[0]"]), tmp_path)
    (models,) = (tmp_path / "fedavg-seed0" / "checkpoints").glob("server-00002.safetensors")
    sound = models.read_bytes()
    models.write_bytes(sound[:-1])
    both = run_recipe(load_recipe("demo", [*small, "seeds=[0, 1]"]), tmp_path)
    assert both[0].history == first.history
    assert [result.finished for result in both] == [True, True]
    with pytest.raises(CheckpointError, match=r"server-00002\.safetensors is truncated"):
        reopen(tmp_path / "fedavg-seed0")
    models.write_bytes(sound)
    scores = tmp_path / "fedavg-seed0" / "scores.jsonl"
    scores.write_bytes(scores.read_bytes().replace(b"0.", b"1.", 1))
    with pytest.raises(CheckpointError, match=r"scores\.jsonl was altered"):
        run_recipe(load_recipe("demo", [*small, "seeds=[0, 1]"]), tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not let one")
@pytest.mark.parametrize("pieces", [1, 50])
def test_a_peak_is_counted_anew(pieces):
    keep_freed_memory()  # as in every run; small pieces are kept by the C library
    held = [torch.ones(50_000_000 // pieces) for _ in range(pieces)]  # 200 MB
    before = peak_memory()
    del held
    forget_peak()
    assert peak_memory() < before - 100e6
