"""How good is a translator on pairs of text: scores of its translations and their likelihood."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from allformer.data.encoded import EncodedPairs, chunks
from allformer.errors import TaskError
from allformer.generate.evaluate import score_translations
from allformer.tasks.pipeline import Pipeline
from allformer.tasks.texts import translate
from allformer.tasks.verbs import need
from allformer.tasks.writing import settings
from allformer.train.objectives.seq2seq import Seq2Seq
from allformer.train.validate import validate

_CHUNK = 1024  # sentences encoded together


def evaluate_run(
    pipeline: Pipeline,
    pairs: Iterable[tuple[str, str]],
    language: str,
    *,
    lowercase: bool = False,
    **options: Any,
) -> tuple[dict[str, Any], list[str]]:
    """Translate the sources of `pairs` and score against the targets; the outputs come too.

    >>> evaluate_run(open_pipeline("runs/m30k"), pairs, "de", num_beams=5)[0]["bleu"]
    42.88

    `language` is that of the targets; `options` are those of `model.generate`. A source that is
    longer than the run was trained for is cut, with a warning. Perplexity is per token of the run's
    own tokeniser, </s> included, on all pairs.
    """
    check_run(pipeline)
    pairs = list(pairs)
    outputs: list[str] = []
    for chunk in chunks(pairs, _CHUNK):
        outputs += translate(pipeline, [source for source, _ in chunk], truncate=True, **options)
    references = [target for _, target in pairs]
    scores = score_translations(outputs, references, language, lowercase=lowercase)
    encoded = EncodedPairs.from_pairs(pairs, pipeline.tokenizer)
    nll = validate(Seq2Seq(), pipeline.model, encoded)["nll"]
    beams = settings(pipeline, options=options).num_beams or 1
    return {**scores, "perplexity": math.exp(min(nll, 700.0)), "beams": beams}, outputs


def check_run(pipeline: Pipeline) -> None:
    """Refuse what `allformer train` did not write: its pairs would be encoded another way."""
    need(pipeline, "translate")
    if "is" not in pipeline.raw:
        raise TaskError(
            f"evaluate scores runs of `allformer train`, but {pipeline.directory} is a "
            f"{pipeline.architecture}; translate with it (`allformer translate`), and score what "
            f"it says with sacrebleu"
        )
