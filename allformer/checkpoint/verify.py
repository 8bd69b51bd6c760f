"""Two ways to run the same weights, compared number by number on the same inputs.

    verify(load("a"), load("b"), between=("a", "b"))

Everything is computed in fp32 on copies, so that only the weights and the formulas can differ.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.model import AnyModel

ROWS, WIDTH, SEED = 3, 24, 0
NAMES = (
    "logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits",
    "pooler_output", "last_hidden_state",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """How far two runs are apart."""

    between: tuple[str, str]
    output: str
    largest_difference: float
    largest_value: float
    inputs: str = f"{ROWS} rows of up to {WIDTH} random ids, padded on the right, seed {SEED}"

    @property
    def sound(self) -> bool:
        """Two fp32 computations of the same formula; rounding alone stays far below."""
        return self.largest_difference <= 1e-4 * max(1.0, self.largest_value)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "between": list(self.between)}


def sample_inputs(model: config.Model) -> dict[str, Tensor]:
    """The same random batch each time."""
    make = torch.Generator().manual_seed(SEED)
    decoding = isinstance(model, config.DecoderOnly)
    tokens = model.reader.tokens
    width = min(WIDTH, model.reader.longest or WIDTH)
    ids = torch.randint(0, tokens.vocab, (ROWS, width), generator=make)
    if tokens.pad_id is not None:
        ids[ids == tokens.pad_id] = (tokens.pad_id + 1) % tokens.vocab
    keep = torch.arange(width) < torch.tensor([width, max(1, width // 2), 1])[:, None]
    if tokens.eos_id is not None and not decoding:  # each text has one end, for heads that seek it
        ids[ids == tokens.eos_id] = (tokens.eos_id + 2) % tokens.vocab
        ids[torch.arange(ROWS), keep.sum(1) - 1] = tokens.eos_id
    out = {"input_ids": ids, "attention_mask": keep.long()}
    if tokens.pad_id is not None:
        out["input_ids"] = ids.masked_fill(~keep, tokens.pad_id)
    if isinstance(model, config.EncoderDecoder):
        vocab = model.decoder.source.vocab
        out["decoder_input_ids"] = torch.randint(0, vocab, (ROWS, width), generator=make)
    return out


@torch.no_grad()
def verify(ours: AnyModel, other: Any, between: tuple[str, str]) -> list[Comparison]:
    """Run both in fp32 and compare what both give, where there is no padding."""
    inputs = sample_inputs(ours.config)
    if isinstance(ours.config.head, config.ClassHead | config.SpanHead):
        inputs.pop("decoder_input_ids", None)
    keep = inputs["attention_mask"].bool()
    a, b = wide(ours)(**inputs), wide(other)(**inputs)
    found = []
    for name in NAMES:
        x, y = getattr(a, name, None), getattr(b, name, None)
        if x is None or y is None:
            continue
        if x.ndim > 1 and x.shape[:2] == keep.shape and "decoder_input_ids" not in inputs:
            x, y = x[keep], y[keep]
        gap, most = (x - y).abs().max().item(), y.abs().max().item()
        found.append(Comparison(between, name, gap, most))
    return found


def wide(model: Any) -> Any:
    """A copy in fp32 on the CPU, in eval mode; the model itself where it is that already."""
    kinds = {(p.dtype, p.device.type) for p in model.parameters()}
    if kinds == {(torch.float32, "cpu")} and not model.training:
        return model
    return deepcopy(model).to("cpu", torch.float32).eval()


def open_with_transformers(path: Path, architecture: str) -> Any:
    """The directory as transformers opens it, or None where transformers is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    kind = getattr(transformers, architecture)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return kind.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
