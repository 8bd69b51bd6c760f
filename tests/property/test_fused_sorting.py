"""Kernels that move sorted tokens give what the plain forms give."""

from __future__ import annotations

import pytest
import torch

from allformer.core.fused import sorting
from tests.property.test_fused import on_gpu


def scene(dtype, size):
    make = torch.Generator("cuda").manual_seed(0)
    shape = (2, 3, 4, 200, size)  # B H R L D
    order = torch.rand(shape[:4], generator=make, device="cuda").argsort(-1)
    back = order.argsort(-1)
    x = torch.randn(2, 200, 3, size, generator=make, device="cuda").to(dtype)  # B L H D
    context = torch.randn(shape, generator=make, device="cuda").to(dtype)
    return x.transpose(1, 2), context, torch.randn(shape[:4], device="cuda").mul(3), order, back


@on_gpu
@pytest.mark.parametrize("size", [64, 48])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_come_to_their_places_and_back(dtype, size):
    x, context, _, order, back = scene(dtype, size)
    wide = order[..., None].expand(context.shape)
    shared = x[:, :, None].expand(context.shape)
    for given in (shared, context):
        assert torch.equal(sorting.moved(given, order, back), given.gather(3, wide))
    given = context.clone().requires_grad_()
    grad = torch.randn_like(context)
    sorting.moved(given, order, back).backward(grad)
    assert torch.equal(given.grad, grad.gather(3, back[..., None].expand(context.shape)))


@on_gpu
@pytest.mark.parametrize("width", [200, 171])
def test_rounds_are_merged_by_what_they_have_seen(width):
    _, context, total, order, back = scene(torch.bfloat16, 64)
    with torch.no_grad():
        found = sorting.merged(context, total, order, back, width)
    wanted = sorting.merged(context.double(), total.double(), order, back, width)
    assert found.shape == wanted.shape
    assert (found.double() - wanted).norm() < 4e-3 * wanted.norm()


@on_gpu
@pytest.mark.parametrize("n", [1, 24, 256, 700])
def test_the_bucket_is_the_farthest_of_either_side(n):
    both = torch.randn(2, 3, 100, n + 5, device="cuda").bfloat16()
    part = both.split([n, 5], -1)[0]
    wanted = torch.cat([part, -part], -1).max(-1).values
    found = sorting.farthest(part)
    assert torch.equal(torch.cat([part, -part], -1).gather(-1, found[..., None])[..., 0], wanted)
