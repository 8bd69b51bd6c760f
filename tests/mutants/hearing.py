"""Planted bugs of models that hear: convolutions, sinusoids, hidden spans, weighed layers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch

from allformer.errors import CheckpointError
from tests.mutants import families
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_whisper
from tests.unit import test_whisper_openai, test_whisper_tokenizer

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


_written = partial(families._written, test_whisper)


@cache
def _openai() -> Path:
    """OpenAI's file, once."""
    state = test_whisper_openai.openais(test_whisper_openai.whisper(), Path(_FOLDER.name) / "hf")
    file = Path(_FOLDER.name) / "small.pt"
    torch.save({"dims": test_whisper_openai.DIMS, "model_state_dict": state}, file)
    return file


def _forward(name: str) -> None:
    test_whisper.check_whisper_forward(name, _written(name))


def _training(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_whisper.check_whisper_training(name, _written(name), Path(folder))


def _merges() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_whisper_tokenizer.check_merges(Path(folder))


KILLERS: dict[str, Callable[[], None]] = {
    "whisper": partial(_forward, "Whisper"),
    "whisper, masked in training": partial(_training, "Whisper, masked"),
    "whisper for classes": partial(_forward, "Whisper for classes"),
    "whisper, layers weighed": partial(_forward, "Whisper, layers weighed"),
    "whisper, padded": lambda: test_whisper.check_padded_text(_written("Whisper")),
    "whisper, masked at rest": lambda: test_whisper.check_masks(_written("Whisper, masked")),
    "hidden spans": test_whisper.check_spans,
    "fresh sinusoids": test_whisper.test_fresh_sinusoids_are_transformers,
    "openai's whisper": lambda: test_whisper_openai.check_openai(_openai()),
    "tiktoken's merges": _merges,
}
SOUND, HEAD = "sources.sound:Sound", "heads.sound_classes:SoundClassHead"
FAMILY, OPENAI = "allformer.families.whisper", "allformer.families.whisper_openai"

MUTANTS: list[Mutant] = [
    bug("no gelu between the convolutions", "the first one does nothing of its own",
        f"{SOUND}.vectors", "F.gelu(self.first(frames))", "self.first(frames)", "whisper"),
    bug("no gelu behind the convolutions", "vectors are negative as often as not",
        f"{SOUND}.vectors", "F.gelu(self.second(x))", "self.second(x)", "whisper"),
    bug("convolutions look back alone", "every vector is a frame late",
        "sources.sound:Convolution.forward", "F.conv1d(x, weight, bias, self.stride, KERNEL // 2)",
        "F.conv1d(F.pad(x, (2, 0)), weight, bias, self.stride)", "whisper"),
    bug("gelu by tanh", "off by a thousandth everywhere", f"{SOUND}.vectors",
        "F.gelu(self.second(x))", 'F.gelu(self.second(x), approximate="tanh")', "whisper"),
    bug("sinusoids by the formula", "what a file stores is rounded, and not used",
        "position:StoredSinusoids.forward", "F.embedding(positions, self.weight)",
        "sinusoid(positions, self.dim, layout='halves')", "whisper"),
    bug("the paper's wavelengths", "a fresh model is none of Whisper's",
        "position:StoredSinusoids.reset_parameters", "(half - 1)", "half", "fresh sinusoids"),
    bug("a bias of keys", "files have none: nothing can be loaded", f"{FAMILY}:_stack",
        "bias=BIAS", "bias=True", "whisper", raises=CheckpointError),
    bug("padding of the text counts no place", "a padded text stands elsewhere", f"{FAMILY}:read",
        'count="all"', 'count="kept"', "whisper, padded"),
    bug("frames stay hidden when all is learned", "a transcript depends on chance",
        f"{SOUND}._hide", "if self.training and c.hide_frames is not None",
        "if c.hide_frames is not None", "whisper, masked at rest"),
    bug("mel bins are not hidden", "half of the augmentation is missing", f"{SOUND}._hide",
        "frames.masked_fill(tap(self, \"hidden_mels\", spans)[:, :, None], 0.0)", "frames",
        "whisper, masked in training"),
    bug("spans beyond a short sound", "padding is hidden in place of it", f"{SOUND}._hide",
        "mask.sum(-1).tolist()", "None", "whisper, masked in training"),
    bug("a part of a span is always one", "more is hidden than was asked for",
        "sources.sound:span_count", "/ spans.length + part)", "/ spans.length + 1)",
        "hidden spans"),
    bug("spans over the end", "the last frames are hidden less often",
        "sources.sound:draw_spans", "length - spans.length + 1", "length - spans.length",
        "hidden spans"),
    bug("no least number of spans", "short sounds are learned by heart",
        "sources.sound:span_count", ", spans.least)", ", 0)", "hidden spans"),
    bug("weights of layers as they are", "they do not sum up to one", f"{HEAD}.outputs",
        "self.weights.softmax(0)", "self.weights", "whisper, layers weighed"),
    bug("the last states twice, the first never", "the embedding is not weighed",
        "whole:Model.hidden", "laid.stacked(entries,", "laid.stacked([*entries[1:], states],",
        "whisper, layers weighed"),
    bug("the first vector speaks for the sound", "what comes later is not heard",
        f"{HEAD}.outputs", ".mean(1)", "[:, 0]", "whisper for classes"),
    bug("key and query exchanged", "openai's names are put in alphabetical order",
        f"{OPENAI}:LAYER", "'attn.query', 'attn.key'", "'attn.key', 'attn.query'",
        "openai's whisper", raises=(AssertionError, CheckpointError)),
    bug("one norm for two", "layers look across with the wrong one", f"{OPENAI}:LAYER",
        "'cross_norm': 'cross_attn_ln'", "'cross_norm': 'mlp_ln'", "openai's whisper",
        raises=(AssertionError, CheckpointError)),
    bug("the rarest pair first", "a word falls into other pieces",
        "allformer.text.tiktoken:_merges",
        "key=ranks.__getitem__", "key=ranks.__getitem__, reverse=True", "tiktoken's merges"),
]  # fmt: skip
