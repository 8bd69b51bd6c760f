"""The names of the tensors in DETR's files, with transformers' own ResNet."""

from __future__ import annotations

from allformer.config import BoxHead, ResNet, SetDecoder
from allformer.families import layer_map, set_fields
from allformer.families.weights import Ignored, Op, Reshaped, Same, WeightMap

LAYER: layer_map.Names = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "cross.query": ("encoder_attn.q_proj",),
    "cross.memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.out": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
    "feed.up": "fc1",
    "feed.down": "fc2",
    "feed_norm": "final_layer_norm",
}
_NET = "backbone.conv_encoder.model"
_NORM = {
    "weight": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "variance": "running_var",
}


def weights(model: SetDecoder, architecture: str) -> WeightMap:
    """The map of a DETR file."""
    base = "" if model.head is None else "model."
    source = model.encoder.source
    assert isinstance(source, ResNet)
    shape = (model.encoder.dim, source.widths[-1], 1, 1)
    ops: list[Op] = [
        *_net(source, f"{base}{_NET}"),
        Reshaped("encoder.source.project.weight", f"{base}input_projection.weight", shape),
        Same("encoder.source.project.bias", f"{base}input_projection.bias"),
        Same("decoder.source.weight", f"{base}query_position_embeddings.weight"),
        *layer_map.layers(model.encoder, "encoder", f"{base}encoder.layers", LAYER),
        *layer_map.layers(model.decoder, "decoder", f"{base}decoder.layers", LAYER),
        *layer_map.dense("decoder.final_norm", f"{base}decoder.layernorm"),
        Ignored(r".*\.num_batches_tracked", "of norms that count no more: they are frozen"),
    ]
    if isinstance(model.head, BoxHead):
        ops += layer_map.dense("head.classes.layers.0", "class_labels_classifier")
        ops += set_fields.layers(model.head.depth, "head.boxes", "bbox_predictor")
    return ops


def _net(source: ResNet, where: str) -> list[Op]:
    """The residual network."""
    ours = "encoder.source"
    ops = _convolution(f"{ours}.stem", f"{where}.embedder.embedder")
    for i, stage in enumerate(source.layers()):
        for j, (convolutions, short) in enumerate(stage):
            here, there = f"{ours}.stages.{i}.{j}", f"{where}.encoder.stages.{i}.layers.{j}"
            for k in range(len(convolutions)):
                ops += _convolution(f"{here}.convolutions.{k}", f"{there}.layer.{k}")
            if short is not None:
                ops += _convolution(f"{here}.short", f"{there}.shortcut")
    return ops


def _convolution(ours: str, theirs: str) -> list[Op]:
    """A kernel and the numbers of its frozen norm."""
    norms = [Same(f"{ours}.norm.{a}", f"{theirs}.normalization.{b}") for a, b in _NORM.items()]
    return [Same(f"{ours}.weight", f"{theirs}.convolution.weight"), *norms]
