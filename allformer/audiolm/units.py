"""Units of meaning: the hidden states of an encoder of sound, each as the nearest of K centres.

    units = fit_units(af.load("whisper-tiny.en"), waves, clusters=256, layer=3)
    units.save("whisper-tiny.en/units")
    units = load_units("whisper-tiny.en")                  # beside the model, or the folder itself
    units.encode(wave, rate=8000)                          # S → U numbers, 50 a second

States are brought to mean 0 and variance 1 in each of their numbers before they are clustered,
which makes units say more of what is spoken (Borsos et al., 2022, section IV.A). Of the encoder the
layers below are kept alone, so that units can go wherever they are needed.

Legend: B windows, S samples, N states, D their numbers, K centres, U units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.audiolm.kmeans import fit_clusters, nearest
from allformer.audiolm.recordings import Recording, streams
from allformer.checkpoint.load import load
from allformer.checkpoint.save import OWN, save
from allformer.checkpoint.weights import put_weights, read_tensors, write_tensors
from allformer.config import EncoderOnly, Sound, Stack
from allformer.core.model import build
from allformer.core.precision import widen
from allformer.errors import CheckpointError, ConfigError, DataError
from allformer.sound import log_mel, resample
from allformer.sound.mel import HOP, RATE

FOLDER = "units"  # beside a model, or within a run
FILE = "units.safetensors"
_AT_ONCE = 16  # windows that go through the encoder together
_MOST = 1_000_000  # states that are clustered: more are drawn from
_BATCH = 1 << 16  # of them in a step, where there are many


@dataclass(frozen=True, eq=False)
class Units:
    """An encoder up to a layer, and the centres of its states. A `window` is so many samples: all
    sound is read in windows of that length, the last one filled up with silence."""

    encoder: Any = field(repr=False)
    centres: Tensor = field(repr=False)  # K D
    mean: Tensor = field(repr=False)  # D
    spread: Tensor = field(repr=False)  # D
    window: int

    def __len__(self) -> int:
        return len(self.centres)

    @property
    def rate(self) -> float:
        """How many there are of a second."""
        return RATE / (HOP * _stride(self.encoder.config.encoder))

    @torch.no_grad()
    def encode(self, wave: Tensor, rate: int = RATE) -> Tensor:
        """S samples at `rate` → their units, 0 … K − 1, on the CPU."""
        if not wave.numel():
            return torch.empty(0, dtype=torch.long)
        wave = resample(wave.float(), rate, RATE)
        found = torch.cat([*_states(self.encoder, wave, self.window)])
        return nearest((found - self.mean) / self.spread, self.centres).cpu()

    def to(self, device: torch.device | str) -> Units:
        """The same on another device."""
        centres, mean, spread = (x.to(device) for x in (self.centres, self.mean, self.spread))
        return Units(self.encoder.to(device), centres, mean, spread, self.window)

    def save(self, path: str | Path) -> None:
        """A folder with the encoder and `units.safetensors`."""
        save(self.encoder, path, family=OWN)
        write_tensors(self._tensors(), Path(path) / FILE)

    @property
    def fingerprint(self) -> str:
        """Of all that makes units what they are: those of others mean something else."""
        seen = blake2b(self.encoder.config.to_json().encode(), digest_size=16)
        for name, x in [*self.encoder.state_dict().items(), *self._tensors().items()]:
            seen.update(name.encode())
            seen.update(x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return seen.hexdigest()

    def _tensors(self) -> dict[str, Tensor]:
        window = torch.tensor([self.window])
        own = {"centres": self.centres, "mean": self.mean, "spread": self.spread}
        return {name: x.cpu() for name, x in own.items()} | {"window": window}


def load_units(path: str | Path, *, device: torch.device | str = "cpu") -> Units:
    """What `Units.save` wrote: there, or in the folder `units` there."""
    folders = Path(path), Path(path) / FOLDER
    folder = next((each for each in folders if (each / FILE).is_file()), None)
    if folder is None:
        raise CheckpointError(
            f"{path} has no units ({FILE}, or {FOLDER}/{FILE}); make them with `allformer units "
            f"{path} --data RECORDINGS`"
        )
    tensors, encoder = read_tensors(folder / FILE), load(folder, device=device)
    try:
        window = int(tensors.pop("window"))
        units = Units(encoder.eval(), **tensors, window=window)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / FILE} is not what units are saved as: {error}") from None
    return units.to(device)


def fit_units(
    model: Any,
    waves: Iterable[Tensor],
    *,
    clusters: int,
    layer: int | None = None,
    seconds: float | None = None,
    tries: int = 1,
    seed: int = 0,
) -> tuple[Units, float]:
    """Units by k-means over the states after `layer` (the last one, unless told), of sound at
    16 kHz; and which share of the states' variance the centres explain.

    `seconds` are those of a window; unless told, as many as the model reads.
    """
    encoder = lower_layers(model, layer)
    window = _window(encoder.config.encoder, seconds)
    parts = [part.cpu() for wave in waves for part in _states(encoder, wave, window)]
    if not parts:
        raise DataError("there is no sound to make units of; give one recording at least")
    states = widen(torch.cat(parts))  # N D
    if len(states) > _MOST:
        states = states[torch.randperm(len(states), generator=_chance(seed))[:_MOST]]
    states = states.to(encoder.device)
    spread, mean = torch.std_mean(states, 0, correction=0)
    spread = spread.clamp(min=1e-5)  # a number that is always the same says nothing
    points = (states - mean) / spread
    batch = _BATCH if len(points) > 4 * _BATCH else None
    found = fit_clusters(points, clusters, batch=batch, tries=tries, seed=seed)
    explained = 1 - found.error / float(points.square().sum(-1).mean())
    return Units(encoder, found.centres, mean, spread, window), explained


def fit_recordings(
    model: Any, recordings: Sequence[Recording], *, seconds: float | None = None, **how: Any
) -> tuple[Units, float]:
    """`fit_units` of recordings, of which short ones share a window: each by itself would be a
    little sound and much silence."""
    window = _window(_hears(model)[1], seconds) / RATE
    rest = [replace(each, voice="") for each in recordings]
    waves = streams(rest, RATE, join=max(0.1, window - 2), seed=how.get("seed", 0))
    return fit_units(model, waves, seconds=window, **how)


def lower_layers(model: Any, layer: int | None = None) -> Any:
    """The encoder of sound of any model up to a layer, as a model of its own."""
    name, stack = _hears(model)
    depth = len(stack.blocks)
    number = depth if layer is None else layer
    if not 1 <= number <= depth:
        raise ConfigError(f"layer={layer} must be 1 … {depth}; the model has {depth} layers")
    whole = number == depth
    assert isinstance(stack.source, Sound)
    source = replace(stack.source, hide_frames=None, hide_mels=None)  # nothing is trained here
    tree = EncoderOnly(
        replace(
            stack, source=source, blocks=stack.blocks[:number],
            final_norm=stack.final_norm if whole else None,
        )
    )  # fmt: skip
    encoder = build(tree, device=model.device)
    own = {f"encoder.{n.removeprefix(f'{name}.')}": x for n, x in model.state_dict().items()}
    put_weights(encoder, {n: own[n] for n in encoder.state_dict()}, f"the model's {name}")
    return encoder.eval()


def _hears(model: Any) -> tuple[str, Stack]:
    """The stack that reads sound, and its name."""
    stacks: dict[str, Stack] = model.config.stacks
    for name, stack in stacks.items():
        if isinstance(stack.source, Sound):
            return name, stack
    raise ConfigError(
        f"this {type(model.config).__name__} reads no sound; give one that does, such as a Whisper"
    )


def _window(stack: Stack, seconds: float | None) -> int:
    """Samples of a window: whole units, and no more than the model reads."""
    each = HOP * _stride(stack)
    most = stack.longest
    if seconds is None and most is None:
        raise ConfigError("the model reads sound of any length; say how many seconds at a time")
    wanted = most if seconds is None else max(1, round(seconds * RATE / each))
    assert wanted is not None
    if most is not None and wanted > most:
        raise ConfigError(
            f"seconds={seconds} is more than the model reads, {most * each / RATE:g} at a time; "
            f"give at most so many"
        )
    return wanted * each


def _stride(stack: Stack) -> int:
    """Frames of log-mel that become one state."""
    assert isinstance(stack.source, Sound)
    return round(1000 / stack.source.steps(1000))


@torch.no_grad()
def _states(encoder: Any, wave: Tensor, window: int) -> Iterator[Tensor]:
    """The states of a wave at 16 kHz, N D in parts; none of the silence that fills up a window."""
    stack = encoder.config.encoder
    each = HOP * _stride(stack)
    left = -(-len(wave) // each)
    wave = F.pad(wave, (0, -len(wave) % window)).to(encoder.device)
    for part in torch.split(wave.view(-1, window), _AT_ONCE):  # B S
        frames = log_mel(part, stack.source.mels)
        states = encoder.states(input_features=frames)["encoder"].flatten(0, 1)  # B·U D
        yield states[:left]
        left -= len(states)


def _chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
