"""What comes into layers while a model reads examples, summed up for rounding their matrices.

seen = watch(model, [block.attention.out], [], calls_of(ids))[0]      # Σ x xᵀ, K K
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from allformer.core.linear import Delta, Linear
from allformer.errors import ConfigError

Inputs = Mapping[str, Tensor]


class Enough(Exception):
    """No error: the layers that were asked have heard all, and the pass need not go on."""


def calls_of(given: Tensor | Iterable[Inputs]) -> list[Inputs]:
    """Rows of ids one by one: a pass needs little memory, and all count alike."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(
            f"calibrate={type(given).__name__} must be ids, rows × tokens, or a list of inputs by "
            f"name; a text goes through its tokeniser first"
        )
    calls = [{"input_ids": x[None]} for x in given] if isinstance(given, Tensor) else list(given)
    odd = next((call for call in calls if not isinstance(call, Mapping)), None)
    if odd is not None:
        raise ConfigError(
            f"calibrate has {type(odd).__name__} among its calls; give each as "
            f"{{'input_ids': ids}}, or all ids as one tensor"
        )
    if not calls:
        raise ConfigError("calibrate= is empty; give ids, or inputs by name")
    return calls


def watch(
    model: nn.Module, layers: list[Linear], later: list[Linear], calls: list[Inputs]
) -> list[Tensor]:
    """Σ x xᵀ of what comes into each layer; a pass ends where a `later` one begins."""
    seen = [torch.zeros(x.in_features, x.in_features, device=x.weight.device) for x in layers]

    def gather(into: Tensor) -> Callable[[Tensor], None]:
        def hear(x: Tensor) -> None:
            rows = x.reshape(-1, x.shape[-1]).float()
            into.addmm_(rows.t(), rows)

        return hear

    def end(x: Tensor) -> None:
        raise Enough

    was_training = model.training
    model.eval()
    try:
        pairs = [(layer, gather(into)) for layer, into in zip(layers, seen, strict=True)]
        with listening_to([*pairs, *((layer, end) for layer in later)]):
            for call in calls:
                _run(model, call)
    finally:
        model.train(was_training)
    if not all(each.isfinite().all() for each in seen):
        raise ConfigError("the examples overflow inside the model; calibrate it in fp32 or bf16")
    return seen


def _run(model: nn.Module, call: Inputs) -> None:
    device = next(model.parameters()).device
    with suppress(Enough):
        model(**{name: x.to(device) for name, x in call.items()})


@contextmanager
def listening_to(pairs: list[tuple[Linear, Callable[[Tensor], None]]]) -> Iterator[None]:
    """Let functions hear what comes into layers, through their deltas; those stay at work."""
    before: list[Delta | None] = [layer.delta for layer, _ in pairs]

    def also(old: Delta | None, hear: Callable[[Tensor], None]) -> Delta:
        def delta(x: Tensor, y: Tensor) -> Tensor:
            hear(x)
            return y if old is None else old(x, y)

        return delta

    for (layer, hear), old in zip(pairs, before, strict=True):
        layer.delta = also(old, hear)
    try:
        yield
    finally:
        for (layer, _), old in zip(pairs, before, strict=True):
            layer.delta = old
