"""`load_processor("path/of/a/checkpoint")`: sound as a checkpoint was taught to hear it.

Letters: B rows, C channels, S samples, M mel bins, N frames.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.errors import DataError, LengthError
from allformer.json_file import read_object
from allformer.sound.mel import log_mel
from allformer.sound.read import Source, read
from allformer.sound.settings import KINDS, MODEL_TYPES, MelSettings, Settings, make_settings

FILE = "preprocessor_config.json"
WHOLE = "processor_config.json"  # transformers 5: of several processors together
FILES = (WHOLE, FILE)

Sound = Source | Tensor  # a file, or a wave at the rate of the settings


@dataclass(frozen=True, eq=False)
class SoundProcessor:
    """Sounds → `input_features` (Whisper) or `input_values` (codecs); `files` are those it was read
    from, to be written back."""

    settings: Settings
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def gives(self) -> str:
        """What a model calls that which it prepares."""
        return "input_features" if isinstance(self.settings, MelSettings) else "input_values"

    def __call__(
        self, sounds: Sound | list[Sound] | tuple[Sound, ...], *, device: torch.device | None = None
    ) -> Tensor:
        """B M N of log-mel, or B C S of the waves, silence behind the shorter ones.

        >>> load_processor("openai/whisper-tiny")(["one.wav", "two.flac"]).shape
        torch.Size([2, 80, 3000])
        """
        many = list(sounds) if isinstance(sounds, list | tuple) else [sounds]
        if not many:
            raise DataError("there is no sound; give one or more")
        waves = [self.wave(sound, f"sound {i}") for i, sound in enumerate(many, 1)]
        most = max(wave.shape[-1] for wave in waves)
        s = self.settings
        length = s.samples if isinstance(s, MelSettings) else s.padded(most)
        if most > length:
            raise LengthError(
                f"a sound has {most / s.sampling_rate:.1f} s, and the model takes "
                f"{length / s.sampling_rate:g} s; cut it first"
            )
        batch = torch.stack([F.pad(wave, (0, length - wave.shape[-1])) for wave in waves])
        batch = batch if device is None else batch.to(device)
        if not isinstance(s, MelSettings):
            return batch
        sizes = {"rate": s.sampling_rate, "size": s.n_fft, "hop": s.hop_length}
        return log_mel(batch, s.feature_size, **sizes)

    def wave(self, sound: Sound, name: str = "the sound") -> Tensor:
        """One sound, S or (of a codec) C S, at the rate of the settings."""
        s = self.settings
        mono = isinstance(s, MelSettings) or s.feature_size == 1
        if not isinstance(sound, Tensor):
            sound = read(sound, rate=s.sampling_rate, mono=mono, name=name)
        if isinstance(s, MelSettings):
            if sound.ndim != 1:
                raise DataError(f"{name} is of shape {tuple(sound.shape)}; give one channel, S")
            return sound
        sound = sound[None] if sound.ndim == 1 else sound
        if sound.shape[0] == 1 and s.feature_size > 1:
            sound = sound.expand(s.feature_size, -1)
        if sound.ndim != 2 or sound.shape[0] != s.feature_size:
            raise DataError(
                f"{name} is of shape {tuple(sound.shape)}; give {s.feature_size} channels × S"
            )
        return sound

    def save(self, directory: str | Path) -> None:
        """Write the files back, byte for byte; fresh settings as a file that transformers opens."""
        fresh = json.dumps(self.settings.to_dict(), indent=2, sort_keys=True) + "\n"
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, content in (self.files or {FILE: fresh.encode()}).items():
            (Path(directory) / name).write_bytes(content)


def hears(directory: str | Path) -> bool:
    """Whether a checkpoint says how sound (and not images) is prepared for it."""
    return _found(Path(directory)) is not None


def load_processor(directory: str | Path) -> SoundProcessor:
    """The processor of a checkpoint's directory, from preprocessor_config.json.

    >>> load_processor("openai/whisper-large-v3").settings.feature_size
    128
    """
    found = _found(Path(directory))
    if found is None:
        raise DataError(
            f"{directory} has no {FILE} that says how sound is prepared; copy it from where the "
            f"checkpoint comes from, or write one with SoundProcessor(make_settings(…)).save(…)"
        )
    source, said, model_type = found
    try:
        settings = make_settings(said, model_type)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    files = {name: Path(directory) / name for name in FILES}
    kept = {name: path.read_bytes() for name, path in files.items() if path.is_file()}
    return SoundProcessor(settings, kept)


def _found(directory: Path) -> tuple[Path, dict[str, Any], str] | None:
    """The file, what it says of sound and the model's type; None where nothing does."""
    config = directory / "config.json"
    model_type = read_object(config, DataError).get("model_type", "") if config.is_file() else ""
    for name in FILES:  # as transformers: what is inside the whole wins
        path = directory / name
        if not path.is_file():
            continue
        raw = read_object(path, DataError)
        said = raw.get("feature_extractor") if name == WHOLE else raw
        if isinstance(said, dict) and (
            said.get("feature_extractor_type") in KINDS or model_type in MODEL_TYPES
        ):
            return path, said, str(model_type)
    return None
