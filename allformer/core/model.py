"""Whole models: EncoderDecoder, EncoderOnly, DecoderOnly, with Hugging Face's names for inputs.

    model = build(preset("original-base"))
    out = model(input_ids=src, attention_mask=mask, labels=tgt)      # mask: 1 = keep
    out.logits, out.loss

Each form has a file of its own; what they share is in whole.py.
"""

from __future__ import annotations

import torch

from allformer import config
from allformer.core.decoder_only import DecoderOnlyModel
from allformer.core.encoder_decoder import EncoderDecoderModel
from allformer.core.encoder_only import EncoderOnlyModel
from allformer.core.registry import module_for
from allformer.core.starts import start
from allformer.core.whole import Model
from allformer.errors import ConfigError

__all__ = [
    "AnyModel",
    "DecoderOnlyModel",
    "EncoderDecoderModel",
    "EncoderOnlyModel",
    "Model",
    "build",
]

AnyModel = EncoderDecoderModel | EncoderOnlyModel | DecoderOnlyModel


def build(
    model: config.Model | config.Codec | config.SoundCodec,
    *,
    device: torch.device | str | None = None,
    seed: int | None = None,
) -> AnyModel:
    """Fresh weights for a config: `build(preset("original-base"))`.

    `device="meta"` gives shapes without memory, for counting; `seed` fixes the weights without
    touching the global random state.
    """
    if not isinstance(model, config.Model | config.Codec | config.SoundCodec):
        raise ConfigError(
            f"build got {type(model).__name__}; it takes EncoderDecoder, EncoderOnly, "
            f"DecoderOnly, SetDecoder, TwoTowers, or a codec"
        )
    with torch.device("meta"):
        built: AnyModel = module_for(model)(model)
    if str(device) == "meta":
        return built
    built = built.to_empty(device=device or "cpu")
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        start(built)
    return built
