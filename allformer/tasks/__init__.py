"""Real tasks in one line, on any checkpoint.

import allformer as af

af.fill("path/or/id", "The capital of [MASK] is Paris.")
kit = af.open_kit("path/or/id")                  # opened once, for many calls
af.embed(kit, ["A dog runs.", "Two men talk."])
"""

from __future__ import annotations

from allformer.tasks.answer import answer
from allformer.tasks.choose import choose
from allformer.tasks.classify import classify
from allformer.tasks.classify_image import classify_image
from allformer.tasks.continue_sound import Continuation, continue_sound
from allformer.tasks.detect import detect
from allformer.tasks.draw import Drawing, draw
from allformer.tasks.drawing_kit import open_drawing
from allformer.tasks.embed import embed, similarity
from allformer.tasks.embed_image import embed_image
from allformer.tasks.fill import fill
from allformer.tasks.image_pipeline import ImagePipeline, open_image_pipeline
from allformer.tasks.image_search import search_images, search_texts
from allformer.tasks.image_text import image_similarity
from allformer.tasks.pace import Pace
from allformer.tasks.pipeline import Pipeline, open_pipeline
from allformer.tasks.result import (
    Answer,
    Detected,
    Entity,
    Fill,
    Label,
    Match,
    Segment,
    Segmentation,
)
from allformer.tasks.segment import segment
from allformer.tasks.speech_pipeline import SpeechPipeline, open_speech
from allformer.tasks.stream import Stream
from allformer.tasks.tag import tag
from allformer.tasks.texts import generate, summarise, translate
from allformer.tasks.transcribe import transcribe
from allformer.tasks.transcribe_live import transcribe_live

# The older names: `kit = af.open_kit(...)`.
Kit, open_kit = Pipeline, open_pipeline

__all__ = [
    "Answer", "Continuation", "Detected", "Drawing", "Entity", "Fill", "ImagePipeline", "Kit",
    "Label", "Match", "Pace", "Pipeline", "Segment", "Segmentation", "SpeechPipeline", "Stream",
    "answer", "choose", "classify", "classify_image", "continue_sound", "detect", "draw", "embed",
    "embed_image", "fill", "generate", "image_similarity", "open_drawing",
    "open_image_pipeline", "open_kit", "open_pipeline", "open_speech", "search_images",
    "search_texts", "segment", "similarity", "summarise", "tag", "transcribe",
    "transcribe_live", "translate",
]  # fmt: skip
