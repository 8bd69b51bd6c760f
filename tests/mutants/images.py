"""Planted bugs of models that read images: patches, their places, and the heads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import torch

import allformer as af
from allformer.errors import AllformerError
from tests.mutants.mutants import Mutant, bug
from tests.parity import pictures, test_deit, test_dinov2, test_vit, zoo
from tests.unit import test_drop_path, test_front

_FOLDER = tempfile.TemporaryDirectory(prefix="mutants")


@cache
def _written(group: ModuleType, name: str) -> Path:
    """The case as transformers writes it, once."""
    return zoo.on_disk(zoo.oracle(group.BY_NAME[name]), Path(_FOLDER.name) / name)


def _check(
    group: ModuleType, name: str, size: tuple[int, int] | None = None, hide: bool = False
) -> None:
    """The same numbers as transformers', of an image of this size, with patches hidden."""
    case = group.BY_NAME[name]
    inputs = pictures.images(case, size)
    if hide:
        inputs = pictures.hidden(case, inputs)
    if size is not None and group is not test_dinov2:
        inputs["interpolate_pos_encoding"] = True
    with torch.no_grad():
        pictures.compare(case, af.load(_written(group, name)), zoo.oracle(case), inputs)


KILLERS: dict[str, Callable[[], None]] = {
    "vit": partial(_check, test_vit, "ViT"),
    "vit, another size": partial(_check, test_vit, "ViT", (28, 12)),
    "vit classes": partial(_check, test_vit, "ViT classes"),
    "vit without biases": partial(_check, test_vit, "ViT without pooler"),
    "vit pixels": partial(_check, test_vit, "ViT pixels", None, True),
    "deit": partial(_check, test_deit, "DeiT"),
    "deit, another size": partial(_check, test_deit, "DeiT", (28, 12)),
    "deit teacher": partial(_check, test_deit, "DeiT teacher"),
    "dinov2": partial(_check, test_dinov2, "Dino"),
    "dinov2, hidden": partial(_check, test_dinov2, "Dino", None, True),
    "dinov2 SwiGLU classes": partial(_check, test_dinov2, "Dino SwiGLU classes"),
    "registers": partial(_check, test_dinov2, "registers"),
    "registers, smaller": partial(_check, test_dinov2, "registers", (12, 8)),
    "registers classes": partial(_check, test_dinov2, "registers SwiGLU classes"),
    "dropped paths are rows": test_drop_path.check_rows,
    "dropped paths keep the mean": test_drop_path.check_mean,
    "no dropped paths in use": test_drop_path.check_use,
    "first tokens": partial(test_front.check_front, "pre-norm"),
    "first tokens, window": partial(test_front.check_front, "window"),
    "first tokens, turned": partial(test_front.check_front, "rotary"),
    "first tokens, two": partial(test_front.check_front, "two heads"),
    "first tokens, patches": partial(test_front.check_front, "patches"),
}
SOURCE, PLANE, HEAD = "sources.patches:Patches", "plane:LearnedPlane.forward", "heads.pixels"
FAMILY, READ = "allformer.families", "heads.classes:ClassHead.read"
DROP = "block:Block._thin"
ASIDE = {"raises": (AssertionError, AllformerError)}  # seen when the file is read, or in the result

MUTANTS: list[Mutant] = [
    bug("patches by columns", "the picture is read sideways", f"{SOURCE}.cut",
        "permute(0, 2, 4, 1, 3, 5)", "permute(0, 4, 2, 1, 3, 5)", "vit"),
    bug("channels last in a patch", "colours are taken for places", f"{SOURCE}.cut",
        "permute(0, 2, 4, 1, 3, 5)", "permute(0, 2, 4, 3, 5, 1)", "vit"),
    bug("[CLS] at the end", "the classifier reads a patch", f"{SOURCE}._around",
        "(*before, x, behind)", "(x, *before, behind)", "vit", "vit classes"),
    bug("distillation before [CLS]", "two tokens exchanged", f"{SOURCE}.vectors",
        "self.cls, self.distilled", "self.distilled, self.cls", "deit", "deit teacher"),
    bug("registers have places", "all patches stand elsewhere", f"{SOURCE}._positions",
        "[vectors[:placed], nowhere, vectors[placed:]]", "[vectors, nowhere]", "registers"),
    bug("shown ones are hidden", "the mask is read the wrong way", f"{SOURCE}.vectors",
        "hidden.bool()[..., None]", "~hidden.bool()[..., None]", "vit pixels", "dinov2, hidden"),
    bug("bilinear positions", "blurred places at other sizes", PLANE,
        '"bicubic"', '"bilinear"', "vit, another size"),
    bug("corners aligned", "places stretched to the border", PLANE,
        "align_corners=False", "align_corners=True", "vit, another size"),
    bug("never smoothed", "positions alias where they shrink", PLANE,
        "antialias=self.config.antialias", "antialias=False", "registers, smaller"),
    bug("always smoothed", "positions blurred where they shrink", PLANE,
        "antialias=self.config.antialias", "antialias=True", "vit, another size"),
    bug("[CLS] interpolated too", "its place is taken for a patch's", PLANE,
        "before, cells, behind = torch.split(tables, counts, 1)",
        "cells, before, behind = torch.split(tables, [counts[1], counts[0], counts[2]], 1)",
        "vit, another size", "deit, another size"),
    bug("rows and columns exchanged", "a wide image has places of a high one", PLANE,
        "grid, shape, mode", "grid, shape[::-1], mode", "vit, another size"),
    bug("mean of all tokens", "[CLS] and registers count as patches", READ,
        "hidden.grid[:, source.patches]", "hidden.grid", "dinov2 SwiGLU classes"),
    bug("registers count as patches", "notes are read as picture", READ,
        "source.patches", "source.placed :", "registers classes"),
    bug("mean before [CLS]", "the classifier's halves exchanged", READ,
        "[hidden.grid[:, 0], mean]", "[mean, hidden.grid[:, 0]]", "dinov2 SwiGLU classes"),
    bug("no layer scale", "sub-layers speak too loud", "block:LayerScale.forward",
        "h * cast(self.weight, h.dtype)", "h", "dinov2"),
    bug("paths dropped token by token", "dropout by another name", DROP,
        "h.shape[0], 1, 1", "*h.shape[:2], 1", "dropped paths are rows"),
    bug("what is kept is not the more", "in use all sub-layers speak too loud", DROP,
        ".div_(keep)", "", "dropped paths keep the mean"),
    bug("paths dropped in use", "not deterministic", "block:Block.steps",
        "self.training and self.drop_path", "self.drop_path", "no dropped paths in use"),
    bug("pixels of the tokens before", "the painting is shifted", f"{HEAD}:PixelHead.outputs",
        "hidden.grid[:, source.patches]", "hidden.grid[:, : -source.front]", "vit pixels"),
    bug("shown pixels are scored", "learns to copy", f"{HEAD}:PixelHead.sums",
        ".abs() * hide)", ".abs() * ~hide)", "vit pixels"),
    bug("squared distance", "another loss", f"{HEAD}:PixelHead.sums",
        ".abs() * hide", ".square() * hide", "vit pixels"),
    bug("channels not averaged", "the loss is thrice as large", f"{HEAD}:PixelHead.sums",
        ".sum() / guess.shape[1]", ".sum()", "vit pixels"),
    bug("both heads read [CLS]", "the teacher's token is not asked",
        "heads.teacher:TeacherHead.outputs", "hidden.grid[:, 1]", "hidden.grid[:, 0]",
        "deit teacher"),
    bug("the heads' sum", "scores twice as sure", "heads.teacher:TeacherHead.outputs",
        "(own + told) / 2", "own + told", "deit teacher"),
    bug("gate and up exchanged", "the wrong half is activated", f"{FAMILY}.dinov2:_gated",
        '(f"{where}.mlp.gate_proj.{kind}", f"{where}.mlp.up_proj.{kind}")',
        '(f"{where}.mlp.up_proj.{kind}", f"{where}.mlp.gate_proj.{kind}")',
        "dinov2 SwiGLU classes"),
    bug("norms exchanged", "each sub-layer reads the other's", f"{FAMILY}.vit:LAYER",
        "'attention_norm': 'layernorm_before'", "'attention_norm': 'layernorm_after'", "vit",
        **{"raises": Exception}),
    bug("bias for q, k, v always", "a file without is misread",
        f"{FAMILY}.image_encoder:read_attention", '("out",)', "True", "vit without biases",
        **ASIDE),
    bug("ViT's small number in DINOv2", "norms differ where states are small",
        f"{FAMILY}.dinov2:read_over", 'float(fields.take("layer_norm_eps"))',
        'float(fields.take("layer_norm_eps") and 1e-12)', "dinov2"),
    # --- the first tokens alone -------------------------------------------------------------------
    bug("first tokens look at themselves", "[CLS] sees no patch", "attention:Attention.forward",
        'self.qkv.only(x, "k", "v")', 'self.qkv.only(x[:, :front], "k", "v")', "first tokens"),
    bug("first tokens with the last ones' residual", "[CLS] becomes a patch", "block:_first",
        "x[:, : h.shape[1]]", "x[:, -h.shape[1] :]", "first tokens"),
    bug("first tokens with all queries' mask", "shapes clash", "mixers.full:Full.narrow",
        "look.merged is None and", "True and", "first tokens, window",
        raises=(AssertionError, RuntimeError)),
    bug("first tokens not turned", "positions lost in the last layer", "stack:Stack._narrowed",
        "relation is PLAIN and", "True and", "first tokens, turned"),
    bug("one token for two heads", "an IndexError",
        "whole:Model.front", "self.head.front, last.width", "1, last.width", "first tokens, two",
        raises=(AssertionError, IndexError)),
    bug("patches are thought unread", "the mean is of nothing", "heads.classes:ClassHead.__init__",
        'head.at in ("first", "pool")', 'head.at != "token"', "first tokens, patches"),
]  # fmt: skip
