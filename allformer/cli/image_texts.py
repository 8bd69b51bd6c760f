"""`allformer similarity MODEL TEXT… --image PATH`: images against texts, and searches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from allformer.cli.common import show
from allformer.cli.images import FEW, expanded, open_seeing
from allformer.cli.lines import read_source
from allformer.errors import AllformerError


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
    table of all, or with `top` the nearest images of each text.
    """
    words = [line.rstrip("\r\n") for line in read_source(texts, file).lines] if file else texts
    if not words:
        raise AllformerError("--image is compared with texts: give one or more, or --file")
    paths = expanded(images)
    scores = _scores(open_seeing(model, device, dtype), paths, list(words))  # images × texts
    if scores.numel() == 1 and not as_json:
        print(f"{scores.item():.6f}")
    elif top is None and min(scores.shape) > 1:
        _all(paths, words, scores, as_json)
    else:
        _nearest(paths, words, scores, top, as_json)


def _scores(pipeline: Any, paths: Sequence[str], texts: list[str]) -> Any:
    """Cosines; of many images a bar is seen meanwhile."""
    from allformer.tasks import image_similarity
    from allformer.train.progress import Progress

    if len(paths) <= FEW:
        return image_similarity(pipeline, paths, texts)
    bar = Progress(len(paths), what="images", unit="image")
    try:
        return image_similarity(pipeline, paths, texts, progress=bar.update)
    finally:
        bar.close()


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
