"""Real, trained weights give the reference's results; skipped where ../shared is missing."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest
import torch

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.generate.prefix import Prefix
from allformer.text.load import load_tokenizer

WEIGHTS = Path(__file__).parents[3] / "shared" / "data" / "weights"
pytestmark = pytest.mark.skipif(not WEIGHTS.is_dir(), reason=f"{WEIGHTS} is not here")


def greedy(model, count: int) -> list[int]:
    """From the start token, always the best: without a cache, the plainest loop."""
    ids = [model.config.decoder.source.bos_id]
    with torch.no_grad():
        while len(ids) < count:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids


def test_stories15m_tells_the_reference_story(tmp_path):
    source = WEIGHTS / "stories15M"
    for name in ("config.json", "generation_config.json", "tokenizer.model"):
        shutil.copyfile(source / name, tmp_path / name)
    packed = (source / "model.safetensors.xz").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(lzma.decompress(packed))
    reference = json.loads((source / "reference.json").read_text())
    model = af.load(tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    ids = reference["greedy_ids_from_bos"]
    predicted = model.float()(torch.tensor([ids])).logits[0].argmax(-1)
    assert predicted[:-1].tolist() == ids[1:], "every next token, teacher-forced"
    assert greedy(model, 40) == ids[:40]
    assert load_tokenizer(tmp_path).decode(ids) == reference["greedy_text"].strip()
    check_ways(model, ids[:60])


def check_ways(model, ids):
    """Guessed, from a prefix and remembered in eight bits, the story is the same."""
    begin, prefix = torch.tensor([ids[:1]]), Prefix()
    half = {"prefix": prefix, "max_new_tokens": len(ids) // 2}
    ways = {
        "n-grams": {"prompt_lookup_num_tokens": 6},
        "guessed": {"assistant_model": model, "num_assistant_tokens": 4},
        "eight bits": {"cache": "int8"},
    }
    for name, way in ways.items():
        said = model.generate(begin, max_new_tokens=len(ids) - 1, **way)
        assert said[0].tolist() == ids, name
    said = model.generate(begin, **half)
    said = model.generate(said, prefix=prefix, max_new_tokens=len(ids) - said.shape[1])
    assert said[0].tolist() == ids
    assert prefix.reused == len(ids) // 2


def test_stories260k_is_converted_from_llama2c_and_tells_the_reference_story(tmp_path):
    source = WEIGHTS / "stories260K"
    file, pieces = source / "stories260K.bin", source / "tok512.bin"
    certificate = convert(file, tmp_path / "hf", tokenizer=pieces)
    assert certificate["sound"] is True
    reference = json.loads((source / "reference.json").read_text())
    ids = reference["greedy_ids_from_bos"]
    model = af.load(tmp_path / "hf")
    assert greedy(model, len(ids)) == ids
    check_ways(model, ids[:100])
    tokenizer = load_tokenizer(tmp_path / "hf")
    assert tokenizer.decode(ids) == reference["greedy_text"]
    assert tokenizer.encode(reference["greedy_text"]) == ids
    assert told_beside_others(model, ids) == ids


def told_beside_others(model, ids: list[int]) -> list[int]:
    """The story by an engine whose other requests come, go and take its pages away."""
    engine = af.Engine(model, pages=32, page=8, chunk=16, rows=5)
    for seed in range(3):
        engine.add(ids[: 5 + seed], max_new_tokens=90, do_sample=True, eos_token_id=None)
    story = engine.add(ids[:1], max_new_tokens=len(ids) - 1, eos_token_id=None)
    engine.add(ids[:40], max_new_tokens=9)
    for _ in zip(range(20), story, strict=False):
        pass
    engine.running[0].cancel()
    engine.run()
    assert engine.preempted
    return story.ids
