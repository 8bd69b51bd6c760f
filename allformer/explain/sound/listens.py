"""Where a recogniser listens: for each token that it writes, how its attention is spread over time.

    found = listens(model, features, [start, 7, 9])     # features: 1 M F
    found.weights        # T S: tokens being written, states of the encoder

Legend: M mel bins, F frames, T tokens, S states, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer import config
from allformer.core.model import Model
from allformer.core.taps import listen
from allformer.explain.attention import ReadsTokens
from allformer.explain.heat import png
from allformer.explain.sound.player import opened, player
from allformer.explain.words import Pair, label, spans, word
from allformer.sound import log_mel, resample
from allformer.sound.mel import HOP, RATE
from allformer.train.heard import Heard

MOST = 4  # sounds
TOKENS = 24  # of one


@dataclass(frozen=True, eq=False)
class Listens:
    """Of the layer whose attention is the sharpest, the mean of its heads; layers count from 1."""

    weights: npt.NDArray[np.float32]  # T S
    layer: int
    layers: int


def hearing_stack(model: config.Model) -> str | None:
    """The name of the stack that reads sound; None: there is none."""
    stacks = model.stacks.items()
    return next((n for n, stack in stacks if isinstance(stack.source, config.Sound)), None)


def listens(model: Model[Any], features: Tensor, read: Sequence[int]) -> Listens | None:
    """Of one sound and the tokens that the decoder reads; None where nothing is weighed."""
    found: dict[int, Tensor] = {}

    def note(tap: str, x: Tensor) -> None:
        parts = tap.split(".")
        if parts[0] == "decoder" and parts[-2:] == ["cross", "weights"]:
            found[int(parts[1])] = x[0].detach().float().cpu().nan_to_num().mean(0)  # T S

    training = model.training
    model.eval()
    ids = torch.tensor([list(read)], device=model.device)
    try:
        with torch.no_grad(), listen(note):
            model.states(input_features=features.to(model.device), decoder_input_ids=ids)
    finally:
        model.train(training)
    if not found:
        return None
    layer = max(found, key=lambda i: float(found[i].square().sum(-1).mean()))
    return Listens(found[layer].numpy(), layer + 1, len(found))


def listening(model: Model[Any], tokenizer: ReadsTokens | None, sounds: Sequence[Heard]) -> str:
    """The section's content; a sentence where nothing can be shown."""
    shown: list[str] = []
    told: Pair = ("", "")
    if tokenizer is not None and isinstance(model.config, config.EncoderDecoder):
        most = min(TOKENS, model.config.writer.longest or TOKENS)  # a babbler fills its window
        for one in [x for x in sounds if x.given and not x.versions and not x.prompt]:
            written = [*tokenizer.encode(one.given), tokenizer.eos_id][:most]
            at = _look(model, one, written)
            if at is not None and len(shown) < MOST:
                told = word("listens.note", layer=at.layer, layers=at.layers)
                shown.append(_figure(one, tokenizer.tokens(written), at))
    if not shown:
        return f"<p>{spans(word('listens.none'))}</p>"
    return (
        f"<p>{spans(word('listens.intro'))}</p>"
        f'<div class="listens">{"".join(shown)}</div><p class="note">{spans(told)}</p>'
    )


def _look(model: Model[Any], one: Heard, written: Sequence[int]) -> Listens | None:
    """What is read is what is written, one step later; silence behind the sound is cut off."""
    found, stack = opened(one.sound), model.config.stacks["encoder"]
    start = getattr(model.config, "start", None)
    if found is None or start is None or not isinstance(stack.source, config.Sound):
        return None
    wave = resample(torch.from_numpy(found[0]), found[1], RATE)
    states = min(-(-len(wave) // (2 * HOP)), stack.longest or 1500)
    room = 2 * HOP * (stack.longest or states)
    features = log_mel(F.pad(wave[:room], (0, max(0, room - len(wave)))), stack.source.mels)[None]
    at = listens(model, features, [start, *written[:-1]])
    return None if at is None else Listens(at.weights[:, :states], at.layer, at.layers)


def _figure(one: Heard, tokens: Sequence[str], at: Listens) -> str:
    share = at.weights / np.maximum(at.weights.max(1, keepdims=True), 1e-9)
    names = "".join(f"<span>{escape(token)}</span>" for token in tokens)
    name = label(word("listens.map"))
    return (
        f'<figure><div class="stairs">{player(one.sound)}'
        f'<div class="tokens" aria-hidden="true">{names}</div>'
        f'<div class="map" role="img" {name}><img alt="" src="{png(share)}"></div></div></figure>'
    )
