"""A room for chat templates, which are programs from strangers: jinja2's sandbox, with bounds.

jinja2 keeps a template away from Python's insides, but not from the clock and the memory:
`{{ 10**100000000 }}` computes for minutes, sixty lines of `a = a ~ a` fill any machine. Here what a
single operation can make large is measured before it is done, and the lines that run are counted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

LINES = 1_000_000  # of the compiled template; real ones run some thousands
LONGEST = 10_000_000  # characters or items of one value
BITS = 4_096  # of a number
# Methods and filters whose numbers are sizes of what comes out.
SIZED = frozenset("center ljust rjust zfill expandtabs indent slice batch tojson wordwrap".split())  # noqa: SIM905
JOINED = frozenset(("replace", "join"))
_WIDTH = re.compile(r"\d{6,}|%[^a-zA-Z%]*\*|\{[^{}]*\{")  # or one that is given elsewhere


class Code(CodeGenerator):
    """jinja2's compiler, with a `~` that is measured."""

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:
        self.write("environment.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Room(ImmutableSandboxedEnvironment):
    """`Room(trim_blocks=True).from_string("{{ 1 + 1 }}")`; render it inside `bounded()`."""

    code_generator_class = Code
    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.globals.pop("lipsum", None)  # text at will
        for name in (SIZED | JOINED | {"format"}) & self.filters.keys():
            self.filters[name] = measured(name, self.filters[name])

    def concat(self, parts: Iterable[str]) -> str:
        """What a template, a macro or a block writes, joined; `~` too."""
        total, texts = 0, []
        for part in parts:
            total += len(part)
            _check_length(total)
            texts.append(part)
        return "".join(texts)

    def join(self, values: Iterable[Any]) -> str:
        """`a ~ b`."""
        return self.concat(map(str, values))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_widths(left)
        elif operator == "+" and isinstance(left, str | list | tuple):
            _check_length(len(left) + (len(right) if hasattr(right, "__len__") else 0))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, /, *args: Any, **options: Any) -> Any:
        plain = getattr(function, "__wrapped__", function)  # jinja2 has its own str.format
        name, owner = getattr(plain, "__name__", ""), getattr(plain, "__self__", None)
        if isinstance(owner, str):
            _check_call(name, (owner, *args), options)
        return super().call(context, function, *args, **options)


def measured(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is refused where what it makes would be too large."""

    @wraps(filter_)
    def call(*args: Any, **options: Any) -> Any:
        _check_call(name, args, options)
        return filter_(*args, **options)

    return call


def _check_call(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    given = [*args, *options.values()]
    if name in SIZED and any(isinstance(x, int) and abs(x) > 1_000_000 for x in given):
        raise SecurityError(f"{name} of more than a million is refused in a chat template")
    if name in ("format", "format_map"):
        _check_widths(*(x for x in given if isinstance(x, str)))
    if name in JOINED:  # how often a text is put in, times its length
        sizes = [len(x) if hasattr(x, "__len__") else 1 for x in given]
        _check_length(max(sizes, default=0) * max(sizes[1:2] + sizes[-1:], default=0))


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        _check_bits(base.bit_length() * exponent)


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    for many, times in ((left, right), (right, left)):
        if isinstance(times, int) and hasattr(many, "__len__"):
            _check_length(len(many) * times)


def _check_bits(bits: int) -> None:
    if bits > BITS:
        raise SecurityError(f"a number of more than {BITS} bits is refused in a chat template")


def _check_length(length: int) -> None:
    if length > LONGEST:
        raise SecurityError(f"a value of more than {LONGEST:,} items is refused in a chat template")


def _check_widths(*forms: str) -> None:
    if any(_WIDTH.search(form) for form in forms):
        raise SecurityError("a format as wide as one likes is refused in a chat template")


@contextmanager
def bounded() -> Iterator[None]:
    """Count the lines that the template runs; too many are an error.

    By Python's own tracing, which sees template code alone and is put back as it was.
    """
    lines = 0

    def follow(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines > LINES:
            raise SecurityError(f"it runs more than {LINES:,} lines, and is stopped")
        return follow

    def enter(frame: Any, event: str, _: Any) -> Any:
        return follow if frame.f_code.co_filename == "<template>" else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
