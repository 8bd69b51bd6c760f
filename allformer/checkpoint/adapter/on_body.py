"""An adapter beside a config tree of ours: its base gives the body, whatever the base is.

A run of training leaves one: `config.json` is the tree with its head, and what the base has no
weights for (the head, perhaps a pooler) is among the adapter's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allformer.checkpoint.adapter.files import AdapterFiles
from allformer.checkpoint.body import build_on, take_body
from allformer.config import from_dict
from allformer.errors import CheckpointError, ConfigError
from allformer.json_file import read_object
from allformer.tune.apply import DEFAULT


def own_tree(adapter: AdapterFiles) -> Any | None:
    """The tree that lies beside an adapter, where it is one of ours."""
    beside = adapter.directory / "config.json"
    if not beside.is_file():
        return None
    raw = read_object(beside, CheckpointError)
    if "is" not in raw:
        return None
    try:
        return from_dict(raw)
    except ConfigError as error:
        raise CheckpointError(f"{beside}: {error}") from None


def on_body(tree: Any, trained: Any, adapter: AdapterFiles) -> tuple[Any, list[str]]:
    """A model of that tree with a trained one's body, and the names of what is fresh in it."""
    if trained.config == tree:
        return trained, []
    model = build_on(tree, trained, trained.device).to(next(trained.parameters()).dtype)
    model.provenance = trained.provenance
    fresh, odd = take_body(model, trained.state_dict())
    if odd:
        raise CheckpointError(
            f"{adapter.directory} is of a model with {odd[0]} "
            f"{tuple(model.state_dict()[odd[0]].shape)}, and its base has none of that shape; give "
            f"the one that it was trained on: base=…"
        )
    return model, fresh


def check_fresh(model: Any, fresh: Iterable[str], adapter: AdapterFiles) -> None:
    """What the base has not must come from the adapter: else it would be noise."""
    own = model.tuning.adapters[DEFAULT].own
    if lost := next((name for name in fresh if name not in own), None):
        raise CheckpointError(
            f"neither {adapter.directory} nor its base has {lost}; give the base that it was "
            f"trained on: base=…"
        )
