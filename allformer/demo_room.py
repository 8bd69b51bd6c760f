"""A directory for a demo: an earlier one of its own kind is removed, and nothing else; and what
comes of one."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from allformer.errors import CheckpointError
from allformer.version import __version__


@dataclass(frozen=True)
class Demo:
    """Where the page is, and the figures of each model on what was held out."""

    run: Path
    report: Path
    scores: dict[str, dict[str, float]]
    seconds: float


def make_room(out: Path, mark: str) -> None:
    """`make_room(Path("demo-audio"), "audio-demo.json")`: empty but for the mark."""
    if out.exists() and any(out.iterdir()):
        if not (out / mark).is_file():
            raise CheckpointError(f"{out} holds something else than this demo; give another --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / mark).write_text(json.dumps({"allformer": __version__}) + "\n", encoding="utf-8")
