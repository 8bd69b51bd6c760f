"""`allformer demo --vision` and `--audio`."""

from __future__ import annotations

import json
from pathlib import Path

from allformer.cli.common import say
from allformer.demo_room import Demo


def show_vision(out: Path, overrides: tuple[str, ...], device: str, as_json: bool) -> None:
    """Run the demo of models that see, and say what came of it."""
    from allformer.demo_vision import demo_vision

    result = demo_vision(out, overrides=overrides, device=device, say=say)
    _tell(result, as_json, "", "查看报告")


def show_audio(out: Path, overrides: tuple[str, ...], device: str, as_json: bool) -> None:
    """Run the demo of models that hear and speak, and say what came of it."""
    from allformer.demo_audio import demo_audio

    result = demo_audio(out, overrides=overrides, device=device, say=say)
    _tell(result, as_json, ", and listen", "查看并收听")


def _tell(result: Demo, as_json: bool, also: str, look: str) -> None:
    if as_json:
        told = {"report": str(result.report), "seconds": result.seconds, **result.scores}
        print(json.dumps(told, ensure_ascii=False))
        return
    for name, scores in result.scores.items():
        figures = ", ".join(f"{key.replace('_', ' ')} {x:.3g}" for key, x in scores.items())
        print(f"{name:<12} {figures}")
    print(f"\n{result.seconds:.0f} s in all. Open {result.report} in a browser{also}.")
    print(f"打开 {result.report} {look}（可切换中文）。")
