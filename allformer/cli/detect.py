"""`allformer detect`: which objects are on an image, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import Device, Dtype, Model, given
from allformer.cli.images import AsJson, Batch, File, Images, Workers, image_source, open_seeing
from allformer.cli.lines import Verb, run
from allformer.errors import AllformerError

DETECT = (
    "Examples: `allformer detect hustvl/yolos-tiny street.jpg --out found`; "
    "`allformer detect MODEL photos/ --threshold 0.7 --json > objects.jsonl`"
)


def detect(
    model: Model,
    image: Images = None,
    file: File = None,
    threshold: Annotated[float, typer.Option(help="Only objects whose score is above it.")] = 0.9,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the images with their boxes drawn, as PNG.")
    ] = None,
    batch: Batch = 8,
    workers: Workers = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Which objects are on an image: their classes, scores and boxes.

    Of a folder all images in it are read. A line of a file gives, for each object: label, tab,
    score, tab, left, top, right, below (pixels), with commas.
    """
    from allformer.tasks import detect as work
    from allformer.tasks.detect import drawn

    source = image_source(image, file)
    pipeline = open_seeing(model, device, dtype)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    names = getattr(pipeline.model.config.head, "labels", ())
    used: set[str] = set()

    options = given(workers=workers or None)

    def each(paths: list[str]) -> Any:
        found = work(pipeline, paths, threshold=threshold, batch=batch, **options)
        if out is not None:
            for path, objects in zip(paths, found, strict=True):
                drawn(path, objects, names).save(out / _name(path, used))
        return found

    verb = Verb(
        each,
        lambda found: "\t".join(_line(one) for one in found),
        lambda path, found: {"image": path, "objects": [one.to_dict() for one in found]},
        _table,
    )
    run(source, verb, as_json=as_json, chunk=2 * batch)
    if out is not None and not as_json:
        typer.echo(f"{len(used)} drawn in {out}", err=True)


def _name(path: str, used: set[str]) -> str:
    """`photos/cat.jpg` → `cat.png`; a name that is taken gets a number."""
    stem = Path(path).stem
    for number in range(len(used) + 1):
        name = f"{stem}.png" if number == 0 else f"{stem}-{number + 1}.png"
        if name not in used:
            used.add(name)
            return name
    raise AllformerError(f"{path}: no name is left in --out; give another folder")


def _line(one: Any) -> str:
    return f"{one.label}\t{one.score:.4f}\t{','.join(f'{x:.1f}' for x in one.box)}"


def _table(path: str, found: Any) -> Any:
    """An image's objects, as a person reads them."""
    from rich.table import Table

    table = Table("object", "score", "left", "top", "right", "below", title=path)
    for one in found:
        table.add_row(one.label, f"{one.score:.3f}", *(f"{x:.1f}" for x in one.box))
    if not found:
        table.add_row("nothing", "", "", "", "", "")
    return table
