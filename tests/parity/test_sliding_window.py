"""Likelihood of a text: transformers' model through the windows of its page on perplexity."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from allformer.errors import ConfigError
from allformer.evaluate import evaluate_masked, evaluate_texts
from allformer.evaluate.windows import text_nll, windows
from allformer.tasks.pipeline import open_pipeline
from tests.tiny import LINES, checkpoint  # noqa: F401  (a fixture)

TEXT = " ".join(LINES)


def documented(model, ids, length, stride):
    """The loop of transformers' page on perplexity: its mean NLL, and the sum of what each window
    scores. Its loss is taken from the logits, as its own casts them to fp32."""
    nll_sum, tokens, total, before = 0.0, 0, 0.0, 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + length, ids.shape[1])
        target = ids[:, begin:end].clone()
        target[:, : -(end - before)] = -100
        with torch.no_grad():
            logits = model(ids[:, begin:end]).logits
        loss = F.cross_entropy(logits[0, :-1], target[0, 1:])
        counted = int((target != -100).sum()) - 1
        nll_sum, tokens = nll_sum + float(loss) * counted, tokens + counted
        total += float(loss) * int((target[:, 1:] != -100).sum())
        before = end
        if end == ids.shape[1]:
            break
    return nll_sum / tokens, total


@pytest.mark.parametrize(("length", "stride"), [(16, 8), (16, 15), (64, 1), (24, 5), (64, 63)])
def test_a_text_through_windows_is_as_likely_as_in_transformers(checkpoint, length, stride):  # noqa: F811
    import transformers as hf

    path = checkpoint("gpt2-")
    peer = hf.GPT2LMHeadModel.from_pretrained(path, dtype=torch.float64).eval()
    pipeline = open_pipeline(path, dtype=torch.float64)
    ids = pipeline.tokenizer.encode(TEXT)
    mean, total = documented(peer, torch.tensor([ids]), length, stride)
    nll = text_nll(pipeline.model, ids, length=length, stride=stride, batch_tokens=100)
    assert float(nll.sum()) == pytest.approx(total, rel=1e-12)
    # That page weighs a window after the first as if it scored a token less.
    parts = [nll[w.first - 1 : w.end - 1] for w in windows(len(ids), length, stride)]
    weights = [len(part) - (i > 0) for i, part in enumerate(parts)]
    theirs = sum(float(p.mean()) * n for p, n in zip(parts, weights, strict=True)) / sum(weights)
    assert theirs == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(
    ("count", "length", "stride"), [(10, 6, 2), (57, 8, 3), (57, 8, 7), (5, 9, 4)]
)
def test_each_token_is_scored_once_with_enough_before_it(count, length, stride):
    found = list(windows(count, length, stride))
    scored = [i for w in found for i in range(w.first, w.end)]
    assert scored == list(range(1, count))
    for w in found:
        assert w.end - w.begin <= length
        assert w.begin == 0 or w.first - w.begin >= length - stride


@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 0), (1, 1)])
def test_a_stride_that_leaves_a_token_without_context_is_refused(length, stride):
    with pytest.raises(ConfigError, match=r"(stride|length)=\d must be"):
        list(windows(20, length, stride))


def test_figures_are_quotients_of_what_was_scored(checkpoint):  # noqa: F811
    pipeline = open_pipeline(checkpoint("gpt2-"), dtype=torch.float64)
    found = evaluate_texts(pipeline, LINES[:2], stride=20)
    nlls = [
        text_nll(pipeline.model, pipeline.tokenizer.encode(line), length=64, stride=20)
        for line in LINES[:2]
    ]
    total, tokens = sum(float(x.sum()) for x in nlls), sum(map(len, nlls))
    # The first token of each text is not scored ("T", "A"): nor are its bytes.
    size = sum(len(line.encode()) - 1 for line in LINES[:2])
    assert (found["tokens"], found["bytes"], found["texts"]) == (tokens, size, 2)
    assert found["perplexity"] == pytest.approx(math.exp(total / tokens))
    assert found["bits_per_byte"] == pytest.approx(total / math.log(2) / size)
    words = sum(len(line.split()) for line in LINES[:2])
    assert found["word_perplexity"] == pytest.approx(math.exp(total / words))


def test_a_beginning_that_the_tokeniser_puts_lets_every_byte_count(checkpoint):  # noqa: F811
    found = evaluate_texts(open_pipeline(checkpoint("llama")), LINES[:1], length=16)
    assert found["bytes"] == len(LINES[0].encode())
    assert found["stride"] == 8


def test_pseudo_perplexity_masks_each_token_in_its_turn(checkpoint):  # noqa: F811
    import transformers as hf

    path = checkpoint("bert-mlm")
    peer = hf.BertForMaskedLM.from_pretrained(path, dtype=torch.float64).eval()
    pipeline = open_pipeline(path, dtype=torch.float64)
    total, tokens = 0.0, 0
    for line in LINES[:2]:
        ids = torch.tensor(pipeline.tokenizer.encode(line))
        for place in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[place] = pipeline.tokenizer.mask_id
            with torch.no_grad():
                scores = peer(masked[None]).logits[0, place].log_softmax(-1)
            total, tokens = total - float(scores[ids[place]]), tokens + 1
    found = evaluate_masked(pipeline, LINES[:2])
    assert found["tokens"] == tokens
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-12)


def test_a_text_too_long_for_a_masked_model_is_scored_in_parts(checkpoint):  # noqa: F811
    pipeline = open_pipeline(checkpoint("bert-mlm"))
    text = " ".join(LINES[:4])
    found = evaluate_masked(pipeline, [text], length=20)
    assert found["tokens"] == len(pipeline.tokenizer.encode(text, add_special_tokens=False))
    assert found["tokens"] > 40
