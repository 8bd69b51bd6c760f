"""Adapters on a model: put on, switched, row by row, merged, taken off; what is trained."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from allformer import tune
from allformer.checkpoint.save import save
from allformer.config import ClassHead, EncoderOnly, Feed
from allformer.core import layout
from allformer.core.dropout import drop
from allformer.core.inputs import Side
from allformer.core.model import build
from allformer.core.quantised import Quantised, QuantisedApart, pack, widened
from allformer.core.starts import decay_groups
from allformer.errors import CheckpointError, ConfigError
from allformer.families import FAMILIES
from allformer.train.optim.muon import Muon
from tests.loud import make_loud
from tests.models import (
    PAPER,
    SPREAD,
    VOCAB,
    decoder_only,
    encoder_only,
    left_padding,
    loud,
    right_padding,
    seq2seq,
    stack,
    tokens,
)

BOTH = (tune.Lora(rank=3, targets=("qkv", "out", "feed.up")), tune.Ia3(("out",)))
METHODS = {
    "lora": tune.Lora(rank=3),
    "dora": tune.Lora(rank=2, dora=True, targets=("q", "v", "up")),
    "ia3": tune.Ia3(),
    "bitfit": tune.BitFit(),
    "both": BOTH,
}
KINDS = ("seq2seq paper", "classes", "segments", "two towers, sigmoid", "sound to text")


def inputs(model, rows: int = 2) -> dict[str, Tensor]:
    """Random ones that the model takes, the first text padded."""
    draw = torch.Generator().manual_seed(5)
    found: dict[str, Tensor] = {}
    for name, prefix in model.prefixes.items():
        takes = model.stack(name).takes
        if "pixel_values" in takes:
            found[f"{prefix}pixel_values"] = torch.randn(rows, 1, 8, 12, generator=draw).double()
        elif "input_features" in takes:
            found[f"{prefix}input_features"] = torch.randn(rows, 5, 16, generator=draw).double()
        else:
            found[f"{prefix}input_ids"] = tokens(rows, 9, seed=len(found))
            found[f"{prefix}attention_mask"] = right_padding([5, 9, 7][:rows], 9)
    return found


@torch.no_grad()
def run(model, **given: Tensor) -> dict[str, Tensor]:
    """All tensors that a call gives."""
    out = model(**(given or inputs(model)))
    return {name: x for name, x in out.items() if isinstance(x, Tensor)}


@torch.no_grad()
def stir(model, name: str = "default", seed: int = 0) -> None:
    """Move all that an adapter trains away from where it started."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in tune.adapter_state(model, name).values():
        parameter += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)


def close(one: dict[str, Tensor], other: dict[str, Tensor], within: float = 1e-10) -> None:
    for name, x in one.items():
        torch.testing.assert_close(x, other[name], atol=within, rtol=within)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(x, other[name]) for name, x in one.items())


def check_life(kind: str, method: str) -> None:
    """Put on: nothing changes. Trained, merged: the same numbers. Taken out and off: as before."""
    model = loud(SPREAD[kind])
    base, state = run(model), copy.deepcopy(model.state_dict())
    tune.apply(model, METHODS[method], seed=0)
    close(run(model), base)
    stir(model)
    tuned = run(model)
    assert max((x - base[name]).abs().max() for name, x in tuned.items()) > 0.01
    tune.merge(model)
    assert not any(".delta." in name for name, _ in model.named_parameters())
    close(run(model), tuned)
    tune.unmerge(model)
    assert same(run(model), tuned)
    tune.remove(model)
    assert same(model.state_dict(), state)
    assert not hasattr(model, "tuning")
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_put_on_merged_and_taken_off(kind):
    check_life(kind, "lora")


@pytest.mark.parametrize("method", ["dora", "ia3", "bitfit", "both"])
def test_each_method_is_put_on_merged_and_taken_off(method):
    check_life("seq2seq paper", method)


@pytest.mark.parametrize("kind", [k for k in SPREAD if k not in ("last end", "two towers")])
@pytest.mark.slow
def test_lora_lives_on_every_kind_of_model(kind):
    if kind in ("text and an image", "odd width", "two vocabularies"):
        pytest.skip("takes other inputs")
    check_life(kind, "lora")


# --- the formulas -------------------------------------------------------------------------------


def check_lora() -> None:
    """y + s x Aᵀ Bᵀ on one part of a fused product, nothing on the others."""
    for stabilised, scale in ((False, 6 / 3), (True, 6 / 3**0.5)):
        model = loud(decoder_only())
        layer = model.decoder.layers[1].attention.qkv
        x = torch.randn(2, 5, 24, dtype=torch.float64)
        before = layer(x)
        tune.apply(model, tune.Lora(3, 6, targets=("v", "k"), stabilised=stabilised), seed=0)
        stir(model)
        parts = layer.delta.each["default"]["lora"].parts
        q, k, v = layer.cut(layer(x) - before)
        assert not q.any()
        torch.testing.assert_close(v, scale * x @ parts["v"].a.T @ parts["v"].b.T)
        torch.testing.assert_close(k, scale * x @ parts["k"].a.T @ parts["k"].b.T)
        (alone,) = layer.only(x, "v")
        torch.testing.assert_close(alone, layer.cut(layer(x))[2])


def test_lora_adds_a_thin_product_to_its_parts_alone():
    check_lora()


def check_dora() -> None:
    """x (m ⊙ V / ‖V‖)ᵀ + b, the length a constant for gradients; dropout before V alone."""
    model = loud(encoder_only())
    layer = model.encoder.layers[0].feed.up
    tune.apply(model, tune.Lora(3, 6, targets=("feed.up",), dora=True), seed=0)
    stir(model)
    pair = layer.delta.each["default"]["lora"].parts["whole"]
    x = torch.randn(5, 24, dtype=torch.float64)
    v = layer.weight + 2 * pair.b @ pair.a
    wanted = x @ (pair.length[:, None] * v / v.detach().norm(dim=1)[:, None]).T + layer.bias
    found = layer(x)
    torch.testing.assert_close(found, wanted)
    learned = [pair.a, pair.b, pair.length]
    for one, other in zip(
        torch.autograd.grad(found.sin().sum(), learned),
        torch.autograd.grad(wanted.sin().sum(), learned),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_dora_learns_length_and_direction_apart():
    check_dora()


def check_dropout() -> None:
    """What A reads is thinned out in training alone; of DoRA what its length multiplies too."""
    for dora in (False, True):
        model = loud(encoder_only())
        layer = model.encoder.layers[0].feed.up
        x = torch.randn(50, 24, dtype=torch.float64)
        base = layer(x)
        tune.apply(model, tune.Lora(3, targets=("feed.up",), dropout=0.5, dora=dora), seed=0)
        stir(model)
        change = layer.delta.each["default"]["lora"]
        assert not change.training
        torch.testing.assert_close(layer(x), layer(x))
        model.train()
        torch.manual_seed(0)
        found = layer(x)
        torch.manual_seed(0)
        thin = drop(x, 0.5)
        pair = change.parts["whole"]
        factor = torch.ones((), dtype=torch.float64)
        if dora:
            v = layer.weight + pair.product()
            factor = pair.length / v.norm(dim=1)
        wanted = base + (factor - 1) * (thin @ layer.weight.T) + factor * (thin @ pair.product().T)
        torch.testing.assert_close(found, wanted)


def check_recomputed(config) -> None:
    """What is made again for the backward pass drops out the same."""
    model = loud(config).train()
    tune.apply(model, tune.Lora(3, dropout=0.5), seed=0)
    stir(model)
    found = []
    for mode in (None, "layers"):
        model.recompute(mode)
        model.zero_grad()
        torch.manual_seed(3)
        model(tokens(2, 20), labels=tokens(2, 20)).loss.backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
    close(found[0], found[1])


def test_recomputed_adapters_drop_out_as_they_did():
    check_recomputed(decoder_only())
    check_recomputed(decoder_only(replace(PAPER, feed=Feed(16, chunk=8))))


def test_dropout_is_of_what_the_adapter_reads():
    check_dropout()


def check_ia3() -> None:
    """Keys and values times a number each, bias included; the inner activations before W₂."""
    model = loud(decoder_only())
    qkv, down = model.decoder.layers[0].attention.qkv, model.decoder.layers[0].feed.down
    x, h = (torch.randn(5, n, dtype=torch.float64) for n in (24, 40))
    before, weight, bias = qkv(x), down.weight, down.bias
    tune.apply(model, tune.Ia3())
    stir(model)
    change = qkv.delta.each["default"]["ia3"]
    q, k, v = qkv.cut(qkv(x))
    torch.testing.assert_close(q, qkv.cut(before)[0])
    torch.testing.assert_close(k, qkv.cut(before)[1] * change.parts["k"])
    torch.testing.assert_close(v, qkv.cut(before)[2] * change.parts["v"])
    into = down.delta.each["default"]["ia3"].into
    torch.testing.assert_close(down(h), (h * into) @ weight.T + bias)
    assert model.decoder.layers[0].feed.up.delta is None


def test_ia3_multiplies_keys_values_and_inner_activations():
    check_ia3()


def test_ranks_and_scales_may_differ_by_target():
    model = loud(decoder_only())
    tune.apply(model, tune.Lora(4, 8, targets=("q", "v"), ranks={"v": 2}, alphas={"1.*.q": 3}))
    change = model.decoder.layers[1].attention.qkv.delta.each["default"]["lora"]
    assert {name: (len(p.a), p.scale) for name, p in change.pairs.items()} == {
        "q": (4, 0.75),
        "v": (2, 4.0),
    }


def test_a_seed_says_how_an_adapter_starts():
    states = []
    for seed in (1, 1, 2):
        model = loud(decoder_only())
        tune.apply(model, tune.Lora(), seed=seed)
        states.append(tune.adapter_state(model))
    assert same(states[0], states[1])
    assert not same(states[0], states[2])


# --- targets ------------------------------------------------------------------------------------


def bert():
    tree = FAMILIES["bert"].make(
        {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 20, "vocab_size": VOCAB}
    )  # fmt: skip
    return build(tree, seed=0).eval()


def paths(model, targets, layers=None) -> list[str]:
    from allformer.tune.targets import find_sites

    return [site.ours for site in find_sites(model, targets, layers)]


def test_targets_have_our_names_and_the_familys():
    model = bert()
    first = "encoder.layers.0"
    assert paths(model, ("query", "feed.up"), (0,)) == [f"{first}.attention.q", f"{first}.feed.up"]
    assert paths(model, "dense") == [
        f"encoder.layers.{i}.{part}"
        for i in range(2)
        for part in ("attention.out", "feed.up", "feed.down")
    ] + ["pool.dense"]
    assert len(paths(model, "all-linear")) == 2 * 6
    two = loud(seq2seq())
    assert len(paths(two, ("q",))) == 2 + 3 + 3
    assert len(paths(two, ("cross.v",))) == 3
    assert len(paths(two, ("qkv", "memory"))) == 2 + 3 + 3


def test_a_fused_matrix_of_the_files_is_one_target():
    tree = FAMILIES["gpt2"].make({"n_embd": 12, "n_layer": 1, "n_head": 3, "vocab_size": VOCAB})
    model = build(tree, seed=0)
    first = "decoder.layers.0"
    assert paths(model, ("c_attn",)) == [f"{first}.attention.qkv"]
    assert paths(model, "all-linear")[0] == f"{first}.attention.qkv"
    assert paths(model, ("c_proj",)) == [f"{first}.attention.out", f"{first}.feed.down"]


@pytest.mark.parametrize(
    ("method", "match"),
    [
        (tune.Lora(targets=("qeury",)), "did you mean query"),
        (tune.Lora(targets=("qkv", "v")), "whole and its part 'v'"),
        (tune.Lora(layers=(7,)), "layers 0 to 1"),
        (tune.Lora(whole=("heads",)), "no part of this model"),
        (tune.Ia3((), ()), "empty"),
        ((), "no method"),
        ((tune.Full(), tune.Lora()), "nothing else can stand"),
    ],
    ids=str,
)
def test_what_cannot_be_put_on_is_refused_and_leaves_nothing(method, match):
    model = bert()
    with pytest.raises(ConfigError, match=match):
        tune.apply(model, method)
    assert not hasattr(model, "tuning")
    assert all(p.requires_grad for p in model.parameters())
    assert all(layer.attention.qkv.delta is None for layer in model.encoder.layers)


@pytest.mark.parametrize(
    "settings", [{"rank": 0}, {"rank": 1.5}, {"dropout": 1.0}, {"ranks": {"q": 0}}], ids=str
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ConfigError, match="Lora"):
        tune.Lora(**settings)


@pytest.mark.parametrize("name", ["a.b", "", "keys", "forward", "training"])
def test_a_name_that_no_module_can_have_is_refused(name):
    with pytest.raises(ConfigError, match="cannot name an adapter"):
        tune.apply(bert(), tune.Lora(), name)


def test_methods_are_found_by_name():
    assert tune.find_method("lora") is tune.Lora
    with pytest.raises(ConfigError, match="did you mean lora"):
        tune.find_method("lorra")


# --- several adapters -----------------------------------------------------------------------------


def three(config=None):
    """A model with three adapters, and what it gives with each and with none."""
    model = loud(config or seq2seq())
    found = {None: run(model, **inputs(model, 3))}
    for i, (name, method) in enumerate(
        {"a": tune.Lora(3), "b": METHODS["dora"], "c": tune.Ia3()}.items()
    ):
        tune.apply(model, method, name, seed=i)
        stir(model, name, seed=i)
        found[name] = run(model, **inputs(model, 3))
    return model, found


def test_adapters_are_switched_by_name():
    model, found = three()
    for name in ("a", None, "c", "b"):
        tune.switch(model, name)
        assert same(run(model, **inputs(model, 3)), found[name])
        trained = {n for n, p in model.named_parameters() if p.requires_grad}
        assert all(f".{name}." in n for n in trained)
        assert bool(trained) == (name is not None)
    assert model.decoder.layers[0].feed.down.delta is None  # b has nothing there
    tune.switch(model, None)
    assert all(getattr(m, "delta", None) is None for m in model.modules())
    with pytest.raises(ConfigError, match="there is a, b, c"):
        tune.switch(model, "d")


def check_rows() -> None:
    """Each row of a batch has its own adapters, padding and all."""
    model, found = three()
    tune.switch(model, ["c", "a", None])
    mixed = run(model, **inputs(model, 3))
    for i, (name, real) in enumerate(zip(("c", "a", None), (5, 9, 7), strict=True)):
        torch.testing.assert_close(mixed["logits"][i, :real], found[name]["logits"][i, :real])
    tune.switch(model, ["b"])
    torch.testing.assert_close(run(model, **inputs(model, 3))["logits"][1], found["b"]["logits"][1])
    tune.switch(model, ["a", "b"])
    with pytest.raises(ConfigError, match="2 rows, but the batch has 3"):
        run(model, **inputs(model, 3))
    packed = Side(layout.pack(right_padding([3, 2], 3)), {"input_ids": tokens(1, 5)[0]})
    with pytest.raises(ConfigError, match="cannot be packed"):
        model.hidden({"encoder": packed})


def test_rows_of_a_batch_have_their_own_adapters():
    check_rows()


def test_adapters_act_together_one_after_the_other():
    model, _ = three(decoder_only())
    x = torch.randn(5, 24, dtype=torch.float64)
    layer = model.decoder.layers[0].attention.qkv
    tune.switch(model, None)
    base = layer(x)
    tune.switch(model, "a")
    added = layer(x) - base
    tune.switch(model, "a", "c")
    both = layer(x)
    factor = torch.cat([torch.ones(24).double(), *layer.delta.each["c"]["ia3"].parts.values()])
    torch.testing.assert_close(both, (base + added) * factor)
    assert tune.active(model) == ("a", "c")
    tuned = run(model)
    tune.merge(model)
    close(run(model), tuned)


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("config", [seq2seq(), decoder_only()], ids=["seq2seq", "decoder"])
def test_rows_with_adapters_generate_what_they_do_alone(config, beams):
    model, _ = three(config)
    ids, mask = tokens(3, 4), left_padding([4, 2, 3], 4)
    how = {"max_new_tokens": 4, "num_beams": beams, "do_sample": False}
    tune.switch(model, ["a", None, "c"])
    mixed = model.generate(ids, attention_mask=mask, **how)
    for i, name in enumerate(("a", None, "c")):
        tune.switch(model, name)
        alone = model.generate(ids, attention_mask=mask, **how)
        assert torch.equal(mixed[i], alone[i])
    tune.switch(model, "a")
    tuned = model.generate(ids, attention_mask=mask, **how)
    with tune.merged(model):
        assert torch.equal(model.generate(ids, attention_mask=mask, **how), tuned)


def test_inside_inference_mode_nothing_is_made_that_cannot_learn():
    model, ids = loud(decoder_only()), tokens(2, 5)
    with torch.inference_mode():
        tune.apply(model, tune.Lora(3), "a", seed=0)
        tune.apply(model, tune.Ia3(), "b")
        tune.merge(model)
        model(ids)
        tune.unmerge(model)
        tune.switch(model, ["a", "b"])
        model(ids)
    model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_for_a_while_the_base_answers_and_training_goes_on():
    model, found = three()
    before = {n for n, p in model.named_parameters() if p.requires_grad}
    with tune.using(model, None):
        assert same(run(model, **inputs(model, 3)), found[None])
    assert same(run(model, **inputs(model, 3)), found["c"])
    assert {n for n, p in model.named_parameters() if p.requires_grad} == before


def test_one_of_several_is_taken_off():
    model, found = three()
    tune.remove(model, "b")
    assert same(run(model, **inputs(model, 3)), found["c"])
    tune.remove(model, "c")
    assert tune.active(model) == ()
    assert same(run(model, **inputs(model, 3)), found[None])
    tune.switch(model, "a")
    assert same(run(model, **inputs(model, 3)), found["a"])


def test_a_copy_has_adapters_of_its_own():
    model, found = three(decoder_only())
    other = copy.deepcopy(model)
    tune.switch(other, "a")
    stir(other, "a", seed=9)
    assert not same(run(other, **inputs(model, 3)), found["a"])
    assert same(run(model, **inputs(model, 3)), found["c"])
    tune.switch(model, "a")
    assert same(run(model, **inputs(model, 3)), found["a"])


def test_a_model_moves_with_all_its_adapters():
    model, _ = three(EncoderOnly(stack(), ClassHead(("x", "y"), at="first")))
    model.float()
    for name in ("a", "b", "c", None):
        tune.switch(model, name)
        assert all(p.dtype == torch.float32 for p in model.parameters())
        run(model, **inputs(model, 3))


# --- what is trained ------------------------------------------------------------------------------


def check_frozen() -> None:
    """Only the adapter has gradients and an optimiser's state, and layers below it keep nothing."""
    config = encoder_only(layers=3)
    kept = {}
    for layers in ((0, 1, 2), (2,)):
        model = loud(config).train()
        tune.apply(model, tune.Lora(3, layers=layers), seed=0)
        own = {id(p) for p in model.parameters()}
        sizes: list[int] = []

        def keep(x: Tensor, sizes=sizes, own=own) -> Tensor:
            sizes.append(0 if id(x) in own else x.numel())
            return x

        optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=0.1)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = model(input_ids=tokens(2, 9), labels=tokens(2, 9)).loss
        kept[layers] = sum(sizes)
        loss.backward()
        optimizer.step()
        mine = {f"encoder.layers.{i}." for i in layers}
        for name, p in model.named_parameters():
            trains = ".delta." in name
            assert (p.grad is not None) == trains == p.requires_grad
            assert trains or torch.equal(p, before[name])
            assert not trains or any(name.startswith(layer) for layer in mine)
        state = optimizer.state_dict()["state"]
        assert sum(len(g["params"]) for g in optimizer.param_groups) == len(state) == 12 * len(mine)
    assert kept[2,] < 0.5 * kept[0, 1, 2]


def test_what_is_frozen_has_no_gradient_and_no_state():
    check_frozen()


def test_an_optimiser_of_matrices_is_refused_where_all_are_frozen():
    model = loud(decoder_only())
    tune.apply(model, tune.Lora())
    with pytest.raises(ConfigError, match="none that are trained"):
        Muon().make(model, 1e-3, capturable=False)


@pytest.mark.slow
def test_a_tuned_model_compiles_whole():
    model, ids = loud(decoder_only()), tokens(2, 9)
    tune.apply(model, BOTH, seed=0)
    stir(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits)
    tune.switch(model, None)
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits)


def test_the_share_that_is_trained_is_counted_by_part():
    model = loud(encoder_only())
    total = sum(p.numel() for p in model.parameters())
    tune.apply(model, tune.Lora(2, targets=("q",), layers=(1,)))
    found = tune.trainable(model)
    assert found.parts["encoder.layers.1"].trained == found.trained == 2 * (24 + 24)
    assert found.total == total + found.trained
    assert f"{found.share:.3%}" in str(found).splitlines()[-1]
    tune.switch(model, None)
    assert tune.trainable(model).share == 0


def check_own_heads() -> None:
    """Each adapter has its own head of labels, and the base the one that it had."""
    model = loud(SPREAD["classes"])
    base = run(model)
    for name in ("one", "two"):
        tune.apply(model, tune.Lora(2), name, seed=0)
        assert model.head.out.weight.requires_grad
        stir(model, name, seed=len(name) + ord(name[0]))
    two = run(model)
    tune.switch(model, "one")
    assert not same(run(model), two)
    tune.switch(model, "two")
    assert same(run(model), two)
    with pytest.raises(ConfigError, match="its own head"):
        tune.switch(model, ["one", "two"])
    assert same(run(model), two)
    tune.switch(model, None)
    assert same(run(model), base)


def test_a_head_of_labels_is_trained_beside_the_adapter_and_one_of_words_is_not():
    check_own_heads()
    words = loud(encoder_only())
    tune.apply(words, tune.Lora(2))
    assert not words.encoder.source.embedding.weight.requires_grad


def test_bitfit_trains_biases_alone_and_keeps_the_base():
    model = loud(encoder_only())
    base = run(model)
    tune.apply(model, tune.BitFit())
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    assert trained == [n for n, _ in model.named_parameters() if n.endswith("bias")]
    stir(model)
    assert not same(run(model), base)
    tune.switch(model, None)
    assert same(run(model), base)
    with pytest.raises(ConfigError, match="have none"):
        tune.apply(loud(SPREAD["decoder modern"]), tune.BitFit())


def test_full_trains_all_in_place():
    model = loud(encoder_only())
    tune.apply(model, tune.Full())
    assert tune.trainable(model).share == 1
    ears = loud(SPREAD["sound to classes"])
    before = {name for name, p in ears.named_parameters() if p.requires_grad}
    tune.apply(ears, tune.Full())
    assert before == {name for name, p in ears.named_parameters() if p.requires_grad}
    assert set(tune.adapter_state(model)) == dict(model.named_parameters()).keys()
    for change in (lambda: tune.switch(model, None), lambda: tune.remove(model)):
        with pytest.raises(ConfigError, match="nothing was kept"):
            change()
    with pytest.raises(ConfigError, match="wants a frozen one"):
        tune.apply(model, tune.Lora(), "more")


def quantised(model):
    """A model whose decoder's feed-forward layers and projections are in eight bits."""
    for layer in model.decoder.layers:
        for owner, name in ((layer.attention, "qkv"), (layer.feed, "up"), (layer.feed, "down")):
            linear = getattr(owner, name)
            scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
            q = (linear.weight.detach() / scale).round()
            setattr(owner, name, Quantised.like(linear, pack(q, 8), scale, bits=8))
    return model


@pytest.mark.parametrize("method", ["lora", "dora", "ia3"])
def test_adapters_stand_beside_layers_in_few_bits(method):
    model = quantised(loud(decoder_only()))
    layer = model.decoder.layers[0].feed.up
    base = run(model)
    tune.apply(model, METHODS[method], seed=0)
    close(run(model), base, 1e-8)
    stir(model)
    given = tokens(2, 7)
    model(given, labels=given).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    tuned = run(model)
    tune.merge(model)
    assert not any(isinstance(m, Quantised) for m in [model.decoder.layers[0].attention.qkv])
    close(run(model), tuned, 1e-8)
    tune.unmerge(model)
    assert model.decoder.layers[0].feed.up is layer
    assert same(run(model), tuned)
    with pytest.raises(ConfigError, match="few bits"):
        tune.apply(quantised(loud(decoder_only())), tune.Full())


@pytest.mark.parametrize("bits", [4, 8])
def test_a_matrix_in_few_bits_is_not_kept_whole_for_the_backward_pass(bits):
    draw = torch.Generator().manual_seed(0)
    q = torch.randint(-8, 8, (20, 32), generator=draw)
    scale, bias = torch.rand(20, 2, generator=draw), torch.randn(20, generator=draw)
    layer = Quantised(pack(q, bits), scale, bits=bits, bias=bias.requires_grad_())
    x = torch.randn(3, 5, 32, generator=draw, requires_grad=True)
    kept: list[int] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        y = layer(x)
    assert sum(kept) < 20 * 32
    wanted = layer.plain(x)
    torch.testing.assert_close(y, wanted)
    for one, other in zip(
        torch.autograd.grad(y.sin().sum(), (x, layer.bias)),
        torch.autograd.grad(wanted.sin().sum(), (x, layer.bias)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_projections_that_are_held_each_in_its_own_way_have_adapters_too():
    model = quantised(loud(decoder_only()))
    for layer in model.decoder.layers:
        parts = {}
        for name in "qkv":
            rows = layer.attention.qkv.rows(name)
            whole = layer.attention.qkv
            bias = whole.bias.detach()[rows]
            part = Quantised(whole.packed[rows], whole.scale[rows], bits=8, bias=bias)
            parts[name] = part
        layer.attention.qkv = QuantisedApart(**parts)
    base = run(model)
    tune.apply(model, METHODS["dora"], seed=0)
    close(run(model), base, 1e-8)
    stir(model)
    tuned = run(model)
    tune.merge(model)
    close(run(model), tuned, 1e-8)
    tune.unmerge(model)
    assert same(run(model), tuned)


def test_a_layer_made_plain_again_keeps_its_adapter():
    model = quantised(loud(decoder_only()))
    tune.apply(model, METHODS["dora"], seed=0)
    stir(model)
    tuned = run(model)
    for layer in model.decoder.layers:
        layer.feed.up = widened(layer.feed.up, torch.float64)
    close(run(model), tuned, 1e-8)


# --- merging --------------------------------------------------------------------------------------


def test_a_model_merged_for_good_is_a_plain_one():
    model = loud(SPREAD["classes"])
    tune.apply(model, BOTH, seed=0)
    stir(model)
    tuned = run(model)
    tune.merge(model, keep=False)
    assert not hasattr(model, "tuning")
    assert set(model.state_dict()) == set(loud(SPREAD["classes"]).state_dict())
    assert all(p.requires_grad for p in model.parameters())
    close(run(model), tuned)


def test_a_model_is_not_saved_without_the_adapter_that_acts(tmp_path):
    model = bert()
    tune.apply(model, tune.Lora())
    with pytest.raises(ConfigError, match="would be lost"):
        save(model, tmp_path)
    with tune.merged(model):
        save(model, tmp_path)
    tune.switch(model, None)
    save(model, tmp_path)


def test_while_adapters_are_merged_nothing_is_exchanged():
    model, _ = three(decoder_only())
    tune.merge(model)
    for change in (
        lambda: tune.switch(model, "a"),
        lambda: tune.remove(model, "a"),
        lambda: tune.apply(model, tune.Lora(), "d"),
        lambda: tune.merge(model),
    ):
        with pytest.raises(ConfigError, match="unmerge"):
            change()
    tune.unmerge(model)
    with pytest.raises(ConfigError, match="nothing is merged"):
        tune.unmerge(model)
    tune.switch(model, ["a", "b"])
    with pytest.raises(ConfigError, match="each row"):
        tune.merge(model)


def test_merging_in_bf16_is_rounded_once():
    model = build(decoder_only(), seed=0).bfloat16()
    make_loud(model, 1)
    tune.apply(model, tune.Lora(3, targets=("up",)), seed=0)
    stir(model)
    layer = model.decoder.layers[0].feed.up
    pair = layer.delta.each["default"]["lora"].parts["whole"]
    assert pair.a.dtype == torch.float32
    wanted = (layer.weight.float() + pair.product()).bfloat16()
    tune.merge(model)
    assert torch.equal(layer.weight, wanted)


# --- an adapter's tensors -------------------------------------------------------------------------


def test_an_adapters_tensors_are_those_of_another_model_of_its_shape():
    model = loud(SPREAD["classes"])
    tune.apply(model, BOTH, "here", seed=0)
    stir(model, "here")
    state = {name: x.clone() for name, x in tune.adapter_state(model, "here").items()}
    assert all("here" not in name for name in state)
    assert {"head.out.weight", "head.out.bias"} <= set(state)
    other = loud(SPREAD["classes"])
    tune.apply(other, BOTH, "there", seed=5)
    tune.load_adapter_state(other, "there", state)
    assert same(run(other), run(model))


@pytest.mark.parametrize(
    ("method", "match"),
    [(tune.Lora(5), "another rank"), (tune.Lora(2, targets=("q",)), "has"), (tune.Ia3(), "lacks")],
    ids=["rank", "targets", "method"],
)
def test_tensors_of_another_adapter_are_refused(method, match):
    one, other = loud(decoder_only()), loud(decoder_only())
    tune.apply(one, tune.Lora(2, targets=("q", "v")))
    tune.apply(other, method, seed=0)
    before = copy.deepcopy(tune.adapter_state(other))
    with pytest.raises(CheckpointError, match=match):
        tune.load_adapter_state(other, "default", tune.adapter_state(one))
    assert same(before, tune.adapter_state(other))


# --- the page -------------------------------------------------------------------------------------


def test_the_python_of_the_page_on_methods_runs_and_is_the_same_in_both_languages(capsys):
    docs = Path(__file__).parents[2] / "docs"
    found = []
    for page in ("tuning.md", "tuning.zh-CN.md"):
        text = (docs / page).read_text(encoding="utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        found.append(next(code for code in blocks if "tune.trainable(model)" in code))
    assert found[0] == found[1]
    exec(compile(found[0], "tuning.md", "exec"), {})
    assert "all " in capsys.readouterr().out


def test_rows_with_adapters_of_their_own_stay_where_they_are_when_others_have_ended():
    net = loud(decoder_only())
    for seed, name in enumerate("ab"):
        tune.apply(net, tune.Lora(4), name=name, seed=seed)
        stir(net, name, seed)
    names = ["a", "b"] * 6
    ids = tokens(len(names), 5)
    tune.switch(net, names)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    alone = net.generate(ids, **options)
    left = net.generate(ids, limits=[1] * 6 + [8] * 6, **options)  # half of twelve leave
    assert torch.equal(left[6:], alone[6:])
    assert not torch.equal(alone[0::2, 5:], alone[1::2, 5:])
