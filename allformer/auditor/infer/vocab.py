# mypy: disable-error-code="no-untyped-call"
"""How many ids there are: from the config, from the tables, and from which table is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from allformer.auditor.calls import MODELS, Call
from allformer.auditor.infer.attempt import attempt
from allformer.auditor.infer.torch_modules import STOCK
from allformer.auditor.own_models import clustered_words


def config_vocab(config: Any) -> int:
    """`vocab_size` of a config; 0 if it says nothing.

    Of ours, where words are in clusters: no table has as many rows as there are ids.
    """
    clustered = clustered_words(config)
    if clustered:
        return clustered
    value = getattr(config, "vocab_size", None)
    return value if isinstance(value, int) else 0


def table_sizes(module: nn.Module, kind: str) -> list[int]:
    """The rows of the embeddings; of any matrix of a model that has none."""
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    if not tables and kind in MODELS and not isinstance(module, tuple(STOCK)):
        tables = [int(p.shape[0]) for p in module.parameters() if p.ndim == 2 and p.shape[0] > 5]
    return tables


def likely(tables: list[int]) -> int:
    """A safe number of ids: of the smallest table that is not one of types; 0 without tables."""
    return min((t for t in tables if t > 3), default=max(tables, default=0))


def sharpen(plan: Call, twin: Any, tables: list[int]) -> None:
    """Which table is read by which input: by calling with lengths that differ."""
    before, plan.x.vocab = plan.x.vocab, min([plan.x.vocab, *[t for t in tables if t > 3]])
    batch = plan.batch(3)
    seen = _Lookups(batch.inputs)
    with seen:
        out = attempt(plan, twin, batch)
    plan.x.vocab = seen.found.get(batch.x.shape[1], before)
    if batch.source is not None:
        plan.source.vocab = seen.found.get(batch.source.shape[1], plan.x.vocab)
    if not seen.found and out is not None and out.shape[-1] in tables:
        plan.x.vocab = int(out.shape[-1])


class _Lookups(TorchDispatchMode):
    """Which tables are read by which ids: {length of the ids: rows of the table}."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.inputs = inputs
        self.found: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.__name__).split(".")[0]
        if name in ("embedding", "index", "index_select", "gather"):
            ids = args[1][0] if name == "index" else args[-1] if name == "index_select" else args[1]
            if isinstance(ids, Tensor) and not ids.is_floating_point():
                for x in self.inputs:  # (T, B) and packed models change the shape, not the ids
                    same = ids.numel() == x.numel() and torch.equal(
                        ids.flatten().sort().values, x.flatten().sort().values
                    )
                    if same and args[0].ndim == 2:
                        rows, n = int(args[0].shape[0]), int(x.shape[1])
                        self.found[n] = min(self.found.get(n, rows), rows)
        return func(*args, **(kwargs or {}))
