"""Marks for the compiler are those that torch's own decorators make, and load nothing."""

from __future__ import annotations

import pytest
import torch

from allformer.core.compiling import constant, uncompiled


def plain() -> int:
    return 1


def marked() -> int:
    return 1


def test_a_constant_is_marked_as_torch_marks_it():
    torch.compiler.assume_constant_result(plain)
    assert constant(marked) is marked
    assert vars(marked) == vars(plain) != {}


@pytest.mark.parametrize("decorator", [uncompiled, torch.compiler.disable])
def test_a_graph_ends_before_what_is_not_compiled_and_begins_anew(decorator):
    from torch._dynamo.testing import CompileCounter

    @decorator
    def largest(x: torch.Tensor) -> int:
        return int(x.max()) if not torch.compiler.is_compiling() else 0

    counter = CompileCounter()
    torch._dynamo.reset()
    call = torch.compile(lambda x: (x + 1) * largest(x) + x, backend=counter)
    assert call(torch.arange(3.0)).tolist() == [2.0, 5.0, 8.0]
    assert counter.frame_count == 2
    torch._dynamo.reset()
