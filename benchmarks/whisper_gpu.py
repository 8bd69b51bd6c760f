"""Whisper large-v3's shape on a GPU, random weights, bf16: ours beside transformers, in one run.

    python benchmarks/whisper_gpu.py [--windows 1,32] [--new 128] [--rounds 5] [--json]
        [--patience 150]           # seconds for a side to be ready
        [--turns FILE --of N]      # wait warm until N lines stand in FILE, then be timed alone
    python benchmarks/whisper_gpu.py --tiny --device cpu          # that it runs

A window of 30 s is encoded and `new` tokens are written, the likeliest each, whatever they are.
Ours: graphs of the encoder and of a step (`speech/captured.py`). transformers: `generate` with a
static cache and its forward compiled, as its documentation recommends for Whisper. Its mode
"reduce-overhead" captures nothing there (transformers 5.17: the cache counts in place) and ended in
a segmentation fault, and its encoder, compiled too, takes minutes to be ready; so neither is done.
It compiles anew for each number of windows; what takes more than `patience` seconds to be ready is
left out of a row, which says so, and transformers without compiling is a side of its own. Each side
is told as soon as it is ready. Whole runs alternate; medians. All have the same weights, and how
many of their tokens agree is told (in bf16 near ties fall either way).
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from side_by_side import table
from torch import Tensor
from turns import attempt, turn

import allformer as af
from allformer.families import whisper
from allformer.speech.captured import CapturedListener

TINY = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
TINY |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
PROMPT = (50_258, 50_259, 50_360, 50_364)  # start, English, transcribe, no timestamps
Run = Callable[[Tensor], Tensor]


def ours(folder: Path, device: str, dtype: torch.dtype, new: int) -> Run:
    model: Any = af.load(folder, device=device, dtype=dtype)
    listener = CapturedListener(model, vocabulary=None, dtype=dtype)  # type: ignore[arg-type]

    @torch.inference_mode()
    def run(mel: Tensor) -> Tensor:
        ids = torch.tensor([PROMPT] * len(mel), device=device)
        heard = listener.begin(ids, listener.encode(mel), 0)
        said = torch.empty(len(mel), new, dtype=torch.long, device=device)
        said[:, 0] = heard.next.argmax(-1)
        for i in range(1, new):
            said[:, i] = listener.step(said[:, i - 1], heard.state).argmax(-1)
        return said

    return run


def theirs(folder: Path, device: str, dtype: torch.dtype, new: int, compiled: bool) -> Run:
    from transformers import GenerationMixin, WhisperForConditionalGeneration

    model: Any = WhisperForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    model = model.to(device).eval()
    length = {"min_new_tokens": new, "max_new_tokens": new, "do_sample": False}
    static = {"cache_implementation": "static", "disable_compile": True}
    if compiled:
        model.forward = torch.compile(model.forward, fullgraph=True)

    @torch.inference_mode()
    def run(mel: Tensor) -> Tensor:
        ids = torch.tensor([PROMPT] * len(mel), device=device)
        # Whisper's own generate adds the windows of long recordings, which are not asked for.
        out = GenerationMixin.generate(
            model, mel.to(device, dtype), decoder_input_ids=ids, **length, **static
        )
        return out[:, -new:]

    return run


def weights(fields: dict[str, Any], folder: Path, device: str, dtype: torch.dtype) -> None:
    """One directory for both; no token ends a text, so that all write as many."""
    model = af.build(whisper.FAMILY.make(fields), device=device, seed=0)
    af.save(model.to(dtype), folder)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """TimeoutError after so many seconds, wherever Python is then."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def measure(
    sides: dict[str, Callable[[], Run]], mel: Tensor, args: argparse.Namespace
) -> dict[str, Any]:
    """Milliseconds of each side that is ready in time."""
    runs: dict[str, Run] = {}
    late: dict[str, Any] = {}
    answers: dict[str, Tensor] = {}
    times: dict[str, list[float]] = {}

    def timed(name: str) -> float:
        begin = time.perf_counter()
        answers[name] = runs[name](mel).cpu()  # waits
        return 1000 * (time.perf_counter() - begin)

    for name, make in sides.items():  # at first it compiles and captures: told at once
        runs[name], begin = make(), time.perf_counter()
        try:
            with within(args.patience):
                early = ", ".join(f"{timed(name):.0f}" for _ in range(3)) + " ms"
        except TimeoutError:
            early = late[name] = f"not ready after {time.perf_counter() - begin:.0f} s"
            del runs[name]
        print(f"{len(mel)} windows, {name}: {early}", file=sys.stderr, flush=True)
    times |= {name: [] for name in runs}
    with turn(args.turns, args.of):
        for _ in range(args.rounds):
            for name in runs:
                times[name].append(timed(name))
    row: dict[str, Any] = {name: statistics.median(each) for name, each in times.items()}
    first, *others = runs
    for other in others:
        row[f"{other} / {first}"] = row[other] / row[first]
        row[f"same tokens, {other}"] = float((answers[first] == answers[other]).float().mean())
    return row | late


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--windows", default="1,32")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=int, default=150, help="seconds for a side to be ready")
    parser.add_argument("--turns", help="a file that all who share the device name")
    parser.add_argument("--of", type=int, default=1, help="how many they are")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, fp32, not compiled")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    dtype = torch.float32 if args.tiny else torch.bfloat16
    fields = {**whisper.PRESETS["whisper-large-v3"], **(TINY if args.tiny else {})}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        weights(fields, Path(folder), args.device, dtype)
        given = Path(folder), args.device, dtype, args.new
        sides: dict[str, Callable[[], Run]] = {
            "allformer": cache(lambda: ours(*given)),
            "transformers, plain": cache(lambda: theirs(*given, compiled=False)),
        }
        if not args.tiny:
            sides["transformers"] = cache(lambda: theirs(*given, compiled=True))
        for windows in map(int, args.windows.split(",")):
            mel = torch.randn(windows, fields["num_mel_bins"], 3000, device=args.device)
            what = {"windows": windows, "new tokens": args.new}
            case = lambda mel=mel: measure(sides, mel, args)  # noqa: E731
            rows.append(what | attempt(str(windows), case))
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    if args.json:
        print(json.dumps({"device": name, "rows": rows}))
        return
    print(f"{name}, {dtype}, milliseconds, median of {args.rounds}")
    for row in rows:
        print(table(list(row), [[f"{x:.2f}" if isinstance(x, float) else x for x in row.values()]]))


if __name__ == "__main__":
    main()
