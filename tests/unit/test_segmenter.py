"""Segmenter's decoders: scores for each place of a patch, and cosines of patches and labels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import allformer as af
from allformer import config
from allformer.errors import ConfigError
from tests.loud import make_loud

LABELS = ("sky", "grass", "cow")
BLOCK = config.Block(config.Attention(4), config.Feed(48, act="gelu"), norm_at="pre", dropout=0.0)


def tree(head: config.Head, registers: int = 2) -> config.EncoderOnly:
    source = config.Patches(4, 3, (16, 24), registers=registers)
    place = config.LearnedPlane(source.shape, source.placed)
    stack = config.Stack(32, source, place, (BLOCK,) * 2, final_norm=config.Norm(), dropout=0.0)
    return config.EncoderOnly(stack, head)


HEADS = {
    "patches": config.LinearMasks(LABELS),
    "pixels": config.LinearMasks(LABELS, cells=4),
    "classes": config.ClassMasks(LABELS, (BLOCK,) * 2),
    "queries": config.QueryMasks(LABELS, (BLOCK,), queries=5, upscale=1),
}


def loud(head: config.Head) -> af.core.model.AnyModel:  # type: ignore[name-defined]
    return make_loud(af.build(tree(head), seed=0)).double().eval()


@pytest.mark.parametrize("name", HEADS)
def test_the_count_is_what_is_built_and_a_model_is_read_as_it_was_saved(
    name: str, tmp_path: Path
) -> None:
    model = af.build(tree(HEADS[name]), seed=0).eval()
    assert af.count(model.config).parameters == sum(p.numel() for p in model.parameters())
    af.save(model, tmp_path, family="allformer")
    again = af.load(tmp_path)
    assert again.config == model.config
    pixels = torch.randn(2, 3, 16, 24)
    first, second = model(pixel_values=pixels), again(pixel_values=pixels)
    assert all(torch.equal(first[key], second[key]) for key in model.head.gives)


def check_pixels() -> None:
    """Each pixel's scores are those of its patch's state: row by row, column by column."""
    model, pixels = loud(HEADS["pixels"]), torch.randn(2, 3, 16, 24).double()
    out = model(pixel_values=pixels)
    states = out.last_hidden_state[:, 3:]  # behind [CLS] and two registers
    scores = model.head.out(states).view(2, 4, 6, 3, 4, 4)  # B H W L C C
    for row, column in ((0, 0), (5, 17), (15, 23)):
        wanted = scores[:, row // 4, column // 4, :, row % 4, column % 4]
        assert torch.equal(out.logits[:, :, row, column], wanted)


def test_each_pixel_has_scores_of_its_own() -> None:
    check_pixels()


def check_classes() -> None:
    """Against the formula of the paper, by torch's plain functions."""
    model, pixels = loud(HEADS["classes"]), torch.randn(2, 3, 16, 24).double()
    out, head = model(pixel_values=pixels), model.head
    x = F.linear(out.last_hidden_state[:, 3:], head.into.weight, head.into.bias)
    x = torch.cat([x, head.classes.expand(2, -1, -1)], 1)
    for layer in head.layers.blocks:
        x = x + attended(layer, x)
        up = F.linear(normed(layer.feed_norm, x), layer.feed.up.weight, layer.feed.up.bias)
        x = x + F.linear(F.gelu(up), layer.feed.down.weight, layer.feed.down.bias)
    x = normed(head.norm, x)
    patches, labels = x[:, :24] @ head.patch.weight.T, x[:, 24:] @ head.label.weight.T
    cosines = torch.cosine_similarity(patches[:, :, None], labels[:, None], dim=-1)
    wanted = normed(head.over, cosines).transpose(1, 2).reshape(2, 3, 4, 6)
    assert torch.allclose(out.logits, wanted, rtol=0, atol=1e-10)


def normed(norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)  # type: ignore[arg-type]


def attended(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    own, y = layer.attention, normed(layer.attention_norm, x)
    out, _ = F.multi_head_attention_forward(
        *[y.transpose(0, 1)] * 3, 32, 4, own.qkv.weight, own.qkv.bias, None, None, False, 0.0,
        own.out.weight, own.out.bias, need_weights=False,
    )  # fmt: skip
    return out.transpose(0, 1)


def test_the_mask_transformer_is_the_papers_formula() -> None:
    check_classes()


def check_loss(name: str) -> None:
    """Cross-entropy of the scores, resized to the labels; −100 does not count."""
    model, pixels = loud(HEADS[name]), torch.randn(2, 3, 16, 24).double()
    labels = torch.randint(0, 3, (2, 16, 24))
    labels[0, :9] = -100
    out = model(pixel_values=pixels, labels=labels)
    wide = F.interpolate(out.logits, (16, 24), mode="bilinear", align_corners=False)
    wanted = F.cross_entropy(wide, labels, ignore_index=-100)
    assert torch.allclose(out.loss, wanted, rtol=0, atol=1e-12)
    out.loss.backward()
    assert all(p.grad is not None for p in model.head.parameters())


@pytest.mark.parametrize("name", ["patches", "pixels", "classes"])
def test_the_loss_is_over_the_pixels_that_count(name: str) -> None:
    check_loss(name)


def test_masks_may_be_larger_than_the_image() -> None:
    model, labels = loud(HEADS["patches"]), torch.randint(0, 3, (1, 40, 70))
    loss = model(pixel_values=torch.randn(1, 3, 16, 24).double(), labels=labels).loss
    assert loss is not None
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (torch.zeros(2, 16).long(), r"labels=\(2, 16\) must be of the shape \(2, 16, 24\)"),
        (torch.full((2, 16, 24), 3), "labels has 3, but there are 0 … 2"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: torch.Tensor, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        loud(HEADS["pixels"])(pixel_values=torch.randn(2, 3, 16, 24).double(), labels=labels)


def test_heads_that_do_not_fit_are_refused() -> None:
    tokens = config.Stack(32, config.Tokens(9), None, (BLOCK,))
    with pytest.raises(ConfigError, match="found in patches of an image"):
        config.EncoderOnly(tokens, HEADS["patches"])
    odd = config.Block(config.Attention(5), config.Feed(9), norm_at="pre")
    with pytest.raises(ConfigError, match="heads=5, which must divide 32"):
        tree(config.ClassMasks(LABELS, (odd,)))
    near = config.Block(config.Attention(4, mixer=config.Window(2)), config.Feed(9))
    with pytest.raises(ConfigError, match="must look at all tokens"):
        tree(config.ClassMasks(LABELS, (near,)))
    with pytest.raises(ConfigError, match="all pairs cost alike"):
        config.MaskLoss(0.0, 0.0, 0.0)
    with pytest.raises(ConfigError, match="at least one name"):
        config.LinearMasks(())
