"""Images: read from files, prepared as a checkpoint says, augmented for training.

from allformer.images import load_processor, read_image

processor = load_processor("path/of/a/checkpoint")   # its preprocessor_config.json
processor(["cat.jpg", "dog.png"])                     # pixel_values, B C H W
"""

from __future__ import annotations

from allformer.images.processor import Processor, load_processor
from allformer.images.read import read_image
from allformer.images.settings import Settings

__all__ = ["Processor", "Settings", "load_processor", "read_image"]
