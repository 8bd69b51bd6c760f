"""The demo of models that hear and speak: on synthesised digits, without a download, a recogniser
is trained, and an AudioLM that goes on counting; one page lets one hear what they learned.

result = demo_audio("demo-audio")      # trains, then writes demo-audio/report.html

Each trained model is a recipe like any other and leaves a run like any other. The codec is not
trained but fitted (`codecs.sound.Spectral`): one of convolutions takes minutes on a GPU.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.audiolm.generate import AudioLM, open_audiolm
from allformer.audiolm.recordings import find_recordings
from allformer.audiolm.spectra import fit_codec
from allformer.audiolm.units import fit_recordings
from allformer.checkpoint.load import load
from allformer.checkpoint.run import load_run
from allformer.checkpoint.save import OWN, save
from allformer.codecs.sound import Spectral, SpectralModel
from allformer.data.voices import RATE, SPEAKERS, VOICES, WORDS, Utterance, Voices, write_voices
from allformer.demo_room import Demo, make_room
from allformer.explain.several import Part, write_several
from allformer.explain.sound.listens import listening
from allformer.explain.words import Pair, spans, word
from allformer.generate.generate import generate
from allformer.metrics.pitch import pitch
from allformer.metrics.word_error import word_error
from allformer.run_report import last_figures, report_run
from allformer.sound import resample
from allformer.sound.clip import clip
from allformer.sound.mel import HOP, log_mel
from allformer.sound.mel import RATE as MEL_RATE
from allformer.train.heard import Heard
from allformer.train.loop import train
from allformer.train.metrics import read_metrics
from allformer.train.outputs import check_directory, told
from allformer.train.predictions import Predictions
from allformer.train.recipe import make_recipe
from allformer.train.spoken.wording import Wording
from allformer.version import __version__

MARK = "audio-demo.json"  # what a directory of ours is known by
WINDOW = 3.0  # seconds that the recogniser hears
PROMPT, SAID = 2, 1.1  # digits that are given, and seconds that are made after them
ROW = 2.4  # seconds of what the speaker learns from at a time
FIT = 200  # recordings that units and codec are fitted to
_FAST = {"precision": "fp32", "save_every": 100_000, "average": 1}
_LOG = {"every": 20, "tensorboard": False}
_VOICE, _HELD = "-([A-Za-z]+)$", "^val-"  # val-00007-Ada.wav


@dataclass(frozen=True)
class Sizes:
    """How much of everything: the usual ones take four minutes on two cores."""

    said: int = 1500  # recordings of the recogniser
    counted: int = 700  # and of those who go on counting
    held: int = 100
    listens: int = 700  # steps of the recogniser
    means: int = 600  # steps of the semantic stage
    speaks: int = 400  # and of the coarse one
    units: int = 48
    codes: int = 256
    books: int = 1
    prompts: int = 24


def demo_audio(
    out: str | Path = "demo-audio",
    *,
    overrides: tuple[str, ...] = (),
    device: str = "cpu",
    say: Callable[[str], None] = print,
    sizes: Sizes | None = None,
) -> Demo:
    """Train a recogniser and a speaker, then write one page; `overrides` are for each recipe."""
    out, sizes = Path(out), sizes or Sizes()
    check_directory(out)
    with told(out, "give another --out"):
        make_room(out, MARK)
        begin = time.monotonic()
        work = _Work(out, sizes, overrides, device, say)
        parts = [_recogniser(work), _codec(work), _speaker(work)]
        seconds = time.monotonic() - begin
        page = write_several(
            out / "report.html",
            title=(
                "Transformers learned to hear and to speak, on synthesised digits",
                "Transformer 学会了听和说（合成的数字语音）",
            ),
            lead=(
                "No recording was downloaded: a few lines of code speak the ten English digits in "
                "six voices. All figures and examples are of recordings that were held out.",
                "没有下载任何录音：几行代码用六种嗓音念出十个英文数字。"
                "所有指标和示例都来自训练中没有用过的录音。",
            ),
            parts=parts,
            facts=_facts(work, seconds),
        )
    scores = {part.name: dict(part.scores) for part in parts}
    return Demo(out, page, scores, time.monotonic() - begin)


@dataclass(frozen=True)
class _Work:
    """What all stages need."""

    out: Path
    sizes: Sizes
    overrides: tuple[str, ...]
    device: str
    say: Callable[[str], None]

    def trained(self, name: str, raw: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A recipe trained into `out`/name, its own page written; the model, and how long."""
        begin = time.monotonic()
        run = self.out / name
        raw |= {"name": f"audio demo: {name}", "log": _LOG}
        result = train(make_recipe(raw, self.overrides), run, device=self.device)
        seconds = time.monotonic() - begin
        report_run(run, device=self.device, say=lambda line: None)
        return result.run.model, {"seconds": seconds, "steps": result.steps}

    def title(self, number: int, title: Pair) -> None:
        self.say(f"\n{number}. {title[0]}　{title[1]}")


# --- the recogniser -------------------------------------------------------------------------------


def _recogniser(work: _Work) -> Part:
    title = ("It writes down what it hears", "它能听写")
    work.title(1, title)
    sizes, out = work.sizes, work.out
    data = write_voices(out / "voices", train=sizes.said, val=sizes.held)
    recipe = {
        "objective": "transcription",
        "data": {"path": str(data), "seconds": WINDOW, "max_length": 16},
        "tokenizer": {"kind": "bpe", "vocab": 100},
        "model": {"dim": 64, "heads": 4, "layers": 2, "feed": 128, "dropout": 0.0},
        **_taught(2e-3, sizes.listens, batch_rows=16),
    }
    model, facts = work.trained("recogniser", recipe)
    run = out / "recogniser"
    history, predictions = read_metrics(run), Predictions.load(run) or Predictions()
    return Part(
        "recogniser",
        ("Hear", "听写"),
        title,
        (
            "A small Whisper, trained from nothing: it hears one to four digits, spoken by one of "
            "six voices, and writes the words.",
            "一个从零训练的小 Whisper：听六种嗓音之一念出的一到四个数字，写出文字。",
        ),
        model,
        history,
        last_figures(history),
        predictions,
        facts,
        more="recogniser/report.html",
        inside=_inside(run, work.device, predictions),
        unit="tokens",
    )


def _inside(path: Path, device: str, predictions: Predictions) -> str:
    """Where it listens."""
    run = load_run(path, device)
    shown = listening(run.model, run.text.with_specials(), predictions.sounds)
    return f"<h3>{spans(word('attention.title'))}</h3>{shown}"


def _taught(rate: float, steps: int, **train: Any) -> dict[str, Any]:
    """What the recipes have in common."""
    return {
        "optim": {"name": "adamw", "rate": rate, "weight_decay": 0.02, "betas": [0.9, 0.98]},
        "schedule": {"kind": "cosine", "warmup": max(1, min(50, steps // 4))},
        "train": {**_FAST, "steps": steps, "validate_every": max(1, steps // 3), **train},
    }


class Listener:
    """The trained recogniser, for any sound: `Listener(run)(waves)`."""

    def __init__(self, path: Path, device: str) -> None:
        run = load_run(path, device)
        assert run.tokenizer is not None
        self.model: Any = run.model.eval()
        self.tokenizer = run.tokenizer
        self.wording = Wording.of(run.tokenizer, "en", "transcribe")

    @torch.no_grad()
    def __call__(self, waves: Sequence[Tensor], rate: int = RATE) -> list[str]:
        """What is said in each, as far as the window reaches."""
        samples = round(WINDOW * MEL_RATE) // HOP * HOP
        own = [resample(wave.float().cpu(), rate, MEL_RATE)[:samples] for wave in waves]
        batch = torch.stack([F.pad(wave, (0, samples - len(wave))) for wave in own])
        start = torch.tensor([self.wording.before] * len(waves), device=self.model.device)
        ids = generate(
            self.model,
            input_features=log_mel(batch, 80).to(self.model.device),
            decoder_input_ids=start,
            eos_token_id=self.wording.end,
            pad_token_id=self.wording.end,
            num_beams=1,
            max_new_tokens=12,
        )
        said = ids[:, start.shape[1] :].tolist()
        return [self.tokenizer.decode(row, skip_special_tokens=True).strip() for row in said]


# --- the codec ------------------------------------------------------------------------------------


def _codec(work: _Work) -> Part:
    title = ("A codec writes sound as tokens", "一个编解码器把声音写成词元")
    work.title(2, title)
    begin, sizes = time.monotonic(), work.sizes
    codec = _fitted(work)
    tree = codec.config
    scores, heard = _through(codec, Listener(work.out / "recogniser", work.device), sizes.held)
    return Part(
        "codec",
        ("Codec", "编解码"),
        title,
        (
            "Before a Transformer can speak, sound must be a sequence: fifty spectra a second, "
            f"each one out of {sizes.codes} codes. Sound is made of them again without phases, "
            "which is why it rings a little. It is judged by the recogniser: how many words are "
            "wrong in what is left of held-out recordings, and how many in the recordings "
            "themselves.",
            f"Transformer 要说话，声音先得变成序列：每秒五十个频谱，每个用 {sizes.codes} 个码字之一"
            "表示。还原时没有相位信息，所以略带金属声。"
            "由识别器来评判：还原后的录音里错几个词，原录音里错几个词。",
        ),
        codec,
        [],
        scores,
        Predictions(sounds=heard),
        {"seconds": time.monotonic() - begin},
        unit="sounds",
        parameters=tree.bands * (1 + tree.levels * tree.codes),
    )


def _fitted(work: _Work) -> SpectralModel:
    """Codec and units, fitted to voices that count."""
    begin, sizes, out = time.monotonic(), work.sizes, work.out
    write_voices(
        out / "counting",
        train=sizes.counted,
        val=sizes.held,
        least=5,
        most=6,
        counting=True,
        seed=1,
    )
    found = [x for x in find_recordings(out / "counting", _VOICE) if x.name.startswith("train-")]
    tree = Spectral(rate=RATE, codes=sizes.codes, levels=sizes.books)
    codec = fit_codec(tree, [each.wave(RATE) for each in found[:FIT]])
    save(codec, out / "codec", family=OWN)  # type: ignore[arg-type]
    model = load(out / "recogniser", device=work.device)
    without_places(model)
    units, explained = fit_recordings(model, found[:FIT], clusters=sizes.units, layer=1)
    units.save(out / "units")
    work.say(
        f"codec: {tree.bandwidth:.2g} kbit/s; {sizes.units} units explain {explained:.0%} of the "
        f"recogniser's states; {time.monotonic() - begin:.0f} s"
    )
    return codec


@torch.no_grad()
def without_places(model: Any) -> None:
    """Forget the positions of an encoder of sound: units shall say what sounds, not when."""
    table = model.stack("encoder").source.position.weight
    table.zero_()


def _through(
    codec: SpectralModel, listener: Listener, count: int
) -> tuple[dict[str, float], tuple[Heard, ...]]:
    """Held-out recordings through the codec, with one codebook and with all of them."""
    said = Voices(count, seed=97)[:]
    waves = [torch.from_numpy(one.wave) for one in said]
    books = sorted({1, codec.books})
    each = codec.config.bandwidth / codec.books
    names = [f"{n * each:.2g} kbit/s" for n in books]
    again = [
        [
            codec.decode(codec.encode(wave[None, None], books=n), length=len(wave))[0, 0]
            for n in books
        ]
        for wave in waves
    ]
    wanted = [one.text for one in said]
    scores = {"kbit_per_second": codec.config.bandwidth}
    scores["wer_original"] = word_error(wanted, listener(waves))
    scores["wer_decoded"] = word_error(wanted, listener([versions[-1] for versions in again]))
    shown = tuple(
        Heard(
            clip(wave, RATE),
            one.text,
            name=one.speaker,
            versions=tuple(Heard(clip(x, RATE), name=n) for n, x in zip(names, xs, strict=True)),
        )
        for one, wave, xs in list(zip(said, waves, again, strict=True))[:4]
    )
    return scores, shown


# --- the speaker ----------------------------------------------------------------------------------


def _speaker(work: _Work) -> Part:
    title = ("It hears two digits and goes on counting", "它听两个数字，接着数下去")
    work.title(3, title)
    out, sizes = work.out, work.sizes
    _, first = work.trained("speech/semantic", _stage(work, "semantic", 96, sizes.means, 1024))
    coarse = _stage(work, "coarse", 96, sizes.speaks, 2048)
    model, second = work.trained("speech/coarse", coarse)
    listener = Listener(out / "recogniser", work.device)
    scores, heard = continued(open_audiolm(out / "speech", device=work.device), listener, sizes)
    facts = {name: first[name] + second[name] for name in ("seconds", "steps")}
    return Part(
        "speaker",
        ("Speak", "续说"),
        title,
        (
            "AudioLM in small: two Transformers hear two digits, the one after the other, and go "
            "on. The first says what comes next, as units of what the recogniser’s first layer "
            "hears; the second says how it sounds, as codes. What they say is heard by the "
            "recogniser, and the pitch tells which of the six voices it is.",
            "小型 AudioLM：听两个连续的数字，然后由两个 Transformer 接着说。第一个说出内容"
            "（识别器第一层所听到的单元），第二个说出声音（编解码器的码字）。"
            "说出的话由识别器来听，由音高判断是六种嗓音中的哪一种。",
        ),
        model,
        read_metrics(out / "speech" / "coarse"),
        scores,
        Predictions(sounds=heard),
        facts,
        more="speech/coarse/report.html",
        unit="tokens",
    )


def _stage(work: _Work, stage: str, dim: int, steps: int, tokens: int) -> dict[str, Any]:
    """The recipe of a stage."""
    block = {
        "is": "Block",
        "times": 3,
        "attention": {"is": "Attention", "heads": 4},
        "feed": {"is": "Feed", "width": 2 * dim, "act": "gelu_tanh"},
        "norm_at": "pre",
    }
    asked: dict[str, Any] = {"is": "sound-tokens", "stage": stage, "units": str(work.out / "units")}
    if stage == "coarse":
        asked |= {"codec": str(work.out / "codec"), "coarse": work.sizes.books}
    return {
        "objective": asked,
        "data": {
            "path": str(work.out / "counting"),
            "seconds": ROW,
            "voice": _VOICE,
            "validation": _HELD,
        },
        "model": {
            "is": "DecoderOnly",
            "decoder": {
                "is": "Stack",
                "dim": dim,
                "source": {"is": "Tokens", "vocab": 2},  # as many as the stage has
                "position": None,
                "relative": {"is": "Rotary"},
                "blocks": [block],
                "causal": True,
                "final_norm": {"is": "Norm"},
            },
        },
        **_taught(3e-3, steps, batch_tokens=tokens),
    }


def continued(
    speaker: AudioLM, listener: Listener, sizes: Sizes
) -> tuple[dict[str, float], tuple[Heard, ...]]:
    """How held-out beginnings go on: which of the digits that follow are right, and whose voice."""
    begun = _beginnings(sizes.prompts)
    prompts = [torch.from_numpy(one.wave) for one in begun]
    found = speaker.go_on(prompts, RATE, seconds=SAID, seed=0)
    texts = listener([wave for wave, _ in found], speaker.rate)
    shown, right, kept, digits = [], 0, 0, 0
    for one, (wave, begin), text in zip(begun, found, texts, strict=True):
        first = (WORDS.index(one.words[-1].text) + 1) % len(WORDS)
        words = text.split()
        wanted = [*one.text.split(), WORDS[first]]
        good = words[: len(wanted)] == wanted
        right, digits = right + good, digits + (len(words) > PROMPT)
        kept += nearest_voice(wave[begin:], speaker.rate) == one.speaker
        shown.append(
            Heard(
                clip(wave, speaker.rate),
                f"{' '.join(wanted)} …",
                text,
                good,
                name=one.speaker,
                prompt=begin / speaker.rate,
            )
        )
    share = 1 / len(begun)
    scores = {
        "says_digits": digits * share,
        "next_digit": right * share,
        "same_voice": kept * share,
    }
    return scores, tuple(shown)


def _beginnings(count: int) -> list[Utterance]:
    """Two digits each, every voice in turn."""
    found: dict[str, list[Utterance]] = {name: [] for name in SPEAKERS}
    most, number = -(-count // len(SPEAKERS)), 0
    some = Voices(100 * count, least=PROMPT, most=PROMPT, counting=True, seed=98)
    while min(map(len, found.values())) < most:
        one = some[number]
        found[one.speaker].append(one)
        number += 1
    turns = [found[name][i] for i in range(most) for name in SPEAKERS]
    return turns[:count]


def nearest_voice(wave: Tensor, rate: int) -> str:
    """Whose pitch is nearest; empty where nothing is voiced."""
    heard = pitch(wave, rate)
    if math.isnan(heard):
        return ""
    return min(SPEAKERS, key=lambda name: abs(math.log(VOICES[name].pitch / heard)))


def _facts(work: _Work, seconds: float) -> dict[str, Any]:
    out = work.out
    return {
        "data": {
            "en": "ten digits in six voices, by seed and number (allformer/data/voices.py)",
            "zh": "由种子和编号合成的十个数字、六种嗓音（allformer/data/voices.py）",
        },
        "seconds": seconds,
        "device": f"{work.device}, {torch.get_num_threads()} threads, {platform.machine()}",
        "command": f"allformer demo --audio --out {out}",
        "torch": torch.__version__,
        "allformer": __version__,
        "commands": {
            "continue": f"allformer generate {out / 'speech'} --audio "
            f"{out / 'counting' / 'wav'}/val-00000-*.wav --seconds 2 --out more.wav",
            "evaluate": f"allformer evaluate {out / 'recogniser'}",
            "again": f"allformer train {out / 'recogniser' / 'recipe.yaml'} --out runs/again",
        },
    }
