"""Loud tiny models of transformers that find objects, compared with ours: disk to disk, in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import allformer as af
from tests.parity import pictures, zoo
from tests.parity.zoo import Case

ROWS = 3
OUTPUTS = ("logits", "pred_boxes", "last_hidden_state", "encoder_last_hidden_state", "loss")


@contextmanager
def wide() -> Iterator[None]:
    """transformers' loss makes its weights in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def labels(classes: int, seed: int = 5) -> list[dict[str, Tensor]]:
    """Of three images: four objects, none, and one."""
    make = torch.Generator().manual_seed(seed)
    out = []
    for count in (4, 0, 1):
        centre = 0.25 + 0.5 * torch.rand(count, 2, generator=make, dtype=torch.float64)
        size = 0.05 + 0.4 * torch.rand(count, 2, generator=make, dtype=torch.float64)
        out.append(
            {
                "class_labels": torch.randint(classes, (count,), generator=make),
                "boxes": torch.cat([centre, size], 1),
            }
        )
    return out


def compare(case: Case, ours: Any, theirs: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """Every output that transformers gives; both are returned."""
    with wide(), zoo.unrounded():
        mine, reference = ours(**inputs), theirs(**inputs)
    pictures.compare_outputs(case, mine, reference, OUTPUTS)
    return mine, reference


def compare_training(
    case: Case, path: Path, folder: Path, inputs: dict[str, Any], layers: bool = False
) -> None:
    """The loss, and every gradient by the name that its tensor has in a file; with `layers` of all
    layers' states, which ours scores in training alone."""
    ours, theirs = af.load(path).train(layers), deepcopy(zoo.oracle(case))
    for parameter in theirs.parameters():
        parameter.requires_grad_(True)  # transformers freezes a backbone; ours learns
    mine, reference = compare(case, ours, theirs, inputs)
    mine.loss.backward()
    reference.loss.backward()
    wanted = {n for n, _ in ours.named_parameters()}
    assert len(wanted) == sum(p.grad is not None for p in ours.parameters())
    got, grads = zoo.their_gradients(ours), pictures._in_a_file(theirs, folder)
    for name, grad in got.items():
        zoo.close(grad, grads[name], case, f"gradient of {name}")
