"""Two towers, one for texts and one for images, compared by a vector each.

    model = build(preset("clip-vit-base-patch32"))
    out = model(input_ids=ids, pixel_values=images)     # any number of each
    out.logits_per_image.softmax(-1)                    # which text each image shows
    model(pixel_values=images).image_embeds             # one tower alone

Legend: B texts, I images, T length, W width of the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.core.heads.contrast import Contrast, unit
from allformer.core.heads.head import Hidden
from allformer.core.heads.vector import VectorHead
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.output import Output
from allformer.core.registry import implements
from allformer.core.stack import Stack
from allformer.core.whole import Model
from allformer.errors import ConfigError


@implements(config.TwoTowers)
class TwoTowersModel(Model[config.TwoTowers]):
    """CLIP's shape: neither tower sees the other; their vectors meet in the head."""

    text: Stack
    vision: Stack
    head: Contrast

    def __init__(self, model: config.TwoTowers) -> None:
        super().__init__(model)
        self.prefixes = dict.fromkeys(model.stacks, "")  # a text's inputs are no image's
        self.head = Contrast(model.head, model.vision, "head", text=model.text)

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        return_loss: bool = False,
        dtype: torch.dtype | None = None,
        kernel: str = "fast",
        **inputs: Any,
    ) -> Output:
        """Texts B T and images I C H W → `logits_per_image` I B, `logits_per_text` B I, and unit
        vectors `text_embeds` B W and `image_embeds` I W; of one tower alone its vectors.

        `return_loss`: text i belongs to image i, and each should find its own.
        """
        given = {"input_ids": input_ids, "pixel_values": pixel_values}
        given |= {"attention_mask": attention_mask, **inputs}
        found, _ = self.sort(given)
        vectors = self._vectors(found, dtype, kernel)
        if not vectors:
            raise ConfigError(
                "neither input_ids nor pixel_values given: there is nothing to compare; give one "
                "of them, or both"
            )
        if len(vectors) < 2:
            if return_loss:
                raise ConfigError(
                    "return_loss=True compares texts with images; give input_ids and pixel_values"
                )
            return Output(vectors)
        text, image = vectors.values()
        answer = self.head.compare(text, image)
        loss = self.head.mismatch(answer) if return_loss else None
        return Output({"loss": loss, **answer, **vectors})

    def _vectors(
        self, found: Mapping[str, dict[str, Tensor]], dtype: torch.dtype | None, kernel: str
    ) -> dict[str, Tensor]:
        """Unit vectors of each tower that is given anything, by their names."""
        vectors: dict[str, Tensor] = {}
        for name in (name for name, inputs in found.items() if inputs):
            head = self.reader(name)
            whole = head.reads_padding or head.reads_first  # a column, padding or not
            side = self._lay_out({name: found[name]}, whole)[name]
            vectors[head.config.output] = self.embed(name, side, dtype=dtype, kernel=kernel)
        return vectors

    def reader(self, tower: str) -> VectorHead:
        """What makes a vector of a tower's states."""
        return self.head.text if tower == "text" else self.head.image

    def embed(
        self, tower: str, side: Side, *, dtype: torch.dtype | None = None, kernel: str = "fast"
    ) -> Tensor:
        """Unit vectors of what one tower reads, B W: `model.embed("text", side)`.

        Training comes in here too, with sides of one size.
        """
        head = self.reader(tower)
        layout, front = side.layout, None
        if head.front is not None and isinstance(layout, Grid):  # no other state is read
            layout, front = layout.first(head.front), head.front
        states = self.hidden({tower: side}, dtype=dtype, kernel=kernel, front=front)[tower]
        answer = head.outputs(Hidden(states, layout, layout.to_grid(states), side.ids))
        return unit(answer[head.gives[-1]])

    def states(
        self, *, dtype: torch.dtype | None = None, kernel: str = "fast", **inputs: Any
    ) -> dict[str, Tensor]:
        """The hidden states of each tower that is given inputs, B T dim."""
        found, _ = self.sort(inputs)
        out: dict[str, Tensor] = {}
        for name in (name for name, x in found.items() if x):
            sides = self._lay_out({name: found[name]})
            hidden = self.hidden(sides, dtype=dtype, kernel=kernel)[name]
            out[name] = sides[name].layout.to_grid(hidden)
        return out
