"""What two towers make of a whole set of pictures and texts, and the figures of it.

Legend: N images, M texts, W width of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.metrics.zero_shot import class_vectors, recall, worst_wording, zero_shot
from allformer.train.pictures.captioned import CaptionedGallery
from allformer.train.pictures.shown import told_pictures
from allformer.train.predictions import Predictions, calibrated
from allformer.train.supervised.supervised import confusion


class Looked(NamedTuple):
    """Unit vectors of all images and all texts, and what they mean."""

    images: Tensor  # N W
    texts: Tensor  # M W
    said: Tensor  # M: what each text means
    wording: Tensor  # M: which template it is made of
    drawn: Tensor  # N: the text that stands with each image

    @property
    def wanted(self) -> Tensor:
        """What each image means, N."""
        return self.said[self.drawn]

    def figures(self, classes: int) -> dict[str, float]:
        """Of so many classes (0: captions of their own)."""
        images, texts, said, wanted = self.images, self.texts, self.said, self.wanted
        found: dict[str, float] = {}
        if classes:
            given = (images, wanted, texts, said)
            found["accuracy"] = zero_shot(*given, classes)
            found["accuracy_worst"] = worst_wording(*given, self.wording, classes)
            asked = torch.isin(said, wanted)  # of a class without images none can be found
            found["image_recall"] = recall(texts[asked], said[asked], images, wanted)
        else:
            found["image_recall"] = recall(texts[self.drawn], wanted, images, wanted)
        return {**found, "text_recall": recall(images, wanted, texts, said)}

    def nearest_texts(self, examples: CaptionedGallery, count: int) -> Predictions:
        """Some pictures, and the caption that each is nearest to."""
        best = (self.images @ self.texts.T).max(-1)
        given, score = best.indices.cpu().numpy(), best.values.cpu().numpy()
        right = (self.said[best.indices] == self.wanted).cpu().numpy()
        words, drawn = examples.captions.texts, examples.drawn
        shown = told_pictures(
            examples, lambda i: words[drawn[i]], lambda i: words[given[i]], right, score, count
        )
        return Predictions(figures={"text_recall": float(right.mean())}, pictures=shown)

    @torch.no_grad()
    def nearest_classes(
        self, head: Any, examples: CaptionedGallery, names: Sequence[str], count: int
    ) -> Predictions:
        """Some pictures, and the class that each is nearest to, as likely as the `head` says."""
        classes = class_vectors(self.texts, self.said, len(names))
        scores = head.compare(classes, self.images)["logits_per_image"]
        chances, wanted = scores.softmax(-1).cpu().numpy(), self.wanted.cpu().numpy()
        given, sure = chances.argmax(1), chances.max(1)
        right = given == wanted
        shown = told_pictures(
            examples, lambda i: names[wanted[i]], lambda i: names[given[i]], right, sure, count
        )
        return Predictions(
            labels=tuple(names),
            confusion=confusion(wanted.tolist(), given.tolist(), len(names)),
            calibration=calibrated(sure.tolist(), right.tolist()),
            figures={"accuracy": float(right.mean())},
            pictures=shown,
        )
