"""AdamW by a kernel that reads and writes each number once.

    optimizer = OnePassAdamW(model.parameters(), lr=torch.tensor(1e-3, device="cuda"))

torch's fused kernel writes the gradients back when it scales them, and stands far below the
memory's speed; a training step of a small model spends several percent there. State, options,
`grad_scale` and `found_inf` are those of `torch.optim.AdamW(fused=True, capturable=True)`: a
checkpoint of the one is a checkpoint of the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.fused import has_triton

LARGE = 1 << 18  # numbers of a tensor: smaller ones go to torch's kernel, many at a time


class OnePassAdamW(torch.optim.AdamW):
    """For fp32 weights on a GPU; `rate` is a tensor there."""

    def __init__(self, params: Any, lr: Tensor, **options: Any) -> None:
        super().__init__(params, lr=lr, fused=True, capturable=True, **options)

    @staticmethod
    def serves(parameters: Any) -> bool:
        """Whether the kernel can be compiled, and all tensors are plain ones that it knows."""
        return has_triton() and all(
            p.is_cuda and p.dtype == torch.float32 and type(p) is nn.Parameter for p in parameters
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of all tensors that have a gradient."""
        from allformer.core.fused.gpu.adamw import adamw_

        assert closure is None, "no closures here"
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group in self.param_groups:
            lists: list[list[Tensor]] = [[] for _ in range(6)]
            self._init_group(group, *lists)  # type: ignore[no-untyped-call]
            params, grads, means, squares, _, steps = lists
            if not params:
                continue
            torch._foreach_add_(steps, 1)
            rest = []
            for i, (p, g) in enumerate(zip(params, grads, strict=True)):
                if p.numel() < LARGE or not _flat(p, g, means[i], squares[i]):
                    rest.append(i)
                    continue
                adamw_(
                    p, g, means[i], squares[i], steps[i], group["lr"], scale, found,
                    group["betas"], group["eps"], group["weight_decay"],
                )  # fmt: skip
            if rest:
                many_at_once: Any = torch._fused_adamw_
                many = [[x[i] for i in rest] for x in (params, grads, means, squares, steps)]
                many_at_once(
                    *many[:4], [], many[4], lr=group["lr"], beta1=group["betas"][0],
                    beta2=group["betas"][1], weight_decay=group["weight_decay"],
                    eps=group["eps"], amsgrad=False, maximize=False, grad_scale=scale,
                    found_inf=found,
                )  # fmt: skip
            if found is not None:
                torch._foreach_sub_(steps, [found] * len(steps))


def _flat(*tensors: Tensor) -> bool:
    return all(x.is_contiguous() for x in tensors)
