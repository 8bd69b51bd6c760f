"""Data parallel: whole copies of the model, each on its own batches (torch's DDP)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from allformer.train.parallel.collectives import Group
from allformer.train.parallel.ranks import Backward, One


class Task(nn.Module):
    """A model behind one call, for wrappers that know `forward` alone: `task(loss, batch)`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, call: Callable[..., Any], *args: Any) -> Any:
        """Whatever is done with the model."""
        return call(*args)


class Copies:
    """Runs micro-batches; the gradients of the last one go out while it is still computed.

    Losses are divided by the labels of all ranks already, so gradients are summed, not averaged.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        self.task, self.group = Task(model), group
        self.wrapped: DistributedDataParallel | None = None

    def __call__(self, one: One, backward: Backward, batches: Sequence[Any]) -> list[Any]:
        if self.wrapped is None:
            self.wrapped = self._wrap(one, batches[0])
        done = []
        for number, batch in enumerate(batches, 1):
            last = number == len(batches)
            with nullcontext() if last else self.wrapped.no_sync():
                mean, nll = self.wrapped(one, batch)
                backward(mean)
            done.append((mean.detach(), nll.detach()))
        return done

    def _wrap(self, one: One, batch: Any) -> DistributedDataParallel:
        unused = self._unused(one, batch)
        wrapped = DistributedDataParallel(
            self.task,
            process_group=self.group,
            find_unused_parameters=unused,  # to look for them in each step costs time
        )
        wrapped.register_comm_hook(self.group, _sum)
        return wrapped

    def _unused(self, one: One, batch: Any) -> bool:
        """Whether the loss leaves a parameter out, on any rank (a pooler that nobody reads)."""
        device = next(self.task.parameters()).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            mean, _ = one(batch)
        reached = _leaves(mean)
        lost = any(id(p) not in reached for p in self.task.parameters() if p.requires_grad)
        flag = torch.tensor(int(lost))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self.group)
        return bool(flag)


def _sum(group, bucket):  # type: ignore[no-untyped-def]  # torch reads its annotations
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _leaves(loss: Tensor) -> set[int]:
    """The parameters that a loss depends on, by id."""
    found, seen, left = set(), set(), [loss.grad_fn]
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        left += [after for after, _ in node.next_functions]
    return found
