"""FlexAttention's windows: the same keys as the mask allows, the same numbers as the formula."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from allformer import config
from allformer.core.fused import has_triton
from allformer.core.kernels import Case, Plan, flex
from allformer.core.kernels.flex import BLOCK, Flex, window_blocks
from allformer.core.layout import Grid, pack
from allformer.core.look import Look
from allformer.core.mixers.mixer import Scene
from allformer.core.mixers.window import Window
from allformer.core.places import mask_of

CPU = torch.device("cpu")


def scene_of(layout, causal=False, device=CPU, dtype=torch.float32, kernel="fast"):
    return Scene(layout, layout, device, dtype, causal, kernel)


def documents(lengths, width):
    """Rows of these lengths, packed."""
    keep = torch.arange(width) < torch.tensor(lengths)[:, None]
    return pack(keep)


def allowed(layout, causal, reach, dilation=1):
    """Who may look at whom, pair by pair, as the mask of the grid says: (R or 1) N N."""
    mask = mask_of(layout.places(CPU), causal, reach, dilation)[:, 0]  # R T T
    if not layout.packed:
        return mask
    row, place = layout.cells // layout.total, layout.cells % layout.total
    same = row[:, None] == row[None, :]
    return (same & mask[row[:, None], place[:, None], place[None, :]])[None]


def listed(count, which, many):
    """Blocks × blocks from how many each sees and which: R count many."""
    dense = torch.zeros(*count.shape, many).bool()
    for r, _, block in count.nonzero().tolist():
        seen = which[r, 0, block, : count[r, 0, block]].tolist()
        assert len(set(seen)) == len(seen)
        dense[r, 0, block, seen] = True
    return dense[:, 0]


def block_pairs(made):
    """What blocks of queries see, in part and wholly; the lists by keys say the same."""
    many = made.kv_num_blocks.shape[-1]
    part = listed(made.kv_num_blocks, made.kv_indices, many)
    whole = listed(made.full_kv_num_blocks, made.full_kv_indices, many)
    for mine, count, which in (
        (part, made.q_num_blocks, made.q_indices),
        (whole, made.full_q_num_blocks, made.full_q_indices),
    ):
        assert torch.equal(mine.mT, listed(count, which, many))
    return part, whole


LAYOUTS = {
    "a row": Grid(1, 3 * BLOCK + 40),
    "documents": documents([300, 7, 150], 300),
    "one long document": documents([500, 9], 700),
    "holes": pack(torch.rand(2, 300, generator=torch.Generator().manual_seed(0)) < 0.7),
    "padded rows": Grid(
        3, 400, torch.stack([torch.arange(400) < n for n in (400, 90)] + [torch.arange(400) > 280])
    ),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [(20, 30), (200, 0), (270, 260)])
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_hold_exactly_what_the_mask_allows(name, reach, causal, dilation):
    layout = LAYOUTS[name]
    reach = (reach[0] // dilation * dilation, reach[1] // dilation * dilation)
    wanted = allowed(layout, causal, reach, dilation)
    rows, n = len(wanted), wanted.shape[-1]
    made = window_blocks(scene_of(layout, causal), reach, dilation)
    at, zero = torch.arange(n), torch.zeros((), dtype=torch.long)
    part, whole = (
        x.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)[:, :n, :n].expand(rows, -1, -1)
        for x in block_pairs(made)
    )
    for r in range(rows):
        pairs = made.mask_mod(torch.tensor(r), zero, at[:, None], at[None, :])
        asks = torch.ones(n).bool() if layout.packed or layout.keep is None else layout.keep[r]
        torch.testing.assert_close(((pairs & part[r]) | whole[r])[asks], wanted[r][asks])
    if name in ("a row", "one long document", "padded rows") and reach[0] > 255:
        assert whole.any() == (dilation == 1)


def test_blocks_inside_the_window_of_a_whole_row_need_no_mask():
    made = window_blocks(scene_of(Grid(1, 8 * BLOCK)), (3 * BLOCK, 3 * BLOCK))
    full = made.full_kv_num_blocks[0, 0].tolist()
    assert full == [3, 4, 5, 5, 5, 5, 4, 3]
    assert (made.kv_num_blocks[0, 0] <= 2).all()


def test_the_lists_are_as_long_as_the_window_not_as_the_row():
    sizes = []
    for length in (2**16, 2**20):
        made = window_blocks(scene_of(Grid(1, length)), (512, 512))
        assert made.seq_lengths == (length, length)
        assert made.kv_indices.shape == made.q_indices.shape == (1, 1, length // BLOCK, 9)
        sizes.append(made.kv_indices.numel())
    assert sizes[1] == 16 * sizes[0]


@pytest.mark.every(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("causal", "dilation"), [(False, 1), (True, 1), (False, 4)])
@pytest.mark.parametrize("name", ["a row", "documents", "padded rows"])
def test_numbers_are_the_formulas(name, causal, dilation):
    layout, reach, size = LAYOUTS[name], (40, 60), 16
    wanted_pairs = allowed(layout, causal, reach, dilation)[:, None]
    rows, n = 1 if layout.packed else layout.rows, wanted_pairs.shape[-1]
    q, k, v = torch.randn(3, rows, 2, n, size).mul(2)
    look = None if layout.packed else Look()
    plan = Plan(Flex(), look, blocks=window_blocks(scene_of(layout, causal), reach, dilation))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [x[0].transpose(0, 1) if layout.packed else x for x in (q, k, v)]
        out = Flex()(*given, plan, 0.25, 0.0)
    mine = out.transpose(0, 1)[None] if layout.packed else out
    scores = (q @ k.transpose(2, 3) * 0.25).masked_fill(~wanted_pairs, -1e30)
    sees = wanted_pairs.any(-1, keepdim=True)
    wanted = (scores.softmax(-1) @ v) * sees
    torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["documents", "padded rows"])
def test_what_the_mask_asks_is_traced_without_a_break(name):
    """As a compiled kernel needs it: a graph of tensors, closed over none of our classes."""
    layout = LAYOUTS[name]
    rows, n = (1, len(layout.cells)) if layout.packed else (layout.rows, layout.width)
    x = torch.randn(rows, 2, n, 16)
    blocks = window_blocks(scene_of(layout), (20, 40), 2)
    traced = torch.compile(flex_attention, backend="eager", fullgraph=True, dynamic=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = traced(x, x, x, block_mask=blocks)
        torch.testing.assert_close(out, flex_attention(x, x, x, block_mask=blocks))


@pytest.mark.parametrize(
    "change",
    [
        {"asked": "eager"},
        {"device": CPU},
        {"dtype": torch.float32},
        {"width": 1024, "window": 65},
        {"window": 9000},
        {"window": 0},
        {"drops": True},
        {"biased": True},
        {"past": True},
        {"size": 72},
    ],
    ids=str,
)
def test_it_serves_narrow_windows_of_long_rows_on_a_gpu_alone(change, monkeypatch):
    monkeypatch.setattr(flex, "has_triton", lambda: True)
    case = Case("fast", torch.device("cuda"), torch.bfloat16, 64, False, False, window=1025)
    assert Flex().fits(case._replace(width=16_384))
    assert not Flex().fits(case._replace(**{"width": 16_384, **change}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_lengths_stay_compiled(monkeypatch):
    """More than torch has patience for: the first few have their own kernel, the rest share one."""
    made = {True: 0, False: 0}

    def compiled(own):
        def note(graph, _):
            made[own] += 1
            return graph.forward

        call = flex_attention if own else flex._any_shape
        return torch.compile(call, backend=note, dynamic=not own)

    monkeypatch.setattr(flex, "_compiled", functools.cache(compiled))
    monkeypatch.setattr(flex, "ON", ("cpu", "cuda"))
    monkeypatch.setattr(flex, "_shapes", set())
    monkeypatch.setattr(flex, "SHAPES", 9)
    torch._dynamo.reset()
    for length in range(130, 143):
        x = torch.randn(1, 1, length, 16)
        blocks = window_blocks(scene_of(Grid(1, length)), (5, 5))
        with torch.no_grad():
            out = flex.call_flex(x, x, x, blocks, 0.25)
            torch.testing.assert_close(out, flex_attention(x, x, x, block_mask=blocks, scale=0.25))
    assert made[True] == 9, "torch gave up"
    assert 1 <= made[False] <= 2
    torch._dynamo.reset()


ON_GPU = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_triton()), reason="no CUDA device"
)


def on_gpu(name):
    """A long layout on the device, and which of its tokens are real."""
    cuda = torch.device("cuda")
    if name == "documents":
        layout = type(pack(torch.ones(1, 1)))(*(x.cuda() for x in documents([1500, 90, 900], 1500)))
        return layout, torch.ones(len(layout.cells), device=cuda).bool()
    if name == "a row":
        return Grid(1, 2048), torch.ones(1, 2048, device=cuda).bool()
    at = torch.arange(2100)
    keep = torch.stack([at >= 300, at < 2100, at < 900]).cuda()
    return Grid(3, 2100, keep), keep


@ON_GPU
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["a row", "documents", "padded rows"])
def test_on_a_gpu_outputs_and_gradients_are_the_formulas(name, causal, dilation):
    layout, real = on_gpu(name)
    attention = config.Attention(4, 2, mixer=config.Window(100, 30, dilation))
    mixer = Window(attention, 256, "window").cuda()
    cuda = torch.device("cuda")
    parts = {
        part: torch.randn(*real.shape, n * 64, device=cuda, dtype=torch.bfloat16).requires_grad_()
        for part, n in {"q": 4, "k": 2, "v": 2}.items()
    }
    found = []
    for kernel in ("fast", "eager"):
        plan = mixer.plan(scene_of(layout, causal, cuda, torch.bfloat16, kernel))
        assert isinstance(plan.kernel, Flex) == (kernel == "fast")
        given = {part: mixer.put(x, plan, key=False) for part, x in parts.items()}
        out = mixer(given, plan, None, None)[real]
        torch.manual_seed(0)
        grads = torch.autograd.grad(out, list(parts.values()), torch.randn_like(out))
        found.append([out, *grads])
    for mine, hers in zip(*found, strict=True):
        assert (mine - hers).float().norm() < 2e-2 * hers.float().norm()


@ON_GPU
def test_on_a_gpu_memory_grows_with_the_length():
    """65,536 tokens there and back; four times as many take four times as much."""
    mixer = Window(config.Attention(4, mixer=config.Window(512, 512)), 256, "window").cuda()
    cuda, peaks = torch.device("cuda"), []
    for length in (2**16, 2**18):
        grid = Grid(1, length)
        plan = mixer.plan(scene_of(grid, False, cuda, torch.bfloat16))
        assert isinstance(plan.kernel, Flex)
        parts = {
            part: torch.randn(1, length, 256, device=cuda, dtype=torch.bfloat16).requires_grad_()
            for part in "qkv"
        }
        mixer(parts, plan, None, None).sum().backward()  # compiled
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        mixer(
            parts, mixer.plan(scene_of(grid, False, cuda, torch.bfloat16)), None, None
        ).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 4.5 * peaks[0]


@ON_GPU
def test_on_a_gpu_packed_rows_of_any_length_are_the_formulas(monkeypatch):
    """Of many lengths, all but the first few by the kernel for any length, there and back."""
    monkeypatch.setattr(flex, "_shapes", set())
    monkeypatch.setattr(flex, "SHAPES", 2)
    cuda = torch.device("cuda")
    mixer = Window(config.Attention(2, mixer=config.Window(100, 30)), 128, "window").cuda()
    for extra in (0, 37, 300, 11, 128):
        rows = documents([1900 + extra, 90, 200], 1900 + extra)
        layout = type(rows)(*(x.cuda() for x in rows))
        parts = {
            part: torch.randn(len(layout.cells), 128, device=cuda, dtype=torch.bfloat16)
            for part in "qkv"
        }
        found = []
        for kernel in ("fast", "eager"):
            given = {part: x.clone().requires_grad_() for part, x in parts.items()}
            plan = mixer.plan(scene_of(layout, False, cuda, torch.bfloat16, kernel))
            laid = {part: mixer.put(x, plan, key=False) for part, x in given.items()}
            out = mixer(laid, plan, None, None)
            torch.manual_seed(0)
            grads = torch.autograd.grad(out, list(given.values()), torch.randn_like(out))
            found.append([out, *grads])
        for mine, hers in zip(*found, strict=True):
            assert (mine - hers).float().norm() < 2e-2 * hers.float().norm()
