"""`allformer similarity MODEL TEXT… --image PATH`: images against texts, and searches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from allformer.cli.common import show
from allformer.cli.images import chunk_of, image_source, open_seeing
from allformer.cli.lines import UNREADABLE, Verb, read_source, work_through
from allformer.errors import AllformerError, DataError


def compare(
    model: str,
    images: Sequence[str],
    texts: Sequence[str] | None,
    file: Path | None,
    top: int | None,
    device: str | None,
    dtype: str | None,
    as_json: bool,
) -> None:
    """A number, a table, or what is nearest.

    One text: the images, nearest first. One image: the texts, nearest first. Several of both: a
    table of all, or with `top` the nearest images of each text. An image that cannot be read is
    told, and left out.
    """
    words = [line.rstrip("\r\n") for line in read_source(texts, file).lines] if file else texts
    if not words:
        raise AllformerError("--image is compared with texts: give one or more, or --file")
    paths, scores, fault = _scores(open_seeing(model, device, dtype), images, list(words))
    if scores.numel() == 1 and not as_json:
        print(f"{scores.item():.6f}")
    elif top is None and min(scores.shape) > 1:
        _all(paths, words, scores, as_json)
    else:
        _nearest(paths, words, scores, top, as_json)
    if fault is not None:
        raise fault


def _scores(
    pipeline: Any, images: Sequence[str], texts: list[str]
) -> tuple[list[str], Any, DataError | None]:
    """The images that could be read, their cosines with the texts, images × texts, and what is to
    be said at the end of those that could not."""
    import torch

    from allformer.tasks import embed_image
    from allformer.tasks.image_pipeline import BATCH
    from allformer.tasks.image_text import text_vectors

    pipeline.need("similarity --image", "a model of texts and images (CLIP)")
    source, there = image_source(images, None), text_vectors(pipeline, texts).float().cpu()
    verb = Verb(
        lambda paths: embed_image(pipeline, paths) @ there.T,
        str,
        lambda path, row: {"image": path, "scores": row.tolist()},
    )
    paths: list[str] = []
    rows: list[Any] = []
    fault: DataError | None = None
    try:
        for path, row in work_through(source, verb, chunk_of(pipeline, BATCH), seen=False):
            if row is not UNREADABLE:
                paths.append(path)
                rows.append(row)
    except DataError as error:
        if not rows:
            raise
        fault = error
    return paths, torch.stack(rows), fault


def _all(paths: Sequence[str], texts: Sequence[str], scores: Any, as_json: bool) -> None:
    """Each with each."""
    from allformer.cli.views import cross_table

    if not as_json:
        show(cross_table(paths, texts, scores))
        return
    for path, row in zip(paths, scores.tolist(), strict=True):
        for text, score in zip(texts, row, strict=True):
            _print(image=path, text=text, score=score)


def _nearest(
    paths: Sequence[str], texts: Sequence[str], scores: Any, top: int | None, as_json: bool
) -> None:
    """What is nearest to each text; where there is one image, the texts that are nearest to it."""
    from allformer.cli.views import match_table

    one = len(paths) == 1
    for asked, matches in _searches(paths, texts, scores, top):
        if not as_json:
            show(match_table(asked, matches))
            continue
        for rank, match in enumerate(matches, 1):
            image, text = (asked, match.found) if one else (match.found, asked)
            _print(image=image, text=text, score=match.score, rank=rank)


def _searches(
    paths: Sequence[str], texts: Sequence[str], scores: Any, top: int | None
) -> Iterator[tuple[str, Any]]:
    from allformer.tasks.image_search import ranked

    if len(paths) == 1:
        yield paths[0], ranked(scores[0], texts, top)
        return
    for text, column in zip(texts, scores.T, strict=True):
        yield text, ranked(column, paths, top)


def _print(**record: Any) -> None:
    print(json.dumps(record, ensure_ascii=False))
