"""A C file of ours, compiled by the machine's own compiler the first time that it is wanted.

    library = open_library(Path(__file__).with_name("few.c"))      # a ctypes.CDLL

It is kept in the user's cache (XDG_CACHE_HOME, ~/.cache), under a name that depends on the source,
the compiler and the processor. ALLFORMER_NATIVE=0 leaves it alone. Whatever goes wrong (no
compiler, no room, another system than Linux) is one of `FAILURES`: what is plain serves then.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

FAILURES = (OSError, subprocess.SubprocessError, AttributeError)
_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
          "-fopenmp", "-shared", "-fPIC")  # fmt: skip
_PATIENCE = 60  # seconds: a compiler takes two


def open_library(source: Path) -> ctypes.CDLL:
    """The compiled functions of a file."""
    if os.environ.get("ALLFORMER_NATIVE") == "0" or platform.system() != "Linux":
        raise OSError("nothing is compiled here")
    return ctypes.CDLL(str(_built(source)))


def normal(draw: torch.Generator, *shape: int) -> Tensor:
    """What such functions are tried on: they read fp32 on a CPU, whatever torch's defaults are."""
    return torch.randn(*shape, generator=draw, dtype=torch.float32, device="cpu")


def _built(source: Path) -> Path:
    """The library's file, compiled if it is not there."""
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if compiler is None:
        raise OSError("no compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=_PATIENCE)
    told = [source.read_bytes(), version.stdout, " ".join(_FLAGS).encode(), _processor()]
    name = hashlib.sha256(b"\0".join(told)).hexdigest()[:16]
    cached = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(cached) / "allformer"
    path = folder / f"{source.stem}-{name}.so"
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as room:  # others may compile it as well
            made = Path(room) / path.name
            command = [compiler, *_FLAGS, "-o", str(made), str(source), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE)
            made.replace(path)
    return path


def _processor() -> bytes:
    """What the processor can do: a home may be shared by several machines."""
    told = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    kinds = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in told if line.startswith(kinds)})).encode()
