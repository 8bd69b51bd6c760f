"""How every task is called: with a pipeline or a path, with one text or many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from allformer.errors import DataError
from allformer.tasks.pipeline import Pipeline, Source, as_pipeline

P = ParamSpec("P")
R = TypeVar("R")


class Task(Protocol[P, R]):
    """One text in, one result out; a list in, a list out."""

    @overload
    def __call__(
        self, pipeline: Source, texts: str, /, *args: P.args, **options: P.kwargs
    ) -> R: ...
    @overload
    def __call__(
        self, pipeline: Source, texts: Sequence[Any], /, *args: P.args, **options: P.kwargs
    ) -> list[R]: ...


def task(function: Callable[Concatenate[Pipeline, list[str], P], list[R]]) -> Task[P, R]:
    """Let a function of a pipeline and a list take a path too, and one text too."""

    @wraps(function)
    def call(pipeline: Source, texts: Any, /, *args: P.args, **options: P.kwargs) -> Any:
        many = [texts] if isinstance(texts, str) else list(texts)
        if not many:
            return []
        found = function(as_pipeline(pipeline), many, *args, **options)
        return found[0] if isinstance(texts, str) else found

    return call


def check_texts(texts: Sequence[Any], what: str = "text") -> None:
    """Refuse what is no text: `check_texts(["a", None])` names the second."""
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"{what} {i + 1} is {text!r}; it must be a text (str)")
