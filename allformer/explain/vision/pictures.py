"""Held-out pictures with what a model said of them, as HTML: labels, boxes, masks, reconstructions,
and what it drew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from allformer.explain.vision.overlay import picture
from allformer.explain.words import Pair, joined, said, spans, word
from allformer.images.thumbnail import COLOURS
from allformer.train.predictions import Box, Mask, Predictions, Seen

SHOWN = 24  # the rest folds away
BACKGROUND = "background"  # what no colour stands for


def picture_list(predictions: Predictions) -> str:
    """All pictures, mistakes first, though not mistakes alone; each kind in its own way."""
    pictures = predictions.pictures
    drawn = [one for one in pictures if one.drawn]
    rest = _mixed([one for one in pictures if not one.drawn])
    html = "".join(map(_drawn, drawn[:SHOWN]))
    judged = [one.right for one in rest if one.right is not None]
    if judged:
        told = word("examples.right", right=sum(judged), shown=len(judged))
        html += f"<p>{spans(told)}</p>"
    names = _names(pictures)
    first = SHOWN // 2 if any(_several(one) for one in rest) else SHOWN
    html += _legend(names, rest) + _cards(rest[:first], names)
    if more := rest[first:]:
        html += (
            f"<details><summary>{spans(word('pictures.more', n=len(more)))}</summary>"
            f"{_cards(more, names)}</details>"
        )
    return html


def about_pictures(predictions: Predictions) -> Pair:
    """What to know when looking at them, by what there is."""
    pictures = predictions.pictures
    kinds = {
        "drawn": any(one.drawn for one in pictures),
        "masks": any(one.mask or one.found_mask for one in pictures),
        "boxes": any(one.boxes or one.found for one in pictures),
        "again": any(one.again for one in pictures),
    }
    return word(f"pictures.{next((kind for kind, there in kinds.items() if there), 'labels')}")


def _mixed(pictures: Sequence[Seen]) -> list[Seen]:
    wrong = [one for one in pictures if one.right is False]
    others = [one for one in pictures if one.right is not False]
    first = min(len(wrong), max(SHOWN // 3, SHOWN - len(others)))
    rest = SHOWN - first
    return [*wrong[:first], *others[:rest], *wrong[first:], *others[rest:]]


def _names(pictures: Iterable[Seen]) -> dict[str, int]:
    """A colour for each name in a box or a mask, in the order in which they come."""
    found: dict[str, int] = {}
    for one in pictures:
        for mask in (one.mask, one.found_mask):
            for name in mask.names if mask else ():  # a mask brings its colours with it
                found.setdefault(name, len(found))
    for one in pictures:
        for box in (*one.boxes, *one.found):
            found.setdefault(box.label, len(found))
    return found


def _colour(number: int) -> str:
    return "rgb({} {} {})".format(*COLOURS[number % len(COLOURS)])


def _swatch(number: int) -> str:
    return f'<i class="swatch" style="background:{_colour(number)}"></i>'


def _several(one: Seen) -> bool:
    """Whether it is shown more than once, side by side."""
    return bool(one.mask or one.found_mask or one.again)


def _common(pictures: Sequence[Seen]) -> bool:
    """Whether a number means the same in all masks, and a name is one thing: no instances."""
    masks = [m for one in pictures for m in (one.mask, one.found_mask) if m is not None]
    first = masks[0].names if masks else ()
    return bool(first) and len({*first}) == len(first) and all(m.names == first for m in masks)


def _legend(names: dict[str, int], pictures: Sequence[Seen]) -> str:
    """Names and colours, where they are those of all masks."""
    if not _common(pictures):
        return ""
    items = (
        f"<span>{_swatch(n)}{escape(name)}</span>"
        for name, n in names.items()
        if name != BACKGROUND
    )
    return f'<p class="legend">{"".join(items)}</p>'


# --- one picture ----------------------------------------------------------------------------------


def _cards(pictures: Sequence[Seen], names: dict[str, int]) -> str:
    if not pictures:
        return ""
    common = _common(pictures)
    wide = any(_several(one) for one in pictures)
    items = "".join(_card(one, names, common) for one in pictures)
    large = any(one.boxes or one.found for one in pictures)
    css = " wide-sights" if wide else " large-sights" if large else ""
    return f'<ul class="sights{css}">{items}</ul>'


def _card(one: Seen, names: dict[str, int], common: bool) -> str:
    css = {True: "right", False: "wrong", None: "open"}[one.right]
    segments = "" if common or one.found_mask is None else _segments(one.found_mask)
    return f'<li class="{css}">{_views(one, names)}{_told(one, names)}{segments}</li>'


def _segments(mask: Mask) -> str:
    """Each by its own colour, whatever its name."""
    items = (f"<span>{_swatch(n)}{escape(name)}</span>" for n, name in enumerate(mask.names))
    return f'<p class="told">{"".join(items)}</p>'


def _views(one: Seen, names: dict[str, int]) -> str:
    boxes = _boxes(one.boxes, names, "true") + _boxes(one.found, names, "found")
    views = [(word("pictures.view.picture"), picture(one.image, boxes, alt=_alt(one)))]
    for key, mask in (("mask", one.mask), ("found_mask", one.found_mask)):
        if mask is not None:
            views.append(
                (word(f"pictures.view.{key}"), picture(one.image, _mask(mask), css="grey"))
            )
    if one.again:
        views.append((word("pictures.view.again"), picture(one.again)))
    if len(views) == 1:
        return views[0][1]
    found = (
        f'<figure>{html}<figcaption class="note">{spans(name)}</figcaption></figure>'
        for name, html in views
    )
    return f'<div class="views">{"".join(found)}</div>'


def _alt(one: Seen) -> str:
    return escape(one.given or one.wanted)


def _mask(mask: Mask) -> str:
    return f'<img class="mask" alt="" src="data:image/png;base64,{escape(mask.image)}">'


def _boxes(boxes: Sequence[Box], names: dict[str, int], css: str) -> str:
    if not boxes:
        return ""
    rects = ""
    for box in boxes:
        left, top, right, bottom = (min(1.0, max(0.0, float(x))) for x in box.sides)
        rects += (
            f'<rect x="{left:.4f}" y="{top:.4f}" width="{max(0.0, right - left):.4f}" '
            f'height="{max(0.0, bottom - top):.4f}" style="stroke:{_colour(names[box.label])}"/>'
        )
    frame = 'viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true"'
    return f'<svg class="boxes {css}" {frame}>{rects}</svg>'


def _told(one: Seen, names: dict[str, int]) -> str:
    """The words below it."""
    lines = []
    if one.right is not None or one.given or one.wanted:
        lines.append(_answer(one))
    elif one.score is not None:
        key = "again" if one.again else "mask" if one.mask else "other"
        told = word(f"pictures.score.{key}", score=f"{one.score:.3g}")
        lines.append(f'<span class="note">{spans(told)}</span>')
    if one.boxes or one.found:
        lines += [_found(box, names) for box in one.found]
        missed = max(0, len(one.boxes) - len(one.found))
        if missed:
            told = word("pictures.missed", n=missed)
            lines.append(f'<span class="note wanted">{spans(told)}</span>')
    return f'<p class="told">{"".join(lines)}</p>' if lines else ""


def _answer(one: Seen) -> str:
    sign = {True: "✓ ", False: "✗ ", None: ""}[one.right]
    given = escape(one.given or one.wanted)
    parts = [f'<b><span class="sign" aria-hidden="true">{sign}</span>{given}</b>']
    if one.score is not None:
        parts.append(f'<span class="note">{one.score:.0%}</span>' if 0 <= one.score <= 1 else "")
    if one.right is not True and one.given and one.wanted and one.given != one.wanted:
        told = word("pictures.wanted", wanted=one.wanted)
        parts.append(f'<span class="note wanted">{spans(told)}</span>')
    return " ".join(parts)


def _found(box: Box, names: dict[str, int]) -> str:
    score = "" if box.score is None else f' <span class="note">{box.score:.0%}</span>'
    return f"<span>{_swatch(names[box.label])}{escape(box.label)}{score}</span>"


# --- drawn for a caption --------------------------------------------------------------------------


def _drawn(one: Seen) -> str:
    judged = [x.right for x in one.drawn if x.right is not None]
    verdict = ""
    if judged:
        verdict = spans(word("pictures.judged", right=sum(judged), drawn=len(judged)))
    items = "".join(f"<li>{picture(x.image, alt=_alt(one))}{_short(x)}</li>" for x in one.drawn)
    return (
        f'<figure class="drawn"><figcaption><b>{escape(one.wanted)}</b>'
        f'<span class="note">{verdict}</span></figcaption><ul class="sights">{items}</ul></figure>'
    )


def _short(one: Seen) -> str:
    """What a classifier found in it, and a re-ranker's score."""
    told: list[Pair] = []
    if one.given:
        told.append(said(("✓ " if one.right else "✗ " if one.right is False else "") + one.given))
    if one.score is not None:
        told.append(said(f"{one.score:.2f}"))
    css = {True: "right", False: "wrong", None: ""}[one.right]
    return f'<p class="told note {css}">{spans(joined(*told, by=" · "))}</p>' if told else ""
