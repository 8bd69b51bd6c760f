"""Tasks on loaded checkpoints: what goes in, what comes out, what is refused and how."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import allformer as af
from allformer.config import (
    Attention,
    Block,
    ClassHead,
    EncoderOnly,
    Feed,
    Learned,
    Stack,
    Tokens,
    repeat,
)
from allformer.errors import ConfigError, DataError, LengthError, TaskError
from allformer.tasks import (
    Answer,
    Entity,
    Fill,
    Label,
    answer,
    classify,
    embed,
    fill,
    open_kit,
    tag,
)
from allformer.tasks.batching import by_length
from tests import tiny
from tests.loud import make_loud
from tests.tiny import checkpoint  # noqa: F401

pytest.importorskip("transformers")
CALLS = {
    "fill": lambda kit: af.fill(kit, "[MASK]"),
    "classify": lambda kit: af.classify(kit, "x"),
    "tag": lambda kit: af.tag(kit, "x"),
    "answer": lambda kit: af.answer(kit, "x", "y"),
    "choose": lambda kit: af.choose(kit, "x", ["y", "z"]),
    "generate": lambda kit: af.tasks.generate(kit, "x"),
    "translate": lambda kit: af.translate(kit, "x"),
    "summarise": lambda kit: af.summarise(kit, "x"),
}


def test_a_path_or_a_kit_one_text_or_many(checkpoint):  # noqa: F811
    path = checkpoint("bert-class")
    kit = open_kit(path)
    one = classify(str(path), "A man is eating food.")
    assert isinstance(one, Label)
    assert classify(kit, ["A man is eating food."]) == [one]
    assert classify(kit, ("A man is eating food.",)) == [one]
    assert classify(kit, []) == []
    assert one.to_dict() == {"label": one.label, "score": one.score}
    with pytest.raises(AttributeError):
        one.label = "other"  # type: ignore[misc]


def test_results_come_in_the_order_of_the_texts_whatever_their_lengths(checkpoint):  # noqa: F811
    texts = [line[:n] for n in (3, 40, 12, 30, 1, 25) for line in tiny.LINES[:4]] * 6
    kit = open_kit(checkpoint("bert-class"))
    found = classify(kit, texts, all=True)
    for text, labels in list(zip(texts, found, strict=True))[::17]:
        alone = classify(kit, text, all=True)
        assert [one.label for one in labels] == [one.label for one in alone]
        for a, b in zip(labels, alone, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-5)


def test_groups_hold_texts_of_like_length_within_the_budget():
    lengths = [3, 9, 2, 0, 5, 5, 12]
    groups = list(by_length(lengths, 10))
    assert sorted(sum(groups, [])) == list(range(7))  # noqa: RUF017
    for group in groups:
        widest = max(lengths[i] for i in group)
        assert len(group) == 1 or len(group) * widest <= 10
    assert groups[0] == [6]
    assert list(by_length([], 10)) == []


@pytest.mark.parametrize(
    "name",
    ["bert-mlm", "bert-class", "bert-ner", "bert-qa", "bert-choice", "bert-bare", "gpt2"],
)
def test_a_wrong_head_says_what_the_checkpoint_can(checkpoint, name):  # noqa: F811
    kit = open_kit(checkpoint(name))
    does = {"bert-mlm": "fill", "bert-class": "classify", "bert-ner": "tag", "bert-qa": "answer"}
    does["bert-choice"] = "choose"
    can = does.get(name, "embed" if name == "bert-bare" else "generate")
    for verb, call in CALLS.items():
        if verb == can:
            continue
        with pytest.raises(TaskError) as caught:
            call(kit)
        said = str(caught.value)
        assert said.startswith(f"{verb} needs ")
        assert f"is a {kit.architecture}: it can {can}" in said
        assert f"`allformer {can}`" in said
    if name == "bert-mlm":
        with pytest.raises(TaskError, match="; give a BertForTokenClassification that"):
            af.tag(kit, "x")
    assert embed(kit, "he").shape == (32,)


def test_a_text_without_a_gap_is_told_which_token_to_use(checkpoint):  # noqa: F811
    with pytest.raises(TaskError, match=r"text 2 .*has no \[MASK\]; put \[MASK\] where"):
        fill(checkpoint("bert-mlm"), ["[MASK]", "The capital of <mask>."])
    with pytest.raises(TaskError, match="<mask>"):
        fill(checkpoint("roberta-mlm"), "The capital of [MASK].")
    with pytest.raises(ConfigError, match="top=0"):
        fill(checkpoint("bert-mlm"), "[MASK]", top=0)


def test_the_users_own_spelling_stays_around_a_filled_gap(checkpoint):  # noqa: F811
    path = checkpoint("bert-mlm")
    for text in ("Die  HAUPTSTADT\tvon [MASK]!", "([MASK])", "[MASK]  is", "x[MASK]", "a\n[MASK]"):
        for one in fill(path, text, top=90):
            assert isinstance(one, Fill)
            left, right = text.split("[MASK]")
            word = one.token.removeprefix("##") if left else one.token
            if left and (word != one.token or word in ".,!?"):  # goes on with the word before
                assert one.text == left.rstrip() + word + right
            else:
                assert one.text == left + one.token + right


def test_several_gaps_give_a_list_each_with_the_others_open(checkpoint):  # noqa: F811
    found = fill(checkpoint("bert-mlm"), "the [MASK] of [MASK] is", top=3)
    assert [len(fills) for fills in found] == [3, 3]
    assert all(one.text.endswith("of [MASK] is") for one in found[0])
    assert all(one.text.startswith("the [MASK] of") for one in found[1])


def test_scores_of_all_tokens_sum_to_one(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("bert-mlm"))
    found = fill(kit, "the [MASK] of", top=10_000)
    assert len(found) == kit.stack.source.vocab
    assert sum(one.score for one in found) == pytest.approx(1.0, abs=1e-5)


def test_without_a_padding_id_texts_are_classified_one_by_one(checkpoint):  # noqa: F811
    texts = ["Goethe", "A man is eating", "he"]
    padded = classify(checkpoint("gpt2-class"), texts, all=True)
    alone = classify(checkpoint("gpt2-nopad"), texts, all=True)
    for a, b in zip(padded, alone, strict=True):
        assert [x.label for x in a] == [x.label for x in b]
        assert a[0].score == pytest.approx(b[0].score, abs=1e-5)


def test_pairs_must_be_as_many_as_texts(checkpoint):  # noqa: F811
    with pytest.raises(DataError, match="2 texts but 1 pairs"):
        classify(checkpoint("bert-class"), ["a", "b"], ["c"])


@pytest.mark.parametrize("call", ["classify", "tag", "fill", "embed"])
def test_what_is_no_text_is_refused_with_its_number(checkpoint, call):  # noqa: F811
    name = {"classify": "class", "tag": "ner", "fill": "mlm", "embed": "bare"}[call]
    with pytest.raises(DataError, match="text 2 is None"):
        getattr(af, call)(checkpoint(f"bert-{name}"), ["a", None])


def test_a_text_that_is_too_long_is_refused_or_cut_with_a_warning(checkpoint):  # noqa: F811
    path = checkpoint("bert-class")
    with pytest.raises(
        LengthError, match=r"text 2 \(\"he was he.*has 82 tokens, but Bert.* takes 48"
    ):
        classify(path, ["he", "he was " * 40])
    with pytest.warns(UserWarning, match="1 text was cut to 48 tokens"):
        cut = classify(path, "he was " * 40, truncate=True)
    assert cut.score == pytest.approx(classify(path, "he was " * 23).score, abs=1e-6)


def test_a_long_text_is_tagged_in_windows_each_token_once(checkpoint):  # noqa: F811
    """The windows' tokens, put together, are the text's; far from the seams labels stay."""
    kit = open_kit(checkpoint("bert-ner"))
    text = " ".join(tiny.LINES[:4] * 3)
    short, cut = open_kit(checkpoint("bert-ner")), 48
    assert len(kit.tokenizer.encode(text)) > 3 * cut
    found = tag(short, text, join="none")
    places = [(one.start, one.end) for one in found]
    assert places == sorted(set(places))
    pieces = kit.tokenizer(text)
    every = [
        span for span, s in zip(pieces.offsets(0), pieces.sequence_ids(0), strict=True) if s == 0
    ]
    assert set(places) <= set(every)
    everything = ClassHead(tuple(f"X{i}" for i in range(6)), at="token")  # nothing is "O"
    object.__setattr__(kit.model.config, "head", everything)
    assert [(one.start, one.end) for one in tag(kit, text, join="none")] == every
    for overlap in (0, 1, 7, 20):
        assert [(e.start, e.end) for e in tag(kit, text, join="none", overlap=overlap)] == every


def test_windows_cover_a_passage_whole_each_as_a_pair(checkpoint):  # noqa: F811
    tokenizer = open_kit(checkpoint("bert-qa")).tokenizer
    passage = " ".join(tiny.LINES[:4] * 3)
    rows = tokenizer(["who wrote?"], [passage], max_length=48, windows=12)
    seen: list[tuple[int, int]] = []
    for row in range(len(rows.texts)):
        where = zip(rows.offsets(row), rows.sequence_ids(row), strict=True)
        part = [span for span, sequence in where if sequence == 1]
        assert not seen or seen[-12:] == part[:12]
        seen += part[12:] if seen else part
        length = int(rows["attention_mask"][row].sum())
        types = rows["token_type_ids"][row, :length].tolist()
        assert types == [0] * 5 + [1] * (length - 5)  # [CLS] who wrote ? [SEP]
    whole = tokenizer(passage)
    assert seen == whole.offsets(0)[1:-1]


def test_entities_across_a_seam_are_whole():
    from allformer.tasks.tag import Token, _entities, _merge

    labels = ("O", "B-PER", "I-PER")
    text = "a b c d e f"

    def token(i: int, label: int) -> Token:
        return Token(2 * i, 2 * i + 1, i, torch.eye(3)[label] * 0.9)

    first = [token(i, label) for i, label in enumerate([0, 1, 2, 0])]  # its last two lie
    second = [token(i + 2, label) for i, label in enumerate([1, 2, 2, 0])]
    found = _entities(_merge([second, first], 2), text, labels, "simple")
    assert found == [Entity("PER", pytest.approx(0.9), 2, 9, "b c d e")]


def test_a_b_begins_a_new_entity(checkpoint):  # noqa: F811
    from allformer.tasks.tag import Token, _entities

    labels = ("O", "B-LOC", "I-LOC", "LOC")
    tokens = [Token(i, i + 1, i, torch.eye(4)[k]) for i, k in enumerate([1, 1, 2, 0, 3, 2])]
    assert [one.text for one in _entities(tokens, "abcdef", labels, "simple")] == ["a", "bc", "ef"]
    with pytest.raises(ConfigError, match="join='simpel'"):
        tag(checkpoint("bert-ner"), "x", join="simpel")


def test_one_passage_may_serve_many_questions(checkpoint):  # noqa: F811
    path, passage = checkpoint("bert-qa"), tiny.LINES[2]
    one = answer(path, "who wrote?", passage)
    many = answer(path, ["who wrote?", "where?"], passage)
    assert isinstance(one, Answer)
    assert (many[0].start, many[0].end) == (one.start, one.end)
    assert passage[one.start : one.end] == one.text
    with pytest.raises(DataError, match="2 questions but 1 passages"):
        answer(path, ["a", "b"], ["c"])
    with pytest.raises(DataError, match="passage 1 is empty"):
        answer(path, "a", "  ")


def test_a_model_for_long_texts_reads_all_that_it_can_at_a_time():
    from allformer.tasks.answer import _width

    def width(name: str, longest: int | None) -> int:
        return _width(SimpleNamespace(longest=longest, stack=af.preset(name).reader))

    assert width("longformer-base-4096", 4096) == 4096
    assert width("led-base-16384", 16_384) == 16_384
    assert width("roberta-base", 512) == 384
    assert width("bert-base", 100) == 100


def test_the_best_answers_are_distinct_and_ranked(checkpoint):  # noqa: F811
    path = checkpoint("bert-qa")
    found = answer(path, "who wrote?", " ".join(tiny.LINES[:4]), top=5)
    assert 1 < len(found) <= 5
    assert len({(one.start, one.end) for one in found}) == len(found)
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert found[0] == answer(path, "who wrote?", " ".join(tiny.LINES[:4]))


def test_whole_words_are_given_unless_told_otherwise(checkpoint):  # noqa: F811
    path, passage = checkpoint("bert-qa"), " ".join(tiny.LINES[:3])
    pieces = answer(path, "who wrote?", passage, top=20, whole_words=False)
    words = answer(path, "who wrote?", passage, top=20)
    assert any(passage[one.start - 1 : one.start].isalpha() for one in pieces)
    for one in words:
        assert not (passage[one.start - 1 : one.start].isalpha() and passage[one.start].isalpha())
        assert not passage[one.end : one.end + 1].isalpha()


def test_an_answer_is_no_longer_than_allowed(checkpoint):  # noqa: F811
    kit = open_kit(checkpoint("bert-qa"))
    for one in answer(kit, "who?", tiny.LINES[1], top=30, max_answer_tokens=2, whole_words=False):
        assert len(kit.tokenizer.encode(one.text)) - 2 <= 2
    with pytest.raises(ConfigError, match="max_answer_tokens=0"):
        answer(kit, "who?", "he", max_answer_tokens=0)


def test_a_config_tree_of_our_own_does_tasks_too(tmp_path):
    tiny.wordpiece(tmp_path, model_max_length=64)
    block = Block(Attention(4), Feed(48))
    source = Tokens(tiny.size(tmp_path), types=2, pad_id=0)
    tree = EncoderOnly(
        Stack(32, source, Learned(64), repeat(block, 2)), ClassHead(("no", "yes"), at="first")
    )
    af.save(make_loud(af.build(tree), 0), tmp_path, family="allformer")
    kit = open_kit(tmp_path)
    assert kit.architecture == "EncoderOnly with ClassHead"
    assert classify(kit, "he was born").label in ("no", "yes")
    with pytest.raises(TaskError, match="is a EncoderOnly with ClassHead: it can classify"):
        tag(kit, "x")


def test_half_precision_is_widened_on_a_cpu_unless_told_otherwise(checkpoint, tmp_path):  # noqa: F811
    path = checkpoint("bert-bare")
    af.save(af.load(path, dtype=torch.bfloat16), tmp_path)
    for file in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((path / file).read_bytes())
    kit = open_kit(tmp_path, device="cpu")
    assert {p.dtype for p in kit.model.parameters()} == {torch.float32}
    half = open_kit(tmp_path, device="cpu", dtype=torch.bfloat16)
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert embed(half, "he").dtype == torch.float32
    torch.testing.assert_close(embed(half, "he"), embed(kit, "he"), rtol=0, atol=0.1)


def test_tasks_are_words_of_the_package_and_cost_nothing_until_used():
    code = """
import sys, allformer as af
assert "allformer.tasks" not in sys.modules and "tokenizers" not in sys.modules
import allformer.generate.options
assert callable(af.fill) and callable(af.translate) and callable(af.tasks.generate)
assert af.generate.options.GenerationConfig, "the part of the package is hidden by a function"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
