"""What tasks on speech take: a model that hears and its vocabulary, opened once.

pipeline = open_speech("openai/whisper-small")
pipeline.model, pipeline.listener.vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from allformer import config
from allformer.checkpoint.adapter.files import source_of
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.leftovers import TOKENISER
from allformer.checkpoint.load import load
from allformer.checkpoint.openai_whisper import is_openai_whisper
from allformer.core.int8 import has_int8, to_int8
from allformer.core.lean.native import few_for
from allformer.core.model import EncoderDecoderModel
from allformer.core.precision import pick_device
from allformer.errors import CheckpointError, ConfigError, TaskError
from allformer.speech.captured import CapturedListener
from allformer.speech.listener import Listener
from allformer.speech.vocabulary import Vocabulary
from allformer.tasks.pipeline import is_half
from allformer.text.load import load_tokenizer
from allformer.text.tiktoken import openai_whisper_tokenizer
from allformer.text.wrapper import Tokenizer

# What openai-whisper calls its models; the hub has them as openai/whisper-NAME.
OPENAI = (
    "tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en", "large",
    "large-v1", "large-v2", "large-v3", "large-v3-turbo",
)  # fmt: skip
DEFAULT = "openai/whisper-small"  # of all languages; 0.5 GB, and a laptop keeps up with speech


@dataclass(frozen=True, eq=False)
class SpeechPipeline:
    """A model that writes down what it hears."""

    listener: Listener = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    directory: Path

    @property
    def model(self) -> EncoderDecoderModel:
        """The model itself."""
        return self.listener.model

    @property
    def bins(self) -> int:
        """The mel bins that it reads."""
        source: Any = self.model.config.encoder.source
        return int(source.mels)


SpeechSource = SpeechPipeline | str | Path


def open_speech(
    path: str | Path = DEFAULT,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    tokenizer: str | Path | None = None,
    capture: bool = True,
) -> SpeechPipeline:
    """Open a Whisper for many recordings: a directory, a hub id, or OpenAI's file.

    >>> open_speech("tiny.en.pt", device="cpu")

    `device` is a GPU if there is one. Weights keep the dtype of their file; on a CPU, where half
    precision is slow, they are widened to fp32 unless `dtype` says otherwise; `dtype="int8"`, on a
    CPU, computes matrix products in eight bits, which is faster and less exact. OpenAI's files have
    no tokeniser: `tokenizer` is a directory with one, or a `.tiktoken` file; without it, that of
    the package openai-whisper is taken, where it is installed. On a GPU encoder and steps become
    CUDA graphs when a size comes again (beams do not, and with `capture=False` nothing does).
    """
    where = device if isinstance(device, torch.device) else pick_device(device)
    int8 = isinstance(dtype, str)
    if isinstance(dtype, str):
        _check_int8(dtype, where)
        dtype = torch.float32
    lone = is_openai_whisper(Path(path))
    if str(path) in OPENAI and not Path(path).exists():
        raise CheckpointError(
            f"{path} is no directory here, but OpenAI's name for a model; try openai/whisper-{path}"
        )
    directory = Path(path) if lone else find_checkpoint(path)
    if dtype is None and where.type == "cpu" and (lone or is_half(directory)):
        dtype = torch.float32
    model: Any = load(directory, device=where, dtype=dtype)
    _check(model, directory)
    vocab = model.config.decoder.source.vocab
    words = _tokenizer(tokenizer, directory, lone, vocab)
    if int8:
        to_int8(model.encoder, few_for)
    vocabulary = Vocabulary(words, vocab)
    listener = Listener(model, vocabulary, int8=int8)
    if capture and where.type == "cuda":
        listener = CapturedListener(model, vocabulary)
    return SpeechPipeline(listener, words, directory)


def as_speech(source: SpeechSource, dtype: torch.dtype | str | None = None) -> SpeechPipeline:
    """A pipeline as it is; a path or a hub id opened."""
    return source if isinstance(source, SpeechPipeline) else open_speech(source, dtype=dtype)


def _check_int8(dtype: str, where: torch.device) -> None:
    if dtype != "int8":
        raise ConfigError(f"dtype={dtype!r} is not known; give a torch.dtype, or 'int8'")
    if where.type != "cpu":
        raise ConfigError(f"dtype='int8' is for a CPU, not for {where}; try dtype=torch.bfloat16")
    if not has_int8():
        raise ConfigError("dtype='int8' needs a torch with oneDNN; leave it out")


def _check(model: Any, directory: Path) -> None:
    """Refuse what does not write down what it hears."""
    tree = model.config
    stacks = getattr(tree, "stacks", {})
    hears = any(isinstance(stack.source, config.Sound) for stack in stacks.values())
    writes = isinstance(tree, config.EncoderDecoder) and isinstance(tree.head, config.LMHead)
    if not (hears and writes):
        name = model.provenance.architecture or type(tree).__name__
        raise TaskError(
            f"transcribe needs a model that hears and writes (WhisperForConditionalGeneration), "
            f"but {directory} is a {name}; give another checkpoint, such as {DEFAULT}"
        )


def _tokenizer(given: str | Path | None, directory: Path, lone: bool, vocab: int) -> Tokenizer:
    if given is not None and Path(given).suffix == ".tiktoken":
        return openai_whisper_tokenizer(vocab, given)
    if given is None and lone:
        return openai_whisper_tokenizer(vocab)
    return load_tokenizer(source_of(directory, *TOKENISER) if given is None else given)
