"""llama2.c's files: a LLaMA as one `.bin` of fp32 numbers, and its tokeniser beside it.

    model = read_llama2c("stories260K.bin")
    write_sentencepiece(read_pieces("tok512.bin"), "out/tokenizer.model")

The layout is that of github.com/karpathy/llama2.c (export version 0): seven whole numbers, then
the tensors one after the other. Its rotary pairs are neighbours, as in Meta's files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from allformer.checkpoint.files import in_memory
from allformer.checkpoint.transfer import load_weights
from allformer.core.model import AnyModel, build
from allformer.core.provenance import Provenance
from allformer.errors import CheckpointError
from allformer.families import llama
from allformer.families.weights import Ignored, Interleaved, Op, Same, Stacked

_HEADER = struct.Struct("<7i")


@dataclass(frozen=True)
class Header:
    """The seven numbers; a negative vocabulary says that the output matrix is its own."""

    dim: int
    feed: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    length: int

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """What follows, in order; names with a layer are one tensor for all layers."""
        d, f, n, v = self.dim, self.feed, self.layers, abs(self.vocab)
        kv, half = d // self.heads * self.kv_heads, d // self.heads // 2
        shapes: list[tuple[str, tuple[int, ...]]] = [
            ("embedding", (v, d)), ("attention_norm", (n, d)),
            ("wq", (n, d, d)), ("wk", (n, kv, d)), ("wv", (n, kv, d)), ("wo", (n, d, d)),
            ("feed_norm", (n, d)), ("w1", (n, f, d)), ("w2", (n, d, f)), ("w3", (n, f, d)),
            ("final_norm", (d,)), ("cos", (self.length, half)), ("sin", (self.length, half)),
        ]  # fmt: skip
        return shapes if self.vocab > 0 else [*shapes, ("output", (v, d))]


def read_llama2c(path: str | Path) -> AnyModel:
    """The model in a `.bin` of llama2.c, in eval mode."""
    path = Path(path)
    header, tensors = _read(path)
    sizes = llama.sizes(
        header.dim, header.layers, header.heads, header.kv_heads, header.feed, abs(header.vocab),
        header.length,
    )  # fmt: skip
    raw = {**sizes, "rms_norm_eps": 1e-5, "tie_word_embeddings": header.vocab > 0}
    model = build(llama.FAMILY.make(raw), device="meta")
    fates = load_weights(model, _weights(header), in_memory(tensors, str(path))).fates
    model.provenance = Provenance("llama", "LlamaForCausalLM", fates=fates)
    return model.eval()


def _read(path: Path) -> tuple[Header, dict[str, Tensor]]:
    data = np.fromfile(path, dtype=np.uint8)
    if len(data) < _HEADER.size:
        raise CheckpointError(f"{path} is no file of llama2.c: it has only {len(data)} bytes")
    header = Header(*_HEADER.unpack(data[: _HEADER.size].tobytes()))
    sizes = [header.dim, header.feed, header.layers, header.heads, header.kv_heads, header.length]
    if min(sizes) < 1 or header.dim % header.heads or not header.vocab:
        raise CheckpointError(
            f"{path} is no file of llama2.c (its first numbers are {header}); give the .bin that "
            f"its export.py wrote with version 0"
        )
    numbers = torch.from_numpy(data[_HEADER.size :])
    wanted = sum(4 * int(np.prod(shape)) for _, shape in header.shapes())
    if len(numbers) != wanted:
        raise CheckpointError(
            f"{path} has {len(numbers):,} bytes of weights, not the {wanted:,} that its header "
            f"asks for; it is cut off or of another version: copy it again"
        )
    tensors, at = {}, 0
    for name, shape in header.shapes():
        size = 4 * int(np.prod(shape))
        whole = numbers[at : at + size].view(torch.float32).view(shape)
        at += size
        if len(shape) == 3 or name in ("attention_norm", "feed_norm"):
            tensors.update({f"{name}.{i}": layer for i, layer in enumerate(whole)})
        else:
            tensors[name] = whole
    return header, tensors


def _weights(header: Header) -> list[Op]:
    kv = header.dim // header.heads * header.kv_heads
    ops: list[Op] = [
        Same("decoder.source.embedding.weight", "embedding"),
        Same("decoder.final_norm.weight", "final_norm"),
        Ignored("cos|sin", "rotary angles, computed"),
    ]
    if header.vocab < 0:
        ops.append(Same("head.table.weight", "output"))
    for i in range(header.layers):
        ours = f"decoder.layers.{i}"
        q, k = Interleaved(f"wq.{i}", header.heads), Interleaved(f"wk.{i}", header.kv_heads)
        ops += [
            Stacked(f"{ours}.attention.qkv.weight", (q, k, f"wv.{i}"), (header.dim, kv, kv)),
            Same(f"{ours}.attention.out.weight", f"wo.{i}"),
            Same(f"{ours}.attention_norm.weight", f"attention_norm.{i}"),
            Same(f"{ours}.feed.gate.weight", f"w1.{i}"),
            Same(f"{ours}.feed.down.weight", f"w2.{i}"),
            Same(f"{ours}.feed.up.weight", f"w3.{i}"),
            Same(f"{ours}.feed_norm.weight", f"feed_norm.{i}"),
        ]
    return ops


def read_pieces(path: str | Path, vocab: int) -> list[tuple[str, float]]:
    """The pieces and scores of a llama2.c tokeniser."""
    data, at = Path(path).read_bytes(), 4  # the first number is the longest piece's length
    pieces = []
    try:
        for _ in range(vocab):
            score, size = struct.unpack_from("<fi", data, at)
            at += 8 + size
            if at > len(data) or size < 0:
                raise struct.error("cut off")
            pieces.append((data[at - size : at].decode("utf-8"), score))
    except (struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} is no tokeniser of llama2.c with {vocab} pieces ({error}); give the one that "
            f"the model was trained with"
        ) from None
    return pieces


def write_sentencepiece(pieces: list[tuple[str, float]], path: Path) -> None:
    """The pieces as a sentencepiece BPE model, which is what llama2.c exported them from."""
    unknown, control, byte, normal = 2, 3, 6, 1
    message = b""
    for i, (text, score) in enumerate(pieces):
        kind = unknown if i == 0 else control if i < 3 else byte if i < 259 else normal
        # llama2.c shows the space as a space and pads the two marks with line ends.
        text = text.strip("\n") if i < 3 else text if i < 259 else text.replace(" ", "▁")
        raw = text.encode("utf-8")
        body = _field(1, raw) + b"\x15" + struct.pack("<f", score) + _number(3, kind)
        message += _field(1, body)
    trainer = _number(3, 2) + _number(35, 1)  # BPE, bytes for what is unknown
    normalizer = _number(3, 1) + _number(4, 0)  # a space before the text, runs of spaces kept
    path.write_bytes(message + _field(2, trainer) + _field(3, normalizer))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
