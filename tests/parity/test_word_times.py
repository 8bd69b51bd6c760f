"""Word times against openai-whisper's on the same weights; batches and streams against windows."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
import torch

from allformer.core.trace import trace
from allformer.speech.align import WordTimer
from allformer.speech.alignment_heads import PUBLISHED, alignment_heads, pairs
from allformer.tasks.speech_pipeline import SpeechPipeline
from allformer.tasks.transcribe import transcribe
from allformer.tasks.transcribe_live import transcribe_live
from tests import hearing

NEAR = 2e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("words")


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, SpeechPipeline]:
    whisper = hearing.openai()
    model, pipeline = hearing.both(hearing.tiny_en())
    model.set_alignment_heads(whisper._ALIGNMENT_HEADS["tiny.en"])
    return model, pipeline


def same_words(ours: Any, wanted: dict[str, Any]) -> None:
    """Segments and their words, times to the last digit."""
    segments = ours.to_dict()["segments"]
    assert len(segments) == len(wanted["segments"])
    for mine, other in zip(segments, wanted["segments"], strict=True):
        for name in ("seek", "start", "end", "text", "tokens"):
            assert mine[name] == other[name], name
        told = [(word["word"], word["start"], word["end"]) for word in mine["words"]]
        assert told == [(word["word"], word["start"], word["end"]) for word in other["words"]]
        for word, their in zip(mine["words"], other["words"], strict=True):
            assert word["probability"] == pytest.approx(their["probability"], abs=NEAR)


def compare(model: Any, pipeline: SpeechPipeline, wave: torch.Tensor, **options: Any) -> Any:
    wanted = hearing.openai().transcribe(
        model, wave.numpy(), fp16=False, word_timestamps=True, **options
    )
    ours = transcribe(wave, pipeline, words=True, **options)
    assert any(segment.words for segment in ours.segments)
    same_words(ours, wanted)
    return ours


# Random weights look anywhere, which is what rules about long and odd words are for.
@pytest.mark.parametrize(("language", "silence"), [("en", None), ("zh", 1.0)])
def test_words_of_random_texts_have_openai_whispers_times(
    language: str, silence: float | None, folder: Path
) -> None:
    vocab = hearing.ENGLISH if language == "en" else hearing.MANY
    model, pipeline = hearing.both(hearing.small(folder, vocab, seed=3))
    compare(
        model, pipeline, hearing.noise(8.0, seed=6), language=language, temperature=0.0,
        sample_len=16, logprob_threshold=None, compression_ratio_threshold=None,
        no_speech_threshold=None, hallucination_silence_threshold=silence,
    )  # fmt: skip


def test_several_windows_are_timed_as_each_alone(folder: Path) -> None:
    _, pipeline = hearing.both(hearing.small(folder, seed=3))
    timer = WordTimer(pipeline.listener)
    mel = torch.randn(3, 80, 3000, generator=torch.Generator().manual_seed(0))
    memory = pipeline.listener.encode(mel)
    encode = pipeline.listener.vocabulary.encode
    texts = [encode("He was not"), [], encode("one, two, three")]
    frames = [1400, 900, 3000]
    together = timer.align(texts, memory, frames)
    assert together[1] == []
    for i in (0, 2):
        [alone] = timer.align([texts[i]], memory[i : i + 1], [frames[i]])
        assert [(x.word, x.start, x.end) for x in alone] == [
            (x.word, x.start, x.end) for x in together[i]
        ]
        assert max(x.end for x in alone) <= frames[i] / 100


def test_listening_changes_no_number(folder: Path) -> None:
    _, pipeline = hearing.both(hearing.small(folder, seed=3))
    timer, model = WordTimer(pipeline.listener), pipeline.model
    mel = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    rows = [[50257, 50362, 1544, 373, 407, 50256]]
    with torch.inference_mode():
        hidden, scores = timer._read(rows, pipeline.listener.encode(mel))
    seen = trace(model, input_features=mel, decoder_input_ids=torch.tensor(rows))
    assert torch.equal(hidden, seen.output.last_hidden_state)
    assert torch.equal(scores[:, 0], seen["decoder.0.cross.scores"][:, 0])


def test_published_heads_are_openais() -> None:
    whisper = hearing.openai()
    shapes = {"tiny": (4, 6), "base": (6, 8), "small": (12, 12), "medium": (24, 16)}
    for name, by_layer in PUBLISHED.items():
        layers, heads = (4, 20) if "turbo" in name else shapes.get(name.split(".")[0], (32, 20))
        sizes = {**hearing.SMALL, "n_text_layer": layers, "n_text_head": heads}
        sizes |= {"n_text_state": heads, "n_vocab": 3}
        model = whisper.model.Whisper(whisper.model.ModelDimensions(**sizes))
        model.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
        wanted = [tuple(pair) for pair in model.alignment_heads.indices().T.tolist()]
        assert list(pairs(by_layer)) == wanted


# ---------------------------------------------------------------- real speech


def test_words_of_a_read_sentence_have_openai_whispers_times(
    tiny: tuple[Any, SpeechPipeline],
) -> None:
    model, pipeline = tiny
    assert alignment_heads(pipeline.model) == pairs(PUBLISHED["tiny.en"])
    ours = compare(model, pipeline, hearing.glued([hearing.sentences()[1]], [0.0]))
    words = [word for segment in ours.segments for word in segment.said]
    assert [word.word for word in words[:4]] == [" He", " was", " not", " an"]
    assert 2.0 < words[-1].start < words[-1].end < 3.0


@pytest.mark.slow
@pytest.mark.parametrize("gap", [0.5, 4.0])
def test_a_minute_of_read_speech_has_openai_whispers_words(
    gap: float, tiny: tuple[Any, SpeechPipeline]
) -> None:
    model, pipeline = tiny
    files = hearing.sentences()
    compare(model, pipeline, hearing.glued([*files, *files[:2]], [gap] * 7))


@pytest.mark.slow
def test_batches_and_streams_write_what_windows_do(tiny: tuple[Any, SpeechPipeline]) -> None:
    _, pipeline = tiny
    files = hearing.sentences()
    wave = hearing.glued(files, [0.5] * len(files))
    ours = bare(transcribe(wave, pipeline).text)
    assert 69 <= len(ours) <= 72
    assert differing(bare(transcribe(wave, pipeline, batch=4, words=True).text), ours) <= 3
    updates = list(transcribe_live(torch.split(wave, 5000), pipeline))
    assert differing(bare("".join(update.text for update in updates)), ours) <= 3
    assert updates[3].text  # words are there within seconds
    assert not updates[-1].guess


def bare(text: str) -> list[str]:
    letters = "".join(c if c.isalpha() else " " for c in text.lower())
    return letters.split()


def differing(some: list[str], others: list[str]) -> int:
    """How many words are not the same."""
    steps = SequenceMatcher(None, some, others, autojunk=False).get_opcodes()
    return sum(max(b - a, d - c) for kind, a, b, c, d in steps if kind != "equal")
