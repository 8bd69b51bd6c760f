"""Instruction tuning: what a batch teaches, that conversations stay apart, and that runs answer."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from io import StringIO
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from rich.console import Console
from typer.testing import CliRunner

from allformer import tasks
from allformer.checkpoint.load import load
from allformer.checkpoint.weights import read_tensors
from allformer.cli.main import app
from allformer.cli.show_batch import print_rows
from allformer.core.loss import IGNORE
from allformer.core.model import build
from allformer.errors import ConfigError, DataError
from allformer.explain.examples import about_examples, example_list, title_of
from allformer.text.load import load_tokenizer
from allformer.train.batch import tensors, uncounted
from allformer.train.first_batch import first_batch
from allformer.train.loop import train
from allformer.train.objectives.instruction import Instruction
from allformer.train.predictions import Predictions
from allformer.train.recipe import TokenizerRecipe, make_recipe, read_recipe
from allformer.train.sections.vocabulary import Vocabulary
from allformer.train.stream import Place, micro_batches
from allformer.train.tokenizing import make_tokenizer
from tests.chats import CHATML, CHATS, END, FORGETS, answers_by_hand, chat_tokenizer
from tests.tiny import make

WORDS = ["red", "green", "blue", "white", "black"]


def questions(count=40):
    """What comes after a colour: there is one answer to each question."""
    return [
        {"instruction": f"{i}: after {WORDS[i % 5]}?", "output": f"{WORDS[(i + 1) % 5]}."}
        for i in range(count)
    ]


def recipe(path=None, options=None, data=None, **train_):
    settings = {"steps": 20, "batch_tokens": 256, "save_every": 10, "validate_every": 20,
                "average": 1, **train_}  # fmt: skip
    return make_recipe(
        {
            "objective": {"is": "instruction", **(options or {})},
            "data": {"path": path and str(path), "max_length": 128, "hold_out": 6, **(data or {})},
            "tokenizer": {"kind": "byte-bpe", "vocab": 320},
            "model": {"dim": 32, "heads": 2, "feed": 64, "layers": 1, "dropout": 0.0},
            "optim": {"rate": 1e-2},
            "schedule": {"kind": "constant", "warmup": 5},
            "train": settings,
            "log": {"every": 5, "tensorboard": False},
        }
    )


def opened(records, validation=None, template=CHATML, say=lambda line: None, **asked):
    """An objective that has read the records with the small tokeniser of ChatML."""
    objective = Instruction(recipe(**asked))
    objective.open((records, validation or records))
    objective.encode(chat_tokenizer(template), say)
    return objective


def messages(chats):
    return [{"messages": chat} for chat in chats]


def model_of(objective):
    torch.manual_seed(0)
    tree = objective.config(Vocabulary.of(objective.pieces))
    return build(tree).double()


def rows_of(objective, batch):
    """What is read and what is said, row by row, −100 where nothing is."""
    labels = torch.full_like(batch.ids, IGNORE)
    labels[batch.places] = batch.labels
    borders = list(pairwise(batch.layout.starts.tolist()))
    return [(batch.ids[a:b].tolist(), labels[a:b].tolist()) for a, b in borders]


def check_batch():
    """Token by token: the label of a place is the token after it, if that is of an answer."""
    objective = opened(messages(CHATS))
    tokenizer = objective.pieces
    batch = objective.collate(objective.examples(0), np.arange(2))
    total = 0
    for (read, said), chat in zip(rows_of(objective, batch), CHATS, strict=True):
        whole = tokenizer.apply_chat_template(chat, tokenize=True)[: len(read) + 1]
        assert read == whole[:-1]
        learnt = answers_by_hand(tokenizer, whole)
        wanted = [i if is_so else IGNORE for i, is_so in zip(whole, learnt, strict=True)]
        assert said == wanted[1:]
        total += sum(learnt)
    assert batch.tokens == total == len(batch.labels)


def test_a_batch_says_the_answers_and_nothing_else():
    check_batch()


def test_a_framed_batch_has_the_same_labels_and_the_same_loss():
    objective = opened(messages(CHATS))
    model = model_of(objective)
    table, index = objective.examples(0), np.arange(2)
    plain = objective.collate(table, index)
    framed = objective.collate(table, index, objective.frame())
    assert framed.tokens == plain.tokens
    assert framed.ids.shape == framed.labels.shape == (256,)
    assert framed.labels[framed.labels != IGNORE].tolist() == plain.labels.tolist()
    for one, other in zip(objective.loss(model, plain), objective.loss(model, framed), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_two_framed_batches_share_one_graph():
    objective = opened(questions(40))
    model = model_of(objective)
    items = micro_batches(objective, objective.recipe.train, objective.frame(), Place())
    batches = [next(items)[0] for _ in range(3)]
    items.close()
    assert len({tuple(x.shape for x in tensors(batch)) for batch in batches}) == 1
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(
        lambda batch: objective.loss(model, batch), backend=graphs, fullgraph=True, dynamic=False
    )
    for batch in batches:
        loss, _ = compiled(uncounted(batch))
        torch.testing.assert_close(loss, objective.loss(model, batch)[0])
    assert graphs.frame_count == 1


def check_apart():
    """A batch of conversations weighs what they weigh alone, and moves the weights alike."""
    objective = opened(messages([CHATS[0], CHATS[1][1:3], CHATS[1][5:]]))
    model, table = model_of(objective), objective.examples(0)
    parts, together = [], np.arange(len(table))
    for index in (*([i] for i in together), together):
        model.zero_grad()
        loss, _ = objective.loss(model, objective.collate(table, np.array(index)))
        loss.backward()
        parts.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for *alone, joint in zip(*parts, strict=True):
        torch.testing.assert_close(sum(alone), joint, rtol=1e-9, atol=1e-9)


def test_conversations_of_one_batch_do_not_see_each_other():
    check_apart()


def test_loss_and_gradients_are_transformers_own(tmp_path):
    transformers = pytest.importorskip("transformers")
    path = make(tmp_path, "gpt2")
    objective = Instruction(
        make_recipe({"objective": "instruction", "model": {"checkpoint": str(path)}})
    )
    chats = [{"prompt": "Who?", "completion": "Goethe."}, {"prompt": "你", "completion": "好！"}]
    objective.open((chats, chats))
    objective.config(Vocabulary.of(load_tokenizer(path)))
    assert objective.recipe.data.max_length == 64  # what the model has positions for
    objective.encode(objective.tokenizer(load_tokenizer(path)), lambda line: None)
    ours = load(path, dtype=torch.float64).eval()
    batch = objective.collate(objective.examples(0), np.arange(2))
    loss, _ = objective.loss(ours, batch)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path).double().eval()
    want = torch.zeros((), dtype=torch.float64)
    for read, said in rows_of(objective, batch):
        ids = torch.tensor([[*read, 0]])
        labels = torch.tensor([[IGNORE, *said]])  # transformers shifts them itself
        count = int((labels != IGNORE).sum())
        want = want + theirs(input_ids=ids, labels=labels).loss * count
    torch.testing.assert_close(loss, want)
    loss.backward()
    want.backward()
    mine = ours.decoder.source.embedding.weight.grad
    torch.testing.assert_close(mine, theirs.transformer.wte.weight.grad)


# --- what is left out, what is refused ------------------------------------------------------------


def test_what_is_too_long_blank_or_broken_is_left_out_and_said():
    long = {"instruction": "Tell me.", "output": "word " * 200}
    blank = {"instruction": "Silence?", "output": " \n"}
    records = [*questions(3), long, blank, {"text": "no conversation"}]
    lines: list[str] = []
    data = {"skip_bad": True}
    objective = opened(records, questions(2), say=lines.append, data=data)
    assert len(objective.examples(0)) == 3
    assert lines[0].startswith("training: 3 conversations, ")
    assert "1 longer than data.max_length=128 (the longest has" in lines[0]
    assert (
        "1 without a word in the answers: left out; 1 broken: left out (the first: no c" in lines[0]
    )
    assert lines[1].startswith("validation: 2 conversations, ")
    cut = opened(records, questions(2), data={**data, "truncate": True})
    assert cut.examples(0)["ids"].lengths.tolist()[-1] == 128
    assert len(cut.examples(0)) == 4


def check_cut():
    """A long question leaves nothing to learn, even where it is cut."""
    long = {"instruction": "word " * 200, "output": "Yes."}
    with pytest.raises(DataError, match=r"nothing is left of the training data; .*data.max_length"):
        opened([long], questions(1), data={"truncate": True})


def test_a_question_that_fills_all_is_left_out():
    check_cut()


def test_broken_records_are_named_by_file_and_line(tmp_path):
    lines = [*map(json.dumps, questions(9)), json.dumps({"instruction": "x", "output": 3})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    objective = Instruction(recipe(tmp_path / "a.jsonl", data={"hold_out": 2}))
    objective.open()
    with pytest.raises(DataError, match=r"a.jsonl, line 10: output is 3; it must be a text"):
        objective.encode(chat_tokenizer(), lambda line: None)


def test_a_packed_array_is_read_and_some_of_it_held_out(tmp_path):
    path = tmp_path / "alpaca.json.gz"
    path.write_bytes(gzip.compress(json.dumps(questions(40)).encode()))
    objective = Instruction(recipe(path, data={"hold_out": 5}))
    objective.open()
    objective.encode(chat_tokenizer(), lambda line: None)
    asked = [objective.validation["question"][i] for i in range(len(objective.validation))]
    others = [objective.examples(0)["question"][i] for i in range(35)]
    assert len(asked) == 5
    assert not set(asked) & set(others)


@pytest.mark.parametrize("instructions", [["Add."], ["Add.", "Count.", "Sum up."]])
def test_one_instruction_may_go_with_many_inputs(instructions, tmp_path):
    rows = [
        {"instruction": instructions[i % len(instructions)], "input": f"{i} + 1", "output": f"{i}"}
        for i in range(60)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, *rows])))  # and each twice
    objective = Instruction(recipe(path, data={"hold_out": None}))
    objective.open()
    train, held = ({row["input"] for row in side} for side in objective.records)
    assert len(held) == 3  # 5 % of what differs
    assert train | held == {row["input"] for row in rows}
    assert not train & held


def test_a_system_message_is_put_where_there_is_none():
    objective = opened(messages(CHATS), options={"system": "Be brief."})
    ids = objective.examples(0)["ids"]
    texts = [objective.pieces.decode(ids[i], False) for i in range(2)]
    assert texts[0].startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    assert "Be brief." not in texts[1]  # it has its own


def test_a_tokeniser_trained_on_conversations_knows_the_letters_of_the_template():
    asked = replace(recipe(), tokenizer=TokenizerRecipe("characters", 200))
    objective = Instruction(asked)
    objective.open((questions(5), questions(5)))
    objective.encode(make_tokenizer(objective, lambda line: None), lambda line: None)
    ids = objective.examples(0)["ids"]
    assert objective.pieces.unk_id not in ids.flat()
    assert objective.pieces.decode(ids[0], False).startswith("<s>### User:\n0: after red?")


def test_history_that_is_rewritten_makes_a_row_of_every_answer():
    objective = opened(messages(CHATS), template=FORGETS)
    table = objective.examples(0)
    assert len(table) == 4
    assert [table["question"][i] for i in range(4)] == [
        "What is a dog?", "请列出三种颜色。", "\nAnd in English?\n", "再见",
    ]  # fmt: skip


def test_an_answer_without_an_end_is_warned_of():
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" \
            "{% if add_generation_prompt %}assistant:{% endif %}"  # fmt: skip
    lines: list[str] = []
    opened(messages(CHATS), template=plain, say=lines.append)
    assert any("no special token ends an answer" in line for line in lines)


def test_a_template_may_be_a_file_and_an_encoder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"objective.template='no.jinja' cannot be read"):
        Instruction(recipe(options={"template": "no.jinja"})).tokenizer(chat_tokenizer())
    (tmp_path / "own.jinja").write_text(FORGETS)
    objective = Instruction(recipe(options={"template": str(tmp_path / "own.jinja")}))
    assert objective.tokenizer(chat_tokenizer()).settings.chat_template == FORGETS
    asked = make_recipe({"objective": "instruction", "model": {"preset": "bert-base"}})
    with pytest.raises(ConfigError, match="needs a DecoderOnly"):
        Instruction(asked).config(Vocabulary(100))


# --- runs -----------------------------------------------------------------------------------------


def test_a_run_learns_to_answer_and_to_stop_and_goes_on_as_if_nothing_had_happened(tmp_path):
    data = questions(200), questions(5)
    asked = recipe(steps=120, save_every=60, validate_every=60, average=1)
    result = train(asked, tmp_path / "a", corpus=data, device="cpu")
    held = [row for row in result.rows if "validation_nll" in row]
    assert held[0]["step"] == 0  # before training
    assert held[-1]["validation_perplexity"] < held[0]["validation_perplexity"] / 20
    asked_first = tasks.generate(
        str(tmp_path / "a"), data[1][3]["instruction"], chat=True, max_new_tokens=20
    )
    assert asked_first == "black."  # and no more: it has learnt to stop
    shown = Predictions.load(tmp_path / "a")
    assert shown is not None
    assert [row.input for row in shown.rows] == [q["instruction"] for q in data[1]]
    assert [row.wanted for row in shown.rows] == [q["output"] for q in data[1]]
    assert all(row.before not in (None, row.wanted) for row in shown.rows)
    page = example_list(shown)
    assert page.count('class="sides"') == page.count("Before") == len(shown.rows)
    assert title_of(shown) == "examples.compared"
    assert "before the training" in about_examples(shown)[0]
    half = tmp_path / "b"
    train(recipe(steps=60, save_every=60, validate_every=60, average=1), half, corpus=data,
          device="cpu")  # fmt: skip
    train(None, half, resume=True, overrides=["train.steps=120"], corpus=data, device="cpu")
    one, two = (read_tensors(path / "model.safetensors") for path in (tmp_path / "a", half))
    assert all(torch.equal(one[name], two[name]) for name in one)
    again = Predictions.load(half)
    assert again == shown  # what was said before is kept over the resume


# --- looking at a batch ---------------------------------------------------------------------------


def test_a_first_batch_is_shown_with_what_is_learnt():
    rows = first_batch(recipe(), corpus=(questions(8), questions(2)), say=lambda line: None)
    for row in rows:
        text = "".join(part for part, _ in row.parts)
        learnt = [part for part, is_so in row.parts if is_so]
        assert text.startswith("<s>### User:\n")
        assert len(learnt) == 1
        assert learnt[0].rstrip("</s>").rstrip(".") in WORDS
        assert learnt[0].endswith(".</s>")
        assert len(row.ids) == len(row.learnt)


def shown(**console):
    rows = first_batch(recipe(), corpus=(questions(2), questions(2)), say=lambda line: None)
    out = StringIO()
    print_rows(rows, Console(file=out, width=100, **console))
    return out.getvalue()


def test_it_is_in_colour_on_a_terminal_and_between_signs_elsewhere():
    plain = shown()
    assert "⟦green.</s>⟧" in plain
    assert "\x1b" not in plain
    assert "between ⟦ and ⟧; no row sees another" in plain
    colour = shown(force_terminal=True, color_system="standard")
    assert "\x1b[1;32mgreen.</s>" in colour
    assert "⟦" not in colour


def test_show_batch_is_an_option_of_train(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, questions(20))))
    (tmp_path / "r.yaml").write_text(recipe(tmp_path / "a.jsonl").to_yaml())
    asked = ["train", str(tmp_path / "r.yaml"), "--show-batch", "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert all(set(line) == {"ids", "learnt", "parts"} for line in lines)
    other = make_recipe({"objective": "masked-lm"})
    with pytest.raises(ConfigError, match="has no batch to show"):
        first_batch(other)


@pytest.mark.parametrize("name", ["stories-instruct", "smollm2-zh"])
def test_the_recipes_are_read(name):
    assert read_recipe(f"recipes/{name}.yaml").objective == "instruction"


def check_generation():
    """The end of a turn ends what a run writes, though the tokeniser's end of text is another."""
    objective = opened(messages(CHATS))
    end = objective.pieces.token_to_id(END)
    tree = objective.config(Vocabulary.of(objective.pieces))
    assert objective.generation(tree)["eos_token_id"] == end


def test_the_end_of_a_turn_ends_what_a_run_writes():
    check_generation()
