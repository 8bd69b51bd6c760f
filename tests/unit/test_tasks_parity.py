"""Tasks give what transformers' pipelines give, on tiny loud checkpoints of every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from allformer.tasks import answer, classify, embed, fill, open_kit, tag
from tests import tiny
from tests.tiny import checkpoint  # noqa: F401

hf = pytest.importorskip("transformers")
CLOSE = 2e-6  # fp32 on both sides
ENTITY_TEXTS = [tiny.LINES[1], tiny.LINES[2], "Goethe", "...", tiny.LINES[4]]


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()


def close(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * max(1.0, abs(b))


MASKED = ["bert-mlm", "roberta-mlm", "albert-mlm", "bart", "bert-pretrain", "longformer-mlm"]


@pytest.mark.parametrize("name", MASKED)
def test_fill_gives_the_pipelines_tokens_and_scores(checkpoint, name):  # noqa: F811
    path = checkpoint(name)
    kit = open_kit(path)
    mask = kit.tokenizer.settings.names["mask"]
    texts = [f"The capital of {mask} is Paris.", f"{mask} wrote Faust", f"A {mask} is {mask}."]
    model = hf.AutoModelForMaskedLM.from_pretrained(path)
    pipe = hf.pipeline("fill-mask", model=model, tokenizer=str(path), top_k=7)
    for text, ours in zip(texts, fill(kit, texts, top=7), strict=True):
        theirs = pipe(text)
        if text.count(mask) == 1:
            ours, theirs = [ours], [theirs]
        assert len(ours) == len(theirs) == text.count(mask)
        for a, b in zip(sum(ours, []), sum(theirs, []), strict=True):  # noqa: RUF017
            assert (a.id, a.token) == (b["token"], b["token_str"])
            assert close(a.score, b["score"])


@pytest.mark.parametrize("name", ["bert-mlm", "roberta-mlm", "albert-mlm"])
def test_the_filled_text_spells_the_token_as_the_pipeline_does(checkpoint, name):  # noqa: F811
    kit = open_kit(checkpoint(name))
    mask = kit.tokenizer.settings.names["mask"]
    pipe = hf.pipeline("fill-mask", str(kit.directory), top_k=kit.stack.source.vocab)
    joined = 0
    ours = fill(kit, f"the capital of {mask} is", top=kit.stack.source.vocab)
    for a, b in zip(ours, pipe(f"the capital of {mask} is"), strict=True):
        if a.id in kit.tokenizer.special_ids.values() or "\ufffd" in a.token:
            continue
        joined += not a.text.startswith("the capital of ")
        assert a.text == b["sequence"], a
    assert joined > 20


@pytest.mark.parametrize(
    "name",
    [
        "bert-class",
        "bert-multi",
        "bert-one",
        "bert-regression",
        "gpt2-class",
        "bart-class",
        "longformer-class",
    ],
)
def test_classify_gives_the_pipelines_labels_and_scores(checkpoint, name):  # noqa: F811
    path = checkpoint(name)
    pipe = hf.pipeline("text-classification", str(path))
    found = classify(path, tiny.LINES[:5], all=True)
    for text, ours in zip(tiny.LINES, found, strict=False):
        theirs = pipe(text, top_k=None)
        assert [one.label for one in ours] == [one["label"] for one in theirs]
        assert all(close(a.score, b["score"]) for a, b in zip(ours, theirs, strict=True))
    assert classify(path, tiny.LINES[:5]) == [ours[0] for ours in found]


def test_classify_takes_pairs(checkpoint):  # noqa: F811
    path = checkpoint("bert-class")
    pipe = hf.pipeline("text-classification", str(path))
    texts, pairs = ["A man is eating food.", "who", "Goethe wrote"], ["Two women.", "he", "..."]
    found = classify(path, texts, pairs)
    for text, pair, ours in zip(texts, pairs, found, strict=True):
        theirs = pipe({"text": text, "text_pair": pair})
        assert ours.label == theirs["label"]
        assert close(ours.score, theirs["score"])
    alone = classify(path, texts[0], pairs[0])
    assert alone.label == found[0].label
    assert close(alone.score, found[0].score)
    assert classify(path, texts[0]).score != found[0].score


# The pipeline guesses byte-level words from spaces; ours are the tokeniser's.
JOINS = [("bert-ner", join) for join in ("none", "simple", "first", "max", "average")]
JOINS += [("roberta-ner", join) for join in ("none", "simple")]


@pytest.mark.parametrize(("name", "join"), JOINS)
def test_tag_gives_the_pipelines_entities(checkpoint, name, join):  # noqa: F811
    path = checkpoint(name)
    pipe = hf.pipeline("token-classification", str(path), aggregation_strategy=join)
    count = 0
    for text, ours in zip(ENTITY_TEXTS, tag(path, ENTITY_TEXTS, join=join), strict=True):
        theirs = pipe(text)
        assert [(e.label, e.start, e.end) for e in ours] == [
            (e["entity" if join == "none" else "entity_group"], e["start"], e["end"])
            for e in theirs
        ]
        assert all(close(a.score, b["score"]) for a, b in zip(ours, theirs, strict=True))
        assert all(e.text == text[e.start : e.end] for e in ours)
        count += len(ours)
    assert count > 5


def best_span(path, question, passage, width, overlap, longest=15):
    """The pipeline of transformers 4, by brute force: every span of every window."""
    tokenizer = hf.AutoTokenizer.from_pretrained(path)
    model = hf.AutoModelForQuestionAnswering.from_pretrained(path).eval()
    plain = {"add_special_tokens": False}
    asked = tokenizer(question, **plain)["input_ids"]
    whole = tokenizer(passage, return_offsets_mapping=True, **plain)
    ids, places = whole["input_ids"], whole["offset_mapping"]
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    head = [cls, *asked, *([sep] if path.name == "bert-qa" else [sep, sep])]
    room = width - len(head) - 1
    starts = range(0, max(1, len(ids) - overlap), room - overlap)
    spans, empty = [], []
    for first in starts:
        part = ids[first : first + room]
        inputs = {"input_ids": torch.tensor([[*head, *part, sep]])}
        if path.name == "bert-qa":
            inputs["token_type_ids"] = torch.tensor([[0] * len(head) + [1] * (len(part) + 1)])
        with torch.no_grad():
            out = model(**inputs)
        here = np.arange(len(head), len(head) + len(part))
        p = []
        for logits in (out.start_logits[0].numpy(), out.end_logits[0].numpy()):
            e = np.exp(logits - logits.max())
            p.append(e / (e[0] + e[here].sum()))  # the first token too: "no answer"
        empty.append(p[0][0] * p[1][0])
        for a in range(len(part)):
            for b in range(a, min(a + longest, len(part))):
                score = float(p[0][len(head) + a] * p[1][len(head) + b])
                spans.append((score, places[first + a][0], places[first + b][1]))
    return max(spans), float(min(empty)), len(starts)


@pytest.mark.parametrize("name", ["bert-qa", "bart-qa", "longformer-qa"])
def test_answer_is_the_best_span_of_all_windows(checkpoint, name):  # noqa: F811
    path = checkpoint(name)
    questions = ["Who wrote Faust?", "Where was he born?", "who"]
    passages = [tiny.LINES[2], " ".join(tiny.LINES[:4]), " ".join(tiny.LINES) * 2]
    kit = open_kit(path)
    found = answer(kit, questions, passages, whole_words=False)
    unsure = answer(kit, questions, passages, whole_words=False, no_answer=True)
    windows = []
    for i, (question, passage) in enumerate(zip(questions, passages, strict=True)):
        (score, start, end), empty, count = best_span(
            path, question, passage, kit.longest, kit.longest // 2
        )
        windows.append(count)
        text = passage[start:end]
        start += len(text) - len(text.lstrip())
        assert (found[i].start, found[i].end) == (start, start + len(text.strip()))
        assert found[i].text == text.strip()
        assert close(found[i].score, score)
        assert (unsure[i].text == "") == (empty > score)
        assert close(unsure[i].score, max(empty, score))
    assert windows[0] == 1 < windows[2]


def test_embed_is_the_mean_of_the_pipelines_features(checkpoint):  # noqa: F811
    for name in ("bert-bare", "bert-mlm", "roberta-mlm", "gpt2", "llama"):
        path = checkpoint(name)
        pipe = hf.pipeline("feature-extraction", str(path))
        for text, vector in zip(tiny.LINES, embed(path, tiny.LINES), strict=True):
            wanted = torch.tensor(pipe(text)[0]).mean(0)
            torch.testing.assert_close(vector, wanted, rtol=0, atol=1e-5)


def test_embed_of_an_encoder_decoder_is_the_mean_of_its_encoder(checkpoint):  # noqa: F811
    for name in ("t5", "bart"):
        path = checkpoint(name)
        model = hf.AutoModel.from_pretrained(path).get_encoder().eval()
        tokenizer = hf.AutoTokenizer.from_pretrained(path)
        for text, vector in zip(tiny.LINES, embed(path, tiny.LINES), strict=True):
            with torch.no_grad():
                wanted = model(tokenizer(text, return_tensors="pt")["input_ids"])[0][0].mean(0)
            torch.testing.assert_close(vector, wanted, rtol=0, atol=1e-5)
