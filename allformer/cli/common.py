"""Options that several verbs share, and how they speak."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.errors import AllformerError

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
QUANTISED = "quantised"  # among them where a GGUF file may be opened
INT8 = "int8"  # and where a model writes

Model = Annotated[str, typer.Argument(help="A checkpoint: a directory, a hub id or a GGUF file.")]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts; else --file or standard input.")]
File = Annotated[Path | None, typer.Option(help="A UTF-8 file, one text a line; .gz is read too.")]


def _usable(name: str | None) -> str | None:
    """Refuse a device that holds no numbers, or that this machine has not."""
    import torch

    from allformer.core.precision import pick_device

    device = pick_device(name)
    if device.type == "meta":
        raise AllformerError("--device meta holds shapes and no numbers; try cpu or cuda")
    if device.type in ("cpu", "cuda"):
        return name
    try:
        torch.zeros(1, device=device)
    except Exception:  # each backend has its own
        raise AllformerError(f"--device {name} cannot be used on this machine; try cpu") from None
    return name


Device = Annotated[
    str | None,
    typer.Option(callback=_usable, help="cpu, cuda, cuda:1, …; default: a GPU if there is one."),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="fp32, fp16, bf16, or quantised: as a GGUF file has it; default: the file's, on a CPU "
        "fp32."
    ),
]
WriterDtype = Annotated[
    str | None,
    typer.Option(
        help="fp32, fp16, bf16, int8: faster on a CPU and not exact, or quantised: as a GGUF file "
        "has it; default: the file's, on a CPU fp32."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a text, for scripts.")]
Truncate = Annotated[
    bool, typer.Option(show_default=False, help="Cut texts that are too long for the model.")
]


def open_model(model: str, device: str | None, dtype: str | None, *, head: bool = True) -> Any:
    """The pipeline of a verb's MODEL."""
    from allformer.tasks.pipeline import open_pipeline

    quantised = dtype == QUANTISED
    wide = None if quantised else pick_dtype(dtype, QUANTISED)
    return open_pipeline(model, device=device, dtype=wide, head=head, quantised=quantised)


def open_writer(model: str, device: str | None, dtype: str | None) -> tuple[Any, dict[str, Any]]:
    """The pipeline of a verb whose MODEL writes, and the option that `--dtype` is of `generate`."""
    if dtype != INT8:
        if dtype != QUANTISED:
            pick_dtype(dtype, INT8, QUANTISED)  # refuses others
        return open_model(model, device, dtype), {}
    import torch

    return open_model(model, device or "cpu", "fp32"), {"dtype": torch.int8}


def pick_dtype(name: str | None, *others: str) -> Any:
    """torch's dtype for what `--dtype` says; `others` may be said as well."""
    import torch

    if name is not None and name not in DTYPES:
        raise AllformerError(f"--dtype {name} is not known; try {', '.join([*DTYPES, *others])}")
    return None if name is None else getattr(torch, DTYPES[name])


def given(**options: Any) -> dict[str, Any]:
    """The options that were given: what is None is the checkpoint's own."""
    return {name: value for name, value in options.items() if value is not None}


def checked(flags: Mapping[str, str] | None = None, /, **options: Any) -> dict[str, Any]:
    """The options of generation that were given, each against its rule before any work is done.

    `checked({"num_beams": "--beams"}, num_beams=0)` is refused by the name that was typed.
    """
    from allformer.generate.checks import RULES

    for name, value in given(**options).items():
        rule = RULES[name]
        if not rule.holds(value):
            flag = (flags or {}).get(name, "--" + name.replace("_", "-"))
            must, way_out = _TYPED.get(name, (rule.must, rule.way_out))
            raise AllformerError(f"{flag} {value} {must}; {way_out}")
    return given(**options)


# Where the command line says it otherwise than Python does.
_TYPED = {
    "temperature": ("must be a number of at least 0", "0 takes the likeliest token each time"),
    "length_penalty": ("must be a finite number", "1 is usual, 0 does not look at the length"),
}


def writable(file: Path) -> Path:
    """Try an output before the work, not after it: what the system refuses is refused now."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        return file  # a pipe or a device: to open it is to use it
    new = not file.exists()
    file.open("ab").close()
    if new:
        file.unlink()
    return file


def writable_directory(path: Path) -> Path:
    """The same of a directory, which need not be there yet."""
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
    return path


def save_vectors(vectors: list[Any], out: Path, what: str = "text") -> None:
    """As a NumPy array, a row for each."""
    import numpy
    import torch

    if not vectors:
        raise AllformerError(f"there was no {what}, so {out} is not written; give one or more")
    table = torch.stack(vectors)
    numpy.save(out, table.numpy())
    say(f"{out}: {table.shape[0]:,} vectors of {table.shape[1]:,} numbers")


def read_text(path: Path) -> str:
    """A UTF-8 file as it stands, without the byte order mark that Windows writes."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise AllformerError(f"{path}, byte {error.start}: not UTF-8; convert it first") from None


def say(line: str) -> None:
    """To the person, not into the result."""
    print(line, file=sys.stderr, flush=True)


def show(table: Any) -> None:
    """A table."""
    from rich.console import Console

    Console().print(table)
