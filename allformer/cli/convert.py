"""`allformer convert A B`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import pick_dtype, say, writable_directory
from allformer.errors import AllformerError


def convert(
    source: Annotated[
        str, typer.Argument(help="A directory, a hub id, or a file: llama2.c's .bin, OpenAI's.")
    ],
    target: Annotated[Path, typer.Argument(help="The directory to write.")],
    family: Annotated[
        str | None,
        typer.Option(help="The layout to write: llama, marian, …, or allformer for our own."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="fp32, fp16 or bf16; default: as they are.")
    ] = None,
    max_shard_size: Annotated[str, typer.Option(help="Cut into files of at most this.")] = "50GB",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="The tokeniser beside a llama2.c file, or Whisper's .tiktoken."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Make it longer: how many tokens it takes then.")
    ] = None,
    mixer: Annotated[
        str | None, typer.Option(help="With --length: window:512 (the default), window:256,256, …")
    ] = None,
    run: Annotated[bool, typer.Option(help="Run both and compare the results.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate.")] = False,
) -> None:
    """Write a checkpoint in another layout, dtype or cut, and certify that it is the same model."""
    from allformer.checkpoint.convert import convert as run_convert
    from allformer.checkpoint.leftovers import CERTIFICATE
    from allformer.config.mixer_text import mixer_from_text

    certificate = run_convert(
        source,
        writable_directory(target),
        family=family,
        dtype=pick_dtype(dtype),
        max_shard_bytes=_bytes(max_shard_size),
        tokenizer=tokenizer,
        length=length,
        mixer=None if mixer is None else mixer_from_text(mixer),
        run=run,
        tell=say,
    )
    if as_json:
        print(json.dumps(certificate, ensure_ascii=False))
    else:
        _show(certificate)
        print(f"{target / CERTIFICATE}: what became of each key, hashes, versions")
    if not certificate["sound"]:
        raise AllformerError(
            f"the two do not agree: see {target / CERTIFICATE}; do not use what was written"
        )


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise AllformerError(f"--max-shard-size {text} is no size; try 5GB or 500MB")
    return max(1, int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " ")))


def _show(certificate: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="certificate", title_justify="left")
    for name in ("compared", "largest difference", "of values up to"):
        table.add_column(name, justify="left" if name == "compared" else "right")
    weights = certificate["weights"]
    same = "none: bit for bit" if weights["identical"] else f"{weights['largest_difference']:.3g}"
    table.add_row("weights, source and target", same, "")
    for row in certificate["outputs"]:
        gap = f"{row['largest_difference']:.3g}"
        table.add_row(
            f"{row['output']}: {' · '.join(row['between'])}", gap, f"{row['largest_value']:.3g}"
        )
    if "outputs_not_compared" in certificate:
        table.add_row("results", f"not run: {certificate['outputs_not_compared']}", "")
    console = Console()
    console.print(table)
    files = ", ".join(certificate["target"]["files"])
    console.print(f"{len(certificate['keys'])} keys accounted for; wrote {files}", highlight=False)
