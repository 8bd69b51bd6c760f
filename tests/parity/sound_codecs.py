"""Loud tiny sound codecs of transformers, and how they are compared with ours: disk to disk, in
fp64.

Codebooks are as wide as what they quantise and get narrower from one to the next, so that all codes
are used and a wrong residual is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as hf
from torch import Tensor

import allformer as af
from allformer.families import FAMILIES
from allformer.families.weights import save_tensor
from tests.loud import make_loud

TOLERANCE = 1e-10
LENGTHS = (1, 3, 37, 300)  # shorter than any reflection, and no multiple of a frame


@dataclass(frozen=True, eq=False)  # each is itself: the key of its oracle
class Case:
    """One codec of transformers: `Case("causal", lambda: hf.EncodecConfig(…))`."""

    name: str
    config: Callable[[], Any]
    lengths: tuple[int, ...] = LENGTHS


def encodec(**fields: Any) -> Callable[[], Any]:
    """A tiny one."""
    usual: dict[str, Any] = {
        "num_filters": 4, "hidden_size": 8, "upsampling_ratios": [3, 2], "codebook_size": 16,
        "target_bandwidths": [0.05, 0.12, 0.24], "sampling_rate": 80, "num_residual_layers": 2,
        "dilation_growth_rate": 3,
    }  # fmt: skip
    return lambda: hf.EncodecConfig(**{**usual, **fields})


def mimi(**fields: Any) -> Callable[[], Any]:
    """A tiny one, that is longer than its window."""
    usual: dict[str, Any] = {
        "num_filters": 4, "hidden_size": 16, "upsampling_ratios": [3, 2], "codebook_size": 16,
        "codebook_dim": 8, "vector_quantization_hidden_dimension": 8, "num_quantizers": 4,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 32, "upsample_groups": 16, "sampling_rate": 80, "sliding_window": 5,
    }  # fmt: skip
    return lambda: hf.MimiConfig(**{**usual, **fields})


CAUSAL = Case("causal", encodec())
TRIMMED = Case("trimmed", encodec(trim_right_ratio=0.4, pad_mode="constant", compress=1))
STEREO = Case(
    "stereo",
    encodec(
        audio_channels=2, normalize=True, chunk_length_s=1.0, overlap=0.25, use_causal_conv=False,
        norm_type="time_group_norm",
    ),
    (1, 80, 300),
)  # fmt: skip
PLAIN = Case("no shortcut", encodec(use_conv_shortcut=False, pad_mode="replicate"), (37,))
MIMI = Case("mimi", mimi())
SPLIT = Case(
    "mimi, two semantic books",
    mimi(
        codebook_dim=16, vector_quantization_hidden_dimension=16, num_semantic_quantizers=2,
        num_key_value_heads=1, attention_bias=True, use_conv_shortcut=True, frame_rate=3.5,
        upsample_groups=4, head_dim=4,
    ),
    (37, 300),
)  # fmt: skip
ENCODECS, MIMIS = (CAUSAL, TRIMMED, STEREO, PLAIN), (MIMI, SPLIT)


def sound(case: Case, length: int, rows: int = 2) -> Tensor:
    """Noise of which the parts are unequally loud."""
    make = torch.Generator().manual_seed(length)
    channels = case.config().audio_channels
    x = torch.randn(rows, channels, length, generator=make, dtype=torch.float64)
    return x * torch.linspace(0.2, 1.0, length, dtype=torch.float64)


@cache
def oracle(case: Case) -> Any:
    """transformers' codec, loud, fp64, in eval mode: one for all tests, so leave it as it is."""
    torch.manual_seed(0)
    codec = hf.AutoModel.from_config(case.config()).double().eval()
    rotary = [m for m in codec.modules() if hasattr(m, "compute_default_rope_parameters")]
    for module in rotary:  # its angles are fp32 in every precision
        module.inv_freq = module.compute_default_rope_parameters(module.config)[0]
    make_loud(codec)
    with torch.no_grad():
        frames = codec.encoder(sound(case, 80))
        frames = frames if case in ENCODECS else frames.latents
        _fill_books(codec, frames.std().item())
    return codec


def _fill_books(codec: Any, spread: float) -> None:
    """Each one narrower than the one before; of Mimi's, sums and counts, some of which are 0."""
    make = torch.Generator().manual_seed(1)
    books = [m for m in codec.modules() if type(m).__name__.endswith("EuclideanCodebook")]
    for i, book in enumerate(books):
        for name, buffer in book.named_buffers():
            noise = torch.randn(buffer.shape, generator=make, dtype=torch.float64)
            if name in ("cluster_size", "cluster_usage"):
                buffer.copy_(noise.abs() + 0.5)
            elif name not in ("inited", "initialized"):
                buffer.copy_(noise * spread * 0.7**i)
        if hasattr(book, "cluster_usage"):
            book.cluster_usage[3] = 0.0
            book.embed_sum[3] *= 1e-5


@cache
def folder(name: str) -> TemporaryDirectory[str]:
    """One for as long as the tests run."""
    return TemporaryDirectory(prefix="allformer-codec-")


@cache
def on_disk(case: Case) -> Path:
    """Written by transformers."""
    path = Path(folder(case.name).name)
    oracle(case).save_pretrained(path)
    return path


def ours(case: Case) -> Any:
    """The same codec, read by us. Not kept: what reads it may have changed."""
    return af.load(on_disk(case))


def close(a: Tensor, b: Tensor, what: str) -> None:
    """Within the tolerance of the largest value."""
    assert a.shape == b.shape, f"{what}: {tuple(a.shape)}, not {tuple(b.shape)}"
    assert b.isfinite().all(), f"{what}: transformers' is not finite"
    worst, limit = (a - b).abs().max().item(), TOLERANCE * max(1.0, b.abs().max().item())
    assert worst <= limit, f"{what} differs by {worst:.3g} (limit {limit:.1g})"


def their_gradients(codec: Any) -> dict[str, Tensor]:
    """Our gradients under their names in a file, through the weight map."""
    known = codec.provenance
    grads = {name: p.grad for name, p in codec.named_parameters()}
    found: dict[str, Tensor] = {}
    for op in FAMILIES[known.family].weights(codec.config, known.architecture):
        grad = grads.get(getattr(op, "ours", ""))
        if grad is not None:
            found |= save_tensor(op, grad)  # type: ignore[arg-type]
    return found
