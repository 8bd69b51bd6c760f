"""DETR (Carion et al., 2020): a residual network, an encoder over its feature map, and a decoder of
learned queries.

The residual network is transformers' own (`use_timm_backbone` false): files with timm's names are
published beside such ones, on the hub as the revision `no_timm`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from allformer.config import (
    Attention,
    Block,
    BoxHead,
    Feed,
    Norm,
    Queries,
    ResNet,
    SetDecoder,
    Stack,
    repeat,
)
from allformer.errors import CheckpointError
from allformer.families import activation, detr_map, set_fields
from allformer.families.family import Family, architectures, expect, fit, one
from allformer.families.fields import Fields
from allformer.families.kinds import FLAG, LAYERS, LIST, NUMBER, OBJECT, SIZE, TEXT, short

ARCHITECTURES = architectures("Detr", "ForObjectDetection", "Model")
USUAL = {
    **set_fields.USUAL, "d_model": 256, "encoder_layers": 6, "encoder_ffn_dim": 2048,
    "encoder_attention_heads": 8, "decoder_layers": 6, "decoder_ffn_dim": 2048,
    "decoder_attention_heads": 8, "activation_function": "relu", "dropout": 0.1,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "num_queries": 100, "num_channels": 3,
}  # fmt: skip
NET = {
    "num_channels": 3, "embedding_size": 64, "layer_type": "bottleneck", "hidden_act": "relu",
    "downsample_in_first_stage": False, "downsample_in_bottleneck": False,
}  # fmt: skip
_LAYERS = {"basic": False, "bottleneck": True}
_RESNET = {"model_type": "resnet", "out_features": ["stage4"]}
_COCO = {"use_timm_backbone": False, "num_labels": 91}
PRESETS: dict[str, dict[str, Any]] = {
    "detr-resnet-50": {**_COCO, "backbone_config": {**_RESNET, "depths": [3, 4, 6, 3]}},
    "detr-resnet-101": {**_COCO, "backbone_config": {**_RESNET, "depths": [3, 4, 23, 3]}},
}


def read(fields: Fields, architecture: str, keys: Collection[str]) -> SetDecoder:
    """config.json → the tree."""
    source = _read_net(fields)
    dim = fields.take("d_model")
    encoder = Stack(
        dim, source, None, _blocks(fields, "encoder"), dropout=fields.take("dropout", kind=NUMBER)
    )
    # It scores the states of all layers then, normed; and what is normed is what goes on.
    scored = fields.flag("auxiliary_loss", False)
    decoder = Stack(
        dim, Queries(fields.take("num_queries")), None, _blocks(fields, "decoder"),
        final_norm=Norm(), dropout=0.0, final_norm_at="layers" if scored else "end",
    )  # fmt: skip
    fields.must("position_embedding_type", "sine")
    fields.must("dilation", False)
    fields.inert(NUMBER, "encoder_layerdrop", "decoder_layerdrop", "init_xavier_std")
    fields.inert(NUMBER, "mask_loss_coefficient", "dice_loss_coefficient")
    fields.inert(FLAG, "is_encoder_decoder", "use_pretrained_backbone", "scale_embedding")
    fields.inert(LIST, "backbone_kwargs")
    fields.inert(TEXT, "backbone")
    fields.inert(LAYERS, "num_hidden_layers")
    fields.inert(SIZE, "max_position_embeddings")
    loss = replace(set_fields.read(fields), auxiliary=scored)
    boxes = ARCHITECTURES[architecture] == "boxes"
    return SetDecoder(encoder, decoder, BoxHead(fields.labels, 1, loss=loss) if boxes else None)


def _blocks(fields: Fields, side: str) -> tuple[Block, ...]:
    """The layers of the encoder or the decoder: post-norm, with a bias everywhere."""
    drop = fields.take("attention_dropout", kind=NUMBER)
    attention = Attention(fields.take(f"{side}_attention_heads"), dropout=drop)
    act = fields.choice("activation_function", activation.READ)
    inner = fields.take("activation_dropout", kind=NUMBER)
    feed = Feed(fields.take(f"{side}_ffn_dim"), act, dropout=inner)
    block = Block(
        attention, feed, cross=attention if side == "decoder" else None, norm_at="post",
        dropout=fields.take("dropout", kind=NUMBER),
    )  # fmt: skip
    return repeat(block, fields.take(f"{side}_layers", kind=LAYERS))


def _read_net(fields: Fields) -> ResNet:
    """The residual network that `backbone_config` means."""
    fields.inert(OBJECT, "backbone_config")
    fields.inert(FLAG, "use_timm_backbone")  # transformers 5 leaves it out: backbone_config tells
    raw = fields.raw.get("backbone_config")
    if fields.raw.get("use_timm_backbone") or not raw or raw.get("model_type") != "resnet":
        raise CheckpointError(
            f"config.json has use_timm_backbone={fields.raw.get('use_timm_backbone')} and "
            f"backbone_config={short(raw)}: a backbone of timm's has other names; take the files "
            f"with transformers' own ResNet (on the hub the revision no_timm)"
        )
    inner = Fields(raw, "detr backbone_config", NET, fields.ignore)
    widths = inner.take("hidden_sizes", [256, 512, 1024, 2048], kind=LIST)
    depths = inner.take("depths", [3, 4, 6, 3], kind=LIST)
    inner.must("hidden_act", "relu")
    inner.must("out_features", [f"stage{len(depths)}"])
    inner.must("out_indices", [len(depths)])
    inner.inert(LIST, "stage_names")
    inner.inert(FLAG, "is_encoder_decoder")
    kind = inner.choice("layer_type", {name: name for name in _LAYERS})
    net = ResNet(
        inner.take("embedding_size"), tuple(widths), tuple(depths), _LAYERS[kind],
        inner.take("num_channels"), inner.flag("downsample_in_first_stage", False),
        inner.flag("downsample_in_bottleneck", False),
    )  # fmt: skip
    inner.close()
    fields.must("num_channels", net.channels)
    return net


def write(model: SetDecoder) -> dict[str, Any]:
    """The tree → config.json."""
    tree = fit(model, SetDecoder, "is no encoder and decoder of queries")
    source = fit(tree.encoder.source, ResNet, "reads no feature map")
    queries = fit(tree.decoder.source, Queries, "has no queries")
    out: dict[str, Any] = {
        "backbone_config": _write_net(source), "use_timm_backbone": False,
        "num_channels": source.channels, "d_model": tree.encoder.dim,
        "num_queries": queries.count, "is_encoder_decoder": True,
        "position_embedding_type": "sine",
        "auxiliary_loss": tree.decoder.final_norm_at == "layers",
    }  # fmt: skip
    blocks = {side: one(tree.stacks[side].blocks, "shape") for side in ("encoder", "decoder")}
    for side, block in blocks.items():
        out[f"{side}_layers"] = len(tree.stacks[side].blocks)
        out[f"{side}_attention_heads"] = block.attention.heads
        out[f"{side}_ffn_dim"] = block.feed.width
    block = blocks["encoder"]
    out |= {
        "activation_function": activation.WRITE[block.feed.act],
        "dropout": block.dropout, "attention_dropout": block.attention.dropout,
        "activation_dropout": block.feed.dropout,
    }  # fmt: skip
    if tree.head is None:
        return out
    head = fit(tree.head, BoxHead, "has another head")
    expect(head.class_depth == 1, "scores classes by several layers")
    return {**out, **set_fields.write(head.loss)}


def _write_net(source: ResNet) -> dict[str, Any]:
    return {
        "model_type": "resnet", "num_channels": source.channels, "embedding_size": source.stem,
        "hidden_sizes": list(source.widths), "depths": list(source.depths),
        "layer_type": "bottleneck" if source.bottleneck else "basic", "hidden_act": "relu",
        "downsample_in_first_stage": source.halve_first,
        "downsample_in_bottleneck": source.halve_early,
        "out_features": [f"stage{len(source.depths)}"],
    }  # fmt: skip


FAMILY = Family(
    "detr", ARCHITECTURES, USUAL, PRESETS, read, write, detr_map.weights, prefix="model.",
    same=set_fields.same,
)  # fmt: skip
