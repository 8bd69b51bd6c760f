"""What to say of an outcome: passed, or missed and what to look at."""

from __future__ import annotations

import math
from pathlib import Path

from allformer.reproduce.data import changed_files
from allformer.reproduce.entry import NOT_SEEN
from allformer.reproduce.run import Outcome
from allformer.train.progress import clock


def verdict(outcome: Outcome, data: str | Path | None, *, changed: bool = False) -> list[str]:
    """Lines for a person: `verdict(reproduce("sst2-scratch"), None)[0]` → "passed: …".

    `changed` says that the recipe was not the entry's own.
    """
    entry, score = outcome.entry, outcome.entry.score
    name = score.figure.replace("_", " ")
    declared = f"{score.expected:g} ± {score.tolerance:g}"
    how = f"{name} {outcome.score:.4f}, declared {declared}, in {clock(outcome.seconds)}"
    lines = [f"{'passed' if outcome.passed else 'missed'}: {entry.name}: {how}"]
    lines += [f"published: {entry.published}", f"seen here: {entry.seen or NOT_SEEN}"]
    if outcome.passed:
        if score.surprising(outcome.score):
            lines.append(
                "better than declared by more than the tolerance: is the data the same, and is "
                "nothing of the validation split in the training split?"
            )
        return lines
    worse = "no number" if math.isnan(outcome.score) else f"{score.worse(outcome.score):.4f} worse"
    lines.append(f"it is {worse} than declared. What to look at:")
    causes = []
    if changed:
        causes.append("the recipe was changed (--set): what is declared is for the recipe as it is")
    if found := changed_files(entry.data, data):
        causes.append(f"the data is not the public one: {', '.join(found)} differs")
    if not entry.seen:
        causes.append(
            "the declared score was not yet seen with this library: it is the published one"
        )
    causes += entry.look
    causes.append(
        f"the curves: {outcome.run / 'loss.png'}, {outcome.run / 'metrics.jsonl'}; "
        f"`allformer report {outcome.run}`"
    )
    return lines + [f"  - {cause}" for cause in causes]
