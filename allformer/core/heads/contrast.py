"""Texts against images: cosines, scaled, and the loss by which each finds its own.

Legend: B texts, I images, W width of the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.heads.head import Head
from allformer.core.heads.vector import VectorHead
from allformer.core.precision import widen
from allformer.core.registry import implements
from allformer.core.taps import tap
from allformer.errors import ConfigError


@implements(config.Contrast)
class Contrast(Head):
    """The head of two towers: e^s · cos(text, image)."""

    gives = ("logits_per_image", "logits_per_text")
    targets = ()

    def __init__(
        self, head: config.Contrast, stack: config.Stack, path: str, *, text: config.Stack
    ) -> None:
        """On the `stack` that reads images, and the one that reads `text`."""
        super().__init__(head, stack, path)
        self.text = VectorHead(head.text, text, f"{path}.text")
        self.image = VectorHead(head.image, stack, f"{path}.image")
        self.scale = nn.Parameter(torch.empty(()))  # s
        self.bias = None if head.bias is None else nn.Parameter(torch.empty(()))

    def reset_parameters(self) -> None:
        """As the config says."""
        nn.init.constant_(self.scale, self.config.scale)
        if self.bias is not None:
            nn.init.constant_(self.bias, self.config.bias)

    def compare(self, text: Tensor, image: Tensor) -> dict[str, Tensor]:
        """The scores of unit vectors B W and I W: I B, and the other way round."""
        scores = text @ image.t() * self.scale.exp().to(text.dtype)
        if self.bias is not None:
            scores = scores + self.bias.to(text.dtype)
        scores = tap(self, "scores", scores)  # B I
        return {"logits_per_image": scores.t(), "logits_per_text": scores}

    def mismatch(self, answer: Mapping[str, Tensor]) -> Tensor:
        """The loss: text i belongs to image i, looked for both ways; in at least fp32."""
        scores = widen(answer["logits_per_text"])
        texts, images = scores.shape
        if texts != images:
            raise ConfigError(
                f"return_loss=True with {texts} texts and {images} images: text i belongs to "
                f"image i; give as many of each"
            )
        own = torch.eye(texts, dtype=scores.dtype, device=scores.device)
        if self.bias is not None:
            return each_pair(scores, own).mean()
        return (one_way(scores, own) + one_way(scores.t(), own)).mean() / 2


def one_way(scores: Tensor, belongs: Tensor) -> Tensor:
    """−Σⱼ qᵢⱼ log softmax(s)ᵢⱼ of each row, n m → n: how far it is from finding its own (InfoNCE).

    `belongs` n m says how much each column belongs to the row, 0 to 1, and q is what that makes of
    1: a row that has several columns (equal captions) is not to tell them from each other. Of a row
    that has none, nothing is asked.
    """
    total = belongs.sum(-1)
    found = total * scores.logsumexp(-1) - (belongs * scores).sum(-1)
    return found / torch.where(total > 0, total, 1)


def each_pair(scores: Tensor, belongs: Tensor) -> Tensor:
    """−Σⱼ bᵢⱼ log σ(sᵢⱼ) + (1 − bᵢⱼ) log σ(−sᵢⱼ) of each row, n m → n: each pair by itself belongs
    together, or it does not (SigLIP)."""
    return F.binary_cross_entropy_with_logits(scores, belongs, reduction="none").sum(-1)


def unit(x: Tensor) -> Tensor:
    """Vectors of length one."""
    return torch.div(x, torch.linalg.vector_norm(x, dim=-1, keepdim=True))
