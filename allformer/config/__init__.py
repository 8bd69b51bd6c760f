# ruff: noqa: I001 (in the order of a tree, in which errors name the classes)
"""The config tree: a choice is *which dataclass sits in a slot*.

    from allformer.config import *
    block = Block(Attention(heads=8), Feed(2048, act="relu"), norm_at="post", dropout=0.1)
    stack = Stack(dim=512, source=Tokens(37_000), position=Sinusoidal(), blocks=repeat(block, 6))

Everything here is frozen, hashable, says what it refuses, and goes to JSON and back. Runtime
matters (device, dtype, kernel, cache) are never config: they are arguments of the call. A class of
one's own that derives from `Mixer`, `Source`, `Position`, `Relative` or `Head` fits their slots.
"""

from __future__ import annotations

from allformer.config.check import Rule, above, choice, refuse
from allformer.config.base import (
    ACTIVATIONS, Activation, Config, Natural, Positive, Probability,
)  # fmt: skip
from allformer.config.norm import Norm
from allformer.config.position import Axial, Learned, Position, Sinusoidal, StoredSinusoids
from allformer.config.relative import BucketBias, Relative
from allformer.config.rotary import (
    DynamicScaling, LinearScaling, Llama3Scaling, LongScaling, ProportionalScaling, Rotary, Scaling,
    YarnScaling,
)  # fmt: skip
from allformer.config.xl import XLRelative
from allformer.config.mixer import Full, Mixer, Window
from allformer.config.block_sparse import BlockSparse
from allformer.config.features import Features
from allformer.config.global_window import GlobalWindow
from allformer.config.local import Local
from allformer.config.low_rank import LowRank
from allformer.config.lsh import LSH
from allformer.config.attention import Attention
from allformer.config.feed_forward import Feed
from allformer.config.block import Block, cycle, repeat
from allformer.config.source import Source, Tokens
from allformer.config.patches import Patches
from allformer.config.plane import LearnedPlane, Plane, SinusoidalPlane
from allformer.config.queries import Queries
from allformer.config.resnet import ResNet
from allformer.config.sound import Sound, Spans
from allformer.config.flow import Flow, Reversible
from allformer.config.stack import Stack
from allformer.config.head import (
    PROBLEMS, At, Beside, ClassHead, Head, LMHead, Pool, PretrainHead, Several, SpanHead,
    Transform, heads_of, words_of,
)  # fmt: skip
from allformer.config.choice_head import ChoiceHead
from allformer.config.colour_head import ColourHead
from allformer.config.joined import Joined, JoinedHead, TextAndPlane
from allformer.config.axial_mask import ColumnMask, ImageMask, NearMask, RowMask
from allformer.config.pixel_head import PixelHead
from allformer.config.box_head import BoxHead, SetLoss
from allformer.config.mask_heads import ClassMasks, LinearMasks, MaskHead, MaskLoss, QueryMasks
from allformer.config.reading_head import ReadingHead
from allformer.config.sound_head import SoundClassHead
from allformer.config.teacher_head import TeacherHead
from allformer.config.vector_head import Probe, VectorHead
from allformer.config.adaptive import AdaptiveHead, AdaptiveTokens
from allformer.config.model import DecoderOnly, EncoderDecoder, EncoderOnly, Model
from allformer.config.two_towers import Contrast, TwoTowers
from allformer.config.codec import Codec
from allformer.config.sound_codec import SoundCodec
from allformer.config.set_decoder import SetDecoder
from allformer.config.json import config_from_json, from_dict, to_dict
from allformer.config.counting import Part

__all__ = [
    "ACTIVATIONS",
    "LSH",
    "PROBLEMS",
    "Activation",
    "AdaptiveHead",
    "AdaptiveTokens",
    "At",
    "Attention",
    "Axial",
    "Beside",
    "Block",
    "BlockSparse",
    "BoxHead",
    "BucketBias",
    "ChoiceHead",
    "ClassHead",
    "ClassMasks",
    "Codec",
    "ColourHead",
    "ColumnMask",
    "Config",
    "Contrast",
    "DecoderOnly",
    "DynamicScaling",
    "EncoderDecoder",
    "EncoderOnly",
    "Features",
    "Feed",
    "Flow",
    "Full",
    "GlobalWindow",
    "Head",
    "ImageMask",
    "Joined",
    "JoinedHead",
    "LMHead",
    "Learned",
    "LearnedPlane",
    "LinearMasks",
    "LinearScaling",
    "Llama3Scaling",
    "Local",
    "LongScaling",
    "LowRank",
    "MaskHead",
    "MaskLoss",
    "Mixer",
    "Model",
    "Natural",
    "NearMask",
    "Norm",
    "Part",
    "Patches",
    "PixelHead",
    "Plane",
    "Pool",
    "Position",
    "Positive",
    "PretrainHead",
    "Probability",
    "Probe",
    "ProportionalScaling",
    "Queries",
    "QueryMasks",
    "ReadingHead",
    "Relative",
    "ResNet",
    "Reversible",
    "Rotary",
    "RowMask",
    "Rule",
    "Scaling",
    "SetDecoder",
    "SetLoss",
    "Several",
    "Sinusoidal",
    "SinusoidalPlane",
    "Sound",
    "SoundClassHead",
    "SoundCodec",
    "Source",
    "SpanHead",
    "Spans",
    "Stack",
    "StoredSinusoids",
    "TeacherHead",
    "TextAndPlane",
    "Tokens",
    "Transform",
    "TwoTowers",
    "VectorHead",
    "Window",
    "XLRelative",
    "YarnScaling",
    "above",
    "choice",
    "config_from_json",
    "cycle",
    "from_dict",
    "heads_of",
    "refuse",
    "repeat",
    "to_dict",
    "words_of",
]  # fmt: skip
