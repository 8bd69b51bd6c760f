"""The section of a tuned run: what it trained, what that gained, and who wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allformer.explain.charts import Chart
from allformer.explain.page import paragraphs
from allformer.explain.tuned.layers import layer_table, percent
from allformer.explain.tuned.methods import EACH, amount, compared, method_name, method_table
from allformer.explain.tuned.rewards import reward_chart
from allformer.explain.words import joined, spans, word
from allformer.tune.method import Method


def tuned_section(
    model: Any, methods: Sequence[Method], history: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, Chart]]:
    """HTML, and the charts in it by name; both empty where nothing was tuned."""
    if not methods:
        return "", {}
    rows = compared(model, methods)
    own = next(row for row in rows if row.own)
    held = sum(p.numel() * p.element_size() for p in (*model.parameters(), *model.buffers()))
    told = word(
        "tuned.intro",
        method=joined(*map(method_name, methods), by=" + "),
        trained=f"{own.trained:,}", total=f"{own.total:,}",
        share=percent(own.trained / max(1, own.total)), weights=amount(held),
        memory=amount(EACH * own.trained), full=amount(EACH * rows[0].trained),
    )  # fmt: skip
    chart = reward_chart(history)
    gained = "" if chart is None else f"<h3>{spans(word('reward.title'))}</h3>{chart.html}"
    html = (
        f'<section id="tuned"><h2>{spans(word("tuned.title"))}</h2>{paragraphs([told])}'
        f"{layer_table(model)}<h3>{spans(word('tuned.methods'))}</h3>"
        f"{paragraphs([word('tuned.methods.intro', each=EACH)])}{method_table(rows)}{gained}"
        f"</section>"
    )
    return html, {} if chart is None else {"reward-kl": chart}
