"""Models in eight and four bits: what is rounded and how, and that they run, save and load."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch

import allformer as af
from allformer.checkpoint.verify import verify
from allformer.core.attention import Attention
from allformer.core.calibrate import calls_of, watch
from allformer.core.linear import Linear
from allformer.core.quantise import matrices, quantise, rounded
from allformer.core.quantised import Quantised, QuantisedApart, is_quantised, widen_all
from allformer.core.quantised_cpu import plain_products
from allformer.core.rounding import compensated, fit_group, nearest, scales
from allformer.errors import CheckpointError, ConfigError
from allformer.families import FAMILIES
from tests.models import SPREAD, decoder_only, loud, right_padding, seq2seq, tokens


def weight(outputs: int = 48, inputs: int = 64, seed: int = 0):
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))


def correlated(inputs: int, rows: int = 400):
    """Inputs of which some are loud and all hang together, as a model's are."""
    make = torch.Generator().manual_seed(3)
    mix = torch.randn(inputs // 4, inputs, generator=make)
    x = torch.randn(rows, inputs // 4, generator=make) @ mix
    return x + 0.3 * torch.randn(rows, inputs, generator=make)


def dense(q, scale, group):
    return q.float() * scale.repeat_interleave(group, 1)


def check_nearest() -> None:
    """No other integer is nearer, and scales are numbers of bf16."""
    w = weight()
    for bits, most in ((4, 8), (8, 127)):
        q, scale = nearest(w, bits, 16)
        assert q.min() >= -most
        assert q.max() <= (7 if bits == 4 else 127)
        assert torch.equal(scale, scale.bfloat16().float())
        off = (w - dense(q, scale, 16)).abs()
        for step in (-1, 1):
            other = (q.int() + step).clamp(-most, 7 if bits == 4 else 127)
            assert (off <= (w - dense(other, scale, 16)).abs() + 1e-6).all()


def check_scales() -> None:
    """The scale is better than that of the largest weight alone; loud inputs count for more."""
    w = weight()
    plain = w.view(48, -1, 32).abs().amax(-1) / 7.5
    loss = lambda scale, weigh=1.0: (  # noqa: E731
        (w - dense((w / scale.repeat_interleave(32, 1)).round().clamp(-8, 7), scale, 32)) ** 2
        * weigh
    ).sum()
    best = scales(w, 4, 32)
    assert loss(best) < 0.95 * loss(plain)
    weigh = torch.logspace(-2, 2, 64)
    assert loss(scales(w, 4, 32, weigh), weigh) < 0.95 * loss(best, weigh)


def check_compensated() -> None:
    """GPTQ keeps the outputs nearer than rounding does, and by far."""
    w, x = weight(24, 512), correlated(512)  # several blocks of inputs
    errors = []
    for q, scale in (nearest(w, 4, 32), compensated(w, x.t() @ x, 4, 32)):
        errors.append((x @ (dense(q, scale, 32) - w).t()).square().mean().item())
    assert errors[1] < 0.2 * errors[0], errors


def check_watched() -> None:
    """Σ x xᵀ of what comes in; a later layer ends the pass, and deltas are as before."""
    model = loud(decoder_only()).float()
    first, later = (model.decoder.layers[i].attention.qkv for i in range(2))
    heard, reached = [], []
    first.delta = lambda x, y: heard.append(x) or y
    model.decoder.layers[1].feed.down.delta = lambda x, y: reached.append(x) or y
    kept = first.delta
    ids = tokens(3, 7)
    with torch.no_grad():
        (seen,) = watch(model, [first], [later], calls_of(ids))
    x = torch.cat([each.flatten(0, -2) for each in heard])
    torch.testing.assert_close(seen, x.t() @ x)
    assert first.delta is kept
    assert later.delta is None
    assert not reached


def test_each_weight_is_its_nearest_multiple():
    check_nearest()


def test_scales_lose_least():
    check_scales()


def test_calibrated_layers_keep_their_outputs():
    check_compensated()


def test_what_comes_into_a_layer_is_summed():
    check_watched()


def test_nothing_seen_is_rounded_to_the_nearest():
    w = weight()
    q, scale = compensated(w, torch.zeros(64, 64), 4, 32)
    assert torch.equal(q, (w / scale.repeat_interleave(32, 1)).round().clamp(-8, 7).to(torch.int8))


@pytest.mark.parametrize(
    ("inputs", "group", "fits"),
    [(256, 128, 128), (576, 128, 64), (288, 128, 32), (172, 128, 86), (64, 128, 64), (22, 16, 22)],
)
def test_a_group_divides_the_inputs(inputs, group, fits):
    assert fit_group(inputs, group) == fits


@pytest.mark.every(3)
@pytest.mark.parametrize("name", SPREAD)
def test_any_model_runs_in_few_bits(name):
    """As with plain layers of the same numbers, in every place where they may stand."""
    model = loud(SPREAD[name]).float()
    quantise(model, "int8" if name == "odd width" else "int4")
    wide = deepcopy(model)
    widen_all(wide, torch.float32)
    assert not is_quantised(wide)
    found = verify(model, wide, ("few", "wide"))
    assert all(each.sound for each in found if each.largest_value < torch.inf)  # of no masked logit


ENCODER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
SIDES = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 99,
}  # fmt: skip
WIDE = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99},
    "llama": {**ENCODER, "intermediate_size": 96, "num_key_value_heads": 2},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
           "vocab_size": 99},
    "bart": SIDES,
    "bert": {**ENCODER, "intermediate_size": 96},
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", WIDE)
def test_a_row_among_others_is_what_it_is_alone(family, kind):
    """In eight bits to what a second digit leaves; in four, whose products on a CPU are in bf16,
    with matrices made whole."""
    model = quantise(loud(FAMILIES[family].make(WIDE[family])).float(), kind)
    ids, lengths = tokens(4, 30, vocab=99), (30, 17, 8, 1)
    mask = right_padding(list(lengths), 30)
    more = {"decoder_input_ids": tokens(4, 6, seed=1)} if family in ("t5", "bart") else {}

    def answer(rows: slice, width: int):
        given = {name: x[rows] for name, x in more.items()}
        given |= {"input_ids": ids[rows, :width] * mask[rows, :width]}
        out = model(attention_mask=mask[rows, :width], **given)
        return out.last_hidden_state if out.logits is None else out.logits

    with plain_products() if kind == "int4" else nullcontext():
        together = answer(slice(None), 30)
        for i, length in enumerate(lengths):
            alone = answer(slice(i, i + 1), length)[0]
            found = together[i, : len(alone)]
            most = (1e-3 if kind == "int8" else 2e-5) * alone.abs().max()
            assert (found - alone).abs().max() <= most


def test_attention_and_feed_forward_are_rounded_and_the_rest_is_not():
    model = quantise(loud(seq2seq()).float(), "int8")
    assert not matrices(model, 8)
    left = {type(x).__name__ for x in model.modules() if list(x.parameters(recurse=False))}
    assert left == {"Embedding", "LayerNorm", "Quantised"}  # of which it has the biases
    for attention in (x for x in model.modules() if isinstance(x, Attention)):
        layers = [attention.query, attention.memory] if attention.cross else [attention.qkv]
        assert all(isinstance(x, Quantised) for x in [*layers, attention.out])


def test_memory_falls():
    linear = Linear(1024, 512, bias=False)
    size = lambda layer: sum(x.nbytes for x in layer.state_dict().values())  # noqa: E731
    assert size(rounded(linear, 8)) < 0.26 * size(linear)
    assert size(rounded(linear, 4)) < 0.14 * size(linear)


def test_a_calibrated_model_is_nearer_to_the_wide_one():
    model = loud(decoder_only()).float()
    train, ids = tokens(24, 20, seed=5), tokens(8, 20)
    gaps = []
    for calibrate in (None, train):
        few = quantise(deepcopy(model), "int4", calibrate=calibrate)
        with torch.no_grad():
            gaps.append((few(input_ids=ids).logits - model(input_ids=ids).logits).square().mean())
    assert gaps[1] < 0.8 * gaps[0]


def test_what_both_sides_read_calibrates_both():
    model = loud(seq2seq()).float()
    call = {"input_ids": tokens(2, 9), "decoder_input_ids": tokens(2, 6, seed=1)}
    told: list[str] = []
    quantise(model, "int4", calibrate=[call], tell=told.append)
    assert len(told) == 5
    assert told[-1] == "decoder.layers.2: 7 matrices in 4 bits (5 of 5)"


def test_a_quantised_model_writes():
    model = loud(decoder_only()).float()
    before = model.generate(input_ids=tokens(2, 5), max_new_tokens=6)
    after = quantise(model, "int8").generate(input_ids=tokens(2, 5), max_new_tokens=6)
    assert after.shape == before.shape


def test_our_own_layout_keeps_the_bytes(tmp_path):
    model = quantise(loud(seq2seq()).float(), "int4", group=16)
    af.save(model, tmp_path, family="allformer")
    again = af.load(tmp_path, dtype=torch.bfloat16)
    for name, x in model.state_dict().items():
        y = again.state_dict()[name]
        exact = name.endswith(("packed", "scale"))
        assert torch.equal(x, y) if exact else torch.equal(x.bfloat16(), y), name


def test_parts_held_apart_are_saved_and_loaded(tmp_path):
    model = loud(decoder_only()).float()
    qkv = model.decoder.layers[1].attention.qkv
    parts = {}
    for name, bits in (("q", 4), ("k", 4), ("v", 8)):
        linear = Linear(qkv.in_features, qkv.parts[name])
        linear.weight.data, linear.bias.data = (x.detach().clone() for x in qkv.part(name))
        parts[name] = rounded(linear, bits)
    model.decoder.layers[1].attention.qkv = QuantisedApart(**parts)
    af.save(model, tmp_path, family="allformer")
    again = af.load(tmp_path)
    assert isinstance(again.decoder.layers[1].attention.qkv, QuantisedApart)
    ids = tokens(2, 9)
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_layout_that_cannot_say_it_is_refused(tmp_path):
    small = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50, "n_positions": 40}
    from allformer.families import FAMILIES, gpt2

    model = af.build(FAMILIES["gpt2"].make({**gpt2.PRESETS["gpt2"], **small}), seed=0)
    quantise(model, "int4")
    with pytest.raises(CheckpointError, match='save with family="allformer"'):
        af.save(model, tmp_path / "theirs")
    af.save(model, tmp_path / "ours", family="allformer")
    assert is_quantised(af.load(tmp_path / "ours"))


def test_groups_that_begin_anywhere_are_not_written_for_others(tmp_path):
    from allformer.families import FAMILIES, llama

    tree = FAMILIES["llama"].make({**llama.USUAL, **llama.sizes(32, 1, 4, 2, 48, 50, 64)})
    model = quantise(af.build(tree, seed=0), "int4")
    layer = model.decoder.layers[0].feed.up
    layer.least = -7.7 * layer.scale
    with pytest.raises(CheckpointError, match="multiple of their scale"):
        af.save(model, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "int3"}, "try int8 or int4"),
        ({"group": 4}, "try 32"),
        ({"group": "32"}, "group='32' must be a whole number"),
        ({"calibrate": []}, "calibrate= is empty"),
        ({"calibrate": "a text"}, "calibrate=str must be ids"),
        ({"calibrate": {"input_ids": torch.ones(1, 5)}}, "calibrate=dict must be ids"),
        ({"calibrate": 5}, "calibrate=int must be ids"),
        ({"calibrate": [torch.ones(1, 5)]}, "calibrate has Tensor among its calls"),
        ({"calibrate": torch.zeros(0, 5, dtype=torch.long)}, "calibrate= is empty"),
    ],
)
def test_what_cannot_be_done_is_refused(change, said):
    model = loud(decoder_only()).float()
    with pytest.raises(ConfigError, match=said):
        quantise(model, **{"kind": "int4", **change})
    assert not is_quantised(model)


def test_a_quantised_model_is_not_quantised_again():
    model = quantise(loud(decoder_only()).float())
    with pytest.raises(ConfigError, match="quantised already"):
        quantise(model)


def test_examples_that_overflow_are_refused():
    model = loud(decoder_only()).float()
    model.decoder.source.embedding.weight.data[7] = torch.inf
    with pytest.raises(ConfigError, match="calibrate it in fp32"):
        quantise(model, "int4", calibrate=torch.full((1, 5), 7))
