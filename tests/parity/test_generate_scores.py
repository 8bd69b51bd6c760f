"""Processors and warps give exactly transformers' scores in fp64; draws follow them."""

from __future__ import annotations

import math
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig as TheirConfig
from transformers import GPT2LMHeadModel

from allformer.core.model import DecoderOnlyModel
from allformer.generate.generate import generate
from allformer.generate.options import GenerationConfig, settle
from allformer.generate.processors import make_processors
from allformer.generate.warp import make_warps
from tests.models import VOCAB, tokens
from tests.parity.gpt2 import gpt2_twins

EOS, SOURCE, PROMPT, LONGEST = (3, 11), tokens(5, 8, seed=1), 4, 12

OPTIONS: list[dict[str, Any]] = [
    {"sequence_bias": [[[5], 2.5], [[6, 7], -1.5], [[8, 9, 10], -math.inf]]},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.4},
    {"encoder_repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 9},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 2},
    {"encoder_no_repeat_ngram_size": 8},
    {"bad_words_ids": [[4], [3], [5, 6], [7, 8, 9]]},
    {"min_length": 8},
    {"min_new_tokens": 3},
    {"forced_bos_token_id": 6},
    {"forced_eos_token_id": [3, 7]},
    {"remove_invalid_values": True},
    {"exponential_decay_length_penalty": (2, 1.3)},
    {"suppress_tokens": [1, 30, 99]},
    {"begin_suppress_tokens": [1, 30]},
    {"begin_suppress_tokens": [1, 30], "forced_bos_token_id": 6},
    {"renormalize_logits": True},
]
WARPS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 500},
    {"top_p": 0.0},
    {"top_p": 0.45},
    {"top_p": 0.95},
    {"min_p": 0.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"epsilon_cutoff": 0.04},
    {"eta_cutoff": 0.04},
    {"top_h": 0.4},
    {"top_h": 1.0},
    {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
]


def scores(rows: int = 5) -> Tensor:
    """Logits with a wide spread, a tie at the top of row 1 and some that are forbidden already."""
    x = 3 * torch.randn(rows, VOCAB, dtype=torch.float64)
    x[1, 4] = x[1, 20] = x[1].max() + 1
    x[2, 5:15] = -math.inf
    return x


def theirs(options: dict[str, Any], x: Tensor, ids: Tensor, prompt: int) -> Tensor:
    """transformers' whole list of processors."""
    config = TheirConfig(eos_token_id=list(EOS), max_length=LONGEST, **options)
    for name, value in config._get_default_generation_params().items():
        if getattr(config, name) is None:
            setattr(config, name, 0 if name == "top_k" else value)
    config._eos_token_tensor = torch.tensor(EOS)
    processors = oracle()._get_logits_processor(
        config, input_ids_seq_length=prompt, encoder_input_ids=SOURCE, device="cpu"
    )
    assert len(processors) >= 1
    return processors(ids, x.clone())


@cache
def oracle() -> GPT2LMHeadModel:
    return gpt2_twins(0)[1]


def mine(options: dict[str, Any], x: Tensor, ids: Tensor, prompt: int) -> Tensor:
    g = settle(GenerationConfig(top_k=0), options=options)
    rows = torch.arange(len(SOURCE))
    processors = make_processors(
        g, prompt=prompt, longest=LONGEST, eos=EOS, source=SOURCE, vocab=VOCAB
    )
    for process in processors:
        x = process(ids, x, rows)
    if g.do_sample:
        for warp in make_warps(g, keep=1 if g.num_beams == 1 else 1 + len(EOS)):
            x = warp(x)
    return x.log_softmax(-1) if g.renormalize_logits else x


def same(options: dict[str, Any], x: Tensor, ids: Tensor, prompt: int) -> bool:
    """Bit for bit; says whether anything was done at all."""
    want, got = theirs(options, x, ids, prompt), mine(options, x, ids, prompt)
    assert got.dtype == torch.float64
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.nan_to_num())
    return not torch.equal(got, x)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_processors_give_exactly_transformers_scores(options):
    acted = 0
    for seed in range(3):
        x = scores()
        if "remove_invalid_values" in options:
            x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
        for length, prompt in ((1, 1), (4, 4), (7, 4), (11, 4)):
            ids = torch.cat([SOURCE, tokens(5, 8, seed)], dim=1)[:, -length:]
            ids[0] = torch.tensor([5, 6, 8, 9, 5, 6, 7, 8, 9, 8, 9])[-length:]
            acted += same(options, x, ids, prompt)
    too_long = max(v for v in (*options.values(), 0) if isinstance(v, int)) >= 8
    assert acted or (too_long and "min_length" not in options), "nothing was tested"


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("options", WARPS, ids=str)
def test_warps_give_exactly_transformers_distributions(options, beams):
    options = options | {"do_sample": True, "num_beams": beams}
    acted = 0
    for _ in range(5):
        acted += same(options, scores().log_softmax(-1), tokens(5, 4), PROMPT)
    assert acted or options.get("top_k") == 500 or options.get("min_p") == 0.0


def narrowed(ours: DecoderOnlyModel, ids: Tensor, options: dict[str, Any]) -> Tensor:
    """The exact probabilities of the next token, V."""
    with torch.no_grad():
        logits = ours(ids).logits[:, -1]
    for warp in make_warps(settle(GenerationConfig(), options=options), keep=1):
        logits = warp(logits)
    return logits.softmax(-1)[0]


def chi_square(seen: Tensor, expected: Tensor) -> float:
    """In units of its own spread: below 4 for draws that follow `expected`."""
    there = expected > 0
    assert seen[~there].sum() == 0
    free = int(there.sum()) - 1
    assert free >= 8
    chi = ((seen - expected)[there] ** 2 / expected[there]).sum().item()
    return (chi - free) / math.sqrt(2 * free)


DRAWN = {"do_sample": True, "temperature": 1.8, "top_k": 15, "top_p": 0.95}


def test_draws_follow_the_narrowed_distribution():
    ours, _ = gpt2_twins(3)
    ids, draws = tokens(1, 9, seed=2), 20_000
    drawn = generate(
        ours, ids, max_new_tokens=1, num_return_sequences=draws, **DRAWN,
        generator=torch.Generator().manual_seed(5),
    )[:, -1]  # fmt: skip
    seen = torch.bincount(drawn, minlength=VOCAB).double()
    p = narrowed(ours, ids, DRAWN)
    assert chi_square(seen, p * draws) < 4
    other = narrowed(ours, ids, DRAWN | {"temperature": 1.7})
    assert chi_square(seen, other * draws) > 4, "the test could not tell"


def test_beams_are_drawn_without_putting_back():
    """With one new token, K beams are the first K of 2K draws, all different."""
    ours, _ = gpt2_twins(3)
    ids, draws, beams = tokens(1, 2, seed=2), 4_000, 3
    drawn = generate(
        ours, ids.expand(draws, -1), max_new_tokens=1, num_beams=beams, eos_token_id=None,
        num_return_sequences=beams, **DRAWN, generator=torch.Generator().manual_seed(5),
    )[:, -1].view(draws, beams)  # fmt: skip
    assert all(len(set(row)) == beams for row in drawn.tolist())
    seen = torch.bincount(drawn.flatten(), minlength=VOCAB).double()
    p = narrowed(ours, ids, DRAWN)
    # p(i is among K drawn without putting back), over the orders in which they can come
    inside = torch.zeros_like(p)
    there = p.nonzero()[:, 0].tolist()
    for order in permutations(there, beams):
        chance, left = 1.0, 1.0
        for i in order:
            chance, left = chance * float(p[i]) / left, left - float(p[i])
        inside[list(order)] += chance
    assert inside.sum().item() == pytest.approx(beams)
    assert chi_square(seen, inside * draws) < 4
    assert chi_square(seen, p * beams * draws) > 4, "the test could not tell"


def test_a_generator_makes_draws_repeatable_and_leaves_the_global_one_alone():
    ours, _ = gpt2_twins(2)
    ids = tokens(3, 6)

    def draw(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return generate(
            ours, ids, max_new_tokens=12, do_sample=True, top_k=0, temperature=2.0,
            generator=generator,
        ).tolist()  # fmt: skip

    before = torch.get_rng_state()
    first = draw(1)
    assert draw(1) == first
    assert draw(2) != first
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_row_draws_does_not_depend_on_when_its_neighbours_end():
    ours, _ = gpt2_twins(2)
    ids = tokens(3, 6)
    common = {"do_sample": True, "top_k": 0, "temperature": 2.0, "max_new_tokens": 20}

    def draw(ends: list[int]) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return generate(ours, ids, eos_token_id=ends, generator=generator, **common)

    free, ended = draw([3]), draw([3, *range(10, 16)])
    stops = []
    for row, whole in zip(ended.tolist(), free.tolist(), strict=True):
        said = [i for i in row[6:] if i != 0]
        assert said == whole[6 : 6 + len(said)]
        stops.append(len(said))
    assert len(set(stops)) == 3
