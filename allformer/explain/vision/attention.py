"""Attention over pictures as HTML: rollout, and every head of every layer, as veils."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from allformer.core.model import Model
from allformer.errors import DataError
from allformer.explain.vision.looks import Looks, looks
from allformer.explain.vision.overlay import Shown, heat, picture, size
from allformer.explain.words import counted, joined, label, said, spans, word
from allformer.images.processor import Processor
from allformer.images.read import read_image
from allformer.images.thumbnail import as_bytes
from allformer.train.predictions import Seen

MOST_PICTURES = 4
MOST_MAPS = 4096  # in all: some 300 bytes each
OPEN = 16  # maps of a picture that are shown unasked


def attention_over(model: Model[Any], processor: Processor | None, pictures: Sequence[Seen]) -> str:
    """The section's content; a sentence where nothing can be shown."""
    found: list[tuple[Seen, Looks]] = []
    room = MOST_MAPS
    for one in _different(pictures):
        if processor is None or len(found) == MOST_PICTURES:
            break
        at = _look(model, processor, one)
        if at is not None and (maps := at.heads.shape[0] * at.heads.shape[1]) <= room:
            found.append((one, at))
            room -= maps
    if not found:
        return f"<p>{spans(word('looks.none'))}</p>"
    shown = Shown()
    html = "".join(_picture(one, at, shown) for one, at in found)
    keys = (f"looks.intro.{found[0][1].who}", "looks.veil", "looks.rollout.about")
    told = "".join(f"<p>{spans(word(key))}</p>" for key in keys)
    after = f"<p>{spans(word('looks.careful'))}</p>"
    return f'{told}{shown.style}<div class="looks-grid">{html}</div>{after}'


def _different(pictures: Sequence[Seen]) -> list[Seen]:
    """Those that there are: what is right and what is wrong in turn, one of each label first."""
    real = [one for one in pictures if size(one.image)]
    sides = [[x for x in real if x.right is not False], [x for x in real if x.right is False]]
    turns = [x for pair in zip_longest(*sides) for x in pair if x is not None]
    first: dict[str, Seen] = {}
    for one in turns:
        first.setdefault(one.wanted or one.given, one)
    chosen = list(first.values())
    return [*chosen, *(one for one in turns if not any(one is x for x in chosen))]


def _look(model: Model[Any], processor: Processor, one: Seen) -> Looks | None:
    try:
        return looks(model, processor([read_image(as_bytes(one.image))], workers=1))
    except DataError:  # a picture that its processor refuses
        return None


def _picture(one: Seen, at: Looks, shown: Shown) -> str:
    layers, heads = at.heads.shape[:2]
    views = [(word("pictures.view.picture"), picture(one.image))]
    for key, values in (("looks.rollout", at.rollout), ("looks.last", at.heads[-1].mean(0))):
        views.append((word(key), shown.on(one.image, heat(values), label(word(key)))))
    cells = (
        f'<figure>{html}<figcaption class="note">{spans(name)}</figcaption></figure>'
        for name, html in views
    )
    name = said(one.given or one.wanted)
    title = f"<b>{spans(name)}</b>" if name[0] else ""
    if one.right is False:
        title += f'<span class="note">{spans(word("pictures.wanted", wanted=one.wanted))}</span>'
    unfold = " open" if layers * heads <= OPEN else ""
    count = word("looks.all", layers=counted("layer", layers), heads=counted("head", heads))
    return (
        f'<figure class="looks"><figcaption>{title}</figcaption>'
        f'<div class="views">{"".join(cells)}</div>'
        f"<details{unfold}><summary>{spans(count)}</summary>{_grid(one, at, shown)}</details>"
        f"</figure>"
    )


def _grid(one: Seen, at: Looks, shown: Shown) -> str:
    """A row for each layer, a column for each head."""
    layers, heads = at.heads.shape[:2]
    head = "".join(f'<th scope="col">{spans(word("js.head", n=h + 1))}</th>' for h in range(heads))
    rows = ""
    for i in range(layers):
        layer = word("js.layer", n=i + 1)
        cells = ""
        for h in range(heads):
            name = label(joined(layer, word("js.head", n=h + 1), by=", "))
            cells += f"<td>{shown.on(one.image, heat(at.heads[i, h]), name)}</td>"
        rows += f'<tr><th scope="row">{spans(layer)}</th>{cells}</tr>'
    return (
        f'<div class="wide"><table class="heads-grid"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
