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
        str,
        typer.Argument(help="A directory, a hub id, or a file: GGUF, llama2.c's, OpenAI's."),
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
    quantise: Annotated[
        str | None, typer.Option(help="Hold matrices in int8 or int4; none makes them plain again.")
    ] = None,
    group: Annotated[
        int | None, typer.Option(help="With --quantise: inputs that share a scale; int4 has 128.")
    ] = None,
    calibrate: Annotated[
        str | None, typer.Option(help="With --quantise: a text to round by (GPTQ).")
    ] = None,
    perplexity: Annotated[
        str | None, typer.Option(help="With --quantise: a text, another, to score both on.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Of an adapter: compute it into its model's weights.")
    ] = False,
    base: Annotated[
        str | None, typer.Option(help="With --merge: the model, where not the one it names.")
    ] = None,
    run: Annotated[bool, typer.Option(help="Run both and compare the results.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate.")] = False,
) -> None:
    """Write a checkpoint in another layout, dtype or cut, and certify that it is the same model.

    With --quantise it is not quite the same: --perplexity says on a text of yours what that costs.
    """
    from allformer.checkpoint.convert import convert as run_convert
    from allformer.checkpoint.leftovers import CERTIFICATE
    from allformer.checkpoint.save import write_json
    from allformer.config.mixer_text import mixer_from_text
    from allformer.evaluate.quantised import Trial

    if quantise is None and (calibrate or perplexity):
        raise AllformerError("--calibrate and --perplexity belong to --quantise; give int8 or int4")
    trial = Trial(source, calibrate, perplexity) if calibrate or perplexity else None
    certificate = run_convert(
        source,
        writable_directory(target),
        family=family,
        dtype=pick_dtype(dtype),
        max_shard_bytes=_bytes(max_shard_size),
        tokenizer=tokenizer,
        length=length,
        mixer=None if mixer is None else mixer_from_text(mixer),
        quantise=quantise,
        group=group,
        calibrate=None if trial is None else trial.ids(),
        merge=merge,
        base=base,
        run=run,
        tell=say,
    )
    if trial is not None and perplexity:
        say(f"scoring both on {sum(map(len, trial.scored)):,} characters")
        certificate["perplexity"] = trial.compare(target)
        write_json(target / CERTIFICATE, certificate)
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
    between = "as made and as written" if "quantised" in certificate else "source and target"
    table.add_row(f"weights, {between}", same, "")
    for row in certificate["outputs"]:
        gap = f"{row['largest_difference']:.3g}"
        table.add_row(
            f"{row['output']}: {' · '.join(row['between'])}", gap, f"{row['largest_value']:.3g}"
        )
    if "outputs_not_compared" in certificate:
        table.add_row("results", f"not run: {certificate['outputs_not_compared']}", "")
    console = Console()
    console.print(table)
    if "perplexity" in certificate:
        lost = certificate["perplexity"]
        before, after = (lost[name]["perplexity"] for name in ("before", "after"))
        said = f"perplexity {before:.4g} → {after:.4g} ({lost['change']:+.2%})"
        console.print(f"{said} on {lost['after']['tokens']:,} tokens", highlight=False)
    files = ", ".join(certificate["target"]["files"])
    console.print(f"{len(certificate['keys'])} keys accounted for; wrote {files}", highlight=False)
