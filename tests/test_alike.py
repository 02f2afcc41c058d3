"""When one function stands for another."""

from dataclasses import dataclass
from functools import partial

import torch

from fedsense.alike import description

SCALE = 2.0


def made(number, tensor=None, held=None):
    return lambda x: number * x + (tensor if tensor is not None else 0) + len(held or ())


def same(a, b):
    first, second = description(a), description(b)
    return first is not None and first == second


def test_the_same_code_over_the_same_values():
    assert same(made(1.0), made(1.0))
    assert not same(made(1.0), made(2.0))
    assert not same(made(1), made(1.0)), "a whole number is another type"
    assert not same(made(1.0), lambda x: x)


def test_tensors_must_be_the_very_same():
    one = torch.ones(3)
    assert same(made(1, one), made(1, one))
    assert not same(made(1, one), made(1, one.clone()))


def test_what_is_inside_containers_and_around_functions_counts():
    one = torch.ones(1)
    assert same(made(1, held={"a": [one, 2]}), made(1, held={"a": [one, 2]}))
    assert not same(made(1, held={"a": [one, 2]}), made(1, held={"a": [one, 3]}))
    assert same(partial(made(1), 5), partial(made(1), 5))
    assert not same(partial(made(1), 5), partial(made(1), 6))
    long = list(range(1000))
    assert same(made(1, held=long), made(1, held=long))
    assert not same(made(1, held=long), made(1, held=list(long))), "a long list is not looked through"


def test_a_global_that_was_changed_makes_another_function(monkeypatch):
    def scaled(x):
        return SCALE * x

    before = description(scaled)
    assert before == description(scaled)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert before != description(scaled)


def test_of_odd_objects_nothing_is_claimed():
    @dataclass(slots=True)
    class Slotted:
        rate: float

    assert same(made(Slotted(1.0)), made(Slotted(1.0)))
    assert not same(made(Slotted(1.0)), made(Slotted(2.0)))

    def recursive(n):
        return n and recursive(n - 1)

    assert description(recursive) is None

    def undecided(flag):
        if flag:
            value = 1
        return lambda x: value * x

    assert description(undecided(False)) is None
    assert description(undecided(True)) is not None
