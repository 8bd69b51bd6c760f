"""Learning rates by their closed forms, transformers' where they mean the same, and refusals."""

from __future__ import annotations

import math

import pytest
import torch

from allformer.errors import ConfigError
from allformer.train.schedule import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Schedule,
    WarmupStableDecay,
)

WARMUP, TOTAL, PEAK = 10, 110, 2.0
EVERY = [
    InverseSqrt(WARMUP),
    Cosine(WARMUP),
    Cosine(WARMUP, floor=0.1),
    Linear(WARMUP),
    Linear(WARMUP, floor=0.25),
    Constant(WARMUP),
    WarmupStableDecay(WARMUP),
    WarmupStableDecay(WARMUP, floor=0.1, decay=0.5, shape="1-sqrt"),
]


def rates(schedule: Schedule, total: int = TOTAL) -> list[float]:
    """Of step 0 (nobody's), 1, …, total."""
    return [schedule.rate(step, PEAK, total) for step in range(total + 1)]


@pytest.mark.parametrize("schedule", EVERY, ids=repr)
def test_it_rises_in_a_line_to_the_peak_and_then_never_rises(schedule):
    found = rates(schedule)
    assert found[: WARMUP + 1] == pytest.approx([PEAK * n / WARMUP for n in range(WARMUP + 1)])
    assert found[WARMUP] == PEAK
    assert found[WARMUP:] == sorted(found[WARMUP:], reverse=True)


@pytest.mark.parametrize("schedule", EVERY[1:], ids=repr)
def test_it_ends_on_its_floor_and_stays_there(schedule):
    end = PEAK * getattr(schedule, "floor", 1.0)
    assert rates(schedule)[-1] == pytest.approx(end, abs=1e-15)
    assert schedule.rate(TOTAL + 500, PEAK, TOTAL) == pytest.approx(end, abs=1e-15)


def test_inverse_sqrt_is_the_papers_formula():
    width, warmup = 512, 4000
    for step in (1, 7, 3999, 4000, 4001, 100_000):
        rate = InverseSqrt(warmup).rate(step, (width * warmup) ** -0.5, total=1)
        assert rate == pytest.approx(width**-0.5 * min(step**-0.5, step * warmup**-1.5), rel=1e-13)


def test_the_falling_ones_follow_their_closed_forms():
    for step in range(WARMUP, TOTAL + 1):
        x = (step - WARMUP) / (TOTAL - WARMUP)
        assert Cosine(WARMUP, 0.1).rate(step, PEAK, TOTAL) == pytest.approx(
            PEAK * (0.1 + 0.9 * math.cos(math.pi * x / 2) ** 2), abs=1e-14
        )
        assert Linear(WARMUP, 0.1).rate(step, PEAK, TOTAL) == pytest.approx(PEAK * (1 - 0.9 * x))


def test_wsd_is_stable_and_falls_in_its_share_of_all_steps():
    line = rates(WarmupStableDecay(WARMUP, decay=0.2), total=100)
    assert line[WARMUP:81] == [PEAK] * 71
    assert line[81:] == pytest.approx([PEAK * (1 - n / 20) for n in range(1, 21)], abs=1e-15)
    root = rates(WarmupStableDecay(WARMUP, decay=0.2, shape="1-sqrt"), total=100)
    assert root[85] == pytest.approx(PEAK / 2)  # a quarter of the way: 1 − √¼
    whole = rates(WarmupStableDecay(WARMUP, decay=1.0), total=100)
    assert whole == pytest.approx(rates(Linear(WARMUP), total=100))  # the warm-up is left alone


@pytest.mark.parametrize("schedule", EVERY, ids=repr)
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 5), (5, 5), (100, 5), (1, 1)])
def test_short_runs_have_finite_rates(schedule, warmup, total):
    short = type(schedule)(**{**schedule.__dict__, "warmup": warmup})
    assert all(0 <= short.rate(step, PEAK, total) <= PEAK for step in range(1, total + 1))


def test_the_same_as_transformers_where_the_definitions_agree():
    oracle = pytest.importorskip("transformers.optimization")
    span = {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL}
    wsd = {"num_decay_steps": 22, "decay_type": "1-sqrt"}  # 0.2 of 110
    pairs = [
        (InverseSqrt(WARMUP), oracle.get_inverse_sqrt_schedule, {"num_warmup_steps": WARMUP}),
        (Cosine(WARMUP), oracle.get_cosine_schedule_with_warmup, span),
        (
            Cosine(WARMUP, 0.1),
            oracle.get_cosine_with_min_lr_schedule_with_warmup,
            {**span, "min_lr_rate": 0.1},
        ),
        (Linear(WARMUP), oracle.get_linear_schedule_with_warmup, span),
        (Constant(WARMUP), oracle.get_constant_schedule_with_warmup, {"num_warmup_steps": WARMUP}),
        (WarmupStableDecay(WARMUP, shape="1-sqrt"), oracle.get_wsd_schedule, {**span, **wsd}),
    ]
    for schedule, make, arguments in pairs:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
        theirs = make(optimizer, **arguments)
        for step, ours in enumerate(rates(schedule)):
            assert theirs.get_last_lr()[0] == pytest.approx(ours, abs=1e-14), (schedule, step)
            optimizer.step()
            theirs.step()


def test_the_rates_are_the_bits_of_before():
    for step in (1, 9, 10, 11, 37, 60, 109, 110, 200):
        before = PEAK * step / WARMUP if step < WARMUP else PEAK * math.sqrt(WARMUP / step)
        assert InverseSqrt(WARMUP).rate(step, PEAK, TOTAL) == before
        if step >= WARMUP:
            done = min(1.0, (step - WARMUP) / (TOTAL - WARMUP))
            before = PEAK * 0.5 * (1 + math.cos(math.pi * done))
        assert Cosine(WARMUP).rate(step, PEAK, TOTAL) == before


def test_a_section_is_read_and_written_back():
    section = {"kind": "wsd", "warmup": 5, "floor": 0.1, "decay": 0.3, "shape": "1-sqrt"}
    found = Schedule.read(section)
    assert found == WarmupStableDecay(5, 0.1, 0.3, "1-sqrt")
    assert found.plain() == section
    assert Schedule.read({}) == InverseSqrt(1000)
    assert Schedule.read({"kind": "cosine", "floor": "1e-2"}) == Cosine(1000, 0.01)  # YAML 1.1
    assert all(Schedule.read(s.plain()) == s for s in EVERY)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "cosin"}, r"schedule\.kind='cosin' is not a choice; did you mean cosine\? try "),
        ({"kind": ["x"]}, r"schedule\.kind=\['x'\] is not a choice"),
        (
            {"kind": "constant", "floor": 0.1},
            r"schedule\.floor belongs to cosine, linear, wsd, not to constant; remove it, or "
            r"choose schedule\.kind=cosine",
        ),
        ({"warmpu": 3}, r"schedule\.warmpu is not known; did you mean warmup\? there is kind, "),
        ({"warmup": -1}, r"schedule\.warmup=-1 must be a whole number of at least 0, or a "),
        ({"warmup": 1.5}, r"schedule\.warmup=1\.5 .* or a share of the steps below 1; try 100"),
        ({"kind": "linear", "floor": 1.5}, r"schedule\.floor=1\.5 must be in 0 … 1; try 0\.1"),
        ({"kind": "linear", "floor": "low"}, r"schedule\.floor='low' must be float"),
        ({"kind": "wsd", "decay": 0}, r"schedule\.decay=0\.0 must be greater than 0, at most 1"),
        ({"kind": "wsd", "shape": "cos"}, r"schedule\.shape='cos' is not a choice; try 'linear', "),
        ("cosine", r"schedule is 'cosine'; it must be a section"),
    ],
)
def test_what_cannot_be_is_refused_in_words(section, message):
    with pytest.raises(ConfigError, match=message):
        Schedule.read(section)


@pytest.mark.parametrize("schedule", EVERY, ids=repr)
def test_a_warm_up_below_one_is_a_share_of_the_steps(schedule):
    share = type(schedule)(**{**vars(schedule), "warmup": WARMUP / TOTAL})
    assert rates(share) == rates(schedule)


@pytest.mark.parametrize("kind", [Cosine, Linear, WarmupStableDecay, Constant, InverseSqrt])
def test_without_a_warm_up_the_first_step_has_the_peak_and_may_be_the_only_one(kind):
    assert kind(0).rate(1, PEAK, TOTAL) == PEAK
    assert kind(0.06).rate(1, PEAK, 1) == PEAK  # a share of few steps is none
