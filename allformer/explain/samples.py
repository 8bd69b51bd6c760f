"""Sample translations as HTML, with what differs from the reference marked in both."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from typing import TypeVar

from allformer.explain.words import spans, word

SHOWN = 12  # the rest folds away
R = TypeVar("R")

# A word in a script with spaces, a run of spaces, or any single sign (a Chinese character, say).
_UNIT = re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|\s+|.", re.DOTALL)


@dataclass(frozen=True)
class Sample:
    """A sentence, what the model made of it, and how it should be translated (if known)."""

    source: str
    reference: str | None
    output: str

    @property
    def exact(self) -> bool | None:
        """Whether output and reference agree to the letter; None without a reference."""
        return None if self.reference is None else self.output.strip() == self.reference.strip()


def differences(output: str, reference: str) -> tuple[str, str]:
    """Both texts as HTML: the output's extra parts in `<del>`, the reference's in `<ins>`."""
    a, b = _UNIT.findall(output), _UNIT.findall(reference)
    left, right = [], []
    for tag, i, j, k, l in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        mine, theirs = escape("".join(a[i:j])), escape("".join(b[k:l]))
        same = tag == "equal"
        left.append(mine if same or not mine else f"<del>{mine}</del>")
        right.append(theirs if same or not theirs else f"<ins>{theirs}</ins>")
    return "".join(left), "".join(right)


def sample_list(samples: Sequence[Sample]) -> str:
    """The whole section's content."""
    if not samples:
        return f"<p>{spans(word('samples.none'))}</p>"
    known = [sample.exact for sample in samples if sample.exact is not None]
    told = word("samples.exact", right=sum(known), shown=len(known))
    html = f"<p>{spans(told)}</p>" if known else ""
    return html + folded(samples, _items)


def folded(rows: Sequence[R], items: Callable[[Sequence[R]], str]) -> str:
    """The first of them in sight, the rest to be unfolded."""
    html = items(rows[:SHOWN])
    if rest := rows[SHOWN:]:
        more = spans(word("samples.more", n=len(rest)))
        html += f"<details><summary>{more}</summary>{items(rest)}</details>"
    return html


def _items(samples: Sequence[Sample]) -> str:
    return f'<ol class="samples">{"".join(map(_item, samples))}</ol>'


def _item(sample: Sample) -> str:
    output, reference = escape(sample.output), escape(sample.reference or "")
    sign, css, verdict = {
        True: ("✓", "right", "samples.same"),
        False: ("✗", "wrong", "samples.differs"),
        None: ("·", "open", "samples.unknown"),
    }[sample.exact]
    if sample.exact is False:
        output, reference = differences(sample.output.strip(), str(sample.reference).strip())
    rows = _row("samples.source", escape(sample.source), "source")
    rows += _row("samples.output", output or f"<i>{spans(word('samples.empty'))}</i>", "output")
    if sample.exact is False:
        rows += _row("samples.reference", reference, "reference")
    told = spans(word(verdict))
    return (
        f'<li class="{css}"><span class="sign" aria-hidden="true">{sign}</span>'
        f'<dl>{rows}</dl><span class="verdict">{told}</span></li>'
    )


def _row(key: str, html: str, css: str) -> str:
    # dir: an Arabic or Hebrew sentence runs its own way
    return f'<dt>{spans(word(key))}</dt><dd class="{css}" dir="auto">{html}</dd>'
