"""The log-mel of an hour of sound on a CPU: ours beside openai-whisper's, in turns.

    python benchmarks/log_mel.py [--minutes 60] [--bins 80] [--threads 2] [--json]

The sound is drawn: gusts of noise, loud and quiet. Both get the same tensor at 16 kHz; the median
of each counts, and the largest difference between the two is told. `windowed` is `Spectrogram`,
which holds one block at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from allformer.sound import Spectrogram, log_mel
from allformer.sound.mel import RATE


def gusts(seconds: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    loud = torch.rand(10 * seconds, generator=draw).pow(3).repeat_interleave(RATE // 10)
    return torch.randn(seconds * RATE, generator=draw).mul_(loud / 4)


def took(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    from whisper.audio import log_mel_spectrogram

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--bins", type=int, default=80, choices=(80, 128))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    wave = gusts(60 * args.minutes)
    off = float((log_mel(wave, args.bins) - log_mel_spectrogram(wave, args.bins)).abs().max())
    step = 30 * RATE
    pieces = [wave[at : at + step] for at in range(0, len(wave), step)]
    runs: dict[str, Callable[[], object]] = {
        "openai-whisper": lambda: log_mel_spectrogram(wave, args.bins),
        "ours": lambda: log_mel(wave, args.bins),
        "ours, windowed": lambda: Spectrogram(pieces, args.bins, padding=0),
    }
    times = {name: [] for name in runs}
    for _ in range(args.turns):
        for name, run in runs.items():
            times[name].append(took(run))
    row = {name: statistics.median(each) for name, each in times.items()}
    if args.json:
        print(json.dumps({"minutes": args.minutes, "bins": args.bins, "seconds": row, "off": off}))
        return
    print(
        f"{args.minutes} minutes, {args.bins} bins, {args.threads} threads, median of {args.turns}"
    )
    for name, seconds in row.items():
        print(f"{name:>16}{seconds:9.3f} s{row['openai-whisper'] / seconds:7.2f} ×")
    print(f"largest difference: {off:.1e}")


if __name__ == "__main__":
    main()
