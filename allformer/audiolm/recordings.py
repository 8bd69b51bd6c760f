"""Recordings to learn from, and streams of one voice that are joined from them.

    found = find_recordings("recordings", voice=r"_(\\w+)_")       # 7_jackson_32.wav: jackson
    train, held = split(found, held_out=r"_[0-4]$")
    for wave in streams(train, 8000, join=10.0, seed=0): ...       # S samples each

Legend: S samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from allformer.errors import ConfigError, DataError
from allformer.sound import read, resample
from allformer.sound.folder import sound_files


@dataclass(frozen=True, eq=False)
class Recording:
    """A file, or samples at a rate; `voice` is who speaks: `Recording("7_jackson_32", "jackson",
    Path("7_jackson_32.wav"))`."""

    name: str
    voice: str
    source: Path | Tensor = field(repr=False)
    rate: int = 0  # of samples; a file says its own

    def in_memory(self, rate: int) -> Recording:
        """The same with its samples, read once."""
        return Recording(self.name, self.voice, self.wave(rate), rate)

    def wave(self, rate: int) -> Tensor:
        """S samples in −1 … 1 at that rate."""
        if isinstance(self.source, Path):
            return read(self.source, rate=rate)
        return resample(self.source, self.rate, rate)


def find_recordings(
    path: str | Path, voice: str | None = None, *, name: str = "data.path"
) -> list[Recording]:
    """All sound files in a folder and below, by their names in order.

    `voice` is a regular expression that finds the voice in a file's name without its ending: its
    first group, or the whole of it. Without one the voice is the folder that a file lies in.
    """
    files = sound_files(path, name=name)
    wanted = None if voice is None else pattern(voice, "voice")
    return [Recording(file.stem, _voice(file, wanted), file) for file in files]


def pattern(text: str, name: str) -> re.Pattern[str]:
    """A regular expression, or an error that names the setting."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{name}={text!r} is no regular expression: {error}; try '_([a-z]+)_'"
        ) from None


def _voice(file: Path, wanted: re.Pattern[str] | None) -> str:
    if wanted is None:
        return file.parent.name
    found = wanted.search(file.stem)
    if found is None:
        raise DataError(
            f"voice={wanted.pattern!r} is not found in the name of {file}; change it, or leave it "
            f"out, so that the voice is the folder's name"
        )
    return found[1] if wanted.groups else found[0]


def split(
    recordings: Sequence[Recording],
    held_out: str | None = None,
    share: float = 0.05,
    seed: int = 0,
    names: tuple[str, str] = ("held_out", "share"),
) -> tuple[list[Recording], list[Recording]]:
    """Those to train on and those to validate on: the ones whose name has `held_out` in it, a
    regular expression, or a `share` of all, drawn by the seed.

    `names` is what the caller's user calls the two."""
    if held_out is not None:
        wanted = pattern(held_out, names[0])
        chosen = [wanted.search(each.name) is not None for each in recordings]
    else:
        count = max(1, round(share * len(recordings)))
        drawn = np.random.default_rng(seed).permutation(len(recordings))[:count]
        chosen = np.isin(np.arange(len(recordings)), drawn).tolist()
    train = [each for each, out in zip(recordings, chosen, strict=True) if not out]
    held = [each for each, out in zip(recordings, chosen, strict=True) if out]
    if not train or not held:
        raise DataError(
            f"{len(train)} recordings are left to train on and {len(held)} to validate on; there "
            f"must be some of both: change "
            + (
                f"{names[1]}={share}, or give more recordings"
                if held_out is None
                else f"{names[0]}={held_out!r}"
            )
        )
    return train, held


def streams(
    recordings: Sequence[Recording],
    rate: int,
    *,
    join: float = 0.0,
    pause: tuple[float, float] = (0.1, 0.4),
    seed: int = 0,
) -> Iterator[Tensor]:
    """Samples at `rate`, stream after stream: each recording, or with `join` several of one voice
    in an order by the seed, silence between them, until there are so many seconds.

    What is left of a voice at the end is a shorter stream.
    """
    chance = np.random.default_rng(seed)
    if not join:
        yield from (each.wave(rate) for each in recordings)
        return
    voices: dict[str, list[Recording]] = {}
    for each in recordings:
        voices.setdefault(each.voice, []).append(each)
    for own in voices.values():
        parts: list[Tensor] = []
        for i in chance.permutation(len(own)):
            parts += [own[i].wave(rate), torch.zeros(round(chance.uniform(*pause) * rate))]
            if sum(map(len, parts)) >= join * rate:
                yield torch.cat(parts)
                parts = []
        if parts:
            yield torch.cat(parts)


def fingerprint(recordings: Sequence[Recording]) -> str:
    """To know a set again: of names, voices, and the samples, or the size of a file."""
    seen = blake2b(digest_size=16)
    for each in recordings:
        told = (each.name, each.voice, each.rate)
        if isinstance(each.source, Path):
            seen.update(repr((*told, each.source.stat().st_size)).encode("utf-8", "surrogatepass"))
        else:
            seen.update(repr(told).encode("utf-8", "surrogatepass"))
            seen.update(each.source.cpu().contiguous().numpy().tobytes())
    return seen.hexdigest()
