"""Planted bugs of windows with global tokens, and of Longformer and LED."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from tests.mutants.mutants import Mutant, bug
from tests.parity import test_led, test_longformer, zoo

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


@cache
def _written(group: ModuleType, name: str) -> Path:
    """The case as transformers writes it, once."""
    folder = Path(_FOLDER.name) / group.__name__ / name
    return zoo.on_disk(zoo.oracle(group.BY_NAME[name]), folder)


def _check(kind: str, group: ModuleType, name: str, side: str) -> None:
    getattr(group, f"check_{kind}")(name, side, _written(group, name))


def _same(
    name: str, side: str = "right", kind: str = "forward", group: ModuleType = test_longformer
) -> Callable[[], None]:
    return partial(_check, kind, group, name, side)


KILLERS: dict[str, Callable[[], None]] = {
    "longformer": _same("bare"),
    "longformer, none padded": _same("bare", "none"),
    "longformer answers, trained": _same("span", "left", "training"),
    "longformer classes, unmarked": _same("classes", "right", "unmarked"),
    "longformer questions": _same("span", "right", "question"),
    "led": _same("words", group=test_led),
}
MIXER = "mixers.global_window"

MUTANTS: list[Mutant] = [
    bug("global tokens ask by the window's queries", "the extra projections are unused",
        f"{MIXER}:GlobalWindow._far", 'own["q_global"]', 'own["q"]',
        "longformer, none padded", "led"),
    bug("global tokens are looked at by the extra keys", "all tokens see other keys",
        f"{MIXER}:GlobalWindow._near", 'own["q"], own["k"], own["v"]',
        'own["q"], own.get("k_global", own["k"]), own["v"]', "longformer, none padded", "led"),
    bug("global tokens are seen twice", "their weight is doubled inside a window",
        f"{MIXER}:GlobalWindow._near", "keep = alone if keep is None else keep & alone",
        "keep = keep", "longformer, none padded"),
    bug("padding is global", "everybody sees padding",
        f"{MIXER}:GlobalWindow._globals", "marks if keep is None else marks & keep", "marks",
        "longformer answers, trained"),
    bug("global tokens see padding", "the shorter text depends on the longer",
        f"{MIXER}:GlobalWindow._far", "Look() if plan.keep is None else", "Look() if True else",
        "longformer", "led"),
    bug("padding looks at somebody", "its states are not the reference's, which spans score",
        f"{MIXER}:GlobalWindow._fast", "plan.layout.packed or plan.keep is None", "True",
        "longformer answers, trained"),
    bug("the window is wide on each side", "a token sees twice as many",
        "allformer.families.windows:read_windows", "GlobalWindow(n // 2, n // 2)",
        "GlobalWindow(n, n)", "longformer", "led"),
    bug("the first token is not marked", "the classified token sees its window alone",
        f"{MIXER}:_marks", "return place == 0", "return place < 0",
        "longformer classes, unmarked"),
    bug("the separator is part of the question", "one token too many is global",
        f"{MIXER}:_marks", "return place < first", "return place <= first",
        "longformer questions"),
]  # fmt: skip
