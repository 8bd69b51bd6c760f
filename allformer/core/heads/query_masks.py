"""EoMT: queries join the last layers, and each gives a class and a mask.

Legend: B images, Q queries, F tokens before the patches, H and W rows and columns of patches,
N = H·W, L labels, dim model width, U the upscaled side of a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.activation import ACT
from allformer.core.heads.head import Head, Hidden
from allformer.core.heads.layers import Layers
from allformer.core.heads.upscale import Doubled
from allformer.core.linear import Linear
from allformer.core.loss import Sums
from allformer.core.mask_loss import mask_costs
from allformer.core.norm import make_norm
from allformer.core.registry import implements
from allformer.core.taps import tap

Guess = tuple[Tensor, Tensor]  # masks B Q H·U W·U and classes B Q L+1, as scores


@implements(config.QueryMasks)
class QueryMasks(Head):
    """B F+N dim → a class (or none) and a mask of each query."""

    gives = ("class_queries_logits", "masks_queries_logits", "last_hidden_state")
    targets = ("mask_labels", "class_labels")
    masking: Tensor

    def __init__(
        self, head: config.QueryMasks, stack: config.Stack, path: str, **given: Any
    ) -> None:
        super().__init__(head, stack, path)
        dim = stack.states
        self.queries = nn.Parameter(torch.empty(head.queries, dim))
        self.layers = Layers(head.blocks, dim, path)
        self.norm = make_norm(head.norm, dim)
        self.upscale = nn.ModuleList(
            Doubled(dim, head.act, head.upscale_eps) for _ in range(head.upscale)
        )
        self.mask = nn.ModuleList(Linear(dim, dim) for _ in range(3))
        self.act = ACT[head.act]
        self.classes = Linear(dim, len(head.labels) + 1)
        # Of each layer, how likely a query looks at its mask alone; training takes it to 0.
        self.register_buffer("masking", torch.empty(len(head.blocks)))

    def reset_parameters(self) -> None:
        """Queries as an embedding starts; at first all look at their masks alone."""
        nn.init.normal_(self.queries)
        nn.init.ones_(self.masking)

    def outputs(self, hidden: Hidden) -> dict[str, Any]:
        x = hidden.grid
        x = torch.cat([self.queries.to(x.dtype).expand(len(x), -1, -1), x], 1)  # B Q+F+N dim
        shape = self.shape(hidden)
        mask: Tensor | None = None
        guesses: list[Guess] = []
        # Where nothing is masked any more, nothing is guessed on the way, unless it is to be
        # learnt from. As in transformers, a layer without a mask of its own keeps the last one.
        # (In training nobody asks for the numbers, so that nothing waits for the device.)
        shares: list[float] = [0.5] * len(self.masking) if self.training else self.masking.tolist()
        for i, share in enumerate(shares):
            if share > 0:
                guesses.append(self.guess(self.norm(x), shape))
                draws = None if share >= 1 else self.masking[i]
                mask = self._look(guesses[-1][0], draws, shape, x.shape[1])
            x = self.layers(i, x, mask)
        x = tap(self, "normed", self.norm(x))
        masks, classes = self.guess(x, shape)
        found = {
            "class_queries_logits": tap(self, "classes", classes),
            "masks_queries_logits": tap(self, "masks", masks),
            "last_hidden_state": x,
        }
        return {**found, "auxiliary_logits": tuple(guesses)} if guesses else found

    def shape(self, hidden: Hidden) -> tuple[int, int]:
        """Rows and columns of the patches of these images."""
        pixels = hidden.inputs["pixel_values"]
        rows, columns = self.stack.source.cut(*pixels.shape[2:])  # type: ignore[attr-defined]
        return rows, columns

    def guess(self, x: Tensor, shape: tuple[int, int]) -> Guess:
        """What normed states B Q+F+N dim say: masks and classes."""
        count = self.config.queries
        queries = x[:, :count]
        before = count + self.stack.source.front  # type: ignore[attr-defined]
        plane = x[:, before:].transpose(1, 2).reshape(len(x), -1, *shape)  # B dim H W
        for double in self.upscale:
            plane = double(plane)
        classes = self.classes(queries)
        first, second, last = self.mask
        queries = last(self.act(second(self.act(first(queries)))))
        masks = queries @ plane.flatten(2)  # B Q H·U·W·U
        return masks.view(*masks.shape[:2], *plane.shape[2:]), classes

    def _look(
        self, masks: Tensor, share: Tensor | None, shape: tuple[int, int], width: int
    ) -> Tensor:
        """Who may look at whom in a layer, B 1 T T: a query at the patches of its mask, and at all
        that is no patch; of the queries only a `share`, drawn anew, is so bound (None: all)."""
        count = self.config.queries
        inside = F.interpolate(masks.detach(), shape, mode="bilinear").flatten(2) > 0  # B Q N
        if share is not None:
            free = torch.rand(masks.shape[:2], device=masks.device) > share
            inside = inside | free[..., None]
        look = inside.new_ones(len(masks), width, width)
        look[:, :count, width - inside.shape[2] :] = inside
        return look[:, None]

    def sums(self, outputs: Mapping[str, Any], targets: Mapping[str, Any], hidden: Hidden) -> Sums:
        """The losses of what is guessed before each masked layer and at the end, added up."""
        last = (outputs["masks_queries_logits"], outputs["class_queries_logits"])
        (wanted, named), settings = (targets[name] for name in self.targets), self.config.loss
        parts = [
            mask_costs(masks, classes, wanted, named, settings).total(settings)
            for masks, classes in (*outputs.get("auxiliary_logits", ()), last)
        ]
        loss = torch.stack(parts).sum()
        return Sums(loss, loss.detach(), loss.new_ones(()))
