"""Which data a run was begun with, so that it is known again on --resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allformer.checkpoint.save import write_json
from allformer.errors import CheckpointError
from allformer.train.objectives.objective import Objective

FILE = "data.json"


def write_data(run: Path, objective: Objective[Any, Any]) -> None:
    """Leave the fingerprint of the training data in the run."""
    write_json(run / FILE, {"fingerprint": objective.fingerprint()})


def check_data(
    run: Path, objective: Objective[Any, Any], allow_changed: bool, say: Callable[[str], None]
) -> None:
    """Refuse other data than the run began with: other batches would follow.

    Runs of before have no fingerprint; they get one now.
    """
    path = run / FILE
    now = objective.fingerprint()
    if path.is_file():
        try:
            then = json.loads(path.read_text(encoding="utf-8"))["fingerprint"]
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"{path} cannot be read; remove it if the data is the same"
            ) from None
        if then == now:
            return
        if not allow_changed:
            raise CheckpointError(
                f"the training data is not what {run} began with, so that other batches would "
                f"follow; put the data back, or go on all the same with --allow-changed-data"
            )
        say("the training data has changed: going on with it, on other batches")
    write_json(path, {"fingerprint": now})
