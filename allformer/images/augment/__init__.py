"""Augmentations for training: on tensors, whole batches at once, and seeded.

steps = Chain((RandomResizedCrop((32, 32)), RandomFlip(), RandAugment(), RandomErasing()))
generator = torch.Generator().manual_seed(0)
images = steps(images, generator)                     # B C H W, values from 0 to 1
images, targets = Mixup(0.8, classes=10)(images, labels, generator)

They come before normalising. The same generator gives the same images on every device: chance is
drawn on the CPU. Nothing waits for the device, so that the next batch is made ready meanwhile.
"""

from __future__ import annotations

from allformer.images.augment.chain import Augmentation, Chain
from allformer.images.augment.crop import RandomCrop, RandomResizedCrop
from allformer.images.augment.erase import RandomErasing
from allformer.images.augment.flip import RandomFlip
from allformer.images.augment.mix import CutMix, Mixup
from allformer.images.augment.rand_augment import RandAugment

__all__ = [
    "Augmentation", "Chain", "CutMix", "Mixup", "RandAugment", "RandomCrop", "RandomErasing",
    "RandomFlip", "RandomResizedCrop",
]  # fmt: skip
