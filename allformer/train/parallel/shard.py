"""Sharded data parallel: every rank keeps a part of each weight (torch's FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)

from allformer.core.block import Block
from allformer.core.stack import Stack
from allformer.errors import ConfigError
from allformer.train.parallel.data import Task
from allformer.train.parallel.ranks import Backward, One


class Shards:
    """A layer's weights are gathered when it runs, and its gradients dealt out after.

    With a mesh of two dimensions the first one's ranks are copies of each other (HSDP). What is in
    no layer (embeddings, head) belongs to the root, which stays whole from forward to backward.
    """

    def __init__(self, model: nn.Module, mesh: DeviceMesh, dtype: torch.dtype | None) -> None:
        # Layers cast their matrices to the activations' dtype anyway: so half is sent about.
        # Gradients are summed in fp32; inputs have their dtype already.
        policy = MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=None if dtype is None else torch.float32,
            cast_forward_inputs=False,
        )  # fmt: skip
        for module in list(model.modules()):
            if isinstance(module, Stack) and module.flow is not None:
                raise ConfigError(
                    f"parallel.shard: the layers of {module.path} are joined by "
                    f"{type(module.config.flow).__name__}, which runs them in the backward pass "
                    f"again, without their weights; use data parallel instead"
                )
            if isinstance(module, Block):
                fully_shard(module, mesh=mesh, mp_policy=policy)
        root: Any = Task(model)
        self.root: Any = root
        fully_shard(root, mesh=mesh)
        sharded: list[Any] = [m for m in root.modules() if isinstance(m, FSDPModule)]
        for module in sharded:  # losses are divided already: sums, not means
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        with torch.no_grad():
            self.root(lambda: None)  # now the root knows that it is one
            self.root.reshard()

    def __call__(self, one: One, backward: Backward, batches: Sequence[Any]) -> list[Any]:
        done = []
        for number, batch in enumerate(batches, 1):
            last = number == len(batches)
            self.root.set_requires_gradient_sync(last)
            self.root.set_is_last_backward(last)
            mean, nll = self.root(one, batch)
            backward(mean)
            done.append((mean.detach(), nll.detach()))
        return done

    @contextmanager
    def looking(self, model: nn.Module) -> Iterator[nn.Module]:
        """The root's weights are whole meanwhile; layers gather theirs when they are called."""
        self.root.unshard()
        try:
            yield model
        finally:
            self.root.reshard()
