"""How well images are told by texts, and texts by images: zero-shot accuracy and recall.

Legend: N images, M texts, C classes, W width of the vectors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 4096  # rows whose cosines are looked at together


def zero_shot(images: Tensor, classes: Tensor, texts: Tensor, said: Tensor, count: int) -> float:
    """The share of images whose nearest class is theirs: `zero_shot(x, labels, t, of, 10)`.

    `classes` N are the images', `said` M the texts'. A class has the vector of all its texts, as
    CLIP's ensembles of prompts do (Radford et al., 2021, section 3.1.4).
    """
    given = (images @ class_vectors(texts, said, count).T).argmax(-1)
    return float((given == classes).double().mean())


def class_vectors(texts: Tensor, said: Tensor, count: int) -> Tensor:
    """The mean direction of each class's texts, C W, of length 1."""
    sums = texts.new_zeros(count, texts.shape[1]).index_add_(0, said, texts)
    return F.normalize(sums, dim=-1)


def recall(queries: Tensor, wanted: Tensor, found: Tensor, said: Tensor) -> float:
    """Recall at 1: the share of queries whose nearest neighbour means the same.

    `wanted` says what each query means, `said` what each of those among which it is looked for
    does: several may, equal captions for one.
    """
    right = 0
    for first in range(0, len(queries), _CHUNK):
        rows, want = queries[first : first + _CHUNK], wanted[first : first + _CHUNK]
        right += int((said[(rows @ found.T).argmax(-1)] == want).sum())
    return right / len(queries)


def worst_wording(
    images: Tensor, classes: Tensor, texts: Tensor, said: Tensor, wording: Tensor, count: int
) -> float:
    """The lowest zero-shot accuracy with one of the wordings alone; `wording` M says which."""
    parts = [wording == i for i in torch.unique(wording)]
    return min(zero_shot(images, classes, texts[part], said[part], count) for part in parts)
