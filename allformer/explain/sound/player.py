"""One sound in a page: its spectrogram and waveform, its words at their times, and a player.

    player(clip(wave, 8000), words=(Spoken("nine", 0.1, 0.5),))

The sound is in the page itself. Without script the browser's own controls play it; with it, a line
runs over the spectrogram, and a click there plays from that moment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError
from allformer.explain.sound.spectrogram import spectrogram, waveform
from allformer.explain.words import Pair, label, spans, word
from allformer.sound.clip import from_clip
from allformer.train.heard import Spoken

_SAFE = re.compile(r"[A-Za-z0-9+/]+={0,2}")  # nothing that could leave an attribute


def opened(sound: str) -> tuple[npt.NDArray[np.float32], int] | None:
    """Samples of a clip, its channels in their mean, and their rate; None: it is none."""
    if not _SAFE.fullmatch(sound):
        return None
    try:
        wave, rate = from_clip(sound)
    except DataError:
        return None
    return (wave.mean(0), rate) if wave.shape[1] else None


def seconds(sound: str) -> float:
    """How long a clip is; 0.0 where it is none."""
    found = opened(sound)
    return 0.0 if found is None else len(found[0]) / found[1]


def player(
    sound: str,
    *,
    words: Sequence[Spoken] = (),
    prompt: float = 0.0,
    longest: float = 0.0,
    title: Pair = ("", ""),
    above: str = "",
) -> str:
    """HTML of a sound (WAV in base64); empty where it is none.

    `words` are written under it at their times; the first `prompt` seconds are marked as what was
    given. One that is shorter than `longest` seconds is drawn as much narrower. `above` lies on the
    spectrogram.
    """
    found = opened(sound)
    if found is None:
        return ""
    wave, rate = found
    length = len(wave) / rate
    share = min(1.0, length / longest) if longest else 1.0
    told = title if title[0] else word("sounds.spectrogram")
    return (
        f'<div class="heard" data-seconds="{length:.3f}" style="width:{100 * share:.1f}%">'
        f'<div class="scope" role="img" {label(told)}>'
        f'<img alt="" src="{spectrogram(wave, rate)}">{above}{_prompt(prompt, length)}'
        f'<i class="playhead" hidden></i></div>'
        f"{waveform(wave)}{_words(words, length)}</div>"
        f'<audio controls preload="metadata" src="data:audio/wav;base64,{sound}"></audio>'
    )


def _prompt(prompt: float, length: float) -> str:
    """A line where what was given ends, and what lies on its two sides."""
    if not 0 < prompt < length:
        return ""
    at = f"{100 * prompt / length:.1f}%"
    sides = (("given", f"right:calc(100% - {at})"), ("made", f"left:{at}"))
    return f'<i class="seam" style="left:{at}"></i>' + "".join(
        f'<span class="side {name}" style="{style}">{spans(word(f"sounds.{name}"))}</span>'
        for name, style in sides
    )


def _words(words: Sequence[Spoken], length: float) -> str:
    if not words:
        return ""
    items = []
    for one in words:
        left, right = (min(1.0, max(0.0, at / length)) for at in (one.begin, one.end))
        items.append(
            f'<span style="left:{100 * left:.1f}%;width:{100 * max(0.0, right - left):.1f}%">'
            f"{escape(one.text)}</span>"
        )
    return f'<div class="spoken">{"".join(items)}</div>'
