"""The picture of docs/design.md: the data's way through the house, in English and in Chinese.

python docs/images/design.py     # writes design-en.svg and design-zh.svg beside itself
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 900, 668
LANGUAGES = ("en", "zh")
INK, SOFT, LINE = "#1f2933", "#5b6875", "#8794a1"
BLUE, GREEN, AMBER, GREY = "#e3eefb", "#e2f3e8", "#fdf0d5", "#f0f2f5"

# Each box: left, top, width, height, colour; title, file; what it does, in both languages.
BOXES = (
    (24, 24, 192, 86, GREY, "model(input_ids=…)", "core/model.py",
     ("the caller's tensors, by", "transformers' names"),
     ("调用者的张量，", "名字同 transformers")),
    (244, 24, 192, 86, BLUE, "sort", "core/whole.py · inputs.py",
     ("inputs by stack; targets;", "what nobody takes is refused"),
     ("输入按堆叠分好，目标另放；", "没人要的，一律拒绝")),
    (464, 24, 192, 86, BLUE, "Side", "core/inputs.py · layout.py",
     ("Grid (rows × width) or", "Packed (no padding)"),
     ("Grid（行 × 宽），", "或 Packed（没有填充）")),
    (684, 24, 192, 86, GREEN, "source", "core/sources/",
     ("inputs → vectors, positions,", "norm → hidden states … dim"),
     ("输入 → 向量，加位置、", "归一化 → 隐状态 … dim")),
    (44, 190, 380, 72, AMBER, "plan", "core/places.py · look.py · kernels/",
     ("once for all layers whose mixers are alike: places →",
      "who may look at whom, and the kernel that fits"),
     ("混合方式相同的层只做一次：由位置得出",
      "谁能看谁，选出合用的核函数")),
    (476, 190, 380, 72, GREEN, "relative", "core/relatives/",
     ("once for a call: turns queries and keys (rotary),",
      "or adds to the scores (buckets)"),
     ("每次调用做一次：旋转查询和键（rotary），",
      "或加到分数上（bucket）")),
    (60, 320, 168, 80, BLUE, "project", "core/attention.py",
     ("q, k, v in one product", ""), ("q、k、v 一次矩阵乘", "")),
    (254, 320, 178, 80, GREEN, "mix", "core/mixers/",
     ("q, k, v → context,", "then heads merged"), ("q、k、v → 上下文，", "再把各头并起来")),
    (458, 320, 168, 80, BLUE, "project out", "core/attention.py",
     ("context → dim", ""), ("上下文 → dim", "")),
    (652, 320, 188, 80, BLUE, "feed-forward", "core/feed_forward.py",
     ("each token by itself", ""), ("每个词元各算各的", "")),
    (24, 498, 192, 86, GREY, "provenance", "core/provenance.py",
     ("family, class and extras of", "the checkpoint: for saving"),
     ("检查点的家族、类名和其余：", "存回去时用")),
    (244, 498, 192, 86, GREEN, "state", "core/states/",
     ("an argument: what a layer", "remembers between steps"),
     ("是参数：一层在", "两步之间记住的东西")),
    (464, 498, 192, 86, GREEN, "head", "core/heads/ · loss.py",
     ("outputs by name; sums of", "the loss, given targets"),
     ("按名字给出输出；", "对着目标给出损失之和")),
    (684, 498, 192, 86, GREY, "Output", "core/output.py",
     ("on the caller's grid again:", "out.logits, out.loss, …"),
     ("回到调用者的网格上：", "out.logits、out.loss……")),
)  # fmt: skip
# Frames around boxes: left, top, width, height; where the words begin or end; what they are.
FRAMES = (
    (24, 146, 852, 318, (38, 170, "start"),
     ("stack · core/stack.py — a decoder behind an encoder looks across at its hidden states",
      "stack（堆叠）· core/stack.py —— 编码器后面的解码器，隔着看它的隐状态")),
    (44, 294, 812, 150, (842, 434, "end"),
     ("layer × n · core/block.py — each sub-layer with its residual and its norm",
      "layer（层）× n · core/block.py —— 每个子层带自己的残差和归一化")),
)  # fmt: skip
# The way of the data, and what comes to it from the side.
ARROWS = (
    ((216, 67), (244, 67)), ((436, 67), (464, 67)), ((656, 67), (684, 67)),
    ((780, 110), (780, 146)), ((228, 360), (254, 360)), ((432, 360), (458, 360)),
    ((626, 360), (652, 360)),
    ((560, 464), (560, 498)), ((656, 541), (684, 541)),
)  # fmt: skip
ASIDE = (((343, 262), (343, 320)), ((500, 262), (406, 320)), ((340, 498), (340, 400)))
FOOT = (
    ("green: slots that a class of your own fills · taps: every step offers its value under a name "
     "(af.trace)",
     "绿色：你自己的类可以填的槽位 · taps（探头）：每一步都以一个名字给出自己的值（af.trace）"),
    ("imports point down: errors ← config ← core ← families ← text, data ← checkpoint ← train, "
     "generate, … ← cli",
     "导入只朝下：errors ← config ← core ← families ← text、data ← checkpoint ← train、generate…… "
     "← cli"),
)  # fmt: skip


def text(x: float, y: float, said: str, size: float, colour: str = INK, more: str = "") -> str:
    """A line of text that begins at x, or as `more` says."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" {more}>{escape(said)}</text>'


def box(row: tuple, language: int) -> str:
    """A rectangle with its title, what it does, and its file."""
    left, top, width, height, colour, title, file, *words = row
    lines = [line for line in words[language] if line]
    parts = [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" fill="{colour}" '
        f'stroke="{LINE}"/>',
        text(left + 10, top + 20, title, 14, more='font-weight="600"'),
    ]
    parts += [text(left + 10, top + 38 + 16 * i, line, 12) for i, line in enumerate(lines)]
    wide = width > 200  # room for the file beside the title
    at = (left + width - 10, top + 20) if wide else (left + 10, top + height - 10)
    anchor = 'text-anchor="end" ' if wide else ""
    return "\n".join([*parts, text(*at, file, 11, SOFT, f'{anchor}font-family="monospace"')])


def frame(row: tuple, language: int) -> str:
    """A rectangle around others, with its name."""
    left, top, width, height, (x, y, anchor), words = row
    shape = f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="8" fill="none" '
    name = text(x, y, words[language], 12.5, SOFT, f'text-anchor="{anchor}"')
    return f'{shape}stroke="{LINE}"/>\n{name}'


def arrow(ends: tuple, dashed: bool = False) -> str:
    """A line with a point."""
    (x1, y1), (x2, y2) = ends
    dash = 'stroke-dasharray="4 3" ' if dashed else ""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1.4" {dash}'
        f'marker-end="url(#point)"/>'
    )


def picture(language: int) -> str:
    """The whole, on a light ground of its own: it is read in dark mode too."""
    inner = [frame(row, language) for row in FRAMES]
    inner += [box(row, language) for row in BOXES]
    inner += [arrow(ends) for ends in ARROWS] + [arrow(ends, dashed=True) for ends in ASIDE]
    inner += [text(24, 618 + 22 * i, words[language], 12, SOFT) for i, words in enumerate(FOOT)]
    fonts = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'PingFang SC', 'Microsoft YaHei', "
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="{fonts}\'Noto Sans CJK SC\', sans-serif">',
        '<defs><marker id="point" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>',
        *inner,
        "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    for number, name in enumerate(LANGUAGES):
        path = Path(__file__).with_name(f"design-{name}.svg")
        path.write_text(picture(number), encoding="utf-8")
