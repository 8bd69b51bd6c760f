"""Transcripts as files, options that cannot be, recordings that are none, and the command line.

No oracle is needed: a small Whisper of random weights, with a vocabulary made up for it.
"""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from typer.testing import CliRunner

import allformer as af
from allformer.cli.main import app
from allformer.errors import AllformerError, CheckpointError, ConfigError, DataError, TaskError
from allformer.families import FAMILIES
from allformer.speech.fallback import is_bad, is_silence
from allformer.speech.formats import clock, written
from allformer.speech.hallucinations import is_odd, last_end
from allformer.speech.options import DecodingOptions, TranscribeOptions
from allformer.speech.result import Decoded, Segment, Transcript, Word
from allformer.speech.windows import clips
from allformer.tasks.speech_pipeline import open_speech
from allformer.tasks.transcribe import spectrogram, transcribe
from allformer.text.whisper import special_tokens

SPECIAL = special_tokens(2)
SMALL = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "max_target_positions": 40,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a small Whisper that says letters, in transformers' files."""
    folder = tmp_path_factory.mktemp("whisper")
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(sorted(alphabet))}, [])
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    size, end = inner.get_vocab_size(), inner.token_to_id(SPECIAL[0])
    ids = dict.fromkeys(("pad", "bos", "eos"), end)
    tokens = {f"{name}_token_id": i for name, i in ids.items()}
    fields = {**SMALL, "vocab_size": size, "decoder_start_token_id": end + 1, **tokens}
    family = FAMILIES["whisper"]
    af.save(af.build(family.make(fields), seed=0), folder, family="whisper")
    inner.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": SPECIAL[0] for name in ("bos", "eos", "unk")}
    told = {"tokenizer_class": "WhisperTokenizer", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder


@pytest.fixture(scope="module")
def pipeline(model: Path) -> Any:
    return open_speech(model, device="cpu")


def save_wave(path: Path, samples: torch.Tensor, rate: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((samples.clamp(-1, 1) * 32767).to(torch.int16).numpy().tobytes())
    return path


def tone(seconds: float) -> torch.Tensor:
    at = torch.arange(int(seconds * 16_000)) / 16_000
    return 0.3 * torch.sin(2 * torch.pi * 440 * at) * (torch.sin(3 * at) > 0)


# ---------------------------------------------------------------- a whole recording


def test_what_only_knows_english_translates_nothing(pipeline):
    with pytest.raises(ConfigError, match="task='translate': this model knows English alone"):
        transcribe(tone(1.0), pipeline, task="translate")


def test_openais_names_of_models_have_an_owner():
    with pytest.raises(CheckpointError, match=r"try openai/whisper-tiny.en"):
        open_speech("tiny.en")


def test_a_file_its_bytes_and_its_samples_are_heard_alike(tmp_path: Path, pipeline: Any) -> None:
    file = save_wave(tmp_path / "a.wav", tone(34.0))
    options = {"temperature": 0.0, "sample_len": 6}
    first = transcribe(file, pipeline, **options)
    assert first.duration == 34.0
    assert first.segments[-1].end <= 64.0
    assert first.language == "en"
    assert transcribe(file.read_bytes(), pipeline, **options) == first
    both = transcribe([file, str(file)], pipeline, **options)
    assert both == [first, first]
    heard, done = [], []
    again = transcribe(
        file, pipeline, heard=heard.append, progress=lambda x, y: done.append((x, y)), **options
    )
    assert tuple(heard) == again.segments
    assert done[-1] == (34.0, 34.0)
    assert done == sorted(done)


def test_what_is_drawn_depends_on_the_seed_alone(pipeline: Any) -> None:
    options = {"temperature": 1.0, "best_of": 2, "sample_len": 12}
    one, two, other = (transcribe(tone(2.0), pipeline, seed=s, **options) for s in (1, 1, 2))
    assert one == two
    assert one.segments[0].tokens != other.segments[0].tokens


def check_shared_source() -> None:
    """Rows with one source ask side by side: the same as with a copy of its keys for each."""
    sizes = {**SMALL, "vocab_size": 200, "decoder_start_token_id": 1}
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    model = af.build(FAMILIES["whisper"].make({**sizes, **ids}), seed=0).eval()
    memory, each = torch.randn(2, 9, 16), torch.arange(2).repeat_interleave(3)
    caches = [model.new_cache(), model.new_cache()]
    ids, new, wide = (torch.randint(0, 200, shape) for shape in ((2, 3), (6, 1), (6, 4)))
    with torch.no_grad():
        for cache, copied in zip(caches, (False, True), strict=True):
            model.step(ids, cache, memory)
            cache.select(each, cross=copied)
        assert len(caches[0][0].cross[0]) == 2
        for tokens in (new, wide):  # one token of each row, and several
            shared, copied = (model.step(tokens, cache) for cache in caches)
            assert torch.allclose(shared, copied, atol=1e-6)
        keep = torch.arange(9) < torch.tensor([[9], [6]])  # padding in the sources
        padded = (keep, keep[each])
        shared, copied = (
            model.step(new, cache, None, mask) for cache, mask in zip(caches, padded, strict=True)
        )
        assert torch.allclose(shared, copied, atol=1e-6)


def test_beams_share_the_keys_of_their_window() -> None:
    check_shared_source()


# ---------------------------------------------------------------- recordings that are none


def test_silence_gives_an_answer(pipeline: Any) -> None:
    short = {"temperature": 0.0, "sample_len": 4, "logprob_threshold": None}
    found = transcribe(torch.zeros(16_000), pipeline, no_speech_threshold=None, **short)
    assert (found.text, found.segments, found.duration) == ("", (), 1.0)
    hum = 1e-3 * tone(1.0)
    assert transcribe(hum, pipeline, no_speech_threshold=None, **short).segments
    skipped = transcribe(hum, pipeline, no_speech_threshold=0.0, **short)
    assert (skipped.text, skipped.segments) == ("", ())


def test_less_than_a_frame_gives_an_answer(pipeline: Any) -> None:
    assert transcribe(torch.zeros(100), pipeline).segments == ()


BAD = {
    "empty": b"",
    "no sound": b"Sing, O goddess, the anger of Achilles",
    "a head alone": b"RIFF\x24\x00\x00\x00WAVEfmt ",
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_no_recording_is_named(name: str, tmp_path: Path, pipeline: Any) -> None:
    file = tmp_path / "talk.wav"
    file.write_bytes(BAD[name])
    with pytest.raises(DataError, match=r"talk\.wav"):
        transcribe(file, pipeline)


def test_a_wave_that_is_cut_off_is_heard_up_to_there(tmp_path: Path, pipeline: Any) -> None:
    file = save_wave(tmp_path / "talk.wav", tone(3.0))
    file.write_bytes(file.read_bytes()[:30_000])
    assert transcribe(file, pipeline, temperature=0.0, sample_len=4).duration == 0.93


@pytest.mark.parametrize(
    "samples", [torch.zeros(0), torch.zeros(2, 5), torch.full((800,), torch.nan), object(), 3.0]
)
def test_samples_that_are_none_are_refused(samples: Any, pipeline: Any) -> None:
    with pytest.raises(DataError, match="audio"):
        transcribe(samples, pipeline)


def test_an_hour_is_held_a_window_at_a_time(pipeline: Any, tmp_path: Path) -> None:
    """No more than the window that is asked for comes into memory."""
    sound = spectrogram(torch.zeros(120 * 16_000), pipeline.bins)
    window = sound[3000:6000]
    assert window.untyped_storage().nbytes() == 80 * 3000 * 4


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "sing"}, "task='sing'"),
        ({"beam_size": 0}, "beam_size=0"),
        ({"temperature": -1.0}, "temperature=-1"),
        ({"temperature": ()}, r"temperature=\(\)"),
        ({"patience": 2.0}, "patience=2.0 is for beams"),
        ({"beam_size": 2, "patience": 0.1}, "patience=0.1"),
        ({"length_penalty": 2.0}, "length_penalty=2.0"),
        ({"max_initial_timestamp": 31.0}, "max_initial_timestamp=31"),
        ({"clip_timestamps": (5.0, 2.0)}, "5,2"),
        ({"clip_timestamps": (-1.0,)}, "-1"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TranscribeOptions(**options)


def test_beams_are_for_temperature_0_and_draws_for_others() -> None:
    with pytest.raises(ConfigError, match="best_of=2 at temperature=0"):
        DecodingOptions(best_of=2)
    with pytest.raises(ConfigError, match=r"beam_size=2 at temperature=0\.5"):
        DecodingOptions(beam_size=2, temperature=0.5)
    asked = TranscribeOptions(beam_size=3, patience=2.0, best_of=4)
    assert asked.at(0.0, ()).beam_size == 3
    assert asked.at(0.0, ()).best_of is None
    assert asked.at(0.4, ()).best_of == 4
    assert asked.at(0.4, ()).patience is None


def test_a_language_and_tokens_are_those_of_the_model(pipeline: Any) -> None:
    with pytest.raises(ConfigError, match="English alone"):
        transcribe(tone(1.0), pipeline, language="zh")
    with pytest.raises(ConfigError, match="klingon"):
        transcribe(tone(1.0), pipeline, language="klingon")
    with pytest.raises(ConfigError, match="suppress_tokens has 9999999"):
        transcribe(tone(1.0), pipeline, suppress_tokens=(9_999_999,))


def test_a_model_that_does_not_hear_is_refused(tmp_path: Path) -> None:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50, "n_positions": 8}
    deaf = {**sizes, "bos_token_id": 0, "eos_token_id": 0}
    af.save(af.build(FAMILIES["gpt2"].make(deaf), seed=0), tmp_path, family="gpt2")
    with pytest.raises(TaskError, match="hears and writes"):
        open_speech(tmp_path, device="cpu")


def test_clips_lie_within_the_recording() -> None:
    assert clips((0.0,), 1000) == [(0, 1000)]
    assert clips((), 1000) == [(0, 1000)]
    assert clips((2.0, 5.0, 1.0), 1000) == [(200, 500), (100, 1000)]
    assert clips((8.0, 50.0, 20.0, 30.0), 1000) == [(800, 1000)]


# ---------------------------------------------------------------- what is tried again


def window(**said: Any) -> Decoded:
    usual = {"avg_logprob": -0.3, "no_speech_prob": 0.1, "compression_ratio": 1.5}
    rest = {"tokens": (), "text": "", "language": "en", "temperature": 0.0}
    return Decoded(**{**rest, **usual, **said})


@pytest.mark.parametrize(
    ("said", "bad", "silence"),
    [
        ({}, False, False),
        ({"compression_ratio": 2.5}, True, False),
        ({"avg_logprob": -1.1}, True, False),
        ({"avg_logprob": -1.1, "no_speech_prob": 0.7}, False, True),
        ({"avg_logprob": -0.9, "no_speech_prob": 0.7}, False, False),
        ({"compression_ratio": 2.5, "avg_logprob": -1.1, "no_speech_prob": 0.7}, False, True),
    ],
)
def test_a_bad_window_is_tried_again_and_silence_is_not(
    said: dict[str, float], bad: bool, silence: bool
) -> None:
    assert is_bad(window(**said), TranscribeOptions()) is bad
    assert is_silence(window(**said), TranscribeOptions()) is silence


def segment(start: float, end: float, text: str, *words: Word) -> Segment:
    told = words or None
    return Segment(0, 0, start, end, text, (1, 2), 0.0, -0.1, 1.0, 0.0, told)


def test_words_that_nobody_says_are_odd() -> None:
    usual = segment(0, 2, " a b", Word(" a", 0.0, 0.5, 0.9), Word(" b", 0.5, 1.0, 0.8))
    odd = segment(0, 2, " a b", Word(" a", 0.0, 0.01, 0.1), Word(" b", 0.5, 3.0, 0.1))
    assert (is_odd(usual), is_odd(odd), is_odd(segment(0, 1, " a")), is_odd(None)) == (
        False, True, False, False,
    )  # fmt: skip
    assert last_end([usual, segment(3, 4, " c")]) == 1.0
    assert last_end([segment(3, 4, " c")]) == 4
    assert last_end([]) is None


# ---------------------------------------------------------------- files

TALK = Transcript(
    " He was not -->\tso. 猫",
    (segment(0.0, 2.5, " He was not -->\tso."), segment(3599.9996, 3661.5, " 猫")),
    "en",
    3700.0,
)


def test_a_transcript_is_written_as_text_subtitles_table_and_json() -> None:
    assert written(TALK, "txt") == "He was not -->\tso.\n猫\n"
    assert written(TALK, "srt") == (
        "1\n00:00:00,000 --> 00:00:02,500\nHe was not ->\tso.\n\n"
        "2\n01:00:00,000 --> 01:01:01,500\n猫\n\n"
    )
    assert written(TALK, "vtt") == (
        "WEBVTT\n\n00:00.000 --> 00:02.500\nHe was not ->\tso.\n\n"
        "01:00:00.000 --> 01:01:01.500\n猫\n\n"
    )
    assert (
        written(TALK, "tsv")
        == "start\tend\ttext\n0\t2500\tHe was not --> so.\n3600000\t3661500\t猫\n"
    )
    told = json.loads(written(TALK, "json"))
    assert told["segments"][1]["text"] == " 猫"
    assert "words" not in told["segments"][0]
    with pytest.raises(ConfigError, match="format='doc'"):
        written(TALK, "doc")
    assert clock(61.0005) == "01:01.000"


def test_subtitles_follow_the_times_of_words() -> None:
    words = (Word(" He", 0.2, 0.5, 0.9), Word(" was.", 0.5, 1.25, 0.9))
    talk = Transcript(" He was.", (segment(0.0, 2.0, " He was.", *words),), "en")
    assert "00:00.200 --> 00:01.250\nHe was.\n" in written(talk, "vtt")
    assert json.loads(written(talk, "json"))["segments"][0]["words"][1]["word"] == " was."


# ---------------------------------------------------------------- the command line


def run(*args: Any) -> Any:
    return CliRunner().invoke(app, ["transcribe", *map(str, args)], catch_exceptions=True)


def test_the_command_prints_or_writes_a_file_each(tmp_path: Path, model: Path) -> None:
    one = save_wave(tmp_path / "one.wav", tone(2.0))
    two = save_wave(tmp_path / "two.wav", tone(1.0), rate=8000)
    usual = ["--model", model, "--temperature", "0", "--device", "cpu"]
    printed = run(one, *usual, "--format", "json")
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout)["duration"] == 2.0
    done = run(one, two, *usual, "--format", "srt", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one.srt", "two.srt"]
    both = run(one, two, *usual)
    assert both.stdout.count("==> ") == 2


def test_one_bad_file_does_not_stop_the_others(tmp_path: Path, model: Path) -> None:
    good = save_wave(tmp_path / "good.wav", tone(1.0))
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no sound")
    usual = ["--model", model, "--temperature", "0", "--device", "cpu", "--out", tmp_path / "out"]
    done = run(bad, good, *usual)
    assert (tmp_path / "out" / "good.txt").is_file()
    assert isinstance(done.exception, AllformerError)
    assert "1 of 2 files" in str(done.exception)


def test_a_folder_is_all_its_recordings(tmp_path: Path, model: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    save_wave(tmp_path / "in" / "声音.wav", tone(1.0))
    save_wave(tmp_path / "in" / "deep" / "two.wav", tone(1.0))
    (tmp_path / "in" / "notes.md").write_text("no sound")
    out = tmp_path / "out"
    usual = ["--model", model, "--temperature", "0", "--device", "cpu", "--out", out]
    assert run(tmp_path / "in", *usual).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["two.txt", "声音.txt"]
    empty = run(tmp_path / "out", *usual)
    assert "holds no sound" in str(empty.exception)


def test_what_the_model_cannot_do_is_told_once_for_all_files(tmp_path: Path, model: Path) -> None:
    files = [save_wave(tmp_path / f"{name}.wav", tone(1.0)) for name in "ab"]
    done = run(*files, "--model", model, "--task", "translate", "--device", "cpu")
    assert "knows English alone" in str(done.exception)
    assert "left out" not in done.output


def test_a_lone_file_that_is_no_recording_is_told_before_the_model_is_opened(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.wav").write_text("no sound")
    for name, why in (("a.wav", "no sound that can be read"), ("b.wav", "is not there")):
        done = run(tmp_path / name, "--model", "nowhere/at-all")
        assert why in str(done.exception)
    assert "fp64, int8" in str(run("a.wav", "--dtype", "fp8").exception)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--format", "doc"], "--format doc"),
        (["--timestamps", "century"], "--timestamps century"),
        (["--timestamps", "none", "--format", "srt"], "made of times"),
        (["--temperature", "hot"], "--temperature hot"),
        (["--clips", "3,x"], "--clips 3,x"),
        (["--clips", "nan"], "clip_timestamps has nan"),
        (["--clips", "1,inf"], "clip_timestamps has 1,inf"),
        (["--logprob", "nan"], "logprob_threshold=nan"),
        (["--rate", "8000"], "--rate 8000 is for --stream"),
        (["-"], "give raw samples with --stream -"),
        ([""], "empty name"),
        (["--suppress", "a"], "--suppress a"),
        (["b.wav", "--format", "srt"], "give --out"),
    ],
)
def test_the_command_refuses_before_anything_is_opened(args: list[str], said: str) -> None:
    done = run("a.wav", *args, "--model", "nowhere/at-all")
    assert isinstance(done.exception, AllformerError)
    assert said in str(done.exception)
