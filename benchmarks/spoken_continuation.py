"""Whether sound that goes on keeps its voice and says digits: judges that we train listen to it.

    python benchmarks/spoken_continuation.py runs/digits --data recordings
    python benchmarks/spoken_continuation.py runs/digits --data recordings --prompts 120 \
        --whisper openai/whisper-tiny.en --listen heard/ --json out.json

RUN is a folder with the stages of AudioLM, trained on the Free Spoken Digit Dataset; DATA are its
recordings, `{digit}_{voice}_{index}.wav`, of which 0 … 4 of each digit and voice are the test
split. A prompt is the first `--prompt` seconds of held-out recordings of one voice, joined as in
training.

Two judges, small convolutional networks over log-mel frames, learn from the training recordings
alone and never hear what the stages say before they judge it: one says whose voice it is, one says
which digit, or none; "none" are digits that are reversed, cut into slices and shuffled, or laid
over each other, and noise. Pieces between pauses are judged one by one; the voice of a continuation
is the likeliest over all its pieces. A Whisper (`--whisper`) says besides which share of the words
that it hears are digits.

Two rows are no continuations: what the judges say of held-out recordings, and of those through the
codec and back. It is what going on could reach if it were perfect. One row goes on from nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import allformer as af
from allformer.audiolm.generate import AudioLM
from allformer.audiolm.recordings import Recording, find_recordings, split, streams
from allformer.sound import log_mel, resample, write

RATE = 8000
BINS, FRAMES = 40, 100  # a second of 10 ms
NONE = 10  # behind the ten digits
TEST = r"_[0-4]$"
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "oh"]


class Judge(NamedTuple):
    """A network, what its classes are called, and how often it is right on held-out recordings."""

    network: nn.Module
    names: list[str]
    right: float
    refused: float = 0.0  # of what is no digit, the share that it says to be none


def main() -> None:
    args = _parsed()
    torch.manual_seed(args.seed)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kit = af.open_audiolm(args.run, device=device)
    train, test = split(find_recordings(args.data, r"_([a-z]+)_"), TEST)
    voices = sorted({each.voice for each in train})
    begin = time.monotonic()
    waves = [[each.wave(RATE) for each in part] for part in (train, test)]
    of_voice = [torch.tensor([voices.index(each.voice) for each in p]) for p in (train, test)]
    of_digit = [torch.tensor([int(each.name[0]) for each in part]) for part in (train, test)]
    speaker = taught(waves, of_voice, voices, args, device)
    digits = taught(waves, of_digit, [*map(str, range(10)), "none"], args, device)
    print(
        f"judges, on held-out recordings: voice {100 * speaker.right:.1f} % right, digit "
        f"{100 * digits.right:.1f} %; of what is no digit {100 * digits.refused:.1f} % refused; "
        f"taught in {time.monotonic() - begin:.0f} s"
    )
    rows = [judged(name, sounds, owners, (speaker, digits), args)
            for name, sounds, owners in heard(kit, test, voices, args)]  # fmt: skip
    print()
    for row in rows:
        print(_line(row))
    if args.json is not None:
        judges = {"voice": speaker.right, "digit": digits.right, "refused": digits.refused}
        told = {"judges": judges, "rows": rows}
        args.json.write_text(json.dumps(told, indent=1) + "\n")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--prompt", type=float, default=0.75, help="seconds that are given")
    parser.add_argument("--seconds", type=float, default=5.0, help="that follow")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--batch", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=20, help="of the judges")
    parser.add_argument("--whisper", help="a recogniser of words besides")
    parser.add_argument("--listen", type=Path, help="a folder for what is said, as wav")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


# --- judges -------------------------------------------------------------------------------------


def network(classes: int) -> nn.Module:
    """Log-mel frames B 1 M N → B classes."""
    layers: list[nn.Module] = []
    width = 1
    for wider in (32, 64, 128):
        layers += [nn.Conv2d(width, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        width = wider
    layers += [nn.AdaptiveAvgPool2d((BINS // 8, 1)), nn.Flatten(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(width * (BINS // 8), classes))


def frames(waves: Sequence[Tensor], device: torch.device) -> Tensor:
    """The middle second of each, or all of it with silence around: B 1 M N."""
    size, found = RATE, []
    for wave in waves:
        over = len(wave) - size
        wave = wave[max(0, over // 2) : max(0, over // 2) + size]
        left = (size - len(wave)) // 2
        loud = wave / wave.abs().max().clamp(min=1e-4)  # how loud it is tells nobody anything
        found.append(F.pad(loud, (left, size - len(wave) - left)))
    x = log_mel(torch.stack(found).to(device), BINS, rate=RATE, size=200, hop=80, top=RATE / 2)
    return x[:, None, :, :FRAMES]


def taught(
    waves: list[list[Tensor]],
    labels: list[Tensor],
    names: list[str],
    args: argparse.Namespace,
    device: torch.device,
) -> Judge:
    """A judge of these classes; with a class "none", of what is no digit too."""
    chance = np.random.default_rng(args.seed)
    sets = []
    for sounds, owners in zip(waves, labels, strict=True):
        extra = spoilt(sounds, len(sounds) // 3, chance) if names[-1] == "none" else []
        every = [*sounds, *extra]
        sets.append((every, torch.cat([owners, torch.full((len(extra),), NONE)])))
    (sounds, owners), held = sets
    model = network(len(names)).to(device)
    steps = args.epochs * (len(sounds) // 64)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for step in range(steps):
        index = chance.choice(len(sounds), 64, replace=False)
        x = frames([varied(sounds[i], chance) for i in index], device)
        loss = F.cross_entropy(model.train()(x), owners[index].to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 200 == 0:
            print(
                f"  {'/'.join(names[:3])}…: step {step} of {steps}, {loss.item():.3f}", flush=True
            )
    model.eval()
    right = (scores(model, held[0], device).argmax(-1) == held[1]).float()
    count = len(waves[1])
    return Judge(model, names, float(right[:count].mean()), float(right[count:].mean()))


def varied(wave: Tensor, chance: np.random.Generator) -> Tensor:
    """Cut a little at both ends, moved, with a little noise: pieces between pauses are so too."""
    cut = [int(len(wave) * share) for share in chance.uniform(0, 0.08, 2)]
    wave = wave[cut[0] : len(wave) - cut[1]]
    around = [int(RATE * seconds) for seconds in chance.uniform(0, 0.1, 2)]
    noise = torch.from_numpy(chance.normal(0, 1, len(wave))).float()
    loud = 10 ** chance.uniform(-4, -2) * wave.abs().max()
    return F.pad(wave + loud * noise, (around[0], around[1]))


def spoilt(sounds: Sequence[Tensor], count: int, chance: np.random.Generator) -> list[Tensor]:
    """What has the sound of voices and is no digit."""
    found = []
    for number in range(count):
        one, two = (sounds[i] for i in chance.integers(0, len(sounds), 2))
        kind = number % 4
        if kind == 0:
            found.append(one.flip(0))
        elif kind == 1:
            slices = list(torch.split(one, RATE // 16))
            found.append(torch.cat([slices[i] for i in chance.permutation(len(slices))]))
        elif kind == 2:
            size = min(len(one), len(two))
            found.append(one[:size] + two[:size].flip(0))
        else:
            noise = torch.from_numpy(chance.normal(0, 1, len(one))).float()
            swell = one.abs().unfold(0, min(400, len(one)), 1).mean(-1)
            found.append(noise[: len(swell)] * swell)
    return found


@torch.no_grad()
def scores(model: nn.Module, sounds: Sequence[Tensor], device: torch.device) -> Tensor:
    """Log-probabilities, N classes."""
    parts = [sounds[i : i + 256] for i in range(0, len(sounds), 256)]
    return torch.cat([model(frames(part, device)).log_softmax(-1).cpu() for part in parts])


# --- what is heard --------------------------------------------------------------------------------


def heard(
    kit: AudioLM, test: Sequence[Recording], voices: list[str], args: argparse.Namespace
) -> list[tuple[str, list[Tensor], list[int]]]:
    """Rows to judge: a name, sounds at 8 kHz, and whose voice each should be (−1: nobody's)."""
    owners = [i % len(voices) for i in range(args.prompts)]
    whole = []
    for number, owner in enumerate(owners):
        own = [each for each in test if each.voice == voices[owner]]
        long = args.prompt + args.seconds
        whole.append(next(iter(streams(own, RATE, join=long, seed=number)))[: round(long * RATE)])
    given = round(args.prompt * RATE)
    again = [through(kit, wave) for wave in whole]
    prompts = [wave[:given] for wave in whole]
    begin = time.monotonic()
    said = _said(kit, prompts, args)
    seconds = time.monotonic() - begin
    print(f"{len(said)} continuations of {args.seconds:g} s in {seconds:.1f} s")
    alone = _said(kit, [torch.zeros(0)] * max(1, args.prompts // 3), args)
    if args.listen is not None:
        args.listen.mkdir(parents=True, exist_ok=True)
        for i, (prompt, wave) in enumerate(zip(prompts, said, strict=True)):
            joined = torch.cat([prompt, wave])
            write(args.listen / f"{i:03}_{voices[owners[i]]}.wav", joined, RATE)
    return [
        ("held-out recordings", [wave[given:] for wave in whole], owners),
        ("the same through the codec", [wave[given:] for wave in again], owners),
        ("continuations", said, owners),
        ("from nothing", alone, [-1] * len(alone)),
    ]


def _said(kit: AudioLM, prompts: list[Tensor], args: argparse.Namespace) -> list[Tensor]:
    """What follows, at 8 kHz."""
    found = []
    for first in range(0, len(prompts), args.batch):
        part = prompts[first : first + args.batch]
        made = kit.go_on(
            part, RATE, seconds=args.seconds, temperature=args.temperature, seed=args.seed + first
        )
        found += [resample(wave[begin:], kit.rate, RATE) for wave, begin in made]
    return found


def through(kit: AudioLM, wave: Tensor) -> Tensor:
    """Codes, and back."""
    own = resample(wave, RATE, kit.rate)
    again = kit.codec.decode(kit.codec.encode(own[None, None]))[0, 0, : len(own)]
    return resample(again.float().cpu(), kit.rate, RATE)


def pieces(wave: Tensor, gap: float = 0.09, least: float = 0.12) -> list[Tensor]:
    """What lies between pauses: 10 ms of more than −35 dB of the loudest, gaps of less than `gap`
    seconds closed, pieces of less than `least` left out."""
    hop = RATE // 100
    energy = wave[: len(wave) // hop * hop].view(-1, hop).square().mean(-1)
    loud = energy > energy.max() * 10**-3.5
    found: list[list[int]] = []
    for i in loud.nonzero()[:, 0].tolist():
        if found and i - found[-1][1] <= gap * 100:
            found[-1][1] = i + 1
        else:
            found.append([i, i + 1])
    margin = 2
    return [
        wave[max(0, a - margin) * hop : (b + margin) * hop]
        for a, b in found
        # the last one may be a digit that is cut off, but one without a pause for so long is none
        if (b - a) >= least * 100 and (b < len(energy) or b - a > 80)
    ]


def judged(
    name: str,
    sounds: list[Tensor],
    owners: list[int],
    judges: tuple[Judge, Judge],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """The share of sounds with the right voice, and of pieces that are some digit."""
    device = next(judges[0].network.parameters()).device
    cut = [pieces(wave) for wave in sounds]
    every = [piece for each in cut for piece in each]
    row: dict[str, Any] = {"name": name, "sounds": len(sounds), "pieces": len(every)}
    if not every:  # silence: nobody's voice, and no digit
        return row | {"voice": 0.0, "digit": 0.0, "sure": 0.0, "heard": 0.0}
    whose, which = (scores(judge.network, every, device) for judge in judges)
    ends = np.cumsum([len(each) for each in cut])
    right, kept = 0, 0
    for own, end, owner in zip(cut, ends.tolist(), owners, strict=True):
        kept += bool(own)
        right += bool(own) and int(whose[end - len(own) : end].mean(0).argmax()) == owner
    best = which.argmax(-1)
    if max(owners) >= 0:
        row["voice"] = right / len(sounds)  # one that says nothing has nobody's voice
    row["digit"] = float((best != NONE).float().mean())
    row["sure"] = float(((best != NONE) & (which.max(-1).values.exp() > 0.9)).float().mean())
    row["heard"] = kept / len(sounds)
    row["counts"] = best.bincount(minlength=NONE + 1).tolist()
    if args.whisper:
        row["words"] = _words(sounds, args)
    return row


def _words(sounds: list[Tensor], args: argparse.Namespace) -> float:
    """The share of words that a Whisper hears which are digits."""
    from allformer.tasks.speech_pipeline import open_speech
    from allformer.tasks.transcribe import transcribe

    listener = open_speech(args.whisper, device=args.device)
    found: list[str] = []
    for wave in sounds:
        text = transcribe(resample(wave, RATE, 16_000), listener, language="en").text.lower()
        found += re.findall(r"[a-z]+|\d", text)
    return float(np.mean([w.isdigit() or w in WORDS for w in found])) if found else 0.0


def _line(row: dict[str, Any]) -> str:
    voice = f"{100 * row['voice']:5.1f} % their voice" if "voice" in row else " " * 19
    words = (
        f"; {100 * row['words']:.1f} % of a Whisper's words are digits" if "words" in row else ""
    )
    return (
        f"{row['name']:<27} {voice}  {100 * row.get('digit', 0):5.1f} % of {row['pieces']} pieces "
        f"some digit, {100 * row.get('sure', 0):.1f} % surely{words}"
    )


if __name__ == "__main__":
    main()
