"""What the step and the loop ask of the processes that train together; one alone does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from allformer.train.parallel.holding import Holding
from allformer.train.tuned import put_trained

T = TypeVar("T")
One = Callable[[Any], tuple[Tensor, Tensor]]  # a micro-batch → its share of the mean, its NLLs
Backward = Callable[[Tensor], None]


class Ranks:
    """The single process: `Ranks()`. `Mesh` (mesh.py) is the form with others."""

    world = 1
    main = True  # the one that writes and speaks
    turn: tuple[int, int] = (0, 1)  # which of every so many micro-batches are this rank's
    framed = False  # whether micro-batches must all have one size
    told = ""  # what to say of it after the model's size
    readers: Any = None  # the group of those that read different batches
    keeper: Any = None  # who writes checkpoints, where many do

    # --- beginning --------------------------------------------------------------------------------

    def same(self, make: Callable[[], T]) -> T:
        """What the main rank makes, for all: `tokenizer = ranks.same(train_it)`."""
        return make()

    def first(self, make: Callable[[], T]) -> T:
        """Each rank's own, the main one's before the others': what it has kept, they find."""
        return make()

    def compiles(self, asked: bool | None, device: torch.device) -> bool:
        """Whether the loss is compiled: on a GPU, unless it was said otherwise."""
        return device.type == "cuda" if asked is None else asked

    def cradle(self, device: torch.device) -> torch.device:
        """Where the whole model is made, before it is cut."""
        return device

    def check(self, recipe: Any) -> None:
        """Refuse, in words, what this plan cannot do."""

    def prepare(self, model: Any, device: torch.device, dtype: torch.dtype | None) -> None:
        """Leave in the model what this rank trains of it, on its device."""

    def seed(self, seed: int) -> None:
        """Random numbers of one's own for what differs between ranks."""

    # --- a step -----------------------------------------------------------------------------------

    def total(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Sums over the ranks that read different batches."""
        return tuple(counts)

    def any(self, flag: bool) -> bool:
        """Whether it is so on one rank at least."""
        return flag

    def work(
        self, one: One, backward: Backward, batches: Sequence[Any], terms: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Forward and backward of all micro-batches: the summed loss and NLLs of all ranks."""
        losses, nlls = [], []
        for batch in batches:
            mean, nll = one(batch)
            backward(mean)
            losses.append(mean.detach())
            nlls.append(nll.detach().reshape(-1))
        return torch.stack(losses).sum(), torch.stack(nlls).sum(0)

    def norm(self, model: Any) -> Tensor:
        """Of all gradients together."""
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return torch.nn.utils.get_total_norm(grads)

    # --- looking and keeping ----------------------------------------------------------------------

    @contextmanager
    def looking(self, model: Any) -> Iterator[Any]:
        """A model that can be called as any other, for validation; all ranks look together."""
        yield model

    def holding(self, model: Any) -> Holding:
        """What this rank holds of the model."""
        return Holding(model)

    def restore_random(self, state: dict[str, Any]) -> None:
        """After a resume from a checkpoint that other ranks wrote: new random numbers."""
        torch.manual_seed(stream_seed(state["seed"], 0, state["step"]))

    def whole(self, model: Any, everyone: bool = False) -> Any:
        """An ordinary model with the weights as they are now, for the main rank to write."""
        return model

    def put(self, model: Any, tensors: dict[str, Tensor], where: str) -> None:
        """Whole tensors into this rank's parts."""
        put_trained(model, tensors, where)

    def settle(self) -> None:
        """Wait until every checkpoint is on the disk."""

    def wait(self) -> None:
        """Until all ranks are here."""

    def close(self) -> None:
        """The end."""


def stream_seed(seed: int, stream: int, step: int = 0) -> int:
    """A seed for each stream of random numbers, and for each step at which one begins anew."""
    return int(np.random.SeedSequence([seed, stream, step]).generate_state(1, np.uint64)[0] >> 1)


ALONE = Ranks()
