"""Keys and values in pages: who owns them, where they stand, and the kernel that reads them there.

Kernels run on a GPU as they are; without one in Triton's interpreter, where Triton is installed and
TRITON_INTERPRET=1 is set; else they are skipped, and only the plain forms are tested.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from allformer.core.fused import has_triton
from allformer.core.kernels.kernel import Case
from allformer.core.kernels.paged import paged_serves
from allformer.core.resumed import resume, resume_each
from allformer.core.states.pages import Frame, Pages
from allformer.core.states.pool import Pool
from allformer.errors import GenerationError
from allformer.generate.engine import Engine
from tests.engines import ask, writer

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
kernels = pytest.mark.skipif(
    not has_triton() or not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="no CUDA device, nor Triton's interpreter (TRITON_INTERPRET=1)",
)
on_gpu = pytest.mark.skipif(not (CUDA and has_triton()), reason="no CUDA device with Triton")
DTYPES = [torch.float32, torch.bfloat16] if CUDA else [torch.float32]


# --- owners ---------------------------------------------------------------------------------------


def test_pages_go_back_when_their_last_owner_goes() -> None:
    check_owners()


def check_owners() -> None:
    pool = Pool(4, 2)
    one = [pool.take() for _ in range(3)]
    assert 0 not in one
    assert len(set(one)) == 3
    node = pool.tell(one[0], "root", [5, 6])
    pool.tell(one[1], node, [7, 8])
    found, last = pool.find("root", [5, 6, 7, 8, 9])
    assert found == one[:2]
    assert pool.find("root", [5, 6, 0, 8])[0] == one[:1]
    assert pool.find("other root", [5, 6]) == ([], "other root")
    assert pool.find(last, [9]) == ([], last)
    pool.release(one)
    assert pool.available == 2  # the third, and the one that was never taken
    pool.release(one[:1])
    pool.release(found)
    assert pool.available == 4


def test_a_page_that_was_told_stays_until_room_is_needed() -> None:
    check_idle()


def check_idle() -> None:
    pool = Pool(3, 1)
    one = [pool.take() for _ in range(3)]
    node: Any = "root"
    for page, token in zip(one, (5, 6, 7), strict=True):
        node = pool.tell(page, node, [token])
    pool.release(one)
    assert pool.take() == one[2]  # the end of a text goes before its beginning
    found, node = pool.find("root", [5, 6, 7])
    assert found == one[:2]
    with pytest.raises(GenerationError, match="all 3 pages"):
        pool.take()
    pool.release(found)
    again = [pool.take(), pool.take()]
    pool.tell(again[0], node, [7])  # behind pages that are gone: it is not found
    assert pool.find("root", [5, 6, 7])[0] == []


def test_what_two_have_computed_is_told_once() -> None:
    pool = Pool(3, 1)
    one, two, three = (pool.take() for _ in range(3))
    assert pool.tell(one, "root", [5]) == pool.tell(two, "root", [5])
    node = pool.tell(three, pool.tell(two, "root", [5]), [6])
    assert pool.find("root", [5, 6]) == ([one, three], node)
    pool.release([two])
    assert pool.available == 1
    assert pool.take() == two


# --- places ---------------------------------------------------------------------------------------


def test_rows_go_on_from_where_they_stopped() -> None:
    layout = resume([7, 0, 2], [1, 3, 2], torch.device("cpu"))
    assert layout.numbers.tolist() == [7, 0, 1, 2, 2, 3]
    assert layout.starts.tolist() == [0, 1, 4, 6]
    grid = layout.to_grid(layout.numbers)
    assert grid.tolist() == [[7, 0, 0], [0, 1, 2], [2, 3, 0]]
    assert torch.equal(layout.lay(grid), layout.numbers)
    past = torch.tensor([4, 9])
    each = resume_each(past)
    assert each.to_grid(each.numbers).tolist() == [[4], [9]]
    past += 1  # as a graph sees it
    assert each.numbers.tolist() == [5, 10]


def stored(lengths: Tensor, heads: int, size: int, page: int, dtype: torch.dtype) -> Any:
    """A store of random numbers, NaN behind the end of each row, and whose pages are whose."""
    rows, columns = len(lengths), -(-int(lengths.max()) // page) + 1
    store = Pages(Frame(page), rows * columns, heads, size)
    shape = (rows * columns + 1) * page, heads, size
    keys, values = (torch.randn(shape, device=DEVICE).to(dtype) for _ in range(2))
    table = (torch.randperm(rows * columns, device=DEVICE) + 1).view(rows, columns)
    at = torch.arange(columns * page, device=DEVICE)
    slots = table[:, at // page] * page + at % page
    beyond = slots[at >= lengths[:, None]]
    keys[beyond], values[beyond] = float("nan"), float("nan")
    store._keys, store._values = keys, values
    return store, table, slots


def test_pages_are_gathered_without_what_others_left_there() -> None:
    check_gathered()


def check_gathered() -> None:
    lengths = torch.tensor([1, 9, 4], device=DEVICE)
    store, table, slots = stored(lengths, 2, 3, 4, torch.float32)
    seen = store.gather(store._keys, table, lengths)  # R G S D
    for row, length in enumerate(lengths.tolist()):
        hers = store._keys[slots[row, :length]].transpose(0, 1)
        assert torch.equal(seen[row, :, :length], hers)
        assert not seen[row, :, length:].any()


# --- the kernel -----------------------------------------------------------------------------------


class _Whole(type):
    """Triton 3.6's interpreter makes a number of an array of one, which numpy 2.4 refuses."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, builtins.int)

    def __call__(cls, x: Any = 0, *more: Any) -> int:
        return builtins.int(x.item() if isinstance(x, np.ndarray) else x, *more)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not CUDA:
        import triton.runtime.interpreter as interpreter

        monkeypatch.setattr(interpreter, "int", _Whole("int", (), {}), raising=False)
    return


def by_hand(q: Tensor, store: Pages, table: Tensor, lengths: Tensor, reach: int | None) -> Tensor:
    """Gather, mask, softmax, in fp64."""
    _rows, heads, _size = q.shape
    k, v = (
        store.gather(x, table, lengths).double().repeat_interleave(heads // store.shape[0], 1)
        for x in (store._keys, store._values)
        if x is not None
    )
    at = torch.arange(k.shape[2], device=q.device)
    seen = at < lengths[:, None]
    if reach is not None:
        seen = seen & (at >= lengths[:, None] - 1 - reach)
    scores = 0.3 * torch.einsum("rhd,rhsd->rhs", q.double(), k)
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
    return torch.einsum("rhs,rhsd->rhd", weights, v)


@kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "groups", "size", "reach", "parts", "page"),
    [
        (4, 4, 8, None, 1, 16),
        (6, 2, 5, None, 1, 4),
        (4, 4, 16, 3, 3, 16),
        (8, 1, 64, None, 4, 16),
        (6, 3, 16, 70, 2, 8),
        (2, 2, 16, None, None, 16),
    ],
)
@pytest.mark.usefixtures("interpreted")
def test_the_kernel_reads_pages_where_they_lie(
    heads: int, groups: int, size: int, reach: int | None, parts: int | None, page: int, dtype: Any
) -> None:
    from allformer.core.fused.gpu.paged import paged_attention

    lengths = torch.tensor([1, 37, 70, 130], device=DEVICE)
    store, table, _ = stored(lengths, groups, size, page, dtype)
    wide = torch.nn.functional.pad(table, (3, 2))  # as a step's table is a part of one tensor
    q = torch.randn(4, heads, size, device=DEVICE).to(dtype)
    mine = paged_attention(
        q, store._keys, store._values, wide[:, 3:], lengths, page, 0.3, reach, parts
    )
    hers = by_hand(q, store, table, lengths, reach)
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(mine.double(), hers, rtol=limit, atol=limit)


def test_the_kernel_serves_where_there_is_one() -> None:
    case = Case("fast", DEVICE, torch.bfloat16, 64)
    assert paged_serves(case) == (CUDA and has_triton())
    assert not paged_serves(case._replace(asked="eager"))
    assert not paged_serves(case._replace(drops=True))
    assert not paged_serves(case._replace(size=512))


@on_gpu
@pytest.mark.parametrize("kind", ["decoder modern", "rotary", "decoder window", "seq2seq modern"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_on_a_gpu_says_what_it_says_on_a_cpu(kind: str, dtype: torch.dtype) -> None:
    """In fp32 the very tokens of fp64 on a CPU; in bf16, by graphs, those of another engine."""
    from copy import deepcopy

    plain = writer(kind)
    model = deepcopy(plain).to(DEVICE, dtype)
    asked = [ask(plain, width, width, max_new_tokens=12) for width in (3, 17, 8, 30, 5)]
    engines = [Engine(model, pages=60, page=4, chunk=16) for _ in range(2)]
    replies = [[x.put(engine) for x in asked] for engine in engines]
    for engine in engines:
        engine.run()
    steps = engines[0].reader.steps
    assert steps is not None
    assert steps.refused is None
    assert steps._graphs
    for x, mine, again in zip(asked, *replies, strict=True):
        assert mine.ids == again.ids
        if dtype == torch.float32:
            assert mine.ids == x.alone(plain)[0].tolist()
