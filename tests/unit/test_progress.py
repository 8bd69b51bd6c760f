"""What takes long tells how far it is; what is quick says nothing."""

from __future__ import annotations

import io
import re

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


class Screen(io.StringIO):
    """A terminal's standard error."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 60, 80, 140])
def test_a_line_of_figures_is_as_wide_as_the_terminal_and_none_is_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    shown = Progress(300)
    shown.update(300, nll="0.159", **{"tok/s": "14,878"}, rate="9.13e-04", peak="2%")
    shown.close()
    line = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue()).splitlines()[-1].strip()
    assert len(line) <= columns
    assert "…" not in line
    assert "300/300 nll 0.159" in line
    assert ("rate 9.13e-04" in line) == (columns > 80)


def test_a_line_that_stays_keeps_its_brackets_and_is_not_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    shown = Progress(300, what="talk [a].wav")
    line = "done: validation perplexity 1.671, in /tmp/[runs]/one"
    shown.say(line)
    shown.update(1)
    shown.close()
    assert line in screen.getvalue()
    assert "talk [a].wav" in screen.getvalue()


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
