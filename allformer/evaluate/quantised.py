"""A text for a model that is to be held in few bits: to round by, and to say what it lost.

ids = calibration(open_pipeline("gpt2"), open_texts("train.txt"))
lost = compare(open_pipeline("gpt2"), open_pipeline("gpt2-int4"), list(open_texts("valid.txt")))
lost["before"]["perplexity"], lost["after"]["perplexity"], lost["change"]
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.errors import DataError, TaskError
from allformer.evaluate.texts import LENGTH, evaluate_texts, open_texts
from allformer.tasks.pipeline import Pipeline, open_pipeline

ROWS, WIDTH = 128, 512  # what GPTQ is usually given, of a quarter of the length


def calibration(
    pipeline: Pipeline, texts: Iterable[str], rows: int = ROWS, width: int = WIDTH
) -> Tensor:
    """Ids of texts, end to end, in at most `rows` rows as long as the model reads, or `width`."""
    if isinstance(pipeline.model.config, config.EncoderDecoder | config.TwoTowers):
        raise TaskError(
            f"{pipeline.directory} is a {pipeline.architecture}, which reads more than one text; "
            f"calibrate it in Python: af.quantise(model, calibrate=[inputs, …])"
        )
    width = min(width, pipeline.trained or LENGTH)
    ids: list[int] = []
    for text in texts:
        ids += pipeline.tokenizer([text], padding_side="right")["input_ids"][0].tolist()
        if len(ids) >= rows * width:
            break
    rows = min(rows, len(ids) // width)
    if not rows:
        raise DataError(
            f"the text to calibrate by has {len(ids)} tokens, which fill no row of {width}; give "
            f"a longer one"
        )
    return torch.tensor(ids[: rows * width]).view(rows, width)


class Trial:
    """A checkpoint that is to be rounded by one text and scored on another, by their files.

    All that can be refused is refused before the work.
    """

    def __init__(self, source: str, calibrate: str | None, perplexity: str | None) -> None:
        self.by = [] if calibrate is None else list(open_texts(calibrate))
        self.scored = [] if perplexity is None else list(open_texts(perplexity))
        self.source = open_pipeline(source, device="cpu")
        if perplexity and not isinstance(self.source.model.config, config.DecoderOnly):
            raise TaskError(
                f"perplexity needs a decoder, and {source} is a {self.source.architecture}; leave "
                f"it out, and `allformer evaluate` both checkpoints"
            )

    def ids(self) -> Tensor | None:
        """To calibrate by, if there is a text for it."""
        return calibration(self.source, self.by) if self.by else None

    def compare(self, target: str | Path) -> dict[str, Any]:
        """What the checkpoint in `target` has lost."""
        return compare(self.source, open_pipeline(target, device="cpu"), self.scored)


def compare(before: Pipeline, after: Pipeline, texts: list[str]) -> dict[str, Any]:
    """The figures of both on the same texts, and by what part the perplexity has changed."""
    first, second = (evaluate_texts(pipeline, texts) for pipeline in (before, after))
    change = second["perplexity"] / first["perplexity"] - 1
    return {"before": first, "after": second, "change": change}
