"""`allformer classify-image` and `allformer embed-image`: what a model sees."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import (
    Device,
    Dtype,
    Model,
    given,
    pick_dtype,
    save_vectors,
    writable,
)
from allformer.cli.lines import UNREADABLE, Source, Verb, read_source, run, work_through
from allformer.errors import AllformerError, DataError

CLASSIFY = (
    "Examples: `allformer classify-image google/vit-base-patch16-224 cat.jpg`; "
    '`allformer classify-image openai/clip-vit-base-patch32 photos/ --labels "a cat,a dog"`; '
    "`find photos -name '*.jpg' | allformer classify-image MODEL --json > labels.jsonl`"
)
EMBED = (
    "Examples: `allformer embed-image facebook/dinov2-small cat.jpg dog.jpg --json`; "
    "`allformer embed-image MODEL photos/ --out vectors.npy`"
)
FEW = 32  # images, for which nobody needs a bar
Images = Annotated[
    list[str] | None,
    typer.Argument(help="Image files, folders of them; else --file or standard input."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object an image, for scripts.")]
File = Annotated[Path | None, typer.Option(help="A file of paths, one a line.")]
Batch = Annotated[int, typer.Option(min=1, metavar="N", help="How many images go together.")]
Workers = Annotated[
    int, typer.Option(min=0, metavar="N", help="Threads that read images ahead; 0: one a core.")
]


def classify_image(
    model: Model,
    image: Images = None,
    file: File = None,
    labels: Annotated[
        str | None, typer.Option(help="For a CLIP: what it may be, with commas between.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Around each of --labels; default: This is a photo of {}.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many labels of an image.")] = 5,
    batch: Batch = 32,
    workers: Workers = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """What an image shows: the labels that a model was taught, or with a CLIP any in words.

    Of a folder all images in it are read. A line of a file gives, for each label: label, tab,
    score.
    """
    from allformer.cli.views import image_label_table, label_line
    from allformer.tasks import classify_image as work

    if template is not None and labels is None:
        raise AllformerError("--template goes around --labels; give them too")
    names = None if labels is None else [x.strip() for x in labels.split(",") if x.strip()]
    source = image_source(image, file)
    pipeline = open_seeing(model, device, dtype)
    options = given(labels=names, template=template, workers=workers or None)
    verb = Verb(
        lambda paths: work(pipeline, paths, top=top, batch=batch, **options),
        label_line,
        lambda path, found: {"image": path, "labels": [one.to_dict() for one in found]},
        image_label_table,
    )
    run(source, verb, as_json=as_json, chunk=chunk_of(pipeline, batch))


def embed_image(
    model: Model,
    image: Images = None,
    file: File = None,
    out: Annotated[Path | None, typer.Option(help="Write them as a NumPy array: x.npy")] = None,
    pooling: Annotated[
        str | None, typer.Option(help="cls or mean; default: the model's vector, else cls.")
    ] = None,
    normalise: Annotated[bool, typer.Option("--normalise", help="To length 1.")] = False,
    batch: Batch = 32,
    workers: Workers = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Images as vectors.

    A line of numbers for each image; of a folder all images in it, in the order of their names.
    One that cannot be read has nan for each number, and the command fails at its end.
    """
    from allformer.cli.views import vector_text
    from allformer.tasks import embed_image as work

    if out is not None and (as_json or out.suffix != ".npy"):
        raise AllformerError(f"--out {out} writes a NumPy array: give x.npy, and no --json")
    if out is not None:
        writable(out)
    source = image_source(image, file)
    pipeline = open_seeing(model, device, dtype)
    options: dict[str, Any] = {"pooling": pooling, "normalise": normalise, "batch": batch}
    options |= given(workers=workers or None)
    verb = Verb(
        lambda paths: work(pipeline, paths, **options),
        lambda vector: " ".join(f"{x:.8g}" for x in vector.tolist()),
        lambda path, vector: {"image": path, "vector": vector.tolist()},
        vector_text if source.typed and sys.stdout.isatty() else None,
        lambda: verb.line(_no_vector(verb)),
    )
    if out is None:
        run(source, verb, as_json=as_json, chunk=chunk_of(pipeline, batch))
    else:
        _save(source, verb, chunk_of(pipeline, batch), out)


def _save(source: Source, verb: Verb, chunk: int, out: Path) -> None:
    """A row for each image; one that cannot be read has one without numbers."""
    rows: list[Any] = []
    fault: DataError | None = None
    try:
        for _, vector in work_through(source, verb, chunk, seen=False):
            rows.append(_no_vector(verb) if vector is UNREADABLE else vector)
    except DataError as error:
        if not rows:
            raise
        fault = error
    save_vectors(rows, out, "image")
    if fault is not None:
        raise fault


def _no_vector(verb: Verb) -> Any:
    """As wide as the vectors, and NaN."""
    import torch
    from PIL import Image

    (some,) = verb.work([Image.new("RGB", (32, 32))])
    return torch.full_like(some, torch.nan)


def image_source(images: Sequence[str] | None, file: Path | None) -> Source:
    """Paths that were typed, those in folders, or lines of a file or of standard input; of several
    one that cannot be read is told, and left out."""
    if not images or file is not None:
        return replace(read_source(images, file), unit="image", leaves=True)
    paths = expanded(images)
    total = len(paths) if len(paths) > FEW else None
    return Source(paths, typed=True, total=total, unit="image", leaves=True)


def expanded(images: Sequence[str]) -> list[str]:
    """Files as they are; of a folder the images in it, by name."""
    from allformer.images.read import ENDINGS

    found: list[str] = []
    for name in images:
        path = Path(name)
        inside = sorted(str(x) for x in path.iterdir()) if path.is_dir() else [name]
        if path.is_dir():
            inside = [x for x in inside if Path(x).suffix.lower() in ENDINGS]
            if not inside:
                raise AllformerError(f"{path} holds no images ({', '.join(ENDINGS)}); give another")
        found += inside
    return found


def chunk_of(pipeline: Any, batch: int) -> int:
    """Images that a verb is given at a time: reading ahead begins anew with each such chunk, but
    results and progress are shown after it. A GPU is through with it in a moment."""
    return batch * (16 if pipeline.model.device.type == "cuda" else 2)


def open_seeing(model: str, device: str | None, dtype: str | None) -> Any:
    """The pipeline of a verb's MODEL."""
    from allformer.tasks.image_pipeline import open_image_pipeline

    return open_image_pipeline(model, device=device, dtype=pick_dtype(dtype))
