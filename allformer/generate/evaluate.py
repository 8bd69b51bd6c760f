"""Scores of translations: BLEU and chrF with their signatures, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allformer.errors import AllformerError, DataError


def score_translations(
    outputs: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = False
) -> dict[str, Any]:
    """`score_translations(["ein Hund"], ["Ein Hund"], "de")` → BLEU, chrF and exact match.

    Chinese and Japanese are cut by sacreBLEU's own tokenisers; what is measured is in the
    signatures.
    """
    try:
        from sacrebleu import BLEU, CHRF
    except ImportError:
        raise AllformerError("scores need sacrebleu; pip install 'allformer[eval]'") from None
    if not outputs:
        raise DataError("there is nothing to score: no pairs; give a split that has lines")
    if len(outputs) != len(references):
        raise DataError(
            f"{len(outputs)} translations cannot be scored against {len(references)} references; "
            f"give one reference for each line"
        )
    cut = {"zh": "zh", "ja": "char"}.get(language, "13a")
    bleu, chrf = BLEU(tokenize=cut, lowercase=lowercase), CHRF(lowercase=lowercase)
    if lowercase:
        outputs, references = ([line.lower() for line in lines] for lines in (outputs, references))
    same = sum(a.strip() == b.strip() for a, b in zip(outputs, references, strict=True))
    return {
        "sentences": len(outputs),
        "bleu": bleu.corpus_score(outputs, [references]).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(outputs, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": 100.0 * same / len(outputs),
    }
