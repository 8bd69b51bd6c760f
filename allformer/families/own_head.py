"""The head that a body's own family would put on it, so that transformers opens what is trained."""

from __future__ import annotations

from dataclasses import replace

from allformer import config
from allformer.errors import CheckpointError
from allformer.families import FAMILIES
from allformer.families.config_json import read_config, write_config
from allformer.families.heads import write_labels


def with_own_head(
    tree: config.Model, kind: str, labels: tuple[str, ...] = ("?",)
) -> config.Model | None:
    """The tree under its family's head for "class", "token", "span" or "choice": RoBERTa's for
    classes has a layer of its own, GPT-2's no bias. None where no family has such a body or head.

    >>> with_own_head(preset("roberta-base"), "class", ("no", "yes")).head.dense
    'tanh'
    """
    try:
        raw, known = write_config(replace(tree, head=None))  # type: ignore[call-arg]
    except CheckpointError:
        return None
    kinds = FAMILIES[known.family].architectures
    name = next((name for name, other in kinds.items() if other == kind), None)
    if name is None:
        return None
    raw |= write_labels(config.ClassHead(labels, at="token"))
    headed = read_config(raw, architecture=name)[0]
    if type(headed) is not type(tree):  # T5's for tokens has the encoder alone
        return None
    pool = {"pool": headed.pool} if isinstance(tree, config.EncoderOnly) else {}
    return replace(tree, head=headed.head, **pool)  # type: ignore[call-arg]
