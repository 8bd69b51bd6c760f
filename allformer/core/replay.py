"""An encoder's forward pass on a GPU, compiled once and replayed as CUDA graphs.

    model = load("bert", device="cuda", dtype=torch.bfloat16)
    model.compile()
    model(input_ids=ids, attention_mask=mask)     # nothing is computed for padding

A graph has fixed sizes, but the number of real tokens changes from batch to batch. So tokens are
packed into a multiple of `STEP` places; what is too many stands in rows of its own, at which no
sentence looks. One number is read back from the GPU for each batch: how many tokens there are.
Images have no padding: theirs is a graph for each size of a batch, in half precision of the kernels
that training has, so that nothing is compiled.

Legend: R rows, W width of the grid, N real tokens, M places for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from allformer.core.fused import capturing, trains
from allformer.core.graph import Captured, copy_into, on_side_stream
from allformer.core.inputs import Side, refuse_mask
from allformer.core.layout import Grid, Packed

Outputs = dict[str, Tensor]
STEP = 256
MOST = 64  # graphs that are kept; the one that was not used for longest gives way


def pack_into(keep: Tensor, places: int) -> Packed:
    """The packed layout of R W in exactly `places` ≥ N tokens, by operations of fixed size.

    The first N are as in `pack`; after them come cells of padding, in rows of at most W tokens
    (and empty ones, so that their number is fixed too).
    """
    width = keep.shape[1]
    flat = keep.flatten()
    cells = torch.sort((~flat).to(torch.uint8), stable=True).indices[:places]
    lengths = keep.sum(-1)
    ends = lengths.cumsum(0)
    spare = -(-STEP // width)
    more = ends[-1:] + width * torch.arange(1, spare + 1, device=keep.device)
    starts = torch.cat([ends.new_zeros(1), ends, more.clamp_max(places)]).int()
    numbers = (keep.long().cumsum(-1) - 1).clamp_min(0).flatten()[cells]
    return Packed(keep, cells, starts, numbers)


class Replay:
    """`ReplayText(model.infer, …)({"input_ids": ids}, width)`: what a model gives without
    gradients, faster."""

    NAMES: tuple[str, ...] = ()  # the inputs that a graph takes; the first is due

    def __init__(self, infer: Callable[..., Outputs]) -> None:
        self.infer = infer
        self.graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self.pool: Any = None
        self._call: Callable[..., Outputs] = self._run

    def fits(self, given: Mapping[str, Any]) -> bool:
        """Inference on a GPU, by inputs that a graph takes."""
        x = given.get(self.NAMES[0])
        known = all(name in self.NAMES for name in given)
        return known and isinstance(x, Tensor) and x.is_cuda and not torch.is_grad_enabled()

    def __call__(self, given: Mapping[str, Tensor], width: int, states: bool = True) -> Outputs:
        """The model's outputs for these inputs, so many tokens a row; without `states`, what its
        head gives alone."""
        raise NotImplementedError

    def _run(self, *args: Any) -> Outputs:
        raise NotImplementedError

    def _replay(self, key: Any, inputs: list[Tensor | None], *more: Any) -> Outputs:
        """The graph of that key, captured where it is new."""
        if key not in self.graphs:
            graph = _Graph(lambda *args: self._call(*args, *more), inputs, self.pool)
            self.pool = self.pool or graph.captured.graph.pool()
            self.graphs[key] = graph
            if len(self.graphs) > MOST:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        return self.graphs[key](inputs)


class ReplayPixels(Replay):
    """Images, B C H W; a graph keeps them in the dtype of the weights, so that they are cast while
    they are copied there."""

    NAMES = ("pixel_values",)

    def __init__(self, infer: Callable[..., Outputs], weight: Tensor) -> None:
        """`weight` is any of the model's."""
        super().__init__(infer)
        self.dtype = weight.dtype
        if not trains(weight.device, self.dtype):  # for the first size; for any, if another comes
            self._call = torch.compile(self._run)

    def __call__(self, given: Mapping[str, Tensor], width: int, states: bool = True) -> Outputs:
        pixels = given["pixel_values"]
        key = (pixels.shape, states)
        if key not in self.graphs:
            pixels = pixels.to(self.dtype)
        return self._replay(key, [pixels], width, states)

    def _run(self, pixels: Tensor, width: int, states: bool) -> Outputs:
        side = Side(Grid(pixels.shape[0], width), {"pixel_values": pixels})
        if torch.compiler.is_compiling():
            return self.infer(side, states)
        with capturing():
            return self.infer(side, states)


class ReplayText(Replay):
    """Texts, as ids in a grid.

    `reads_first`: a head reads the first column; where that is padding, nothing is left out.
    """

    NAMES = ("input_ids", "attention_mask", "token_type_ids")

    def __init__(self, infer: Callable[..., Outputs], reads_first: bool) -> None:
        super().__init__(infer)
        self.reads_first = reads_first
        self._call = torch.compile(self._run, dynamic=True)

    def __call__(self, given: Mapping[str, Tensor], width: int, states: bool = True) -> Outputs:
        ids, types = given["input_ids"], given.get("token_type_ids")
        mask, places = self._places(given.get("attention_mask"))
        key = (ids.shape, places, mask is None, types is None, states)
        return self._replay(key, [ids, mask, types], places, states)

    def _places(self, mask: Tensor | None) -> tuple[Tensor | None, int | None]:
        """The mask if there is padding, and the places for what is not; None: keep the grid."""
        if mask is None:
            return None, None
        # m² = m for 0 and 1 alone; as integers (or fp32) the sums tell of any other number.
        wide = mask.to(torch.int64 if not mask.is_floating_point() else torch.float64)
        sums = torch.stack([wide, wide * wide]).sum(1)  # 2 W
        seen = torch.cat([sums.sum(1), sums[0, :1]])
        count, squares, first = seen.tolist()  # waits for the GPU
        if count != squares:
            refuse_mask(mask)
        if count == mask.numel():
            return None, None
        places = -(-count // STEP) * STEP
        whole = places >= mask.numel() or (self.reads_first and first < len(mask))
        return mask, None if whole else places

    def _run(
        self,
        ids: Tensor,
        mask: Tensor | None,
        types: Tensor | None,
        places: int | None,
        states: bool,
    ) -> Outputs:
        keep = None if mask is None else mask.bool()
        given = {"input_ids": ids} if types is None else {"input_ids": ids, "token_type_ids": types}
        if keep is None or places is None:
            return self.infer(Side(Grid(ids.shape[0], ids.shape[1], keep), given, ids), states)
        layout = pack_into(keep, places)
        laid = {name: layout.lay(x) for name, x in given.items()}
        outs = self.infer(Side(layout, laid, ids), states)
        # Spare places lie in the padding: zeros there, as always.
        return {
            name: _blank(x, keep) if x.shape[:2] == keep.shape else x for name, x in outs.items()
        }


def _blank(x: Tensor, keep: Tensor) -> Tensor:
    return x.masked_fill(~keep.view(*keep.shape, *[1] * (x.ndim - 2)), 0.0)


class _Graph:
    """One batch's size: its inputs, and what is made of them."""

    def __init__(
        self, call: Callable[..., Outputs], inputs: list[Tensor | None], pool: Any
    ) -> None:
        self.inputs = [None if x is None else x.clone() for x in inputs]
        for _ in range(2):  # compilation, library handles
            on_side_stream(lambda: call(*self.inputs))
        self.captured = Captured(lambda: call(*self.inputs), pool)

    def __call__(self, inputs: list[Tensor | None]) -> Outputs:
        copy_into(self.inputs, inputs)
        outputs: Outputs = self.captured.replay()
        return {name: x.clone() for name, x in outputs.items()}
