"""The figures of a sound codec by bit rate, as HTML.

rate_table({"si_sdr_at_450": 3.1, "spectral_at_450": 9.0, …})
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from allformer.config import SoundCodec
from allformer.explain.words import Pair, spans, word

_AT = re.compile(r"(si_sdr|spectral)_at_(\d+)")
MEASURES = ("si_sdr", "spectral")


def sound_codec_lead(tree: SoundCodec) -> Pair:
    """What a codec makes of a second of sound."""
    sizes = {"books": tree.books, "codes": f"{tree.codes:,}", "frames": f"{tree.pace:g}"}
    plain = _kbit(16 * tree.rate * tree.channels)
    return word("lead.sound-codec", **sizes, kbit=f"{tree.bits / 1000:g}", plain=plain)


def rate_table(scores: Mapping[str, Any]) -> str:
    """A row for each bit rate; nothing where no figure belongs to one."""
    found: dict[int, dict[str, float]] = {}
    for key, value in scores.items():
        if match := _AT.fullmatch(key):
            found.setdefault(int(match[2]), {})[match[1]] = value
    if not found:
        return ""
    names = ("rate.kbit", *(f"rate.{name}" for name in MEASURES))
    head = "".join(f'<th scope="col" class="n">{spans(word(name))}</th>' for name in names)
    rows = "".join(_row(bits, found[bits]) for bits in sorted(found))
    return (
        f'<div class="wide"><table class="rates"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
        f'<p class="note">{spans(word("rate.note"))}</p>'
    )


def without_rates(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The other figures."""
    return {key: value for key, value in scores.items() if not _AT.fullmatch(key)}


def rate_name(key: str) -> Pair | None:
    """What `si_sdr_at_450` is called; None of a figure that belongs to no bit rate."""
    match = _AT.fullmatch(key)
    return None if match is None else word(f"rate.{match[1]}.at", kbit=_kbit(int(match[2])))


def _row(bits: int, found: Mapping[str, float]) -> str:
    cells = (f"{found[name]:.2f}" if name in found else "–" for name in MEASURES)
    told = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row" class="n">{_kbit(bits)}</th>{told}</tr>'


def _kbit(bits: int) -> str:
    return f"{bits / 1000:g}"
