"""Sound as units and codes: what the three stages learn from, and go on from.

    ears = Hearing(load_units("whisper-tiny.en"), open_codec("runs/digits-codec"))
    heard = ears.hear(wave)                     # S samples at ears.rate
    part = ears.cut(heard, 1.5, 3.0)            # three seconds of it, from 1.5 on

Legend: S samples, U units, Q books, F frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.audiolm.tokens import Ids
from allformer.audiolm.units import Units
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.load import load
from allformer.codecs.sound.codec import SoundCodecModel
from allformer.errors import CheckpointError
from allformer.sound import resample
from allformer.sound.mel import RATE

CODEC = "codec"  # within a run: its own


class Encoded(NamedTuple):
    """A stream; what nobody asks for is empty."""

    units: Ids  # U
    codes: Ids  # Q F
    seconds: float


@dataclass(frozen=True, eq=False)
class Hearing:
    """What turns sound into units, and into codes; a stage may need one alone."""

    units: Units | None
    codec: Any | None

    @property
    def rate(self) -> int:
        """Samples a second that sound is to come in: enough for both."""
        return max(
            RATE if self.units is not None else 0, 0 if self.codec is None else self.codec.rate
        )

    @property
    def unit_rate(self) -> float:
        """Units a second, before repeats go."""
        return 0.0 if self.units is None else self.units.rate

    @property
    def frame_rate(self) -> float:
        """Frames a second."""
        return 0.0 if self.codec is None else self.codec.rate / self.codec.hop

    def hear(self, wave: Tensor) -> Encoded:
        """S samples at `rate` as units and codes."""
        units, codes = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
        if self.units is not None:
            units = self.units.encode(wave, self.rate).numpy()
        if self.codec is not None:
            own = resample(wave, self.rate, self.codec.rate)
            codes = self.codec.encode(own[None, None])[0].cpu().numpy()
        return Encoded(units, codes, len(wave) / self.rate)

    def cut(self, heard: Encoded, start: float, seconds: float) -> Encoded:
        """A part of what was heard, of `seconds` from `start` on, or as much as there is."""
        units, codes = (
            slice(first := round(start * rate), first + round(seconds * rate))
            for rate in (self.unit_rate, self.frame_rate)
        )
        rest = min(seconds, heard.seconds - start)
        return Encoded(heard.units[units], heard.codes[:, codes], rest)

    def to(self, device: torch.device | str) -> Hearing:
        """The same on another device."""
        units = None if self.units is None else self.units.to(device)
        return Hearing(units, None if self.codec is None else self.codec.to(device))


def open_codec(path: str | Path, *, device: torch.device | str = "cpu") -> Any:
    """A codec of sound whose codes say everything: `open_codec("runs/digits-codec")`."""
    found: Any = load(find_checkpoint(path), device=device)
    if not isinstance(found, SoundCodecModel):
        raise CheckpointError(
            f"{path} holds a {type(found.config).__name__}, which is no codec of sound; give an "
            f"EnCodec, a Mimi, or what objective=sound-codec trained"
        )
    if found.channels != 1 or getattr(found.config, "chunks", None) is not None:
        raise CheckpointError(
            f"{path} is a codec of {found.channels} channels that encodes in pieces; the stages "
            f"say codes of one channel from beginning to end: give such a codec (encodec-24khz)"
        )
    return found.eval()


def codec_fingerprint(codec: Any) -> str:
    """Of its config and weights: codes mean something to the codec that made them alone."""
    seen = blake2b(codec.config.to_json().encode(), digest_size=16)
    for name, x in codec.state_dict().items():
        seen.update(name.encode())
        seen.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return seen.hexdigest()
