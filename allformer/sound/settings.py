"""What preprocessor_config.json says of sound: how a wave becomes what a model was taught on.

settings = make_settings({"feature_extractor_type": "WhisperFeatureExtractor"})

Fields that a file leaves out mean what transformers' class of that name means by leaving them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from allformer.errors import DataError, did_you_mean


@dataclass(frozen=True)
class MelSettings:
    """WhisperFeatureExtractor: the log-mel of `chunk_length` seconds, silence behind the sound."""

    KIND: ClassVar[str] = "WhisperFeatureExtractor"
    ASIDE: ClassVar[tuple[str, ...]] = ("mel_filters", "n_samples", "nb_max_frames")  # follow

    feature_size: int = 80  # bins
    sampling_rate: int = 16_000
    hop_length: int = 160
    chunk_length: int = 30
    n_fft: int = 400
    return_attention_mask: bool = False

    @property
    def samples(self) -> int:
        return self.chunk_length * self.sampling_rate

    def to_dict(self) -> dict[str, Any]:
        """As preprocessor_config.json holds them."""
        follow = {"n_samples": self.samples, "nb_max_frames": self.samples // self.hop_length}
        return {"feature_extractor_type": self.KIND, **asdict(self), **follow, **_ONLY}


@dataclass(frozen=True)
class WaveSettings:
    """EncodecFeatureExtractor: the wave itself, `feature_size` channels, in chunks if it is so."""

    KIND: ClassVar[str] = "EncodecFeatureExtractor"
    ASIDE: ClassVar[tuple[str, ...]] = ()

    feature_size: int = 1
    sampling_rate: int = 24_000
    chunk_length_s: float | None = None
    overlap: float | None = None
    return_attention_mask: bool = True

    def padded(self, samples: int) -> int:
        """To how many samples a wave is filled up: to whole chunks."""
        if self.chunk_length_s is None or self.overlap is None:
            return samples
        chunk = int(self.chunk_length_s * self.sampling_rate)
        stride = max(1, int((1.0 - self.overlap) * chunk))
        return (-(-samples // stride) - 1) * stride + chunk

    def to_dict(self) -> dict[str, Any]:
        """As preprocessor_config.json holds them."""
        only = {name: value for name, value in _ONLY.items() if name != "dither"}
        return {"feature_extractor_type": self.KIND, **asdict(self), **only}


Settings = MelSettings | WaveSettings
KINDS: dict[str, type[MelSettings] | type[WaveSettings]] = {
    kind.KIND: kind for kind in (MelSettings, WaveSettings)
}
# Of files that name no class: by the model_type of config.json.
MODEL_TYPES = {
    "whisper": "WhisperFeatureExtractor",
    "encodec": "EncodecFeatureExtractor",
    "mimi": "EncodecFeatureExtractor",
}
# Said by files and without a bearing on the numbers.
_ASIDE = {"feature_extractor_type", "processor_class", "auto_map", "feature_extractor"}
# Said by files, and known here in one value only.
_ONLY: dict[str, Any] = {"dither": 0.0, "padding_side": "right", "padding_value": 0.0}


def make_settings(raw: Mapping[str, Any], model_type: str = "") -> Settings:
    """From what preprocessor_config.json holds; a field that nothing here takes is refused.

    >>> make_settings({"feature_extractor_type": "WhisperFeatureExtractor"}).feature_size
    80
    """
    kind = KINDS[kind_of(raw, model_type)]
    known = {field.name for field in fields(kind)}
    for name, value in raw.items():
        if name in _ONLY and value != _ONLY[name]:
            raise DataError(f"{name}={value!r} is not known here; only {_ONLY[name]!r} is")
        if name not in {*known, *_ONLY, *_ASIDE, *kind.ASIDE}:
            raise DataError(
                f"{name}={value!r} is no field of a {kind.KIND} that is known here; "
                f"{did_you_mean(name, known)}leave it out if it has no bearing on the sound"
            )
    settings = kind(**{name: value for name, value in raw.items() if name in known})
    _check(settings)
    return settings


def kind_of(raw: Mapping[str, Any], model_type: str = "") -> str:
    """transformers' class that a file names, or that its model's type implies."""
    named = raw.get("feature_extractor_type") or MODEL_TYPES.get(model_type)
    if named not in KINDS:
        raise DataError(
            f"feature_extractor_type={named!r} is not known here; known are {', '.join(KINDS)}"
        )
    return str(named)


def _check(settings: Settings) -> None:
    for name, value in asdict(settings).items():
        if name in ("chunk_length_s", "overlap"):
            right = value is None or (isinstance(value, int | float) and value >= 0)
        elif name == "return_attention_mask":
            right = isinstance(value, bool)
        else:
            right = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not right:
            raise DataError(f"{name}={value!r} is no number that fits; check the file")
    if isinstance(settings, WaveSettings) and settings.overlap and settings.overlap >= 1:
        raise DataError(f"overlap={settings.overlap} must be below 1; check the file")
