"""Prefix-tuning in PEFT's files: `prompt_embeddings`, P W, the keys and values of all layers.

A network that makes them is not in the file, which has what it made: as in PEFT, a prefix is
opened without it.

Behind an encoder PEFT deals keys and values out two layers at a time, of which it then takes the
first: decoder layer i has those in place 2 i mod L of L. So with an even L two layers share theirs,
and every second place is read by none; a prefix of ours with keys of its own in each layer has no
place in such a file.

Legend: P learned keys, G key/value heads, D head size, L layers, W = 2 L G D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.adapter.fields import Fields
from allformer.checkpoint.adapter.form import Form, NotPeft, Said, Tensors, Written, check_shape
from allformer.checkpoint.adapter.names import Names
from allformer.config import EncoderDecoder
from allformer.errors import CheckpointError
from allformer.families.kinds import SIZE
from allformer.tune.prefix import Prefix, PrefixKeys

KEY = "prompt_embeddings"


class PrefixForm(Form):
    """`peft_type: PREFIX_TUNING`."""

    kind, method, before, tasked = "PREFIX_TUNING", Prefix, "base_model.", True

    def read(self, fields: Fields, tensors: Tensors, names: Names, model: Any) -> Said:
        """The table as it is; behind an encoder in our order of layers."""
        fields.inert(
            "token_dim", "num_attention_heads", "num_layers", "num_transformer_submodules",
            "encoder_hidden_size", "prefix_projection", "init_weights",
        )  # fmt: skip
        tokens, table = take_table(fields, tensors)
        where, stack = _stack(model)
        sizes = _sizes(stack)
        check_shape(fields, KEY, table, (tokens, sum(sizes)))
        if isinstance(model.config, EncoderDecoder):
            parts = torch.split(table, sizes, 1)
            table = torch.cat([parts[2 * i % len(parts)] for i in range(len(parts))], 1)
        return Said(Prefix(tokens), {f"{where}.delta.prefix.table": table})

    def write(self, method: Prefix, adapter: str, names: Names, model: Any) -> Written:
        """What stands before the tokens, made by a network or not."""
        found = [
            (path, slot.each[adapter]["prefix"])
            for (path, _), slot in model.tuning.slots.items()
            if adapter in slot.each and "prefix" in slot.each[adapter]
        ]
        where, stack = _stack(model)
        if len(found) != 1 or found[0][0] != where:
            raise NotPeft("it has prefixes in one stack alone, the decoder behind an encoder")
        keys = found[0][1]
        assert isinstance(keys, PrefixKeys)
        if len(set(keys.shapes)) != 1:
            raise NotPeft("its layers have heads of several sizes")
        with torch.no_grad():
            table, submodules = keys.flat().clone(), 1
        if isinstance(model.config, EncoderDecoder):
            table, submodules = _dealt(table, _sizes(stack)), 2
        groups, size = keys.shapes[0]
        said = {
            "num_virtual_tokens": method.tokens,
            "token_dim": groups * size,
            "num_attention_heads": groups,
            "num_layers": len(keys.shapes),
            "num_transformer_submodules": submodules,
            "encoder_hidden_size": method.hidden,
            "prefix_projection": False,
        }
        return Written(said, {}, beside={KEY: table})


def take_table(fields: Fields, tensors: Tensors) -> tuple[int, Tensor]:
    """How many tokens are learned, and their table, taken out of `tensors`."""
    tokens = fields.take("num_virtual_tokens", None, SIZE)
    if tokens is None or KEY not in tensors:
        lacks = f"{fields.file.name} no num_virtual_tokens" if tokens is None else f"no {KEY}"
        raise CheckpointError(f"{fields.file.parent} has {lacks}; write it again with PEFT")
    return tokens, tensors.pop(KEY)


def _stack(model: Any) -> tuple[str, Any]:
    """The stack that PEFT puts keys and values into, and its name."""
    pair = isinstance(model.config, EncoderDecoder)
    name = "decoder" if pair else next(iter(model.config.stacks))
    return name, model.stack(name)


def _sizes(stack: Any) -> list[int]:
    """The keys and values of each layer that runs, 2 G D."""
    mixers = [stack.layers[j].attention.mixer for j in stack.order]
    return [2 * mixer.groups * mixer.size for mixer in mixers]


def _dealt(table: Tensor, sizes: list[int]) -> Tensor:
    """Our layers in PEFT's places, zeros in those that it does not read."""
    out: list[Tensor | None] = [None] * len(sizes)
    parts = torch.split(table, sizes, 1)
    for i, part in enumerate(parts):
        place = 2 * i % len(parts)
        there = out[place]
        if there is not None and not torch.equal(there, part):
            raise NotPeft(
                f"behind an encoder it has the same keys for layers {place // 2} and {i}, which "
                f"differ here"
            )
        out[place] = part
    whole = [torch.zeros_like(parts[0]) if part is None else part for part in out]
    return torch.cat(whole, 1)
