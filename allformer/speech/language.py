"""Which language is spoken: what stands after <|startoftranscript|>, of the languages alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from allformer.errors import TaskError
from allformer.speech.listener import Listens


@torch.inference_mode()
def detect_language(listener: Listens, memory: Tensor) -> list[dict[str, float]]:
    """The probability of each language in each window; `memory` (A S dim) is of the encoder.

    >>> [chances] = detect_language(listener, listener.encode(mel))
    >>> max(chances, key=chances.get)
    'zh'
    """
    vocabulary = listener.vocabulary
    if not vocabulary.multilingual:
        raise TaskError(
            "this model knows English alone, so there is no language to detect; give a checkpoint "
            "without .en in its name"
        )
    start = torch.full((len(memory), 1), vocabulary.begin, device=memory.device)
    scores = listener.begin(start, memory, at=0).next
    ids = torch.tensor(list(vocabulary.languages.values()), device=scores.device)
    chances = scores.index_select(1, ids).softmax(-1).tolist()
    return [dict(zip(vocabulary.languages, row, strict=True)) for row in chances]


def spoken_language(listener: Listens, asked: str | None, memory: Callable[[], Tensor]) -> str:
    """The language that is asked for, else the likeliest in what `memory()` encodes, one window."""
    vocabulary = listener.vocabulary
    if asked is not None:
        return vocabulary.language(asked)
    if not vocabulary.multilingual:
        return "en"
    [chances] = detect_language(listener, memory())
    return max(chances, key=chances.__getitem__)
