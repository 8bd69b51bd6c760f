"""The loss of pairs, both ways or each by itself, over the pairs of all ranks.

Legend: B pairs of this rank, W width of the vectors.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from allformer.core.heads.contrast import each_pair, one_way
from allformer.train.parallel.collectives import gathered


def pair_loss(
    head: Any, text: Tensor, image: Tensor, meaning: Tensor, others: Any = None
) -> Tensor:
    """The loss of B pairs, summed: unit vectors B W each, and what each pair means, B.

    With `others`, a group of ranks, this rank's texts are compared with the images of all, and its
    images with the texts of all; what all ranks sum up is the loss of the whole.
    """
    texts, images, meanings = text, image, meaning
    if others is not None:
        texts, images = gathered(text, others, 0), gathered(image, others, 0)
        meanings = gathered(meaning, others, 0)
    same = meaning[:, None] == meanings[None]  # B, those of all
    by_image = head.compare(texts, image)["logits_per_image"]
    if head.bias is not None:
        return each_pair(by_image, same).sum()
    by_text = head.compare(text, images)["logits_per_text"]
    return (one_way(by_text, same) + one_way(by_image, same)).sum() / 2
