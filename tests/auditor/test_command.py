"""`allformer audit`: in a process of its own, with limits, and an exit status."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest

from allformer.cli import entry
from allformer.cli.main import app

ROOT = Path(__file__).parents[2]
CODE = """
import torch
from torch import nn
from allformer.auditor import lab
make = lab.build

def sound():
    return make("decoder", "", "fused", vocab=31, width=24, heads=3, layers=1)

def leaky():
    print("noise on standard output")
    return make("decoder", "no_mask", "fused", vocab=31, width=24, heads=3, layers=1)

def hangs():
    import time
    while True:
        time.sleep(1)  # and leaves the processor to the other tests

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


def command(*arguments):
    return [sys.executable, "-m", "allformer", "audit", *map(str, arguments)]


def run(*arguments, shell="", stdout=subprocess.PIPE, **environment):
    line = command(*arguments)
    return subprocess.run(
        ["sh", "-c", shell, "sh", *line] if shell else line,
        stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def call(*arguments):
    """The command in this process; what it audits still runs in one of its own."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        status = entry.run(app, ["audit", *map(str, arguments)])
    return SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


def test_clean_is_0(code):
    done = call(f"{code}:sound", "--kind", "decoder", "--vocab", 31)
    assert done.returncode == 0, done.stderr
    assert "clean" in done.stdout


def test_findings_are_1_and_go_to_files(code, tmp_path):
    junit, page = tmp_path / "a.xml", tmp_path / "a.md"
    done = call(
        f"{code}:leaky", "--kind", "decoder", "--json", "--junit", junit, "--markdown", page
    )
    assert done.returncode == 1, done.stderr
    assert "mask.future_leak" in {f["check"] for f in json.loads(done.stdout)["findings"]}
    assert "<failure" in junit.read_text(encoding="utf-8")
    assert "mask.future_leak" in page.read_text(encoding="utf-8")


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("hangs", ("--timeout", 6), "did not end within 6 s"),
        ("dies", (), "status 3"),
        pytest.param("raises", (), "no such thing", marks=pytest.mark.slow),
        pytest.param("eats", ("--memory", 3000), "3000 MB", marks=pytest.mark.slow),
        ("missing", (), "has no missing"),
        pytest.param(
            "HangsLater", ("--timeout", 8), "finding out how it is called", marks=pytest.mark.slow
        ),
        pytest.param("NeedsGpu", (), "it needs a GPU and there is none", marks=pytest.mark.slow),
        pytest.param("AnyArguments", (), "call=", marks=pytest.mark.slow),
        pytest.param("Gives", (), "no floating tensor but a str", marks=pytest.mark.slow),
        pytest.param("scripted", (), "TorchScript", marks=pytest.mark.slow),
        pytest.param("takes", (), "without arguments", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_run_is_2_with_the_reason(code, name, options, said):
    done = call(f"{code}:{name}", "--kind", "decoder", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_checkpoint_directory(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=97, n_positions=64, n_embd=24, n_layer=1, n_head=3, bos_token_id=1, eos_token_id=2)  # fmt: skip  # noqa: E501
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    done = call(tmp_path, "--kind", "decoder")
    assert done.returncode == 0, done.stdout + done.stderr


META = """
import torch
from torch import nn
def meta():
    with torch.device("meta"):
        return nn.Sequential(nn.Embedding(31, 8), nn.Linear(8, 31))
def slow():
    import time
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def plain(tmp_path):
    (tmp_path / "plain.py").write_text(META, encoding="utf-8")
    return tmp_path / "plain.py"


def one_line(done):
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("allformer audit: could not run: ")
    return done.stderr


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
@pytest.mark.parametrize("path", ["missing/a.xml", "file/a.xml", "folder"])
def test_an_output_that_cannot_be_written_is_said_before_the_work(plain, tmp_path, option, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    done = call(f"{plain}:slow", option, tmp_path / path)
    assert path in one_line(done)


@pytest.mark.slow  # tests/unit/test_entry.py has the same of all commands
def test_a_full_disk_is_one_line(code, tmp_path):
    said = call(f"{code}:sound", "--kind", "decoder", "--junit", "/dev/full")
    assert "No space left" in one_line(said)
    with open("/dev/full", "w") as full:
        said = run(f"{code}:sound", "--kind", "decoder", "--json", stdout=full)
    assert "No space left" in one_line(said)


@pytest.mark.parametrize("path", ["file", "file/deeper"])
def test_a_lab_that_cannot_be_written_is_one_line(tmp_path, path):
    (tmp_path / "file").touch()
    assert path in one_line(call("--teach", "--out", tmp_path / path))


@pytest.mark.slow
def test_the_meta_device_is_one_line(plain):
    assert "meta device" in one_line(call(f"{plain}:meta", "--kind", "encoder"))


@pytest.mark.slow  # tests/unit/test_entry.py has the same of all commands
def test_streams_that_are_closed(plain, code):
    script = 'exec "$@" <&-'
    done = run(f"{code}:sound", "--kind", "decoder", shell=script)
    assert done.returncode == 0, done.stderr
    done = run(f"{plain}:meta", shell='exec "$@" >&-')  # told before the audit begins
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "allformer: standard output is closed; send it to a file or to /dev/null"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [pytest.param((), marks=pytest.mark.slow), ("--json",)])
def test_an_ascii_terminal(code, as_json):
    options = ("--kind", "decoder", "--lang", "zh", *as_json)
    done = run(f"{code}:leaky", *options, PYTHONIOENCODING="ascii")
    assert done.returncode == 1, done.stderr
    assert done.stdout.isascii()
    if as_json:
        assert json.loads(done.stdout)["findings"][0]["title"]


def test_ctrl_c_ends_the_audit_and_its_process(plain):
    with subprocess.Popen(
        command(f"{plain}:slow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while not children(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        (child,) = children(process.pid)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said == "allformer audit: could not run: stopped\n"
    assert not Path(f"/proc/{child}").exists()


def children(pid):
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        pytest.skip("there is no /proc to find the process in")
