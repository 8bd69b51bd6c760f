"""What heads have in common that give scores over labels for each place of an image.

Legend: B images, L labels, H and W rows and columns of scores, I and J those of pixels.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from allformer.core.heads.head import Head, Hidden
from allformer.core.loss import IGNORE, Sums, check_targets
from allformer.core.pixel_loss import pixel_entropy


class PerPixel(Head):
    """Gives `logits`, B L H W; learns from `labels`, B I J, of any size: the scores are resized
    to it. −100 does not count."""

    def shape(self, hidden: Hidden) -> tuple[int, int]:
        """Rows and columns of the patches of these images."""
        pixels = hidden.inputs["pixel_values"]
        rows, columns = self.stack.source.cut(*pixels.shape[2:])  # type: ignore[attr-defined]
        return rows, columns

    def patches(self, hidden: Hidden) -> Tensor:
        """The states of the patches alone, B H·W dim."""
        return hidden.grid[:, self.stack.source.front :]  # type: ignore[attr-defined]

    def sums(
        self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], hidden: Hidden
    ) -> Sums:
        """Cross-entropy over the pixels that count."""
        logits, labels = outputs["logits"], targets["labels"]
        size = tuple(labels.shape[1:]) if isinstance(labels, Tensor) else ()
        wanted = (logits.shape[0], *(size if len(size) == 2 else hidden_size(hidden)))
        check_targets(labels, "labels", wanted, logits.shape[1])
        loss, nll = pixel_entropy(logits, labels)
        return Sums(loss.sum(), nll.sum(), (labels != IGNORE).sum())


def hidden_size(hidden: Hidden) -> tuple[int, int]:
    """Rows and columns of pixels of these images."""
    height, width = hidden.inputs["pixel_values"].shape[2:]
    return height, width
