"""An image is cut so that each token is one patch: its numbers, and no other patch's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.probe import scale_of
from allformer.auditor.report import Finding


@check("patches.mixed", kinds=("encoder", "block"))
def patches(ctx: Context) -> Iterator[Finding]:
    """Turn the numbers of one patch around: one key of the first attention moves."""
    if ctx.call.x.picture is None:
        raise NotApplicable("it takes no images")
    if any(_overlaps(m) for m in ctx.loud.modules()):
        raise NotApplicable("convolutions that overlap mix neighbours on purpose")
    site, n = ctx.sites()[0], ctx.positions()
    if site.k_tag.linear < 0:
        raise NotApplicable("the keys of its first attention come from no linear map")
    moved = [(t, _moved(ctx, t)) for t in (0, n // 2, n - 1)]
    always = torch.stack([rows for _, rows in moved]).all(0)
    if int(always.sum()) == 1:  # a summary of all patches, beside them
        moved = [(t, rows & ~always) for t, rows in moved]
    for t, rows in moved:
        if int(rows.sum()) > 1:
            yield Finding(
                "patches.mixed",
                f"changing patch {t} of {n} moves {int(rows.sum())} tokens of {len(rows)} before "
                f"any attention: an image or a map of features (B, C, H, W) was reshaped where its "
                f"axes should be exchanged",
                site.where,
            )
            return


def _overlaps(m: nn.Module) -> bool:
    """Whether a window is wider than its step."""
    if not isinstance(m, nn.Conv1d | nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
        return False
    sides = [v if isinstance(v, tuple) else (v,) for v in (m.kernel_size, m.stride)]
    return any(k > s for k, s in zip(*sides, strict=False))


def _moved(ctx: Context, t: int) -> Tensor:
    """Which tokens move with a patch, where the first keys are made; its numbers stay the same."""
    one, picture = ctx.one, ctx.call.x.picture
    assert picture is not None
    x = one.x.clone()
    x[:, t] = x[:, t].view(-1, picture.channels, picture.patch**2).flip(-1).flatten(-2)
    number = ctx.sites()[0].k_tag.linear
    before, after = ctx.seen.outputs[number], ctx.watch(replace(one, x=x))[0].outputs[number]
    return ((after - before).abs() > 1e-6 * scale_of(before)).any(-1).flatten()
