"""Small things that hear and speak: an encoder, a codec, recordings; nobody trained them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from allformer.audiolm.recordings import Recording
from allformer.codecs.sound.config import Encodec
from allformer.codecs.sound.seanet_config import Seanet
from allformer.config import (
    Attention,
    Block,
    EncoderOnly,
    Feed,
    Norm,
    Sound,
    Stack,
    StoredSinusoids,
    repeat,
)
from allformer.core.model import build
from allformer.sound import write
from tests.models import loud

RATE = 8000


def encoder(layers: int = 2, seconds: float = 2.0) -> Any:
    """Whisper's form, reading so many seconds of 16 mel bins."""
    block = Block(Attention(2), Feed(32, act="gelu"), norm_at="pre", dropout=0.0)
    stack = Stack(
        16, Sound(mels=16), StoredSinusoids(round(50 * seconds)), repeat(block, layers),
        final_norm=Norm(), dropout=0.0,
    )  # fmt: skip
    return loud(EncoderOnly(stack)).float()


@torch.no_grad()
def codec(books: int = 4, codes: int = 8, hop: int = 160) -> Any:
    """50 frames a second (or 8000 / hop) of so many books, at 8 kHz."""
    each = RATE / hop * (codes - 1).bit_length() / 1000
    trunk = Seanet(hidden=4, ratios=(8, 5, hop // 40), lstm=0)
    tree = Encodec(RATE, trunk, dim=8, codes=codes, bandwidths=(each, (books + 0.01) * each))
    made = build(tree, seed=0).eval()
    waves = torch.cat([tone(100.0 * n, 0.3) for n in range(1, 12)])
    left = made.compressed(waves[None, None])[0].T  # F d
    chance = torch.Generator().manual_seed(3)
    for q in range(books):  # vectors that occur, so that different sounds have different codes
        book = made.quantiser.book(q)
        book.vectors.copy_(left[torch.randperm(len(left), generator=chance)[:codes]])
        left = left - book.look_up(book.nearest(left))
    return made


def tone(pitch: float, seconds: float, rate: int = RATE) -> torch.Tensor:
    """A sound that swells and falls."""
    t = torch.arange(round(seconds * rate)) / rate
    return 0.5 * (2 * torch.pi * pitch * t).sin() * (torch.pi * t / seconds).sin()


def recordings(each: int = 6, seconds: float = 0.3) -> list[Recording]:
    """Two voices, high and low: `3_low_1` is the word 3, said for the second time."""
    found = []
    for voice, pitch in (("low", 200.0), ("high", 900.0)):
        for i in range(each):
            wave = tone(pitch * (1 + 0.2 * (i % 3)), seconds)
            found.append(Recording(f"{i % 3}_{voice}_{i // 3}", voice, wave, RATE))
    return found


def write_recordings(folder: Path, each: int = 6) -> Path:
    """The same as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in recordings(each):
        assert isinstance(one.source, torch.Tensor)
        write(folder / f"{one.name}.wav", one.source, RATE)
    return folder
