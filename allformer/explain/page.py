"""A page as one file: templates filled, with style sheet, script and data in it.

The templates lie beside this file. A page needs no network, no server and, to be read, no script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from allformer.explain.words import WORDS, Pair, label, script_words, spans


def write_page(
    path: str | Path, *, title: Pair, nav: Mapping[str, Pair], main: str, data: Mapping[str, object]
) -> Path:
    """Write the page: `main` is its content, `nav` the names of its sections by their ids."""
    links = "\n      ".join(f'<a href="#{key}">{spans(name)}</a>' for key, name in nav.items())
    script, style = _read("report.js"), _read("report.css")
    parts = {
        "title": title[0],
        "nav": links,
        "main": main,
        "style": style,
        "script": script,
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": _json({"words": script_words(), "title": title, **data}),
    }
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(filled("report.html", parts), encoding="utf-8", newline="\n")
    return file


def filled(template: str, parts: Mapping[str, str]) -> str:
    """A template with parts and words put in, in one pass: text stays text."""

    def fill(found: re.Match[str]) -> str:
        key = found[1]
        if key.startswith("@"):
            return label(WORDS[key[1:]])
        return parts[key] if key in parts else spans(WORDS[key])

    return re.sub(r"\{\{(@?[\w.]+)\}\}", fill, _read(template))


def paragraphs(pairs: Sequence[Pair]) -> str:
    """A `<p>` for each."""
    return "".join(f"<p>{spans(pair)}</p>" for pair in pairs)


def _read(name: str) -> str:
    return resources.files("allformer.explain").joinpath(name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON that may stand inside `<script>`: no "<" can end it, no "&" can be misread."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub(r"[<>&\u2028\u2029]", lambda sign: f"\\u{ord(sign[0]):04x}", text)
