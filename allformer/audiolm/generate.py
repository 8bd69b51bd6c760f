"""The three stages in a row: sound that goes on from sound, or from nothing.

    speaker = open_audiolm("runs/digits")            # a folder with the runs of the stages
    waves = speaker.go_on([prompt], rate=8000, seconds=5.0, seed=0)

Meaning goes on first: units of the prompt, then more. Coarse codes follow all of them, fine codes
the coarse ones, and the codec makes sound of both (Borsos et al., 2022, section III.D). A row holds
so many seconds as the stage was trained with; longer sound comes in rounds, of which each goes on
from the last half of what there is.

Legend: R sounds, S samples, Q books, F frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allformer.audiolm.hearing import CODEC, Hearing, open_codec
from allformer.audiolm.saying import say
from allformer.audiolm.stage_file import StageFacts, read_stage
from allformer.audiolm.tokens import STAGES, Ids, Stage, without_repeats
from allformer.audiolm.units import FOLDER, load_units
from allformer.checkpoint.load import load
from allformer.checkpoint.run import SOUND_TOKENS
from allformer.core.precision import pick_device
from allformer.errors import CheckpointError
from allformer.sound import resample

# The encoder hears silence behind a prompt that is cut off, where training had more sound: the last
# units are said anew.
EDGE = 0.1  # seconds
TEMPERATURES = {"semantic": 0.6, "coarse": 0.8, "fine": 0.6}  # the paper's, section IV.B


@dataclass(frozen=True, eq=False)
class Speaking:
    """A stage that was trained."""

    model: Any = field(repr=False)
    facts: StageFacts

    @property
    def stage(self) -> Stage:
        return self.facts.stage


@dataclass(eq=False)
class Sounding:
    """One sound while it grows: samples at the rate of `ears`, and the codes behind them."""

    wave: Tensor = field(repr=False)  # S
    codes: Ids = field(repr=False)  # Q F
    prompt: int  # frames that were given


@dataclass(frozen=True, eq=False)
class AudioLM:
    """All that it takes to go on with sound. Without a fine stage the coarse one says all books."""

    ears: Hearing = field(repr=False)
    stages: Mapping[str, Speaking]

    @property
    def rate(self) -> int:
        """Samples a second of what it says."""
        found: int = self.codec.rate
        return found

    @property
    def codec(self) -> Any:
        assert self.ears.codec is not None
        return self.ears.codec

    @property
    def window(self) -> int:
        """Frames that a row of the coarse stage holds."""
        return round(self.stages["coarse"].facts.seconds * self.ears.frame_rate)

    @torch.no_grad()
    def go_on(
        self,
        prompts: Sequence[Tensor],
        rate: int,
        *,
        seconds: float,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
        progress: Callable[[float], None] | None = None,
    ) -> list[tuple[Tensor, int]]:
        """Each of `prompts` (S samples at `rate`; may be empty) and so many `seconds` after it:
        samples at the codec's rate, and how many of them are the prompt's.

        `temperature` is for all stages; unless told, 0.6, 0.8 and 0.6, as in the paper. `progress`
        hears how many seconds there are.
        """
        chance = torch.Generator(self.codec.device).manual_seed(seed)
        wanted = max(1, round(seconds * self.ears.frame_rate))
        sounds = [self._heard(wave, rate) for wave in prompts]
        heat = TEMPERATURES if temperature is None else dict.fromkeys(STAGES, temperature)
        how = {name: {"temperature": heat[name], "top_k": top_k, "generator": chance}
               for name in STAGES}  # fmt: skip
        while left := [s for s in sounds if s.codes.shape[1] - s.prompt < wanted]:
            self._round(left, wanted, how)
            if progress is not None:
                least = min(s.codes.shape[1] - s.prompt for s in sounds)
                progress(least / self.ears.frame_rate)
        return [(self._sound(s.codes), s.prompt * self.codec.hop) for s in sounds]

    def _heard(self, wave: Tensor, rate: int) -> Sounding:
        """A prompt, cut to whole frames."""
        own = resample(wave.float(), rate, self.ears.rate)
        frames = int(len(own) / self.ears.rate * self.ears.frame_rate)
        own = own[: self._samples(frames)]
        codes = np.zeros((self.codec.books, 0), np.int64)
        if frames:
            given = resample(own, self.ears.rate, self.rate)
            codes = self.codec.encode(given[None, None])[0, :, :frames].cpu().numpy()
        return Sounding(own, codes, codes.shape[1])

    def _samples(self, frames: int) -> int:
        """At the rate of `ears`."""
        return round(frames / self.ears.frame_rate * self.ears.rate)

    def _sound(self, codes: Ids) -> Tensor:
        """Q F → S, at the codec's rate."""
        found: Tensor = self.codec.decode(torch.from_numpy(codes)[None])[0, 0].float().cpu()
        return found

    # --- a round --------------------------------------------------------------------------------

    def _round(self, sounds: Sequence[Sounding], wanted: int, how: Mapping[str, Any]) -> None:
        """Every sound grows by as much as fits into a row behind what is known."""
        known = [min(s.codes.shape[1], self.window // 2) for s in sounds]
        units = self._meaning(sounds, known, how["semantic"])
        new = [
            min(self.window - k, s.prompt + wanted - s.codes.shape[1])
            for s, k in zip(sounds, known, strict=True)
        ]
        coarse = self._coarse(sounds, units, known, new, how["coarse"])
        whole = self._fine(sounds, coarse, new, how["fine"])
        for sound, codes, frames in zip(sounds, whole, new, strict=True):
            sound.codes = np.concatenate([sound.codes, codes[:, -frames:]], 1)
            again = self._sound(sound.codes)[-frames * self.codec.hop :]
            again = resample(again, self.rate, self.ears.rate)
            sound.wave = torch.cat([sound.wave, again])

    def _meaning(
        self, sounds: Sequence[Sounding], known: Sequence[int], how: Mapping[str, Any]
    ) -> list[Ids]:
        """Units of what is known, and those that follow."""
        speaking, ears = self.stages["semantic"], self.ears
        assert ears.units is not None
        before, edge = [], round(EDGE * ears.unit_rate)
        for sound, frames in zip(sounds, known, strict=True):
            wave = sound.wave[len(sound.wave) - self._samples(frames) :]
            found = ears.units.encode(wave, ears.rate).numpy()
            before.append(without_repeats(found[: max(0, len(found) - edge)]))
        prompts = [speaking.stage.prompt(units) for units in before]
        most = round(speaking.facts.seconds * ears.unit_rate)
        room = max(1, most - max(map(len, before)))
        said = say(speaking.model, speaking.stage, prompts, [room] * len(prompts), **how)
        return [np.concatenate(pair) for pair in zip(before, said, strict=True)]

    def _coarse(
        self,
        sounds: Sequence[Sounding],
        units: Sequence[Ids],
        known: Sequence[int],
        new: Sequence[int],
        how: Mapping[str, Any],
    ) -> list[Ids]:
        """Coarse codes of all frames, those that are new among them: Q' F."""
        speaking = self.stages["coarse"]
        stage = speaking.stage
        prompts = [
            stage.prompt(u, s.codes[:, s.codes.shape[1] - k :], known=k)
            for s, u, k in zip(sounds, units, known, strict=True)
        ]
        counts = [frames * stage.coarse for frames in new]
        said = say(speaking.model, stage, prompts, counts, **how)
        return [
            np.concatenate([s.codes[: stage.coarse], stage.read(ids)], 1)
            for s, ids in zip(sounds, said, strict=True)
        ]

    def _fine(
        self,
        sounds: Sequence[Sounding],
        coarse: Sequence[Ids],
        new: Sequence[int],
        how: Mapping[str, Any],
    ) -> list[Ids]:
        """All codes of all frames, Q F: window after window, half of each known where it can be."""
        if "fine" not in self.stages:
            return list(coarse)
        speaking = self.stages["fine"]
        stage = speaking.stage
        window = round(speaking.facts.seconds * self.ears.frame_rate)
        found = [
            np.concatenate([c, np.zeros((stage.books - stage.coarse, c.shape[1]), np.int64)])
            for c in coarse
        ]
        done = []
        for whole, sound in zip(found, sounds, strict=True):
            done.append(sound.codes.shape[1])
            whole[:, : done[-1]] = sound.codes
        while rows := [i for i, whole in enumerate(found) if done[i] < whole.shape[1]]:
            places = [_window(done[i], found[i].shape[1], window) for i in rows]
            prompts = [
                stage.prompt(codes=found[i][:, a:b], known=done[i] - a)
                for i, (a, b) in zip(rows, places, strict=True)
            ]
            counts = [(b - done[i]) * len(stage.said_books)
                      for i, (_, b) in zip(rows, places, strict=True)]  # fmt: skip
            said = say(speaking.model, stage, prompts, counts, **how)
            for i, (_, b), ids in zip(rows, places, said, strict=True):
                found[i][stage.coarse :, done[i] : b] = stage.read(ids)
                done[i] = b
        return found


def _window(done: int, total: int, size: int) -> tuple[int, int]:
    """From where to where the next window goes: as many frames as rows had in training, where
    there are so many, and at most half of them known."""
    start = max(0, min(done - size // 2, total - size))
    return start, min(start + size, total)


# --- opening ------------------------------------------------------------------------------------


def open_audiolm(path: str | Path, *, device: torch.device | str | None = None) -> AudioLM:
    """The stages in a folder: `open_audiolm("runs/digits")` with the runs semantic, coarse and fine
    in it, whatever they are called. One of those runs itself will do: the others lie beside it."""
    folder = Path(path)
    folder = folder.absolute().parent if (folder / SOUND_TOKENS).is_file() else folder
    runs = find_stages(folder)
    where = device if isinstance(device, torch.device) else pick_device(device)
    facts = {name: read_stage(run) for name, run in runs.items()}
    _check(facts, runs)
    units = load_units(runs["semantic"] / FOLDER, device=where)
    codec = open_codec(runs["coarse"] / CODEC, device=where)
    stages = {
        name: Speaking(load(run, device=where, dtype=_dtype(where)).eval(), facts[name])
        for name, run in runs.items()
    }
    return AudioLM(Hearing(units, codec), stages)


def find_stages(folder: str | Path) -> dict[str, Path]:
    """The run of each stage within a folder; one that is missing, or there twice, is named."""
    folder = Path(folder)
    found: dict[str, Path] = {}
    for file in sorted(folder.glob(f"*/{SOUND_TOKENS}")) if folder.is_dir() else []:
        name = read_stage(file.parent).stage.name
        if name in found:
            raise CheckpointError(
                f"{folder} has two runs of the {name} stage, {found[name].name} and "
                f"{file.parent.name}; move one of them away"
            )
        found[name] = file.parent
    needed = ["semantic", "coarse"]
    if "coarse" in found:
        stage = read_stage(found["coarse"]).stage
        needed += ["fine"] if stage.coarse < stage.books else []
    if missing := [name for name in needed if name not in found]:
        there = ", ".join(f"{run.name} ({name})" for name, run in found.items()) or "none"
        raise CheckpointError(
            f"{folder} has no run of the {' and the '.join(missing)} stage (there is: {there}); "
            f"train it into that folder with objective: {{is: sound-tokens, stage: {missing[0]}}}"
        )
    return {name: found[name] for name in needed}


def _check(facts: Mapping[str, StageFacts], runs: Mapping[str, Path]) -> None:
    """Refuse stages that do not speak of the same units, or codes."""
    pairs = [("semantic", "coarse", "units"), *([("coarse", "fine", "codec")] * ("fine" in facts))]
    for first, second, what in pairs:
        if getattr(facts[first], what) != getattr(facts[second], what):
            raise CheckpointError(
                f"{runs[first]} and {runs[second]} were trained with different {what}; train one "
                f"of them again with the other's ({runs[first] / what})"
            )
    one, other = (facts[name].seconds for name in ("semantic", "coarse"))
    if one != other:
        raise CheckpointError(
            f"{runs['semantic']} has rows of {one:g} seconds, but {runs['coarse']} of {other:g}: "
            f"units and codes would not be of the same time; train one of them again with "
            f"data.seconds={other:g}"
        )
    if "fine" in facts and facts["fine"].stage.coarse != facts["coarse"].stage.coarse:
        said, read = (facts[name].stage.coarse for name in ("coarse", "fine"))
        raise CheckpointError(
            f"{runs['coarse']} says {said} books, but {runs['fine']} goes on from {read}; train "
            f"one of them again with objective.coarse={said}"
        )


def _dtype(device: torch.device) -> torch.dtype | None:
    return torch.float32 if device.type == "cpu" else None
