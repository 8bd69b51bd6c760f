"""What a model call refuses, what it gives back, and what padding does to a loss."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F

from allformer.core.output import Output
from allformer.errors import ConfigError
from tests.models import (
    KINDS,
    PAD,
    SPREAD,
    VOCAB,
    left_padding,
    loud,
    on_the_grid,
    right_padding,
    tokens,
)

IDS = tokens(2, 4)


def refused(kind: str, match: str, **inputs: object) -> None:
    with pytest.raises(ConfigError, match=match):
        loud(SPREAD[kind])(**inputs)


# --- masks ----------------------------------------------------------------------------------------


def check_mask_shapes() -> None:
    """A mask of another shape is refused, all ones or not, and never broadcast."""
    for shape in [(4, 2), (1, 4), (2, 3), (4,), (2, 4, 1), (2, 1, 1, 4)]:
        for mask in (torch.ones(shape), torch.zeros(shape).long()):
            refused(
                "encoder paper",
                r"attention_mask=\(.*must be rows × tokens, \(2, 4\); give one 1",
                input_ids=IDS,
                attention_mask=mask,
            )
    refused("decoder paper", "attention_mask=list must be", input_ids=IDS, attention_mask=[[1] * 4])


def test_a_mask_of_another_shape_is_refused():
    check_mask_shapes()


def check_mask_values() -> None:
    """An additive mask is no mask; neither is a weight, NaN, or 2."""
    for odd in (-1e9, float("-inf"), -1.0, 0.5, 2.0, float("nan")):
        mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, odd]])
        way = "for an additive mask" if odd < 0 else "give 1"
        refused(
            "encoder paper",
            f"attention_mask has the value .*neither 0 nor 1; {way}",
            input_ids=IDS,
            attention_mask=mask,
        )
    additive = torch.tensor([[0.0, 0, 0, 0], [0, 0, -1e9, -1e9]])
    refused("decoder paper", "give attention_mask == 0", input_ids=IDS, attention_mask=additive)
    model = loud(KINDS["encoder paper"])
    wanted = model(IDS, right_padding([4, 2], 4)).logits
    assert torch.equal(model(IDS, additive == 0).logits, wanted)
    for dtype in (torch.bool, torch.uint8, torch.int, torch.float, torch.bfloat16):
        assert torch.equal(model(IDS, right_padding([4, 2], 4).to(dtype)).logits, wanted)


def test_a_mask_with_other_numbers_than_0_and_1_is_refused():
    check_mask_values()


def test_the_decoders_mask_is_checked_by_its_own_name():
    refused(
        "seq2seq paper",
        r"decoder_attention_mask=\(1, 3\) must be rows × tokens, \(2, 3\)",
        input_ids=IDS,
        decoder_input_ids=tokens(2, 3),
        decoder_attention_mask=torch.ones(1, 3),
    )


# --- ids, positions, types, targets ---------------------------------------------------------------


def check_ids_range() -> None:
    for odd in (-1, VOCAB, 10**6):
        ids = IDS.clone()
        ids[1, 2] = odd
        refused(
            "encoder paper", rf"input_ids has the id {odd}, but there are 0 … 36", input_ids=ids
        )


def test_ids_out_of_range_are_refused():
    check_ids_range()


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        (IDS.float(), r"input_ids=\(2, 4\) of torch.float32 must be whole numbers"),
        (IDS.to(torch.uint8), "of torch.uint8 must be whole numbers"),
        (IDS.bool(), "of torch.bool must be whole numbers"),
        (IDS[0], r"input_ids=\(4,\) of torch.int64 must be .*rows × tokens; try torch.tensor"),
        (IDS[None], r"input_ids=\(1, 2, 4\)"),
        (IDS.tolist(), "input_ids is a list; try torch.tensor"),
        (IDS.numpy(), "input_ids is a ndarray; try torch.tensor"),
        (IDS[:0], r"input_ids=\(0, 4\) is empty"),
        (IDS[:, :0], r"input_ids=\(2, 0\) is empty"),
        (None, "neither of input_ids and inputs_embeds given"),
    ],
)
def test_what_are_no_ids_is_refused(ids, match):
    refused("decoder paper", match, input_ids=ids)


@pytest.mark.parametrize(
    ("kind", "more", "match"),
    [
        ("encoder narrow", {"token_type_ids": torch.ones(2, 3).long()}, "token_type_ids=.2, 3."),
        (
            "encoder narrow",
            {"token_type_ids": torch.full((2, 4), 3)},
            "has the id 3, but there are",
        ),
        ("encoder paper", {"token_type_ids": IDS}, "Tokens.types=0: this model knows no segments"),
        ("encoder paper", {"position_ids": torch.zeros(3, 4).long()}, "position_ids=.3, 4."),
        (
            "encoder paper",
            {"labels": tokens(2, 3)},
            r"labels=\(2, 3\) must be of the shape \(2, 4\)",
        ),
        ("decoder paper", {"labels": tokens(1, 4)}, r"labels=\(1, 4\) must be of the shape"),
        ("decoder paper", {"labels": torch.full((2, 4), VOCAB)}, "labels has 37, but there are 0"),
        ("decoder paper", {"labels": torch.full((2, 4), -5)}, "labels has -5"),
        ("tags", {"labels": torch.full((2, 4), 2)}, "labels has 2, but there are 0 … 1"),
        (
            "classes",
            {"labels": torch.zeros(3).long()},
            r"labels=\(3,\) must be of the shape \(2,\)",
        ),
        ("spans", {"labels": IDS}, "labels is no input of this model; it takes"),
        ("encoder paper", {"attention_maks": IDS}, "did you mean attention_mask"),
        ("headless", {"labels": IDS}, "head=None gives no logits over the vocabulary"),
        (
            "seq2seq paper",
            {"labels": tokens(3, 4)},
            "decoder_input_ids has 3 rows, but input_ids 2",
        ),
        ("seq2seq paper", {}, "decoder_input_ids=None and labels=None"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(kind, more, match):
    refused(kind, match, input_ids=IDS, **more)


# --- vectors in place of ids ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("seq2seq")])
def test_vectors_in_place_of_ids_give_the_same(kind):
    model, ids = loud(KINDS[kind]), tokens(2, 12)
    source = (model.encoder if kind.startswith("encoder") else model.decoder).source
    vectors = source.embedding(ids) * source.scale
    for mask in (None, left_padding([12, 5], 12)):
        wanted = model(ids, mask).logits
        torch.testing.assert_close(
            model(attention_mask=mask, inputs_embeds=vectors).logits, wanted, rtol=1e-12, atol=1e-12
        )
    refused(kind, "both of input_ids and inputs_embeds", input_ids=ids, inputs_embeds=vectors)
    refused(kind, r"inputs_embeds=\(2, 12, 3\) must be", inputs_embeds=vectors[..., :3])


def test_an_encoder_decoder_takes_vectors_on_both_sides():
    model, ids, target = loud(KINDS["seq2seq paper"]), tokens(2, 12), tokens(2, 9, 1)
    table = model.encoder.source
    vectors = [table.embedding(x) * table.scale for x in (ids, target)]
    wanted = model(ids, None, target).logits
    got = model(inputs_embeds=vectors[0], decoder_inputs_embeds=vectors[1]).logits
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


# --- losses under padding -------------------------------------------------------------------------


def check_padding_is_left_out(kind: str) -> None:
    """labels = input_ids, padding and all: what is padding costs nothing, on every route."""
    model, ids = loud(KINDS[kind]), tokens(3, 20)
    for pad in (left_padding, right_padding):
        mask = pad([20, 13, 4], 20)
        padded = ids.masked_fill(mask == 0, PAD)
        without = padded.masked_fill(mask == 0, -100)
        losses = [model(padded, mask, labels=labels).loss for labels in (padded, without)]
        with on_the_grid():
            losses.append(model(padded, mask, labels=padded).loss)
        losses.append(model(padded, mask, labels=padded, kernel="eager").loss)
        compiled = torch.compile(model, backend="eager")
        losses.append(compiled(padded, mask, labels=padded).loss)
        logits = [
            model(row[keep.bool()][None]).logits[0] for row, keep in zip(ids, mask, strict=True)
        ]
        rows = [row[keep.bool()] for row, keep in zip(ids, mask, strict=True)]
        if kind.startswith("decoder"):
            logits, rows = [x[:-1] for x in logits], [row[1:] for row in rows]
        alone = F.cross_entropy(torch.cat(logits), torch.cat(rows))
        for loss in losses:
            torch.testing.assert_close(loss, alone, rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", ["encoder paper", "decoder paper"])
def test_padding_costs_nothing_whatever_its_labels_say(kind):
    check_padding_is_left_out(kind)


def check_nothing_to_learn() -> None:
    """Labels that are all −100: a loss of 0 and gradients of 0, not NaN."""
    for kind in ("encoder paper", "decoder paper", "tags"):
        model = loud(SPREAD[kind])
        loss = model(IDS, labels=torch.full((2, 4), -100)).loss
        assert loss.item() == 0
        loss.backward()
        assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


def test_labels_that_all_do_not_count_give_zero():
    check_nothing_to_learn()


# --- what comes back ------------------------------------------------------------------------------


def check_output() -> None:
    model = loud(KINDS["decoder paper"])
    out = model(IDS, labels=IDS)
    assert list(out.keys()) == ["loss", "logits", "last_hidden_state"]
    assert out[0] is out.loss is out["loss"]
    assert out[1:] == (out.logits, out.last_hidden_state) == out.to_tuple()[1:]
    assert out.pooler_output is None
    plain = model(IDS)
    assert plain[0] is plain.logits
    with pytest.raises(AttributeError, match="'logit' is not there; there is logits"):
        _ = plain.logit
    with pytest.raises(KeyError):
        plain["loss"]
    pair = loud(SPREAD["pretraining"])(IDS)
    assert pair.sop_logits is pair.seq_relationship_logits
    assert isinstance(copy.copy(out), Output)


def test_outputs_are_found_by_attribute_name_and_number():
    check_output()


@pytest.mark.parametrize("kind", ["decoder paper", "encoder modern", "seq2seq buckets", "rotary"])
def test_models_can_be_pickled_and_exported(kind):
    model = loud(SPREAD[kind])
    mask = left_padding([12, 7], 12)
    inputs = {"input_ids": tokens(2, 12), "attention_mask": mask}
    if kind.startswith("seq2seq"):
        inputs["decoder_input_ids"] = tokens(2, 9)
    with torch.no_grad():
        wanted = model(**inputs).logits
        assert torch.equal(pickle.loads(pickle.dumps(model))(**inputs).logits, wanted)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(**inputs).logits, wanted)
        got = torch.export.export(model, (), inputs).module()(**inputs).logits
    real = mask.bool() if got.shape[1] == 12 else torch.ones(2, 9).bool()
    torch.testing.assert_close(got[real], wanted[real], rtol=1e-12, atol=1e-12)
