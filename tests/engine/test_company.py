"""Updates of several clients in turns: they wait where they train, and are alone with the state of PyTorch."""

import pytest
import torch

from fedsense.engine.company import Company


@pytest.fixture
def company(monkeypatch):
    monkeypatch.setattr("fedsense.engine.company._kind", lambda fit: fit.split()[0])
    trained = []
    monkeypatch.setattr(
        "fedsense.engine.company.train", lambda asked: trained.append(asked) or [a + "!" for a in asked]
    )
    return Company(), trained


def test_updates_wait_for_one_another_and_are_trained_with_their_likes(company):
    company, trained = company
    heard = []

    def update(name, *phases):
        def run(join):
            for phase in phases:
                heard.append((name, join(f"{phase} {name}")))
            return name

        return run

    outcomes, largest = company.run(
        [update("a", "head", "body"), update("b", "head"), update("c"), update("d", "body")]
    )
    assert outcomes == ["a", "b", "c", "d"]
    assert trained == [["head a", "head b"], ["body d"], ["body a"]]
    assert heard == [("a", "head a!"), ("b", "head b!"), ("d", "body d!"), ("a", "body a!")]
    assert largest == 2


def test_each_has_its_own_mode_of_gradients(company):
    company, _ = company
    seen = []

    def within(join):
        with torch.no_grad():
            join("x")
            seen.append(torch.is_grad_enabled())
        seen.append(torch.is_grad_enabled())

    def without(join):
        seen.append(torch.is_grad_enabled())
        join("x")
        seen.append(torch.is_grad_enabled())

    company.run([within, without])
    assert seen == [True, False, True, True]
    assert torch.is_grad_enabled()


def test_what_one_raises_is_its_outcome_alone(company):
    company, _ = company

    def fails(join):
        join("x")
        raise ValueError("mine")

    outcomes, _ = company.run([fails, lambda join: join("x")])
    assert [type(outcomes[0]), outcomes[1]] == [ValueError, "x!"]


def test_an_interruption_ends_those_who_wait(company, monkeypatch):
    company, _ = company
    monkeypatch.setattr("fedsense.engine.company.train", lambda asked: (_ for _ in ()).throw(KeyboardInterrupt))
    left = []

    def update(join):
        try:
            join("x")
        finally:
            left.append(1)

    with pytest.raises(KeyboardInterrupt):
        company.run([update, update])
    assert left == [1, 1]


def test_an_interruption_in_an_update_stops_the_others(company):
    company, _ = company
    went_on = []

    def interrupted(join):
        join("x")
        raise KeyboardInterrupt

    def update(join):
        join("x")
        went_on.append(1)

    with pytest.raises(KeyboardInterrupt):
        company.run([interrupted, update])
    assert not went_on
