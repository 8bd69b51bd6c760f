"""The loss of pairs, both ways or each by itself, over the pairs of all ranks.

Legend: B pairs of this rank, A those of all ranks, W width of the vectors.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from allformer.core.heads.contrast import each_pair, one_way
from allformer.train.parallel.collectives import gathered


def pair_loss(
    head: Any, text: Tensor, image: Tensor, meaning: Tensor, shares: Tensor, others: Any = None
) -> Tensor:
    """The loss of B pairs, summed: unit vectors B W each, and what each pair means, B.

    `shares` B B says how much of image i is the image of pair k, where images are mixed. With
    `others`, a group of ranks, this rank's texts are compared with the images of all, and its
    images with the texts of all; what all ranks sum up is the loss of the whole.
    """
    texts, images, meanings = text, image, meaning
    if others is not None:
        texts, images, meanings = (gathered(x, others, 0) for x in (text, image, meaning))
    same = meaning[:, None] == meanings[None]  # B A
    belongs = shares @ same.to(shares.dtype)  # B A, of each image to each text
    by_image = head.compare(texts, image)["logits_per_image"]
    if head.bias is not None:
        return each_pair(by_image, belongs).sum()
    by_text = head.compare(text, images)["logits_per_text"]
    back = belongs if others is None else _own_columns(gathered(belongs, others, 0), others)
    return (one_way(by_text, back.t()) + one_way(by_image, belongs)).sum() / 2


def _own_columns(x: Tensor, group: Any) -> Tensor:
    """Of what all ranks have, A A, the part that is about this rank's texts, A B."""
    count = x.shape[1] // dist.get_world_size(group)
    first = dist.get_rank(group) * count
    return x[:, first : first + count]
