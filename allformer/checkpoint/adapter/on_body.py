"""An adapter beside a config tree of ours: its base gives the body, whatever the base is.

A run of training leaves one: `config.json` is the tree with its head, and what the base has no
weights for (the head, perhaps a pooler) is among the adapter's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from allformer.checkpoint.adapter.files import AdapterFiles
from allformer.checkpoint.body import build_on, take_body
from allformer.config import QueryMasks, from_dict
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
    check_body(tree, trained.config, adapter)
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


def check_body(tree: Any, below: Any, adapter: AdapterFiles) -> None:
    """Refuse a body that differs in what no tensor's shape tells: layers beyond, other heads.

    Deeper stacks are right where the head has taken the last layers for its own (masks by queries).
    """
    for name, stack in tree.stacks.items():
        other = below.stacks.get(name)
        if other is None:
            continue  # of another shape: its tensors tell
        said, has = len(stack.blocks), len(other.blocks)
        if said < has and not isinstance(tree.head, QueryMasks):
            _refuse(adapter, f"{said} layers in its {name}", str(has))
        for i, (one, two) in enumerate(zip(stack.blocks, other.blocks, strict=False)):
            if (one.attention.heads, one.attention.kv_heads) != (
                two.attention.heads,
                two.attention.kv_heads,
            ):
                _refuse(
                    adapter,
                    f"{one.attention.heads} heads in {name}.layers.{i}",
                    str(two.attention.heads),
                )


def _refuse(adapter: AdapterFiles, said: str, has: str) -> NoReturn:
    raise CheckpointError(
        f"{adapter.directory} is of a model with {said}, and its base has {has}; give the one "
        f"that it was trained on: base=…"
    )


def check_fresh(model: Any, fresh: Iterable[str], adapter: AdapterFiles) -> None:
    """What the base has not must come from the adapter: else it would be noise."""
    own = model.tuning.adapters[DEFAULT].own
    if lost := next((name for name in fresh if name not in own), None):
        raise CheckpointError(
            f"neither {adapter.directory} nor its base has {lost}; give the base that it was "
            f"trained on: base=…"
        )
