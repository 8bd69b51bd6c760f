"""`--draft`, `--lookup` and `--cache`: what may help a model that writes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from allformer.cli.common import INT8, checked, given, open_model
from allformer.errors import AllformerError

Draft = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="A smaller model that guesses ahead; the text is the same."),
]
Lookup = Annotated[
    int | None,
    typer.Option(metavar="N", help="Guess N tokens ahead from what the text has said before."),
]
Memory = Annotated[
    str | None, typer.Option("--cache", help="int8: keys and values in half the memory or less.")
]


def aids(
    draft: str | None,
    lookup: int | None,
    cache: str | None,
    num_beams: int | None,
    dtype: str | None,
) -> dict[str, Any]:
    """The options that were given, checked before a model is opened; `fit_draft` opens the other
    one."""
    refuse_beams(draft, lookup, num_beams)
    if dtype == INT8 and (helped := given(draft=draft, lookup=lookup, cache=cache)):
        raise AllformerError(f"--dtype int8 goes with no --{next(iter(helped))}; leave one out")
    if draft is not None and lookup is not None:
        raise AllformerError("--draft and --lookup both guess ahead; give one of them")
    if cache not in (None, "int8"):
        raise AllformerError(f"--cache {cache} is not a choice; try int8, or leave it out")
    flags = {"prompt_lookup_num_tokens": "--lookup"}
    return checked(flags, prompt_lookup_num_tokens=lookup) | given(cache=cache)


def refuse_beams(
    draft: str | None, lookup: int | None, given: int | None, own: int | None = None
) -> None:
    """Guesses are for one text of each prompt, not for beams: `given` ones, or the checkpoint's."""
    flag = "--lookup" if draft is None else "--draft"
    if draft is None and lookup is None:
        return
    if (given or 1) > 1:
        raise AllformerError(f"{flag} cannot guess for --num-beams {given}; leave one of them out")
    if given is None and (own or 1) > 1:
        raise AllformerError(
            f"{flag} cannot guess for the checkpoint's num_beams={own}; give --num-beams 1"
        )


def fit_draft(draft: str, pipeline: Any, device: str | None, dtype: str | None) -> Any:
    """The smaller model, which must have the same tokens as the one of the pipeline."""
    other = open_model(draft, device, dtype)
    both = pipeline.tokenizer, other.tokenizer
    shared = range(min(map(len, both)))  # one of them may have had some added
    if both[0].tokens(shared) != both[1].tokens(shared):
        raise AllformerError(
            f"--draft {draft} has other tokens than {pipeline.directory}; give a smaller model of "
            f"the same family, with the same tokeniser"
        )
    return other.model
