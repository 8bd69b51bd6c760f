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
        if self.bias is not None:  # each pair by itself: it belongs together, or it does not
            sign = 2 * torch.eye(texts, dtype=scores.dtype, device=scores.device) - 1
            return -F.logsigmoid(sign * scores).sum(-1).mean()
        own = torch.arange(texts, device=scores.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2


def unit(x: Tensor) -> Tensor:
    """Vectors of length one."""
    return torch.div(x, torch.linalg.vector_norm(x, dim=-1, keepdim=True))
