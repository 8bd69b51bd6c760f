"""Linear attention: what queries read are sums over keys, never one score for each pair.

    out_t = φ(q_t)·Σ_s φ(k_s) v_s / φ(q_t)·Σ_s φ(k_s),   causal: s ≤ t      (Katharopoulos et al.)

Causal, the tokens go in chunks: inside one, scores of its own pairs; from those before it, their
sums. Memory and time grow with the tokens; the sums are what generating remembers.

`top` is the logarithm that a key's features were divided by (features that are exponentials would
overflow): each query weighs the keys by exp(top − the highest top that it has met), so that nothing
overflows, and what comes after a query does not touch its numbers. −inf: nobody stands there.

Legend: B batch, H query heads, G key/value heads, R = H/G, T tokens, F features, D head size,
C chunks, L tokens of a chunk.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allformer.core.fused import trains

CHUNK = 128
SIZES = (16, 32, 64, 128)  # of heads that the kernel takes


class Sums(NamedTuple):
    """What is known of keys: Σ φ(k) v, B G F D; Σ φ(k), B G F; both divided by exp(top), B G."""

    values: Tensor
    mass: Tensor
    top: Tensor | None = None


class Cut(NamedTuple):
    """Chunks: q B G C R·L F, k B G C L F, v B G C L D, top B G C L."""

    q: Tensor
    k: Tensor
    v: Tensor
    top: Tensor | None


def whole_attention(q: Tensor, k: Tensor, v: Tensor, top: Tensor | None = None) -> Tensor:
    """Every query reads all keys: q B H T F, k B G S F, v B G S D (top B G S) → B H T D.

    Keys of padding are zeros (top −inf) and add nothing; who sees nobody gets zeros.
    """
    if top is not None:
        k = k * (top - _finite(top.amax(-1, keepdim=True))).exp()[..., None]
    values, mass = k.transpose(-1, -2) @ v, k.sum(-2)
    grouped = q.reshape(*k.shape[:2], -1, q.shape[-1])  # B G R·T F
    out = _over(grouped @ values, grouped @ mass[..., None])
    return out.reshape(*q.shape[:3], v.shape[-1])


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, top: Tensor | None = None, before: Sums | None = None
) -> tuple[Tensor, Sums]:
    """Every query reads the keys up to its own, and those `before`: q B H T F, k B G T F, v B G T D
    (top B G T) → B H T D, and the sums over all keys."""
    cut = _cut(q, k, v, top)
    batch, groups, chunks, length = cut.k.shape[:4]
    shape = (batch, groups, chunks, -1, length)  # of queries: B G C R L
    known, highest = _known(cut, before)  # before each chunk, and after the last
    scores = (cut.q @ cut.k.transpose(-1, -2)).reshape(*shape, length)
    fade = None
    if cut.top is None:
        scores = scores.tril()
    else:
        assert highest is not None
        met = torch.maximum(cut.top.cummax(-1).values, highest[:, :, :-1, None])  # B G C L
        met = _finite(met)
        pairs = (cut.top[..., None, :] - met[..., None]).tril()  # 0 above: exp stays finite
        scores = scores * pairs.exp().tril()[:, :, :, None]
        fade = (highest[:, :, :-1, None] - met).exp()[:, :, :, None, :, None]  # B G C 1 L 1
    above = (cut.q @ known.values[:, :, :-1]).reshape(*shape, v.shape[-1])
    below = (cut.q @ known.mass[:, :, :-1, :, None]).reshape(*shape, 1)
    if fade is not None:
        above, below = above * fade, below * fade
    above = above + (scores.flatten(3, 4) @ cut.v).reshape(above.shape)
    out = _over(above, below + scores.sum(-1, keepdim=True))
    out = out.transpose(2, 3).reshape(batch, q.shape[1], chunks * length, -1)[:, :, : q.shape[2]]
    last = None if highest is None else highest[:, :, -1]
    return out, Sums(known.values[:, :, -1], known.mass[:, :, -1], last)


def fused_serves(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether `fused_elu` has a kernel here: bf16 on a GPU (fp16 has no room for 1/Σ φ(q)·φ(k))."""
    if torch.compiler.is_compiling() or dtype != torch.bfloat16 or size not in SIZES:
        return False
    return trains(device, dtype) and _roomy(device, size)


@cache
def _roomy(device: torch.device, size: int) -> bool:
    """Whether the sums of a head of 128 fit: they take 160 KiB on a multiprocessor."""
    chip: Any = torch.cuda.get_device_properties(device)
    return size < SIZES[-1] or chip.shared_memory_per_block_optin >= 160 * 1024


def fused_elu(x: Tensor, keep: Tensor | None, heads: int, groups: int, size: int) -> Tensor:
    """`causal_attention` with φ = elu + 1 from the fused projection: x B T (H+2G)·D, and keep B T
    (False at padding) → B T H·D."""
    apply: Any = _FusedElu.apply
    out: Tensor = apply(
        x, None if keep is None else keep.to(torch.uint8).contiguous(), heads, groups, size
    )
    return out


class _FusedElu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor | None, *shape: int) -> Tensor:
        from allformer.core.fused.gpu import linear_attention as gpu

        out: Tensor
        out, inverse = gpu.linear_attention(x, keep, *shape)
        ctx.save_for_backward(x, keep, out, inverse)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        from allformer.core.fused.gpu import linear_attention as gpu

        dx = gpu.linear_attention_backward(grads[0], *ctx.saved_tensors, *ctx.shape)
        return dx, None, None, None, None


def attention_weights(q: Tensor, k: Tensor, top: Tensor | None, causal: bool) -> Tensor:
    """The formula as it stands, for each pair: q B H T F, k B G S F (top B G S) → B H T S."""
    heads = q.shape[1] // k.shape[1]
    weights = q @ k.repeat_interleave(heads, 1).transpose(-1, -2)
    if top is not None:
        wide = top.repeat_interleave(heads, 1)[:, :, None]  # B H 1 S
        wide = wide.expand(weights.shape)
        if causal:
            later = torch.ones(weights.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            wide = wide.masked_fill(later, float("-inf"))
        weights = weights * (wide - _finite(wide.amax(-1, keepdim=True))).exp()
    if causal:
        weights = weights.tril()
    return _over(weights, weights.sum(-1, keepdim=True))


def _cut(q: Tensor, k: Tensor, v: Tensor, top: Tensor | None) -> Cut:
    """Into chunks; the last one is filled up with nobody."""
    groups, tokens = k.shape[1], k.shape[2]
    length = min(CHUNK, tokens)
    fill = -tokens % length
    if fill:
        q, k, v = (F.pad(x, (0, 0, 0, fill)) for x in (q, k, v))
        top = None if top is None else F.pad(top, (0, fill), value=float("-inf"))
    cells = (len(k), groups, -1, length)
    k, v = (x.reshape(*cells, x.shape[-1]) for x in (k, v))
    q = q.reshape(len(k), groups, q.shape[1] // groups, -1, length, q.shape[-1])  # B G R C L F
    top = None if top is None else top.reshape(cells)
    return Cut(q.transpose(2, 3).flatten(3, 4), k, v, top)


def _known(cut: Cut, before: Sums | None) -> tuple[Sums, Tensor | None]:
    """The sums before each chunk and after the last, C+1 along the third axis, and what they are
    divided by."""
    k, v = cut.k, cut.v
    highest = None
    if cut.top is not None:
        own = cut.top.amax(-1)  # B G C
        k = k * (cut.top - _finite(own)[..., None]).exp()[..., None]
        first = torch.full_like(own[..., :1], float("-inf"))
        if before is not None and before.top is not None:
            first = before.top[..., None]
        own = torch.cat([first, own], -1)
        highest = own.cummax(-1).values
    values, mass = k.transpose(-1, -2) @ v, k.sum(-2)  # B G C F D, B G C F
    begin = Sums(torch.zeros_like(values[:, :, 0]), torch.zeros_like(mass[:, :, 0]))
    begin = begin if before is None else before
    values = torch.cat([begin.values[:, :, None], values], 2)
    mass = torch.cat([begin.mass[:, :, None], mass], 2)
    if highest is None:
        return Sums(values.cumsum(2), mass.cumsum(2)), None
    base = _finite(highest)
    grow = (own - base).exp()  # a chunk's own, into the common measure
    fade = (highest[..., :-1] - base[..., 1:]).exp()  # what came before, into the new one
    faded: Any = _Faded.apply
    values = faded(values * grow[..., None, None], fade)
    mass = faded((mass * grow[..., None])[..., None], fade)[..., 0]
    return Sums(values, mass), highest


class _Faded(torch.autograd.Function):
    """Running sums along the third axis, of which each step first fades what there is; one pass
    back and forth, and nothing is kept but the factors, which are no function of anything learned.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, fade: Tensor) -> Tensor:
        ctx.save_for_backward(fade)
        out = x.clone()
        for i in range(fade.shape[2]):
            out[:, :, i + 1].addcmul_(out[:, :, i], fade[:, :, i, None, None])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (fade,) = ctx.saved_tensors
        out = grads[0].clone()
        for i in reversed(range(fade.shape[2])):
            out[:, :, i].addcmul_(out[:, :, i + 1], fade[:, :, i, None, None])
        return out, None


def _finite(top: Tensor) -> Tensor:
    """−inf less −inf is no number: where nobody stands, any other will do."""
    return top.masked_fill(top == float("-inf"), 0.0)


def _over(above: Tensor, below: Tensor) -> Tensor:
    """Zeros where there was nobody."""
    return above / below.masked_fill(below == 0, 1.0)
