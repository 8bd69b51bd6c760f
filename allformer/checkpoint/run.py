"""A run directory: what training leaves, and all that translating needs.

RUN/
  config.json        the config tree
  model.safetensors  the final weights (the mean of the last checkpoints)
  tokenizer.json     text ↔ ids; with tokenizer_config.json, transformers opens it too
  recipe.yaml        what was asked for
  metrics.jsonl      one line a report; loss.png and tensorboard/ show the same
  checkpoints/       step-00001000/: weights, optimiser, random state, for --resume
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from allformer.checkpoint.weights import load_weights, save_weights
from allformer.config import EncoderDecoder, config_from_json
from allformer.core.model import EncoderDecoderModel, build
from allformer.errors import CheckpointError, ConfigError
from allformer.text.tokenizer import Tokenizer


@dataclass
class Run:
    """A trained translation model: `run = load_run("runs/multi30k")`."""

    path: Path
    model: EncoderDecoderModel
    tokenizer: Tokenizer


def save_run(path: Path, model: EncoderDecoderModel, tokenizer: Tokenizer) -> None:
    """Write config, weights and tokeniser."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(model.config.to_json() + "\n", encoding="utf-8")
    tokenizer.save(path)
    save_weights(model, path / "model.safetensors")


def load_run(path: str | Path, device: torch.device | str = "cpu") -> Run:
    """Read a run directory back, ready to translate (eval mode)."""
    path = Path(path)
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path} is no run directory: it has no config.json; "
            f"give the folder that `allformer train` or `allformer demo` wrote"
        )
    if not (path / "model.safetensors").is_file():
        raise CheckpointError(
            f"{path} has no model.safetensors: training has not ended; "
            f"go on with `allformer train --resume {path}`"
        )
    try:
        config = config_from_json((path / "config.json").read_text(encoding="utf-8"))
    except ConfigError as error:
        raise CheckpointError(f"{path / 'config.json'}: {error}") from None
    if not isinstance(config, EncoderDecoder):
        raise CheckpointError(
            f"{path} holds a {type(config).__name__}; translating needs a decoder "
            "that looks at an encoder: train an EncoderDecoder"
        )
    model = build(config, device=device)
    assert isinstance(model, EncoderDecoderModel)
    tokenizer = Tokenizer.load(path)
    for side in (stack.source.vocab for stack in config.stacks.values()):
        if tokenizer.vocab_size > side:
            raise CheckpointError(
                f"{path / 'tokenizer.json'} has {tokenizer.vocab_size} pieces, but the model has "
                f"{side}; put back the tokeniser that it was trained with"
            )
    load_weights(model, path / "model.safetensors")
    return Run(path, model.eval(), tokenizer)
