"""Transformer-XL's relative positions (Dai et al., 2019, section 3.3).

    score(i, j) = (q_i + u)·k_j + (q_i + v)·W_R r_{i−j}

r is the sinusoid of a distance, W_R, u and v are learned by each layer. The second term is computed
for all distances and shifted row by row into place, so that no more than the scores is in memory.

Legend: B batch, H heads, T queries, S keys, D head size, dim model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.core.dropout import drop
from allformer.core.linear import Linear
from allformer.core.places import Places
from allformer.core.registry import implements
from allformer.core.relatives.relative import Relation, Relative
from allformer.core.states import SegmentMemory, State
from allformer.core.taps import tap


def inverse_frequencies(dim: int, device: torch.device | None = None) -> Tensor:
    """10000^(−2i/dim), dim/2, in fp32: what files of transformers hold as `pos_emb.inv_freq`."""
    return 1 / (10000 ** (torch.arange(0.0, dim, 2.0, device=device) / dim))


def sinusoids(count: int, dim: int, clamp: int | None, like: Tensor) -> Tensor:
    """The vectors of the distances count − 1 … 0, all sines first: count × dim."""
    wide = torch.promote_types(like.dtype, torch.float32)
    far = torch.arange(count - 1, -1, -1, device=like.device, dtype=wide)
    if clamp is not None:
        far = far.clamp(max=clamp)
    angle = far[:, None] * inverse_frequencies(dim, like.device).to(wide)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(like.dtype)


class Biases(nn.Module):
    """u and v, H D: what asks for a key, and for a distance, whatever the query."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.empty(heads, size))
        self.v = nn.Parameter(torch.empty(heads, size))

    def reset_parameters(self) -> None:
        """Nothing is asked for at first but by the query."""
        nn.init.zeros_(self.u)
        nn.init.zeros_(self.v)


class XLPart(nn.Module):
    """What a layer has of its own."""

    def __init__(self, attention: config.Attention, dim: int, biases: Biases | None) -> None:
        super().__init__()
        self.heads, self.size = attention.heads, attention.size(dim)
        self.scale = self.size**-0.5 if attention.scale is None else attention.scale
        self.biases = biases or Biases(self.heads, self.size)
        self.project = Linear(dim, self.heads * self.size, bias=False)  # W_R

    def query(self, q: Tensor) -> Tensor:
        """q + u, B H T D."""
        return q + self.biases.u[:, None].to(q.dtype)

    def scores(self, q: Tensor, r: Tensor) -> Tensor:
        """(q + v)·W_R r · scale, B H T S: of each query and each distance."""
        asked = (q + self.biases.v[:, None].to(q.dtype)) * self.scale
        if self._few(q):  # W_R on the side of the queries: D times less work for one token
            weight = self.project.weight.to(q.dtype).view(self.heads, self.size, -1)
            folded: Tensor = asked @ weight
            return folded @ r.T
        far: Tensor = self.project(r).view(-1, self.heads, self.size)  # S H D
        return asked @ far.permute(1, 2, 0)

    def _few(self, q: Tensor) -> bool:
        plain = type(self.project) is Linear and self.project.delta is None
        return plain and not torch.is_grad_enabled() and q.shape[0] * q.shape[2] < self.size


@implements(config.XLRelative)
class XLRelative(Relative):
    """Sinusoids of distances, a part in each layer, and a memory where there is one."""

    def __init__(self, relative: config.XLRelative, stack: config.Stack, path: str) -> None:
        super().__init__(relative, stack, path)
        self.dim = stack.dim
        attention = stack.blocks[0].attention
        self.biases = None
        if not relative.untie:
            self.biases = Biases(attention.heads, attention.size(stack.dim))

    def part(self, attention: config.Attention, dim: int) -> XLPart:
        return XLPart(attention, dim, self.biases)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Distances:
        return Distances(self, dtype)

    def new_state(
        self,
        usual: State,
        memory: int | None = None,
        given: Tensor | None = None,
        real: Tensor | None = None,
    ) -> State:
        size = self.config.memory if memory is None else memory
        if not size and given is None:
            return usual
        return SegmentMemory(size, given, real, self.config.blank)


class Distances(Relation):
    """The sinusoids of a call, made once for all layers: dropout draws once too."""

    adds = True

    def __init__(self, owner: XLRelative, dtype: torch.dtype) -> None:
        self.owner, self.dtype = owner, dtype
        self._table: Tensor | None = None  # S dim, from the furthest to 0

    def bias(self, places: Places) -> None:
        """Nothing is added to all layers alike; but here all distances are known."""
        owner, keys = self.owner, places.key.shape[1]
        if self._table is None or self._table.shape[0] != keys:
            like = places.key.new_empty(0, dtype=self.dtype)
            table = sinusoids(keys, owner.dim, owner.config.clamp, like)
            table = drop(table, owner.config.dropout, owner.training)
            self._table = tap(owner, "relative", table)

    def query(self, q: Tensor, part: nn.Module | None) -> Tensor:
        assert isinstance(part, XLPart)
        return part.query(q)

    def scores(self, q: Tensor, places: Places, part: nn.Module | None) -> Tensor:
        assert isinstance(part, XLPart)
        assert self._table is not None
        found = part.scores(q, self._table)  # by distance
        return shifted(found) if places.tail else picked(found, places)


def shifted(x: Tensor) -> Tensor:
    """Scores of the distances S − 1 … 0 → of the keys in order, where the queries are the last T.

    Row i moves T − 1 − i to the left (appendix B); what stands after a query is arbitrary.
    """
    rows, heads, new, keys = x.shape
    padded = F.pad(x, (1, 0)).view(rows, heads, keys + 1, new)
    return padded[:, :, 1:].reshape(rows, heads, new, keys)


def picked(x: Tensor, places: Places) -> Tensor:
    """The same where queries and keys stand anywhere: each pair takes its distance."""
    last = x.shape[-1] - 1
    at = last + places.distance.clamp(-last, 0)  # R T S
    return x.gather(-1, at[:, None].expand_as(x))
