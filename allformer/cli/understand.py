"""`allformer fill`, `classify`, `choose`, `tag` and `answer`: what a model reads out of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from allformer.cli.common import (
    AsJson,
    Device,
    Dtype,
    File,
    Model,
    Texts,
    Truncate,
    open_model,
    read_text,
)
from allformer.cli.lines import Source, Verb, read_source, run, split_pair
from allformer.errors import AllformerError

FILL = (
    'Examples: `allformer fill google-bert/bert-base-uncased "The capital of [MASK] is Paris."`; '
    "`allformer fill MODEL --file gaps.txt --json > filled.jsonl`"
)
CLASSIFY = (
    'Examples: `allformer classify MODEL "A film to remember."`; '
    '`allformer classify NLI "A man sleeps." --pair "Somebody is awake." --all`; '
    "`cut -f1 reviews.tsv | allformer classify MODEL > labels.tsv`"
)
CHOOSE = (
    'Examples: `allformer choose MODEL "She opened the door." --choice "She went in." --choice '
    '"The door ate her."`; '
    "`allformer choose MODEL --file questions.tsv --json` (question, tab, choice, tab, choice, …)"
)
TAG = (
    'Examples: `allformer tag dslim/bert-base-NER "Angela lives in Berlin."`; '
    "`allformer tag MODEL --file news.txt --json > entities.jsonl`"
)
ANSWER = (
    'Examples: `allformer answer MODEL --question "Who wrote it?" --passage-file faust.txt`; '
    "`allformer answer MODEL --file pairs.tsv --json` (question, tab, passage)"
)


def fill(
    model: Model,
    text: Texts = None,
    file: File = None,
    top: Annotated[int, typer.Option(help="How many tokens for each gap.")] = 5,
    truncate: Truncate = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """The likeliest words for a gap in a text.

    The gap is the model's own mask token, `[MASK]` or `<mask>`. A line of a file comes back with
    its gaps filled with the likeliest.
    """
    from allformer.cli.views import best_filled, fill_table
    from allformer.tasks import fill as work

    source = read_source(text, file)
    pipeline = open_model(model, device, dtype)
    verb = Verb(
        lambda texts: [
            (text, found, pipeline.tokenizer.settings.names["mask"])
            for text, found in zip(
                texts, work(pipeline, texts, top=top, truncate=truncate), strict=True
            )
        ],
        best_filled,
        lambda text, found: {"text": text, "fills": _plain(found[1])},
        fill_table,
    )
    run(source, verb, as_json=as_json)


def classify(
    model: Model,
    text: Texts = None,
    file: File = None,
    pair: Annotated[str | None, typer.Option(help="A second text, for a TEXT.")] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Each line holds two texts with a tab between.")
    ] = False,
    all: Annotated[bool, typer.Option("--all", help="Every label, not the likeliest.")] = False,
    truncate: Truncate = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """The label of a text or of a pair of texts.

    A line of a file gives: label, tab, score.
    """
    from allformer.cli.views import label_line, label_table
    from allformer.tasks import classify as work

    source = read_source(text, file)
    if pair is not None and (not source.typed or pairs):
        raise AllformerError("--pair goes with a TEXT; in a file use --pairs and tabs")
    pipeline = open_model(model, device, dtype)

    def labels(texts: list[str]) -> list[Any]:
        first, second = texts, None if pair is None else [pair] * len(texts)
        if pairs:
            first, second = map(list, zip(*map(split_pair, texts), strict=True))
        return work(pipeline, first, second, all=all, truncate=truncate)

    verb = Verb(
        labels,
        label_line,
        lambda text, found: {"text": text, "labels": _plain(found if all else [found])},
        label_table,
    )
    run(source, verb, as_json=as_json)


def choose(
    model: Model,
    text: Texts = None,
    choice: Annotated[
        list[str] | None, typer.Option(help="A text that may fit; give several.")
    ] = None,
    file: File = None,
    all: Annotated[bool, typer.Option("--all", help="Every choice, not the best.")] = False,
    truncate: Truncate = False,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Which of several texts goes best with a question, or on from a beginning.

    A line of a file gives: choice, tab, score. Without --choice it holds the question and its
    choices, with tabs between.
    """
    from allformer.cli.views import label_line, label_table
    from allformer.tasks import choose as work

    source = read_source(text, file)
    pipeline = open_model(model, device, dtype)

    def choices(lines: list[str]) -> list[Any]:
        if choice:
            return work(pipeline, lines, choice, all=all, truncate=truncate)
        parts = [(first, rest.split("\t")) for first, rest in map(split_pair, lines)]
        questions, each = map(list, zip(*parts, strict=True))
        return work(pipeline, questions, each, all=all, truncate=truncate)

    verb = Verb(
        choices,
        label_line,
        lambda line, found: {
            "question": line if choice else split_pair(line)[0],
            "choices": _plain(found if all else [found]),
        },
        label_table,
    )
    run(source, verb, as_json=as_json)


def tag(
    model: Model,
    text: Texts = None,
    file: File = None,
    join: Annotated[
        str, typer.Option(help="simple, first, max, average or none: how tokens become entities.")
    ] = "simple",
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """The named things in a text: people, places, …

    A line of a file gives: LABEL text, with tabs between. Long texts are read in windows.
    """
    from allformer.cli.views import entity_line, entity_text
    from allformer.tasks import tag as work

    source = read_source(text, file)
    pipeline = open_model(model, device, dtype)
    verb = Verb(
        lambda texts: work(pipeline, texts, join=join),
        entity_line,
        lambda text, found: {"text": text, "entities": _plain(found)},
        entity_text,
    )
    run(source, verb, as_json=as_json)


def answer(
    model: Model,
    question: Annotated[
        list[str] | None, typer.Option(help="What is asked; may be given several times.")
    ] = None,
    passage: Annotated[str | None, typer.Option(help="The text that holds the answer.")] = None,
    passage_file: Annotated[Path | None, typer.Option(help="The same, from a file.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Lines of questions; without a passage: question, tab, passage."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many answers.")] = 1,
    no_answer: Annotated[
        bool, typer.Option("--no-answer", help="The passage may hold none (SQuAD 2).")
    ] = False,
    max_answer_tokens: Annotated[int, typer.Option(help="The longest answer.")] = 15,
    device: Device = None,
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """The part of a passage that answers a question.

    A line of a file gives: answer, tab, score. Long passages are read in windows.
    """
    from allformer.cli.views import answer_line, answer_text
    from allformer.tasks import answer as work

    if passage is not None and passage_file is not None:
        raise AllformerError("give --passage or --passage-file, not both")
    if question and file:
        raise AllformerError("give --question or --file, not both")
    whole = passage if passage_file is None else read_text(passage_file)
    if question and whole is None:
        raise AllformerError("--question needs --passage or --passage-file: where to look")
    source = Source(question, typed=True) if question else read_source(None, file)
    pipeline = open_model(model, device, dtype)

    def answers(lines: list[str]) -> list[Any]:
        questions, passages = lines, [whole or ""] * len(lines)
        if whole is None:
            questions, passages = map(list, zip(*map(split_pair, lines), strict=True))
        found = work(
            pipeline,
            questions,
            passages,
            top=top,
            no_answer=no_answer,
            max_answer_tokens=max_answer_tokens,
        )
        many = [one if isinstance(one, list) else [one] for one in found]
        return list(zip(passages, many, strict=True))

    verb = Verb(
        answers,
        answer_line,
        lambda line, found: {
            "question": line if whole is not None else split_pair(line)[0],
            "answers": _plain(found[1]),
        },
        answer_text,
    )
    run(source, verb, as_json=as_json)


def _plain(found: Any) -> Any:
    """Results as JSON holds them."""
    return [_plain(one) for one in found] if isinstance(found, list) else found.to_dict()
