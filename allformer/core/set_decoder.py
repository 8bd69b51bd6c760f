"""DETR's shape: an encoder over a feature map, and queries that are answered all at once.

    out = build(preset("detr-resnet-50"))(pixel_values=images, pixel_mask=mask)
    out.logits, out.pred_boxes

Legend: B images, S cells of the feature map, Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.output import Output
from allformer.core.registry import implements
from allformer.core.relatives.added import Added, plane_sines
from allformer.core.stack import Stack
from allformer.core.states import Cache
from allformer.core.whole import LAYERS, Model


@implements(config.SetDecoder)
class SetDecoderModel(Model[config.SetDecoder]):
    """The encoder's cells look at each other; queries look at each other and across at the cells.
    Both know where they stand in every layer (DETR, figure 10)."""

    encoder: Stack
    decoder: Stack

    def __init__(self, model: config.SetDecoder) -> None:
        super().__init__(model)
        self._add_head()

    def forward(
        self,
        pixel_values: Tensor | None = None,
        pixel_mask: Tensor | None = None,
        labels: Any = None,
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        **inputs: Any,
    ) -> Output:
        """Images B C H W, and which of their pixels are no padding (B H W) → logits B Q C+1 and
        pred_boxes B Q 4; `labels` are a list with class_labels and boxes of each image."""
        given = {"pixel_values": pixel_values, "pixel_mask": pixel_mask, "labels": labels}
        return self.call({**given, **inputs}, dtype=dtype, kernel=kernel)

    def _lay_out(
        self, found: Mapping[str, Mapping[str, Tensor]], whole: bool = False
    ) -> dict[str, Side]:
        """The image's cells, without what lies around it; and as many queries for each image."""
        inputs = dict(found["encoder"])
        rows, width = self.encoder.check(inputs, None)
        keep = self.encoder.source.keep(inputs)
        seen = Side(Grid(rows, width, keep), inputs)
        count = self.config.decoder.source.tokens_each
        assert count is not None
        return {"encoder": seen, "decoder": Side(Grid(rows, count), {})}

    def hidden(
        self,
        sides: Mapping[str, Side],
        *,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        cache: Cache | None = None,
        front: int | None = None,
    ) -> dict[str, Tensor]:
        image, asked = sides["encoder"], sides["decoder"]
        x = self.encoder.source(image, dtype)
        places = self._places(image, x)
        memory = self.encoder(
            x, image.layout, kernel=kernel, inputs=image.inputs, relation=Added(places)
        )
        queries = self.decoder.source(asked, dtype)
        own = Added(self.decoder.source.places(queries), places)
        seen = self.watched("decoder")
        states = self.decoder(
            queries, asked.layout, memory=memory, across=image.layout, kernel=kernel,
            head=self.config.head, relation=own, seen=seen, front=front,
        )  # fmt: skip
        out = {"encoder": memory, "decoder": states}
        return out if seen is None else {**out, LAYERS: torch.stack(seen)}

    def _places(self, image: Side, x: Tensor) -> Tensor:
        """Where each cell stands, B S dim, or the same for all images, 1 S dim."""
        source: Any = self.config.encoder.source
        shape = source.cut(*image.inputs["pixel_values"].shape[2:])
        keep = image.layout.keep
        if keep is None:
            keep = torch.ones(1, x.shape[1], dtype=torch.bool, device=x.device)
        return plane_sines(keep.view(-1, *shape), self.config.encoder.dim, x.dtype)
