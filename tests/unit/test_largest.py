"""The largest scores, found chunk by chunk, are those that torch finds."""

from __future__ import annotations

import pytest
import torch

from allformer.generate import largest as module
from allformer.generate.largest import highest, largest


def check_largest() -> None:
    draw = torch.Generator().manual_seed(0)
    for width in (8192, 8192 + 5, 9001):  # whole chunks, and a rest
        x = torch.randn(6, width, generator=draw)
        x[0, -1] = x[1, 0] = 9.0
        x[2] = x[2].sort().values  # all that counts is in the last chunks
        assert torch.equal(highest(x)[1], x.argmax(1))
        assert torch.equal(highest(x)[0], x.amax(1))
        for count in (1, 8):
            best, where = largest(x, count)
            wanted = x.topk(count)
            assert torch.equal(best, wanted.values)
            assert torch.equal(where, wanted.indices)


def test_the_largest_are_torchs() -> None:
    check_largest()


@pytest.mark.parametrize("scale", [0.0, 3.0])
def test_equals_are_left_to_torch(scale: float) -> None:
    x = torch.randn(4, 9000, generator=torch.Generator().manual_seed(1)).mul(scale).round()
    x[1, 5:] = float("-inf")
    assert torch.equal(highest(x)[1], x.max(-1).indices)
    assert torch.equal(largest(x, 8)[1], x.topk(8).indices)


def test_what_is_no_number_is_found() -> None:
    x = torch.randn(2, 9000)
    x[1, 8999] = float("nan")
    assert highest(x)[0].isnan().tolist() == [False, True]
    assert largest(x, 3)[0].isnan().any(1).tolist() == [False, True]


def test_short_rows_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_chunks", None)
    assert highest(torch.tensor([[1.0, 3.0, 2.0]]))[1].tolist() == [1]
    assert largest(torch.tensor([[1.0, 3.0, 2.0]]), 2)[1].tolist() == [[1, 2]]
