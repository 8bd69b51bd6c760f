"""`allformer generate` at the keyboard: how fast, in which form, and a conversation."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys

import pytest

from allformer.cli import chat, say
from allformer.cli.chat import Conversation
from allformer.tasks import generate, open_kit
from tests import tiny
from tests.tiny import checkpoint  # noqa: F401
from tests.unit.test_cli_tasks import Terminal, allformer  # noqa: F401

pytest.importorskip("transformers")
# ruff: noqa: F811


def pairs(*texts: str) -> list[dict[str, str]]:
    """User and assistant in turn."""
    roles = ("user", "assistant") * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def answer(kit, *texts: str, **options) -> str:
    return generate(kit, [pairs(*texts)], chat=True, max_new_tokens=5, **options)[0]


def test_speed_is_told_beside_the_text(allformer, checkpoint):
    path = checkpoint("gpt2")
    said = allformer("generate", path, "Goethe", "A man", "--max-new-tokens", 6)
    assert "tok/s" not in said.out
    told = re.search(r"prompt (\d+) tokens, .* tok/s · new 12 tokens, .* tok/s\n", said.err)
    read = sum(len(open_kit(path).tokenizer.encode(text)) for text in ("Goethe", "A man"))
    assert told is not None, said.err
    assert int(told[1]) == read
    first, second = allformer(
        "generate", path, "Goethe", "A man", "--max-new-tokens", 6, "--json"
    ).records
    assert first["prompt_tokens"] + second["prompt_tokens"] == read
    assert first["new_tokens"] == 6
    assert first["prompt_tokens_per_second"] > 0
    assert first["new_tokens_per_second"] > 0
    for arguments in (("Goethe", "--num-beams", 2), ("--json",)):  # nobody sees the first token
        said = allformer("generate", path, *arguments, "--max-new-tokens", 4, stdin=b"he\n")
        assert re.search(r"prompt \d+ tokens · new 4 tokens, .* tok/s\n", said.err), said.err


def test_a_stop_string_ends_the_text_and_is_no_part_of_it(allformer, checkpoint):
    path = checkpoint("llama")
    whole = generate(path, "Goethe", max_new_tokens=40)
    stop = whole[15:22]
    want = whole[: whole.index(stop)]
    said = allformer("generate", path, "Goethe", "--max-new-tokens", 40, "--stop", stop)
    assert said.out == want + "\n"
    assert 10 < len(want) < len(whole) - 10
    assert generate(path, "Goethe", max_new_tokens=40, stop_strings=[stop, "never"]) == want
    assert generate(path, "Goethe", max_new_tokens=40, stop_strings=stop, num_beams=1) == want


def test_what_is_written_has_the_form_that_was_asked_for(allformer, checkpoint, tmp_path):
    pytest.importorskip("llguidance")
    path, schema = checkpoint("gpt2"), tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"type": "boolean"}, "maxItems": 2}')
    said = allformer("generate", path, "Goethe", "--json-schema", schema)
    assert all(one in (True, False) for one in json.loads(said.out))
    (tmp_path / "g.lark").write_text('start: "<" /[a-c]{2}/ ">"')
    said = allformer("generate", path, "--grammar", tmp_path / "g.lark", stdin=b"he\nGoethe\n")
    assert all(re.fullmatch("<[a-c]{2}>", line) for line in said.out.splitlines())
    assert len(said.out.splitlines()) == 2
    said = allformer("generate", path, "Goethe", "--regex", "[0-9]{9}", "--max-new-tokens", 5)
    assert "1 of 1 texts ended before the form was complete; raise max_new_tokens" in said.err
    assert "--stop" not in said.err
    said = allformer("generate", path, "Goethe", "--regex", "[0-3]{2}5[0-9]{6}", "--stop", "5")
    assert "complete; raise max_new_tokens (--max-new-tokens), or leave stop_strings" in said.err
    said = allformer("generate", path, "Goethe", "--regex", "[0-9]{9}", "--num-beams", 2)
    assert re.fullmatch("[0-9]{9}\n", said.out)
    assert "complete" not in said.err


def test_a_warning_after_a_text_stands_on_a_line_of_its_own(allformer, checkpoint, monkeypatch):
    pytest.importorskip("llguidance")
    monkeypatch.setattr(sys, "stderr", sys.stdout)  # as on a terminal
    path, form = checkpoint("gpt2"), ("--regex", "[0-9]{9}", "--max-new-tokens", 5)
    lines = allformer("generate", path, "Goethe", *form).out.splitlines()
    assert re.fullmatch("[0-9]+", lines[0])
    assert lines[1].startswith("allformer: warning: 1 of 1 texts ended before the form")
    assert "tok/s" in lines[2]
    assert len(lines) == 3


def test_a_forced_first_token_is_no_part_of_the_form(checkpoint, tmp_path, recwarn):
    from allformer.generate.structured import Structured

    pytest.importorskip("llguidance")
    path = tiny.make(tmp_path / "bart", "bart")
    tiny.edit(path / "generation_config.json", forced_bos_token_id=0, forced_eos_token_id=2)
    found = generate(path, ["Goethe", "he"], structured=Structured.regex("[a-f]{3}"), min_length=0)
    assert all(re.fullmatch("[a-f]{3}", text) for text in found)
    assert not [str(each.message) for each in recwarn if "form" in str(each.message)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--regex", "("], "regex='(' cannot be used: unclosed group"),
        (["--regex", "x", "--json-schema", "y"], "--regex and --json-schema are two forms"),
        (["--json-schema", "y"], "y: No such file"),
    ],
)
def test_a_form_that_is_none_is_told_before_a_model_is_opened(
    allformer, arguments, words, tmp_path, monkeypatch
):
    pytest.importorskip("llguidance")
    monkeypatch.chdir(tmp_path)
    said = allformer("generate", "nowhere", "x", *arguments)
    assert (said.status, said.err.count("\n")) == (1, 1)
    assert words in said.err


def test_a_conversation_reads_only_what_is_new(allformer, checkpoint):
    kit = open_kit(checkpoint("llama"))
    told = ["generate", kit.directory, "--chat", "--max-new-tokens", 5, "--system", "be kind"]
    said = allformer(*told, typed=b"who is he\nwhere\n")
    one = answer(kit, "who is he", system="be kind")
    two = answer(kit, "who is he", one, "where", system="be kind")
    assert said.out.splitlines() == [one, two]
    system = [{"role": "system", "content": "be kind"}]
    lengths = [
        len(kit.tokenizer.apply_chat_template(system + talk, True, tokenize=True))
        for talk in (pairs("who is he"), pairs("who is he", one, "where"))
    ]
    first, second = re.findall(r"prompt (\d+) tokens(?: and (\d+) known)?", said.err)
    assert first == (str(lengths[0]), "")
    assert int(second[1]) >= lengths[0], "at least the first prompt is known"
    assert int(second[0]) + int(second[1]) == lengths[1]


def test_few_commands_and_all_else_is_said_to_the_model(allformer, checkpoint):
    kit = open_kit(checkpoint("llama"))
    told = ["generate", kit.directory, "--chat", "--max-new-tokens", 5]
    typed = b"who is he\n/undo\nwhere\n\n/new\n/help\n /help me\n/bye\nwho\n"
    said = allformer(*told, typed=typed)
    assert said.status == 0
    assert said.out.splitlines() == [
        answer(kit, question) for question in ("who is he", "where", " /help me")
    ]
    assert all(f"{name:6}{what}" in said.err for name, what in chat.COMMANDS.items())


def interrupted(monkeypatch, after: int):
    """Ctrl-C when so many bits of text are shown."""
    plain, count = say.out, 0

    def out(text: str) -> None:
        nonlocal count
        plain(text)
        count += 1
        if count == after:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(say, "out", out)


def check_interrupted(kit, monkeypatch, capsys) -> None:
    """What was seen of an answer counts as said, and the conversation goes on from there."""
    interrupted(monkeypatch, after=2)
    talk = Conversation(kit, {"chat": True, "max_new_tokens": 5})
    talk.ask("who is he")
    seen = talk.said[-1]["content"]
    whole = answer(kit, "who is he")
    assert whole.startswith(seen)
    assert 0 < len(seen) < len(whole)
    assert "stopped" in capsys.readouterr().err
    talk.ask("where")
    assert talk.said == pairs("who is he", seen, "where", answer(kit, "who is he", seen, "where"))


def test_ctrl_c_stops_an_answer_and_not_the_conversation(checkpoint, monkeypatch, capsys):
    check_interrupted(open_kit(checkpoint("llama")), monkeypatch, capsys)


def test_a_question_without_an_answer_is_not_remembered(checkpoint, monkeypatch, capsys):
    kit = open_kit(checkpoint("gpt2"))
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    talk = Conversation(kit, {"chat": True, "max_new_tokens": 5, "chat_template": template})
    talk.ask("who is he")
    before = list(talk.said)
    talk.ask("where " * 40)  # there are 64 positions
    assert "shorten it (or /new)" in capsys.readouterr().err
    monkeypatch.setattr(say, "generate", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    talk.ask("where")
    assert talk.said == before
    assert len(before) == 2


def test_ctrl_c_on_an_empty_line_ends_nothing(allformer, checkpoint, monkeypatch):
    plain, pressed = Terminal.readline, []

    def readline(self, *size):
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        return plain(self, *size)

    monkeypatch.setattr(Terminal, "readline", readline)
    kit = open_kit(checkpoint("llama"))
    said = allformer("generate", kit.directory, "--chat", "--max-new-tokens", 5, typed=b"where\n")
    assert said.status == 0
    assert said.out == answer(kit, "where") + "\n"
    assert "/bye ends the conversation" in said.err


def test_a_model_without_a_chat_template_is_refused_before_a_question_is_typed(
    allformer, checkpoint
):
    said = allformer("generate", checkpoint("gpt2"), "--chat", typed=b"who is he\nwhere\n")
    assert (said.status, said.out) == (1, "")
    assert said.err.count("no chat template") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no terminals to be had here")
def test_a_conversation_at_a_real_terminal_is_stopped_gone_on_with_and_ended(checkpoint):
    """Wide characters and Backspace, Ctrl-C in an answer and on a line, Ctrl-D."""
    import pty

    command = [sys.executable, "-m", "allformer", "generate", str(checkpoint("llama")), "--chat"]
    pid, screen = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", PYTHONUNBUFFERED="1")
        os.execv(sys.executable, [*command, "--max-new-tokens", "100000"])
    seen = b""

    def wait_for(sign: bytes, again: str = "") -> None:
        """Until it stands there; `again` is typed once more as long as nothing comes: Python does
        not notice a Ctrl-C while readline draws what was typed before it."""
        nonlocal seen
        quiet = 0
        while sign not in seen:
            if select.select([screen], [], [], 2)[0]:
                seen += os.read(screen, 4096)
                continue
            quiet += 1
            assert quiet < 30, seen
            typed(again)
        seen = seen.split(sign, 1)[1]

    def typed(text: str) -> None:
        os.write(screen, text.encode())

    wait_for(b"> ")
    typed("who 是谁\x7f\x7f\r")
    wait_for(b"\n")
    wait_for(answer(open_kit(checkpoint("llama")), "who 是")[:3].encode())
    typed("\x03")
    wait_for(b"stopped; Ctrl-D or /bye ends the conversation")
    wait_for(b"> ")
    typed("abc")
    wait_for(b"abc")
    typed("\x03")
    wait_for(b"Ctrl-D or /bye ends the conversation", again="\x03")
    wait_for(b"> ")
    typed("/help\r")
    wait_for(b"/new  forget")
    wait_for(b"> ")
    typed("\x04")
    while True:
        try:
            if not os.read(screen, 4096):
                break
        except OSError:  # the other end is closed
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
