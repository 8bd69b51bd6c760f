"""The scripts that tune on real work: what is held out stays unseen, the peer is scored alike."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import allformer as af
from allformer import config
from allformer.core.layout import Grid
from allformer.train.supervised.packed import lay_texts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_what_the_training_benchmarks_are_taught_goes_through_the_step(script: Any) -> None:
    cases, block = script("cases"), config.Block(config.Attention(2), config.Feed(16))
    stack = config.Stack(8, config.Tokens(20), config.Sinusoidal(), (block,), causal=True)
    tree = config.DecoderOnly(stack)
    ids = torch.randint(20, (2, 5))
    step = script("train_cpu").words_step(tree, "decoder")
    assert step(cases.Words(ids, Grid(2, 5), ids, None, 10)).isfinite()
    long = script("long_peers")
    words = long.Batch(ids, None, ids.flatten(), None, 10)
    model = af.build(tree, seed=0)
    assert long._our_step(model, "decoder", words, torch.device("cpu"))().loss.isfinite()


def test_no_scored_sentence_is_trained_on(script: Any, tmp_path: Path) -> None:
    rows = ["A cat sits.,A cat is sitting.,4.8", "A dog.,A hound.,4.5", '"Rain, rain.",Sun.,0.2']
    (tmp_path / "stsb-en-train.csv").write_text("\n".join(rows) + "\n")
    held = {"dev": [("A hound.", "A horse.", 1.0)]}
    args = Namespace(stsb=tmp_path, quick=False)
    found = script("tuned_vectors").unseen(args, "en", held)
    assert found == [("A cat sits.", "A cat is sitting.", 4.8), ("Rain, rain.", "Sun.", 0.2)]


def test_no_passage_is_both_learnt_and_tested(script: Any, tmp_path: Path) -> None:
    data = [{"title": str(i), "paragraphs": []} for i in range(9)]
    file = tmp_path / "xquad.json"
    file.write_text(json.dumps({"version": "1.1", "data": data}))
    train, held = script("tuned_tasks").articles(Namespace(xquad=file, quick=False))
    titles = [[article["title"] for article in json.loads(x)["data"]] for x in (train, held)]
    assert titles == [["1", "2", "3", "5", "6", "7"], ["0", "4", "8"]]


def test_the_same_instructions_are_held_out_each_time(script: Any, tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_text(json.dumps([{"instruction": str(i), "output": "."} for i in range(120)]))
    args = Namespace(out=tmp_path, quick=False)
    found = [
        [x.read_text().splitlines() for x in script("tuned_chinese").split("sft", file, args)]
        for _ in range(2)
    ]
    assert found[0] == found[1]
    train, held = map(set, found[0])
    assert (len(train), len(held), len(train & held)) == (20, 100, 0)


def test_transformers_is_scored_as_it_is(script: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, num_labels=3,
    )  # fmt: skip
    peer = transformers.BertForTokenClassification(config).eval()
    peer.save_pretrained(tmp_path)
    model: Any = af.load(tmp_path).eval()
    lengths = np.array([5, 9, 2])
    ids = torch.randint(40, (int(lengths.sum()),)).numpy()
    texts = lay_texts(lengths, ids, np.zeros_like(ids))
    tags = script("tuned_tasks").TheirTags
    with torch.no_grad():
        theirs = tags.scores(None, peer, texts)
        ours = tags.__mro__[1].scores(None, model, texts)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-6)
