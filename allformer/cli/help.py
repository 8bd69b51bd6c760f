"""How `--help` looks: of a flag no type, of all others what to write; an example a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

_VALUES = {"<int>": "N", "<float>": "X", "<path>": "PATH"}  # what typer says, and what to write


class App(typer.Typer):
    """A `typer.Typer` whose verbs show their help so."""

    def command(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        """As typer's; `epilog="Examples: `a`; `b`"` becomes a list."""
        options["cls"] = _Verb
        options["epilog"] = _listed(options.get("epilog") or "")
        return super().command(*args, **options)


class Verbs(TyperGroup):
    """The verbs together: `allformer --help`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, plainly."""
        return [_plain(each, ctx) for each in super().get_params(ctx)]


class _Verb(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return [_plain(each, ctx) for each in super().get_params(ctx)]


def _plain(parameter: Any, ctx: Any) -> Any:
    if not hasattr(parameter, "display_type"):
        return parameter  # an older typer, whose help is plain
    if isinstance(parameter, TyperArgument):  # MODEL says enough: it is no "<str>"
        parameter.metavar = parameter.metavar or (parameter.name or "").upper()
        parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
    elif parameter.metavar is None:
        flag = getattr(parameter, "is_flag", False)
        parameter.metavar = "" if flag else _VALUES.get(parameter.display_type(ctx), "TEXT")
    return parameter


def _listed(epilog: str) -> str:
    """Each example on a line of its own, where there are several."""
    first, *rest = epilog.split("; `")
    if not rest:
        return epilog
    head, _, example = first.partition(": ")
    return "\n\n".join([f"{head}:", f"- {example}", *(f"- `{each}" for each in rest)])
