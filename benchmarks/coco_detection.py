"""Detection on a few COCO images: our YOLOS beside transformers', trained the same way.

    python benchmarks/coco_detection.py --data coco128/object_detection/config.yaml --minutes 4

Both begin with the same weights (ours, saved and opened by transformers) and get the same batches,
in the same order, moved by the same chance; one optimiser, one schedule, one precision. They are
trained in turns, a block of steps each, and both scored by pycocotools on the val part. With
--minutes both stop after so many together. So few images carry no detector from scratch: what is
compared is whether one is worse than the other.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import allformer as af
from allformer import config
from allformer.core.boxes import found as found_by
from allformer.core.precision import pick_device
from allformer.core.starts import decay_groups
from allformer.data.pictures import open_pictures
from allformer.images.augment.objects import MoveObjects
from allformer.metrics.mean_precision import Found, There, mean_precision
from allformer.train.pictures.boxes import BoxGallery, size_of

BLOCK = 50  # steps in turn


def tree(args: argparse.Namespace, labels: tuple[str, ...]) -> config.EncoderOnly:
    """YOLOS in these sizes, as transformers can open it."""
    source = config.Patches(args.patch, 3, (args.side, args.side), behind=args.queries)
    place = config.LearnedPlane(source.shape, 1, "always", behind=args.queries)
    block = config.Block(
        config.Attention(args.heads), config.Feed(4 * args.dim, "gelu"),
        norm=config.Norm(eps=1e-12), norm_at="pre", dropout=0.0,
    )  # fmt: skip
    stack = config.Stack(
        args.dim, source, place, config.repeat(block, args.layers),
        final_norm=config.Norm(eps=1e-12), dropout=0.0,
    )  # fmt: skip
    return config.EncoderOnly(stack, config.BoxHead(labels))


def galleries(args: argparse.Namespace) -> tuple[BoxGallery, BoxGallery]:
    """Both parts, resized to a square."""
    from allformer.images.settings import IMAGENET_MEAN, IMAGENET_STD, make_settings

    size = {"height": args.side, "width": args.side}
    said = {"image_processor_type": "ViTImageProcessor", "size": size}
    settings = make_settings({**said, "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD})
    splits = open_pictures(args.data)
    numbers = np.arange(len(splits["train"].labels))
    train, val = (BoxGallery(numbers, splits[name], settings, print) for name in ("train", "val"))
    return train, val


class Trained:
    """A model with its optimiser; `loss(pixels, labels)` is its own."""

    def __init__(self, name: str, model: Any, groups: Any, rate: float) -> None:
        self.name, self.model, self.seconds = name, model, 0.0
        self.optimizer = torch.optim.AdamW(groups, lr=rate)
        self.last: list[Tensor] = []

    def step(self, pixels: Tensor, labels: list[dict[str, Tensor]], rate: float) -> None:
        """One step, in fp32 (matrix products of a GPU in TF32)."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.model(pixel_values=pixels, labels=labels).loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        self.last.append(loss.detach())


def both(args: argparse.Namespace, labels: tuple[str, ...], device: torch.device) -> list[Trained]:
    """Ours and theirs, with the same weights."""
    from transformers import YolosForObjectDetection

    ours = af.build(tree(args, labels), seed=args.seed).train()
    with tempfile.TemporaryDirectory() as folder:
        af.save(ours, folder, family="yolos")
        theirs = YolosForObjectDetection.from_pretrained(folder).train()
    ours, theirs = ours.to(device), theirs.to(device)
    own = decay_groups(ours, args.decay)
    # The same split for theirs: matrices decay; norms, biases, tokens and positions do not.
    kinds: tuple[list[Any], list[Any]] = ([], [])
    for name, parameter in theirs.named_parameters():
        table = any(word in name for word in ("token", "position", "norm", "bias"))
        kinds[table].append(parameter)
    split = [{"params": kinds[0], "weight_decay": args.decay}]
    split.append({"params": kinds[1], "weight_decay": 0.0})
    rate = args.rate
    return [Trained("allformer", ours, own, rate), Trained("transformers", theirs, split, rate)]


def batch_of(
    gallery: BoxGallery, index: Any, device: torch.device, move: MoveObjects, seed: int
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Images as the models read them, and their objects in transformers' form."""
    pixels = torch.from_numpy(gallery.pixels(index)).float() / 255
    classes, boxes = map(torch.from_numpy, gallery.padded(index, max(1, gallery.most)))
    chance = torch.Generator().manual_seed(seed)
    pixels, boxes, classes = move(pixels, boxes, classes, chance)
    labels = [
        {"class_labels": c[c >= 0].to(device), "boxes": b[c >= 0].to(device)}
        for c, b in zip(classes, boxes, strict=True)
    ]
    return normalised(pixels, gallery).to(device), labels


def normalised(pixels: Tensor, gallery: BoxGallery) -> Tensor:
    """By the settings' mean and std."""
    mean, std = (
        torch.tensor(x).view(-1, 1, 1)
        for x in (gallery.settings.image_mean, gallery.settings.image_std)
    )
    return (pixels - mean) / std


@torch.no_grad()
def scored(model: Any, gallery: BoxGallery, classes: int, device: torch.device) -> dict[str, float]:
    """mAP on a part, in the images' own pixels."""
    model.eval()
    found, there = [], []
    for index in np.array_split(np.arange(len(gallery)), -(-len(gallery) // 32)):
        pixels = normalised(torch.from_numpy(gallery.pixels(index)).float() / 255, gallery)
        out = model(pixel_values=pixels.to(device))
        said = [x.float().cpu().numpy() for x in found_by(out.logits, out.pred_boxes)]
        for i, scores, labels, corners in zip(index.tolist(), *said, strict=True):
            picture = gallery.pictures[i]
            height, width = size_of(picture)
            box = corners * np.array([width, height] * 2)
            found.append(Found(box, labels.astype(np.int64), scores))
            assert picture.boxes is not None
            assert picture.classes is not None
            there.append(There(picture.boxes, picture.classes, picture.crowd))
    model.train()
    return mean_precision(found, there, classes)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train both in turns, then score them on both parts."""
    device = pick_device(args.device)
    torch.set_float32_matmul_precision("high")
    train, val = galleries(args)
    for part in (train, val):  # read before anybody's time is taken
        part.pixels(np.arange(1))
        part.padded(np.arange(1), part.most)
    labels = train.pictures.labels
    runs = both(args, labels, device)
    move = MoveObjects(0.5, (0.8, 1.3), 0.1)
    begin, step = time.perf_counter(), 0
    while step < args.steps and time.perf_counter() - begin < 60 * args.minutes:
        first = step
        step = min(args.steps, step + BLOCK)
        for one in runs:
            start = time.perf_counter()
            for number in range(first, step):
                order = np.random.default_rng((args.seed, number)).permutation(len(train))
                rate = args.rate * min(1.0, (number + 1) / 100)
                if args.steps - number < args.steps // 4:
                    rate *= 0.1
                given = batch_of(train, order[: args.batch], device, move, number)
                one.step(*given, rate)
            if device.type == "cuda":
                torch.cuda.synchronize()
            one.seconds += time.perf_counter() - start
        told = ", ".join(f"{one.name} {one.last[-1].item():.3f}" for one in runs)
        print(f"step {step}: {told}", flush=True)
    return {"steps": step, **{one.name: figures(one, train, val, labels, device) for one in runs}}


def figures(
    one: Trained, train: BoxGallery, val: BoxGallery, labels: tuple[str, ...], device: torch.device
) -> dict[str, Any]:
    """Of one model: seconds, its last loss, mAP on the training part and on the other."""
    parts = {"train": train, "val": val}
    maps = {name: scored(one.model, part, len(labels), device) for name, part in parts.items()}
    last = torch.stack(one.last[-20:]).mean().item()
    return {"seconds": round(one.seconds, 1), "loss": round(last, 4), **maps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a YOLO YAML file, or a COCO directory")
    parser.add_argument("--minutes", type=float, default=4.0, help="for both together")
    parser.add_argument("--steps", type=int, default=3000, help="at most, of each")
    for name, value in {
        "side": 256, "patch": 16, "dim": 256, "heads": 4, "layers": 6, "queries": 60, "batch": 32,
        "seed": 0,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--decay", type=float, default=1e-2)
    parser.add_argument("--device", default=None)
    parser.add_argument("--json", action="store_true", help="the figures as one JSON line, last")
    args = parser.parse_args()
    result = run(args)
    print(f"\n{result['steps']} steps of {args.batch} images, {args.side} × {args.side}")
    print(f"{'':14}{'seconds':>9}{'loss':>9}{'train mAP50':>13}{'val mAP50':>11}{'val mAP':>9}")
    for name in ("allformer", "transformers"):
        row = result[name]
        scores = row["train"]["map50"], row["val"]["map50"], row["val"]["map"]
        print(f"{name:14}{row['seconds']:9.1f}{row['loss']:9.3f}", end="")
        print(f"{scores[0]:13.4f}{scores[1]:11.4f}{scores[2]:9.4f}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
