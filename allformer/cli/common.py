"""Options that several verbs share, and how they speak."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.errors import AllformerError

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}

Model = Annotated[str, typer.Argument(help="A checkpoint: a directory or a hub id.")]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts; else --file or standard input.")]
File = Annotated[Path | None, typer.Option(help="A UTF-8 file, one text a line; .gz is read too.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, …; default: a GPU if there is one")
]
Dtype = Annotated[
    str | None, typer.Option(help="fp32, fp16 or bf16; default: the file's, on a CPU fp32.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a text, for scripts.")]
Truncate = Annotated[bool, typer.Option(help="Cut texts that are too long for the model.")]


def open_model(model: str, device: str | None, dtype: str | None, *, head: bool = True) -> Any:
    """The pipeline of a verb's MODEL."""
    from allformer.tasks.pipeline import open_pipeline

    return open_pipeline(model, device=device, dtype=pick_dtype(dtype), head=head)


def pick_dtype(name: str | None) -> Any:
    """torch's dtype for what `--dtype` says."""
    import torch

    if name is not None and name not in DTYPES:
        raise AllformerError(f"--dtype {name} is not known; try {', '.join(DTYPES)}")
    return None if name is None else getattr(torch, DTYPES[name])


def given(**options: Any) -> dict[str, Any]:
    """The options that were given: what is None is the checkpoint's own."""
    return {name: value for name, value in options.items() if value is not None}


def say(line: str) -> None:
    """To the person, not into the result."""
    print(line, file=sys.stderr, flush=True)


def show(table: Any) -> None:
    """A table."""
    from rich.console import Console

    Console().print(table)
