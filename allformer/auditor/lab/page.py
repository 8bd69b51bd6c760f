"""The lab's page and its picture, of as many bugs as have been measured.

to_markdown(rows, "zh", 250)        # the page
draw(rows, Path("lab.png"), "zh")   # the picture that it shows
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allformer.auditor.catalogue import CATALOGUE

WORDS = {
    "en": {
        "title": "The break-it lab", "right": "right", "bug": "with the bug", "loss": "training loss",  # noqa: E501
        "steps": "steps", "check": "check", "line": "wrong", "mend": "right", "used": "right answers",  # noqa: E501
        "caught": "caught", "intro":
            "Every bug is planted in a small model, trained for {steps} steps next to the right one "  # noqa: E501
            "(same seed, same data: repeat a word, fill holes, or reverse a word), and audited. "
            "*Right answers* are measured as the model is used: token by token, each row alone. A low "  # noqa: E501
            "loss with few right answers is the mark of a leak.",
        "part": "*{have} of {all} bugs so far; the same command goes on.*",
    },
    "zh": {
        "title": "找错实验室", "right": "正确", "bug": "有错", "loss": "训练损失",
        "steps": "步", "check": "检查项", "line": "错误写法", "mend": "正确写法", "used": "答对率",
        "caught": "查出", "intro":
            "每个错误都种在一个小模型里，与正确的模型一起训练 {steps} 步（同样的种子和数据：重复、填空"  # noqa: E501
            "或倒写一个词），再交给审计器检查。*答对率*按实际使用方式测量：逐词元生成、每行单独计算。"
            "损失很低而答对率也很低，正是信息泄漏的标志。",
        "part": "*目前完成 {all} 个错误中的 {have} 个；再次运行同一命令即可继续。*",
    },
}  # fmt: skip


def draw(rows: list[dict[str, Any]], path: Path, lang: str) -> None:
    """Small multiples: the right curve in grey, the bug's in colour."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    words = WORDS[lang]
    plt.rcParams["font.sans-serif"] = ["Noto Sans CJK SC", "Noto Sans CJK JP", "DejaVu Sans"]
    plt.rcParams["axes.unicode_minus"] = False
    columns = 7
    lines = -(-len(rows) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(2.1 * columns, 1.65 * lines), sharex=True)
    for ax in axes.flat:
        ax.axis("off")
    for ax, row in zip(axes.flat, rows, strict=False):
        ax.axis("on")
        x = [10 * i for i in range(len(row["loss"]))]
        ax.plot(x, row["right_loss"], color="0.65", lw=2, label=words["right"])
        ax.plot(x, row["loss"], color="#c0392b", lw=1.3, label=words["bug"])
        ax.set_title(row["bug"], fontsize=8, pad=3)
        text = f"{row['right_answers']:.0f} % → {row['answers']:.0f} %"
        ax.text(0.97, 0.93, text, transform=ax.transAxes, ha="right", va="top", fontsize=7)
        ax.set_ylim(0, max(3.3, min(6.0, max(row["loss"]))))
        ax.tick_params(labelsize=6, length=2)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    for ax in axes.flat[max(0, len(rows) - columns) : len(rows)]:
        ax.tick_params(labelbottom=True)  # the lowest of each column, where the last line is short
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", ncols=2, fontsize=9, frameon=False)
    figure.suptitle(f"{words['title']} · {words['loss']}", x=0.01, ha="left", fontsize=11)
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    figure.savefig(path, dpi=80, format="png")
    plt.close(figure)


def to_markdown(
    rows: list[dict[str, Any]],
    lang: str,
    steps: int,
    picture: str = "lab.png",
    total: int | None = None,
) -> str:
    """The page: the picture and one row of a table for each bug; `total` where some are to come."""
    w = WORDS[lang]
    i = 1 if lang == "zh" else 0
    head = [
        f"# {w['title']}",
        "",
        w["intro"].format(steps=steps),
        "",
    ]
    if total is not None and len(rows) < total:
        head += [w["part"].format(have=len(rows), all=total), ""]
    if not rows:
        return "\n".join(head)
    head += [f"![{w['title']}]({picture})", ""]
    columns = (w["check"], w["line"], w["mend"], f"{w['loss']} ({w['right']} → {w['bug']})",
               f"{w['used']} ({w['right']} → {w['bug']})", w["caught"])  # fmt: skip
    head += ["| | " + " | ".join(columns) + " |", "|" + "---|" * 7]
    for r in rows:
        title = CATALOGUE[r["check"]].title[i]
        code = r["line"].replace("|", "/"), r["right_line"].replace("|", "/")
        head.append(
            f"| **{r['bug']}**: {title} | `{r['check']}` | `{code[0]}` | `{code[1]}` | "
            f"{r['right_loss'][-1]:.2f} → {r['loss'][-1]:.2f} | "
            f"{r['right_answers']:.0f} % → {r['answers']:.0f} % | {'✓' if r['caught'] else '✗'} |"
        )
    return "\n".join(head) + "\n"
