"""What heads read and learn from: the right place, the right label, nothing of padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from allformer.config import Beside, ClassHead, EncoderOnly, LMHead, Pool, Several
from allformer.core.loss import IGNORE, Sums, entropy_sums
from allformer.core.model import build
from allformer.core.output import Output
from allformer.core.states import Static
from allformer.errors import ConfigError
from tests.models import EOS, KINDS, PAD, SPREAD, left_padding, loud, right_padding, stack, tokens


def close(mine: object, wanted: object) -> None:
    torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


def check_aim() -> None:
    """By hand: what each place has to say, with padding on either side."""
    labels = torch.tensor([[5, 6, 7, 8], [5, 6, IGNORE, 8]])
    for side, ahead, wanted in (
        (None, False, [[5, 6, 7, 8], [5, 6, -100, 8]]),
        (None, True, [[6, 7, 8, -100], [6, -100, 8, -100]]),
        (left_padding, False, [[5, 6, 7, 8], [-100, 6, -100, 8]]),
        (left_padding, True, [[6, 7, 8, -100], [-100, -100, 8, -100]]),
        (right_padding, False, [[5, 6, 7, 8], [5, 6, -100, -100]]),
        (right_padding, True, [[6, 7, 8, -100], [6, -100, -100, -100]]),
    ):
        head = build(KINDS["decoder paper" if ahead else "encoder paper"], device="meta").vocab_head
        keep = None if side is None else side([4, 3], 4).bool()
        assert head.ahead == ahead
        assert head.aim(labels, keep).tolist() == wanted
    assert labels.tolist() == [[5, 6, 7, 8], [5, 6, IGNORE, 8]], "the caller's own are left alone"


@torch.no_grad()
def check_class_places() -> None:
    """The last token that is not padding; the last end, of several."""
    model, ids = loud(SPREAD["last token"]), tokens(4, 9)
    mask = right_padding([9, 5, 1, 7], 9)
    ids = ids.masked_fill(mask == 0, PAD)
    ids[3, 2] = PAD  # a hole does not end the text
    out = model(ids, mask)
    close(out.logits, model.head(out.last_hidden_state[range(4), [8, 4, 0, 6]]))
    flipped = model(ids.flip(1), mask.flip(1))
    close(flipped.logits, model.head(flipped.last_hidden_state[:, 8]))

    model, ids = loud(SPREAD["last end"]), tokens(3, 9)
    for row, places in enumerate(([8], [0, 4, 6], [3])):
        ids[row, places] = EOS
    out = model(ids, decoder_input_ids=ids)
    close(out.logits, model.head(out.last_hidden_state[range(3), [8, 6, 3]]))
    with pytest.raises(ConfigError, match="has a row without the token 3"):
        model(tokens(3, 9), decoder_input_ids=ids)


def check_tags() -> None:
    """A label at padding does not count, whatever stands there."""
    model, ids = loud(SPREAD["tags"]), tokens(3, 8)
    labels = torch.randint(0, 2, (3, 8), generator=torch.Generator().manual_seed(1))
    for side in (left_padding, right_padding):
        mask = side([8, 5, 2], 8)
        out = model(ids, mask, labels=labels)
        real = mask.bool()
        close(out.loss, F.cross_entropy(out.logits[real], labels[real]))


def check_several() -> None:
    """The loss of heads side by side is the sum of their own."""
    model, ids = loud(SPREAD["pretraining"]), tokens(3, 8)
    pair = torch.tensor([1, 0, 1])
    labels = ids.masked_fill(torch.arange(8) % 3 > 0, IGNORE)
    out = model(ids, labels=labels, next_sentence_label=pair)
    words = F.cross_entropy(out.prediction_logits.flatten(0, 1), labels.flatten())
    close(out.loss, words + F.cross_entropy(out.seq_relationship_logits, pair))
    assert list(out) == [
        "loss", "prediction_logits", "seq_relationship_logits", "last_hidden_state",
        "pooler_output",
    ]  # fmt: skip
    same = model(ids, labels=labels, sentence_order_label=pair)  # ALBERT's names
    close(same.loss, out.loss)
    assert same.sop_logits is same["seq_relationship_logits"]
    assert model(ids, labels=labels).loss is None, "one target of two is not enough"
    head = Several((
        Beside("words", LMHead(), "logits", "labels"),
        Beside("mood", ClassHead(("a", "b"), at="first"), "moods", "mood"),
    ))  # fmt: skip
    model = loud(EncoderOnly(stack(), head))
    out = model(ids, labels=labels, mood=pair)
    words = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten())
    close(out.loss, words + F.cross_entropy(out.moods, pair))
    close(out.moods, model.head.mood(out.last_hidden_state[:, 0]))


def check_nothing_counts() -> None:
    """Where every label is −100 the loss is 0, and so is its gradient: no NaN."""
    for kind in ("encoder paper", "decoder paper"):
        model, ids = loud(KINDS[kind]), tokens(2, 6)
        loss = model(ids, labels=torch.full_like(ids, IGNORE)).loss
        assert loss.item() == 0
        loss.backward()
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    logits, targets = torch.randn(5, 7).double(), torch.tensor([1, IGNORE, 3, IGNORE, 6])
    sums = entropy_sums(logits, targets)
    close(sums.mean, F.cross_entropy(logits, targets))
    assert sums.total == 3
    assert Sums(torch.tensor(6.0), torch.tensor(6.0), torch.tensor(4)).mean == 1.5


def check_output() -> None:
    """transformers' order, whatever order they came in; the loss comes first if there is one."""
    x = {name: torch.tensor(i) for i, name in enumerate("abcd")}
    out = Output(last_hidden_state=x["a"], mine=x["b"], logits=x["c"], loss=x["d"])
    assert list(out) == ["loss", "mine", "logits", "last_hidden_state"]  # a head's own: with them
    assert out[0] is out.loss is out["loss"] is x["d"]
    assert out.to_tuple()[-1] is x["a"]
    assert out.mine is x["b"]
    out = Output(pooler_output=x["a"], logits=x["b"], loss=None, encoder_last_hidden_state=x["c"])
    assert list(out) == ["logits", "pooler_output", "encoder_last_hidden_state"]
    assert out[0] is x["b"]
    assert out.loss is None
    with pytest.raises(AttributeError, match="'wrong' is not there; there is logits"):
        out.wrong  # noqa: B018


def test_each_place_is_given_its_label():
    check_aim()


def test_a_text_is_classified_from_its_last_token_or_its_last_end():
    check_class_places()


def test_labels_at_padding_do_not_count():
    check_tags()


def test_heads_side_by_side_add_up():
    check_several()


def test_nothing_to_learn_from_is_a_loss_of_zero():
    check_nothing_counts()


def test_outputs_come_in_transformers_order():
    check_output()


@torch.no_grad()
def check_cached_labels() -> None:
    """Labels of new tokens meet the mask of new tokens, whatever room is left behind them."""
    model, ids = loud(KINDS["decoder paper"]), tokens(3, 9)
    mask = left_padding([9, 6, 2], 9)
    wanted = model(ids, mask, labels=ids).loss
    close(model(ids, mask, labels=ids, cache=model.new_cache()).loss, wanted)
    cache = Static.cache(2, 20)
    close(model(ids, mask, labels=ids, cache=cache).loss, wanted)
    grown, static = model.new_cache(), Static.cache(2, 20)
    losses = []
    for cache in (grown, static):
        model(ids[:, :4], mask[:, :4], cache=cache)
        losses.append(model(ids[:, 4:], mask, labels=ids[:, 4:], cache=cache).loss)
    close(*losses)


def test_labels_with_a_cache_are_scored_as_without():
    check_cached_labels()


def test_a_pool_reads_the_first_column_where_it_is_padding_too():
    """As the reference does; nothing is left out then."""
    model, ids = loud(EncoderOnly(stack(), None, Pool())), tokens(2, 6)
    with torch.no_grad():
        out = model(ids, left_padding([6, 4], 6))
    assert out.pooler_output is not None
    close(out.pooler_output, model.pool(out.last_hidden_state))
    assert out.last_hidden_state[1, 0].abs().max() > 0
