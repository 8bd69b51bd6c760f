"""BigBird's blocks: every fast form is the formula, on any padding, and no square is made."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import allformer as af
from allformer import config
from allformer.config import BlockSparse
from allformer.core import gathered as gathering
from allformer.core.fused import has_triton
from allformer.core.kernels.tiles import attend, make_tiles, pad_tiles
from allformer.core.layout import Grid
from allformer.core.mixers.block_sparse import BlockSparse as Mixer
from allformer.core.mixers.block_sparse import Plan
from allformer.core.mixers.mixer import Scene
from allformer.core.random_blocks import draw_blocks, slots_of, table_of
from allformer.errors import ConfigError
from tests.models import left_padding, loud, on_the_grid, right_padding, stack, tokens

CPU = torch.device("cpu")
SPARSE = BlockSparse(block=4, random=2)  # short up to 36
MASKS = {
    "none": None,
    "right": right_padding([50, 40, 3], 50),
    "left": left_padding([50, 40, 3], 50),
    "within": right_padding([50, 40, 3], 50).index_fill(1, torch.tensor([2, 3, 17]), 0),
}


def mixing(mixer: BlockSparse, heads: int = 3, kv: int | None = None) -> config.Block:
    attention = config.Attention(heads, kv, mixer=mixer)
    return config.Block(attention, config.Feed(20), dropout=0.0)


def encoder(mixer: BlockSparse = SPARSE, layers: int = 2, **changes) -> config.EncoderOnly:
    """Each layer with its own blocks."""
    blocks = tuple(
        mixing(BlockSparse(mixer.block, mixer.random, i, always=mixer.always))
        for i in range(layers)
    )
    return config.EncoderOnly(stack(blocks=blocks, **changes))


def written_out(q, k, v, mixer, drawn, keep=None, scale=0.5):
    """softmax over a list of keys with those that count twice in it twice: query by query."""
    heads, length, block = q.shape[1], q.shape[2], mixer.block
    blocks = -(-length // block)
    random = draw_blocks(mixer, heads, blocks) if drawn else np.zeros((heads, blocks, mixer.random))
    out = torch.zeros_like(q)
    for b, h, i in np.ndindex(*q.shape[:3]):
        at = i // block
        if at in (0, blocks - 1):
            seen = list(range(blocks))
        else:
            seen = sorted({0, at - 1, at, at + 1, blocks - 1})
            seen += [int(x) for x in random[h, at - 1]]
        keys = [j for n in seen for j in range(n * block, min((n + 1) * block, length))]
        keys = [j for j in keys if keep is None or keep[b, j]]
        if keep is None or keep[b, i]:
            weights = (q[b, h, i] @ k[b, h, keys].T * scale).softmax(-1)
            out[b, h, i] = weights @ v[b, h, keys]
    return out


@pytest.mark.parametrize("kernel", ["fast", "eager"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluated", "trained"])
@pytest.mark.parametrize("side", MASKS)
def test_the_mixer_is_the_formula_query_by_query_and_so_are_its_gradients(side, training, kernel):
    mixer = Mixer(config.Attention(3, scale=0.5, mixer=SPARSE), 12, "here").train(training)
    keep = None if MASKS[side] is None else MASKS[side].bool()
    grid = Grid(3, 50, keep)
    plan = mixer.plan(Scene(grid, grid, CPU, torch.float64, kernel=kernel))
    parts = {name: torch.randn(3, 50, 12).double().mul(2).requires_grad_() for name in "qkv"}
    mine = mixer(parts, plan, None, None)
    split = [x.view(3, 50, 3, 4).transpose(1, 2) for x in parts.values()]
    hers = written_out(*split, SPARSE, training, keep).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mine, hers, rtol=0, atol=1e-12)
    probe = torch.randn_like(mine)
    found = [torch.autograd.grad(x, list(parts.values()), probe) for x in (mine, hers)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-11)


def test_some_blocks_at_a_time_are_all_at_once(monkeypatch):
    found = []
    for numbers in (1, 2**12, 2**30):
        monkeypatch.setitem(gathering.NUMBERS, "cpu", numbers)
        model = loud(encoder()).train()
        out = model(input_ids=tokens(2, 50)).last_hidden_state
        grads = torch.autograd.grad(out.square().sum(), list(model.encoder.layers.parameters()))
        found.append([out, *grads])
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("mode", ["layers", "selective"])
def test_recomputing_changes_no_number(mode):
    model, found = loud(encoder()).train(), []
    for how in (None, mode):
        model.recompute(how)
        out = model(input_ids=tokens(2, 50), attention_mask=MASKS["right"][:2]).last_hidden_state
        grads = torch.autograd.grad(out.square().sum(), list(model.encoder.layers.parameters()))
        found.append([out, *grads])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("training", [False, True], ids=["evaluated", "trained"])
@pytest.mark.parametrize("side", ["right", "left", "within"])
def test_packed_rows_are_the_grids(side, training):
    model = loud(encoder()).train(training)
    inputs = {"input_ids": tokens(3, 50), "attention_mask": MASKS[side]}
    packed = model(**inputs).last_hidden_state
    with on_the_grid():
        grid = model(**inputs).last_hidden_state
    keep = MASKS[side].bool()
    torch.testing.assert_close(packed[keep], grid[keep], rtol=0, atol=1e-10)


def test_a_row_beside_others_is_the_row_alone_in_the_same_width():
    model, ids = loud(encoder()), tokens(3, 50)
    for mask in (MASKS["right"], MASKS["left"]):
        together = model(input_ids=ids, attention_mask=mask).last_hidden_state
        alone = model(input_ids=ids[1:2], attention_mask=mask[1:2]).last_hidden_state
        torch.testing.assert_close(together[1:2], alone, rtol=0, atol=1e-10)


def test_what_stands_at_padding_changes_nothing():
    model, ids, mask = loud(encoder()), tokens(3, 50), MASKS["left"]
    other = torch.where(mask == 1, ids, tokens(3, 50, 9))
    found = [model(input_ids=x, attention_mask=mask).last_hidden_state for x in (ids, other)]
    torch.testing.assert_close(*(x[mask == 1] for x in found), rtol=0, atol=0)


def test_short_rows_are_looked_at_in_full_and_the_next_longer_one_is_not():
    model = loud(encoder())
    full = loud(config.EncoderOnly(stack(blocks=(mixing(config.Full()),) * 2)))
    assert SPARSE.short == 36
    for width, same in ((36, True), (37, False)):
        ids = tokens(2, width)
        mine, hers = (m(input_ids=ids).last_hidden_state for m in (model, full))
        assert torch.allclose(mine, hers, rtol=0, atol=1e-10) == same


def test_the_padding_of_a_batch_makes_it_long():
    model, ids = loud(encoder()), tokens(1, 30)
    wide = torch.nn.functional.pad(ids, (0, 20))
    mask = right_padding([30], 50)
    alone = model(input_ids=ids).last_hidden_state
    beside = model(input_ids=wide, attention_mask=mask).last_hidden_state[:, :30]
    assert not torch.allclose(alone, beside, atol=1e-3)


def test_blocks_are_drawn_by_layer_in_training_and_in_evaluation_where_that_is_asked_for():
    ids = tokens(1, 60)
    usual, always = loud(encoder()), loud(encoder(BlockSparse(4, 2, always=True)))
    seen = {}
    for name, model in (("usual", usual), ("always", always)):
        for training in (False, True):
            seen[name, training] = model.train(training)(input_ids=ids).last_hidden_state
    torch.testing.assert_close(seen["usual", True], seen["always", True], rtol=0, atol=0)
    torch.testing.assert_close(seen["usual", True], seen["always", False], rtol=0, atol=0)
    assert not torch.allclose(seen["usual", True], seen["usual", False], atol=1e-3)
    drawn = [draw_blocks(BlockSparse(4, 2, seed), 3, 15) for seed in (0, 1)]
    assert (drawn[0] != drawn[1]).any()
    assert (drawn[0][0] != drawn[0][1]).any()  # and by head


def test_numpys_generator_is_left_alone():
    np.random.seed(5)
    expected = np.random.RandomState(5).rand(3)
    draw_blocks(BlockSparse(4, 2, seed=77), 3, 31)
    assert (np.random.rand(3) == expected).all()


def test_the_first_block_counts_more_often_in_evaluation():
    slots = slots_of(BlockSparse(4, 2), 3, 12, drawn=False)
    table = table_of(slots, 12)[0]
    assert table[0].eq(1).all()
    assert table[-1].eq(1).all()
    assert table[1:-1, 0].eq(3).all()
    assert table[1].tolist() == [3, 1, 1, *[0] * 8, 1]
    assert table[5].tolist() == [3, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1]
    assert table[10].tolist() == [3, *[0] * 8, 1, 1, 1]


@pytest.mark.parametrize(("n", "random"), [(64, 1), (60, 2), (2000, 3)])
def test_the_count_of_keys_is_that_of_the_blocks(n, random):
    mixer = BlockSparse(4, random)
    blocks = n // 4
    table = table_of(slots_of(mixer, 2, blocks, drawn=True), blocks)
    assert mixer.keys(n, False) == pytest.approx(4 * table.sum().item() / (2 * blocks))
    assert mixer.keys(mixer.short, False) == mixer.short


# --- tiles: the GPU's form, which runs anywhere uncompiled ----------------------------------------


def tiled(q, k, v, mixer, drawn, keep, scale):
    length = q.shape[2]
    blocks = -(-length // mixer.block)
    slots = slots_of(mixer, q.shape[1], blocks, drawn)
    more, padded = 0 if drawn else mixer.random, keep is not None
    made = make_tiles(slots, mixer.block, blocks, length, more, padded)
    if keep is not None:
        made = pad_tiles(made, keep)
    return attend(q, k, v, made, scale)


@pytest.mark.every(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("drawn", [False, True], ids=["evaluated", "trained"])
@pytest.mark.parametrize(
    ("block", "length"), [(64, 520), (32, 400), (128, 1000), (64, 1024)], ids=str
)
def test_tiles_are_the_mixer(block, length, drawn, padded):
    mixer = BlockSparse(block, 1, seed=2, table=length)
    module = Mixer(config.Attention(2, 1, mixer=mixer), 8, "here").train(drawn)
    keep = right_padding([length, length - 70], length).bool() if padded else None
    grid = Grid(2, length, keep)
    plan = module.plan(Scene(grid, grid, CPU, torch.float32))
    q, kv = torch.randn(2, length, 8), torch.randn(2, 2, length, 4)
    expected = module({"q": q, "k": kv[0], "v": kv[1]}, plan, None, None)
    split = [x.view(2, length, -1, 4).transpose(1, 2) for x in (q, kv[0], kv[1])]
    with torch.no_grad():
        mine = tiled(*split, mixer, drawn, keep, 0.5).transpose(1, 2).flatten(2)
    mine = mine if keep is None else mine * keep[..., None]
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


def test_tiles_that_nobody_sees_are_left_out():
    mixer = BlockSparse(64, 3)
    slots = slots_of(mixer, 1, 256, drawn=False)
    mask = make_tiles(slots, 64, 256, 256 * 64, 3).mask
    count = (mask.kv_num_blocks + mask.full_kv_num_blocks)[0, 0]
    assert count[0] == count[-1] == 128
    assert count[2:-2].eq(5).all()  # the first, the last, its own and its neighbours
    assert mask.full_kv_num_blocks[0, 0, 5] == 1  # its own: no pair in it is asked about


@pytest.mark.skipif(not (torch.cuda.is_available() and has_triton()), reason="no CUDA device")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("drawn", [False, True], ids=["evaluated", "trained"])
@pytest.mark.parametrize(("block", "length"), [(64, 1280), (64, 1024), (32, 1000), (128, 1536)])
def test_on_a_gpu_outputs_and_gradients_are_the_formulas(block, length, drawn, padded):
    mixer = BlockSparse(block, 2, seed=1)
    module = Mixer(config.Attention(4, 2, mixer=mixer), 256, "here").cuda().train(drawn)
    cuda = torch.device("cuda")
    keep = left_padding([length, length - 300], length).bool().cuda() if padded else None
    grid = Grid(2, length, keep)
    parts = {
        name: torch.randn(2, length, rows * 64, device=cuda).bfloat16().requires_grad_()
        for name, rows in {"q": 4, "k": 2, "v": 2}.items()
    }
    probe = torch.randn(2, length, 256, device=cuda).bfloat16()
    found = []
    for kernel in ("fast", "eager"):
        plan = module.plan(Scene(grid, grid, cuda, torch.bfloat16, kernel=kernel))
        assert (plan.tiles is not None) == (kernel == "fast")
        out = module(parts, plan, None, None)
        found.append([out, *torch.autograd.grad(out, list(parts.values()), probe)])
    for mine, hers in zip(*found, strict=True):
        assert (mine - hers).float().norm() < 2e-2 * hers.float().norm()


# --- lengths --------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most numbers that any tensor has that is made meanwhile."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out


@pytest.mark.parametrize("training", [False, True], ids=["evaluated", "trained"])
def test_what_is_made_grows_with_the_length_and_not_with_its_square(training):
    model = af.build(encoder(BlockSparse(8, 1), layers=1, position=None), seed=0).train(training)
    most = []
    for width in (1_000, 4_000):
        with Largest() as seen:
            model(input_ids=tokens(1, width)).last_hidden_state.sum().backward()
        most.append(seen.numbers)
    assert most[1] < 5 * most[0]
    assert most[1] < 4_000 * 4_000 / 8


# --- taps, compiling, what is refused -------------------------------------------------------------


def test_a_trace_shows_weights_over_all_pairs_and_changes_no_number():
    model, ids = loud(encoder()), tokens(2, 50)
    seen = af.trace(model, input_ids=ids, attention_mask=MASKS["right"][:2])
    weights = seen["encoder.1.attention.weights"]  # B H T T
    assert weights.shape == (2, 3, 50, 50)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 50).double())
    assert weights[0, :, 20, 8:16].eq(0).all()  # neither near nor first nor last
    mixed = weights @ seen["encoder.1.attention.v"]
    context = seen["encoder.1.attention.context"]
    real = MASKS["right"][:2, :, None]
    torch.testing.assert_close(mixed.transpose(1, 2).flatten(2) * real, context)


def test_weights_may_be_patched():
    model, ids = loud(encoder(layers=1)), tokens(1, 50)
    plain = model(input_ids=ids).last_hidden_state
    name = "encoder.0.attention.weights"
    with af.core.taps.listen(lambda at, x: torch.zeros_like(x) if at == name else None):
        patched = model(input_ids=ids).last_hidden_state
    assert not torch.allclose(plain, patched, atol=1e-3)


@pytest.mark.slow
def test_a_compiled_graph_has_the_same_numbers():
    torch._dynamo.reset()
    model, ids, mask = loud(encoder(layers=1)).train(), tokens(2, 50), MASKS["right"][:2]
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    mine, hers = (m(input_ids=ids, attention_mask=mask) for m in (compiled, model))
    keep = mask.bool()
    torch.testing.assert_close(
        mine.last_hidden_state[keep], hers.last_hidden_state[keep], rtol=0, atol=1e-10
    )


def test_where_it_makes_no_sense_it_is_refused_when_the_tree_is_built():
    with pytest.raises(ConfigError, match=r"Stack.causal=True; give a causal stack mixer=Full"):
        stack(mixing(SPARSE), causal=True)
    with pytest.raises(ConfigError, match=r"no place for what Stack.relative=BucketBias adds"):
        encoder(position=None, relative=config.BucketBias(8, 20))
    with pytest.raises(ConfigError, match=r"BlockSparse.seed=-1 must be from 0 to 2³² − 1"):
        BlockSparse(seed=-1)


def test_too_few_blocks_to_draw_from_are_refused():
    with pytest.raises(ConfigError, match=r"BlockSparse.block=256 leaves 0 blocks"):
        draw_blocks(BlockSparse(256, 1), 1, 16)


def test_log_of_the_times_is_what_is_added():
    mixer = Mixer(config.Attention(3, mixer=SPARSE), 12, "here").eval()
    grid = Grid(1, 48)
    plan = mixer.plan(Scene(grid, grid, CPU, torch.float64))
    assert isinstance(plan, Plan)
    assert plan.bias[0, 0, 3, 0, :4].tolist() == pytest.approx([log(3)] * 4)
    assert plan.bias[0, 0, 3, 0, 4:].eq(0).all()
    assert plan.columns.shape == (3, 10, 5)  # the first block is gathered once
