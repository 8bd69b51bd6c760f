"""What a caller may give: wrong inputs are refused in words, and vectors serve in place of ids."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from allformer.core.model import AnyModel
from allformer.errors import ConfigError
from tests.models import KINDS, SPREAD, VOCAB, left_padding, loud, right_padding, tokens

POOLED = "classes"  # reads the first column, and looks at the mask for it


def refused(message: str, model: AnyModel, *args: object, **inputs: object) -> None:
    with pytest.raises(ConfigError, match=message):
        model(*args, **inputs)


def check_mask_shape() -> None:
    """One number for each token; everything else is refused before anything is computed."""
    ids = tokens(3, 8)
    odd = [torch.ones(3, 9), torch.ones(2, 8), torch.ones(8), torch.ones(3, 1, 1, 8), [[1] * 8] * 3]
    for kind in ("encoder paper", "decoder paper", "seq2seq paper", POOLED):
        model = loud(SPREAD[kind])
        more = {"decoder_input_ids": ids} if kind.startswith("seq2seq") else {}
        for mask in odd:
            refused(r"^attention_mask=.* must be rows × tokens, \(3, 8\)", model, ids, mask, **more)
    model = loud(SPREAD["seq2seq paper"])
    for mask in odd:
        more = {"decoder_input_ids": ids, "decoder_attention_mask": mask}
        refused("^decoder_attention_mask=.* must be rows × tokens", model, ids, **more)


def check_mask_values() -> None:
    """Zeros and ones of any type; an additive mask is known by its signs."""
    ids, mask = tokens(3, 8), left_padding([8, 5, 2], 8)
    additive = (1.0 - mask) * -1e9
    for kind in ("encoder paper", "decoder paper", POOLED):
        model = loud(SPREAD[kind])
        advice = "for an additive mask .0 = keep. give attention_mask == 0"
        refused(f"attention_mask has the value -1e.09, .*; {advice}", model, ids, additive)
        refused("attention_mask has the value 2, which is neither 0 nor 1", model, ids, mask * 2)
        if kind.startswith("decoder"):
            for cache in (model.new_cache(), None):
                refused(advice, model, ids, additive, cache=cache)
        with torch.no_grad():
            wanted = model(ids, mask).last_hidden_state
            for same in (mask.bool(), mask.float(), mask.int(), additive == 0):
                assert torch.equal(model(ids, same).last_hidden_state, wanted)
    model, more = loud(KINDS["seq2seq paper"]), {"decoder_attention_mask": additive}
    refused("^decoder_attention_mask has the value", model, ids, decoder_input_ids=ids, **more)


def check_ids() -> None:
    """Whole numbers that are in the table, rows × tokens."""
    for kind in ("encoder paper", "decoder paper"):
        model = loud(KINDS[kind])
        for wrong in (VOCAB, VOCAB + 5, -1):
            ids = tokens(2, 6)
            ids[1, 3] = wrong
            refused(f"^input_ids has the id {wrong}, but there are 0 … 36", model, ids)
        refused("^input_ids=.* of torch.float32 must be whole numbers", model, torch.ones(2, 6))
        refused("^input_ids=.6,. of torch.int64 must be .* rows × tokens", model, tokens(1, 6)[0])
        refused("^input_ids=.2, 0. is empty", model, tokens(2, 6)[:, :0])
        refused("^input_ids is a list; try torch.tensor", model, [[1, 2]])
        refused("^neither of input_ids and inputs_embeds given", model)
    model = loud(KINDS["encoder narrow"])
    refused("^token_type_ids has the id 3", model, tokens(2, 6), None, torch.full((2, 6), 3))
    model, ids = loud(KINDS["seq2seq paper"]), tokens(2, 6)
    refused("^decoder_input_ids has the id 37", model, ids, decoder_input_ids=ids * 0 + 37)
    refused("^decoder_input_ids has 3 rows, but input_ids 2", model, ids, None, tokens(3, 6))


def check_names() -> None:
    """What nobody takes is named, with what was meant."""
    model, ids = loud(KINDS["decoder paper"]), tokens(2, 6)
    refused("^atention_mask is no .*; did you mean attention_mask", model, ids, atention_mask=ids)
    refused("^decoder_attention_mask is no input", model, ids, decoder_attention_mask=ids)
    headless = loud(SPREAD["headless"])
    refused("build it with LMHead", headless, ids, decoder_input_ids=ids, labels=ids)


def _vectors(model: AnyModel, ids: Tensor, name: str) -> Tensor:
    """What the model itself would look up."""
    source = model.stack(name).source
    return source.embedding(ids) * source.scale  # type: ignore[operator, union-attr, no-any-return]


@torch.no_grad()
def check_embeds(kind: str) -> None:
    """Vectors in place of ids: not scaled again, and with everything else that tokens get."""
    model, ids = loud(SPREAD[kind]), tokens(3, 8)
    first = next(iter(model.prefixes))
    for mask in (None, left_padding([8, 5, 2], 8), right_padding([8, 5, 2], 8)):
        more = {"decoder_input_ids": tokens(3, 7, 2)} if len(model.prefixes) > 1 else {}
        wanted = model(ids, mask, **more).last_hidden_state
        given = {"inputs_embeds": _vectors(model, ids, first), "attention_mask": mask}
        mine = model(**given, **more).last_hidden_state
        torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)
        if more:
            target = _vectors(model, more["decoder_input_ids"], "decoder")
            mine = model(ids, mask, decoder_inputs_embeds=target).last_hidden_state
            torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)
    embeds = torch.zeros(2, 6, 5, dtype=torch.float64)
    more = {"decoder_input_ids": tokens(2, 6)} if len(model.prefixes) > 1 else {}
    refused("^inputs_embeds=.2, 6, 5. must be rows × tokens", model, inputs_embeds=embeds, **more)
    refused("^both of input_ids and inputs_embeds", model, ids, inputs_embeds=embeds, **more)


def test_a_mask_of_another_shape_is_refused():
    check_mask_shape()


def test_a_mask_of_other_numbers_is_refused():
    check_mask_values()


def test_ids_that_are_none_are_refused():
    check_ids()


def test_inputs_that_nobody_takes_are_named():
    check_names()


EMBEDS = ["seq2seq paper", "seq2seq buckets", "decoder paper", "decoder modern", "encoder narrow"]


@pytest.mark.parametrize("kind", [*EMBEDS, "rotary", "counts all"])
def test_vectors_serve_in_place_of_ids(kind):
    check_embeds(kind)
