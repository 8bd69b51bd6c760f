"""A run directory: what training leaves. It is a checkpoint like any other.

RUN/
  config.json             the config tree
  model.safetensors       the final weights (the mean of the last checkpoints)
  adapter_model.safetensors  of a run that tuned (`tune`): the adapter instead of the weights, with
  adapter_config.json        its method and the checkpoint that it stands on
  generation_config.json  how it searches: beams, length penalty, what is never said
  tokenizer.json          text ↔ ids, </s> put after a text; tokenizer_config.json: the longest text
  recipe.yaml             what was asked for
  preprocessor_config.json  of a model that sees: how images are prepared
  sound_tokens.json       of a stage of AudioLM: what its ids are; units/ and codec/ make them
  data.json               which data it was, to know it again on --resume
  metrics.jsonl           one line a report; loss.png and tensorboard/ show the same
  statistics.jsonl        gradients and activations by layer, where log.statistics asks for them
  predictions.json        what it says of held-out examples, for report.html
  machine.json            what it ran on
  best/                   the best weights so far, where train.best names a figure
  replay/                 steps that went wrong, for `allformer replay`; profile/: of --profile
  checkpoints/            step-00001000/: weights, optimiser, random state, checksums, for --resume
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.adapter.save import save_adapter
from allformer.checkpoint.load import GENERATION, load
from allformer.checkpoint.older_run import closed, generation_of, own_tokenizer
from allformer.checkpoint.save import OWN, save, write_json
from allformer.config import EncoderDecoder, to_dict
from allformer.core.model import AnyModel
from allformer.errors import CheckpointError
from allformer.text.files import json_file
from allformer.text.tokenizer import Tokenizer
from allformer.tune.tuning import tuning_of

SOUND_TOKENS = "sound_tokens.json"  # of a run whose ids are units and codes, and no words


@dataclass
class Run:
    """A trained model and its tokeniser (None: it reads no text): `load_run("runs/multi30k")`."""

    path: Path
    model: AnyModel
    tokenizer: Tokenizer | None

    @property
    def text(self) -> Tokenizer:
        """The tokeniser of a run that has one."""
        if self.tokenizer is None:
            raise CheckpointError(f"{self.path} reads no text: it has no tokeniser")
        return self.tokenizer


def save_run(
    path: Path, model: AnyModel, tokenizer: Tokenizer | None, base: str | None = None
) -> None:
    """Write config, weights, tokeniser and generation settings.

    Of a model with an adapter on it the adapter is written, as PEFT lays it out where it can; the
    weights below are those of `base`. A translator's sources end in `</s>`, by its tokeniser; it
    searches with four beams unless `model.provenance.generation` says otherwise.
    """
    path.mkdir(parents=True, exist_ok=True)
    if isinstance(model.config, EncoderDecoder) and tokenizer is not None:
        tokenizer = tokenizer if tokenizer.encode("") else closed(tokenizer)
        model.provenance.generation = model.provenance.generation or generation_of(model.config)
    if tokenizer is not None:
        tokenizer.save(path)
    if not is_beside(model):
        save(model, path, family=OWN)
        return
    write_json(path / "config.json", to_dict(model.config))
    if model.provenance.generation is not None:
        write_json(path / GENERATION, model.provenance.generation)
    for name, text in model.provenance.images.items():
        if not (path / name).exists():  # else the run prepares its images in its own way
            (path / name).write_text(text, encoding="utf-8")
    save_adapter(model, path, base=base, config=False)


def is_beside(model: Any) -> bool:
    """Whether an adapter is what is trained of a model, and not its own weights."""
    tuning = tuning_of(model)
    return tuning is not None and not any(a.in_place for a in tuning.adapters.values())


def load_run(path: str | Path, device: torch.device | str = "cpu") -> Run:
    """Read a run directory back (eval mode): `af.load`, with its tokeniser."""
    path = Path(path)
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path} is no run directory: it has no config.json; "
            f"give the folder that `allformer train` or `allformer demo` wrote"
        )
    model = load(path, device=device)
    wordless = not any(stack.source.vocab for stack in model.config.stacks.values())
    if wordless or (path / SOUND_TOKENS).is_file():
        return Run(path, model, None)
    if not json_file(path).is_file():
        raise CheckpointError(
            f"{path} is no run directory: it has no tokenizer.json; give the folder that "
            f"`allformer train` wrote (`allformer info` tells of other checkpoints)"
        )
    tokenizer = own_tokenizer(path, model.config)
    check_vocabulary(path, model, tokenizer)
    return Run(path, model, tokenizer)


def check_vocabulary(path: Path, model: AnyModel, tokenizer: Tokenizer) -> None:
    """A tokeniser with more pieces than the model has would give ids that nothing stands for."""
    for name in ("encoder", "decoder"):
        stack = getattr(model.config, name, None)
        words = 0 if stack is None else stack.source.vocab  # an encoder may read no words
        if words and tokenizer.vocab_size > words:
            raise CheckpointError(
                f"{path / 'tokenizer.json'} has {tokenizer.vocab_size} pieces, but the model has "
                f"{words}; put back the tokeniser that it was trained with"
            )
