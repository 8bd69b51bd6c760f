"""LLaMA in GGUF files: what their metadata means, and llama.cpp's names of the weights.

llama.cpp calls "llama" all that computes as LLaMA does: Mistral without its window, SmolLM, and
others. Its rows of W_Q and W_K lie as in Meta's files, each rotated pair side by side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from allformer.config import DecoderOnly, Llama3Scaling, LMHead, Rotary
from allformer.core.relatives.rates import frequencies
from allformer.errors import CheckpointError
from allformer.families import layer_map
from allformer.families.kinds import NUMBER, SIZE, Kind, check_kind, short
from allformer.families.weights import Ignored, Interleaved, Op, Same, Stacked, WeightMap

ARCHITECTURE = "llama"
TABLE, OUTPUT = "token_embd.weight", "output.weight"
FACTORS = "rope_freqs.weight"  # what LLaMA 3.1 divides each frequency by
LAYER: layer_map.Names = {
    "attention.qkv": ("attn_q", "attn_k", "attn_v"),
    "attention.out": "attn_output",
    "attention_norm": "attn_norm",
    "feed.gate": "ffn_gate",
    "feed.up": "ffn_up",
    "feed.down": "ffn_down",
    "feed_norm": "ffn_norm",
}
_SIZES = {
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
}  # fmt: skip
_TOKENS = {
    "bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id",
    "padding_token_id": "pad_token_id",
}  # fmt: skip
# What changes no number: said elsewhere too, or of other programs.
_INERT = {
    "vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type",
    "rope.scaling.original_context_length", "use_parallel_residual",
}  # fmt: skip


def weights(model: DecoderOnly) -> WeightMap:
    """The map of such a file; the output matrix is the table where it has none of its own."""
    stack, heads = model.decoder, model.decoder.blocks[0].attention
    ops: list[Op] = [
        Same("decoder.source.embedding.weight", TABLE),
        Same("decoder.final_norm.weight", "output_norm.weight"),
        Ignored(re.escape(FACTORS), "rotary scaling, which the config says"),
    ]
    for op in layer_map.layers(stack, "decoder", "blk", LAYER):
        if isinstance(op, Stacked):
            q, k, v = op.theirs
            turned = Interleaved(str(q), heads.heads), Interleaved(str(k), heads.groups), v
            op = replace(op, theirs=turned)
        ops.append(op)
    if model.head is None:
        return [*ops, Ignored(re.escape(OUTPUT), "of a head that was not asked for")]
    tied = isinstance(model.head, LMHead) and model.head.tied
    return ops if tied else [*ops, Same("head.table.weight", OUTPUT)]


def fields_of(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[int, ...]],
    factors: Callable[[], Tensor],
    ignore: Iterable[str] = (),
) -> dict[str, Any]:
    """transformers' config.json of a file by its metadata and its tensors' shapes.

    `factors` reads the tensor of rotary factors, where there is one. What the file says of the
    architecture and nobody takes is refused, unless it is in `ignore`.
    """
    said = _Said(metadata, set(ignore))
    if TABLE not in tensors or len(tensors[TABLE]) != 2:
        raise CheckpointError(f"it has no tensor {TABLE}, the table of tokens; download it again")
    raw: dict[str, Any] = {name: said.size(theirs) for theirs, name in _SIZES.items()}
    if f"blk.{raw['num_hidden_layers'] - 1}.attn_norm.weight" not in tensors:
        raise CheckpointError(
            f"it says {ARCHITECTURE}.block_count={raw['num_hidden_layers']}, but has no tensors of "
            f"so many layers; download it again"
        )
    heads = raw["num_attention_heads"]
    raw["num_key_value_heads"] = said.size("attention.head_count_kv", heads)
    raw["head_dim"] = _head_dim(said, raw["hidden_size"], heads)
    raw["rms_norm_eps"] = said.number("attention.layer_norm_rms_epsilon")
    raw["max_position_embeddings"] = said.size("context_length")
    raw["rope_parameters"] = _rope(said, raw["head_dim"], factors if FACTORS in tensors else None)
    raw["vocab_size"] = tensors[TABLE][0]
    raw["tie_word_embeddings"] = OUTPUT not in tensors
    raw["attention_bias"] = _biased(tensors, "attn_q", "attn_k", "attn_v", "attn_output")
    raw["mlp_bias"] = _biased(tensors, "ffn_gate", "ffn_up", "ffn_down")
    ids = {name: metadata.get(f"tokenizer.ggml.{theirs}") for theirs, name in _TOKENS.items()}
    said.close()
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **raw, **ids}


def _biased(tensors: Collection[str], *parts: str) -> bool:
    """Whether the first layer has a bias on some of these; the map then asks for all of them."""
    return any(f"blk.0.{part}.bias" in tensors for part in parts)


def _head_dim(said: _Said, dim: int, heads: int) -> int:
    """A head's size, of which all features are turned."""
    size = said.size("attention.key_length", max(1, dim // heads))
    for name in ("attention.value_length", "rope.dimension_count"):
        other = said.size(name, size)
        if other != size:
            raise CheckpointError(
                f"it has {ARCHITECTURE}.{name}={other} beside heads of {size} features, which is "
                f"not supported; they must be the same"
            )
    return size


def _rope(said: _Said, size: int, factors: Callable[[], Tensor] | None) -> dict[str, Any]:
    """`rope_parameters`, as transformers 5 has them."""
    theta = said.number("rope.freq_base", 10_000.0)
    older = said.number("rope.scale_linear", 1.0)
    factor = said.number("rope.scaling.factor", older)
    kind = said.take("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"it has {ARCHITECTURE}.rope.scaling.type={short(kind)}, which is not supported; "
            f"supported are none, linear and LLaMA 3.1's ({FACTORS})"
        )
    if factors is not None:
        return {"rope_theta": theta, **_llama3(theta, size, factors().float())}
    if kind == "none" or factor == 1.0:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": factor}


def _llama3(theta: float, size: int, factors: Tensor) -> dict[str, Any]:
    """The scaling whose factors these are. A file has them and not what they come from; all that
    is published has the ramp from 1 to 4 turns within 8,192 tokens."""
    guess = Llama3Scaling(float(f"{factors.max().item():.6g}"))
    plain = frequencies(Rotary(theta), size)
    wanted = plain / frequencies(Rotary(theta, guess), size)
    if factors.shape != wanted.shape or not torch.allclose(factors, wanted, rtol=1e-4):
        raise CheckpointError(
            f"its rotary factors ({FACTORS}, up to {guess.factor:g}) are not those of LLaMA 3.1 "
            f"(a ramp from {guess.low:g} to {guess.high:g} turns within {guess.length:,} tokens), "
            f"which alone are known here; convert the original checkpoint instead"
        )
    if guess.factor == 1.0:
        return {"rope_type": "default"}
    return {
        "rope_type": "llama3", "factor": guess.factor, "low_freq_factor": guess.low,
        "high_freq_factor": guess.high, "original_max_position_embeddings": guess.length,
    }  # fmt: skip


class _Said:
    """The part of the metadata that belongs to the architecture."""

    def __init__(self, metadata: Mapping[str, Any], ignore: set[str]) -> None:
        start = f"{ARCHITECTURE}."
        own = {key: value for key, value in metadata.items() if key.startswith(start)}
        self.left = {key.removeprefix(start): x for key, x in own.items() if key not in ignore}

    def take(self, name: str, default: Any = None, kind: Kind | None = None) -> Any:
        """A value; one that layers have in common may be a list of equal ones."""
        value = self.left.pop(name, None)
        if isinstance(value, list) and value and all(x == value[0] for x in value):
            value = value[0]
        if value is None and default is None:
            raise CheckpointError(f"it lacks {ARCHITECTURE}.{name}, which must be said")
        if kind is not None:
            check_kind(f"{ARCHITECTURE}.{name}", value, kind, "it")
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        return int(self.take(name, default, SIZE))

    def number(self, name: str, default: float | None = None) -> float:
        return float(self.take(name, default, NUMBER))

    def close(self) -> None:
        """Refuse what nobody took: experts, windows, and what is still to be invented."""
        left = {
            f"{ARCHITECTURE}.{name}": value
            for name, value in self.left.items()
            if name not in _INERT and value not in (0, False, [])
        }
        if left:
            name, value = next(iter(left.items()))
            more = f" (and {', '.join(list(left)[1:20])})" if len(left) > 1 else ""
            raise CheckpointError(
                f"it has {name}={short(value)}{more}, which is not known here and may change its "
                f"numbers; load(…, ignore={list(left)[:20]}) goes on without"
            )
