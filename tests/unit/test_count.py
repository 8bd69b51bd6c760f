"""Counting by formula = counting what is built, to the last parameter and operation."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from allformer.config import (
    Attention,
    EncoderDecoder,
    Features,
    Full,
    LMHead,
    Mixer,
    Tokens,
    Window,
    XLRelative,
)  # fmt: skip
from allformer.config.remix import remix
from allformer.core.model import build
from allformer.count import count, with_full_attention
from allformer.families import preset
from allformer.families.original import transformer
from tests.models import KINDS, PAPER, SPREAD, decoder_only, tokens


def built(config) -> int:
    return sum(p.numel() for p in build(config, device="meta").parameters())


def check_parameters(name: str) -> None:
    table = count(SPREAD[name])
    assert table.parameters == built(SPREAD[name])
    assert table.parameters == sum(part.parameters for part in table.parts)
    assert f"{table.parameters:,}" in str(table)


@pytest.mark.parametrize("name", SPREAD)
def test_the_formula_counts_what_is_built(name):
    check_parameters(name)


def test_the_known_models_have_their_known_sizes():
    assert count(preset("original-base")).parameters == 63_082_496
    assert count(preset("original-base")).parameters == built(preset("original-base"))
    assert count(preset("original-big")).parameters == 214_245_376
    assert count(preset("original-big")).parameters == built(preset("original-big"))


def test_the_notes_model_has_59_508_496_parameters():
    # Two vocabularies of 10,000, base sizes, an output layer of its own with a bias.
    config = transformer(
        512, 8, 2048, 6, vocab=10_000, target_vocab=10_000, head=LMHead(tied=False, bias=True)
    )
    assert count(config).parameters == built(config) == 59_508_496


def test_the_base_model_is_the_sum_by_hand():
    d, f, v = 512, 2048, 37_000
    attention, feed, norm = 4 * d * d + 4 * d, 2 * d * f + f + d, 2 * d
    encoder, decoder = attention + feed + 2 * norm, 2 * attention + feed + 3 * norm
    wanted = {
        "encoder embedding": v * d,
        "encoder self-attention": 6 * attention,
        "decoder cross-attention": 6 * attention,
        "decoder feed-forward": 6 * feed,
        "decoder norms": 6 * 3 * norm,
    }
    table = count(preset("original-base"))
    found = {part.name: part.parameters for part in table.parts}
    assert {name: found[name] for name in wanted} == wanted
    assert table.parameters == v * d + 6 * encoder + 6 * decoder


# --- operations -----------------------------------------------------------------------------------


def check_flops(kind: str, n: int) -> None:
    """Against torch's own counter, exactly.

    The eager kernel computes the whole n × n square; the formula counts only the part on and below
    the diagonal, (n + 1)/2 keys for each query on average, since a causal kernel needs no more.
    """
    config = KINDS[kind]
    model, table = build(config, seed=0).eval(), count(config, length=n)
    inputs = {"input_ids": tokens(1, n), "kernel": "eager"}
    if isinstance(config, EncoderDecoder):
        inputs["decoder_input_ids"] = tokens(1, n, 1)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs)
    upper = 0
    if not kind.startswith("encoder"):
        for block in config.decoder.blocks:
            width = block.attention.heads * block.attention.size(config.decoder.dim)
            far = getattr(block.attention.mixer, "left", n)  # what a window spares
            upper += 2 * 2 * width * (n * (n - 1) // 2 + sum(max(0, i - far) for i in range(n)))
    gap = counter.get_total_flops() - n * table.flops_per_token - upper
    assert 0 <= gap < (n if kind == "decoder window" else 1)  # a window's average is rounded down


@pytest.mark.parametrize("n", [1, 7, 48])
@pytest.mark.parametrize("kind", KINDS)
def test_operations_agree_with_torchs_counter(kind, n):
    check_flops(kind, n)


def test_attention_grows_with_the_square_and_the_rest_with_the_length():
    base = preset("original-base")
    small, large = count(base, length=512), count(base, length=4096)
    shares = [count(base, length=n).attention_share for n in (64, 512, 4096, 65_536)]
    assert shares == sorted(shares)
    assert shares[0] < 0.03
    assert shares[-1] > 0.85
    for part in small.parts:
        twin = next(p for p in large.parts if p.name == part.name)
        assert twin.flops - twin.quadratic == part.flops - part.quadratic
        assert twin.quadratic >= 7.9 * part.quadratic


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("encoder")])
def test_the_cache_holds_what_the_formula_says(kind):
    config = KINDS[kind]
    model, n = build(config, seed=0).eval(), 32  # room is made in steps of 32
    cache = model.new_cache()
    with torch.no_grad():
        if isinstance(config, EncoderDecoder):
            model.step(tokens(1, n), cache, model.encode(tokens(1, 5)))
        else:
            model(tokens(1, n), cache=cache)
    held = sum(
        x.numel() * x.element_size()
        for layer in cache.layers
        for x in (layer.own._keys, layer.own._values)
    )
    if kind == "decoder window":  # one layer of three remembers what is within reach alone
        block = config.decoder.blocks[1].attention
        held += (n - block.mixer.left) * block.groups * block.size(config.decoder.dim) * 4 * 2
    assert held == n * count(config, dtype_bytes=4).cache_bytes_per_token
    assert count(config, dtype_bytes=2).cache_bytes_per_token * 2 * n == held


def test_the_table_goes_to_json_with_its_parts():
    data = json.loads(json.dumps(count(preset("original-tiny"), length=64).as_dict()))
    assert data["parameters"] == sum(part["parameters"] for part in data["parts"])
    assert data["length"] == 64
    assert data["parameter_bytes"] == 2 * data["parameters"]


def test_a_word_more_costs_one_row():
    wide = SPREAD["two vocabularies"]
    more = replace(wide, encoder=replace(wide.encoder, source=Tokens(20)))
    assert count(more).parameters - count(wide).parameters == wide.encoder.dim


@dataclass(frozen=True)
class Summing(Mixer):
    """A mixer of a user's that meets sums instead of keys, and remembers nothing else."""

    def flops(self, attention, dim, n, causal):
        return 4 * attention.heads * attention.size(dim) ** 2

    def cached(self, attention, dim):
        return 0


def test_a_mixer_says_its_work_and_its_memory_where_queries_meet_no_keys():
    own = decoder_only(replace(PAPER, attention=Attention(4, mixer=Summing())))
    plain = decoder_only()
    for length in (10, 1000):
        table = count(own, length)
        work = sum(part.quadratic for part in table.parts)
        assert work == len(own.decoder.blocks) * 4 * 4 * 6**2
        assert table.cache_bytes_per_token == 0
        # what training keeps are the projections, whatever a mixer remembers of them
        assert table.activation_bytes == count(plain, length).activation_bytes
    assert count(plain).cache_bytes_per_token == len(plain.decoder.blocks) * 2 * 24 * 2


def test_what_generating_remembers_grows_with_the_tokens_or_stays_within_the_window():
    full = count(decoder_only(), 4096)
    assert full.state_bytes == 4096 * full.cache_bytes_per_token
    windowed = remix(decoder_only(), Window(64))
    assert count(windowed, 32).state_bytes == 32 * full.cache_bytes_per_token
    assert {count(windowed, n).state_bytes for n in (64, 4096, 1 << 20)} == {
        64 * full.cache_bytes_per_token
    }
    assert with_full_attention(windowed) == decoder_only()
    assert with_full_attention(decoder_only()) is None


def held(state: object) -> int:
    """Bytes of all tensors in a state."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    parts = state if isinstance(state, tuple) else getattr(state, "__dict__", state).values()
    return sum(held(x) for x in parts if isinstance(x, torch.Tensor | dict | tuple))


@pytest.mark.parametrize(
    "mixer", [Full(), Window(32), Window(16, dilation=2), Features("elu"), Features("favor", 48)]
)
def test_the_formula_says_what_the_states_hold(mixer):
    check_state(remix(decoder_only(), mixer))


def test_the_formula_says_what_a_memory_of_segments_holds():
    tree = decoder_only(position=None, relative=XLRelative(memory=40))
    check_state(tree, beside=2 * 24)  # and what each layer has just read: one token
    assert count(tree, 1 << 20).state_bytes == count(tree, 40).state_bytes
    assert count(tree, 1 << 20).flops_per_token == count(tree, 120).flops_per_token
    whole = with_full_attention(tree)
    assert whole == replace(tree, decoder=replace(tree.decoder, relative=XLRelative()))
    assert count(tree, 1 << 20).activation_bytes == count(tree, 40).activation_bytes


def check_state(tree, beside: int = 0) -> None:
    model = build(tree, seed=0).eval()
    cache = model.new_cache()
    with torch.no_grad():
        model.step(torch.randint(1, 10, (1, 95)), cache)
        model.step(torch.tensor([[1]]), cache)
    found = sum(held(layer.own) for layer in cache.layers)
    assert found == count(tree, 96, 4).state_bytes + 4 * beside
