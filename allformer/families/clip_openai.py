"""CLIP's weights under the names that OpenAI gave them, and OpenCLIP has kept.

OpenAI's files have no config: sizes are told by the shapes, heads are 64 wide, and the text ends at
the largest id. OpenCLIP's later files have `text.` before the names of the text tower.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from allformer.config import Patches, Stack, TwoTowers
from allformer.errors import CheckpointError
from allformer.families import layer_map
from allformer.families.clip_text import OLD_END
from allformer.families.family import fit
from allformer.families.weights import (
    Ignored,
    Op,
    Renamed,
    Reshaped,
    Same,
    Shape,
    Transposed,
    WeightMap,
)

HEAD = 64  # the width of a head, in all of OpenAI's
MARK = "visual.conv1.weight"  # what tells such a file, and a vision tower that is no ResNet
OLD_NAMES = (
    Renamed(r"^text\.", ""),
    Renamed(r"\.in_proj_(weight|bias)$", r".in_proj.\1"),
)
LAYER: layer_map.Names = {
    "attention.qkv": "attn.in_proj",
    "attention.out": "attn.out_proj",
    "attention_norm": "ln_1",
    "feed.up": "mlp.c_fc",
    "feed.down": "mlp.c_proj",
    "feed_norm": "ln_2",
}


def weights(model: TwoTowers) -> WeightMap:
    """The map of OpenAI's and of OpenCLIP's files."""
    return [
        *OLD_NAMES,
        Same("text.source.embedding.weight", "token_embedding.weight"),
        Same("text.source.position.weight", "positional_embedding"),
        *layer_map.layers(model.text, "text", "transformer.resblocks", LAYER),
        *layer_map.dense("text.final_norm", "ln_final"),
        Transposed("head.text.out.weight", "text_projection"),
        *_vision(model.vision),
        *layer_map.dense("head.image.norm", "visual.ln_post"),
        Transposed("head.image.out.weight", "visual.proj"),
        Same("head.scale", "logit_scale"),
        Ignored("input_resolution|context_length|vocab_size", "sizes, as the shapes tell them"),
        Ignored("attn_mask", "the causal mask, stored by old versions"),
    ]


def _vision(stack: Stack) -> list[Op]:
    source = fit(stack.source, Patches, "reads no images")
    kernel = (stack.dim, source.channels, source.patch, source.patch)
    return [
        Reshaped("vision.source.cls", "visual.class_embedding", (stack.dim,)),
        Reshaped("vision.source.project.weight", MARK, kernel),
        Same("vision.source.position.weight", "visual.positional_embedding"),
        *layer_map.dense("vision.source.norm", "visual.ln_pre"),
        *layer_map.layers(stack, "vision", "visual.transformer.resblocks", LAYER),
    ]


def fields_of(shapes: Mapping[str, Shape], told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """transformers' config.json of a file by its shapes, and what an open_clip_config.json says
    that shapes do not: `fields_of({name: tuple(x.shape) for name, x in state.items()})`."""
    shapes = {name.removeprefix("text."): shape for name, shape in shapes.items()}
    if MARK not in shapes or "visual.class_embedding" not in shapes:
        raise CheckpointError(
            f"there is no {MARK} beside visual.class_embedding: this is no CLIP whose vision "
            f"tower is a ViT, under OpenAI's names; convert it with the library that made it"
        )
    told = told or {"quick_gelu": True}
    words, sight = dict(told.get("text_cfg") or {}), dict(told.get("vision_cfg") or {})
    act = {"hidden_act": "quick_gelu" if told.get("quick_gelu") else "gelu"}
    (dim, channels, patch, _), (cells, _) = shapes[MARK], shapes["visual.positional_embedding"]
    (length, width), (_, out) = shapes["positional_embedding"], shapes["text_projection"]
    text = {
        "vocab_size": shapes["token_embedding.weight"][0],
        "max_position_embeddings": length,
        "eos_token_id": OLD_END,
        "bos_token_id": 0,
        **_layers(shapes, "transformer", width, words.get("heads") or width // HEAD),
    }
    vision = {
        "num_channels": channels,
        "patch_size": patch,
        "image_size": sight.get("image_size") or patch * round((cells - 1) ** 0.5),
        **_layers(shapes, "visual.transformer", dim, dim // (sight.get("head_width") or HEAD)),
    }
    towers = {"text_config": text, "vision_config": vision}
    inside = {name: {**x, **act, "projection_dim": out} for name, x in towers.items()}
    return {
        "model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": out, **inside,
    }  # fmt: skip


def _layers(shapes: Mapping[str, Shape], where: str, dim: int, heads: int) -> dict[str, Any]:
    number = re.compile(rf"{re.escape(where)}\.resblocks\.(\d+)\.ln_1\.weight")
    found = [int(match[1]) for name in shapes if (match := number.fullmatch(name))]
    inner = shapes.get(f"{where}.resblocks.0.mlp.c_fc.weight", (4 * dim, dim))[0]
    return {
        "hidden_size": dim,
        "num_hidden_layers": len(found),
        "num_attention_heads": heads,
        "intermediate_size": inner,
    }
