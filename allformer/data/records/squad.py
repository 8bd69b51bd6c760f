"""SQuAD's JSON: questions on paragraphs, answers as text and where it begins in characters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allformer.data.records.format import Item, Reading, Record, format
from allformer.data.records.lines import opened
from allformer.errors import DataError


@format("squad", ".json", sniff=lambda head: '"paragraphs"' in head, counts="question")
def read(path: Path, reading: Reading) -> Iterator[Item]:
    """Questions `{"id", "title", "context", "question", "answers"}`.

    `answers` is `{"text": […], "answer_start": […]}`, as Hugging Face's data set has it; both lists
    are empty where the question has no answer (SQuAD 2). An answer that does not stand where
    `answer_start` says is an error: a model trained on it would learn another one.
    """
    articles = _articles(path, reading)
    number = 0
    for article in articles:
        for paragraph in _listed(article, "paragraphs", path, number):
            for question in _listed(paragraph, "qas", path, number):
                number += 1
                place = f"{path}, question {number}"
                yield number, _question(question, paragraph, article.get("title", ""), place)
    if not number:
        raise DataError(f"{path} has no question in it; is it the right file?")


def _articles(path: Path, reading: Reading) -> list[Any]:
    try:
        with opened(path, reading) as file:
            value = json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({str(error)[:200]}); fetch it again") from error
    return _listed(value, "data", path, 0)


def _listed(value: Any, key: str, path: Path, number: int) -> list[Any]:
    inner = value.get(key) if isinstance(value, dict) else None
    if not isinstance(inner, list) or not all(isinstance(entry, dict) for entry in inner):
        after = f" after question {number}" if number else ""
        raise DataError(
            f"{path}{after}: no list of objects {key!r}; SQuAD's form is data → paragraphs → qas"
        )
    return inner


def _question(question: Record, paragraph: Record, title: Any, place: str) -> Record | DataError:
    context, text = paragraph.get("context"), question.get("question")
    if not isinstance(context, str) or not isinstance(text, str) or "id" not in question:
        return DataError(f"{place}: context, question and id must be there, the first two as text")
    answers: Record = {"text": [], "answer_start": []}
    given = question.get("answers") or []
    if not isinstance(given, list):
        return DataError(f"{place} (id {question['id']}): answers must be a list")
    for answer in given:
        fields = answer if isinstance(answer, dict) else {}
        words, start = fields.get("text"), fields.get("answer_start")
        if not isinstance(words, str) or not isinstance(start, int):
            return DataError(
                f"{place} (id {question['id']}): an answer needs text and answer_start"
            )
        if start < 0 or not context.startswith(words, start):
            there = context[max(start, 0) :][:60]
            return DataError(
                f"{place} (id {question['id']}): the answer {words[:60]!r} does not stand at "
                f"answer_start={start}, where the context reads {there!r}; mend the offset "
                "(characters, not bytes), or pass over such records with skip_bad"
            )
        answers["text"].append(words)
        answers["answer_start"].append(start)
    return {
        "id": str(question["id"]), "title": title, "context": context, "question": text,
        "answers": answers,
    }  # fmt: skip
