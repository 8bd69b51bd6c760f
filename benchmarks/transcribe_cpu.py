"""Transcribing on a CPU: Allformer, openai-whisper and faster-whisper, the same weights, in turn.

    python benchmarks/transcribe_cpu.py --model tiny.en.pt --data librivox [--threads 2]
        [--rounds 5] [--modes greedy-fp32,beams-int8] [--keep DIR] [--json]

--model is OpenAI's file, --data a folder of wav files with their texts in `transcription` (as
Debian's pocketsphinx-testdata has them). CTranslate2's directories are made from ours (--keep:
where they stay). Each recording is written down by one side after the other, `rounds` times; a
side's time is the sum over recordings of their medians. "busy" counts what the processors worked,
which says more than the clock where others compute as well. int8 has no openai-whisper, whose fp32
stands for it. Texts are scored after the reference's own normaliser.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from side_by_side import table

from allformer.checkpoint.convert import convert
from allformer.speech.options import TranscribeOptions
from allformer.tasks.speech_pipeline import open_speech
from allformer.tasks.transcribe import transcribe_one

MODES = ("greedy-fp32", "beams-fp32", "greedy-int8", "beams-int8")
BEAMS = 5
# Seconds before a turn: threads of the side before wait awake for work (Intel OpenMP: 0.2 s).
REST = 0.4
Side = Callable[[Path], str]


def ours(model: Path, beams: int | None, dtype: str) -> Side:
    wide = "int8" if dtype == "int8" else torch.float32
    pipeline = open_speech(model, device="cpu", dtype=wide)
    options = TranscribeOptions(language="en", beam_size=beams)
    return lambda wav: transcribe_one(pipeline, wav, options).text


def openai(model: Path, beams: int | None) -> Side:
    import whisper

    theirs = whisper.load_model(str(model), device="cpu")

    def run(wav: Path) -> str:
        sound = torch.from_numpy(_samples(wav))  # it would start ffmpeg
        return theirs.transcribe(sound, language="en", beam_size=beams, fp16=False)["text"]

    return run


def faster(folder: Path, beams: int | None, dtype: str, threads: int) -> Side:
    from faster_whisper import WhisperModel

    kind = "int8" if dtype == "int8" else "float32"
    theirs = WhisperModel(str(folder), device="cpu", compute_type=kind, cpu_threads=threads)

    def run(wav: Path) -> str:
        found, _ = theirs.transcribe(_samples(wav), language="en", beam_size=beams or 1)
        return "".join(segment.text for segment in found)

    return run


def _samples(wav: Path) -> Any:
    from allformer.sound import read

    return read(wav).numpy()


def ctranslate(model: Path, folder: Path) -> Path:
    """CTranslate2's directory of a file of OpenAI's, by way of Hugging Face's."""
    from ctranslate2.converters import TransformersConverter

    from allformer.text.tiktoken import openai_whisper_tokenizer

    made = folder / "ctranslate2"
    if not made.exists():
        hub = folder / "huggingface"
        convert(model, hub, run=False)
        vocab = json.loads((hub / "config.json").read_text())["vocab_size"]
        openai_whisper_tokenizer(vocab).save(hub)
        TransformersConverter(str(hub), copy_files=["tokenizer.json"]).convert(str(made))
    return made


def texts_of(folder: Path) -> dict[str, str]:
    """What is said in each recording: `<s> words </s> (name)`."""
    lines = (folder / "transcription").read_text().splitlines()
    found = (re.fullmatch(r"<s> (.*) </s> \((.*)\)", line.strip()) for line in lines)
    return {match[2]: match[1] for match in found if match}


def error(said: dict[str, str], wanted: dict[str, str]) -> float:
    import jiwer
    from whisper.normalizers import EnglishTextNormalizer

    plain = EnglishTextNormalizer()
    names = list(wanted)
    return jiwer.wer([plain(wanted[x]) for x in names], [plain(said[x]) for x in names])


def measure(sides: dict[str, Side], wavs: list[Path], rounds: int) -> dict[str, dict[str, Any]]:
    """In turn, recording by recording; the first round warms up."""
    seen: dict[str, dict[str, Any]] = {
        name: {"wall": {w: [] for w in wavs}, "busy": {w: [] for w in wavs}, "texts": {}}
        for name in sides
    }
    for turn in range(-1, rounds):
        for wav in wavs[:1] if turn < 0 else wavs:
            for name, side in sides.items():
                time.sleep(REST)
                begin, before = time.perf_counter(), time.process_time()
                text = side(wav)
                wall, busy = time.perf_counter() - begin, time.process_time() - before
                if turn >= 0:
                    seen[name]["wall"][wav].append(wall)
                    seen[name]["busy"][wav].append(busy)
                    seen[name]["texts"][wav.stem] = text
    return seen


def rows_of(mode: str, seen: dict[str, dict[str, Any]], wanted: dict[str, str]) -> list[Any]:
    total = {
        name: {k: sum(map(statistics.median, each[k].values())) for k in ("wall", "busy")}
        for name, each in seen.items()
    }
    mine = total["allformer"]
    return [
        {
            "mode": mode, "side": name, "seconds": of["wall"], "busy": of["busy"],
            "ours × (wall)": of["wall"] / mine["wall"], "ours × (busy)": of["busy"] / mine["busy"],
            "WER %": 100 * error(seen[name]["texts"], wanted),
            "texts as ours": sum(
                seen[name]["texts"][x] == seen["allformer"]["texts"][x] for x in wanted
            ),
        }
        for name, of in total.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    wanted = texts_of(args.data)
    wavs = [args.data / f"{name}.wav" for name in wanted]
    rows: list[Any] = []
    with tempfile.TemporaryDirectory() as spare:
        made = ctranslate(args.model, args.keep or Path(spare))
        for mode in args.modes.split(","):
            search, dtype = mode.split("-")
            beams = BEAMS if search == "beams" else None
            sides = {
                "allformer": ours(args.model, beams, dtype),
                "openai-whisper": openai(args.model, beams),
                "faster-whisper": faster(made, beams, dtype, args.threads),
            }
            rows += rows_of(mode, measure(sides, wavs, args.rounds), wanted)
    if args.json:
        print(json.dumps({"threads": args.threads, "rows": rows}))
        return
    print(f"{len(wavs)} recordings, {args.threads} threads, medians of {args.rounds}")
    cells = [[f"{x:.2f}" if isinstance(x, float) else x for x in row.values()] for row in rows]
    print(table(list(rows[0]), cells))


if __name__ == "__main__":
    main()
