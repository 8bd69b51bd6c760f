"""Keys and values in eight bits: how far off they are, how small, and that all else stays."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.config import LMHead
from allformer.core.states import Growing, Int8, in_int8
from allformer.core.states.int8 import quantised, widened
from allformer.errors import ConfigError
from allformer.generate.generate import generate
from allformer.generate.prefix import Prefix
from tests.models import KINDS, PAD, SPREAD, left_padding, loud, restless, tokens

OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "eos_token_id": None, "suppress_tokens": [PAD]}


@cache
def model(kind: str) -> Any:
    if kind == "seq2seq":
        head = LMHead(tied=False, bias=True)
        return restless(replace(KINDS["seq2seq paper"], head=head), seed=1, end=-9.0)
    wanted = {"gpt2": KINDS["decoder modern"], "llama": SPREAD["rotary"]}[kind]
    net = loud(replace(wanted, head=LMHead(tied=False)), seed=3)
    with torch.no_grad():
        net.decoder.source.embedding.weight.mul_(0.5)
    return net


def check_error(dtype: torch.dtype, group: int) -> None:
    """No number is off by more than half a step of its own group, whatever its neighbours."""
    x = torch.randn(2, 3, 7, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, 0, 1] *= 1000  # one token's large numbers
    x[0, 1, :, 5] *= 50  # one channel's
    x[1, 2, 3] = 0
    x = x.to(dtype)
    q, scale = quantised(x, group)
    assert q.dtype == torch.int8
    assert scale.shape == (2, 3, 7, 64 // group)
    steps = x.double().view(2, 3, 7, -1, group) / scale.double().clamp_min(1e-99)[..., None]
    assert ((steps.view(x.shape) - q).abs() <= 0.5001).all()
    again = widened(q, scale)
    assert again.dtype == dtype
    largest = x.double().view(2, 3, 7, -1, group).abs().amax(-1, keepdim=True)
    bound = (largest / 254).expand(2, 3, 7, -1, group).reshape(x.shape)
    # what is stored in `dtype` is rounded to it once more: the scale, and the number itself
    fine = torch.finfo(dtype).eps * x.double().abs()
    assert ((again.double() - x.double()).abs() <= bound * 1.001 + fine).all()
    assert not again[1, 2, 3].any()


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_number_is_off_by_more_than_half_a_step_of_its_group(dtype, group):
    check_error(dtype, group)


def test_a_head_that_groups_do_not_divide_has_one_scale():
    q, scale = quantised(torch.tensor([0.5, -1.27, 0.0]))
    assert q.tolist() == [50, -127, 0]
    torch.testing.assert_close(scale, torch.tensor([0.01]))


def held(state: Any) -> int:
    return sum(x.nbytes for x in (state._keys, state._values))


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 0.29), (torch.bfloat16, 0.54)])
def test_the_memory_really_falls(dtype, share):
    k = torch.randn(1, 4, 64, 128).to(dtype)
    wide, narrow = Growing(), Int8()
    wide.update(k, k, None)
    narrow.update(k, k, None)
    assert held(narrow._keys) + held(narrow._values) <= share * held(wide)


class Reader:
    """Reads a text in pieces into a cache of eight bits."""

    def __init__(self, kind: str, pad: int = 3) -> None:
        self.model, self.ids = model(kind), tokens(3, 20)
        self.mask = left_padding([20, 20 - pad, 20], 20)
        self.cache = in_int8(self.model.new_cache())

    def read(self, first: int, last: int) -> Tensor:
        ids, mask = self.ids[:, first:last], self.mask[:, :last]
        return self.model(ids, mask, cache=self.cache).logits


@torch.no_grad()
def check_pieces(kind: str) -> None:
    """What is remembered does not depend on what is read with it; cut and moved it stays."""
    whole, pieces = Reader(kind), Reader(kind)
    at_once = whole.read(0, 20)
    real = whole.mask.bool()
    said = [pieces.read(0, 9)]
    pieces.read(9, 20)
    pieces.cache.cut(9)
    said += [pieces.read(i, i + 1) for i in range(9, 14)]
    rows = torch.tensor([2, 0, 1])
    pieces.cache.select(rows)
    pieces.ids, pieces.mask = pieces.ids[rows], pieces.mask[rows]
    said.append(pieces.read(14, 20)[rows.argsort()])
    torch.testing.assert_close(torch.cat(said, 1)[real], at_once[real], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_in_pieces_cut_and_moved_the_same_is_remembered(kind):
    check_pieces(kind)


@torch.no_grad()
def test_the_logits_are_nearly_those_of_a_wide_cache():
    reader = Reader("llama", pad=0)
    wide = reader.model(reader.ids).logits
    off = (reader.read(0, 20) - wide).norm() / wide.norm()
    assert 0 < off < 0.02


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["gpt2", "llama", "seq2seq"])
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}, {"do_sample": True}], ids=str)
def test_every_search_remembers_in_eight_bits(kind, search, monkeypatch):
    added: list[int] = []
    update = Int8.update

    def counting(state: Int8, k: Tensor, *rest: Any) -> Any:
        added.append(k.shape[2])
        return update(state, k, *rest)

    monkeypatch.setattr(Int8, "update", counting)
    net, ids = model(kind), tokens(2, 12)
    out = generate(net, ids, cache="int8", **OPTIONS, **search)
    layers = len(net.decoder.order)
    assert added == [1 if kind == "seq2seq" else 12] * layers + [1] * layers * 7
    assert out.shape[1] == 8 + (1 if kind == "seq2seq" else 12)


def test_guesses_and_a_prefix_go_with_it():
    net, prefix, text = model("llama"), Prefix(), tokens(1, 10)
    for turn in range(2):
        text = torch.cat([text, tokens(1, 4, seed=turn)], 1)
        plain = generate(net, text, cache="int8", **OPTIONS)
        own = {"cache": "int8", "prompt_lookup_num_tokens": 4, "prefix": prefix}
        assert torch.equal(generate(net, text, **own, **OPTIONS), plain)
        text = plain
    assert prefix.reused == text.shape[1] - 8 - 4 - 1
    assert isinstance(prefix._cache[0].own, Int8)
    generate(net, text, prefix=prefix, **OPTIONS)  # wide, it knows nothing
    assert prefix.reused == 0


def test_what_it_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="cache='int3' is not a choice; try \"int8\""):
        generate(model("gpt2"), tokens(1, 4), cache="int3", **OPTIONS)
    with pytest.raises(ConfigError, match="use_cache=False leaves cache='int8' nothing to keep"):
        generate(model("gpt2"), tokens(1, 4), cache="int8", use_cache=False, **OPTIONS)
    with pytest.raises(ConfigError, match=r'cache_implementation=.quantized.*use cache="int8"'):
        generate(model("gpt2"), tokens(1, 4), cache_implementation="quantized", **OPTIONS)
