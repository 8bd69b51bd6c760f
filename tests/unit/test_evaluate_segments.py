"""A text scored by a model that remembers: each token once, with a full memory before it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from allformer.errors import ConfigError
from allformer.evaluate import texts
from allformer.evaluate.segments import segment_nll
from allformer.evaluate.windows import text_nll
from tests.models import loud
from tests.property.test_segments import VOCAB, ids, tree


def plain(model, text, length, memory):
    """The same in one place, through `mems`."""
    found, mems = [], None
    with torch.no_grad():
        for part in text[:-1].split(length):
            out = model(input_ids=part[None], mems=mems, mem_len=memory)
            mems = out.mems
            found.append(out.logits[0].log_softmax(-1))
    logp = torch.cat(found)
    return -logp.gather(1, text[1:, None])[:, 0]


@pytest.mark.parametrize(("length", "memory"), [(5, 7), (4, 4), (9, 30), (1, 3)])
def test_segments_in_one_place_are_a_chain_of_calls(length, memory):
    model = loud(tree(memory=6))
    text = ids(40, rows=1)[0]
    mine = segment_nll(model, text.tolist(), length=length, memory=memory, batch_tokens=1)
    torch.testing.assert_close(mine, plain(model, text, length, memory))


def test_a_memory_that_covers_all_is_one_window():
    model = loud(tree(memory=6))
    text = ids(40, rows=1)[0].tolist()
    mine = segment_nll(model, text, length=7, memory=64)
    torch.testing.assert_close(mine, text_nll(model, text, length=40, stride=39))


def test_many_places_at_once_score_every_token_once_and_nearly_the_same():
    """Exactly the same where one layer is all: a second one sees further than the memory."""
    whole = tree(memory=6)
    from dataclasses import replace

    decoder = replace(whole.decoder, blocks=whole.decoder.blocks[:1])
    model = loud(replace(whole, decoder=decoder))
    text = ids(403, rows=1)[0]
    told: list[int] = []
    mine = segment_nll(
        model, text.tolist(), length=4, memory=8, batch_tokens=64, advance=told.append
    )
    assert sum(told) == 402
    assert max(told) > 4  # rows side by side
    torch.testing.assert_close(mine, plain(model, text, 4, 8))


def test_memory_takes_the_place_of_a_stride(monkeypatch):
    model = loud(tree(memory=6))
    pipeline = SimpleNamespace(model=model, trained=None, stack=model.config.decoder, directory="x")
    monkeypatch.setattr(texts, "_ids", lambda _, text: ([ord(c) % VOCAB for c in text], text[1:]))
    found = texts.evaluate_texts(pipeline, ["some text to score " * 4])
    assert (found["memory"], found["length"]) == (6, 6)
    assert found["bits_per_byte"] > 0
    longer = texts.evaluate_texts(pipeline, ["some text to score " * 4], memory=50, length=8)
    assert longer["nll"] != found["nll"]
    with pytest.raises(ConfigError, match=r"stride=4.*memory=0"):
        texts.evaluate_texts(pipeline, ["some text"], stride=4)
    assert (
        texts.evaluate_texts(pipeline, ["some text"], memory=0, stride=4, length=8)["tokens"] == 8
    )
