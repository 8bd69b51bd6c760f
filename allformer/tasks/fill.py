"""`fill`: the likeliest tokens for a gap in a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.core.model import EncoderDecoderModel
from allformer.core.precision import widen
from allformer.errors import ConfigError, TaskError
from allformer.tasks.batching import encode, excerpt, feed
from allformer.tasks.call import task
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.result import Fill
from allformer.tasks.verbs import need
from allformer.text.batch import Batch
from allformer.text.tokenizer import Tokenizer


@task
def fill(
    pipeline: Pipeline, texts: list[str], /, *, top: int = 5, truncate: bool = False
) -> list[list[Fill] | list[list[Fill]]]:
    """The `top` likeliest tokens for the gap in each text, likeliest first.

    >>> fill("bert-base-uncased", "The capital of [MASK] is Paris.")
    [Fill(token='france', score=0.99, text='The capital of france is Paris.', id=2605), …]

    The gap is the tokeniser's own mask token (`[MASK]`, `<mask>`). A text with several gaps gives
    a list for each of them, with the other gaps left open. Scores are over the whole vocabulary.
    """
    need(pipeline, "fill")
    if top < 1:
        raise ConfigError(f"top={top} must be at least 1; try 5")
    mask = pipeline.tokenizer.mask_id
    batch = encode(pipeline, texts, limit=pipeline.longest, truncate=truncate)
    gaps = [(row == mask).nonzero()[:, 0].tolist() for row in batch["input_ids"]]
    for i, places in enumerate(gaps):
        if not places:
            name = pipeline.tokenizer.settings.names["mask"]
            raise TaskError(
                f"text {i + 1} ({excerpt(texts[i])}) has no {name}; put {name} where a word is "
                f"missing"
            )
    found: list[list[list[Fill]]] = [[] for _ in texts]
    for rows, inputs in feed(pipeline, batch):
        for row, logits in zip(
            rows, _logits(pipeline, inputs, [gaps[i] for i in rows]), strict=True
        ):
            values, ids = widen(logits).softmax(-1).topk(min(top, logits.shape[-1]))
            for n, place in enumerate(gaps[row]):
                gap = Gap(pipeline.tokenizer, texts[row], batch, row, place)
                best = zip(ids[n].tolist(), values[n].tolist(), strict=True)
                found[row].append([gap.fill(token, score) for token, score in best])
    return [lists[0] if len(lists) == 1 else lists for lists in found]


@torch.inference_mode()
def _logits(pipeline: Pipeline, inputs: dict[str, Tensor], gaps: list[list[int]]) -> list[Tensor]:
    """Scores over the vocabulary at the gaps alone: of each row, gaps V."""
    model = pipeline.model
    if isinstance(model, EncoderDecoderModel):  # BART reads the text again, one token late
        inputs = {**inputs, "decoder_input_ids": model.shift_right(inputs["input_ids"])}
    given: dict[str, Any] = inputs
    *_, hidden = model.states(**given).values()
    return [model.logits(hidden[row, places]) for row, places in enumerate(gaps)]


class Gap:
    """A gap in a text: `gap.fill(token, score)` puts a token there, spaced as the token says."""

    def __init__(self, tokenizer: Tokenizer, text: str, batch: Batch, row: int, place: int) -> None:
        self.tokenizer = tokenizer
        start, end = batch.offsets(row)[place]
        self.left, self.right = text[:start], text[end:]
        self.before: list[int] = []  # the token that the gap follows, if any
        if place and batch.sequence_ids(row)[place - 1] is not None:
            self.before = batch["input_ids"][row, place - 1 : place].tolist()
            if tokenizer.kind != "wordpiece":  # spaces are in the tokens; one that is not is gone
                self.left = text[: batch.offsets(row)[place - 1][1]] or self.left

    def fill(self, token: int, score: float) -> Fill:
        """The text with the token in the gap."""
        shown = self.tokenizer.decode([token], skip_special_tokens=False)
        left, word = self.left, self._spelt(token, shown)
        if not self.before or left[-1:].isspace():
            joined = self.tokenizer.kind == "wordpiece" and not word.startswith(" ")
            left, word = left.rstrip() if joined else left, word.lstrip(" ")
        elif self.tokenizer.kind == "wordpiece":
            word = word.lstrip(" ")  # no piece knows of spaces: the text has none here
        return Fill(shown, score, left + word + self.right, token)

    def _spelt(self, token: int, shown: str) -> str:
        """What the token adds to a text that ends in the token before: " Paris", "s"."""
        if self.before:
            base = self.tokenizer.decode(self.before, skip_special_tokens=False)
            whole = self.tokenizer.decode([*self.before, token], skip_special_tokens=False)
            if whole.startswith(base):
                return whole[len(base) :]
        return f" {shown.strip(' ')}"
