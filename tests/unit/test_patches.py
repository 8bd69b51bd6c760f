"""An image as a sequence: patches, the tokens before them, and their places in the plane."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import allformer as af
from allformer.config import (
    Attention,
    Block,
    ClassHead,
    EncoderOnly,
    Feed,
    Learned,
    LearnedPlane,
    Norm,
    Patches,
    Pool,
    Position,
    SinusoidalPlane,
    Stack,
    Tokens,
    config_from_json,
    repeat,
)
from allformer.core.model import EncoderOnlyModel
from allformer.errors import ConfigError, LengthError
from tests.loud import make_loud

PATCHES = Patches(4, channels=3, image=(12, 20))  # 3 × 5 patches
FULL = replace(PATCHES, distilled=True, registers=3, mask=True)
BLOCK = Block(Attention(4), Feed(28, act="gelu"), norm_at="pre", dropout=0.0)


def tree(source: Patches = PATCHES, position: Position | str | None = "learned") -> EncoderOnly:
    if isinstance(position, str):
        position = LearnedPlane(source.shape, source.placed)
    stack = Stack(24, source, position, repeat(BLOCK, 2), final_norm=Norm(), dropout=0.0)
    return EncoderOnly(stack, ClassHead(("cat", "dog", "owl"), at="first"))


def loud(model: EncoderOnly) -> EncoderOnlyModel:
    built = make_loud(af.build(model)).double().eval()
    assert isinstance(built, EncoderOnlyModel)
    return built


def images(*size: int, rows: int = 2) -> Tensor:
    make = torch.Generator().manual_seed(3)
    return torch.randn(rows, 3, *(size or (12, 20)), generator=make, dtype=torch.float64)


def test_a_patch_is_what_the_convolution_gives() -> None:
    model, x = loud(tree()), images()
    project = model.encoder.source.project
    weight = project.weight.view(24, 3, 4, 4)
    wanted = F.conv2d(x, weight, project.bias, stride=4).flatten(2).transpose(1, 2)
    assert torch.allclose(af.trace(model, pixel_values=x)["encoder.patches"], wanted, atol=1e-12)


def test_what_makes_no_whole_patch_is_not_read() -> None:
    model, x = loud(tree(position=None)), images(15, 23)
    assert torch.equal(model(pixel_values=x).logits, model(pixel_values=x[..., :12, :20]).logits)


def test_tokens_stand_before_the_patches_and_registers_have_no_place() -> None:
    model, x = loud(tree(FULL)), images()
    seen, source = af.trace(model, pixel_values=x), model.encoder.source
    tokens, table = seen["encoder.tokens"], source.position.weight
    assert tokens.shape == (2, 5 + 15, 24)
    assert torch.equal(tokens[1, :5], torch.cat([source.cls, source.distilled, source.registers]))
    assert torch.equal(seen["encoder.positions"][:2], table[:2])
    assert not seen["encoder.positions"][2:5].any()
    assert torch.equal(seen["encoder.positions"][5:], table[2:])
    assert model(pixel_values=x).last_hidden_state.shape == (2, 20, 24)


def test_hidden_patches_become_the_mask_vector() -> None:
    model, x = loud(tree(FULL)), images()
    hidden = torch.zeros(2, 15, dtype=torch.bool)
    hidden[0, 4] = True
    seen = af.trace(model, pixel_values=x, bool_masked_pos=hidden)["encoder.tokens"]
    plain = af.trace(model, pixel_values=x)["encoder.tokens"]
    assert torch.equal(seen[0, 5 + 4], model.encoder.source.mask[0])
    others = (seen != plain).any(-1)
    assert others.nonzero().tolist() == [[0, 9]]


def test_positions_of_another_size_are_interpolated_when_asked() -> None:
    model, x = loud(tree()), images(16, 12)
    table = model.encoder.source.position.weight
    cells = table[1:].view(1, 3, 5, 24).permute(0, 3, 1, 2)
    wanted = F.interpolate(cells, (4, 3), mode="bicubic", align_corners=False)
    wanted = torch.cat([table[:1], wanted[0].permute(1, 2, 0).reshape(12, 24)])
    seen = af.trace(model, pixel_values=x, interpolate_pos_encoding=True)["encoder.positions"]
    assert torch.allclose(seen, wanted, atol=1e-12)


def test_asked_for_nothing_other_sizes_are_refused() -> None:
    model = loud(tree())
    with pytest.raises(ConfigError, match=r"16 × 12 pixels .*interpolate_pos_encoding=True"):
        model(pixel_values=images(16, 12))
    always = tree(position=LearnedPlane((3, 5), resize="always"))
    assert loud(always)(pixel_values=images(16, 12)).last_hidden_state.shape == (2, 13, 24)


def test_a_plane_of_sines_is_the_one_of_mae() -> None:
    model = loud(tree(position=SinusoidalPlane()))
    seen = af.trace(model, pixel_values=images())["encoder.positions"]
    heat = 10_000.0 ** -(torch.arange(6, dtype=torch.float64) / 6)
    assert not seen[0].any()
    for row, column in ((0, 0), (2, 1), (1, 4)):
        waves = [wave(place * heat) for place in (column, row) for wave in (torch.sin, torch.cos)]
        assert torch.allclose(seen[1 + 5 * row + column], torch.cat(waves), atol=1e-12)


def test_a_plane_of_sines_tells_rows_from_columns() -> None:
    model = loud(tree(position=SinusoidalPlane()))
    plane = af.trace(model, pixel_values=images())["encoder.positions"][1:].view(3, 5, 24)
    assert torch.equal(plane[0, :, :12], plane[2, :, :12])  # a column is the same in each row
    assert torch.equal(plane[:, 0, 12:], plane[:, 4, 12:])
    assert len(plane.view(15, 24).unique(dim=0)) == 15


@pytest.mark.parametrize("source", [PATCHES, FULL, replace(PATCHES, cls=False, bias=False)])
@pytest.mark.parametrize("position", ["learned", None, SinusoidalPlane(), Learned(40)])
def test_the_count_is_what_is_built(source: Patches, position: Position | str | None) -> None:
    model = tree(source, position)
    built = af.build(model, device="meta")
    assert af.count(model).parameters == sum(p.numel() for p in built.parameters())
    assert config_from_json(model.to_json()) == model


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "pixel_values=None must be images × 3 channels"),
        (torch.zeros(3, 12, 20), r"pixel_values=\(3, 12, 20\) of torch.float32 must be"),
        (torch.zeros(2, 1, 12, 20), "3 channels"),
        (torch.zeros(2, 3, 12, 20, dtype=torch.uint8), "in floating point"),
        (torch.zeros(0, 3, 12, 20), "must be images"),
        (torch.zeros(2, 3, 3, 20), r"no patch of Patches.patch=4"),
    ],
)
def test_wrong_pixels_are_refused_by_name(given: Tensor | None, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        af.build(tree())(pixel_values=given)


def test_wrong_hidden_patches_are_refused_by_name() -> None:
    hidden = torch.zeros(2, 15).bool()
    with pytest.raises(ConfigError, match=r"Patches\.mask=False"):
        af.build(tree())(pixel_values=images().float(), bool_masked_pos=hidden)
    with pytest.raises(ConfigError, match=r"must be images × patches, \(2, 15\)"):
        af.build(tree(FULL))(pixel_values=images().float(), bool_masked_pos=hidden[:, 1:])


def test_a_config_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one patch of 16 pixels"):
        Patches(16, image=(8, 32))
    with pytest.raises(ConfigError, match=r"LearnedPlane.front=1 .* give front=2"):
        tree(FULL, LearnedPlane((3, 5)))
    with pytest.raises(ConfigError, match=r"LearnedPlane.shape=\(5, 3\) .* give shape=\(3, 5\)"):
        tree(PATCHES, LearnedPlane((5, 3)))
    with pytest.raises(ConfigError, match="numbers patches of an image"):
        Stack(24, Tokens(9), SinusoidalPlane(), repeat(BLOCK, 1))
    with pytest.raises(ConfigError, match="divisible by 4"):
        Stack(22, PATCHES, SinusoidalPlane(), repeat(replace(BLOCK, attention=Attention(2)), 1))


def test_masked_tokens_are_seen_by_nobody() -> None:
    model, x = loud(tree()), images()
    mask = torch.ones(2, 16).long()
    mask[1, 9:] = 0
    before = model(pixel_values=x, attention_mask=mask).logits
    x[1, :, 8:] += 5  # the last row of patches, from the 11th on
    assert torch.equal(model(pixel_values=x, attention_mask=mask).logits, before)
    x[1, :, :4] += 5
    assert not torch.allclose(model(pixel_values=x, attention_mask=mask).logits[1], before[1])


def test_one_table_in_reading_order_will_do_and_has_an_end() -> None:
    model = loud(tree(position=Learned(16)))
    assert model(pixel_values=images()).logits.shape == (2, 3)
    with pytest.raises(LengthError):
        model(pixel_values=images(16, 20))


def test_half_precision_computes_in_half_precision_from_the_first_product() -> None:
    model, x = make_loud(af.build(tree())).eval(), images().float()
    seen: dict[str, torch.dtype] = {}
    with af.core.taps.listen(lambda name, value: seen.__setitem__(name, value.dtype)):
        half = model(pixel_values=x, dtype=torch.bfloat16).logits
    assert set(seen.values()) <= {torch.bfloat16, torch.float32}
    assert seen["encoder.patches"] == seen["encoder.embedded"] == torch.bfloat16
    assert torch.allclose(half.float(), model(pixel_values=x).logits, atol=0.5)


@pytest.mark.parametrize("dense", [None, "tanh"])
@pytest.mark.parametrize("at", ["patches", "first+patches"])
def test_a_head_reads_the_mean_of_the_patches(at: str, dense: str | None) -> None:
    head = ClassHead(("cat", "dog", "owl"), at=at, dense=dense)  # type: ignore[arg-type]
    model, x = loud(replace(tree(FULL), head=head)), images()
    assert af.count(model.config).parameters == sum(p.numel() for p in model.parameters())
    out = model(pixel_values=x)
    states = out.last_hidden_state
    read = states[:, 5:].mean(1)  # behind [CLS], the distillation token and three registers
    if at == "first+patches":
        read = torch.cat([states[:, 0], read], -1)
    assert torch.allclose(out.logits, model.head(read), atol=1e-12)


def test_patches_are_read_where_there_are_some() -> None:
    stack = Stack(24, Tokens(9), None, repeat(BLOCK, 1))
    with pytest.raises(ConfigError, match="reads patches of an image"):
        EncoderOnly(stack, ClassHead(("a", "b"), at="patches"))


def test_a_pool_without_a_layer_is_the_first_state() -> None:
    model = loud(replace(tree(), head=None, pool=Pool("identity", dense=False)))
    out = model(pixel_values=images())
    assert torch.equal(out.pooler_output, out.last_hidden_state[:, 0])
    assert af.count(model.config).parameters == sum(p.numel() for p in model.parameters())
