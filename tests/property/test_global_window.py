"""A window with global tokens: the formula, padding on either side, marks, and never T × T."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

import allformer as af
from allformer.config import (
    Attention,
    Block,
    ClassHead,
    EncoderDecoder,
    EncoderOnly,
    Full,
    GlobalWindow,
    Learned,
    Pool,
    Rotary,
    SpanHead,
)
from allformer.core.fused import has_triton
from allformer.core.inputs import Side
from allformer.core.kernels.flex import BLOCK
from allformer.core.kernels.flex_global import global_blocks
from allformer.core.layout import pack
from allformer.core.taps import listen
from allformer.errors import ConfigError
from tests.models import (
    EOS,
    PAPER,
    crossed,
    encoder_only,
    left_padding,
    loud,
    on_the_grid,
    right_padding,
    stack,
    tokens,
)

WIDTH = 40
IDS = tokens(3, WIDTH)
LENGTHS = [40, 33, 7]


def mixing(mixer, **changes) -> Block:
    return replace(PAPER, attention=replace(PAPER.attention, mixer=mixer, **changes))


def marks(*rows: list[int]) -> torch.Tensor:
    out = torch.zeros(len(rows), WIDTH).long()
    for i, places in enumerate(rows):
        out[i, places] = 1
    return out


MARKS = marks([3, 20], [], [0, 4, 39])  # of unequal number; one may lie in padding
MASKS = {
    "none": None,
    "right": right_padding(LENGTHS, WIDTH),
    "left": left_padding(LENGTHS, WIDTH),
    "a hole": right_padding(LENGTHS, WIDTH) * (torch.arange(WIDTH) != 5),
}
MODELS = {
    "plain": mixing(GlobalWindow(3, 5)),
    "grouped": mixing(GlobalWindow(0, 9), kv_heads=2, scale=0.7),
    "wide": mixing(GlobalWindow(90, 90)),
}
each_mask = pytest.mark.parametrize("mask", MASKS)


def real(mask: str) -> torch.Tensor:
    found = MASKS[mask]
    return torch.ones(3, WIDTH).bool() if found is None else found.bool()


@each_mask
@pytest.mark.parametrize("name", MODELS)
def test_in_chunks_it_is_the_formula_in_value_and_gradient(name, mask):
    model = loud(encoder_only(MODELS[name]))
    inputs = {"attention_mask": MASKS[mask], "global_attention_mask": MARKS}
    keep = real(mask)
    found = {}
    for kernel in ("fast", "eager"):
        model.zero_grad()
        out = model(input_ids=IDS, kernel=kernel, **inputs).logits[keep]
        (out.square().sum() / 1000).backward()
        found[kernel] = [out, *(p.grad.clone() for p in model.parameters())]
    for a, b in zip(*found.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@each_mask
def test_packed_is_the_grid(mask):
    model = loud(encoder_only(MODELS["plain"]))
    inputs = {"attention_mask": MASKS[mask], "global_attention_mask": MARKS}
    packed = model(IDS, **inputs).logits
    with on_the_grid():
        grid = model(IDS, **inputs).logits
    torch.testing.assert_close(packed[real(mask)], grid[real(mask)])


@pytest.mark.parametrize("side", [right_padding, left_padding])
def test_a_row_of_a_batch_is_the_row_alone(side):
    model = loud(encoder_only(MODELS["plain"], position=Learned(64)))
    alone = IDS[:1, :12]
    wanted = model(alone, global_attention_mask=MARKS[:1, :12]).logits
    mask = side([12, 40, 1], WIDTH)
    ids, own = IDS.clone(), torch.zeros_like(MARKS)
    ids[0, mask[0].bool()], own[0, mask[0].bool()] = alone[0], MARKS[0, :12]
    own[1, [0, 30]] = 1
    batch = model(ids, attention_mask=mask, global_attention_mask=own).logits
    torch.testing.assert_close(batch[0, mask[0].bool()], wanted[0])


def test_a_window_over_everything_without_global_tokens_is_full_attention():
    model, plain = (loud(encoder_only(b)) for b in (MODELS["wide"], mixing(Full())))
    _copy_projections(model, plain)
    for mask in MASKS.values():
        a, b = model(IDS, attention_mask=mask), plain(IDS, attention_mask=mask)
        keep = slice(None) if mask is None else mask.bool()
        torch.testing.assert_close(a.logits[keep], b.logits[keep])


def test_global_tokens_with_the_same_projections_are_tokens_that_see_all():
    """All marked, or a wide window: then only the projections tell them apart."""
    model, plain = (loud(encoder_only(b)) for b in (MODELS["plain"], mixing(Full())))
    _copy_projections(model, plain)
    for layer in model.encoder.layers:
        with torch.no_grad():
            half = layer.attention.qkv.weight.shape[0] // 2
            layer.attention.qkv.weight[half:] = layer.attention.qkv.weight[:half]
            layer.attention.qkv.bias[half:] = layer.attention.qkv.bias[:half]
    wanted = plain(IDS).logits
    everybody = torch.ones_like(IDS)
    torch.testing.assert_close(model(IDS, global_attention_mask=everybody).logits, wanted)
    assert not torch.allclose(model(IDS).logits, wanted)


def _copy_projections(model, plain) -> None:
    state = plain.state_dict()
    for name, value in model.state_dict().items():
        rows = state[name].shape[0] if state[name].ndim else 0
        value[:rows] = state[name]


def test_each_token_sees_its_window_and_the_global_tokens_and_is_seen_likewise():
    even = mixing(GlobalWindow(3, 5), scale=0.01)  # nobody's weight is nearly nothing
    model = loud(encoder_only(even, blocks=(even,)))
    own = marks([10])
    before = model(IDS[:1], global_attention_mask=own).logits
    for changed, seen in ((25, {10, *range(20, 29)}), (10, set(range(WIDTH)))):
        ids = IDS[:1].clone()
        ids[0, changed] = (ids[0, changed] - 3) % 30 + 4
        moved = (model(ids, global_attention_mask=own).logits - before).abs().amax(-1)[0]
        assert {i for i in range(WIDTH) if moved[i] > 1e-9} == seen


def test_padding_is_never_global():
    model = loud(encoder_only(MODELS["plain"]))
    mask = MASKS["right"]
    a = model(IDS, attention_mask=mask, global_attention_mask=MARKS).logits
    b = model(IDS, attention_mask=mask, global_attention_mask=MARKS * mask).logits
    torch.testing.assert_close(a, b)


def test_without_marks_the_global_projections_are_not_computed():
    model = loud(encoder_only(MODELS["plain"]))
    seen = af.trace(model, input_ids=IDS)
    assert "encoder.0.attention.q" in seen
    assert "encoder.0.attention.q_global" not in seen
    out = af.trace(model, input_ids=IDS, global_attention_mask=MARKS)
    assert out["encoder.0.attention.q_global"].shape == (3, 4, WIDTH, 6)


def test_looking_at_weights_changes_no_number_and_a_patch_does():
    model = loud(encoder_only(MODELS["plain"]))
    inputs = {"input_ids": IDS, "global_attention_mask": MARKS, "attention_mask": MASKS["right"]}
    with torch.no_grad():
        plain = model(**inputs).logits
    trace = af.trace(model, **inputs)
    torch.testing.assert_close(trace["head.logits"][real("right")], plain[real("right")])
    weights = trace["encoder.1.attention.weights"]  # B H T T
    sums = weights.sum(-1)[:, 0]
    torch.testing.assert_close(sums, real("right").double())
    assert (weights[0, 0, 3] > 0).all()  # a global token sees everybody
    assert (weights[0, 0, :, 3] > 0).all()  # and is seen
    assert ((weights[0, 0, 30] > 0).nonzero().flatten() == torch.tensor(
        [3, 20, *range(27, 36)])).all()  # fmt: skip

    def even(name, x):
        return torch.full_like(x, 1 / WIDTH) if name == "encoder.1.attention.weights" else None

    with listen(even), torch.no_grad():
        patched = model(**inputs).logits
    assert not torch.allclose(patched, plain)


def test_layers_that_are_computed_again_drop_the_same_weights():
    block = replace(mixing(GlobalWindow(3, 5), dropout=0.2), dropout=0.1)
    model = loud(encoder_only(block)).train()
    inputs = {"attention_mask": MASKS["right"], "global_attention_mask": MARKS}
    found = []
    for mode in (None, "layers", "selective"):
        model.recompute(mode)
        model.zero_grad()
        torch.manual_seed(0)
        model(IDS, **inputs).logits.square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for again in found[1:]:
        torch.testing.assert_close(again, found[0], rtol=0, atol=0)


def test_half_precision_is_near():
    model = loud(encoder_only(MODELS["plain"])).float()
    for layer in model.encoder.layers:
        layer.attention.mixer.scale *= 0.1
    inputs = {"attention_mask": MASKS["left"], "global_attention_mask": MARKS}
    keep = real("left")
    with torch.no_grad():
        wide = model(IDS, **inputs).logits[keep]
        half = model(IDS, **inputs, dtype=torch.bfloat16).logits[keep]
    assert (half - wide).norm() < 0.02 * wide.norm()


# --- who is marked where nobody says it -----------------------------------------------------------

GLOBAL = stack(MODELS["plain"])


def both_ways(head, ids, own, mask=None, pool=None) -> None:
    model = loud(EncoderOnly(GLOBAL, head, pool))
    for call in ({}, {"kernel": "eager"}):
        a = model(ids, attention_mask=mask, **call)
        b = model(ids, attention_mask=mask, global_attention_mask=own, **call)
        none = model(ids, attention_mask=mask, global_attention_mask=own * 0, **call)
        name = model.head.gives[0]
        torch.testing.assert_close(a[name], b[name])
        assert not torch.allclose(a[name], none[name])


@pytest.mark.parametrize("mask", ["none", "right"])
@pytest.mark.parametrize("at", ["first", "pool"])
def test_a_head_that_reads_the_first_token_has_it_marked(at, mask):
    pool = Pool() if at == "pool" else None
    both_ways(ClassHead(("a", "b"), at=at), IDS, marks([0], [0], [0]), MASKS[mask], pool)


def test_a_head_for_tokens_marks_nobody():
    model = loud(EncoderOnly(GLOBAL, ClassHead(("a", "b"), at="token")))
    plain = model(IDS, global_attention_mask=MARKS * 0).logits
    torch.testing.assert_close(model(IDS).logits, plain)


@pytest.mark.parametrize("mask", ["none", "right"])
def test_a_head_that_finds_answers_has_the_question_marked(mask):
    ids = IDS.clone()
    for row, places in enumerate([(5, 6, 39), (9, 10, 32), (1, 2, 6)]):
        ids[row, list(places)] = EOS
    if mask == "none":
        ids[1:, -1] = ids[0, 0]
    both_ways(SpanHead(), ids, marks(range(5), range(9), [0]), MASKS[mask])


def test_a_question_that_is_not_found_is_refused():
    model = loud(EncoderOnly(GLOBAL, SpanHead()))
    ids = IDS.clone()
    ids[:, [5, 9]] = EOS
    model(ids)
    ids[1, 5] = 7
    with pytest.raises(ConfigError, match=r"row with 1 of the separator 3 .*global_attention_mask"):
        model(ids)
    model(ids, global_attention_mask=MARKS)  # told, it need not be found


@pytest.mark.parametrize("head", [ClassHead(("a", "b"), at="first"), SpanHead()], ids=repr)
def test_rows_end_to_end_as_in_training_have_the_same_tokens_marked(head):
    model = loud(EncoderOnly(GLOBAL, head))
    ids = IDS.clone()
    ids[:, [2, 3, 6]] = EOS
    mask = MASKS["right"]
    layout = pack(mask)
    side = Side(layout, {"input_ids": layout.lay(ids)})
    states = model.hidden({"encoder": side})["encoder"]
    wanted = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(states, wanted[mask.bool()])


# --- what makes no sense --------------------------------------------------------------------------


def test_a_decoder_and_relative_positions_are_refused():
    with pytest.raises(ConfigError, match=r"GlobalWindow.left=3 has global tokens.*try Window\(3"):
        stack(MODELS["plain"], causal=True)
    with pytest.raises(ConfigError, match=r"relative positions know one.*Stack.relative=None"):
        stack(MODELS["plain"], position=None, relative=Rotary())


def test_a_decoder_looks_across_at_an_encoder_with_global_tokens():
    model = loud(EncoderDecoder(GLOBAL, stack(crossed(PAPER), causal=True)))
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS[:, :9], "attention_mask": MASKS["left"]}
    fast, formula = (
        model(**inputs, global_attention_mask=MARKS, kernel=kernel).logits
        for kernel in ("fast", "eager")
    )
    torch.testing.assert_close(fast, formula)
    assert not torch.allclose(fast, model(**inputs).logits)


def test_its_count_is_what_is_built():
    tree = encoder_only(MODELS["grouped"])
    assert af.count(tree).parameters == sum(p.numel() for p in af.build(tree).parameters())
    block = tree.encoder.blocks[0].attention.mixer
    assert block.keys(10_000, causal=False) == pytest.approx(10, rel=1e-2)


# --- never T × T ----------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most elements that any tensor had."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor):
                self.most = max(self.most, x.numel())
        return out


def test_nothing_grows_with_the_square_of_the_length():
    def most(width: int) -> int:
        model = af.build(encoder_only(mixing(GlobalWindow(16, 16))), seed=0)
        ids, own = tokens(1, width), torch.zeros(1, width).long()
        own[0, [0, 7]] = 1
        with Largest() as seen:
            model(ids, global_attention_mask=own).last_hidden_state.sum().backward()
        return seen.most

    assert most(2048) <= 2.1 * most(1024) < 1024 * 1024


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [4 * BLOCK, 3 * BLOCK + 40])
@pytest.mark.parametrize("reach", [(20, 30), (200, 170), (0, 5)])
def test_blocks_are_those_that_hold_a_window_or_a_global_token(reach, width):
    keep = torch.arange(width) < torch.tensor([width, BLOCK + 9, 70])[:, None]
    own = torch.zeros(3, width).bool()
    own[0, [0, BLOCK + 1]] = own[1, 5] = own[2, 300] = True  # the last in padding
    cpu = torch.device("cpu")
    for given in ((keep, own), (None, own), (keep, None), (None, None)):
        made = global_blocks((3, width), reach, *given, cpu)
        torch_made = create_block_mask(
            made.mask_mod, 3, None, width, width, device="cpu", BLOCK_SIZE=BLOCK
        )
        mine, hers = (x.to_dense().bool() for x in (made, torch_made))
        assert not (hers & ~mine).any()
        if given[0] is None:  # a block that ends in padding may be listed for nothing
            assert torch.equal(mine, hers)
        at = torch.arange(width)
        zero = torch.zeros((), dtype=torch.long)
        for row in range(3):
            pairs = made.mask_mod(torch.tensor(row), zero, at[:, None], at[None])
            far = at[None] - at[:, None]
            may = (far >= -reach[0]) & (far <= reach[1])
            if given[1] is not None:
                may = may | own[row]
            assert torch.equal(pairs, may if given[0] is None else may & keep[row])
        whole = _dense(made.full_kv_num_blocks, made.full_kv_indices)
        assert torch.equal(whole, _dense(torch_made.full_kv_num_blocks, torch_made.full_kv_indices))


def _dense(counts: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Which blocks are listed, of how many each row of blocks has listed first."""
    listed = torch.arange(order.shape[-1]) < counts[..., None]
    return torch.zeros(order.shape).bool().scatter(-1, order.long(), listed)


@pytest.mark.skipif(
    not (torch.cuda.is_available() and has_triton()), reason="FlexAttention runs on a GPU here"
)
@pytest.mark.parametrize("mask", [None, "right", "left"])
def test_on_a_gpu_it_is_the_formula_forward_and_backward(mask):
    width, device = 2048 + 96, torch.device("cuda")
    block = replace(PAPER, attention=Attention(2, mixer=GlobalWindow(200, 120)))
    tree = encoder_only(block, dim=64)
    ids = tokens(2, width).to(device)
    own = torch.zeros_like(ids)
    own[0, [0, 700]] = own[1, 1500] = 1
    keep = None if mask is None else right_padding([width, 1600], width)
    keep = keep.flip(-1) if mask == "left" else keep
    keep = None if keep is None else keep.to(device)
    found = []
    for kernel, dtype in (("fast", torch.bfloat16), ("eager", torch.float32)):
        model = af.build(tree, seed=0, device=device)
        inputs = {"attention_mask": keep, "global_attention_mask": own}
        states = model(ids, kernel=kernel, dtype=dtype, **inputs).last_hidden_state
        states = states if keep is None else states[keep.bool()]
        (states.float() * torch.linspace(-1, 1, 64, device=device)).mean().backward()
        found.append((states.float(), model.encoder.layers[0].attention.qkv.weight.grad))
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() <= 0.03 * b.norm()
