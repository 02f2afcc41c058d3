"""Random streams: named, independent, the same everywhere."""

import numpy as np
import torch

from fedsense.work import Work, seed_of, stream


def test_a_stream_is_its_name():
    assert (
        stream(0, 3, "anna", "train").integers(0, 100, 5).tolist()
        == stream(0, 3, "anna", "train").integers(0, 100, 5).tolist()
    )
    draws = {
        tuple(stream(*key).integers(0, 2**40, 3))
        for key in [(0, 1, "a"), (0, 11, "a"), (1, 1, "a"), (0, 1, "b"), (0, "1a")]
    }
    assert len(draws) == 5


def test_seeds_do_not_depend_on_the_process():
    """blake2b of '0<unit separator>init', eight bytes little-endian, without the lowest bit."""
    import hashlib

    want = int.from_bytes(hashlib.blake2b(b"0\x1finit", digest_size=8).digest(), "little") // 2
    assert seed_of(0, "init") == want
    assert 0 <= seed_of("anything") < 2**63


def test_an_epoch_visits_every_sample_once():
    steps = list(Work(0, 1, "anna", batch=4).epochs(3).steps(10))
    assert [len(s.samples) for s in steps] == [4, 4, 2] * 3
    for epoch in range(3):
        seen = np.concatenate([s.samples for s in steps[3 * epoch : 3 * epoch + 3]])
        assert sorted(seen) == list(range(10))
    assert len({s.noise for s in steps}) == len(steps)


def test_phases_rounds_and_clients_draw_apart():
    def order(work, purpose="train"):
        return next(work.epochs(1, purpose).steps(50)).samples.tolist()

    base = Work(0, 1, "anna", batch=50)
    others = [Work(1, 1, "anna", 50), Work(0, 2, "anna", 50), Work(0, 1, "ben", 50)]
    assert order(base) == order(Work(0, 1, "anna", batch=50))
    assert all(order(base) != order(other) for other in others)
    assert order(base) != order(base, "head")


def test_no_samples_no_steps():
    assert list(Work(0, 1, "anna").epochs(2).steps(0)) == []


def test_global_generators_are_left_alone():
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    Work(0, 1, "anna").rng("anything").normal(size=3)
    list(Work(0, 1, "anna").epochs(1).steps(9))
    assert torch.equal(torch_before, torch.get_rng_state())
    assert (numpy_before == np.random.get_state()[1]).all()  # noqa: NPY002
