"""Taps: every step has a name, looking changes nothing, patching does, compiling removes them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from allformer.core import taps
from allformer.core.mixers import full
from allformer.core.taps import listen
from allformer.core.trace import trace
from tests.models import KINDS, SPREAD, left_padding, loud, right_padding, tokens
from tests.property.test_causality import ROUTES

FEED = {False: ["up", "inner", "output"], True: ["up", "gate", "inner", "output"]}
HEADS = ["q", "k", "v", "scores", "weights", "context", "output"]


def inputs(kind: str, padded: bool = False) -> dict[str, torch.Tensor]:
    out = {"input_ids": tokens(2, 20)}
    if padded:
        out["attention_mask"] = left_padding([20, 13], 20)
    if kind.startswith("seq2seq"):
        out["decoder_input_ids"] = tokens(2, 18, 3)
        if padded:
            out["decoder_attention_mask"] = right_padding([9, 18], 18)
    return out


def names(side: str, layers: int, cross: bool, norm_at: str, gated: bool) -> list[str]:
    """Every step of a stack, in the order of the computation."""
    out = [f"{side}.{step}" for step in ("tokens", "positions", "embedded")]
    for i in range(layers):
        for part in ("attention", "cross", "feed"):
            if part == "cross" and not cross:
                continue
            steps = FEED[gated] if part == "feed" else HEADS
            inside = [f"{side}.{i}.{part}.{step}" for step in steps]
            norm, added = [f"{side}.{i}.{part}_norm"], [f"{side}.{i}.{part}_added"]
            out += [*inside, *added, *norm] if norm_at == "post" else [*norm, *inside, *added]
    return [*out, f"{side}.output"]


@pytest.mark.parametrize(
    ("kind", "norm_at", "gated"),
    [("seq2seq paper", "post", False), ("seq2seq modern", "pre", True)],
)
def test_every_step_has_a_name_in_the_order_of_the_computation(kind, norm_at, gated):
    seen = trace(loud(KINDS[kind]), **inputs(kind))
    wanted = names("encoder", 2, False, norm_at, gated) + names("decoder", 3, True, norm_at, gated)
    assert list(seen) == [*wanted, "head.logits"]
    assert torch.equal(seen["head.logits"], seen.output.logits)
    assert all(not value.requires_grad for value in seen.values())


def test_a_trace_can_be_narrowed_and_says_what_it_has():
    seen = trace(loud(KINDS["seq2seq paper"]), only="decoder.*.cross.weights", **inputs("seq2seq"))
    assert list(seen) == [f"decoder.{i}.cross.weights" for i in range(3)]
    assert seen["decoder.1.cross.weights"].shape == (2, 4, 18, 20)
    with pytest.raises(KeyError, match=r"encoder\.0\.cross\.weights.*decoder\.0\.cross\.weights"):
        seen["encoder.0.cross.weights"]


def check_weights(kind: str) -> None:
    """Rows sum to 1 (to 0 where there is nothing to see), and weights · v is the context."""
    model = loud(KINDS[kind])
    seen = trace(model, **inputs(kind, padded=True))
    for name in [n for n in seen if n.endswith(".weights")]:
        weights, place = seen[name], name.removesuffix("weights")
        sums = weights.sum(-1)
        assert (((sums - 1).abs() < 1e-10) | (sums == 0)).all(), name
        v = seen[place + "v"]
        v = v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
        context = (weights @ v).transpose(1, 2).flatten(2)
        torch.testing.assert_close(seen[place + "context"], context, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_shown_weights_are_those_that_make_the_context(kind):
    check_weights(kind)


def check_scores(name: str) -> None:
    """q kᵀ / √D, or times the scale that the config gives."""
    config = SPREAD[name]
    seen = trace(loud(config), **inputs("decoder"))
    given = config.decoder.blocks[0].attention.scale
    for i in range(2):
        place = f"decoder.{i}.attention."
        q, k = seen[place + "q"], seen[place + "k"]
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        wanted = torch.einsum("bhtd,bhsd->bhts", q, k) * (given or q.shape[-1] ** -0.5)
        torch.testing.assert_close(seen[place + "scores"], wanted, rtol=1e-10, atol=1e-10)
        weights = wanted.masked_fill(torch.ones(20, 20).triu(1).bool(), -torch.inf).softmax(-1)
        torch.testing.assert_close(seen[place + "weights"], weights, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["decoder paper", "decoder modern", "own scale"])
def test_shown_scores_are_scaled_products(name):
    check_scores(name)


def check_feed(kind: str) -> None:
    """up = x W₁ + b₁, gate = x W_g + b_g; inner is made of these and nothing else."""
    model = loud(KINDS[kind])
    seen = trace(model, **inputs(kind))
    for i, layer in enumerate(model.decoder.layers):
        place, feed = f"decoder.{i}.feed", layer.feed
        before = "cross" if layer.has_cross else "attention"
        x = seen[f"{place}_norm" if feed.gate is not None else f"decoder.{i}.{before}_norm"]
        up = F.linear(x, feed.up.weight, feed.up.bias)
        torch.testing.assert_close(seen[f"{place}.up"], up, rtol=1e-10, atol=1e-10)
        inner = up.relu()
        if feed.gate is not None:
            gate = F.linear(x, feed.gate.weight, feed.gate.bias)
            torch.testing.assert_close(seen[f"{place}.gate"], gate, rtol=1e-10, atol=1e-10)
            inner = gate * gate.sigmoid() * up
        torch.testing.assert_close(seen[f"{place}.inner"], inner, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["decoder paper", "decoder modern", "seq2seq paper"])
def test_shown_feed_forward_values_are_those_before_and_after_the_activation(kind):
    check_feed(kind)


def check_looking(kind: str) -> None:
    """The same numbers with and without a listener, to the bit where the layout is the same."""
    model = loud(KINDS[kind])
    with torch.no_grad():  # as in a trace: with gradients, another kernel may run
        plain = model(**inputs(kind)).logits
    assert torch.equal(trace(model, **inputs(kind)).output.logits, plain)
    padded = inputs(kind, padded=True)
    mask = padded.get("decoder_attention_mask", padded["attention_mask"]).bool()
    quiet, heard = model(**padded).logits, trace(model, **padded).output.logits
    torch.testing.assert_close(heard[mask], quiet[mask], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_listening_changes_no_number(kind):
    check_looking(kind)


def test_nothing_is_recorded_or_computed_when_nobody_listens(monkeypatch):
    model = loud(KINDS["decoder paper"])
    seen = trace(model, **inputs("decoder"))
    before = len(seen)

    def fail(*_args, **_options):
        raise AssertionError("attention weights computed although nobody listens")

    monkeypatch.setattr(full, "attention_weights", fail)
    monkeypatch.setattr(full, "attention_scores", fail)
    assert model(**inputs("decoder")).logits.isfinite().all()
    assert len(seen) == before
    assert not taps.listening()
    with pytest.raises(AssertionError, match="nobody listens"):
        trace(model, **inputs("decoder"))  # so the check above can fail
    assert not taps.listening(), "an error left the listener in place"


def test_listeners_nest_and_the_outer_one_comes_back():
    model, heard = loud(KINDS["decoder paper"]), []
    with listen(lambda name, x: heard.append(f"outer {name}")):
        with listen(lambda name, x: heard.append(f"inner {name}")):
            model(**inputs("decoder"))
        assert all(h.startswith("inner") for h in heard)
        model(**inputs("decoder"))
        assert heard[-1] == "outer head.logits"


@torch.no_grad()
def check_patching(kind: str) -> None:
    """Noise put at any tap reaches the logits; the same value put back changes nothing."""
    model = loud(KINDS[kind])
    plain = model(**inputs(kind)).logits
    for target in trace(model, **inputs(kind)):
        hits = []

        def patch(name, x, target=target, hits=hits):
            if name != target:
                return None
            hits.append(name)
            return x + torch.randn_like(x)

        with listen(patch):
            noisy = model(**inputs(kind)).logits
        assert hits == [target]
        assert (noisy - plain).abs().max() > 1e-6, f"a patch of {target} is ignored"
        with listen(lambda name, x, target=target: x.clone() if name == target else None):
            same = model(**inputs(kind)).logits
        torch.testing.assert_close(same, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "kind", ["seq2seq paper", "decoder paper", "decoder modern", "encoder modern"]
)
def test_a_patch_at_any_tap_reaches_the_logits(kind):
    check_patching(kind)


@torch.no_grad()
def check_patched_scores(kernel: str) -> None:
    """Equal scores: the mean of the values that the mask allows, not of all. Weights put there as
    well are given those of the new scores, and have the last word."""
    model, given = loud(KINDS["decoder modern"]), inputs("decoder", padded=True)
    sees = torch.ones(20, 20).tril().bool() & given["attention_mask"].bool()[:, None, :]  # B T S
    mean = sees / sees.sum(-1, keepdim=True).clamp_min(1).double()
    plain = trace(model, **given)
    for factor in (None, -0.5):
        seen: dict[str, torch.Tensor] = {}

        def patch(name, x, seen=seen, factor=factor):
            seen[name] = x
            if name == "decoder.1.attention.scores":
                return torch.full_like(x, 7.0)
            return x * factor if factor and name == "decoder.1.attention.weights" else None

        with listen(patch):
            model(**given, kernel=kernel)
        place = "decoder.1.attention."
        close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
        close(seen[place + "scores"], plain[place + "scores"])
        close(seen[place + "weights"], mean[:, None].expand(2, 6, 20, 20))
        v = seen[place + "v"].repeat_interleave(3, 1)
        context = torch.einsum("bts,bhsd->bthd", mean, v).flatten(2) * (factor or 1)
        close(seen[place + "context"], context)


@pytest.mark.parametrize("kernel", ["fast", "eager"])
def test_equal_scores_give_the_mean_of_the_values_that_may_be_seen(kernel):
    check_patched_scores(kernel)


@torch.no_grad()
def check_patched_feed() -> None:
    """A gate of zeros shuts the layer; a patched `up` goes through the rest of the formula."""
    feed = loud(KINDS["decoder modern"]).decoder.layers[0].feed
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    gate, up = feed.gate(x), feed.up(x)
    puts = {
        "gate": (torch.zeros_like(gate), torch.zeros(2, 5, 24, dtype=torch.float64)),
        "up": (up * 3 + 1, feed.down(gate * gate.sigmoid() * (up * 3 + 1))),
    }
    for step, (value, wanted) in puts.items():
        name = f"decoder.0.feed.{step}"
        with listen(lambda at, x, name=name, value=value: value if at == name else None):
            torch.testing.assert_close(feed(x), wanted, rtol=1e-10, atol=1e-10)


def test_a_patched_gate_or_value_goes_through_the_formula():
    check_patched_feed()


def test_uniform_weights_give_the_mean_of_the_values():
    model = loud(KINDS["encoder modern"])
    seen: dict[str, torch.Tensor] = {}

    def patch(name, x):
        seen[name] = x
        return torch.full_like(x, 1 / 20) if name == "encoder.1.attention.weights" else None

    with torch.no_grad(), listen(patch):
        model(**inputs("encoder"))
    mean = seen["encoder.1.attention.v"].mean(2).repeat_interleave(3, 1).flatten(1)
    context = seen["encoder.1.attention.context"]
    torch.testing.assert_close(context, mean[:, None].expand_as(context))


@pytest.mark.every(3)
@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
@pytest.mark.parametrize("kind", ["seq2seq paper", "decoder modern"])
def test_a_model_compiles_to_one_graph_without_its_taps(kind, padded):
    model, given = loud(KINDS[kind]), inputs(kind, padded)
    mask = given.get("decoder_attention_mask", given.get("attention_mask"))
    real = slice(None) if mask is None else mask.bool()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        out, wanted = compiled(**given).logits, model(**given).logits
    torch.testing.assert_close(out[real], wanted[real], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("route", ROUTES)
def test_gradients_flow_to_every_parameter(route):
    for kind, config in KINDS.items():
        model = loud(config)
        given = inputs(kind, padded=route == "packed")
        model(
            **given, kernel="eager" if route == "eager" else "fast"
        ).logits.square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, f"{kind}: {name} is not used"
            assert parameter.grad.abs().max() > 1e-6 or name.endswith("qkv.bias"), name
