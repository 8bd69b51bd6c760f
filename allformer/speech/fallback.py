"""A window that comes out badly is decoded again, at a higher temperature.

decode_with_fallback(listener, memory, options, prompt, generator)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from allformer.speech.decoding import decode
from allformer.speech.listener import Listens
from allformer.speech.options import TranscribeOptions
from allformer.speech.result import Decoded


def decode_with_fallback(
    listener: Listens,
    memory: Tensor,
    options: TranscribeOptions,
    prompt: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Decoded:
    """The first that is good, or the last; what the encoder heard (1 S dim) serves all of them."""
    for temperature in options.temperatures:
        [decoded] = decode(listener, memory, options.at(temperature, prompt), generator)
        if not is_bad(decoded, options):
            break
    return decoded


def is_bad(decoded: Decoded, options: TranscribeOptions) -> bool:
    """Whether a text repeats itself, or is unlikely without being silence."""
    most, least = options.compression_ratio_threshold, options.logprob_threshold
    unlikely = least is not None and decoded.avg_logprob < least
    if unlikely and is_quiet(decoded, options):
        return False
    return unlikely or (most is not None and decoded.compression_ratio > most)


def is_quiet(decoded: Decoded, options: TranscribeOptions) -> bool:
    """Whether the model thinks that nobody speaks."""
    most = options.no_speech_threshold
    return most is not None and decoded.no_speech_prob > most


def is_silence(decoded: Decoded, options: TranscribeOptions) -> bool:
    """Whether a window is skipped: nobody seems to speak, and the text is not likely either."""
    least = options.logprob_threshold
    likely = least is not None and decoded.avg_logprob > least
    return is_quiet(decoded, options) and not likely
