"""Who wins: the answers of before and of after, each pair judged by a reward."""

from __future__ import annotations

from dataclasses import dataclass

from allformer.explain.charts import short
from allformer.explain.words import spans, word
from allformer.train.predictions import Predictions


@dataclass(frozen=True)
class Wins:
    """Questions whose new answer has the higher reward, the same, the lower; and the means."""

    won: int
    tied: int
    lost: int
    before: float
    after: float

    @property
    def count(self) -> int:
        """All questions."""
        return self.won + self.tied + self.lost

    @property
    def rate(self) -> float:
        """Of the new answers, 0 … 1; a tie is half a win."""
        return (self.won + self.tied / 2) / self.count


def wins(predictions: Predictions | None) -> Wins | None:
    """`wins(predictions).rate`; None where no answer was judged."""
    found = [] if predictions is None else [row.rewards for row in predictions.rows]
    pairs = [pair for pair in found if pair is not None]
    if not pairs:
        return None
    gaps = [after - before for before, after in pairs]
    before, after = (sum(pair[i] for pair in pairs) / len(pairs) for i in range(2))
    won, lost = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    return Wins(won, len(gaps) - won - lost, lost, before, after)


def wins_bar(found: Wins, judge: str = "") -> str:
    """A bar of three parts, the rate, and the mean rewards."""
    parts = ""
    for name in ("won", "tied", "lost"):
        n = getattr(found, name)
        if n:
            text = spans(word(f"wins.{name}", n=n))
            parts += f'<span class="{name}" style="flex-grow:{n}">{text}</span>'
    told = word(
        "wins.told",
        rate=f"{100 * found.rate:.0f} %", n=found.count, before=short(found.before),
        after=short(found.after),
    )  # fmt: skip
    by = f'<span class="unit"> {spans(word("wins.judge", judge=judge))}</span>' if judge else ""
    return (
        f'<figure class="chart"><figcaption><b>{spans(word("wins.title"))}</b>{by}</figcaption>'
        f'<div class="stack wins">{parts}</div><p class="note">{spans(told)}</p></figure>'
    )
