"""What a mixer is: between the projections and the output matrix of an attention.

    project x → q, k, v;   mix them into the context;   project the context out

A mixer owns its parameters, makes a plan once for all layers of a stack that are alike, says which
state remembers for it, and turns projections into the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from allformer import config
from allformer.core.inputs import check_mask, check_values
from allformer.core.layout import Ahead, Layout
from allformer.core.places import Places
from allformer.core.relatives.relative import PLAIN, Extra, Relation
from allformer.core.states import Growing, State

NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Scene(NamedTuple):
    """What a stack knows before its layers run. `state` is that of the first layer alike.

    `inputs` are the caller's, by their names, in the layout of `query`; `stack` is the tree of the
    layers, `head` what reads their states, None where another stack does.
    """

    query: Layout
    key: Layout
    device: torch.device
    dtype: torch.dtype
    causal: bool = False
    kernel: str = "fast"
    relation: Relation = PLAIN
    state: State | None = None
    cached: bool = False  # layers remember: keys of earlier steps come before the new ones
    inputs: Mapping[str, Tensor] = NOTHING
    stack: config.Stack | None = None
    head: config.Head | None = None
    chunks: tuple[int, ...] = ()  # the lengths of chunks in this stack, whoever cuts them

    def places(self) -> Places:
        """Where everybody stands; looking across, keys have places of their own."""
        if self.key is not self.query:
            columns = torch.arange(self.key.total, device=self.device)[None]
            return Places(columns, columns, self.key.keep)  # nobody asks who comes first
        if self.state is not None:
            assert not self.query.packed, "a state goes with a grid"
            own = self.state.places(self.query, self.device)  # type: ignore[arg-type]
        else:
            own = self.query.places(self.device)
        return own if self.ahead is None else own.behind(*self.ahead)

    @property
    def ahead(self) -> Ahead | None:
        """Learned keys before those of the rows; across, there are none."""
        return self.query.ahead if self.key is self.query else None


class Mixer(nn.Module):
    """The module for a `mixer` slot."""

    takes: tuple[str, ...] = ()  # inputs that it reads beside the source's, one for each token
    marks = "marked", "not"  # what 1 and 0 say there
    fixed = False  # whether a step goes by what the device counts alone, and can be captured

    def __init__(self, attention: config.Attention, dim: int, path: str) -> None:
        super().__init__()
        size = attention.size(dim)
        self.path = path  # its taps belong to the attention
        self.config: Any = attention.mixer
        self.heads, self.groups, self.size = attention.heads, attention.groups, size
        self.scale = size**-0.5 if attention.scale is None else attention.scale  # 1/√D
        self.dropout = attention.dropout

    def check(
        self,
        inputs: Mapping[str, Tensor],
        shape: tuple[int, int],
        stack: config.Stack,
        head: config.Head | None = None,
        prefix: str = "",
    ) -> None:
        """Refuse wrong inputs among those that it takes; `shape` is rows and width of the others,
        `stack` and `head` are those of its layers.

        As it stands, they are masks: one 1 or 0 for each token.
        """
        for name in self.takes:
            if name in inputs:
                check_mask(inputs[name], *shape, f"{prefix}{name}", self.marks)
                check_values(inputs[name], f"{prefix}{name}")

    def plan(self, scene: Scene) -> Any:
        """Worked out once for all layers of a stack whose mixers are alike."""
        raise NotImplementedError

    def share(self, first: Mixer) -> None:
        """Take from the first layer of the stack that mixes alike (it may be this one) what they
        have together (`config.Mixer.common`): a module, which then stands in both."""

    def new_state(self, causal: bool) -> State:
        """What remembers for this layer while text is generated."""
        return Growing()

    def takes_whole(self, plan: Any) -> bool:
        """Whether `whole` serves: a kernel reads the projections where they lie."""
        return False

    def whole(self, x: Tensor, memory: Tensor | None, plan: Any, seed: Tensor | None) -> Tensor:
        """The context straight from the fused projections (`memory`: of keys and values alone);
        `seed` chooses the mask of dropout."""
        raise NotImplementedError

    def narrow(self, plan: Any) -> Any:
        """The plan for the first tokens of each row of a grid as the only queries, the same keys;
        None: it has none."""
        return None

    def wants(self, plan: Any) -> tuple[str, ...] | None:
        """The projections that this plan needs; None: all."""
        return None

    def put(self, x: Tensor, plan: Any, key: bool) -> Tensor:
        """Projections where this mixer wants them; `key`: those of what is looked at alone."""
        return x

    def forward(
        self, parts: dict[str, Tensor], plan: Any, state: State | None, extra: Extra | None
    ) -> Tensor:
        """Projections, each … rows, → the context, … heads·D.

        `extra(q, places)` is what a relative position adds to this layer's scores, and
        `extra.query(q)` what meets its keys.
        """
        raise NotImplementedError
