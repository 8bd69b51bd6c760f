"""`allformer segment`: what each pixel of an image shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import Device, Dtype, Model, given, writable_directory
from allformer.cli.images import AsJson, File, Images, Workers, image_source, open_seeing
from allformer.cli.lines import Verb, run

SEGMENT = (
    "Examples: `allformer segment tue-mps/coco_panoptic_eomt_large_640 cats.jpg --out seen`; "
    "`allformer segment MODEL photos/ --task instance --threshold 0.5 --out seen --json`"
)


def segment(
    model: Model,
    image: Images = None,
    file: File = None,
    task: Annotated[
        str | None,
        typer.Option(help="semantic, instance or panoptic; default: what the model is made for."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for NAME.overlay.png, NAME.ids.png and NAME.npz."),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="The least score of a segment; default: 0.8.")
    ] = None,
    stuff: Annotated[
        str | None,
        typer.Option(help="Of panoptic: labels of which all is one segment, with commas between."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Images that go together.")] = 8,
    workers: Workers = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """What each pixel of an image shows: classes, things, or both.

    A line of a file gives, for each segment: label, tab, pixels. With --out the maps are written:
    painted over the image, as numbers (255: nobody), and as NumPy arrays.
    """
    from allformer.tasks import segment as work

    if out is not None:
        writable_directory(out)
    source = image_source(image, file)
    pipeline = open_seeing(model, device, dtype)
    names = None if stuff is None else [x.strip() for x in stuff.split(",") if x.strip()]
    options = given(task=task, threshold=threshold, stuff=names, workers=workers or None)
    used: Counter[str] = Counter()

    def each(paths: list[str]) -> list[Any]:
        found = work(pipeline, paths, batch=batch, **options)
        if out is not None:
            for path, result in zip(paths, found, strict=True):
                write(path, result, out, used)
        return list(found)

    def record(path: str, found: Any) -> dict[str, Any]:
        return {"image": path, **found.to_dict()}

    run(source, Verb(each, segment_line, record, segment_table), as_json=as_json, chunk=batch)


def write(path: str, found: Any, out: Path, used: Counter[str]) -> None:
    """The three files of an image; the second image of a name gets a number."""
    import numpy as np

    from allformer.images.overlay import paint, save_ids

    stem = Path(path).stem
    used[stem] += 1
    name = stem if used[stem] == 1 else f"{stem}-{used[stem]}"
    out.mkdir(parents=True, exist_ok=True)
    paint(path, found.ids, {one.id: segment_name(one) for one in found.segments}).save(
        out / f"{name}.overlay.png"
    )
    save_ids(found.ids, out / f"{name}.ids.png")
    np.savez_compressed(
        out / f"{name}.npz",
        ids=found.ids,
        numbers=np.array([one.id for one in found.segments], np.int32),
        labels=np.array([one.label for one in found.segments], str),
        scores=np.array([np.nan if one.score is None else one.score for one in found.segments]),
    )


def segment_name(one: Any) -> str:
    """`cat 97 %`; of a class its name."""
    return str(one.label) if one.score is None else f"{one.label} {one.score:.0%}"


def segment_line(found: Any) -> str:
    """Label, tab, pixels, for each segment."""
    return "\t".join(f"{one.label}\t{one.area}" for one in found.segments)


def segment_table(path: str, found: Any) -> Any:
    """The image's path, and its segments with their share of it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from allformer.cli.views import bar

    grid = Table(show_header=False, box=None, padding=(0, 1))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(justify="right", style="dim")
    grid.add_column(justify="right")
    grid.add_column(style="cyan", no_wrap=True)
    for one in found.segments:
        share = one.area / found.ids.size
        score = "" if one.score is None else f"{one.score:.4f}"
        grid.add_row(Text(one.label), score, f"{share:.1%}", bar(share))
    height, width = found.ids.shape
    head = Text(f"{path}: {found.task}, {width} × {height}, {len(found.segments)} segments", "dim")
    return Group(head, grid)
