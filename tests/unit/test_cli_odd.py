"""What a stranger types: odd input, odd options, odd paths. One line each, and a status."""

from __future__ import annotations

import json
import os
import threading

import pytest

from allformer.tasks import classify, generate
from tests.tiny import checkpoint  # noqa: F401
from tests.unit.test_cli_tasks import allformer  # noqa: F401

pytest.importorskip("transformers")
# ruff: noqa: F811


def test_a_byte_order_mark_on_standard_input_is_no_text(allformer, checkpoint):
    path = checkpoint("bert-class")
    plain = allformer("classify", path, "--json", stdin=b"he was born\n")
    marked = allformer("classify", path, "--json", stdin=b"\xef\xbb\xbfhe was born\n")
    assert marked.out == plain.out
    assert json.loads(marked.out)["text"] == "he was born"


def test_a_byte_order_mark_before_a_passage_is_no_text(allformer, checkpoint, tmp_path):
    path, ask = checkpoint("bert-qa"), ["--question", "Who wrote Faust?", "--json", "--top", "3"]
    for name, mark in (("plain", b""), ("marked", b"\xef\xbb\xbf")):
        (tmp_path / name).write_bytes(mark + b"Goethe wrote Faust in Weimar.")
    plain, marked = (
        allformer("answer", path, "--passage-file", tmp_path / name, *ask).out
        for name in ("plain", "marked")
    )
    assert plain
    assert marked == plain


def test_a_pipe_given_as_a_file_is_read_once(allformer, checkpoint, tmp_path):
    path, pipe = checkpoint("bert-class"), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"he was born\na man\n"))
    writer.start()
    said = allformer("classify", path, "--file", pipe)
    writer.join()
    assert [line.split("\t")[0] for line in said.out.splitlines()] == [
        one.label for one in classify(path, ["he was born", "a man"])
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "nowhere", "x", "--beams", "0"], "--beams 0 must be a whole number"),
        (["translate", "nowhere", "x", "--max-new-tokens", "0"], "--max-new-tokens 0 must be"),
        (["translate", "nowhere", "x", "--length-penalty", "nan"], "--length-penalty nan must"),
        (["translate", "nowhere", "x", "--length-penalty", "inf"], "--length-penalty inf must"),
        (["translate", "nowhere", "x", "--beams", "9" * 30], "at most a thousand"),
        (["summarise", "nowhere", "x", "--num-beams", "0"], "--num-beams 0 must be"),
        (["generate", "nowhere", "x", "--max-new-tokens", "0"], "--max-new-tokens 0 must be"),
        (["generate", "nowhere", "x", "--num-beams", "-2"], "--num-beams -2 must be"),
        (["generate", "nowhere", "x", "--top-p", "nan"], "--top-p nan must lie in 0 … 1"),
        (["generate", "nowhere", "x", "--top-k", "-1"], "--top-k -1 must be"),
        (["generate", "nowhere", "x", "--repetition-penalty", "inf"], "--repetition-penalty inf"),
        (["generate", "nowhere", "x", "--temperature", "nan"], "--temperature nan must be"),
        (
            ["generate", "nowhere", "x", "--temperature", "-1"],
            "--temperature -1.0 must be a number of at least 0; 0 takes the likeliest token",
        ),
        (["generate", "nowhere", "x", "--system", "Hi"], "--system is a part of a chat; give"),
        (["generate", "nowhere", "x", "--chat-template", "t"], "--chat-template is a part of"),
        (["generate", "nowhere", "x", "--chat", "--chat-template", "t"], "t: No such file"),
        (["classify", "nowhere", "x", "--device", "meta"], "--device meta holds shapes"),
        (["classify", "nowhere", "x", "--device", "gpu"], "device='gpu' is not known"),
        (["classify", "nowhere", "x", "--dtype", "int4"], "--dtype int4 is not known"),
        (["generate", "nowhere", "x", "--dtype", "quantized"], "bf16, fp64, int8, quantised"),
        (["generate", "nowhere.gguf", "x"], "there is no file nowhere.gguf; give a path"),
        (["generate", "no/where.gguf", "x"], "there is no file no/where.gguf; give a path"),
        (["embed", "nowhere", "x", "--out", "no/where/x.npy"], "no/where/x.npy: No such file"),
        (["embed", "nowhere", "x", "--out", "x.txt"], "give x.npy"),
        (["info", "orignal-base"], "did you mean original-base"),
        (["info", "."], "config.json"),
        (["info", "--length", "0"], "the length must be at least 1"),
        (["info", "gpt2", "--dtype-bytes", "3"], "the bytes 1, 2, 4 or 8"),
        (["report", "nowhere"], "nowhere is no run directory"),
        (["report", ".", "--out", "no/where.html"], "no/where.html: No such file"),
        (["report", ".", "--sentences", "0"], "sentences=0 must be at least 1"),
        (["answer", "nowhere", "--question", "x"], "--question needs --passage"),
        (["answer", "nowhere", "--question", "x", "--passage-file", "y"], "y: No such file"),
        (["similarity", "nowhere", "x"], "give two or more"),
        (["classify", "nowhere", "x", "--file", "y"], "give TEXT or --file, not both"),
        (["convert", "nowhere", "file/out"], "Not a directory"),
    ],
)
def test_a_mistake_is_one_line_before_any_model_is_opened(
    allformer, arguments, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    said = allformer(*arguments)
    assert said.status == 1
    assert words in said.err
    assert said.err.count("\n") == 1
    assert "not foreseen" not in said.err
    assert [each.name for each in tmp_path.iterdir()] == ["file"], "nothing is left behind"


def test_an_output_is_tried_before_the_work(allformer, checkpoint, tmp_path):
    said = allformer("embed", checkpoint("bert-bare"), "x", "--out", tmp_path / "x.npy" / "y.npy")
    assert said.status == 1
    (tmp_path / "x.npy").write_bytes(b"old")
    said = allformer("embed", "nowhere", "x", "--out", tmp_path / "x.npy")
    assert said.status == 1
    assert (tmp_path / "x.npy").read_bytes() == b"old", "to try is not to write"


def test_vectors_of_no_text_are_refused(allformer, checkpoint, tmp_path):
    said = allformer("embed", checkpoint("bert-bare"), "--out", tmp_path / "x.npy", stdin=b"")
    assert (said.status, said.err.count("\n")) == (1, 1)
    assert "there was no text" in said.err
    assert not (tmp_path / "x.npy").exists()


def test_a_chat_takes_another_template(allformer, checkpoint, tmp_path):
    path, file = checkpoint("llama-chat"), tmp_path / "other.jinja"
    text = "{{ bos_token }}{% for m in messages %}{{ m.content }} Paris {% endfor %}"
    file.write_text(text, encoding="utf-8-sig")
    said = allformer(
        "generate", path, "The capital", "--chat", "--chat-template", file, "--max-new-tokens", "5"
    )
    assert said.status == 0, said.err
    wanted = generate(path, "The capital", chat=True, chat_template=text, max_new_tokens=5)
    assert said.out == wanted + "\n"
    assert wanted != generate(path, "The capital", chat=True, max_new_tokens=5)
    file.write_text("{% if %}")
    said = allformer("generate", path, "The", "--chat", "--chat-template", file)
    assert (said.status, said.err.count("\n")) == (1, 1)
    assert "the chat template cannot be read" in said.err


def test_a_chat_at_a_terminal_shows_whose_turn_it_is(allformer, checkpoint):
    path = checkpoint("llama-chat")
    told = ["generate", path, "--chat", "--max-new-tokens", "3"]
    said = allformer(*told, typed=b"The capital\nParis\n")
    assert said.status == 0, said.err
    assert said.err.count("> ") == 3
    assert "> " not in said.out
    assert "> " not in allformer(*told, stdin=b"The capital\n").err


def test_a_seed_that_is_no_seed_is_refused(allformer, checkpoint):
    said = allformer("generate", checkpoint("llama-chat"), "The", "--top-k", 5, "--seed", 2**64)
    assert (said.status, said.err.count("\n")) == (1, 1)
    assert "must be a whole number of at most 64 bits" in said.err


def test_advice_fits_what_was_asked(allformer, checkpoint):
    said = allformer("translate", checkpoint("bert-bare"), "x").err
    assert "it can embed" in said
    assert "give another checkpoint to translate" in said
    assert "BertFor" not in said
    assert "give a BertForMaskedLM" in allformer("fill", checkpoint("bert-bare"), "x").err
    assert "give another" in allformer("fill", checkpoint("llama-chat"), "x").err


def test_no_help_shows_a_type_where_a_flag_takes_none(allformer):
    from allformer.cli.main import app

    verbs = [each.name or each.callback.__name__ for each in app.registered_commands]
    assert "report" in verbs
    for verb in (*([each] for each in verbs), ["bench"], ["bench", "long"]):
        text = allformer(*verb, "--help").out
        assert "<" not in text.replace("<mask>", ""), verb
        assert "Example" in text, verb
