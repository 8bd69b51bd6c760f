"""Damaged and hostile checkpoints: every mutant works, or one error of ours says what is wrong.

300 mutants in `make test`; 10,000 in `make test-all`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file

import allformer as af
from tests import tiny
from tests.fuzz.mutants import mutate
from tests.fuzz.survive import survive

PIECES = 10
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded as on Linux")
NAMES = (
    "gpt2", "llama", "bert-mlm", "bert-class", "roberta-mlm", "albert", "t5", "bart", "mbart",
    "mbart-50", "marian",
)  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> list[Path]:
    """Small valid directories: of each family, cut into shards, a .bin, our own, a sentence's."""
    home = tmp_path_factory.mktemp("bases")
    made = [tiny.make(home / name, name) for name in NAMES]
    shards = _copy(home / "llama", home / "shards")
    af.save(af.load(home / "llama"), shards, max_shard_bytes=30_000)
    pickled = _copy(home / "gpt2", home / "bin")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    own = _copy(home / "t5", home / "own")
    af.save(af.load(home / "t5"), own, family="allformer")
    sentence = _copy(home / "bert-mlm", home / "sentence")
    for i, kind in ((1, "Pooling"), (2, "Normalize")):
        (sentence / f"{i}_{kind}").mkdir()
        (sentence / f"{i}_{kind}" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    folders = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    steps = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(folders.items())
    ]
    (sentence / "modules.json").write_text(json.dumps(steps))
    (sentence / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    return [*made, shards, pickled, own, sentence]


def _copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


@linux
def test_the_directories_themselves_work(bases):
    for base in bases:
        af.load(base)
        assert not survive(base), base


@pytest.mark.every(2)
@linux
@pytest.mark.parametrize("piece", range(PIECES))
def test_a_mutant_works_or_is_refused_in_words(bases, piece, thorough):
    torch.set_num_threads(1)
    many, faults = 10_000 if thorough else 300, []
    for number in range(piece, many, PIECES):
        random = Random(number)
        base = random.choice(bases)
        with tempfile.TemporaryDirectory() as folder:
            said = mutate(random, base, Path(folder))
            if fault := survive(Path(folder)):
                faults.append(f"mutant {number} of {base.name}, {said}: {fault}")
    assert not faults, f"{len(faults)} of {many // PIECES}\n" + "\n".join(faults)
