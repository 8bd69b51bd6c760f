"""The verbs of tasks, called as a user calls them."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch

from allformer.cli.main import main
from allformer.core.int8 import has_int8
from allformer.tasks import (
    answer,
    choose,
    classify,
    embed,
    fill,
    generate,
    open_kit,
    similarity,
    tag,
)
from tests import tiny
from tests.tiny import checkpoint  # noqa: F401

pytest.importorskip("transformers")
VERBS = (
    "fill", "classify", "choose", "tag", "answer", "embed", "similarity", "generate", "summarise",
)  # fmt: skip


class Called:
    """What came of a call of the console script."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def records(self) -> list:
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal(io.TextIOWrapper):
    """A person at the keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def allformer(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object, stdin: bytes = b"", typed: bytes | None = None) -> Called:
        monkeypatch.setattr(sys, "argv", ["allformer", *map(str, arguments)])
        kind = io.TextIOWrapper if typed is None else Terminal
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(stdin if typed is None else typed)))
        status = 0
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Called(status, said.out, said.err)

    return call


@pytest.mark.parametrize("verb", [*VERBS, "translate", "summarize"])
def test_each_verb_has_help_with_examples(allformer, verb):
    said = allformer(verb, "--help")
    assert said.status == 0
    assert "Example" in said.out
    assert verb in allformer("--help").out or verb == "summarize"


def test_fill_shows_tokens_with_scores_and_the_text(allformer, checkpoint):  # noqa: F811
    path, text = checkpoint("bert-mlm"), "The capital of [MASK] is Paris."
    best = fill(path, text, top=3)
    said = allformer("fill", path, text, "--top", 3)
    assert said.status == 0, said.err
    for one in best:
        assert f"{one.score:.4f}" in said.out
        assert one.text in said.out
    record = allformer("fill", path, text, "--top", 3, "--json").records
    assert record == [{"text": text, "fills": [one.to_dict() for one in best]}]


def test_a_file_comes_back_filled_line_by_line(allformer, checkpoint, tmp_path):  # noqa: F811
    path, file = checkpoint("bert-mlm"), tmp_path / "gaps.txt"
    lines = ["the [MASK] of", "a [MASK] is [MASK] in the [MASK]", "[MASK]"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = allformer("fill", path, "--file", file).out.splitlines()
    single = [fill(path, line, top=1)[0].text for line in (lines[0], lines[2])]
    assert [out[0], out[2]] == single
    assert "[MASK]" not in out[1]
    words = [gap[0].token for gap in fill(path, lines[1])]
    assert all(word.removeprefix("##") in out[1] for word in words)


def test_classify_prints_a_label_and_a_score_a_line(allformer, checkpoint, tmp_path):  # noqa: F811
    path, lines = checkpoint("bert-class"), ["he was born", "", "A man is eating food."]
    found = classify(path, lines)
    said = allformer("classify", path, stdin="\n".join(lines).encode() + b"\n")
    assert [line.split("\t")[0] for line in said.out.splitlines()] == [o.label for o in found]
    assert "YES" in allformer("classify", path, "he", "--all").out
    records = allformer("classify", path, "he", "--all", "--json").records
    assert [one["label"] for one in records[0]["labels"]] == [
        one.label for one in classify(path, "he", all=True)
    ]
    file = tmp_path / "pairs.tsv"
    file.write_text("he\twas\nshe\tis\n")
    paired = allformer("classify", path, "--file", file, "--pairs", "--json").records
    assert paired[0]["labels"][0]["score"] == pytest.approx(
        classify(path, "he", "was").score, abs=1e-6
    )
    typed = allformer("classify", path, "he", "--pair", "was", "--json").records
    assert typed[0]["labels"][0]["score"] == pytest.approx(
        paired[0]["labels"][0]["score"], abs=1e-6
    )


def test_choose_prints_a_choice_and_a_score_a_line(allformer, checkpoint, tmp_path):  # noqa: F811
    path, question, own = checkpoint("bert-choice"), "he was born", ["in france", "a man", "."]
    best = choose(path, question, own, all=True)
    typed = [x for choice in own for x in ("--choice", choice)]
    assert best[0].label in allformer("choose", path, question, *typed).out
    record = allformer("choose", path, question, *typed, "--all", "--json").records
    assert record == [{"question": question, "choices": [one.to_dict() for one in best]}]
    file = tmp_path / "questions.tsv"
    file.write_text("\t".join([question, *own]) + "\nwho\the\tshe\n", encoding="utf-8")
    lines = allformer("choose", path, "--file", file).out.splitlines()
    assert lines[0] == f"{best[0].label}\t{best[0].score:.6f}"
    assert lines[1].startswith(f"{choose(path, 'who', ['he', 'she']).label}\t")
    said = allformer("choose", path, question)
    assert said.status == 1
    assert "has no tab" in said.err


def test_tag_marks_entities(allformer, checkpoint):  # noqa: F811
    path, text = checkpoint("bert-ner"), tiny.LINES[2]
    found = tag(path, text)
    shown = allformer("tag", path, text).out
    assert shown.startswith(text)
    assert all(f"{one.start}-{one.end}" in shown for one in found)
    line = allformer("tag", path, stdin=text.encode() + b"\n").out
    assert line == "\t".join(f"{one.label} {one.text}" for one in found) + "\n"
    record = allformer("tag", path, text, "--json").records[0]
    assert record == {"text": text, "entities": [one.to_dict() for one in found]}


def test_answer_finds_it_in_a_passage_a_file_or_pairs(allformer, checkpoint, tmp_path):  # noqa: F811
    path, passage = checkpoint("bert-qa"), tiny.LINES[2]
    found = answer(path, "who?", passage)
    assert found.text in allformer("answer", path, "--question", "who?", "--passage", passage).out
    (tmp_path / "p.txt").write_text(passage, encoding="utf-8")
    (tmp_path / "q.txt").write_text("who?\nwhere?\n")
    asked = ("answer", path, "--file", tmp_path / "q.txt")
    said = allformer(*asked, "--passage-file", tmp_path / "p.txt").out.splitlines()
    assert said[0].split("\t")[0] == found.text
    assert len(said) == 2
    pairs = f"who?\t{passage}\n".encode()
    record = allformer("answer", path, "--json", "--top", 2, stdin=pairs).records[0]
    assert record["question"] == "who?"
    assert record["answers"][0]["text"] == found.text
    assert len(record["answers"]) == 2


def test_embed_prints_numbers_json_or_writes_an_array(allformer, checkpoint, tmp_path):  # noqa: F811
    path, lines = checkpoint("bert-bare"), ["he was born", "A man is eating food."]
    want = embed(path, lines).numpy()
    out = allformer("embed", path, *lines).out.splitlines()
    got = np.array([[float(x) for x in line.split()] for line in out])
    np.testing.assert_allclose(got, want, atol=1e-5)
    records = allformer("embed", path, *lines, "--json").records
    np.testing.assert_allclose([one["vector"] for one in records], want, atol=1e-5)
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    array = tmp_path / "x.npy"
    said = allformer("embed", path, "--file", tmp_path / "in.txt", "--out", array)
    assert said.status == 0
    assert said.out == ""
    assert "2 vectors of 32 numbers" in said.err
    np.testing.assert_allclose(np.load(array), want, atol=1e-5)
    unit = allformer("embed", path, "he", "--normalise", "--pooling", "cls,mean").out
    assert np.linalg.norm([float(x) for x in unit.split()]) == pytest.approx(1, abs=1e-4)
    assert len(unit.split()) == 64


def test_similarity_is_a_number_a_table_or_a_number_a_line(allformer, checkpoint, tmp_path):  # noqa: F811
    path, texts = checkpoint("bert-bare"), ["he was born", "a man", "two women"]
    table = similarity(path, texts)
    assert float(allformer("similarity", path, *texts[:2]).out) == pytest.approx(
        float(table[0, 1]), abs=1e-5
    )
    shown = allformer("similarity", path, *texts).out
    assert all(f"{float(x):.3f}" in shown for x in table.flatten())
    records = allformer("similarity", path, *texts, "--json").records
    assert [(one["a"], one["b"]) for one in records] == [
        (texts[0], texts[1]), (texts[0], texts[2]), (texts[1], texts[2]),
    ]  # fmt: skip
    file = tmp_path / "pairs.tsv"
    file.write_text(f"{texts[0]}\t{texts[1]}\n{texts[1]}\t{texts[2]}\n")
    lines = allformer("similarity", path, "--file", file).out.splitlines()
    assert [float(x) for x in lines] == pytest.approx(
        [float(table[0, 1]), float(table[1, 2])], abs=1e-5
    )


def test_generate_streams_what_it_would_return(allformer, checkpoint):  # noqa: F811
    path = checkpoint("gpt2")
    want = generate(path, "Goethe", max_new_tokens=8)
    said = allformer("generate", path, "Goethe", "--max-new-tokens", 8)
    assert said.out == want + "\n"
    records = allformer("generate", path, "Goethe", "--max-new-tokens", 8, "--json").records
    assert records[0].items() > {"prompt": "Goethe", "text": want}.items()
    beams = allformer("generate", path, "Goethe", "--max-new-tokens", 8, "--num-beams", 3)
    assert beams.out.rstrip("\n") == generate(path, "Goethe", max_new_tokens=8, num_beams=3)


def test_what_a_checkpoint_searches_with_beams_is_shown_when_it_is_done(
    allformer,
    checkpoint,  # noqa: F811
    tmp_path,
):
    path = tiny.make(tmp_path / "gpt2", "gpt2")
    (path / "generation_config.json").write_text('{"num_beams": 3, "eos_token_id": 0}')
    said = allformer("generate", path, "Goethe", "--max-new-tokens", 8)
    want = generate(checkpoint("gpt2"), "Goethe", max_new_tokens=8, num_beams=3)
    assert (said.status, said.out) == (0, want + "\n")


def test_options_that_draw_switch_drawing_on(allformer, checkpoint):  # noqa: F811
    path, short = checkpoint("gpt2"), ("--max-new-tokens", 8)
    drawn = {
        allformer("generate", path, "Goethe", *short, "--temperature", 1.5, "--seed", seed).out
        for seed in (1, 1, 2)
    }
    assert len(drawn) == 2
    options = {"do_sample": True, "top_k": 5, "seed": 3, "max_new_tokens": 8}
    said = allformer("generate", path, "Goethe", *short, "--top-k", 5, "--seed", 3)
    assert said.out == generate(path, "Goethe", **options) + "\n"
    greedy = allformer("generate", path, "Goethe", *short, "--temperature", 0)
    assert greedy.out == generate(path, "Goethe", max_new_tokens=8) + "\n"
    assert "warning" not in greedy.err


def test_guesses_and_eight_bits_change_no_text_and_are_told_of(
    allformer,
    checkpoint,  # noqa: F811
):
    path, short = checkpoint("gpt2"), ("--max-new-tokens", 16)
    want = allformer("generate", path, "Goethe", *short)
    said = allformer("generate", path, "Goethe", *short, "--lookup", 5)
    assert said.out == want.out
    assert re.search(r"guessed \d+ tokens, \d+% right · \d+ steps of \d\.\d\d tokens", said.err)
    said = allformer("generate", path, "Goethe", *short, "--draft", path, "--temperature", 0)
    assert said.out == want.out
    assert "100% right" in said.err
    file = allformer("generate", path, *short, "--lookup", 5, "--cache", "int8", stdin=b"Goethe\n")
    assert file.status == 0
    assert "guessed" in file.err
    assert "guessed" not in want.err
    [record] = allformer("generate", path, "Goethe", *short, "--lookup", 5, "--json").records
    assert 0 <= record["accepted_tokens"] <= record["guessed_tokens"] > 0


def test_what_cannot_guess_is_refused(allformer, checkpoint, tmp_path):  # noqa: F811
    path, other = checkpoint("gpt2"), checkpoint("llama")
    said = allformer("generate", path, "Goethe", "--draft", other)
    assert (said.status, said.out) == (1, "")
    assert "has other tokens than" in said.err
    both = allformer("generate", path, "Goethe", "--draft", path, "--lookup", 5)
    assert "--draft and --lookup both guess ahead" in both.err
    assert (
        "--lookup 0 must be a whole number" in allformer("generate", path, "A", "--lookup", 0).err
    )
    assert "--cache int3 is not a choice" in allformer("generate", path, "A", "--cache", "int3").err
    beams = allformer("generate", "nowhere", "A", "--lookup", 5, "--num-beams", 3)
    assert "--lookup cannot guess for --num-beams 3; leave one of them out" in beams.err
    own = shutil.copytree(path, tmp_path / "own")
    tiny.edit(own / "generation_config.json", num_beams=4)
    said = allformer("generate", own, "A", "--draft", own)
    assert "--draft cannot guess for the checkpoint's num_beams=4; give --num-beams 1" in said.err


@pytest.mark.skipif(not has_int8(), reason="this torch has no products in eight bits")
def test_eight_bits_are_computed_in_where_they_are_asked_for(allformer, checkpoint):  # noqa: F811
    path, short = checkpoint("gpt2"), ("--max-new-tokens", 8)
    said = allformer("generate", path, "Goethe", *short, "--dtype", "int8", "--device", "cpu")
    assert said.status == 0, said.err
    want = generate(open_kit(path, device="cpu"), "Goethe", max_new_tokens=8, dtype=torch.int8)
    assert said.out == want + "\n"
    both = allformer("generate", path, "A", "--dtype", "int8", "--lookup", 5)
    assert "--dtype int8 goes with no --lookup; leave one out" in both.err
    odd = allformer("generate", path, "A", "--dtype", "int9")
    assert "--dtype int9 is not known; try fp32, fp16, bf16, fp64, int8, quantised" in odd.err
    other = allformer("embed", path, "A", "--dtype", "int8")
    assert "--dtype int8 is not known" in other.err


def test_lines_of_prompts_give_one_line_each(allformer, checkpoint):  # noqa: F811
    path = checkpoint("gpt2")
    said = allformer("generate", path, "--max-new-tokens", 40, stdin=b"Goethe\nA man\nhe\n")
    assert said.status == 0, said.err
    assert len(said.out.split("\n")) == 4


def test_a_chat_goes_through_the_template(allformer, checkpoint):  # noqa: F811
    path = checkpoint("llama")
    said = allformer("generate", path, "who is he", "--chat", "--max-new-tokens", 6)
    assert said.out == generate(path, "who is he", chat=True, max_new_tokens=6) + "\n"


def test_a_conversation_is_remembered(allformer, checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("llama"))
    said = allformer(
        "generate", kit.directory, "--chat", "--max-new-tokens", 5, typed=b"who is he\nwhere\n"
    )
    first = generate(kit, "who is he", chat=True, max_new_tokens=5)
    talk = [("user", "who is he"), ("assistant", first), ("user", "where")]
    messages = [{"role": role, "content": text} for role, text in talk]
    second = generate(kit, [messages], chat=True, max_new_tokens=5)[0]
    assert said.out.splitlines() == [first, second]


def test_a_person_gets_each_answer_before_the_next_question(allformer, checkpoint):  # noqa: F811
    said = allformer("classify", checkpoint("bert-class"), typed=b"he\nshe was\n")
    assert said.status == 0
    assert "Ctrl-D" in said.err
    assert len(said.out.splitlines()) == 2


def test_checkpoints_translate_and_summarise_line_by_line(allformer, checkpoint):  # noqa: F811
    path, lines = checkpoint("t5"), b"Goethe wrote Faust\n\nA man is eating\n"
    said = allformer("translate", path, "--source", "en", "--target", "de", stdin=lines)
    assert said.status == 0, said.err
    assert len(said.out.split("\n")) == 4
    assert said.out.split("\n")[1] == ""
    for verb in ("summarise", "summarize"):
        records = allformer(verb, path, "--json", stdin=lines).records
        assert [one["text"] for one in records] == lines.decode().splitlines()
        assert records[0]["summary"]
        assert records[1]["summary"] == ""


def test_progress_is_shown_while_a_file_goes_into_another(allformer, checkpoint, tmp_path):  # noqa: F811
    (tmp_path / "in.txt").write_text("he\n" * 300)
    said = allformer("classify", checkpoint("bert-class"), "--file", tmp_path / "in.txt")
    assert len(said.out.splitlines()) == 300
    assert "text 300/300" in said.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("classify", "bert-mlm", "x"), ["BertForMaskedLM", "allformer fill"]),
        (("fill", "gpt2", "x"), ["GPT2LMHeadModel", "allformer generate"]),
        (("translate", "gpt2", "x"), ["GPT2LMHeadModel", "allformer generate"]),
        (("fill", "bert-mlm", "no gap"), ["[MASK]"]),
        (("classify", "bert-class", "he " * 99), ["101 tokens", "48", "--truncate"]),
        (("translate", "t5", "x"), ["en to de", "choose one"]),
        (("embed", "bert-bare", "x", "--pooling", "median"), ["median", "mean"]),
        (("embed", "bert-bare", "x", "--dtype", "fp8"), ["fp8", "bf16"]),
        (("embed", "bert-bare", "x", "--out", "x.txt"), ["x.npy"]),
        (("similarity", "bert-bare", "x"), ["two or more"]),
        (("answer", "bert-qa", "--question", "x"), ["--passage"]),
        (("tag", "bert-ner", "x", "--join", "simpel"), ["simpel", "simple"]),
        (("generate", "gpt2", "x", "--chat"), ["chat template"]),
        (("generate", "gpt2", "x", "--device", "gpu"), ["'gpu'"]),
    ],
)
def test_a_mistake_is_one_message_and_status_1(allformer, checkpoint, arguments, words):  # noqa: F811
    verb, name, *rest = arguments
    said = allformer(verb, checkpoint(name), *rest)
    assert said.status == 1
    assert said.out == ""
    for word in words:
        assert word in said.err, said.err


def test_a_mistake_in_a_file_names_its_lines(allformer, checkpoint, tmp_path):  # noqa: F811
    file = tmp_path / "in.txt"
    file.write_text("[MASK]\n" * 300 + "no gap\n")
    said = allformer("fill", checkpoint("bert-mlm"), "--file", file)
    assert said.status == 1
    assert "in.txt, lines 257 to 301: text 45" in said.err
    assert len(said.out.splitlines()) == 256
    said = allformer("fill", "nowhere", "[MASK]")
    assert said.status == 1
    assert "nowhere" in said.err
