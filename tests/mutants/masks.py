"""Planted bugs of segmentation: EoMT, its loss and its maps, Segmenter's decoders, mean IoU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch

from tests.drawn import write_idx
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_eomt, test_eomt_images, zoo
from tests.unit import test_pixel_loss, test_segmentation, test_segmenter

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


@cache
def _written(name: str) -> Path:
    """The case as transformers writes it, once."""
    return zoo.on_disk(zoo.oracle(test_eomt.BY_NAME[name]), Path(_FOLDER.name) / name)


@cache
def _scenes() -> Path:
    path = write_idx(Path(_FOLDER.name) / "halves").parent / "scenes.json"
    path.write_text(test_segmentation.SAID)
    return path


def _forward(name: str) -> None:
    with torch.no_grad():
        test_eomt.compare(name, _written(name))


def _learns(name: str, training: bool = False) -> None:
    test_eomt.compare(name, _written(name), training=training, **test_eomt.targets())


def _with(check: Callable[[Path], None]) -> None:
    check(_scenes())


KILLERS: dict[str, Callable[[], None]] = {
    "eomt": partial(_forward, "EoMT"),
    "eomt masked": partial(_forward, "EoMT masked"),
    "eomt annealed": partial(_forward, "EoMT annealed"),
    "eomt SwiGLU": partial(_forward, "EoMT SwiGLU"),
    "eomt loss": partial(_learns, "EoMT"),
    "eomt training": partial(_learns, "EoMT half masked", True),
    "pairs by class": test_eomt.check_pairs,
    "eomt pieces": partial(test_eomt_images.check_pieces, "split"),
    "eomt pad": partial(test_eomt_images.check_pieces, "pad"),
    "eomt semantic": test_eomt_images.check_semantic,
    "eomt instances": partial(test_eomt_images.check_things, "instance", threshold=0.5),
    "eomt panoptic": partial(test_eomt_images.check_things, "panoptic", threshold=0.5, stuff=[1]),
    "segmenter pixels": test_segmenter.check_pixels,
    "segmenter classes": test_segmenter.check_classes,
    "segmenter loss": partial(test_segmenter.check_loss, "patches"),
    "pixel loss": test_pixel_loss.check,
    "mean iou": test_segmentation.check_iou,
    "maps moved": test_segmentation.check_place,
    "loss of pixels": partial(_with, test_segmentation.check_loss),
    "targets of a set": partial(_with, test_segmentation.check_set),
}
HEAD, LOSS = "heads.query_masks:QueryMasks", "mask_loss"
MAPS, PIECES = "allformer.images.segments", "allformer.images.pieces"
LEARN = "allformer.train.objectives.segmentation"
ASIDE = {"raises": (AssertionError, RuntimeError)}  # the shapes may not even fit

MUTANTS: list[Mutant] = [
    bug("queries at the end", "masks of patches, classes of places", f"{HEAD}.outputs",
        "self.queries.to(x.dtype).expand(len(x), -1, -1), x]",
        "x, self.queries.to(x.dtype).expand(len(x), -1, -1)]", "eomt"),
    bug("states are not normed for masks", "masks too loud", f"{HEAD}.outputs",
        "masks, classes = self.guess(x, shape)", "masks, classes = self.guess(x * 2, shape)",
        "eomt"),
    bug("registers among the patches", "masks are shifted", f"{HEAD}.guess",
        "count + self.stack.source.front", "count + 1", "eomt", **ASIDE),
    bug("two layers of the mask's head", "masks of another query", f"{HEAD}.guess",
        "last(self.act(second(self.act(first(queries)))))", "last(self.act(first(queries)))",
        "eomt"),
    bug("no activation in the upscaling", "masks are linear in the patches",
        "heads.upscale:Doubled.forward",
        "self.act(F.conv_transpose2d(x, up, bias, stride=2))",
        "F.conv_transpose2d(x, up, bias, stride=2)", "eomt"),
    bug("no norm in the upscaling", "masks of bright places are louder",
        "heads.upscale:Doubled.forward", "self.norm(x.permute(0, 2, 3, 1))",
        "x.permute(0, 2, 3, 1)", "eomt"),
    bug("[CLS] has a place", "all patches stand elsewhere", "sources.patches:Patches._positions",
        "torch.cat([vectors[:placed], nowhere, vectors[placed:]])",
        "torch.cat([vectors, nowhere])", "eomt"),
    bug("masked the other way", "a query looks at all but its mask", f"{HEAD}._look",
        ".flatten(2) > 0", ".flatten(2) <= 0", "eomt masked"),
    bug("all look at masks", "patches are blind to most of the image", f"{HEAD}._look",
        "look[:, :count,", "look[:, :,", "eomt masked", **ASIDE),
    bug("registers are masked too", "a mask covers what is no patch", f"{HEAD}._look",
        "width - inside.shape[2] :", "count : count + inside.shape[2]", "eomt masked"),
    bug("a mask for its own layer alone", "transformers keeps the last one", f"{HEAD}.outputs",
        "x = self.layers(i, x, mask)", "x = self.layers(i, x, mask if share > 0 else None)",
        "eomt annealed"),
    bug("the bound are freed", "masking grows as it is annealed", f"{HEAD}._look",
        "device=masks.device) > share", "device=masks.device) <= share", "eomt training"),
    bug("only the end learns", "layers on the way are not taught", f"{HEAD}.sums",
        '*outputs.get("auxiliary_logits", ()), last', "last,", "eomt training"),
    bug("matched without classes", "pairs by shape alone", f"{LOSS}:find_pairs",
        "- settings.classes * guess", "- 0 * guess", "pairs by class"),
    bug("dearest pairs", "each target learns from the worst", f"{LOSS}:_assigned",
        "solve(part.view(table.shape).numpy())", "solve(-part.view(table.shape).numpy())",
        "eomt loss"),
    bug("dice without its smoothing", "empty masks cost nothing", f"{LOSS}:_mask_losses",
        "(2 * (p * aims).sum(-1) + 1)", "(2 * (p * aims).sum(-1))", "eomt loss"),
    bug("losses by pairs of a batch", "images with many masks weigh less", f"{LOSS}:mask_costs",
        "max(1, sum(len(x) for x in named))", "len(named)", "eomt loss"),
    bug("nothing weighs as much", "all queries say nothing", f"{LOSS}:_class_loss",
        "weight[last] = nothing", "weight[last] = 1.0", "eomt loss"),
    bug("sure points", "the easy pixels are learnt", f"{LOSS}:unsure_points",
        "(-sure).topk", "sure.topk", "eomt loss"),
    bug("gate and up of EoMT exchanged", "the wrong half is activated",
        "allformer.families.eomt:GATED",
        "'feed.up': 'mlp.up_proj', 'feed.down': 'mlp.down_proj', 'feed.gate': 'mlp.gate_proj'",
        "'feed.up': 'mlp.gate_proj', 'feed.down': 'mlp.down_proj', 'feed.gate': 'mlp.up_proj'",
        "eomt SwiGLU", **ASIDE),
    bug("pieces end to end", "the last piece stands out", f"{PIECES}:split",
        "int(i * (side - overlap))", "i * side", "eomt pieces", raises=Exception),
    bug("black on the left", "padded images are shifted", f"{PIECES}:padded",
        "(0, more[0]), (0, more[1])", "(more[0], 0), (more[1], 0)", "eomt pad"),
    bug("pieces are added up", "what is seen twice counts double", f"{MAPS}:joined",
        "total / times.clamp(min=1)", "total", "eomt semantic"),
    bug("score of the class alone", "ragged masks are as sure", f"{MAPS}:instances",
        "best * sure", "best", "eomt instances"),
    bug("each pixel to the surest mask", "classes do not weigh", f"{MAPS}:panoptic",
        "scores[:, None, None] * masks", "masks", "eomt panoptic"),
    bug("stuff in pieces", "one sky becomes several", f"{MAPS}:panoptic",
        "if label in stuff:", "if label in ():", "eomt panoptic"),
    bug("the map upside down", "the sky is below",
        "heads.linear_masks:LinearMasks.outputs", "F.pixel_shuffle(x, self.config.cells)",
        "F.pixel_shuffle(x, self.config.cells).flip(2)", "segmenter pixels"),
    bug("dot products of patches and labels", "long vectors win",
        "heads.class_masks:ClassMasks.outputs",
        "F.normalize(widen(self.patch(x[:, :-many])), dim=-1)", "widen(self.patch(x[:, :-many]))",
        "segmenter classes"),
    bug("labels before the patches", "labels are compared with labels",
        "heads.class_masks:ClassMasks.outputs", "torch.cat([x, own], 1)", "torch.cat([own, x], 1)",
        "segmenter classes"),
    bug("corners aligned in scores", "scores are stretched", "pixel_loss:resized",
        "align_corners=False", "align_corners=True", "segmenter loss", "pixel loss"),
    bug("corners aligned in the gradient of scores", "the gradient is another map's",
        "pixel_loss:_shrunk", "list(shape), False", "list(shape), True", "pixel loss"),
    bug("smoothing forgotten in the gradient of scores", "labels are learnt as if they were sure",
        "pixel_loss:_slope", "if smoothing:", "if False:", "pixel loss"),
    bug("pixels that do not count push scores", "what has no label is learnt",
        "pixel_loss:_slope", "slope.mul_(real[:, None])", "slope", "pixel loss"),
    bug("union counts both twice", "IoU is too small", "allformer.metrics.mean_iou:iou",
        ".double() - both", ".double()", "mean iou"),
    bug("classes that are nowhere count", "a rare class ruins the mean",
        "allformer.metrics.mean_iou:iou", "each[either > 0]", "each.nan_to_num()", "mean iou"),
    bug("what does not count is wrong", "borders spoil the figure",
        "allformer.metrics.mean_iou:confusion", "torch.where(real, wanted",
        "torch.where(real | True, wanted.clamp(min=0)", "mean iou"),
    bug("the map stays", "images are mirrored, their maps not",
        "allformer.images.augment.place:RandomPlace.apply",
        "torch.where(chosen[:, None, None], maps.flip(-1), maps)", "maps", "maps moved"),
    bug("outside is the first class", "black borders are learnt as something",
        "allformer.images.augment.place:RandomPlace.apply", "[:, 0] - 1",
        "[:, 0].clamp(min=1) - 1", "maps moved"),
    bug("mean over all pixels", "images with few known pixels hardly count",
        f"{LEARN}:Segmentation.loss", "(batch.maps != IGNORE).sum((1, 2)).clamp(min=1)",
        "batch.maps[0].numel()", "loss of pixels"),
    bug("the first object is lost", "a segment is never learnt", f"{LEARN}:_targets",
        "if seen]", "if seen and number]", "targets of a set"),
]  # fmt: skip
