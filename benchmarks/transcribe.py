"""Recordings into text on a CPU: ours beside openai-whisper and faster-whisper, in turns.

    python benchmarks/transcribe.py tiny.en.pt recordings/ [--faster DIR] [--threads 2] [--json]

All read the same samples at 16 kHz; each file is a recording of its own. Of each mode (greedy, five
beams) the median of all turns counts, and whether the texts are openai-whisper's. `--faster` is
the same checkpoint as CTranslate2 has it: `allformer convert tiny.en.pt hf`, then
`ct2-transformers-converter --model hf --output_dir DIR --copy_files tokenizer.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer.sound import read
from allformer.tasks.speech_pipeline import open_speech
from allformer.tasks.transcribe import transcribe

MODES = {"greedy": None, "5 beams": 5}
REFERENCE = "openai-whisper"


def runners(args: argparse.Namespace) -> dict[str, Callable[[Tensor, int | None], str]]:
    """For each library, how it makes a text of samples."""
    import whisper

    ours = open_speech(args.model, device="cpu")
    other = whisper.load_model(args.model, device="cpu")

    def openai(wave: Tensor, beams: int | None) -> str:
        found: dict[str, Any] = other.transcribe(
            wave.numpy(), temperature=0.0, beam_size=beams, fp16=False, language="en"
        )
        return str(found["text"])

    def mine(wave: Tensor, beams: int | None) -> str:
        found = transcribe(wave, ours, temperature=0.0, beam_size=beams, language="en")
        return str(found.text)

    found = {REFERENCE: openai, "ours": mine}
    if args.faster:
        from faster_whisper import WhisperModel

        for kind in ("float32", "int8"):
            fast = WhisperModel(
                args.faster, device="cpu", compute_type=kind, cpu_threads=args.threads
            )
            found[f"faster-whisper {kind}"] = partial(_faster, fast)
    return found


def _faster(model: Any, wave: Tensor, beams: int | None) -> str:
    segments, _ = model.transcribe(
        wave.numpy(), beam_size=beams or 1, temperature=0.0, language="en"
    )
    return "".join(segment.text for segment in segments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="OpenAI's file, such as tiny.en.pt")
    parser.add_argument("sounds", type=Path, help="a folder of wav files")
    parser.add_argument("--faster", help="a CTranslate2 directory of the same model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    waves = [read(file) for file in sorted(args.sounds.glob("*.wav"))]
    seconds = sum(map(len, waves)) / 16_000
    runs, rows = runners(args), []
    for mode, beams in MODES.items():
        texts = {name: [run(wave, beams) for wave in waves] for name, run in runs.items()}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(args.turns):
            for name, run in runs.items():
                begin = time.perf_counter()
                for wave in waves:
                    run(wave, beams)
                times[name].append(time.perf_counter() - begin)
        usual = statistics.median(times[REFERENCE])
        for name, each in times.items():
            took = statistics.median(each)
            same = texts[name] == texts[REFERENCE]
            rows.append({"mode": mode, "with": name, "seconds": took, "same text": same})
            if not args.json:
                print(f"{mode:>8} {name:>24}{took:9.2f} s{usual / took:7.2f} ×  same: {same}")
    if args.json:
        print(json.dumps({"sound": seconds, "threads": args.threads, "rows": rows}))
    else:
        print(f"{seconds:.0f} s of sound, {args.threads} threads, median of {args.turns}")


if __name__ == "__main__":
    main()
