"""The parameter table, and what the work is spent on as sentences grow: all from `count`."""

from __future__ import annotations

from html import escape

from allformer import config
from allformer.count import Count, Part, count
from allformer.explain.sound.listens import hearing_stack
from allformer.explain.vision.looks import reads_pictures
from allformer.explain.words import WORDS, Pair, joined, said, sentences, spans, word

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
SLICES = ("quadratic", "projections", "feed", "head")


def parameter_table(model: config.Model) -> str:
    """Each part with its formula, its parameters and its share."""
    table = count(model)
    largest = max(part.parameters for part in table.parts)
    rows = "".join(_row(part, largest, table.parameters) for part in table.parts)
    head = "".join(
        f'<th scope="col"{css}>{spans(word(f"cost.{key}"))}</th>'
        for key, css in (("part", ""), ("parameters", ' class="n"'), ("share", ""), ("formula", ""))
    )
    return (
        f'<table class="parameters"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody><tfoot><tr>'
        f'<th scope="row">{spans(word("cost.total"))}</th>'
        f'<td class="n">{table.parameters:,}</td><td></td><td></td></tr></tfoot></table>'
    )


def letters(model: config.Model) -> str:
    """The formulas' letters with this model's values."""
    block, dim = model.reader.blocks[0], model.reader.dim
    vocabs = dict.fromkeys(stack.source.vocab for stack in model.stacks.values())
    values = {
        "d": f"{dim:,}",
        "H": f"{block.attention.heads}",
        "D": f"{block.attention.size(dim)}",
        "f": f"{block.feed.width:,}",
        "V": " / ".join(f"{vocab:,}" for vocab in vocabs if vocab),
    }
    if not values["V"]:  # it reads no tokens
        del values["V"]
    if block.attention.groups != block.attention.heads:
        values["G"] = f"{block.attention.groups}"
    items = (
        f"<span><var>{letter}</var> {spans(word(f'letter.{letter}'))} {value}</span>"
        for letter, value in values.items()
    )
    return f'<p class="letters">{"".join(items)}</p>'


def growth(model: config.Model) -> str:
    """A bar for each length, split into what its operations do."""
    told = word(by_shape("growth.intro", model))
    if (n := crossing(model)) is not None:
        told = sentences(told, word("growth.cross", n=f"{n:,}"))
    legend = "".join(
        f'<span class="key {name}">{spans(word(f"growth.{name}"))}</span>' for name in SLICES
    )
    rows = "".join(_bar(count(model, length)) for length in LENGTHS)
    head = "".join(
        f'<th scope="col"{css}>{spans(word(f"growth.{key}"))}</th>'
        for key, css in (("length", ' class="n"'), ("split", ""), ("flops", ' class="n"'))
    )
    return (
        f'<p>{spans(told)}</p><p class="legend">{legend}</p><div class="wide">'
        f'<table class="growth"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def split(table: Count) -> dict[str, int]:
    """Forward operations per token by what they do."""
    quadratic = sum(part.quadratic for part in table.parts)
    attention = sum(part.flops for part in table.parts if part.name.endswith("-attention"))
    feed = sum(part.flops for part in table.parts if part.name.endswith("feed-forward"))
    rest = table.flops_per_token - attention - feed
    return dict(zip(SLICES, (quadratic, attention - quadratic, feed, rest), strict=True))


def crossing(model: config.Model) -> int | None:
    """The length from which comparing tokens costs more than the feed-forward layers.

    Both are straight lines in the length, so two points give it. Rounded to two digits.
    """
    near, far = (split(count(model, length)) for length in (1000, 2000))
    slope = (far["quadratic"] - near["quadratic"]) / 1000
    if not slope:  # a window: no length is too long
        return None
    n = 1000 + (near["feed"] - near["quadratic"]) / slope
    return round(int(n), 2 - len(str(int(n)))) if n >= 1 else None


def by_shape(key: str, model: config.Model) -> str:
    """The key of the words for two stacks of texts, for one stack, for a model that sees, or for
    one that writes what it hears."""
    if reads_pictures(model):
        return f"{key}.sees"
    if len(model.stacks) > 1 and hearing_stack(model) is not None:
        return f"{key}.hears"
    return key if len(model.stacks) > 1 else f"{key}.one"


def part_name(name: str) -> Pair:
    """The name of one of `count`'s parts in both languages."""
    side, _, rest = name.partition(" ")
    if rest and f"side.{side}" in WORDS and f"part.{rest}" in WORDS:
        return joined(word(f"side.{side}"), word(f"part.{rest}"))
    return word(f"part.{name}") if f"part.{name}" in WORDS else said(name)


def formula(text: str) -> Pair:
    """Formulas are the same in every language; the few that are words are translated."""
    key = f"formula.{text}"
    return word(key) if key in WORDS else (escape(text), escape(text))


def _row(part: Part, largest: int, total: int) -> str:
    width, share = 100 * part.parameters / largest, 100 * part.parameters / total
    side = part.name.split(" ")[0]
    css = "cross" if "cross" in part.name else side if side in ("encoder", "decoder") else "head"
    bar = f'<span class="fill {css}" style="width:{width:.2f}%"></span>'
    percent = "–" if not part.parameters else f"{share:.1f} %" if share >= 0.1 else "&lt; 0.1 %"
    return (
        f'<tr><th scope="row">{spans(part_name(part.name))}</th>'
        f'<td class="n">{part.parameters:,}</td><td class="share">'
        f'<span class="track">{bar}</span><span class="n">{percent}</span></td>'
        f'<td class="formula">{spans(formula(part.formula))}</td></tr>'
    )


def _bar(table: Count) -> str:
    cells = ""
    for name, flops in split(table).items():
        share = 100 * flops / max(1, table.flops_per_token)
        text = f"{share:.0f}<i> %</i>" if share >= 8 else ""
        cells += f'<span class="{name}" style="width:{share:.2f}%">{text}</span>'
    return (
        f'<tr><th scope="row" class="n">{table.length:,}</th><td><span class="stack">{cells}</span>'
        f'</td><td class="n">{_millions(table.flops_per_token)}</td></tr>'
    )


def _millions(number: float) -> str:
    """`_millions(31_000)` → 0.031: of a small model there is something to be seen too."""
    millions = number / 1e6
    return f"{millions:,.1f}" if millions >= 1 else f"{millions:.2g}"
