"""Allformer: the whole Transformer family from one small core.

import allformer as af

model = af.build(af.preset("original-base"))     # fresh weights
model = af.load("path/to/a/checkpoint")           # a Hugging Face directory or hub id
out = model(input_ids=..., attention_mask=..., labels=...)
out.logits, out.loss
af.save(model, "path")                            # which transformers opens
af.fill("path", "The capital of [MASK] is Paris.")   # a task in one line: see allformer.tasks
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import allformer.begin  # noqa: F401  first: importing the rest takes seconds
from allformer.codecs import codec_preset
from allformer.config import config_from_json
from allformer.core.model import build
from allformer.core.output import Output
from allformer.core.trace import Trace, trace
from allformer.count import Count, count
from allformer.errors import AllformerError
from allformer.families import preset, presets
from allformer.version import __version__

if TYPE_CHECKING:
    from allformer.audiolm.generate import open_audiolm
    from allformer.auditor import audit
    from allformer.checkpoint.adapter.put import load_adapter
    from allformer.checkpoint.adapter.save import save_adapter
    from allformer.checkpoint.codec import load_codec
    from allformer.checkpoint.lengthen import lengthen
    from allformer.checkpoint.load import load
    from allformer.checkpoint.save import save
    from allformer.checkpoint.sound_codec import load_sound_codec
    from allformer.core.quantise import quantise
    from allformer.generate.engine import Engine
    from allformer.generate.prefix import Prefix
    from allformer.generate.structured import Structured
    from allformer.tasks.answer import answer
    from allformer.tasks.choose import choose
    from allformer.tasks.classify import classify
    from allformer.tasks.classify_image import classify_image
    from allformer.tasks.continue_sound import continue_sound
    from allformer.tasks.detect import detect
    from allformer.tasks.draw import draw
    from allformer.tasks.drawing_kit import open_drawing
    from allformer.tasks.embed import embed, similarity
    from allformer.tasks.embed_image import embed_image
    from allformer.tasks.fill import fill
    from allformer.tasks.image_pipeline import open_image_pipeline
    from allformer.tasks.image_search import search_images, search_texts
    from allformer.tasks.image_text import image_similarity
    from allformer.tasks.pipeline import open_pipeline
    from allformer.tasks.segment import segment
    from allformer.tasks.speech_pipeline import open_speech
    from allformer.tasks.tag import tag
    from allformer.tasks.texts import summarise, translate
    from allformer.tasks.transcribe import transcribe
    from allformer.tasks.transcribe_live import transcribe_live

    open_kit = open_pipeline

# Imported when they are first used, so that `import allformer` costs little more than torch.
_LATER = {
    "Structured": "allformer.generate.structured",
    "Engine": "allformer.generate.engine",
    "Prefix": "allformer.generate.prefix",
    "audit": "allformer.auditor",
    "lengthen": "allformer.checkpoint.lengthen",
    "load": "allformer.checkpoint.load",
    "load_adapter": "allformer.checkpoint.adapter.put",
    "load_codec": "allformer.checkpoint.codec",
    "load_sound_codec": "allformer.checkpoint.sound_codec",
    "open_audiolm": "allformer.audiolm.generate",
    "quantise": "allformer.core.quantise",
    "save": "allformer.checkpoint.save",
    "save_adapter": "allformer.checkpoint.adapter.save",
    # `generate` is a part of the package: the task is `allformer.tasks.generate`
    **dict.fromkeys(
        ("answer", "choose", "classify", "classify_image", "continue_sound", "detect", "draw",
         "embed", "embed_image", "fill",
         "image_similarity", "open_drawing", "open_image_pipeline", "open_kit", "open_pipeline",
         "open_speech", "search_images", "search_texts", "segment", "similarity", "summarise",
         "tag", "transcribe", "transcribe_live", "translate"),
        "allformer.tasks",
    ),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "tasks":
        return import_module("allformer.tasks")
    if name not in _LATER:
        raise AttributeError(f"module 'allformer' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


__all__ = [
    "AllformerError",
    "Count",
    "Engine",
    "Output",
    "Prefix",
    "Structured",
    "Trace",
    "__version__",
    "answer",
    "audit",
    "build",
    "choose",
    "classify",
    "classify_image",
    "codec_preset",
    "config_from_json",
    "continue_sound",
    "count",
    "detect",
    "draw",
    "embed",
    "embed_image",
    "fill",
    "image_similarity",
    "lengthen",
    "load",
    "load_adapter",
    "load_codec",
    "load_sound_codec",
    "open_audiolm",
    "open_drawing",
    "open_image_pipeline",
    "open_kit",
    "open_pipeline",
    "open_speech",
    "preset",
    "presets",
    "quantise",
    "save",
    "save_adapter",
    "search_images",
    "search_texts",
    "segment",
    "similarity",
    "summarise",
    "tag",
    "trace",
    "transcribe",
    "transcribe_live",
    "translate",
]
