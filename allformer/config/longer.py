"""The same tree for longer texts: who looks at whom, and more positions.

longer(preset("roberta-base"), 4096, Window(512, 512))      # a Longformer
longer(preset("llama-3.2-1b"), 131_072, Window(4095))       # a Mistral in its shape
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allformer.config.block_sparse import BlockSparse
from allformer.config.features import Features
from allformer.config.global_window import GlobalWindow
from allformer.config.head import ClassHead, Pool
from allformer.config.local import Local
from allformer.config.mixer import Full, Mixer, Window
from allformer.config.model import EncoderDecoder, EncoderOnly, Model
from allformer.config.position import Learned, Position
from allformer.config.stack import Stack
from allformer.errors import ConfigError


def longer(model: Model, length: int, mixer: Mixer) -> Model:
    """The tree with `length` positions and another mixer where attention is full, in the stack that
    reads the text. A window there that looks both ways becomes Longformer's, with global tokens."""
    name, stack = next(iter(model.stacks.items()))
    _check_length(stack, length)
    mixer = _fitted(stack, length, mixer)
    is_global = isinstance(mixer, GlobalWindow)
    position = _positions(stack, length)
    if is_global and isinstance(position, Learned):
        position = _as_longformer(model, stack, position)
    relative: Any = stack.relative
    if relative is not None and relative.trained is not None:
        relative = replace(relative, length=length)
    blocks = _blocks(stack, mixer, length)
    changed = replace(stack, position=position, blocks=blocks, relative=relative)
    if isinstance(mixer, BlockSparse) and isinstance(model, EncoderOnly):
        changed = replace(changed, dropout_at="summed")  # as BigBird, in training alone
    found: dict[str, Any] = {name: changed}
    if is_global and isinstance(model, EncoderDecoder):
        found["decoder"] = _from_row_0(model.decoder)
    if is_global and isinstance(model, EncoderOnly):
        found |= _classes_by_first(model)
    return replace(model, **found)


def seen_by_all(model: Model) -> int | None:
    """How long a text may be in which everybody looks at everybody, as in full attention; None: as
    long as it likes; 0: nobody ever does."""
    sights = [
        _sight(block.attention.mixer, stack.causal)
        for stack in model.stacks.values()
        for block in stack.blocks
    ]
    return min((sight for sight in sights if sight is not None), default=None)


def _sight(mixer: Mixer, causal: bool) -> int | None:
    if isinstance(mixer, Window | GlobalWindow):
        return (mixer.left if causal else min(mixer.left, mixer.right)) + 1
    if isinstance(mixer, BlockSparse):
        return mixer.short
    if isinstance(mixer, Local):
        return mixer.chunk
    return None if mixer == Full() else 0


def _check_length(stack: Stack, length: int) -> None:
    if type(length) is not int or length < 1:
        raise ConfigError(f"length={length!r} must be a whole number of at least 1; try 4096")
    has = stack.longest
    if has is not None and length < has:
        raise ConfigError(
            f"length={length} is less than the {has} tokens that the model takes as it is; "
            f"lengthening makes it longer: try {8 * has}"
        )


def _fitted(stack: Stack, length: int, mixer: Mixer) -> Mixer:
    """As this stack can have it."""
    if not isinstance(mixer, Mixer):
        raise ConfigError(f"mixer={mixer!r} is not a mixer; try Window(512, 512)")
    if isinstance(mixer, Window):
        if mixer.dilation > 1:
            raise ConfigError(
                f"mixer={mixer!r} skips neighbours, which the trained layers look at; try "
                f"Window({mixer.left}, {mixer.right})"
            )
        if stack.causal:
            mixer = Window(mixer.left)
        elif stack.relative is None:
            mixer = GlobalWindow(mixer.left, mixer.right)
    if mixer.longest is not None and mixer.longest < length:
        raise ConfigError(
            f"mixer={mixer!r} takes {mixer.longest} tokens, which is less than length={length}; "
            f"give it as many"
        )
    if isinstance(mixer, Window | GlobalWindow):
        sides = (mixer.left,) if stack.causal else (mixer.left, mixer.right)
        if not any(sides):
            raise ConfigError(
                f"mixer={mixer!r} lets a token see itself alone; try Window(512, 512)"
            )
        if min(sides) >= length - 1:
            raise ConfigError(
                f"mixer={mixer!r} reaches over all of length={length}: that is full attention; "
                f"take mixer=Full(), or a window narrower than {length - 1}"
            )
    return mixer


def _blocks(stack: Stack, mixer: Mixer, length: int) -> tuple[Any, ...]:
    """Layers that have windows already keep them, unless all have. Random blocks are drawn by the
    layer, and sums of features drop no weights, of which they have none."""
    some = any(block.attention.mixer == Full() for block in stack.blocks)
    own: dict[str, Any] = {"dropout": 0.0} if isinstance(mixer, Features) else {}
    blocks = []
    for i, block in zip(stack.share or range(len(stack.blocks)), stack.blocks, strict=True):
        if block.attention.mixer == Full() or not some:
            if isinstance(mixer, BlockSparse):
                mixer = replace(mixer, seed=i, table=length)
            block = replace(block, attention=replace(block.attention, mixer=mixer, **own))
        blocks.append(block)
    return tuple(blocks)


def _positions(stack: Stack, length: int) -> Position | None:
    position: Any = stack.position
    if isinstance(position, Learned):
        return replace(position, length=length)
    if position is None or position.longest is None:
        told = position is not None and position.trained is not None
        return replace(position, length=length) if told else position  # type: ignore[no-any-return]
    raise ConfigError(
        f"Stack.position={position!r} cannot be lengthened: its rows are not one for each place; "
        f"Learned, Sinusoidal and Rotary can"
    )


def _as_longformer(model: Model, stack: Stack, position: Learned) -> Learned:
    """Longformer's encoder counts from the padding's id on, as RoBERTa; LED's from row 0."""
    pad = stack.source.pad_id
    if isinstance(model, EncoderDecoder):
        return replace(position, offset=0)
    if position.count == "ids" or pad is None:
        return position
    return Learned(position.length, pad + 1, "ids")


def _from_row_0(stack: Stack) -> Stack:
    if not isinstance(stack.position, Learned):
        return stack
    return replace(stack, position=replace(stack.position, offset=0))


def _classes_by_first(model: EncoderOnly) -> dict[str, Any]:
    """BERT's pooler below a head for classes is the dense layer inside Longformer's."""
    head = model.head
    if not isinstance(head, ClassHead) or head.at != "pool" or head.dense is not None:
        return {}
    pool = model.pool or Pool()
    return {"head": replace(head, at="first", dense=pool.act), "pool": None}
