"""Step by step with a cache must give what reading everything at once gives."""

from __future__ import annotations

from collections.abc import Iterator

from allformer.auditor.context import Context, NotApplicable, check
from allformer.auditor.evidence.caches import LIMIT, cached_outputs
from allformer.auditor.probe import brief, distance, scale_of
from allformer.auditor.report import Finding


@check("cache.mismatch", kinds=("decoder", "seq2seq"))
def cache(ctx: Context) -> Iterator[Finding]:
    """Cached = uncached."""
    try:
        whole, pieces, how = cached_outputs(ctx)
    except NotApplicable:
        raise
    except Exception as error:
        text = brief(error, 140)
        raise NotApplicable(
            f"stepping with a cache failed: {type(error).__name__}: {text}"
        ) from error
    if whole.shape != pieces.shape:
        raise NotApplicable("cached and uncached outputs have different shapes")
    gaps = [distance(pieces[:, t], whole[:, t]) for t in range(whole.shape[1])]
    worst = max(gaps)
    if worst > LIMIT * scale_of(whole):
        first = next(t for t, g in enumerate(gaps) if g > LIMIT * scale_of(whole))
        yield Finding(
            "cache.mismatch",
            f"{how}: logits differ by up to {worst:.3g} (size {scale_of(whole):.3g}), first at "
            f"position {first}",
        )
