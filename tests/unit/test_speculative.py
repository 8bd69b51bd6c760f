"""Guessing ahead: the tokens are those without it, whoever guesses and however badly."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.config import Attention, DynamicScaling, LMHead, Rotary, Window
from allformer.core.model import EncoderDecoderModel
from allformer.core.states import Cache
from allformer.errors import ConfigError
from allformer.generate import rows
from allformer.generate.decode import decode
from allformer.generate.drafts import Ngrams, after_ngrams
from allformer.generate.fixed import quickest
from allformer.generate.generate import generate
from allformer.generate.lean import LeanStepper
from allformer.generate.prefix import Prefix
from allformer.generate.request import Draw, Request
from allformer.generate.speculative import speculate
from allformer.generate.stop import Stop
from tests.models import (
    EOS,
    KINDS,
    MODERN,
    PAD,
    SPREAD,
    decoder_only,
    left_padding,
    loud,
    restless,
    right_padding,
    tokens,
)

CONFIGS = {
    "gpt2": KINDS["decoder modern"],
    "llama": SPREAD["rotary"],
    "window": decoder_only(replace(MODERN, attention=Attention(4, mixer=Window(5)))),
    "hashes": SPREAD["two streams"],
    "image": SPREAD["text and an image"],
    "paper": KINDS["seq2seq paper"],
    "t5": KINDS["seq2seq buckets"],
}
KINDS_HERE = [kind for kind in CONFIGS if kind != "image"]
NEW = 16
ROUGH = {"paper": 0.01}  # how far a guesser's weights are off
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"do_sample": True, "temperature": 0.7},
    "processed": {
        "do_sample": True, "num_return_sequences": 2, "top_p": 0.9, "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3, "bad_words_ids": [[5], [6, 7]], "min_new_tokens": 4,
    },
}  # fmt: skip


@cache
def model(kind: str) -> Any:
    if kind in ("paper", "t5"):
        head = LMHead(tied=False, bias=True)
        return restless(replace(CONFIGS[kind], head=head), seed=1, end=4.0)
    net = loud(replace(CONFIGS[kind], head=LMHead(tied=False)), seed=3)
    with torch.no_grad():
        net.decoder.source.embedding.weight.mul_(0.5)
    return net


@cache
def assistant(kind: str) -> Any:
    """A model that is often right, and often not."""
    net = deepcopy(model(kind))
    noise = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in net.parameters():
            rough = torch.randn(weight.shape, generator=noise, dtype=weight.dtype)
            weight.add_(ROUGH.get(kind, 0.03) * weight.std(unbiased=False) * rough)
    return net


def prompt(kind: str, count: int = 4) -> tuple[Tensor, Tensor]:
    """Rows that end at different places, and say some things twice."""
    lengths = [12, 7, 12, 5, 9, 12, 3, 8, 11, 12][:count]
    side = right_padding if kind in ("paper", "t5") else left_padding
    mask, ids = side(lengths, 12), tokens(count, 12, seed=4)
    ids[:, 8:] = ids[:, 4:8]
    return ids.where(mask.bool(), PAD), mask


def say(kind: str, search: str, seed: int = 0, count: int = 4, **options: Any) -> tuple[Any, float]:
    """What is said, and the next number that chance has."""
    ids, mask = prompt(kind, count)
    chance = torch.Generator().manual_seed(seed)
    usual = {"max_new_tokens": NEW, "pad_token_id": PAD, "suppress_tokens": [PAD]}
    found = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options = {**usual, **found, "eos_token_id": [EOS, 8, 21], **SEARCHES[search], **options}
    out = generate(model(kind), ids, mask, generator=chance, **options)
    return out, float(torch.rand(1, generator=chance))


def check_same(kind: str, search: str, count: int = 4, seed: int = 0, **who: Any) -> Any:
    """Tokens, scores and what chance has left are those of one token at a time."""
    plain, left = say(kind, search, seed, count)
    out, mine = say(kind, search, seed, count, **who)
    assert torch.equal(out.sequences, plain.sequences)
    assert mine == left
    for name in ("scores", "logits"):
        for a, b in zip(getattr(out, name), getattr(plain, name), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    return out.speculation


def check_guessed(kind: str, search: str, count: int = 4) -> None:
    """By a smaller model that is right now and then."""
    done = check_same(
        kind, search, count, assistant_model=assistant(kind), num_assistant_tokens=5,
        assistant_confidence_threshold=0.0,
    )  # fmt: skip
    assert 0 < done.accepted < done.proposed


@pytest.mark.every(4)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_smaller_model_guesses_and_nothing_changes(kind, search):
    check_guessed(kind, search)


@pytest.mark.every(4)
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_ngrams_guess_and_nothing_changes(kind, search):
    done = check_same(kind, search, prompt_lookup_num_tokens=4, max_matching_ngram_size=3)
    assert done.proposed


def test_on_a_cpu_guesses_go_the_lean_way_unless_rows_have_copies():
    assert isinstance(quickest(model("gpt2"), 10, 20, 5), LeanStepper)
    assert not isinstance(quickest(model("gpt2"), 10, 20, 5, copies=2), LeanStepper)


def test_an_image_is_guessed_as_well():
    ids = tokens(2, 6, vocab=20)
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": None}
    plain = generate(model("image"), ids, **options)
    assert torch.equal(generate(model("image"), ids, prompt_lookup_num_tokens=4, **options), plain)


@pytest.mark.parametrize("kind", ["llama", "paper"])
def test_rows_may_leave_while_others_are_guessed_for(kind, monkeypatch):
    monkeypatch.setattr(rows, "FEW", 0)
    check_guessed(kind, "drawn", count=10)
    check_same(kind, "greedy", count=10, prompt_lookup_num_tokens=3)


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
def test_who_is_never_wrong_needs_few_rounds(schedule):
    own = {"assistant_model": model("gpt2"), "assistant_confidence_threshold": 0.0}
    own |= {"num_assistant_tokens": 2, "num_assistant_tokens_schedule": schedule}
    plain, left = say("gpt2", "drawn", eos_token_id=None)
    out, mine = say("gpt2", "drawn", eos_token_id=None, **own)
    assert torch.equal(out.sequences, plain.sequences)
    assert mine == left
    done = out.speculation
    assert done.rate == 1.0
    assert done.rounds == {"constant": 6, "heuristic": 4}[schedule]  # 1 + 3 · 5; 1 + 3 + 5 + 7


def check_given_back() -> None:
    """Noise for what would have stood behind the end is as if it had never been drawn."""
    for seed in range(3):
        check_same("gpt2", "drawn", 1, seed, prompt_lookup_num_tokens=6)


def test_chance_behind_the_end_is_given_back():
    check_given_back()


def test_an_unsure_guesser_stops():
    own = {"assistant_model": assistant("gpt2"), "num_assistant_tokens": 8}
    bold = check_same("gpt2", "drawn", assistant_confidence_threshold=0.0, **own)
    shy = check_same("gpt2", "drawn", assistant_confidence_threshold=0.9, **own)
    assert shy.proposed < bold.proposed
    assert shy.rate > bold.rate


def test_the_assistants_own_options_hold_where_nobody_says_more():
    small = deepcopy(assistant("gpt2"))
    small.provenance = replace(
        small.provenance,
        generation={"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.0},
    )
    most = check_same("gpt2", "greedy", assistant_model=small)
    assert most.proposed <= 3 * (most.rounds - 1)
    less = check_same("gpt2", "greedy", assistant_model=small, num_assistant_tokens=1)
    assert less.proposed <= less.rounds - 1


def test_a_guesser_with_few_positions_falls_silent():
    whole = model("gpt2").config
    learned = replace(whole.decoder.position, length=20)
    small = replace(whole, decoder=replace(whole.decoder, position=learned))
    done = check_same("gpt2", "greedy", assistant_model=loud(small, seed=3))
    assert done.proposed


def test_with_a_prefix_what_was_tried_is_not_kept():
    prefix, text = Prefix(), tokens(1, 9)
    options: dict[str, Any] = {"max_new_tokens": 8, "suppress_tokens": [PAD], "eos_token_id": None}
    for turn in range(3):
        text = torch.cat([text, tokens(1, 4, seed=turn)], 1)
        plain = generate(model("window"), text, **options)
        guess = {"assistant_model": assistant("window"), "num_assistant_tokens": 4}
        assert torch.equal(
            generate(model("window"), text, prefix=prefix, **guess, **options), plain
        )
        assert len(prefix) == plain.shape[1] - 1
        text = plain
    assert prefix.reused == text.shape[1] - 8 - 4 - 1


class Hearing:
    def __init__(self) -> None:
        self.heard: list[list[int]] = []
        self.ended = False

    def put(self, value: Tensor) -> None:
        self.heard.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("count", [1, 4])
def test_a_streamer_hears_each_token_once_and_none_behind_the_end(count):
    heard = []
    for who in ({}, {"assistant_model": assistant("gpt2"), "num_assistant_tokens": 6}):
        streamer = Hearing()
        say("gpt2", "drawn", 2, count, streamer=streamer, **who)
        assert streamer.ended
        heard.append(streamer.heard)
    assert heard[0] == heard[1]


# --- the distribution, to the last fraction -------------------------------------------------------

QUARTERS = torch.tensor([[1, 3], [2, 2]])  # of the next token, by the last one
GUESSED = torch.tensor([[3, 1], [1, 3]])  # what the guesser thinks
SAID = 4


class Chain:
    """A model of two tokens, of which the last one alone matters; it counts what it has read."""

    def __init__(self, quarters: Tensor) -> None:
        self.logits = (quarters / 4).double().log()
        self.read: list[int] = []

    def prefill(self, ids: Tensor, state: Any) -> Tensor:
        return self.step(ids, state)

    def step(self, ids: Tensor, state: Any) -> Tensor:
        return self.verify(ids, state)[:, -1]

    def verify(self, ids: Tensor, state: Any) -> Tensor:
        self.read += ids[0].tolist()
        return self.logits[ids]

    def forget(self, count: int, state: Any) -> None:
        del self.read[len(self.read) - count :]


class Script(Draw):
    """Noise with which a token has exactly its quarters of four outcomes: token 0 comes out where
    E₀/(E₀ + E₁) < p₀."""

    def __init__(self, outcomes: tuple[int, ...]) -> None:
        super().__init__(1)
        self.outcomes, self.at = outcomes, 0

    def noise(self, scores: Tensor) -> Tensor:
        u = (self.outcomes[self.at % len(self.outcomes)] + 0.5) / 4
        self.at += 1
        return torch.tensor([[u, 1 - u]])

    def take_back(self, draws: int) -> None:
        self.at -= draws


class Guesser:
    """Draws from its own chain with the noise that it is given."""

    most = 3

    def propose(self, written: Any, count: int, noise: Tensor | None) -> Tensor:
        last, out = written.ids[:, -1], []
        for i in range(min(count, self.most)):
            assert noise is not None
            last = (GUESSED[last] / noise[:, i]).argmax(-1)
            out.append(last)
        return torch.stack(out, 1)

    def told(self, right: int, guessed: int) -> None: ...
    def select(self, rows: Tensor) -> None: ...


def check_distribution(who: str) -> None:
    """All 4⁴ courses that chance can take: each text comes out as often as it is likely."""
    times: dict[tuple[int, ...], int] = {}
    wrong = 0
    for outcomes in product(range(4), repeat=SAID):
        chain, draw = Chain(QUARTERS), Script(outcomes)
        request = Request(torch.tensor([SAID]), Stop(), draw=draw)
        draft: Any = Guesser() if who == "model" else Ngrams(3)
        state: Any = SimpleNamespace(cache=Cache([]))
        found = speculate(chain, state, torch.tensor([[0, 1, 0]]), request, draft)
        text = found.sequences[0].tolist()
        assert chain.read == text[: len(chain.read)], "something wrong was left in the cache"
        assert draw.at == SAID
        times[tuple(text[3:])] = times.get(tuple(text[3:]), 0) + 1
        assert found.speculation is not None
        wrong += found.speculation.proposed - found.speculation.accepted
    assert wrong > 100, "nothing was tried that could go wrong"
    for text in product(range(2), repeat=SAID):
        likely, last = 1, 0
        for token in text:
            likely, last = likely * int(QUARTERS[last, token]), token
        assert times.get(text, 0) == likely


@pytest.mark.parametrize("who", ["model", "ngrams"])
def test_what_is_drawn_is_as_likely_as_without_guesses(who):
    check_distribution(who)


def test_one_token_at_a_time_is_as_likely_too():
    """The measure itself: `decode` has the same distribution under the same outcomes."""
    for outcomes in product(range(4), repeat=2):
        request = Request(torch.tensor([2]), Stop(), draw=Script(outcomes))
        state: Any = SimpleNamespace(cache=Cache([]))
        text = decode(Chain(QUARTERS), state, torch.tensor([[0]]), request).sequences[0, 1:]
        first = int(outcomes[0] >= QUARTERS[0, 0])
        assert text.tolist() == [first, int(outcomes[1] >= QUARTERS[first, 0])]


# --- n-grams --------------------------------------------------------------------------------------


def check_ngrams() -> None:
    texts = [[5, 6, 7, 5, 6, 8, 5, 6], [5, 6, 7, 9, 6, 8, 5, 6]]  # the latest of two; two beat one
    texts += [[1, 2, 3, 4, 9, 3, 7, 3], [1, 2, 3, 4, 5, 6, 7, 8]]  # one, where two are new; none
    text = torch.tensor(texts)
    start, found = after_ngrams(text, 2)
    assert start.tolist()[:3] == [5, 2, 6]
    assert found.tolist() == [True, True, True, False]
    assert after_ngrams(text, 4)[0].tolist()[0] == 5
    assert after_ngrams(text[:, :1], 2)[1].tolist() == [False] * 4


def test_the_latest_place_with_most_of_the_last_tokens_is_found():
    check_ngrams()


def check_guesses() -> None:
    def written(ids: list[list[int]]) -> Any:
        return SimpleNamespace(ids=torch.tensor(ids), whose=torch.arange(len(ids)))

    guess = Ngrams(5)
    assert guess.propose(written([[7, 8, 9, 1, 7, 8]]), 9, None).tolist() == [[9, 1, 7, 8, 9]]
    assert guess.propose(written([[7, 8, 9, 1, 7, 8]]), 3, None).tolist() == [[9, 1, 7]]
    assert guess.propose(written([[1, 2, 3]]), 9, None).shape == (1, 0)
    source = torch.tensor([[4, 5, 6, 7, 0]])
    assert Ngrams(3, source=source).propose(written([[2, 5]]), 9, None).tolist() == [[6, 7, 0]]


def test_what_repeats_is_guessed_to_go_on_repeating():
    check_guesses()


# --- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("gpt2", {"num_beams": 2}, "cannot guess for num_beams=2; set num_beams=1"),
        ("gpt2", {"use_cache": False}, "needs the cache"),
        ("linear", {}, "what Recurrent has read cannot be taken back"),
        ("segments", {}, "what SegmentMemory has read cannot be taken back"),
    ],
)
def test_where_nothing_can_be_tried_out_it_says_so(kind, options, message):
    net = model(kind) if kind in CONFIGS else loud(SPREAD[kind])
    for who in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant("gpt2")}):
        with pytest.raises(ConfigError, match=message):
            generate(net, tokens(1, 5), max_new_tokens=3, **who, **options)


def test_angles_that_go_by_the_longest_text_of_a_call_allow_no_other_reading():
    tree = SPREAD["rotary squeezed"]
    turned = replace(tree.decoder, relative=Rotary(99.0, DynamicScaling(4.0, 12)))
    net = loud(replace(tree, decoder=turned))
    aids = {"prefix": Prefix(), "assistant_model": net, "prompt_lookup_num_tokens": 3}
    for name, value in aids.items():
        with pytest.raises(ConfigError, match=f"{name}: with DynamicScaling the longest text"):
            generate(net, tokens(1, 5), max_new_tokens=3, **{name: value})


def test_the_assistant_must_fit():
    with pytest.raises(ConfigError, match="assistant_model=EncoderDecoderModel, but the model is"):
        generate(model("gpt2"), tokens(1, 5), assistant_model=model("paper"), max_new_tokens=3)
    other = decoder_only(source=replace(KINDS["decoder paper"].decoder.source, vocab=40))
    with pytest.raises(ConfigError, match="vocabulary of 40, the model one of 37"):
        generate(model("gpt2"), tokens(1, 5), assistant_model=loud(other), max_new_tokens=3)
    both = {"assistant_model": assistant("gpt2"), "prompt_lookup_num_tokens": 3}
    with pytest.raises(ConfigError, match="give one of them"):
        generate(model("gpt2"), tokens(1, 5), max_new_tokens=3, **both)
    assert isinstance(model("paper"), EncoderDecoderModel)
