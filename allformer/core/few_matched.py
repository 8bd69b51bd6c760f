"""The cheapest matching of a few objects, on the device: nothing waits, so that a whole step of
training can be captured.

Over subsets of the objects, one query after another (Held and Karp's way): with S(q, T) the least
cost of giving the objects T to the first q queries,

    S(q, T) = min( S(q − 1, T),  min over j in T of S(q − 1, T − j) + cost(q, j) ).

2^M · M sums for each query: for M objects up to `MOST`.

Legend: R tables, Q queries, M objects.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 8


def few_matched(cost: Tensor, real: Tensor) -> Tensor:
    """The query of each object, R M, for costs R Q M; −1 for those that are not `real` (R M, bool).
    There must be as many queries as objects."""
    rows, queries, objects = cost.shape
    device = cost.device
    sets = torch.arange(2**objects, device=device)
    bits = 1 << torch.arange(objects, device=device)
    holds = (sets[:, None] & bits) > 0  # 2^M M
    without = torch.where(holds, sets[:, None] - bits, 2**objects)  # the last column: never
    best = cost.new_full((rows, 2**objects), torch.inf)
    best[:, 0] = 0.0
    never = cost.new_full((rows, 1), torch.inf)
    taken = []
    for q in range(queries):
        ways = torch.cat([best, never], 1)[:, without] + cost[:, q, None, :]  # R 2^M M
        least, which = ways.min(-1)
        better = least < best
        best = torch.where(better, least, best)
        taken.append(torch.where(better, which, -1))
    left = (real * bits).sum(1)  # R: the set of objects that are still to be given
    given = torch.full((rows, objects + 1), -1, device=device)  # the last column: nobody
    for q in reversed(range(queries)):
        which = taken[q].gather(1, left[:, None])[:, 0]
        some = which >= 0
        given = given.scatter(1, which.where(some, objects)[:, None], q)
        left = torch.where(some, left - (1 << which.clamp_min(0)), left)
    return given[:, :objects]
