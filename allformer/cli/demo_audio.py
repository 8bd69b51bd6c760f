"""`allformer demo --audio`."""

from __future__ import annotations

import json
from pathlib import Path

from allformer.cli.common import say


def show_audio(out: Path, overrides: tuple[str, ...], device: str, as_json: bool) -> None:
    """Run the demo, and say what came of it."""
    from allformer.demo_audio import demo_audio

    result = demo_audio(out, overrides=overrides, device=device, say=say)
    if as_json:
        told = {"report": str(result.report), "seconds": result.seconds, **result.scores}
        print(json.dumps(told, ensure_ascii=False))
        return
    for name, scores in result.scores.items():
        figures = ", ".join(f"{key.replace('_', ' ')} {x:.3g}" for key, x in scores.items())
        print(f"{name:<12} {figures}")
    print(f"\n{result.seconds:.0f} s in all. Open {result.report} in a browser, and listen.")
    print(f"打开 {result.report} 查看并收听（可切换中文）。")
