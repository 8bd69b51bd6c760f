"""Loud tiny models of transformers that read images, compared with ours: disk to disk, in fp64.

Images have no padding; what varies is their size, which patches are hidden, and the targets.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import allformer as af
from allformer.core.model import AnyModel
from allformer.families import FAMILIES
from allformer.families.weights import Joined
from tests.parity import zoo
from tests.parity.zoo import Case

ROWS = 3
OUTPUTS = (
    "logits", "cls_logits", "distillation_logits", "last_hidden_state", "pooler_output",
    "reconstruction", "loss",
)  # fmt: skip


def images(case: Case, size: tuple[int, int] | None = None, seed: int = 1) -> dict[str, Any]:
    """Random pixels, of the model's size or of another."""
    make, c = torch.Generator().manual_seed(seed), zoo.oracle(case).config
    shape = size or (c.image_size, c.image_size)
    pixels = torch.randn(ROWS, c.num_channels, *shape, generator=make, dtype=torch.float64)
    return {"pixel_values": pixels}


def hidden(case: Case, inputs: dict[str, Any], seed: int = 2) -> dict[str, Any]:
    """The same, with some patches hidden; of one image none."""
    make, side = torch.Generator().manual_seed(seed), zoo.oracle(case).config.patch_size
    height, width = (n // side for n in inputs["pixel_values"].shape[2:])
    hide = torch.rand(ROWS, height * width, generator=make) < 0.4
    hide[1] = False
    return {**inputs, "bool_masked_pos": hide}


def labelled(case: Case, inputs: dict[str, Any], seed: int = 3) -> dict[str, Any]:
    """The same, with a class for each image, as the problem has them."""
    make, c = torch.Generator().manual_seed(seed), zoo.oracle(case).config
    if c.problem_type == "multi_label_classification":
        labels = torch.randint(0, 2, (ROWS, c.num_labels), generator=make).double()
    elif c.num_labels == 1:
        labels = torch.randn(ROWS, generator=make, dtype=torch.float64)
    else:
        labels = torch.randint(0, c.num_labels, (ROWS,), generator=make)
    return {**inputs, "labels": labels}


def compare(case: Case, ours: AnyModel, theirs: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """Every output that transformers gives; both are returned."""
    with zoo.unrounded():
        mine, reference = ours(**inputs), theirs(**inputs)
    compare_outputs(case, mine, reference, OUTPUTS)
    return mine, reference


def compare_outputs(case: Case, mine: Any, reference: Any, names: tuple[str, ...]) -> None:
    """Each of these that transformers gives, and one at least."""
    seen = 0
    for name in names:
        wanted = getattr(reference, name, None)
        if wanted is None:
            continue
        got = getattr(mine, name)
        assert got is not None, f"{case.name}: {name} is missing"
        assert got.shape == wanted.shape, f"{case.name}: {name} is {tuple(got.shape)}"
        assert wanted.isfinite().all()
        zoo.close(got, wanted, case, name)
        seen += 1
    assert seen, f"{case.name}: nothing was compared"


def compare_training(case: Case, path: Path, folder: Path, inputs: dict[str, Any]) -> None:
    """The loss, and every gradient by the name that its tensor has in a file."""
    ours, theirs = af.load(path), deepcopy(zoo.oracle(case))
    mine, reference = compare(case, ours, theirs, inputs)
    assert mine.loss is not None
    mine.loss.backward()
    reference.loss.backward()
    wanted, got = _in_a_file(theirs, folder), _joined(ours, zoo.their_gradients(ours))
    assert set(got) <= set(wanted)
    for name, grad in wanted.items():
        if name in got:
            zoo.close(got[name], grad, case, f"gradient of {name}")
        else:
            assert not grad.any(), f"{case.name}: {name} has a gradient in transformers alone"
    assert len(got) > len(wanted) - 3


def _in_a_file(theirs: Any, folder: Path) -> dict[str, Tensor]:
    """transformers' gradients, named as it saves the tensors: it renames them on the way."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            grad = parameter.grad
            parameter.copy_(torch.zeros_like(parameter) if grad is None else grad)
    return zoo.files_of(zoo.on_disk(theirs, folder))


def _joined(ours: AnyModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same, with those put together that lie in one in a file."""
    known = ours.provenance
    for op in FAMILIES[known.family].weights(ours.config, known.architecture):
        if isinstance(op, Joined):
            tensors[op.theirs] = torch.cat([tensors.pop(name) for name in op.parts])
    return tensors
