"""Held-out sounds with what a model made of them, as HTML: transcripts, what a codec gives back,
continuations."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape

from allformer.explain.sound.player import player, seconds
from allformer.explain.words import Pair, spans, word
from allformer.train.heard import Heard
from allformer.train.predictions import Predictions

SHOWN = 8  # the rest folds away


def sound_list(predictions: Predictions) -> str:
    """All sounds: continuations as they came, else mistakes first, though not mistakes alone."""
    continued = any(one.prompt for one in predictions.sounds)
    sounds = list(predictions.sounds) if continued else _mixed(predictions.sounds)
    judged = [one.right for one in sounds if one.right is not None]
    html = ""
    if judged:
        key = "sounds.judged" if continued else "examples.right"
        told = word(key, right=sum(judged), shown=len(judged))
        html = f"<p>{spans(told)}</p>"
    longest = max((seconds(one.sound) for one in sounds), default=0.0)
    html += _cards(sounds[:SHOWN], longest)
    if more := sounds[SHOWN:]:
        html += (
            f"<details><summary>{spans(word('sounds.more', n=len(more)))}</summary>"
            f"{_cards(more, longest)}</details>"
        )
    return html


def about_sounds(predictions: Predictions) -> Pair:
    """What to know when listening, by what there is."""
    sounds = predictions.sounds
    if any(one.versions for one in sounds):
        return word("sounds.versions")
    return word("sounds.continued" if any(one.prompt for one in sounds) else "sounds.transcripts")


def _mixed(sounds: Sequence[Heard]) -> list[Heard]:
    wrong = [one for one in sounds if one.right is False]
    others = [one for one in sounds if one.right is not False]
    first = min(len(wrong), max(SHOWN // 3, SHOWN - len(others)))
    rest = SHOWN - first
    return [*wrong[:first], *others[:rest], *wrong[first:], *others[rest:]]


def _cards(sounds: Sequence[Heard], longest: float) -> str:
    css = " in-versions" if any(one.versions for one in sounds) else ""
    return f'<ul class="sounds{css}">{"".join(_card(one, longest) for one in sounds)}</ul>'


def _card(one: Heard, longest: float) -> str:
    css = {True: "right", False: "wrong", None: "open"}[one.right]
    if one.versions:
        return f'<li class="{css}">{_versions(one, longest)}</li>'
    shown = player(one.sound, words=one.words, prompt=one.prompt, longest=longest)
    return f'<li class="{css}">{_told(one)}{shown}</li>'


def _told(one: Heard) -> str:
    """The words above it: who speaks, what was made of it, what it should have been."""
    who = f'<span class="who">{escape(one.name)}</span>' if one.name else ""
    if not (one.given or one.wanted):
        return f'<p class="told">{who}</p>' if who else ""
    sign = {True: "✓ ", False: "✗ ", None: ""}[one.right]
    given, wanted = (text.split() for text in (one.given, one.wanted))
    wrong = one.right is False
    said = _marked(given, wanted, "del") if wrong else escape(one.given or one.wanted)
    if not one.given:
        said = spans(word("samples.empty")) if wrong else said
    html = f'{who}<b><span class="sign" aria-hidden="true">{sign}</span>{said}</b>'
    if wrong and wanted:
        text = _marked(wanted, given, "ins")
        html += f'<span class="wanted">{spans(word("sounds.wanted"))} {text}</span>'
    return f'<p class="told">{html}</p>'


def _marked(words: list[str], other: list[str], tag: str) -> str:
    """The words, those that the other has not in `tag`."""
    parts = []
    for kind, first, last, _, _ in SequenceMatcher(None, words, other, False).get_opcodes():
        text = escape(" ".join(words[first:last]))
        if text:
            parts.append(text if kind == "equal" else f"<{tag}>{text}</{tag}>")
    return " ".join(parts)


def _versions(one: Heard, longest: float) -> str:
    """The sound as it was, and each version of it, side by side."""
    views = [(spans(word("sounds.original")), one)]
    views += [(f"{escape(x.name)}{_score(x)}", x) for x in one.versions]
    cells = (
        f'<figure>{player(x.sound, longest=longest)}<figcaption class="note">{name}</figcaption>'
        f"</figure>"
        for name, x in views
    )
    told = " · ".join(filter(None, (one.name, one.wanted)))
    head = f'<p class="told">{escape(told)}</p>' if told else ""
    return f'{head}<div class="versions">{"".join(cells)}</div>'


def _score(one: Heard) -> str:
    if one.score is None:
        return ""
    return " · " + spans(word("sounds.score", score=f"{one.score:.1f}"))
