"""Prompt-tuning in PEFT's files: `prompt_embeddings`, P dim.

Of a model with encoder and decoder PEFT's own table has 2 P rows, of which it reads the first P.
"""

from __future__ import annotations

from typing import Any

from allformer.checkpoint.adapter.fields import Fields
from allformer.checkpoint.adapter.form import Form, Said, Tensors, Written, check_shape
from allformer.checkpoint.adapter.names import Names
from allformer.checkpoint.adapter.prefix import KEY, take_table
from allformer.config import EncoderDecoder
from allformer.tune.prompt import Prompt, PromptVectors


class PromptForm(Form):
    """`peft_type: PROMPT_TUNING`."""

    kind, method, before, tasked = "PROMPT_TUNING", Prompt, "base_model.", True

    def read(self, fields: Fields, tensors: Tensors, names: Names, model: Any) -> Said:
        """The first P rows."""
        fields.inert(
            "token_dim", "num_attention_heads", "num_layers", "num_transformer_submodules",
            "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path",
            "tokenizer_kwargs",
        )  # fmt: skip
        tokens, table = take_table(fields, tensors)
        if isinstance(model.config, EncoderDecoder) and len(table) == 2 * tokens:
            table = table[:tokens]
        name = next(iter(model.config.stacks))
        check_shape(fields, KEY, table, (tokens, model.config.stacks[name].width))
        return Said(Prompt(tokens), {f"{name}.source.delta.prompt.table": table})

    def write(self, method: Prompt, adapter: str, names: Names, model: Any) -> Written:
        """The table as it is."""
        name = next(iter(model.config.stacks))
        slot = model.tuning.slots[f"{name}.source", "delta"]
        vectors = slot.each[adapter]["prompt"]
        assert isinstance(vectors, PromptVectors)
        stack = model.config.stacks[name]
        said = {
            "num_virtual_tokens": method.tokens,
            "token_dim": stack.width,
            "num_attention_heads": stack.blocks[0].attention.heads,
            "num_layers": len(stack.blocks),
            "num_transformer_submodules": 1,
            "prompt_tuning_init": "RANDOM",
        }
        return Written(said, {}, beside={KEY: vectors.table.detach().clone()})
