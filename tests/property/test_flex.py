"""FlexAttention's windows: the same keys as the mask allows, the same numbers as the formula."""

from __future__ import annotations

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


def allowed(layout, causal, reach):
    """Who may look at whom, pair by pair, as the mask of the grid says: N N."""
    if not layout.packed:
        return mask_of(layout.places(CPU), causal, reach)[0, 0]
    mask = mask_of(layout.places(CPU), causal, reach)[:, 0]  # R T T
    row, place = layout.cells // layout.total, layout.cells % layout.total
    same = row[:, None] == row[None, :]
    return same & mask[row[:, None], place[:, None], place[None, :]]


LAYOUTS = {"a row": Grid(1, 3 * BLOCK + 40), "documents": documents([300, 7, 150], 300)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", [(20, 30), (200, 0), (170, 150)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_hold_exactly_what_the_mask_allows(name, reach, causal):
    layout = LAYOUTS[name]
    wanted = allowed(layout, causal, reach)
    made = window_blocks(scene_of(layout, causal), reach)
    n = len(wanted)
    at = torch.arange(n)
    zero = torch.zeros((), dtype=torch.long)
    pairs = made.mask_mod(zero, zero, at[:, None], at[None, :])
    blocks = made.to_dense()[0, 0].bool()
    seen = blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:n, :n]
    torch.testing.assert_close(pairs & seen, wanted)


def test_blocks_inside_the_window_of_a_whole_row_need_no_mask():
    made = window_blocks(scene_of(Grid(1, 8 * BLOCK)), (3 * BLOCK, 3 * BLOCK))
    full = made.full_kv_num_blocks[0, 0].tolist()
    assert full == [3, 4, 5, 5, 5, 5, 4, 3]
    assert (made.kv_num_blocks[0, 0] <= 2).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_numbers_are_the_formulas(name, causal, monkeypatch):
    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)
    layout, reach, size = LAYOUTS[name], (40, 60), 16
    scene = scene_of(layout, causal)
    n = layout.total if not layout.packed else len(layout.cells)
    q, k, v = torch.randn(3, 2, n, size).mul(2)
    look = None if layout.packed else Look()
    plan = Plan(Flex(), look, blocks=window_blocks(scene, reach))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [x.transpose(0, 1) if layout.packed else x[None] for x in (q, k, v)]
        out = Flex()(*given, plan, 0.25, 0.0)
    mine = out.transpose(0, 1) if layout.packed else out[0]
    scores = (q @ k.transpose(1, 2) * 0.25).masked_fill(~allowed(layout, causal, reach), -1e30)
    torch.testing.assert_close(mine, scores.softmax(-1) @ v, rtol=1e-4, atol=1e-5)


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
        {"size": 72},
    ],
    ids=str,
)
def test_it_serves_narrow_windows_of_long_rows_on_a_gpu_alone(change, monkeypatch):
    monkeypatch.setattr(flex, "has_triton", lambda: True)
    case = Case("fast", torch.device("cuda"), torch.bfloat16, 64, False, False, window=1025)
    assert Flex().fits(case._replace(width=16_384))
    assert not Flex().fits(case._replace(**{"width": 16_384, **change}))


@pytest.mark.skipif(not (torch.cuda.is_available() and has_triton()), reason="no CUDA device")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True], ids=["a row", "documents"])
def test_on_a_gpu_outputs_and_gradients_are_the_formulas(packed, causal):
    layout = documents([1500, 90, 900], 1500) if packed else Grid(1, 2048)
    if packed:
        layout = type(layout)(*(x.cuda() for x in layout))
    attention = config.Attention(4, 2, mixer=config.Window(100, 30))
    mixer = Window(attention, 256, "window").cuda()
    cuda = torch.device("cuda")
    shape = (len(layout.cells),) if packed else (1, 2048)
    parts = {
        name: torch.randn(*shape, rows * 64, device=cuda, dtype=torch.bfloat16, requires_grad=True)
        for name, rows in {"q": 4, "k": 2, "v": 2}.items()
    }
    found = []
    for kernel in ("fast", "eager"):
        plan = mixer.plan(scene_of(layout, causal, cuda, torch.bfloat16, kernel))
        assert isinstance(plan.kernel, Flex) == (kernel == "fast")
        given = {name: mixer.put(x, plan, key=False) for name, x in parts.items()}
        out = mixer(given, plan, None, None)
        torch.manual_seed(0)
        grads = torch.autograd.grad(out, list(parts.values()), torch.randn_like(out))
        found.append([out, *grads])
    for mine, hers in zip(*found, strict=True):
        assert (mine - hers).float().norm() < 2e-2 * hers.float().norm()
