"""Planted bugs of models that find objects: queries, positions in every layer, matching, losses."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from allformer.images.augment.objects import MoveObjects
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_detection_images, test_detr, test_yolos, zoo
from tests.unit import test_anew, test_detection, test_set_loss

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


@cache
def _written(group: ModuleType, name: str) -> Path:
    """The case as transformers writes it, once."""
    model = zoo.oracle(group.BY_NAME[name])
    if group is test_detr:
        test_detr.make_norms_loud(model)
    return zoo.on_disk(model, Path(_FOLDER.name) / name)


def _yolos(name: str, *size: int) -> None:
    test_yolos.check_yolos_forward(name, _written(test_yolos, name), *size)


def _detr(name: str, masked: bool) -> None:
    test_detr.check_detr_forward(name, _written(test_detr, name), masked)


KILLERS: dict[str, Callable[[], None]] = {
    "yolos": partial(_yolos, "YOLOS", 12, 20),
    "yolos, another size": partial(_yolos, "YOLOS", 24, 17),
    "detr": partial(_detr, "DETR", False),
    "detr, masked": partial(_detr, "DETR", True),
    "detr, early strides": partial(_detr, "DETR bare", False),
    "detr, layers normed": partial(_detr, "DETR bare, all layers normed", False),
    "set loss": test_set_loss.check_set_loss,
    "set loss of layers": partial(test_set_loss.check_set_loss, 3),
    "matching": test_set_loss.check_matching,
    "composed anew": test_anew.check_composed,
    "boxes move": partial(test_detection.check_boxes_move, MoveObjects(1.0, (0.7, 1.4), 0.1)),
    "still": test_detection.check_still,
    "queries on a body": test_detection.check_queries_on_a_body,
    "yolos pixels": partial(
        test_detection_images.check_pixels_and_mask, "Yolos", test_detection_images.SAID[0]
    ),
}
HEAD, LOSS, ADDED = "heads.boxes", "set_loss", "relatives.added"
ANEW = "allformer.images.augment.compose:Compose"
MOVES = "allformer.images.augment.objects:MoveObjects"

MUTANTS: list[Mutant] = [
    bug("the first tokens are asked", "[CLS] and patches are taken for queries",
        f"{HEAD}:BoxHead.guess", "-self.queries :, :", ": self.queries, :", "yolos"),
    bug("relu before the first layer", "half of a state is lost", f"{HEAD}:Layers.forward",
        "x if i == 0 else F.relu(x)", "F.relu(x)", "yolos"),
    bug("no sigmoid on boxes", "boxes lie outside", f"{HEAD}:BoxHead.guess",
        "self.boxes(x).sigmoid()", "self.boxes(x)", "yolos"),
    bug("detection tokens before the patches", "all places are wrong",
        "sources.patches:Patches._around", "(*before, x, behind)", "(*before, behind, x)", "yolos"),
    bug("detection tokens interpolated too", "queries stand elsewhere at other sizes",
        "plane:LearnedPlane.forward", "before, cells, behind = torch.split(tables, counts, 1)",
        "before, behind, cells = torch.split(tables, [counts[0], counts[2], counts[1]], 1)",
        "yolos, another size"),
    bug("no positions between layers", "they are forgotten on the way", "stack:Stack._between",
        "if self.between is None", "if self.between is not None", "yolos"),
    bug("layers hand on what is not normed", "states of another size", "stack:Stack.forward",
        "if self.norms_each:", "if False:", "detr, layers normed"),
    bug("values have positions", "what is seen depends on where", "attention:Attention._fused",
        'self.qkv.only(x, "v")', 'self.qkv.only(x + relation.own, "v")', "detr"),
    bug("keys across have no positions", "queries cannot look for a place",
        "attention:Attention._seen", "memory + relation.other", "memory", "detr"),
    bug("queries across have no positions", "all queries look alike", "block:Block.steps",
        "if relation.own is not None:", "if False:", "detr"),
    bug("columns before rows", "the picture is turned", f"{ADDED}:plane_sines",
        "for axis in (1, 2)", "for axis in (2, 1)", "detr"),
    bug("padding is counted", "a small image on a sheet stands elsewhere", f"{ADDED}:_along",
        "keep.cumsum(axis)", "keep.new_ones(keep.shape).cumsum(axis)", "detr, masked"),
    bug("padding is looked at", "the sheet is taken for the image",
        "set_decoder:SetDecoderModel._lay_out", "Grid(rows, width, keep)", "Grid(rows, width)",
        "detr, masked"),
    bug("no small number in the norm", "rare channels explode",
        "sources.resnet:FrozenNorm.forward", "widen(self.variance) + EPS", "widen(self.variance)",
        "detr"),
    bug("relu after the sum left out", "the residual network is not one",
        "sources.resnet:Residual.forward", "return F.relu(y", "return (y", "detr"),
    bug("strides elsewhere", "a bottleneck halves in the wrong place",
        "allformer.config.resnet:ResNet._layer", "(stride, 1) if self.halve_early else (1, stride)",
        "(1, stride)", "detr, early strides"),
    bug("plain IoU", "boxes that do not meet have no gradient", "boxes:generalised_iou",
        "common / union - (around - union) / around", "common / union", "set loss"),
    bug("nothing counts in full", "all queries say nothing", f"{LOSS}:_class_loss",
        "masked_fill(aims == none, nothing)", "masked_fill(aims == none, 1.0)", "set loss"),
    bug("a mean over images", "many objects weigh more", f"{LOSS}:score",
        "count = (wanted.classes != NOBODY).sum().clamp_min(1)", "count = given.shape[1]",
        "set loss"),
    bug("the first layer alone", "earlier layers learn nothing", f"{LOSS}:set_loss",
        "zip(*layers, strict=True)", "zip(layers[-1], strict=True)", "set loss of layers"),
    bug("an object given twice", "two queries for one object", "few_matched:few_matched",
        "left - (1 << which.clamp_min(0))", "left", "matching"),
    bug("queries in any order", "one query for two objects", "few_matched:few_matched",
        "best = torch.where(better, least, best)", "best = least.minimum(ways.amin(-1))",
        "matching"),
    bug("mirrored boxes stay", "boxes beside their objects", f"{MOVES}.apply",
        "(middle - 0.5 + shift) * factor + 0.5", "(middle - 0.5 + shift) * factor.abs() + 0.5",
        "boxes move"),
    bug("anything may be covered", "objects of which nothing is seen", f"{ANEW}._laid",
        "fits = (covered <= left[:, None]).all(2)", "fits = (covered >= 0).all(2)",
        "composed anew"),
    bug("what is covered is forgotten", "two may each cover what one may", f"{ANEW}._laid",
        "left = left - gone", "left = left - 0 * gone", "composed anew"),
    bug("paper is painted over", "squares around the objects", f"{ANEW}._laid",
        "over = ink & laid[:, None]", "over = laid[:, None].expand_as(ink)", "composed anew"),
    bug("boxes of the wrong axis", "boxes beside their objects", f"{ANEW}._boxes",
        "zip(self.canvas, (3, 2), strict=True)", "zip(self.canvas[::-1], (2, 3), strict=True)",
        "composed anew"),
    bug("sharp, but elsewhere", "boxes beside their objects", f"{MOVES}.draw",
        "shift.where(~stays[:, None], 0.0)", "shift", "still"),
    bug("still by another size", "maps beside their images",
        "allformer.images.augment.place:RandomPlace.draw",
        "drawn[0, uniform(count, generator) < self.still] = 1.0",
        "drawn[0, uniform(count, generator) < self.still] = 2.0", "still"),
    bug("patches take the queries' places", "a trained body sees a shuffled image",
        "allformer.checkpoint.body:take_body", "tensor[: len(source)].copy_(source)",
        "tensor[-len(source) :].copy_(source)", "queries on a body"),
    bug("sides are no multiples", "YOLOS sees other images",
        "allformer.images.sizes:resized", "high - high % multiple, wide - wide % multiple",
        "high, wide", "yolos pixels"),
]  # fmt: skip
