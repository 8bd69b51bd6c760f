"""`allformer draw`: images of a text, as a grid."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import Device, Dtype, Model, pick_dtype, say, writable
from allformer.errors import AllformerError

DRAW = (
    'Examples: `allformer draw runs/fashion-dalle "a picture of a coat" --count 16`; '
    '`allformer draw MODEL "a ship" "a frog" --rerank runs/clip --out both.png`; '
    "`allformer draw openai/imagegpt-small --count 4`"
)
Said = Annotated[
    list[str] | None, typer.Argument(help="What to draw, a row each; an ImageGPT reads none.")
]
Count = Annotated[int, typer.Option(min=1, metavar="N", help="How many images of a text.")]


def draw(
    model: Model,
    text: Said = None,
    count: Count = 16,
    out: Annotated[Path, typer.Option(help="The grid, as a PNG.")] = Path("drawn.png"),
    temperature: Annotated[
        float, typer.Option(metavar="X", help="Below 1 safer, above 1 bolder.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the likeliest N codes.")
    ] = None,
    guidance: Annotated[
        float, typer.Option(metavar="X", help="Above 1 follows the text more closely.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", help="The same one, the same images.")] = 0,
    rerank: Annotated[
        str | None, typer.Option(metavar="CLIP", help="A CLIP that chooses the nearest.")
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --rerank: drawn of a text; default 4 × count."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Drawn together.")] = 64,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an image.")] = False,
) -> None:
    """Draw images of a text, side by side in one PNG.

    MODEL is a run of objective=text-to-image, or an ImageGPT, which draws without a text. With
    --rerank more are drawn, and a CLIP keeps those that are nearest to the text, best first.
    """
    from allformer.tasks.draw import MORE
    from allformer.tasks.draw import draw as work
    from allformer.tasks.drawing_kit import open_drawing

    if out.suffix.lower() not in (".png", ""):
        raise AllformerError(f"--out {out} writes a PNG; give x.png")
    writable(out)
    kit = open_drawing(model, device=device, dtype=pick_dtype(dtype))
    judge = None if rerank is None else _clip(rerank, device)
    each = count if rerank is None else (candidates or MORE * count)
    with _bar(each * len(text or [""]), batch) as progress:
        found = work(
            kit, text or None, count=count, temperature=temperature, top_k=top_k,
            guidance=guidance, seed=seed, rerank=judge, candidates=candidates, batch=batch,
            progress=progress,
        )  # fmt: skip
    rows = found if text else [found]
    columns = _paint(rows, count, out)
    if as_json:
        _tell(rows, columns, out)
    else:
        say(f"{sum(map(len, rows)):,} images in {out}{_scores(rows)}")


def _clip(path: str, device: str | None) -> Any:
    from allformer.tasks.image_pipeline import open_image_pipeline

    return open_image_pipeline(path, device=device)


def _paint(rows: Sequence[Sequence[Any]], count: int, out: Path) -> int:
    """The grid on disk: a row for each text, or one text in a square; how many columns it has."""
    from allformer.images.draw import enlarged, grid

    columns = count if len(rows) > 1 else math.ceil(math.sqrt(count))
    images = [enlarged(one.image, least=96)[0] for row in rows for one in row]
    grid(images, columns).save(out, format="PNG")
    return columns


def _tell(rows: Sequence[Sequence[Any]], columns: int, out: Path) -> None:
    """An object for each image, with its place in the grid."""
    number = 0
    for row in rows:
        for one in row:
            place = {"row": number // columns, "column": number % columns}
            said = {"text": one.text, "file": str(out), **place, "score": one.score}
            print(json.dumps(said, ensure_ascii=False))
            number += 1


def _scores(rows: Sequence[Sequence[Any]]) -> str:
    """The best and the last score that a CLIP gave to what was kept."""
    scores = [one.score for row in rows for one in row if one.score is not None]
    return f", as near to the text as {max(scores):.3f} … {min(scores):.3f}" if scores else ""


@contextmanager
def _bar(total: int, batch: int) -> Iterator[Callable[[int], None] | None]:
    """A bar for more than a batch."""
    from allformer.train.progress import Progress

    if total <= batch:
        yield None
        return
    bar = Progress(total, what="images", unit="image")
    try:
        yield lambda done: bar.update(done)
    finally:
        bar.close()
