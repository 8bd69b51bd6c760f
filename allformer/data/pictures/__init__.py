"""Pictures and what is known of them: a folder of folders, idx files, CIFAR's; one reader a file.

splits = open_pictures("fashion-mnist")
splits["train"][0]                      # Picture(pixels 28 × 28 × 1, label 9)
splits["train"].labels                  # ("0", "1", …)
"""

from __future__ import annotations

from allformer.core.registry import import_all
from allformer.data.pictures.open import FORMATS, SPLITS, open_pictures, reads
from allformer.data.pictures.picture import Part, Picture, Pictures, fingerprint

__all__ = [
    "FORMATS",
    "SPLITS",
    "Part",
    "Picture",
    "Pictures",
    "fingerprint",
    "open_pictures",
    "reads",
]  # fmt: skip

import_all(__name__, __path__)
