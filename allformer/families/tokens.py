"""The vocabulary and its special ids, in config.json."""

from __future__ import annotations

from typing import Any

from allformer.config import Source, Tokens
from allformer.families.family import fit
from allformer.families.fields import Fields

SPECIAL = ("pad", "bos", "eos")


def read_tokens(fields: Fields, size: int | None = None, **shape: Any) -> Tokens:
    """`vocab_size` and the ids within it: `read_tokens(fields, types=2)`.

    A decoder may have a vocabulary of another `size`: then the ids lie within both.
    """
    vocab = fields.take("vocab_size")
    size = size or vocab
    ids: dict[str, Any] = {
        f"{x}_id": fields.token(f"{x}_token_id", min(vocab, size)) for x in SPECIAL
    }
    return Tokens(size, **ids, **shape)


def write_tokens(source: Source) -> dict[str, Any]:
    """The inverse of `read_tokens`."""
    tokens = fit(source, Tokens, "reads no tokens")
    ids = {f"{x}_token_id": getattr(tokens, f"{x}_id") for x in SPECIAL}
    return {"vocab_size": tokens.vocab, **ids}
