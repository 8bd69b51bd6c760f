"""Weight operations: each is its own inverse's inverse, byte for byte, and says what it covers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allformer.families.weights import (
    Interleaved,
    Reshaped,
    Same,
    Stacked,
    Transposed,
    Weight,
    load_tensor,
    save_tensor,
)

DTYPES = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
SIZE = st.integers(1, 7)


def noise(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Any bytes at all: NaN, infinities and subnormals must come back too."""
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).view(shape)


def raw(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def check_round_trip(op: Weight, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    ours = noise(shape, dtype)
    theirs = save_tensor(op, ours)
    assert {part.theirs: part.shape for part in op.parts(ours)} == {
        name: tuple(x.shape) for name, x in theirs.items()
    }
    assert all(x.is_contiguous() for x in theirs.values())
    back = load_tensor(op, theirs.__getitem__, shape)
    assert torch.equal(raw(back), raw(ours))
    # and the other way round: theirs → ours → theirs, from bytes that we did not make
    others = {name: noise(tuple(x.shape), dtype) for name, x in theirs.items()}
    again = save_tensor(op, load_tensor(op, others.__getitem__, shape))
    assert all(torch.equal(raw(again[name]), raw(x)) for name, x in others.items())


@given(st.lists(SIZE, max_size=3), DTYPES)
def test_same_is_exactly_invertible(shape, dtype):
    check_round_trip(Same("ours", "theirs"), tuple(shape), dtype)


@given(st.lists(SIZE, min_size=1, max_size=4), st.lists(SIZE, max_size=2), DTYPES)
def test_stacked_is_exactly_invertible(sizes, rest, dtype):
    names = tuple(f"part{i}" for i in range(len(sizes)))
    check_round_trip(Stacked("ours", names, tuple(sizes)), (sum(sizes), *rest), dtype)


@given(SIZE, SIZE, DTYPES)
def test_transposed_is_exactly_invertible(rows, columns, dtype):
    check_round_trip(Transposed("ours", "theirs"), (rows, columns), dtype)


@given(SIZE, SIZE, DTYPES)
def test_reshaped_is_exactly_invertible(rows, columns, dtype):
    check_round_trip(Reshaped("ours", "theirs", (1, rows * columns)), (rows, columns), dtype)


@given(SIZE, SIZE, st.integers(1, 4), st.lists(SIZE, max_size=1), DTYPES)
def test_interleaved_rows_within_a_stack_are_exactly_invertible(heads, groups, half, rest, dtype):
    q, kv = heads * 2 * half, groups * 2 * half
    op = Stacked("qkv", (Interleaved("q", heads), Interleaved("k", groups), "v"), (q, kv, kv))
    check_round_trip(op, (q + 2 * kv, *rest), dtype)


def test_stacked_puts_q_k_v_below_one_another():
    q, k, v = torch.ones(4, 3), torch.full((2, 3), 2.0), torch.full((2, 3), 3.0)
    op = Stacked("qkv", ("q", "k", "v"), (4, 2, 2))
    ours = load_tensor(op, {"q": q, "k": k, "v": v}.__getitem__, (8, 3))
    assert torch.equal(ours, torch.cat([q, k, v]))


def test_transposed_turns_conv1d_into_a_linear_weight():
    theirs = torch.arange(6.0).view(2, 3)  # inputs × outputs
    ours = load_tensor(Transposed("w", "c"), {"c": theirs}.__getitem__, (3, 2))
    assert torch.equal(ours, theirs.T)
    assert ours.is_contiguous()


def test_interleaved_is_the_published_permutation():
    heads, size, dim = 3, 4, 5
    meta = torch.randn(heads * size, dim)
    # transformers' convert_llama_weights_to_hf
    ours = meta.view(heads, size // 2, 2, dim).transpose(1, 2).reshape(heads * size, dim)
    op = Same("q", Interleaved("wq", heads))
    assert torch.equal(load_tensor(op, {"wq": meta}.__getitem__, (heads * size, dim)), ours)
    # rows 0, 1 of a head (a rotated pair there) lie half a head apart here
    assert torch.equal(ours[0], meta[0])
    assert torch.equal(ours[size // 2], meta[1])


def test_a_stack_of_other_sizes_than_its_tensor_is_refused():
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        save_tensor(Stacked("qkv", ("q", "k", "v"), (4, 2, 2)), torch.zeros(9, 3))
