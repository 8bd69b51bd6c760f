"""What every task takes: a model and its tokeniser, opened once.

pipeline = open_pipeline("path/or/id")
pipeline.model, pipeline.tokenizer
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from allformer import config
from allformer.checkpoint.adapter.files import source_of
from allformer.checkpoint.files import KNOWN, find_gguf_weights, open_tensors
from allformer.checkpoint.gguf_file import gguf_config
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.leftovers import TOKENISER
from allformer.checkpoint.load import load, read_json
from allformer.checkpoint.older_run import own_tokenizer
from allformer.checkpoint.run import Run, check_vocabulary
from allformer.core.model import AnyModel
from allformer.core.precision import pick_device
from allformer.errors import TaskError
from allformer.families import FAMILIES
from allformer.families.config_json import find_family
from allformer.families.prompts import Prompts
from allformer.tasks.sentence import Sentence, read_sentence
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import Tokenizer

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A model and its tokeniser; `raw` is the config.json that they were read from."""

    model: AnyModel = field(repr=False)
    tokenizer: Tokenizer
    directory: Path
    raw: dict[str, Any] = field(default_factory=dict, repr=False)
    sentence: Sentence | None = None  # how to make sentence vectors, where the directory says so

    @property
    def architecture(self) -> str:
        """`BertForMaskedLM`; of a config tree of our own, `EncoderOnly with LMHead`."""
        if self.model.provenance.architecture:
            return self.model.provenance.architecture
        head, shape = self.model.config.head, type(self.model.config).__name__
        return shape if head is None else f"{shape} with {type(head).__name__}"

    @property
    def prompts(self) -> Prompts:
        """The words that its family was taught to read before a text."""
        family = FAMILIES.get(self.model.provenance.family)
        return Prompts() if family is None else family.prompts

    @property
    def stack(self) -> config.Stack:
        """The stack that reads the text."""
        return self.model.config.reader

    @property
    def positions(self) -> int | None:
        """The most ids that the model has positions for; None: there is no end."""
        return self.stack.longest

    @property
    def longest(self) -> int | None:
        """The most ids of a text: the model's positions, or less where the tokeniser says so."""
        limits = [self.positions, self.tokenizer.model_max_length]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def trained(self) -> int | None:
        """The most ids of a text that the model can be asked to read.

        Its positions; of a run, whose sinusoids have no end, the longest text that it was trained
        on: what lies beyond gives garbage.
        """
        return self.longest if "is" in self.raw else self.positions


Source = Pipeline | str | Path


def refuse_sound_codec(model: AnyModel, directory: Path) -> None:
    """Say what a codec of sound is for."""
    if isinstance(model.config, config.SoundCodec):
        raise TaskError(
            f"{directory} is a codec, which makes codes of sound and sound of codes "
            f"(af.load_sound_codec); give a checkpoint of a model that says something of them"
        )


def open_pipeline(
    path: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    architecture: str | None = None,
    head: bool = True,
    quantised: bool = False,
) -> Pipeline:
    """Open a checkpoint for any number of tasks: `open_pipeline("google-bert/bert-base-cased")`.

    `device` is a GPU if there is one. Weights keep the dtype of their file; on a CPU, where half
    precision is slow, they are widened to fp32 unless `dtype` says otherwise. `head=False` leaves
    the head behind, as sentence vectors need none. A GGUF file has its tokeniser inside, and
    `open_pipeline("model-Q4_K_M.gguf", quantised=True)` keeps its matrices in their bits.
    """
    root = find_checkpoint(path)
    sentence = read_sentence(root)
    directory = root if sentence is None else sentence.folder
    gguf = find_gguf_weights(directory)
    if gguf is None:
        raw = read_json(source_of(directory, "config.json") / "config.json")
    else:
        raw = gguf_config(gguf)
    where = device if isinstance(device, torch.device) else pick_device(device)
    if dtype is None and where.type == "cpu" and is_half(directory):
        dtype = torch.float32
    if architecture is None and (sentence is not None or not head):
        architecture = _without_head(raw)
    model = load(
        directory, device=where, dtype=dtype, architecture=architecture, quantised=quantised
    )
    refuse_sound_codec(model, root)
    if all(isinstance(stack.source, config.Patches) for stack in model.config.stacks.values()):
        raise TaskError(
            f"{root} is a {model.provenance.architecture or 'model'} that reads images, not text; "
            f"try `allformer classify-image` or `allformer embed-image`"
        )
    tokenizer = _tokenizer(directory, root, raw, model)
    return Pipeline(model, tokenizer, directory, raw, sentence)


def run_pipeline(run: Run) -> Pipeline:
    """What training gave back, for the tasks: `run_pipeline(train(recipe, out).run)`."""
    return Pipeline(run.model, run.text, run.path, config.to_dict(run.model.config))


def as_pipeline(source: Source, *, head: bool = True) -> Pipeline:
    """A pipeline as it is; a path or a hub id opened."""
    return source if isinstance(source, Pipeline) else open_pipeline(source, head=head)


def _tokenizer(directory: Path, root: Path, raw: dict[str, Any], model: AnyModel) -> Tokenizer:
    if "is" in raw:
        tokenizer = own_tokenizer(directory, model.config)
        check_vocabulary(directory, model, tokenizer)
        return tokenizer
    files = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
    directory = source_of(directory, *TOKENISER)
    if directory != root and not any((directory / name).is_file() for name in files):
        return load_tokenizer(root)
    return load_tokenizer(directory)


def is_half(directory: Path) -> bool:
    """Whether some of its weights are in half precision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `load` says it again
        files = open_tensors(source_of(directory, *KNOWN))
        return any(stored.dtype in HALF for stored in files.values())


def _without_head(raw: dict[str, Any]) -> str | None:
    """The bare class of a checkpoint's family; None where it is that already, or has none."""
    if "is" in raw:
        return None
    kinds = find_family(raw).architectures
    named = (raw.get("architectures") or [None])[0]
    if kinds.get(named) in ("bare", "encoder"):
        return None
    return next((name for name, kind in kinds.items() if kind == "bare"), None)
