"""Every planted bug is caught by the checks that claim to catch it, and by no accident.

`make test` tries the first of them, `make test-all` all.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.mutants import (
    adapters,
    ahead,
    answers,
    audiolm,
    blocks,
    choices,
    clip,
    codecs,
    contrast,
    detection,
    drawing,
    engine,
    families,
    few_rows,
    fixed,
    gguf,
    hearing,
    images,
    instructions,
    lean,
    linear,
    listening,
    longformer,
    masks,
    mutants,
    policy,
    ppo,
    preferences,
    quantised,
    reformer,
    segments,
    soft,
    sound_codecs,
    sound_learning,
    speech,
    states,
    tune_runs,
    tuning,
    words,
    writing,
)
from tests.mutants.mutants import Mutant
from tests.mutants.plant import plant, planted

ROOMS = (
    mutants,
    states,
    answers,
    families,
    longformer,
    choices,
    blocks,
    reformer,
    segments,
    linear,
    images,
    clip,
    codecs,
    contrast,
    detection,
    drawing,
    engine,
    masks,
    hearing,
    sound_codecs,
    listening,
    speech,
    words,
    sound_learning,
    audiolm,
    gguf,
    fixed,
    few_rows,
    ahead,
    writing,
    lean,
    quantised,
    tune_runs,
    tuning,
    instructions,
    soft,
    adapters,
    preferences,
    policy,
    ppo,
)  # fmt: skip
KILLERS = {name: check for room in ROOMS for name, check in room.KILLERS.items()}
MUTANTS = [mutant for room in ROOMS for mutant in room.MUTANTS]
DEAR = ("any json", "compiled loss")  # a second, where others take a hundredth


def test_no_two_rooms_give_a_check_the_same_name():
    """The second would stand for the first, and bugs meant for that one would not be looked for."""
    assert len(KILLERS) == sum(len(room.KILLERS) for room in ROOMS)


def killers(mutant: Mutant) -> list[str]:
    """In the order in which they are tried: the first stands alone in `make test`."""
    return sorted(mutant.killers, key=DEAR.__contains__)


CASES = [
    pytest.param(
        mutant, killer, id=f"{mutant.name} - {killer}", marks=[pytest.mark.slow] if number else []
    )
    for mutant in MUTANTS
    for number, killer in enumerate(killers(mutant))
]


@pytest.mark.every(4)  # they are checks of other tests, where they pass too
@pytest.mark.parametrize("killer", KILLERS)
def test_without_a_bug_the_check_passes(killer):
    KILLERS[killer]()


@pytest.mark.every(4)
@pytest.mark.parametrize(("mutant", "killer"), CASES)
def test_the_bug_is_caught(mutant: Mutant, killer: str):
    raises = mutant.raises if isinstance(mutant.raises, tuple) else (mutant.raises,)
    caught = (*raises, pytest.fail.Exception)
    with plant(mutant.target, mutant.patch), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a bug may well divide by zero
        torch.manual_seed(0)
        with pytest.raises(caught):  # type: ignore[arg-type]
            KILLERS[killer]()


def test_every_check_catches_something_and_every_bug_is_named_once():
    used = {killer for mutant in MUTANTS for killer in mutant.killers}
    assert set(KILLERS) == used
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 45
    assert all(mutant.killers for mutant in MUTANTS)


def test_what_is_dear_is_tried_first_only_where_nothing_else_catches_the_bug():
    assert set(DEAR) <= set(KILLERS)
    for mutant in MUTANTS:
        assert sorted(killers(mutant)) == sorted(mutant.killers)
        assert killers(mutant)[0] not in DEAR or set(mutant.killers) <= set(DEAR), mutant.name


def test_the_text_of_every_bug_still_stands_where_it_is_looked_for():
    """All of them, also where only each fourth is planted."""
    for mutant in MUTANTS:
        planted(mutant.target, mutant.patch)


def test_a_mutant_whose_text_is_gone_is_an_error():
    with (
        pytest.raises(LookupError, match="write this"),
        plant("allformer.core.places:mask_of", [("not there", "anything")]),
    ):
        pass


def test_a_planted_bug_is_gone_afterwards():
    from allformer.core import places
    from allformer.core.layout import Grid
    from allformer.core.mixers import full

    before, two = places.mask_of, Grid(1, 2).places(torch.device("cpu"))
    with plant("allformer.core.places:mask_of", [("distance <= 0", "distance < 0")]):
        assert places.mask_of is full.mask_of is not before
        assert places.mask_of(two, True, None).tolist() == [[[[False, False], [True, False]]]]
    assert places.mask_of is full.mask_of is before
    assert places.mask_of(two, True, None).tolist() == [[[[True, False], [True, True]]]]


def test_nothing_that_a_bug_made_the_library_remember_outlives_it():
    from allformer.core import quantised_cpu

    before = quantised_cpu.rows_of_block()
    with plant("allformer.core.quantised_cpu:ordered", [("permute(0, 3, 2, 1)", "flip(1)")]):
        assert quantised_cpu.rows_of_block() != before or before is None
    assert quantised_cpu.rows_of_block() == before


def test_a_function_that_a_table_holds_has_the_bug_there_too():
    from allformer.config import LinearScaling
    from allformer.core.relatives import rates

    before, target = rates._SCALED[LinearScaling], "allformer.core.relatives.rates:_linear"
    with plant(target, [("/ periods / scaling.factor", "/ periods")]):
        assert rates._SCALED[LinearScaling] is rates._linear is not before
    assert rates._SCALED[LinearScaling] is rates._linear is before


def test_a_bug_in_a_table_is_seen_by_all_who_hold_it_and_gone_afterwards():
    from allformer.families import bert, roberta

    before = dict(bert.LAYER)
    with plant("allformer.families.bert:LAYER", [("'intermediate.dense'", "'other'")]):
        assert roberta.bert.LAYER["feed.up"] == "other"
    assert before == bert.LAYER
