"""`allformer bench …`: what is measured on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import Device, pick_dtype, read_text, say, show, writable
from allformer.cli.help import App, Verbs
from allformer.errors import AllformerError

app = App(
    name="bench",
    cls=Verbs,
    help="Measure on this machine.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="Example: `allformer bench long bert-base --length 4096`",
)

LONG = (
    "Examples: `allformer bench long bert-base --length 4096`; "
    "`allformer bench long runs/mine --length 16384 --train --plot long.png`; "
    "`allformer bench long FacebookAI/roberta-base --mechanisms window:256,bigbird --text book.txt`"
)


@app.callback()
def _all() -> None:
    pass


@app.command(name="long", epilog=LONG)
def long(
    model: Annotated[str, typer.Argument(help="A preset, or a checkpoint: directory or hub id.")],
    length: Annotated[int, typer.Option(help="Tokens of the text.")] = 4096,
    mechanisms: Annotated[
        str | None,
        typer.Option(help="window:512,linear,…: names with a size of their own; default: all."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="A UTF-8 text to read; default: random tokens.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Forward and backward, not forward alone.")
    ] = False,
    device: Device = None,
    dtype: Annotated[
        str | None, typer.Option(help="fp32, fp16 or bf16; default: bf16 on a GPU, else fp32.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it: a PNG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> None:
    """Which mechanism is fastest, smallest and nearest to full attention at a length.

    Each one takes its place in the model's own layers, with the model's weights where they fit.
    """
    from allformer.bench import compare

    if plot is not None:
        writable(plot)
    if plot is not None and plot.suffix.lower() != ".png":
        raise AllformerError(f"--plot {plot} is a picture: give x.png")
    read = None if text is None else read_text(text)
    opened, tokenizer = _open(model, device, dtype, read is not None)
    ids = None if read is None else _ids(read, tokenizer, length)
    found = compare(
        opened,
        length,
        mechanisms=mechanisms,
        ids=ids,
        train=train,
        trained=not _is_preset(model),
        say=say,
    )
    if plot is not None:
        from allformer.bench.plot import draw

        draw(found, plot)
    if as_json:
        print(json.dumps({"model": model, **found.as_dict()}, ensure_ascii=False))
        return
    from allformer.cli.tables import mechanisms_table

    show(mechanisms_table(Path(model).name if Path(model).is_dir() else model, found))
    for row in found.rows.values():
        if row.refused:
            print(f"{row.mechanism}: not here: {row.refused}")
    print(", ".join(f"{what}: {name}" for what, name in found.best.items()))
    print(found.advice)


def _is_preset(name: str) -> bool:
    """Whether it has no weights that anybody has trained."""
    from allformer.families import presets

    return name in presets() and not Path(name).exists()


def _open(name: str, device: str | None, dtype: str | None, reads: bool) -> tuple[Any, Any]:
    """The model and, where it is a checkpoint that `reads` a text, its tokeniser."""
    import torch

    from allformer.core.model import build
    from allformer.core.precision import pick_device
    from allformer.families import preset

    place = pick_device(device)
    kind = pick_dtype(dtype) or (torch.bfloat16 if place.type == "cuda" else torch.float32)
    if _is_preset(name):
        return build(preset(name), device=place, seed=0).to(kind).eval(), None
    if not reads:
        from allformer.checkpoint.hub import find_checkpoint
        from allformer.checkpoint.load import load
        from allformer.tasks.sentence import read_sentence

        root = find_checkpoint(name)
        sentence = read_sentence(root)
        folder = root if sentence is None else sentence.folder
        return load(folder, device=place, dtype=kind), None
    from allformer.tasks.pipeline import open_pipeline

    pipeline = open_pipeline(name, device=place, dtype=kind)
    return pipeline.model, pipeline.tokenizer


def _ids(text: str, tokenizer: Any, length: int) -> Any:
    """The first `length` tokens of a text; a shorter one is read again and again."""
    import torch

    if tokenizer is None:
        raise AllformerError("--text needs a tokeniser, and a preset has none; give a checkpoint")
    ids = list(tokenizer.encode(text))
    if not ids:
        raise AllformerError("--text is empty; give a file with words")
    times = -(-length // len(ids))
    return torch.tensor([(ids * times)[:length]])
