"""`allformer replay RUN/replay/step-….pt`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import Device, show

REPLAY = (
    "Example: `allformer replay runs/mine/replay/step-00000600.pt`, which training keeps when a "
    "loss is not finite, or jumps (`--set log.spike=8`)"
)


def replay(
    step: Annotated[Path, typer.Argument(help="A step that training kept: RUN/replay/step-….pt")],
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> None:
    """Compute a step that went wrong again, and show every layer's extremes."""
    from allformer.train.watch.replay import replay as again

    found = again(step, device)
    if as_json:
        print(json.dumps(_plain(found), ensure_ascii=False))
        return
    print(f"{found.run}, step {found.step:,} (learning rate {found.rate:.3g}): {found.why}")
    later = f"; weights of after step {found.weights_after:,}"
    print(f"loss {found.loss:.6g} then, {found.look.loss:.6g} now{later}\n")
    for title in ("values", "weights", "gradients"):
        show(_table(title, getattr(found.look, title)))
    first = found.look.first_bad
    print("all values are finite" if first is None else f"first value that is not finite: {first}")


def _table(title: str, rows: Any) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(title, overflow="fold")
    for name in ("shape", "least", "largest", "not finite"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shape = "×".join(map(str, row.shape)) or "–"
        bad = f"{row.bad:,}" if row.bad else ""
        style = "bold red" if row.bad else None
        table.add_row(row.name, shape, f"{row.low:.4g}", f"{row.high:.4g}", bad, style=style)
    return table


def _plain(found: Any) -> dict[str, Any]:
    look, first = found.look, found.look.first_bad
    return {
        "run": str(found.run),
        **{name: getattr(found, name) for name in ("step", "rate", "why", "weights_after")},
        "loss_then": str(found.loss),
        "loss": str(look.loss),
        "first_bad": None if first is None else first.name,
        **{
            name: [row._asdict() for row in getattr(look, name)]
            for name in ("values", "weights", "gradients")
        },
    }
