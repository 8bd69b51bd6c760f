"""A beginning that was read is not read again, and nobody can tell from what is said."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.config import Attention, LMHead, Window
from allformer.core.model import DecoderOnlyModel
from allformer.errors import ConfigError
from allformer.generate.generate import generate
from allformer.generate.prefix import Prefix, shared
from tests.models import KINDS, MODERN, PAD, SPREAD, decoder_only, left_padding, loud, tokens
from tests.recorded import by_graphs

CONFIGS = {
    "gpt2": KINDS["decoder modern"],
    "llama": SPREAD["rotary"],
    "linear": SPREAD["linear"],
    "hashes": SPREAD["two streams"],
    "window": decoder_only(replace(MODERN, attention=Attention(4, mixer=Window(5)))),
}
NEW = 6


@cache
def model(kind: str) -> Any:
    net = loud(replace(CONFIGS[kind], head=LMHead(tied=False)), seed=3)
    with torch.no_grad():
        net.decoder.source.embedding.weight.mul_(0.5)
    return net


class Counted:
    """How many tokens a model reads, of each row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens = 0
        step = DecoderOnlyModel.step

        def counting(net: Any, ids: Tensor, *args: Any, **how: Any) -> Tensor:
            self.tokens += ids.shape[1]
            return step(net, ids, *args, **how)

        monkeypatch.setattr(DecoderOnlyModel, "step", counting)


def say(kind: str, ids: Tensor, prefix: Prefix | None = None, **options: Any) -> Tensor:
    usual = {"max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": PAD}
    options = {**usual, "suppress_tokens": [PAD], **options}  # said, it would be read as padding
    return generate(model(kind), ids, prefix=prefix, **options)


def check_conversation(kind: str, reused: bool) -> None:
    """Each turn says what it would say alone; all but its own words is known already."""
    prefix, text = Prefix(), tokens(2, 9)
    for turn in range(3):
        before = text.shape[1]
        text = torch.cat([text, tokens(2, 4, seed=turn)], 1)
        alone = say(kind, text)
        assert torch.equal(say(kind, text, prefix), alone), turn
        assert prefix.reused == (before - 1 if turn and reused else 0)
        assert len(prefix) == alone.shape[1] - 1
        text = alone


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_conversation_says_what_it_says_without(kind):
    check_conversation(kind, reused=kind != "hashes")


@pytest.mark.parametrize("kind", ["llama", "window"])
def test_on_the_fast_way_the_same_is_kept(kind):
    with by_graphs(2):
        check_conversation(kind, reused=True)
        check_rows()


def test_what_is_kept_is_not_read_again(monkeypatch):
    prefix, ids = Prefix(), tokens(1, 20)
    first = say("llama", ids, prefix)
    longer = torch.cat([first, tokens(1, 3, seed=1)], 1)
    counted = Counted(monkeypatch)
    say("llama", longer, prefix)
    assert counted.tokens == 1 + 3 + NEW - 1  # the last token said before had not been read
    counted.tokens = 0
    say("llama", longer, prefix)  # once more: the last token of a prompt is always read
    assert counted.tokens == 1 + NEW - 1


def check_rows() -> None:
    """Rows go on from whichever row began alike; one beginning serves many."""
    prefix, ids = Prefix(), tokens(3, 12)
    say("gpt2", ids, prefix)
    other = torch.cat([ids[[2, 0, 2, 1]], tokens(4, 3, seed=5)], 1)
    other[3, 10] = ids[1, 10] + 1 if ids[1, 10] < 30 else 4
    assert torch.equal(say("gpt2", other, prefix), say("gpt2", other))
    assert prefix.reused == 10
    one = Prefix()
    say("gpt2", ids[:1], one)
    many = torch.cat([ids[:1].expand(3, -1), tokens(3, 4, seed=6)], 1)
    assert torch.equal(say("gpt2", many, one), say("gpt2", many))
    assert one.reused == 12
    moved = many[[2, 0, 1]]
    for _ in range(2):  # once more: what follows the last token must be asked for all the same
        assert torch.equal(say("gpt2", moved, one), say("gpt2", moved))
        assert one.reused == 15


def test_rows_may_move_leave_and_multiply():
    check_rows()


def check_padding() -> None:
    """Where a row begins later, its tokens stand elsewhere: only the same columns are the same."""
    ids, mask = tokens(2, 10), left_padding([10, 6], 10)
    ids = ids.where(mask.bool(), PAD)
    more, wide = tokens(2, 3, seed=2), torch.ones(2, 3)
    longer, over = torch.cat([ids, more], 1), torch.cat([mask, wide.long()], 1)
    prefix = Prefix()
    say("llama", ids, prefix, attention_mask=mask)
    alone = say("llama", longer, attention_mask=over)
    assert torch.equal(say("llama", longer, prefix, attention_mask=over), alone)
    assert prefix.reused == 10
    shifted = left_padding([10, 7], 10)
    again = torch.cat([shifted, wide.long()], 1)
    alone = say("llama", longer, attention_mask=again)
    assert torch.equal(say("llama", longer, prefix, attention_mask=again), alone)
    assert prefix.reused == 3
    unpadded = longer[:1, 5:]
    assert torch.equal(say("llama", unpadded, prefix), say("llama", unpadded))


def test_padding_must_stand_where_it_stood():
    check_padding()


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "num_return_sequences": 3},
    ],
    ids=["beams", "drawn"],
)
def test_beams_and_draws_keep_what_they_read(options):
    prefix, ids = Prefix(), tokens(2, 9)
    for turn in range(2):
        torch.manual_seed(0)
        alone = say("gpt2", ids, **options)
        torch.manual_seed(0)
        assert torch.equal(say("gpt2", ids, prefix, **options), alone)
        assert prefix.reused >= 9 * turn
        back = options["num_return_sequences"]
        ids = torch.cat([alone[::back], tokens(2, 3, seed=turn)], 1)


@pytest.mark.parametrize("kind", ["window", "linear"])
def test_what_cannot_be_taken_back_is_read_anew(kind):
    prefix, ids = Prefix(), tokens(1, 20)
    say(kind, ids, prefix)
    other = torch.cat([ids[:, :12], tokens(1, 3, seed=1)], 1)
    assert torch.equal(say(kind, other, prefix), say(kind, other))
    assert prefix.reused == 0


def test_other_weights_know_nothing_of_it():
    net = loud(replace(CONFIGS["gpt2"], head=LMHead(tied=False)), seed=4)
    prefix, ids = Prefix(), tokens(1, 12)
    options: dict[str, Any] = {"max_new_tokens": NEW, "eos_token_id": None}
    generate(net, ids, prefix=prefix, **options)
    generate(net, ids, prefix=prefix, **options)
    assert prefix.reused == 11
    with torch.no_grad():
        net.decoder.layers[0].attention.out.weight.mul_(-1.0)
    mine = generate(net, ids, prefix=prefix, **options)
    assert prefix.reused == 0
    assert torch.equal(mine, generate(net, ids, **options))
    generate(net, ids, prefix=prefix, dtype=torch.float32, **options)
    assert prefix.reused == 0
    generate(model("gpt2"), ids, prefix=prefix, **options)
    assert prefix.reused == 0
    prefix.clear()
    assert len(prefix) == 0


class Interrupting:
    """A streamer that has heard enough."""

    def __init__(self, after: int) -> None:
        self.left = after

    def put(self, value: Tensor) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def end(self) -> None: ...


@pytest.mark.parametrize("rows", [1, 2])
def test_an_answer_that_is_broken_off_is_kept_as_far_as_it_went(rows, monkeypatch):
    prefix, ids = Prefix(), tokens(rows, 10)
    with pytest.raises(KeyboardInterrupt):
        say("gpt2", ids, prefix, streamer=Interrupting(4))
    assert len(prefix) == (10 + 2 if rows == 1 else 0)
    update = type(prefix._cache[0].own).update if rows == 1 else None
    if update is not None:  # and in the middle of a step, when the first layer has read on
        calls = iter(range(100))

        def failing(state: Any, *args: Any) -> Any:
            if next(calls) == 5:
                raise KeyboardInterrupt
            return update(state, *args)

        with monkeypatch.context() as patched:
            patched.setattr(type(prefix._cache[0].own), "update", failing)
            with pytest.raises(KeyboardInterrupt):
                say("gpt2", ids, prefix)
    assert torch.equal(say("gpt2", ids, prefix), say("gpt2", ids))
    assert prefix.reused == (9 if rows == 1 else 0)


def test_the_longest_beginning_is_found():
    kept = torch.tensor([[5, 1, 2, 3], [5, 6, 7, 8]])
    assert shared(torch.tensor([[5, 6, 7, 9, 9]]), kept) == ([1], 3)
    assert shared(torch.tensor([[5, 6, 7]]), kept) == ([1], 2)
    assert shared(torch.tensor([[5, 6, 7], [5, 1, 3]]), kept) == ([1, 0], 2)
    assert shared(torch.tensor([[9, 6, 7]]), kept)[1] == 0
    assert shared(torch.tensor([[9]]), kept)[1] == 0


def test_where_there_is_nothing_to_keep_it_says_so():
    source = loud(KINDS["seq2seq paper"])
    with pytest.raises(ConfigError, match="prefix is for a decoder"):
        generate(source, tokens(1, 4), prefix=Prefix(), max_new_tokens=2)
    with pytest.raises(ConfigError, match="use_cache=False leaves prefix nothing to keep"):
        say("gpt2", tokens(1, 4), Prefix(), use_cache=False)
