"""Two ways to run the same weights, compared number by number on the same inputs.

    verify(load("a"), load("b"), between=("a", "b"))

Everything is computed in fp32 on copies, so that only the weights and the formulas can differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from copy import deepcopy
from dataclasses import asdict, dataclass
from inspect import signature
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.checkpoint.quantization_config import FIELD
from allformer.checkpoint.verify_images import compare_images
from allformer.checkpoint.verify_sound import compare_sound
from allformer.config.sound import STRIDE
from allformer.core.model import AnyModel
from allformer.core.quantised_cpu import plain_products
from allformer.errors import CheckpointError
from allformer.json_file import read_object

ROWS, WIDTH, SEED = 3, 24, 0
MARKS = "global_attention_mask"
NAMES = (
    "logits", "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits",
    "cls_logits", "distillation_logits", "reconstruction", "pooler_output", "last_hidden_state",
    "pred_boxes", "logits_per_image", "text_embeds", "image_embeds", "class_queries_logits",
    "masks_queries_logits",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """How far two runs are apart."""

    between: tuple[str, str]
    output: str
    largest_difference: float
    largest_value: float
    inputs: str

    @property
    def sound(self) -> bool:
        """Two fp32 computations of the same formula; rounding alone stays far below."""
        return self.largest_difference <= 1e-4 * max(1.0, self.largest_value)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "between": list(self.between)}


def sample_inputs(model: config.Model, most: int = WIDTH) -> dict[str, Tensor]:
    """The same random batch each time, of texts of at most `most` tokens."""
    make = torch.Generator().manual_seed(SEED)
    if isinstance(model.reader.source, config.Patches | config.ResNet):
        return {"pixel_values": _images(model.reader.source, make)}
    if isinstance(model.reader.source, config.Sound):
        return _sounds(model, make, most)
    decoding = isinstance(model, config.DecoderOnly) and not _seeks_end(model)
    tokens = model.reader.tokens
    width = min(most, model.reader.longest or most)
    ids = torch.randint(0, tokens.vocab, (ROWS, width), generator=make)
    if tokens.pad_id is not None:
        ids[ids == tokens.pad_id] = (tokens.pad_id + 1) % tokens.vocab
    lengths = [width, max(1, width // 2), 1] if not _reads_all(model) else [width] * ROWS
    keep = torch.arange(width) < torch.tensor(lengths)[:, None]
    if tokens.eos_id is not None and not decoding:  # each text has one end, for heads that seek it
        ids[ids == tokens.eos_id] = (tokens.eos_id + 2) % tokens.vocab
        ids[torch.arange(ROWS), keep.sum(1) - 1] = tokens.eos_id
    out = {"input_ids": ids, "attention_mask": keep.long()}
    if tokens.pad_id is not None:
        out["input_ids"] = ids.masked_fill(~keep, tokens.pad_id)
    if isinstance(model, config.EncoderDecoder):
        vocab = model.decoder.source.vocab
        out["decoder_input_ids"] = torch.randint(0, vocab, (ROWS, width), generator=make)
    if isinstance(model, config.TwoTowers):
        out["pixel_values"] = _images(model.vision.source, make)
    if isinstance(model.head, config.ChoiceHead):  # of one question
        out = {name: x[None] for name, x in out.items()}
    return out


def _images(source: config.Source, make: torch.Generator) -> Tensor:
    """Noise of the size that a model reads; of one that reads any, a few cells of its map."""
    assert isinstance(source, config.Patches | config.ResNet)
    size = source.image if isinstance(source, config.Patches) else (96, 128)
    return torch.randn(ROWS, source.channels, *size, generator=make)


def _sounds(model: config.Model, make: torch.Generator, most: int) -> dict[str, Tensor]:
    """Noise as long as a model's window, and what a decoder has written of it."""
    source, decoder = model.reader.source, model.writer
    assert isinstance(source, config.Sound)
    frames = STRIDE * (model.reader.longest or most)
    out = {"input_features": torch.randn(ROWS, source.mels, frames, generator=make)}
    if decoder is not model.reader:
        shape = (ROWS, min(most, decoder.longest or most))
        out["decoder_input_ids"] = torch.randint(0, decoder.source.vocab, shape, generator=make)
    return out


def _reads_all(model: config.Model) -> bool:
    """Whether a head takes the mean of all states: of pixels, among which no padding stands."""
    return isinstance(model.head, config.ClassHead) and model.head.at == "mean"


def _seeks_end(model: config.Model) -> bool:
    """Whether a head looks for the first end of a text."""
    return isinstance(model.head, config.VectorHead)


@torch.no_grad()
def verify(
    ours: AnyModel, other: Any, between: tuple[str, str], most: int = WIDTH
) -> list[Comparison]:
    """Run both in fp32 and compare what both give, where there is no padding."""
    if isinstance(ours.config, config.Codec | config.SoundCodec):
        return _verify_codec(ours, other, between)
    inputs = sample_inputs(ours.config, most)
    if isinstance(ours.config.head, config.ClassHead | config.SpanHead):
        inputs.pop("decoder_input_ids", None)
    ids = inputs.get("input_ids", torch.zeros(ROWS, 1))  # none of an image
    keep = inputs.get("attention_mask", torch.ones_like(ids)).bool().flatten(0, -2)
    a, b = (_run(x, {**inputs, **_marks(x, ids)}) for x in (ours, other))
    found = []
    for name, x, y in _both(a, b):
        if x.ndim > 1 and x.shape[:2] == keep.shape and "decoder_input_ids" not in inputs:
            x, y = x[keep], y[keep]
        gap, largest = (x - y).abs().max().item(), y.abs().max().item()
        found.append(Comparison(between, name, gap, largest, inputs=_told(inputs)))
    return found


def _verify_codec(ours: Any, other: Any, between: tuple[str, str]) -> list[Comparison]:
    """Of images, or of sound."""
    compare: Callable[..., Iterator[tuple[str, Tensor, Tensor]]]
    if isinstance(ours.config, config.SoundCodec):
        compare, told = compare_sound, f"seconds of random sound at {ours.rate} Hz"
    else:
        height, width = ours.config.image
        compare, told = compare_images, f"random images of {height} × {width} pixels"
    return [
        Comparison(
            between, name, (x - y).abs().max().item(), y.abs().max().item(),
            inputs=f"{ROWS} {told}, seed {SEED}",
        )
        for name, x, y in compare(wide(ours), wide(other), ROWS, SEED)
    ]  # fmt: skip


def _run(model: Any, inputs: dict[str, Tensor]) -> Any:
    """What a model gives; one that draws (an EoMT half trained) draws the same as another."""
    with torch.random.fork_rng(devices=[]), plain_products():
        torch.manual_seed(SEED)
        return wide(model)(**inputs)


def _both(a: Any, b: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What two results both have, by name."""
    for name in NAMES:
        x, y = getattr(a, name, None), getattr(b, name, None)
        if x is not None and y is not None:
            yield name, x, y


def _told(inputs: dict[str, Tensor]) -> str:
    said = []
    if "input_ids" in inputs:
        width = inputs["input_ids"].shape[1]
        said.append(f"{ROWS} rows of up to {width} random ids, padded on the right")
    if "pixel_values" in inputs:
        height, width = inputs["pixel_values"].shape[-2:]
        said.append(f"{ROWS} random images of {height} × {width} pixels")
    if "input_features" in inputs:
        bins, frames = inputs["input_features"].shape[-2:]
        said.append(f"{ROWS} windows of {frames} random frames of {bins} mel bins")
    return f"{', '.join(said)}, seed {SEED}"


def _marks(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """The first token is global where any can be; for answers it would be looked for otherwise."""
    if isinstance(model.config, config.Model):
        blocks = model.config.reader.blocks
        takes = any(isinstance(block.attention.mixer, config.GlobalWindow) for block in blocks)
    else:
        takes = MARKS in signature(model.forward).parameters
    return {MARKS: (torch.arange(ids.shape[-1]) == 0).long().expand_as(ids)} if takes else {}


def wide(model: Any) -> Any:
    """A copy in fp32 on the CPU, in eval mode; the model itself where it is that already."""
    kinds = {(p.dtype, p.device.type) for p in model.parameters()}
    if kinds == {(torch.float32, "cpu")} and not model.training:
        return model
    return deepcopy(model).to("cpu", torch.float32).eval()


def open_with_transformers(path: Path, architecture: str) -> Any:
    """The directory as transformers opens it, or None where what it needs is not installed."""
    packed = FIELD in read_object(path / "config.json", CheckpointError)
    try:
        import transformers

        if packed:
            import compressed_tensors  # noqa: F401
    except ImportError:
        return None
    kind = getattr(transformers, architecture)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True}
    if not packed:
        return kind.from_pretrained(path, **options).eval()
    options["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    with warnings.catch_warnings(action="ignore"), redirect_stderr(StringIO()):  # bars, and chatter
        return kind.from_pretrained(path, **options).eval()
