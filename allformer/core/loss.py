"""Cross-entropy straight from hidden states: the logits of a whole batch are never all in memory.

    loss, nll = linear_cross_entropy(hidden, weight, None, targets, smoothing=0.1)

With label smoothing ε over V classes the target distribution is q = (1−ε)·onehot + ε/V, and

    loss = −Σ_v q_v log p_v + z·L²,   L = log Σ_v exp(logit_v),   ∂loss/∂logits = (1 + 2 z L)·p − q.

The z-loss (PaLM, section 5) keeps L near zero, so that logits in half precision do not drift away.

Since the gradient is known as soon as p is, both are computed chunk by chunk in the forward pass:
one pass over each chunk of logits, no recomputation, V·chunk numbers of memory instead of V·N. On a
GPU the logits of a chunk are overwritten by their gradient (`fused/gpu/entropy.py`).

Legend: N tokens, D model width, V vocabulary, C tokens in a chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer.core.fused import trains
from allformer.core.matmul import matmul, outer
from allformer.core.precision import widen
from allformer.errors import ConfigError

IGNORE = -100  # the ecosystem's id for "no target here"
_CHUNK = 2**27  # logits of about this many numbers at a time: 256 MiB in bf16
_NEAR = 2**22  # on a CPU: as many stay near it from one pass over them to the next (16 MiB in fp32)
_FEW = 256  # tokens: of fewer, adding up the gradients of all weights would take what that saves
_FUSED_CHUNK = 2**29  # 1 GiB in bf16, once: each chunk goes over the gradient of all weights
_TILE = 128


class Sums(NamedTuple):
    """A loss added up, the same without smoothing or weights, and over how many it is."""

    loss: Tensor
    nll: Tensor
    total: Tensor

    @property
    def mean(self) -> Tensor:
        """0 where nothing counts (every label is −100), with a gradient of 0: not NaN."""
        return self.loss / self.total.clamp_min(1)


def entropy_sums(logits: Tensor, targets: Tensor) -> Sums:
    """Cross-entropy over targets ≠ −100, in at least fp32: … V, … → three numbers."""
    wide, flat = widen(logits).flatten(0, -2), targets.flatten()
    loss = F.cross_entropy(wide, flat, ignore_index=IGNORE, reduction="sum")
    return Sums(loss, loss.detach(), (flat != IGNORE).sum())


def class_sums(logits: Tensor, labels: Tensor, problem: str | None, name: str = "labels") -> Sums:
    """The loss of scores over classes, B L, by its problem; None: as the labels themselves tell."""
    wide, classes = widen(logits), logits.shape[-1]
    if problem is None:
        if classes == 1:
            problem = "regression"
        else:
            whole = not labels.is_floating_point()
            problem = f"{'single' if whole else 'multi'}_label_classification"
    if problem == "single_label_classification":
        check_targets(labels.flatten(), name, (len(logits),), classes)
        return entropy_sums(logits, labels)
    if labels.numel() != logits.numel():
        raise ConfigError(
            f"{name}={tuple(labels.shape)} must have a number for each of {tuple(logits.shape)} "
            f"scores ({problem}); give so many"
        )
    labels = labels.reshape(wide.shape).to(wide)
    score = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
    loss = score(wide, labels, reduction="sum")
    return Sums(loss, loss.detach(), torch.tensor(wide.numel(), device=wide.device))


def span_sums(starts: Tensor, ends: Tensor, first: Tensor, last: Tensor) -> Sums:
    """Both ends over positions, B T: the mean of two means; ends beyond the text do not count."""
    width = starts.shape[1]

    def one(scores: Tensor, places: Tensor) -> Tensor:
        places = places.flatten().clamp_min(0)
        return entropy_sums(scores, places.masked_fill(places >= width, IGNORE)).mean

    loss = (one(starts, first) + one(ends, last)) / 2
    return Sums(loss, loss.detach(), torch.ones((), device=loss.device))


def check_targets(targets: Tensor, name: str, shape: tuple[int, ...], classes: int | None) -> None:
    """Refuse targets of another shape, or that are no class (and not −100)."""
    if not isinstance(targets, Tensor) or tuple(targets.shape) != shape:
        given = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ConfigError(f"{name}={given} must be of the shape {shape}; give one for each")
    if classes is None or targets.device.type != "cpu" or torch.compiler.is_compiling():
        return  # a GPU would have to be waited for, and stops by itself
    odd = (targets != IGNORE) & ((targets < 0) | (targets >= classes))
    if bool(odd.any()):
        raise ConfigError(
            f"{name} has {targets[odd][0].item():g}, but there are 0 … {classes - 1}, and −100 for "
            f"what does not count; correct it"
        )


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    chunk: int | None = None,
    z: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Summed smoothed loss and summed negative log-likelihood of `targets` (N) from `hidden` (N D).

    logits = hidden weightᵀ + bias, as the head would compute them. Targets of −100 count nothing.
    `z` weighs the z-loss. The second result is for perplexity and carries no gradient.
    """
    fused = _fused(hidden, weight)
    budget = _FUSED_CHUNK if fused else _budget(hidden.device, weight.shape[0])
    rows = chunk or _rows(hidden.shape[0], weight.shape[0], budget)
    way: Any = _FusedCrossEntropy if fused else _LinearCrossEntropy
    loss, nll = way.apply(
        hidden, weight, bias, targets, smoothing, z, rows, torch.is_grad_enabled()
    )
    return loss, nll


def _fused(hidden: Tensor, weight: Tensor) -> bool:
    """Whether the kernel serves: half precision on a GPU, plain tensors."""
    half = not torch.compiler.is_compiling() and trains(hidden.device, hidden.dtype)
    return half and type(hidden) is Tensor and type(weight) in (Tensor, nn.Parameter)


def _budget(device: torch.device, vocab: int) -> int:
    """Logits that are held at a time without the kernel."""
    near = device.type == "cpu" and vocab * _FEW <= _NEAR and not torch.compiler.is_compiling()
    return _NEAR if near else _CHUNK


def _rows(tokens: int, vocab: int, budget: int) -> int:
    """Tokens in a chunk: all chunks alike, and in steps that matrix kernels cut their work in."""
    chunks = max(1, -(-tokens * vocab // budget))
    rows = max(1, -(-tokens // chunks))
    return rows if chunks == 1 else -(-rows // _TILE) * _TILE


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        z: float,
        rows: int,
        grads: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        w = weight.to(hidden.dtype)
        b = None if bias is None else bias.to(hidden.dtype)
        want_hidden, want_weight, want_bias = (grads and x for x in ctx.needs_input_grad[:3])
        loss = torch.zeros((), dtype=wide, device=hidden.device)
        nll = torch.zeros((), dtype=wide, device=hidden.device)
        d_hidden: list[Tensor] = []
        d_weight: Tensor | None = None
        d_bias: Tensor | None = None
        for h, t in zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True):
            logits = matmul(h, w, b)  # C V
            part, part_nll, logp = _chunk(logits, t, smoothing, z)
            loss, nll = loss + part, nll + part_nll
            if not (want_hidden or want_weight or want_bias):
                continue
            grow = 1 + 2 * z * widen(logits).logsumexp(-1, keepdim=True) if z else None
            d_logits = _chunk_gradient(logp, t, smoothing, grow).to(logits.dtype)
            if want_hidden:
                d_hidden.append(matmul(d_logits, w.t(), None))  # C D
            if want_weight:
                dw = _outer(d_logits, h, wide)  # V D
                d_weight = dw if d_weight is None else d_weight.add_(dw)
            if want_bias:
                db = d_logits.sum(0, dtype=wide)
                d_bias = db if d_bias is None else d_bias.add_(db)
        ctx.save_for_backward(torch.cat(d_hidden) if d_hidden else None, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _scaled(ctx, grads[0])


class _FusedCrossEntropy(torch.autograd.Function):
    """The same by one operator, in which chunks of logits become their gradients in place."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        z: float,
        rows: int,
        grads: bool,
    ) -> tuple[Tensor, Tensor]:
        from allformer.core.fused.gpu.entropy import linear_entropy

        wants = [grads and x for x in ctx.needs_input_grad[:3]]
        loss, nll, *found = linear_entropy(hidden, weight, bias, targets, smoothing, z, rows, wants)
        ctx.save_for_backward(*(d if want else None for d, want in zip(found, wants, strict=True)))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _scaled(ctx, grads[0])


def _scaled(ctx: Any, d_loss: Tensor) -> Any:
    out = [None if x is None else x * d_loss.to(x.dtype) for x in ctx.saved_tensors]
    return (*out, None, None, None, None, None)


def _chunk(
    logits: Tensor, targets: Tensor, smoothing: float, z: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss sum, NLL sum and log p (C V) of one chunk; rows without a target give zero."""
    wide = widen(logits)
    real = targets != IGNORE
    safe = targets.where(real, 0)[:, None]
    logp = wide.log_softmax(-1)
    nll = -logp.gather(1, safe).squeeze(1) * real
    loss = nll
    if smoothing:
        loss = (1 - smoothing) * nll - smoothing * logp.mean(-1) * real
    if z:
        loss = loss + z * wide.logsumexp(-1).square() * real
    return loss.sum(), nll.sum(), logp


def _chunk_gradient(
    logp: Tensor, targets: Tensor, smoothing: float, grow: Tensor | None = None
) -> Tensor:
    """∂loss/∂logits = grow·p − q of one chunk, C V; rows without a target give zero.

    `grow` (C 1) is 1 + 2 z L.
    """
    real = (targets != IGNORE)[:, None]
    safe = targets[:, None].where(real, 0)
    spread, peak = smoothing / logp.shape[1], 1 - smoothing
    if torch.compiler.is_compiling():  # one fused pass: comparing is cheaper than scattering
        vocab = torch.arange(logp.shape[1], device=logp.device)
        onehot = (vocab == safe).to(logp.dtype)  # a bool times 0.9 would be fp32, even in fp64
        p = logp.exp() if grow is None else logp.exp() * grow
        return (p - spread - peak * onehot) * real
    grad = logp.exp_()  # in place: `logp` is this chunk's own and is not needed again
    if grow is not None:
        grad.mul_(grow)
    if smoothing:
        grad.sub_(spread)
    grad.scatter_add_(1, safe, grad.new_full(safe.shape, -peak))
    return grad.masked_fill_(~real, 0.0)


def _outer(d_logits: Tensor, h: Tensor, wide: torch.dtype) -> Tensor:
    """∂loss/∂W of a chunk, C V and C D → V D, accumulated in fp32 where the chip can do so."""
    if d_logits.is_cuda and d_logits.dtype != wide:
        return torch.mm(d_logits.t(), h, out_dtype=wide)
    return outer(d_logits, h).to(wide)
