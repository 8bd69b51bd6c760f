"""`allformer audit`: in a process of its own, with limits, and an exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import torch
from torch import nn
from allformer.auditor.lab.models import build as make

def sound():
    return make("decoder", "", "fused", vocab=31, width=24, heads=3, layers=1)

def leaky():
    print("noise on standard output")
    return make("decoder", "no_mask", "fused", vocab=31, width=24, heads=3, layers=1)

def hangs():
    while True:
        pass

def dies():
    import os
    os._exit(3)

def raises():
    raise KeyError("no such thing")

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(31, 8), nn.Linear(8, 31)

class HangsLater(Odd):
    def forward(self, ids):
        while True:
            pass

class NeedsGpu(Odd):
    def forward(self, ids):
        raise AssertionError("Torch not compiled with CUDA enabled")

class AnyArguments(Odd):
    def forward(self, *arguments, **options):
        return self.out(self.embed(arguments[0]))

class Gives(Odd):
    def forward(self, ids):
        return "no tensor"

def scripted():
    return torch.jit.script(nn.Linear(4, 4))

def takes(size):
    return Odd()

def eats():
    return [torch.zeros(2**26) for _ in range(2000)]
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "my_model.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "allformer", "audit", *map(str, arguments)],
        capture_output=True, text=True, cwd=ROOT, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_clean_is_0(code):
    done = run(f"{code}:sound", "--kind", "decoder", "--vocab", 31)
    assert done.returncode == 0, done.stderr
    assert "clean" in done.stdout


def test_findings_are_1_and_go_to_files(code, tmp_path):
    junit, page = tmp_path / "a.xml", tmp_path / "a.md"
    done = run(f"{code}:leaky", "--kind", "decoder", "--json", "--junit", junit, "--markdown", page)
    assert done.returncode == 1, done.stderr
    assert "mask.future_leak" in {f["check"] for f in json.loads(done.stdout)["findings"]}
    assert "<failure" in junit.read_text(encoding="utf-8")
    assert "mask.future_leak" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("hangs", ("--timeout", 6), "did not end within 6 s"),
        ("dies", (), "status 3"),
        ("raises", (), "no such thing"),
        ("eats", ("--memory", 3000), "3000 MB"),
        ("missing", (), "has no missing"),
        ("HangsLater", ("--timeout", 8), "finding out how it is called"),
        ("NeedsGpu", (), "it needs a GPU and there is none"),
        ("AnyArguments", (), "call="),
        ("Gives", (), "no floating tensor but a str"),
        ("scripted", (), "TorchScript"),
        ("takes", (), "without arguments"),
    ],
)
def test_what_cannot_run_is_2_with_the_reason(code, name, options, said):
    done = run(f"{code}:{name}", "--kind", "decoder", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkpoint_directory(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=97, n_positions=64, n_embd=24, n_layer=1, n_head=3, bos_token_id=1, eos_token_id=2)  # fmt: skip  # noqa: E501
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    done = run(tmp_path, "--kind", "decoder")
    assert done.returncode == 0, done.stdout + done.stderr
