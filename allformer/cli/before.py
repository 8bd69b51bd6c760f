"""What `train` and `tune` show of a recipe in place of training it: a batch, or its cost."""

from __future__ import annotations

import json
from typing import Any

from allformer.cli.common import show


def shown_instead(
    recipe: Any, *, batch: bool, plan: bool, as_json: bool, device: str | None, compile: bool | None
) -> bool:
    """Print the first batch (`--show-batch`) or the plan (`--dry-run`), if asked.

    Either is one process's work, and of several that were launched the first one does it.
    """
    from allformer.train.parallel.launch import is_first

    if (batch or plan) and not is_first():
        return True
    if batch:
        from allformer.cli.show_batch import show_batch

        show_batch(recipe, as_json)
    elif plan:
        from allformer.cli.tables import plan_table
        from allformer.train.dry_run import dry_run

        found = dry_run(recipe, device=device, compile=compile)
        if as_json:
            print(json.dumps(found.as_dict()))
        else:
            show(plan_table(recipe.name, found))
    return batch or plan
