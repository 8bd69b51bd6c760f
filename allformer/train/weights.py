"""The model that a run begins with: fresh weights, or a checkpoint's under a fresh head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from allformer.checkpoint.adapter.files import is_adapter
from allformer.checkpoint.body import build_on, take_body
from allformer.checkpoint.load import load, load_in_bits
from allformer.core.model import build
from allformer.errors import ConfigError
from allformer.train.sections.model import AnyModelRecipe, CheckpointModel

# Whole layers left out of a step, which transformers does in training and nothing here does.
LAYER_DROP = ("encoder_layerdrop", "decoder_layerdrop")


class Begun(NamedTuple):
    """A model, and the names of what no checkpoint had for it."""

    model: Any
    fresh: list[str]


def begin(
    asked: AnyModelRecipe, tree: Any, device: torch.device, say: Callable[[str], None]
) -> Begun:
    """A model of that tree: `begin(recipe.model, objective.config(vocabulary), device, print)`."""
    if not isinstance(asked, CheckpointModel):
        model = build(tree, device=device)
        return Begun(model, [name for name, _ in model.named_parameters()])
    refuse_adapter(asked)
    trained = _trained(asked, device)
    _tell_of_layer_drop(trained, asked.checkpoint, say)
    if trained.config == tree:
        say(f"weights: all of {asked.checkpoint}")
        return Begun(trained, [])
    model = build_on(tree, trained, device)
    model.provenance = trained.provenance
    state = trained.state_dict()
    if not _alike(trained.config.head, tree.head):  # what fits by chance means something else
        state = {name: x for name, x in state.items() if not name.startswith("head.")}
    fresh = put_body(model, state, asked.checkpoint)
    rest = f"; fresh: {', '.join(fresh)}" if fresh else ""
    say(f"weights: the body of {asked.checkpoint}{rest}")
    return Begun(model, fresh)


def _trained(asked: CheckpointModel, device: torch.device) -> Any:
    """The checkpoint's own model; what is trained of it is trained in fp32."""
    if asked.quantise is None:
        return load(asked.directory, device=device, dtype=torch.float32)
    return load_in_bits(asked.directory, asked.quantise, device=device, dtype=torch.float32)


def _tell_of_layer_drop(trained: Any, where: str, say: Callable[[str], None]) -> None:
    """A checkpoint that was trained with it goes on without."""
    extras = trained.provenance.extras
    for name in LAYER_DROP:
        if extras.get(name):
            say(
                f"{where} has {name}={extras[name]}: whole layers were left out in its training, "
                f"and are not here; Block.drop_path leaves out sub-layers, row by row"
            )


def refuse_adapter(asked: CheckpointModel) -> None:
    """What stands on another checkpoint is no ground for a new run."""
    if is_adapter(asked.directory):
        raise ConfigError(
            f"model.checkpoint={asked.checkpoint!r} is an adapter beside another model's weights; "
            f"put both together first: allformer convert {asked.checkpoint} OUT --merge, and give "
            f"OUT"
        )


def _alike(one: Any, other: Any) -> bool:
    """Whether two heads say the same things: of one kind, and over the same labels."""
    kinds = {(type(head), getattr(head, "labels", None)) for head in (one, other)}
    return len(kinds) == 1


def put_body(model: Any, trained: dict[str, Any], where: str) -> list[str]:
    """Copy what fits by name and shape; returns what stays fresh, and refuses a body that does."""
    fresh, odd = take_body(model, trained)
    if odd:
        has = trained.get(odd[0])
        shape = "nothing" if has is None else tuple(has.shape)
        raise ConfigError(
            f"model.change makes {odd[0]} {tuple(model.state_dict()[odd[0]].shape)}, but {where} "
            f"has {shape} there; change only what has no weights, such as dropout"
        )
    return fresh
