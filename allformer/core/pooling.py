"""From the states of a text's tokens to one vector.

Legend: B texts, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def at(x: Tensor, where: Tensor) -> Tensor:
    """The state at one place of each row: B T D, B → B D."""
    return x.gather(1, where[:, None, None].expand(-1, 1, x.shape[-1]))[:, 0]


def last(keep: Tensor) -> Tensor:
    """The last place of each row where `keep` (B T) is true, B; 0 where it never is."""
    return (keep.shape[1] - 1 - keep.flip(1).int().argmax(1)) * keep.any(1)


def mean_of(x: Tensor, keep: Tensor | None) -> Tensor:
    """The mean of each row's states, B T D → B D; with `keep` (B T), of those that it keeps."""
    return x.mean(1) if keep is None else _mean(x, keep, keep)


def _cls(x: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    return at(x, mask.int().argmax(1))


def _last(x: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    return at(x, mask.shape[1] - 1 - mask.flip(1).int().argmax(1))


def _mean(x: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)


def _mean_sqrt(x: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9).sqrt()


def _max(x: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    return x.masked_fill(~mask[..., None], float("-inf")).amax(1)


def _weighted(x: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    """Later tokens count more: token t of n has weight t (Muennighoff, 2022)."""
    weights = mask * numbers
    return (x * weights[..., None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1e-9)


# Names of sentence-transformers. Each: states B T D, mask B T, number of each token B T → B D.
POOLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "cls": _cls,
    "mean": _mean,
    "max": _max,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted,
    "lasttoken": _last,
}
