"""A step for a few rows is the model's own step, and its kernels compute what their plain forms do.

Kernels run on a GPU as they are; without one in Triton's interpreter, where Triton is installed and
TRITON_INTERPRET=1 is set; else they are skipped, and only the plain forms are tested.
"""

from __future__ import annotations

import os

import pytest
import torch

import allformer as af
from allformer import config
from allformer.core.few_rows import FewRows, fits
from allformer.core.fused import has_triton, one_query, times
from allformer.core.fused.matrix import Gain, Matrix, matrix_of
from allformer.core.fused.turns import Turns
from allformer.core.linear import Linear
from allformer.core.quantised import Quantised, QuantisedApart, pack
from allformer.core.states import Cache, Static
from tests.loud import make_loud

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
kernels = pytest.mark.skipif(
    not has_triton() or not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"),
    reason="no CUDA device, nor Triton's interpreter (TRITON_INTERPRET=1)",
)
VOCAB, ROOM, PROMPT, LENGTH = 50, 24, 9, 13
LLAMA = {"norm": "rms", "act": "silu", "gated": True, "bias": False, "relative": config.Rotary()}
GPT2 = {"norm": "layer", "act": "gelu_tanh", "gated": False, "bias": True, "relative": None}
KINDS = {
    "llama": {**LLAMA, "kv_heads": 2},
    "gpt2": {**GPT2, "kv_heads": 4},
    "odd": {**LLAMA, "kv_heads": 1, "head_dim": 24, "bias": True, "norm": "layer"},
}


def tree(kind, **change):
    has = {"head_dim": None, **KINDS[kind], **change}
    attention = config.Attention(
        4, has["kv_heads"], has["head_dim"], has["bias"], mixer=has.get("mixer", config.Full())
    )
    feed = config.Feed(96, has["act"], has["gated"], has["bias"])
    block = config.Block(
        attention, feed, norm=config.Norm(has["norm"]), norm_at=has.get("at", "pre"), dropout=0.0
    )
    stack = config.Stack(
        64, config.Tokens(VOCAB), None if has["relative"] else config.Learned(ROOM), (block,) * 2,
        causal=True, relative=has["relative"], final_norm=config.Norm(has["norm"]), dropout=0.0,
    )  # fmt: skip
    return config.DecoderOnly(stack, config.LMHead(tied=not has["gated"]))


def model_of(kind, dtype=torch.float64, **change):
    model = af.build(tree(kind, **change), seed=0)
    make_loud(model)
    return model.to(DEVICE, dtype).eval()


def prompt(rows, padded):
    """Ids, who is kept in all the room there is, and the numbers of the tokens."""
    torch.manual_seed(rows)
    ids = torch.randint(VOCAB, (rows, LENGTH), device=DEVICE)
    if not padded:
        return ids, None, None
    keep = torch.ones(rows, ROOM, dtype=torch.bool, device=DEVICE)
    for row in range(1, rows):
        keep[row, : row % PROMPT] = False
    return ids, keep, keep.cumsum(1).sub(1).clamp_min(0)


def steps(model, rows, padded, few):
    """The logits of the tokens behind the prompt, by the model itself or by `FewRows`."""
    ids, keep, where = prompt(rows, padded)
    cache: Cache = Static.cache(len(model.decoder.layers), ROOM, DEVICE)
    found = []
    stepper = FewRows(model) if few else None
    for begin, end in ((0, PROMPT), *((i, i + 1) for i in range(PROMPT, LENGTH))):
        at = None if where is None else where[:, begin:end]
        if stepper is None or begin == 0:
            logits = model.step(ids[:, begin:end], cache, keep, position_ids=at)
        else:
            logits = stepper.step(ids[:, begin:end], cache, keep, at)
        found.append(logits)
    return torch.stack(found[1:], 1)


@torch.no_grad()
def check_steps(kind, rows, padded, limit=1e-10, dtype=torch.float64):
    model = model_of(kind, dtype)
    assert fits(model, rows)
    hers, mine = (steps(model, rows, padded, few) for few in (False, True))
    error = (mine.double() - hers.double()).norm() / hers.double().norm()
    assert error < limit, f"{error:.2e}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "padded"), [(1, False), (3, True), (17, True)])
def test_a_step_for_few_rows_is_the_models_step(kind, rows, padded):
    check_steps(kind, rows, padded)


def in_few_bits(linear, bits, group):
    """A layer's matrix, rounded to the nearest."""
    w = linear.weight.detach().float()
    parts = w.view(len(w), -1, group)
    scale = parts.abs().amax(-1) / (127 if bits == 8 else 7)
    q = (parts / scale[..., None]).round().flatten(1).to(torch.int8)
    return Quantised.like(linear, pack(q, bits), scale, bits=bits)


@torch.no_grad()
def check_mixed():
    """Layers in few bits, of which some are held otherwise than those beside them."""
    model = model_of("llama")
    for block in model.decoder.layers:
        own, feed = block.attention, block.feed
        parts = {}
        for i, name in enumerate(own.qkv.parts):
            weight, _ = own.qkv.part(name)
            single = Linear(*weight.shape[::-1], bias=False).to(weight)
            single.weight.copy_(weight)
            parts[name] = in_few_bits(single, 8 if i == 2 else 4, 16 if i == 2 else 32)
        own.qkv, own.out = QuantisedApart(**parts), in_few_bits(own.out, 4, 32)
        feed.up, feed.gate = in_few_bits(feed.up, 4, 64), in_few_bits(feed.gate, 8, 64)
    hers, mine = (steps(model, 3, True, few) for few in (False, True))
    close(mine, hers, 1e-10)
    assert fits(model.bfloat16(), 3)
    assert not fits(model.float(), 3)


def test_a_step_of_layers_in_few_bits_is_the_models_step():
    check_mixed()


@kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "padded"), [(1, False), (2, True)])
def test_a_step_by_kernels_is_the_models_step(kind, rows, padded, monkeypatch):
    for module in (times, one_query):
        monkeypatch.setattr(module, "by_kernel", lambda x: has_triton())
    check_steps(kind, rows, padded, 1e-5, torch.float32)


def test_models_of_other_kinds_are_not_served():
    assert not fits(model_of("llama", mixer=config.Window(4)), 1)
    assert not fits(model_of("llama", at="post"), 1)
    assert not fits(model_of("llama", act="tanh"), 1)
    changed = model_of("llama")
    changed.decoder.layers[1].feed.down.delta = lambda x, y: y + 1
    assert not fits(changed, 1)
    if not CUDA:
        assert not FewRows.serves(model_of("llama"), None, 1)


# --- products -------------------------------------------------------------------------------------


def random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def packed(outputs, inputs, bits, group, least, bias, seed=0):
    """A quantised matrix of random numbers."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (-128, 128) if bits == 8 else ((0, 16) if least else (-8, 8))
    q = torch.randint(low, high, (outputs, inputs), generator=generator)
    shape = outputs, inputs // group
    scale = (0.1 + torch.rand(shape, generator=generator)) / high
    lowest = torch.randn(shape, generator=generator) if least else None
    layer = Quantised(
        pack(q, bits, signed=not least), scale, lowest, bits=bits,
        bias=torch.randn(outputs, generator=generator) if bias else None,
    ).to(DEVICE)  # fmt: skip
    matrix = matrix_of(layer, torch.float32)
    assert matrix is not None
    assert torch.allclose(matrix.dense(torch.float64), layer.dense(torch.float64))
    return matrix


def check_packed():
    for bits, group, least in ((8, 64, False), (8, 32, True), (4, 32, False), (4, 16, True)):
        packed(8, 64, bits, group, least, True)


def test_packed_weights_are_those_of_their_layer():
    check_packed()


def dense(outputs, inputs, bias, seed=0):
    torch.manual_seed(seed)
    return matrix_of(Linear(inputs, outputs, bias).to(DEVICE), torch.float32)


def close(mine, hers, limit=1e-5):
    error = (mine.double() - hers.double()).norm() / hers.double().norm()
    assert error < limit, f"{error:.2e}"


WAYS = {  # what stands around the product
    "alone": {},
    "rms": {"norm": "rms"},
    "layer": {"norm": "layer", "bias": True},
    "residual": {"more": True, "bias": True},
    "gelu": {"norm": "layer", "act": "gelu", "bias": True},
    "gated": {"norm": "rms", "act": "silu", "gate": True},
    "gated, bias": {"act": "gelu_tanh", "gate": True, "bias": True, "more": True},
}


def surroundings(way, rows, inputs, outputs, make):
    has = {"bias": False, "norm": None, "act": None, "gate": False, "more": False, **WAYS[way]}
    x = random(rows, inputs) * 2 + 0.5
    bias = random(inputs, seed=1) if has["norm"] == "layer" else None
    norm = Gain(1 + 0.3 * random(inputs, seed=2), bias, 1e-5) if has["norm"] else None
    gate = make(has["bias"], seed=1) if has["gate"] else None
    more = random(rows, outputs, seed=3) if has["more"] else None
    return (
        x,
        make(has["bias"], seed=0),
        {"norm": norm, "gate": gate, "act": has["act"], "more": more},
    )


@kernels
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [None, 8])
def test_one_row_is_multiplied_as_plainly(way, bits):
    from allformer.core.fused.gpu import times as gpu

    outputs, inputs = 37, 160  # neither fills its last tile

    def make(bias, seed):
        if bits is None:
            return dense(outputs, inputs, bias, seed)
        return packed(outputs, inputs, bits, inputs, False, bias, seed)

    x, matrix, around = surroundings(way, 1, inputs, outputs, make)
    hers = times.plain_times(x, matrix, **around)
    for tile in (gpu.Tile(8, 64), gpu.Tile(16, 256), None):
        close(gpu.times_row(x, matrix, **around, tile=tile), hers)


def halved(x):
    """The same numbers in half precision, whatever they are in."""
    if isinstance(x, tuple):
        return type(x)(*map(halved, x))
    return x.half() if isinstance(x, torch.Tensor) else x


@kernels
@pytest.mark.parametrize("way", WAYS)
def test_one_row_is_rounded_where_the_plain_form_rounds(way):
    from allformer.core.fused.gpu import times as gpu

    def make(bias, seed):
        return halved(dense(70, 300, bias, seed))

    x, matrix, around = surroundings(way, 1, 300, 70, make)
    around = {name: halved(part) for name, part in around.items()}
    mine = gpu.times_row(x.half(), matrix, **around)
    same = (mine == times.plain_times(x.half(), matrix, **around)).float().mean()
    assert same > (0.8 if CUDA else 0.95), f"{same:.2f}"  # sums in another order: a few are others


FORMS = {  # bits, inputs that share a scale, whether there is a least value
    "plain": (None, 0, False),
    "int8": (8, 192, False),
    "int8 groups": (8, 32, False),
    "int8 least": (8, 32, True),
    "int4": (4, 192, False),
    "int4 groups": (4, 64, False),
    "int4 least": (4, 32, True),
}


@kernels
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "way"), [(3, "alone"), (1, "rms"), (2, "gated, bias")])
def test_few_rows_are_multiplied_as_plainly(form, rows, way):
    from allformer.core.fused.gpu import times as gpu

    bits, group, least = FORMS[form]
    outputs, inputs = 37, 192

    def make(bias, seed):
        if bits is None:
            return dense(outputs, inputs, bias, seed)
        return packed(outputs, inputs, bits, group, least, bias, seed)

    x, matrix, around = surroundings(way, rows, inputs, outputs, make)
    hers = times.plain_times(x, matrix, **around)
    for lanes in (1, 4):
        tile = gpu.tile_of_rows(matrix, rows, False)._replace(lanes=lanes)
        close(gpu.times_rows(x, matrix, **around, tile=tile), hers)


HALF = [torch.float16, torch.bfloat16] if CUDA else [torch.float16]  # the interpreter has no bf16


@kernels
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("rows", [1, 5])
def test_four_bits_are_taken_apart_in_half_precision(dtype, least, rows):
    from allformer.core.fused.gpu import times as gpu

    matrix = packed(48, 256, 4, 64, least, True)._replace(bias=None)
    x = random(rows, 256, dtype=dtype)
    close(gpu.times_rows(x, matrix), times.plain_times(x.double(), matrix), 2e-3)


@kernels
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_rows_are_normed_as_plainly(kind):
    from allformer.core.fused.gpu import times as gpu

    x = random(3, 80) * 2 + 1
    norm = Gain(random(80, seed=1), random(80, seed=2) if kind == "layer" else None, 1e-5)
    close(gpu.norm_rows(x, norm), times.normed(x, norm))


def test_weights_say_which_kernel_takes_them():
    half = torch.bfloat16
    plain = Matrix(torch.zeros(8, 64, dtype=half))
    assert times.kernel_of(plain, 1, half) == "row"
    assert times.kernel_of(plain, times.FEW, half) == "rows"
    assert times.kernel_of(plain, times.FEW + 1, half) is None
    assert times.kernel_of(plain, 2, torch.float32) is None
    assert times.kernel_of(packed(8, 64, 8, 64, False, False), 1, half) == "rows"
    assert times.kernel_of(packed(8, 64, 8, 64, False, False), 1, torch.float32) == "row"
    assert times.kernel_of(packed(8, 40, 8, 40, False, False), 1, half) == "row"
    assert times.kernel_of(packed(8, 64, 8, 32, False, False), 1, half) == "rows"
    assert times.kernel_of(packed(8, 64, 4, 32, True, False), times.FEW_PACKED, half) == "rows"
    assert times.kernel_of(packed(8, 48, 4, 16, False, False), 1, half) is None


# --- attention ------------------------------------------------------------------------------------


@kernels
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 4, 16), (6, 2, 24), (4, 1, 32)])
@pytest.mark.parametrize("turns", [True, False])
def test_one_query_looks_and_remembers_as_plainly(parts, heads, groups, size, turns):
    from allformer.core.fused.gpu import one_query as gpu

    rows, room = 2, 200
    fused = random(rows, (heads + 2 * groups) * size)
    memory = [random(rows, groups, room, size, seed=i) for i in range(2)]
    keep = random(rows, room + 8)[:, 4:-4] > -0.5  # rows of it lie further apart than those of keys
    angles = random(room, size // 2)
    where = torch.tensor([7, 190], device=DEVICE)
    turn = Turns(angles.cos(), angles.sin()) if turns else None
    ticks = torch.zeros(rows * groups, dtype=torch.int32, device=DEVICE)
    for count, kept in ((0, None), (1, keep), (130, keep), (199, None)):
        past = torch.tensor(count, device=DEVICE)
        turn = turn and turn._replace(where=None if kept is None else where)
        mine, hers = ([x.clone() for x in memory] for _ in range(2))
        theirs = one_query.plain_one_query(fused, tuple(hers), past, kept, turn, heads, 0.3)
        found = gpu.one_query(fused, *mine, past, kept, turn, heads, 0.3, ticks, gpu.Cut(parts))
        close(found, theirs)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, hers, strict=True))
        assert not ticks.any()


@kernels
def test_one_query_that_may_look_at_nothing_gets_zeros():
    from allformer.core.fused.gpu import one_query as gpu

    memory = [random(1, 2, 64, 16, seed=i) for i in range(2)]
    nobody = torch.zeros(1, 64, dtype=torch.bool, device=DEVICE)
    ticks = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    past = torch.tensor(40, device=DEVICE)
    for parts in (1, 2):
        found = gpu.one_query(
            random(1, 128), *memory, past, nobody, None, 4, 0.3, ticks, gpu.Cut(parts)
        )
        assert not found.any()
