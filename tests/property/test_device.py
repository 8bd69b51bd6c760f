"""The same numbers on every device that is here: a GPU has kernels of its own for packed rows."""

from __future__ import annotations

import pytest
import torch

from allformer.config import Attention, Block, Feed
from allformer.core.layout import pack
from allformer.core.model import build
from tests.models import left_padding, loss_of, right_padding, seq2seq, tokens

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FEED = Feed(40, act="gelu")  # smooth: where rounding flips a relu's gate, a gradient goes with it
SHAPES = {
    "heads of 6": seq2seq(Block(Attention(4), FEED, norm_at="post", dropout=0.0)),
    "heads of 8, grouped": seq2seq(Block(Attention(6, kv_heads=2, head_dim=8), FEED, dropout=0.0)),
}


def check_packed(shape: str, device: str, dtype: torch.dtype, off: float) -> None:
    """Packed on a device in a compute dtype = fp64 on the CPU's grid: loss and gradients."""
    model = build(SHAPES[shape], seed=0)
    exact = build(SHAPES[shape], seed=0).double()
    source, target, labels = tokens(4, 50, 1), tokens(4, 48, 2), tokens(4, 48, 3)
    source_keep = left_padding([50, 3, 33, 0], 50)  # the last target has nothing to look across at
    target_keep = right_padding([9, 48, 20, 31], 48)
    logits = exact(source, source_keep, target, target_keep).logits[target_keep.bool()]
    wanted = torch.nn.functional.cross_entropy(
        logits, labels[target_keep.bool()], reduction="sum", label_smoothing=0.1
    )
    model.to(device)
    source_layout, target_layout = pack(source_keep.to(device)), pack(target_keep.to(device))
    loss, _ = loss_of(
        model,
        (source_layout.lay(source.to(device)), source_layout),
        (target_layout.lay(target.to(device)), target_layout),
        target_layout.lay(labels.to(device)),
        smoothing=0.1,
        dtype=dtype,
    )
    assert abs(loss.item() / wanted.item() - 1) < off
    hers = torch.autograd.grad(wanted, list(exact.parameters()))
    mine = torch.autograd.grad(loss, list(model.parameters()))
    for (name, _), m, h in zip(model.named_parameters(), mine, hers, strict=True):
        assert m.isfinite().all(), name
        if h.norm() > 1e-3:  # the keys' bias has none
            assert (m.cpu().double() - h).norm() < 10 * off * h.norm(), name


@pytest.mark.parametrize(
    ("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 0.006)], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_training_is_right_on_this_device(shape, device, dtype, off):
    check_packed(shape, device, dtype, off)
