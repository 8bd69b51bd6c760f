"""Whether what is drawn is what was asked for: an independent classifier says which class it sees.

    python benchmarks/drawn_classes.py runs/fashion-dalle --classifier runs/fashion
    python benchmarks/drawn_classes.py runs/fashion-dalle --classifier runs/fashion \
        --clip runs/fashion-clip --each 200 --guidance 1 2 --json out.json

RUN is a run of objective=text-to-image on labelled pictures; its recipe has the wordings. Of every
class `--each` images are drawn, spread over all wordings. The classifier is a run (or a checkpoint)
of image classification that knows the same classes and has never seen what draws. A CLIP chooses
one in `--candidates` by the wording that was asked for, as in the paper (Ramesh et al., 2021,
section 2.6); without it, there are rows without re-ranking alone.

One row is no drawing: real test pictures through the codec and back, which says how many the
classifier still knows then. It is what drawing could reach if it were perfect.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import allformer as af
from allformer.tasks.drawing_kit import TextKit
from allformer.train.objectives import find_objective
from allformer.train.pictures.captions import names_of
from allformer.train.pictures.gallery import Gallery
from allformer.train.recipe import read_recipe


class Wordings(NamedTuple):
    """What was asked for, and in which words."""

    labels: tuple[str, ...]
    texts: list[str]
    classes: list[int]  # of each text


def main() -> None:
    args = _parsed()
    kit = af.open_drawing(args.run, device=args.device)
    if not isinstance(kit, TextKit):
        raise SystemExit(f"{args.run} draws without a text; give a run of text-to-image")
    classifier = af.open_image_pipeline(args.classifier, device=args.device)
    judge = None if args.clip is None else af.open_image_pipeline(args.clip, device=args.device)
    objective = _objective(args)
    asked = wordings(objective)
    rows = [_again(kit, classifier, objective, asked, args)]
    for guidance in args.guidance:
        for clip in (None, judge) if judge is not None else (None,):
            rows.append(_drawn(kit, classifier, clip, asked, guidance, args))
            print(_line(rows[-1], asked), flush=True)
    print()
    for row in rows:
        print(_line(row, asked))
    if args.json is not None:
        args.json.write_text(json.dumps({"labels": asked.labels, "rows": rows}, indent=1) + "\n")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--classifier", required=True)
    parser.add_argument("--clip")
    parser.add_argument("--each", type=int, default=200, help="images of a class")
    parser.add_argument("--candidates", type=int, default=4, help="drawn for each that is kept")
    parser.add_argument("--guidance", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--data", help="where the pictures lie, if not where the recipe says")
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _objective(args: argparse.Namespace) -> Any:
    """The run's own, its pictures open, with the codec that the run keeps."""
    changes = [f"objective.codec={args.run / 'codec'}"]
    changes += [f"data.path={args.data}"] if args.data else []
    recipe = read_recipe(args.run / "recipe.yaml", changes)
    objective = find_objective(recipe.objective)(recipe)
    objective.open()
    return objective


def wordings(objective: Any) -> Wordings:
    """Each class in each template, by the first of its names."""
    labels = objective.pictures[0].labels
    names = [each[0] for each in names_of(labels, objective.data.names)]
    pairs = [(t.replace("{}", n), i) for i, n in enumerate(names) for t in objective.data.templates]
    return Wordings(labels, [text for text, _ in pairs], [number for _, number in pairs])


def _drawn(
    kit: TextKit, classifier: Any, clip: Any, asked: Wordings, guidance: float, args: Any
) -> dict[str, Any]:
    """The share of each class that the classifier finds in what is drawn for it."""
    per_text = max(1, round(args.each * len(asked.labels) / len(asked.texts)))
    begin = time.monotonic()
    found = af.draw(
        kit, asked.texts, count=per_text, guidance=guidance, temperature=args.temperature,
        top_k=args.top_k, seed=args.seed, rerank=clip, batch=args.batch,
        candidates=None if clip is None else args.candidates * per_text,
    )  # fmt: skip
    seconds = time.monotonic() - begin
    images = [one.image for drawn in found for one in drawn]
    wanted = np.repeat(asked.classes, per_text)
    name = f"guidance {guidance:g}" + ("" if clip is None else f", best of {args.candidates}")
    return {"name": name, **_judged(classifier, images, wanted, asked, args), "seconds": seconds}


def _again(
    kit: TextKit, classifier: Any, objective: Any, asked: Wordings, args: Any
) -> dict[str, Any]:
    """Real held-out pictures through the codec and back."""
    pictures = objective.pictures[1]
    index = np.linspace(0, len(pictures) - 1, min(len(pictures), 2000)).astype(np.int64)
    pixels = torch.from_numpy(Gallery(pictures, objective.settings).pixels(index))
    parts = [kit.codec.decode(kit.codec.encode(part)) for part in pixels.split(args.batch)]
    bytes_ = (torch.cat(parts).float() * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    wanted = np.array([pictures[int(i)].label for i in index])
    return {
        "name": "real, through the codec",
        **_judged(classifier, list(bytes_), wanted, asked, args),
    }


def _judged(
    classifier: Any, images: list[Any], wanted: Any, asked: Wordings, args: Any
) -> dict[str, Any]:
    seen = af.classify_image(classifier, images, batch=args.batch)
    numbers = {label: i for i, label in enumerate(asked.labels)}
    said = np.array([numbers.get(one.label, -1) for one in seen])
    right = said == wanted
    each = {label: float(right[wanted == i].mean()) for i, label in enumerate(asked.labels)}
    wrong = Counter(
        f"{asked.labels[a]} → {asked.labels[b]}"
        for a, b in zip(wanted[~right], said[~right], strict=True)
        if b >= 0
    )
    return {
        "images": len(images), "share": float(right.mean()), "each": each,
        "mistaken": wrong.most_common(3),
    }  # fmt: skip


def _line(row: dict[str, Any], asked: Wordings) -> str:
    worst = min(row["each"], key=row["each"].get)
    took = f", drawn in {row['seconds']:.1f} s" if "seconds" in row else ""
    mistaken = ", ".join(f"{what} {count}" for what, count in row["mistaken"])
    return (
        f"{row['name']:<28} {100 * row['share']:5.1f} % of {row['images']:,} as asked; least "
        f"{worst} {100 * row['each'][worst]:.0f} %{took} ({mistaken})"
    )


if __name__ == "__main__":
    main()
