"""What takes long tells how far it is; what is quick says nothing."""

from __future__ import annotations

import pytest
import torch

from allformer.train import progress
from allformer.train.progress import Asides, Progress
from allformer.train.validate import validate
from tests.unit.test_preferences import model_of, opened, opinions


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as a test sets it."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_what_is_quick_says_nothing_and_what_takes_long_a_line_from_time_to_time(
    clock: list[float],
) -> None:
    said: list[str] = []
    aside = Asides(said.append, every=10.0)
    for done in range(5):  # 4 s each: one of five would be the time
        aside("validating", done, 50)
        clock[0] += 4
    assert said == ["validating: 6%"]
    clock[0] += 600  # training in between
    aside("validating", 0, 50)
    clock[0] += 9
    aside("validating", 30, 50)
    assert len(said) == 1
    clock[0] += 1
    aside("asking the reference", 40, 50)  # another one begins
    assert len(said) == 1
    clock[0] += 10
    aside("asking the reference", 50, 50)  # it has ended
    assert len(said) == 1
    aside("nothing", 0, 0)


def test_the_progress_of_a_training_tells_it_too_and_after_its_end(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress(10)
    for close in (False, True):
        if close:
            shown.close()
        shown.aside("validating", 0, 8)
        clock[0] += 11
        shown.aside("validating", 2, 8)
    assert capsys.readouterr().err.splitlines() == ["validating: 25%"] * 2


def test_what_comes_before_the_steps_says_nothing_of_the_time_that_is_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress(10)
    clock[0] += 1000  # the reference is asked
    shown.start()
    clock[0] += 20
    shown.update(2)
    assert "left 1:20" in capsys.readouterr().err


def test_validating_and_asking_the_reference_tell_how_far_they_are() -> None:
    objective = opened("dpo", opinions(30), batch_tokens=64)
    told: list[tuple[str, int, int]] = []
    objective.aside = lambda *what: told.append(what)
    model = model_of(objective)
    objective.meet(model, False)
    validate(objective, model, objective.validation, batch_tokens=64)
    objective.at(1)
    pairs = {"validating": 30, "asking the reference": 60}  # the second of both splits
    assert {what for what, _, _ in told} == set(pairs)
    for what, count in pairs.items():
        steps = [(done, total) for name, done, total in told if name == what]
        assert len(steps) > 1
        assert steps[0] == (0, steps[0][1])
        assert [done for done, _ in steps] == sorted({done for done, _ in steps})
        assert {total for _, total in steps} == {count}
        assert all(done < count for done, _ in steps)
    assert torch.isfinite(objective.known).all()
