"""Adam and AdamW: PyTorch's fused ones, where one kernel updates all parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allformer.core.fused.adamw import OnePassAdamW
from allformer.core.starts import decay_groups
from allformer.train.optim.settings import Betas, Optim, Small


@dataclass(frozen=True)
class AdamW(Optim, named="adamw"):
    """Decay apart from the gradient: w shrinks by rate · weight_decay (Loshchilov & Hutter).

    The defaults are those of the Transformer's paper, section 5.3.
    """

    captures: ClassVar[bool] = True
    clips_inside: ClassVar[bool] = True
    kind: ClassVar[type[torch.optim.Adam]] = torch.optim.AdamW

    betas: Betas = (0.9, 0.98)
    eps: Small = 1e-9

    def make(self, model: nn.Module, lr: Tensor | float, capturable: bool) -> torch.optim.Optimizer:
        beta1, beta2 = self.betas
        groups = decay_groups(model, self.weight_decay)
        plain = self.kind is torch.optim.AdamW and isinstance(lr, Tensor)
        if capturable and plain and OnePassAdamW.serves(p for g in groups for p in g["params"]):
            rate: Any = lr
            return OnePassAdamW(groups, lr=rate, betas=(beta1, beta2), eps=self.eps)
        return self.kind(
            groups,
            lr=lr,
            betas=(beta1, beta2),
            eps=self.eps,
            fused=True,
            capturable=capturable,
        )


@dataclass(frozen=True)
class Adam(AdamW, named="adam"):
    """Kingma & Ba's; weight_decay is added to the gradient, weight_decay · w, as L2."""

    kind: ClassVar[type[torch.optim.Adam]] = torch.optim.Adam
