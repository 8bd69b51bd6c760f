"""`allformer reproduce [NAME]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import Device, say, show

REPRODUCE = (
    "Examples: `allformer reproduce` lists them; `allformer reproduce tiny-shakespeare-cpu`; "
    "`allformer reproduce sst2-bert --data corpora/sst2 --out runs/sst2 --device cpu`"
)


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Which one; without it all are listed.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder with its files; default: their public home.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run; default: runs/NAME.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The checkpoint to tune, where one is tuned.")
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe, and what is reproduced.")
    ] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for scripts.")] = False,
) -> None:
    """Train a small published result end to end, and say whether its score is reached.

    Ends with status 0 where it is, with 1 where it is missed. A run that was interrupted goes on.
    """
    from allformer.reproduce import entries, find
    from allformer.reproduce import reproduce as run

    if name is None:
        listed = entries()
        if as_json:
            print(json.dumps({each: _plain(entry) for each, entry in listed.items()}))
        else:
            from allformer.cli.tables import entries_table

            show(entries_table(listed.values()))
        return
    entry = find(name)
    outcome = run(
        entry, data=data, out=out, device=device, model=model, overrides=set or (), say=say
    )
    if as_json:
        found = {"score": outcome.score, "passed": outcome.passed, "seconds": outcome.seconds}
        print(json.dumps({"name": name, **_plain(entry), **found, "run": str(outcome.run)}))
    else:
        from allformer.reproduce.verdict import verdict

        print("\n".join(verdict(outcome, data, changed=bool(set))))
    if not outcome.passed:
        raise typer.Exit(1)


def _plain(entry: Any) -> dict[str, Any]:
    score = entry.score
    return {
        "figure": score.figure,
        "expected": score.expected,
        "tolerance": score.tolerance,
        "published": entry.published,
        "time": entry.time,
        "seen": entry.seen,
    }
