"""The kernel of causal linear attention gives the plain form's values and gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import allformer as af
from allformer.config import Attention, Features, Feed, Rotary
from allformer.core.fused import linear_attention
from allformer.core.fused.linear_attention import causal_attention, fused_elu, fused_serves
from allformer.core.mixers import features
from tests.models import FINAL, MODERN, decoder_only, left_padding, right_padding, tokens
from tests.property.test_fused import CUDA, DEVICE, DTYPES, close, kernels, on_gpu, random

DECODER = decoder_only(
    replace(
        MODERN,
        attention=Attention(4, kv_heads=2, head_dim=16, mixer=Features("elu")),
        feed=Feed(96, act="silu", gated=True, bias=False),
    ),
    dim=64, position=None, relative=Rotary(), final_norm=FINAL,
)  # fmt: skip


def plain(x, keep, heads, groups, size):
    wide = (heads * size, groups * size, groups * size)
    q, k, v = (p.unflatten(-1, (-1, size)).transpose(1, 2) for p in x.split(wide, -1))
    q, k = F.elu(q) + 1, F.elu(k) + 1
    k = k if keep is None else k * keep[:, None, :, None]
    return causal_attention(q, k, v)[0].transpose(1, 2).flatten(-2)


@kernels
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("shape", [(2, 2, 16), (4, 2, 32), (3, 1, 64)] + [(2, 1, 128)] * CUDA)
@pytest.mark.parametrize("dtype", [torch.bfloat16] if CUDA else DTYPES)  # it takes no other there
@pytest.mark.parametrize("length", [150, 7] + [5000] * CUDA)
def test_the_kernel_is_the_plain_form(dtype, shape, padded, length):
    heads, groups, size = shape
    x = random(2, length, (heads + 2 * groups) * size, dtype=dtype).requires_grad_()
    keep = None
    if padded:
        keep = torch.ones(2, length, dtype=torch.bool, device=DEVICE)
        keep[0, : length // 2], keep[1, -3:] = False, False
    wide = x.detach().double().requires_grad_()
    wanted = plain(wide, keep, *shape)
    found = fused_elu(x, keep, *shape)
    close(found, wanted, dtype)
    grad = torch.randn_like(found)
    (mine,), (hers,) = (
        torch.autograd.grad(*case) for case in ((found, x, grad), (wanted, wide, grad.double()))
    )
    for part, other in zip(*(t.split([heads * size, groups * size, groups * size], -1)
                             for t in (mine, hers)), strict=True):  # fmt: skip
        close(part, other, dtype, 2)


@kernels
@pytest.mark.parametrize("pad", [right_padding, left_padding])
def test_a_model_by_the_kernel_is_the_model_by_chunks(pad, monkeypatch):
    """Packed rows, rotary angles and grouped heads included; fp32 takes the kernel here alone."""
    model = af.build(DECODER, seed=0).to(DEVICE)
    ids, mask = tokens(3, 80).to(DEVICE), pad([80, 9, 66], 80).to(DEVICE)
    found = []
    for serves in (False, True):
        monkeypatch.setattr(features, "fused_serves", lambda *case, told=serves: told)
        model.zero_grad()
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for mine, hers in zip(*found, strict=True):
        close(mine, hers, torch.float32, 1000 if CUDA else 2)


@on_gpu
def test_training_in_bf16_on_a_gpu_takes_the_kernel(monkeypatch):
    model = af.build(DECODER, device="cuda", seed=0)
    ids = tokens(2, 300).cuda()
    calls = []
    whole = linear_attention._FusedElu.forward
    monkeypatch.setattr(
        linear_attention._FusedElu, "forward", lambda *a: calls.append(1) or whole(*a)
    )
    fast = model(input_ids=ids, labels=ids, dtype=torch.bfloat16)
    fast.loss.backward()
    assert len(calls) == 2
    slow = model(input_ids=ids, labels=ids, kernel="eager")
    assert len(calls) == 2
    close(fast.logits, slow.logits, torch.bfloat16, 3)
    with torch.no_grad():
        cache = model.new_cache()
        stepped = model(input_ids=ids, cache=cache, dtype=torch.bfloat16).logits
    close(stepped, fast.logits, torch.bfloat16, 3)


@on_gpu
def test_memory_grows_with_the_length_and_65536_tokens_train():
    block = replace(MODERN, attention=Attention(4, head_dim=64, mixer=Features("elu")))
    model = af.build(replace(decoder_only(block), head=None), device="cuda", seed=0)
    peaks = []
    for length in (32_768, 65_536):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = model(input_ids=tokens(1, length).cuda(), dtype=torch.bfloat16)
        out.last_hidden_state.float().sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del out
    assert peaks[1] < 2.2 * peaks[0]


def test_no_kernel_serves_on_a_cpu_or_in_another_dtype():
    assert not fused_serves(torch.device("cpu"), torch.bfloat16, 64)
    assert not fused_serves(torch.device("cuda"), torch.float16, 64)
    assert not fused_serves(torch.device("cuda"), torch.bfloat16, 48)
