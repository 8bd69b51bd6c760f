"""How well codecs give recordings back at their bit rates: ours beside Lyra's SoundStream.

    python benchmarks/sound_codecs.py runs/digits-codec --data recordings
    python benchmarks/sound_codecs.py runs/digits-codec facebook/encodec_24khz --data recordings \
        --lyra model_coeffs --json out.json

Each MODEL is a run of objective=sound-codec, or an EnCodec's directory. `--lyra` is the folder of
Lyra 2's `soundstream_encoder.tflite`, `quantizer.tflite` and `lyragan.tflite` (its repository has
them; `pip install ai-edge-litert` runs them). It is a SoundStream of 16 kHz that others trained on
much speech (Zeghidour et al., 2021); ours saw what its recipe says.

All are scored on the same recordings, those whose names match `--test` (Free Spoken Digit Dataset:
index 0 to 4), at the recordings' own rate: a codec of another rate has them resampled on the way in
and out. SI-SDR and the multi-resolution spectral distance are means over recordings, in decibels.
SI-SDR asks for the wave itself, which a codec that was taught to sound real does not promise. What
a codec delays is found by trying, once for all recordings, and taken out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import allformer as af
from allformer.metrics.si_sdr import si_sdr
from allformer.metrics.spectral import spectral_distance
from allformer.sound.read import ENDINGS, read
from allformer.sound.resample import resample
from allformer.train.waves.codec_scores import bit_rates
from allformer.train.waves.recordings import found_files

Coder = Callable[[Tensor], dict[int, Tensor]]  # samples S → of each bit rate S again
BITS, PACE, FRAME = 4, 50, 320  # of Lyra's codes; frames a second, and samples of one at 16 kHz
RATES = {BITS * PACE * books: books for books in (8, 16, 30, 46)}  # it ships 3200, 6000 and 9200
DELAYS = range(0, 81)  # samples of a recording that are tried


def main() -> None:
    args = _parsed()
    files = [f for f in found_files(args.data, ENDINGS) if fnmatch(f.name, args.test)]
    if not files:
        raise SystemExit(f"no recording in {args.data} has a name like {args.test}")
    waves = [read(file, rate=args.rate) for file in files[: args.most]]
    seconds = sum(map(len, waves)) / args.rate
    print(f"{len(waves)} recordings, {seconds:.0f} s at {args.rate} Hz")
    coders = {name: _own(name, args.rate, args.device) for name in args.models}
    if args.lyra is not None:
        coders["Lyra 2 (SoundStream)"] = _lyra(Path(args.lyra), args.rate)
    rows = [row for name, coder in coders.items() for row in _scored(name, coder, waves, args.rate)]
    if args.json is not None:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _scored(name: str, coder: Coder, waves: list[Tensor], rate: int) -> list[dict[str, Any]]:
    begin = time.perf_counter()
    coded = [coder(wave) for wave in waves]
    seconds = time.perf_counter() - begin
    pace = sum(map(len, waves)) / rate / seconds
    print(f"\n{name}: {pace:.1f} times as fast as it is spoken, all bit rates together")
    rows = []
    for bits in coded[0]:
        pairs = [(found[bits], wave) for found, wave in zip(coded, waves, strict=True)]
        late = _delay(pairs)
        figures = [_figures(again, wave, late) for again, wave in pairs]
        sdr, spectral = (float(np.mean(column)) for column in zip(*figures, strict=True))
        rows.append({"codec": name, "bits": bits, "delay": late, "si_sdr": sdr,
                     "spectral": spectral, "recordings": len(waves)})  # fmt: skip
        print(
            f"  {bits / 1000:5.2f} kbit/s   SI-SDR {sdr:6.2f} dB   spectral {spectral:5.2f} dB"
            f"   ({late} samples late)",
            flush=True,
        )
    return rows


def _delay(pairs: list[tuple[Tensor, Tensor]]) -> int:
    """By how many samples all come late: where the mean SI-SDR of some of them is best."""
    some = pairs[:: max(1, len(pairs) // 20)]
    means = [float(torch.stack([si_sdr(*_cut(*pair, n)) for pair in some]).mean()) for n in DELAYS]
    return DELAYS[int(np.argmax(means))]


def _cut(again: Tensor, wave: Tensor, late: int) -> tuple[Tensor, Tensor]:
    size = min(len(wave), len(again) - late)
    return again[late : late + size], wave[:size]


def _figures(again: Tensor, wave: Tensor, late: int) -> tuple[float, float]:
    pair = _cut(again, wave, late)
    return float(si_sdr(*pair)), float(spectral_distance(*pair))


# --- codecs ---------------------------------------------------------------------------------------


def _own(path: str, rate: int, device: str) -> Coder:
    codec: Any = af.load_sound_codec(path, device=device)

    def coded(wave: Tensor) -> dict[int, Tensor]:
        x = resample(wave, rate, codec.rate)[None, None]
        codes = codec.encode(x)
        found = {}
        for bits, books in bit_rates(codec.config).items():
            again = codec.decode(codes[:, :books], length=x.shape[-1])[0, 0].float().cpu()
            found[bits] = resample(again, codec.rate, rate)
        return found

    return coded


def _lyra(folder: Path, rate: int) -> Coder:
    """Frame by frame, as a telephone would; a recording begins with a fresh state."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:
        raise SystemExit("--lyra needs `pip install ai-edge-litert`") from None
    names = ("soundstream_encoder", "quantizer", "lyragan")
    parts = [Interpreter(str(folder / f"{name}.tflite")) for name in names]
    for part in parts:
        part.allocate_tensors()
    encoder, quantizer, decoder = parts
    quantise, look_up = (quantizer.get_signature_runner(x) for x in ("encode", "decode"))

    def frames_of(wave: Tensor) -> list[Any]:
        encoder.reset_all_variables()
        run = encoder.get_signature_runner()
        return [run(input_audio=x[None])["output_0"] for x in wave.reshape(-1, FRAME).numpy()]

    def sound_of(frames: list[Any], books: int) -> Tensor:
        decoder.reset_all_variables()
        run, out = decoder.get_signature_runner(), []
        for frame in frames:
            codes = quantise(input_frames=frame, num_quantizers=np.array(books, np.int32))
            near = look_up(encoding_indices=codes["output_0"])["output_0"]
            out.append(torch.from_numpy(run(input_audio=near)["output_0"][0].copy()))
        return torch.cat(out)

    def coded(wave: Tensor) -> dict[int, Tensor]:
        x = resample(wave, rate, FRAME * PACE)
        x = torch.nn.functional.pad(x, (0, -len(x) % FRAME + FRAME))  # and room for what comes late
        frames = frames_of(x)
        return {
            bits: resample(sound_of(frames, books), FRAME * PACE, rate)
            for bits, books in RATES.items()
        }

    return coded


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help="runs of sound-codec, or EnCodec directories")
    parser.add_argument("--data", required=True, help="a folder of recordings")
    parser.add_argument("--test", default="*_[0-4].wav", help="which of them, by name")
    parser.add_argument("--rate", type=int, default=8000, help="at which they are scored")
    parser.add_argument("--most", type=int, default=None, help="recordings, the first ones")
    parser.add_argument("--lyra", default=None, help="the folder of Lyra's tflite files")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", default=None, help="write the rows here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
