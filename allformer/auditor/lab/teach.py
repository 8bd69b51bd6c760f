"""`allformer audit --teach`: train every bug of the lab next to the right model, and show both.

teach(Path("lab"), "zh")        # lab/lab.md, lab/lab.png, lab/lab.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allformer.auditor.catalogue import CATALOGUE
from allformer.auditor.lab.bugs import BUGS, Bug
from allformer.auditor.lab.plant import build, lines
from allformer.auditor.lab.tasks import VOCAB, train

STEPS = 250
SIZE: dict[str, Any] = {"vocab": VOCAB, "width": 32, "heads": 4, "layers": 2, "dropout": 0.0}
POSITIONS = {"decoder": "learned", "encoder": "learned", "seq2seq": "sinusoidal"}
WORDS = {
    "en": {
        "title": "The break-it lab", "right": "right", "bug": "with the bug", "loss": "training loss",  # noqa: E501
        "steps": "steps", "check": "check", "line": "wrong", "mend": "right", "used": "right answers",  # noqa: E501
        "caught": "caught", "intro":
            "Every bug is planted in a small model, trained for {steps} steps next to the right one "  # noqa: E501
            "(same seed, same data: repeat a word, fill holes, or reverse a word), and audited. "
            "*Right answers* are measured as the model is used: token by token, each row alone. A low "  # noqa: E501
            "loss with few right answers is the mark of a leak.",
    },
    "zh": {
        "title": "找错实验室", "right": "正确", "bug": "有错", "loss": "训练损失",
        "steps": "步", "check": "检查项", "line": "错误写法", "mend": "正确写法", "used": "答对率",
        "caught": "查出", "intro":
            "每个错误都种在一个小模型里，与正确的模型一起训练 {steps} 步（同样的种子和数据：重复、填空"  # noqa: E501
            "或倒写一个词），再交给审计器检查。*答对率*按实际使用方式测量：逐词元生成、每行单独计算。"
            "损失很低而答对率也很低，正是信息泄漏的标志。",
    },
}  # fmt: skip


def teach(
    out: Path,
    lang: str = "en",
    *,
    steps: int = STEPS,
    bugs: tuple[Bug, ...] = BUGS,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Train and audit everything; write the page, the picture and the numbers. → the page."""
    out.mkdir(parents=True, exist_ok=True)
    page = out / "lab.md"
    page.open("a", encoding="utf-8").close()  # before the work, not after it
    rows = measure(steps, bugs, say)
    (out / "lab.json").write_text(
        json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    draw(rows, out / "lab.png", lang)
    page.write_text(to_markdown(rows, lang, steps), encoding="utf-8")
    return page


def planted(bug: Bug, style: str, **changes: Any) -> nn.Module:
    """The model with the bug, as it is audited: with dropout."""
    options = {"positions": POSITIONS[bug.shape], **dict(bug.options), **changes}
    return build(bug.shape, bug.name, style, **{**SIZE, "dropout": 0.1, **options})


def measure(
    steps: int = STEPS, bugs: tuple[Bug, ...] = BUGS, say: Callable[[str], None] | None = None
) -> list[dict[str, Any]]:
    """One row for each bug: both curves, both rates, what the auditor said."""
    from allformer.auditor.run import audit

    right: dict[Any, Any] = {}
    rows = []
    for number, bug in enumerate(bugs):
        style = bug.styles[0]
        key = bug.shape, style, bug.options
        if key not in right:
            right[key] = _train(bug.shape, "", style, dict(bug.options), steps)
        curve = _train(bug.shape, bug.name, style, dict(bug.options), steps)
        shown = planted(bug, style)
        report = audit(shown, bug.shape, vocab=VOCAB, pad=bug.pad)
        right_line, wrong_line = lines(bug, style)
        finding = next((f for f in report.findings if f.check == bug.check), None)
        rows.append(
            {
                "bug": bug.name, "shape": bug.shape, "style": style, "check": bug.check,
                "line": wrong_line, "right_line": right_line,
                "loss": [round(v, 4) for v in curve["loss"]],
                "right_loss": [round(v, 4) for v in right[key]["loss"]],
                "answers": curve["right"], "right_answers": right[key]["right"],
                "caught": finding is not None, "evidence": finding.evidence if finding else "",
            }
        )  # fmt: skip
        if say is not None:
            say(
                f"{number + 1}/{len(bugs)} {bug.name}: loss {curve['loss'][-1]:.2f} "
                f"(right {right[key]['loss'][-1]:.2f}), {curve['right']:.0f} % right answers "
                f"({right[key]['right']:.0f} %), {'caught' if finding else 'NOT caught'}"
            )
    return rows


def _train(shape: str, bug: str, style: str, options: dict[str, Any], steps: int) -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny tensors: a second thread waits more than it works
    try:
        options = {"positions": POSITIONS[shape], **options}
        curve = train(shape, build(shape, bug, style, **{**SIZE, **options}), steps)
    finally:
        torch.set_num_threads(threads)
    return {"loss": curve.loss, "right": curve.right}


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
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", ncols=2, fontsize=9, frameon=False)
    figure.suptitle(f"{words['title']} · {words['loss']}", x=0.01, ha="left", fontsize=11)
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    figure.savefig(path, dpi=80)
    plt.close(figure)


def to_markdown(rows: list[dict[str, Any]], lang: str, steps: int, picture: str = "lab.png") -> str:
    """The page: the picture and one row of a table for each bug."""
    w = WORDS[lang]
    i = 1 if lang == "zh" else 0
    head = [
        f"# {w['title']}",
        "",
        w["intro"].format(steps=steps),
        "",
        f"![{w['title']}]({picture})",
        "",
    ]
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
