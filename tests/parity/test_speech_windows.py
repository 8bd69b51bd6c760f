"""Rules, searches and the loop over windows against openai-whisper's, without any model.

Windows say what a script has at random: pairs of timestamps, lone ones, none, silence, loops of
words, texts drawn at a high temperature; words get times that are made up.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from allformer.sound.spectrogram import Spectrogram
from allformer.speech import windows
from allformer.speech.formats import written
from allformer.speech.options import DecodingOptions, TranscribeOptions
from allformer.speech.result import Decoded, Segment, Transcript, Word
from allformer.speech.rules import Rules, Trail
from allformer.speech.search import Beams, best_text
from allformer.speech.vocabulary import Vocabulary
from allformer.text.tiktoken import openai_whisper_tokenizer
from tests import hearing

SIZE = hearing.MANY


@pytest.fixture(scope="module")
def whisper() -> Any:
    return hearing.openai()


@pytest.fixture(scope="module")
def vocabulary(whisper: Any) -> Vocabulary:
    return Vocabulary(openai_whisper_tokenizer(SIZE), SIZE)


@pytest.fixture(scope="module")
def tokenizer(whisper: Any) -> Any:
    return whisper.tokenizer.get_tokenizer(True, num_languages=99, language="en", task="transcribe")


def test_the_vocabulary_has_the_same_ids(vocabulary: Vocabulary, tokenizer: Any) -> None:
    assert vocabulary.start("en", "transcribe") == tokenizer.sot_sequence
    assert vocabulary.start("en", "transcribe", timed=False) == (
        tokenizer.sot_sequence_including_notimestamps
    )
    assert vocabulary.not_speech == tokenizer.non_speech_tokens
    assert set(vocabulary.languages.values()) == set(tokenizer.all_language_tokens)
    assert (vocabulary.end, vocabulary.first_time) == (tokenizer.eot, tokenizer.timestamp_begin)
    assert vocabulary.silence == tokenizer.no_speech
    text = "Ein Hund, 两只猫 — \u266a (laut)!"
    assert vocabulary.encode(text) == tokenizer.encode(" " + text)
    assert vocabulary.decode(tokenizer.encode(text)[:-3]) == tokenizer.decode(
        tokenizer.encode(text)[:-3]
    )


# ---------------------------------------------------------------- rules


def theirs(whisper: Any, tokenizer: Any, options: DecodingOptions) -> list[Any]:
    """openai-whisper's filters, for texts that begin after no token at all."""
    d = whisper.decoding
    filters = [d.SuppressBlank(tokenizer, 0)] if options.suppress_blank else []
    task = SimpleNamespace(
        options=SimpleNamespace(suppress_tokens=list(options.suppress_tokens or ())),
        tokenizer=tokenizer,
    )
    if options.suppress_tokens:
        filters.append(d.SuppressTokens(d.DecodingTask._get_suppress_tokens(task)))
    if not options.without_timestamps:
        first = options.max_initial_timestamp
        index = None if first is None else round(first / 0.02)
        filters.append(d.ApplyTimestampRules(tokenizer, 0, index))
    return filters


OPTIONS = {
    "usual": DecodingOptions(),
    "late": DecodingOptions(max_initial_timestamp=7.5, suppress_blank=False),
    "no times": DecodingOptions(without_timestamps=True, suppress_tokens=(-1, 17, 99)),
    "all": DecodingOptions(suppress_tokens=None, max_initial_timestamp=None),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_tokens_are_forbidden_on_random_scores(
    name: str, whisper: Any, tokenizer: Any, vocabulary: Vocabulary
) -> None:
    options, rows = OPTIONS[name], 6
    rules = Rules.make(vocabulary, options, "cpu")
    filters = theirs(whisper, tokenizer, options)
    trail = Trail.start(rows, vocabulary, "cpu")
    make = torch.Generator().manual_seed(3)
    said = torch.empty(rows, 0, dtype=torch.long)
    for step in range(9):
        logits = torch.randn(rows, SIZE, generator=make) * 3
        # Now times are likely, now words, now the end.
        logits[:, vocabulary.first_time :] += torch.randn(rows, 1, generator=make) * 4
        logits[:, vocabulary.end] += step
        wanted, mine = logits.clone(), rules(logits.clone(), trail)
        for each in filters:
            each.apply(wanted, said)
        assert torch.equal(mine, wanted), step
        tokens = mine.argmax(-1)
        trail.add(tokens)
        said = torch.cat([said, tokens[:, None]], 1)
        rows_moved = torch.randperm(rows, generator=make)
        trail.select(rows_moved)
        said = said[rows_moved]
    assert options.without_timestamps or (said >= vocabulary.first_time).any()


# ---------------------------------------------------------------- beams


@pytest.mark.parametrize(
    ("beams", "patience", "penalty"), [(3, None, None), (4, 2.0, 0.7), (5, 0.5, 0.0), (1, 3.0, 1.0)]
)
def test_beams_are_the_same_on_random_scores(
    beams: int, patience: float | None, penalty: float | None, whisper: Any
) -> None:
    audios, vocab, end, longest = 3, 17, 5, 12
    options = DecodingOptions(beam_size=beams, patience=patience, length_penalty=penalty)
    moved: list[list[int]] = []
    inference = SimpleNamespace(rearrange_kv_cache=moved.append)
    for seed in range(6):
        make = torch.Generator().manual_seed(seed)
        other = whisper.decoding.BeamSearchDecoder(beams, end, inference, patience)
        search = Beams(options, audios, longest, end, torch.device("cpu"))
        tokens = torch.full((audios * beams, 1), 2)
        sums, done = torch.zeros(audios * beams), False
        for step in range(longest):
            # Like beams of one window, the scores of a text depend on the text alone.
            table = torch.randn(audios, vocab, vocab, generator=make) * 2
            logits = torch.stack([table[i // beams, row[-1]] for i, row in enumerate(tokens)])
            if step == 0:
                logits[:, end] = float("-inf")  # of an empty text openai-whisper cannot be asked
            tokens, done = other.update(tokens, logits.clone(), sums)
            mine, rows = search.take(logits)
            assert mine.tolist() == tokens[:, -1].tolist(), (seed, step)
            assert step == 0 or rows.tolist() == moved[-1]  # at first all beams are alike
            assert search.done() == done
            if done:
                break
        wanted, scores = other.finalize(tokens.view(audios, beams, -1), sums.view(audios, beams))
        ranker = whisper.decoding.MaximumLikelihoodRanker(penalty)
        cut = [[x[1:-1].tolist() for x in each] for each in wanted]
        for each, found, best, want in zip(
            cut, search.texts(), ranker.rank(cut, scores), scores, strict=True
        ):
            assert [text.tokens for text in found] == each
            assert [text.logprob for text in found] == pytest.approx(want, abs=1e-4)
            assert best_text(found, penalty).tokens == each[best]


# ---------------------------------------------------------------- windows


class Script:
    """What each window says, one after the other, as both decoders give it."""

    def __init__(self, seed: int, vocabulary: Vocabulary, word: int = 1000) -> None:
        self.random, self.vocabulary, self.word = np.random.default_rng(seed), vocabulary, word
        self.told: list[list[int]] = []

    def next(self) -> dict[str, Any]:
        heat = float(self.random.choice([0.0, 0.2, 0.8]))
        tokens = self._tokens()
        text = self.vocabulary.decode(tokens).strip()
        logprob, quiet = float(-self.random.uniform(0, 1.6)), float(self.random.uniform(0, 1))
        return {
            "tokens": tokens, "text": text, "temperature": heat, "avg_logprob": logprob,
            "no_speech_prob": quiet, "compression_ratio": 1.5,
        }  # fmt: skip

    def _tokens(self) -> list[int]:
        first, kind = self.vocabulary.first_time, int(self.random.integers(8))
        if kind == 0:  # no times at all
            return self._words()
        if kind == 1:  # one time alone, at its start
            return [first, *self._words()]
        times = sorted(self.random.integers(0, 1500, 4).tolist())
        out = [first + times[0], *self._words(), first + times[1]]
        if kind > 3:
            out += [first + times[1], *self._words(), first + times[2]]
        if kind > 4:
            out += [first + times[2], *self._words()]
        return out + [first + times[3]] * (kind == 7)

    def _words(self) -> list[int]:
        if self.random.integers(7) == 0:
            return [220]  # a lone space: the segment says nothing
        return self.random.integers(1000, 20_000, self.random.integers(1, 5)).tolist()


def made_up(random: np.random.Generator, start: float, end: float) -> list[dict[str, Any]]:
    """Words with times within a segment: usual ones, and odd ones."""
    count = int(random.integers(0, 4))
    edges = np.sort(random.uniform(start, max(end, start + 0.1), 2 * count)).tolist()
    return [
        {"word": f" w{i}", "start": edges[2 * i], "end": edges[2 * i + 1],
         "probability": float(random.choice([0.05, 0.9]))}
        for i in range(count)
    ]  # fmt: skip


class Fake:
    """As much of a model as openai-whisper's loop asks for."""

    device = torch.device("cpu")
    is_multilingual, num_languages = True, 99
    dims = SimpleNamespace(n_mels=80, n_audio_ctx=1500, n_text_ctx=448)

    def __init__(self, script: Script, result: Any) -> None:
        self.script, self.result = script, result

    def decode(self, mel: Tensor, options: Any) -> Any:
        self.script.told.append(list(options.prompt))
        said = self.script.next()
        return self.result(audio_features=mel, language="en", **said)


CASES: dict[str, dict[str, Any]] = {
    "usual": {},
    "alone": {"condition_on_previous_text": False, "no_speech_threshold": None},
    "told": {"initial_prompt": "Norland Park.", "carry_initial_prompt": True},
    "clips": {"clip_timestamps": (40.0, 71.5, 3.0, 9.0, 80.0), "logprob_threshold": None},
    "words": {"words": True},
    "odd words": {"words": True, "hallucination_silence_threshold": 2.0},
    "odd words, little silence": {"words": True, "hallucination_silence_threshold": 0.2},
}


@pytest.mark.parametrize("case", CASES)
def test_windows_move_and_segments_are_cut_alike(
    case: str, whisper: Any, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    wave = hearing.noise(95.0)
    sound = Spectrogram([wave])
    mel = sound[0 : len(sound)]
    loop = sys.modules["whisper.transcribe"]
    monkeypatch.setattr(loop, "log_mel_spectrogram", lambda *given, **options: mel)
    for seed in range(12):
        options = dict(CASES[case])
        worded = options.pop("words", False)
        wanted, told = _wanted(whisper, seed, vocabulary, options, worded, monkeypatch)
        script = Script(seed, vocabulary)
        ours, ours_told = _ours(script, sound, options, worded, seed, monkeypatch)
        assert ours_told == told, seed
        assert ours["text"] == wanted["text"]
        assert ours["segments"] == wanted["segments"], seed


def _wanted(
    whisper: Any, seed: int, vocabulary: Vocabulary, options: dict[str, Any], worded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[dict[str, Any], list[list[int]]]:  # fmt: skip
    random = np.random.default_rng(seed + 100)

    def add(*, segments: list[dict[str, Any]], **rest: Any) -> None:
        for segment in segments:
            segment["words"] = made_up(random, segment["start"], segment["end"])

    loop = sys.modules["whisper.transcribe"]
    monkeypatch.setattr(loop, "add_word_timestamps", add)
    script = Script(seed, vocabulary)
    told = {**options, "clip_timestamps": list(options.get("clip_timestamps", (0.0,)))}
    found = loop.transcribe(  # type: ignore[attr-defined]
        Fake(script, whisper.DecodingResult), "unread", fp16=False, language="en",
        temperature=0.0, word_timestamps=worded, **told,
    )  # fmt: skip
    return found, script.told


def _ours(
    script: Script, sound: Spectrogram, options: dict[str, Any], worded: bool, seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[dict[str, Any], list[list[int]]]:  # fmt: skip
    random = np.random.default_rng(seed + 100)

    def add(segments: list[Segment], window: Any, spoken: float) -> list[Segment]:
        made = [made_up(random, x.start, x.end) for x in segments]
        return [
            Segment(**{**vars(x), "words": tuple(Word(**word) for word in words)})
            for x, words in zip(segments, made, strict=True)
        ]

    def decoded(listener: Any, memory: Any, options: Any, prompt: Any, generator: Any) -> Decoded:
        script.told.append(list(prompt))
        said = script.next()
        return Decoded(**{**said, "tokens": tuple(said["tokens"])}, language="en")

    monkeypatch.setattr(windows, "decode_with_fallback", decoded)
    listener: Any = SimpleNamespace(
        vocabulary=script.vocabulary, places=448, device=torch.device("cpu"), encode=lambda mel: mel
    )
    asked = TranscribeOptions(language="en", **options)
    transcriber = windows.Transcriber(listener, sound, asked, add if worded else None)
    for _ in transcriber:
        pass
    return transcriber.transcript.to_dict(), script.told


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("worded", [False, True], ids=["segments", "words"])
@pytest.mark.parametrize("format", ["txt", "srt", "vtt", "tsv"])
def test_files_are_the_same_byte_for_byte(
    format: str, worded: bool, whisper: Any, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    segments = []
    for number in range(6):
        start, end = number * 800.123456, number * 800.123456 + 3.0005
        words = tuple(Word(**{**word, "end": end}) for word in made_up(random, start, end))
        text = f" so\tis --> it, {number}." if number % 3 else ""
        own = words if worded else None
        segments.append(Segment(number, 0, start, end, text, (), 0.0, 0.0, 0.0, 0.0, own))
    talk = Transcript("", tuple(segments), "en")
    writer = whisper.utils.get_writer(format, str(tmp_path))
    writer(talk.to_dict(), "talk.wav")
    assert written(talk, format) == (tmp_path / f"talk.{format}").read_text(encoding="utf-8")
