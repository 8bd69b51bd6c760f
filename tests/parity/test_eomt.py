"""EoMT against transformers: loud, fp64, disk to disk; its masked attention and its loss."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import EomtConfig, EomtForUniversalSegmentation

import allformer as af
from allformer.checkpoint.convert import convert
from allformer.config import MaskLoss, QueryMasks
from allformer.core.mask_loss import find_pairs
from allformer.errors import CheckpointError, ConfigError
from allformer.families.config_json import read_config, write_config
from tests.parity import pictures, zoo
from tests.parity.zoo import Case

SIZES = {
    "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 3, "mlp_ratio": 2,
    "image_size": 20, "patch_size": 4, "num_channels": 2, "num_queries": 6, "num_blocks": 2,
    "num_upscale_blocks": 2, "num_labels": 5, "num_register_tokens": 2, "train_num_points": 60,
    "layerscale_value": 0.5,
}  # fmt: skip
OUTPUTS = ("class_queries_logits", "masks_queries_logits", "last_hidden_state", "loss")


class Annealed(EomtForUniversalSegmentation):
    """With a given probability of masking in each of the last layers, as training leaves it."""

    def __init__(self, config: Any, masking: tuple[float, ...] = (0.0, 0.0)) -> None:
        super().__init__(config)
        self.attn_mask_probs = torch.nn.Buffer(torch.tensor(masking, dtype=torch.float64))


Annealed.__name__ = "EomtForUniversalSegmentation"


def eomt(**more: Any) -> Any:
    # By the formula: torch takes a mask in fp32 beside fp64, and reads it wrong.
    return functools.partial(EomtConfig, attn_implementation="eager", **{**SIZES, **more})


def case(name: str, masking: tuple[float, ...] = (0.0, 0.0), **more: Any) -> Case:
    return Case(name, Annealed, eomt(**more), options={"masking": masking})


ODD = {"no_object_weight": 0.3, "class_weight": 1.5, "mask_weight": 4.0, "dice_weight": 3.0}
CASES = [
    case("EoMT", layer_norm_eps=1e-2),
    case("EoMT masked", (1.0, 1.0)),
    case("EoMT SwiGLU", (0.0, 1.0), use_swiglu_ffn=True, num_upscale_blocks=1, **ODD),
    case("EoMT annealed", (1.0, 0.0), hidden_act="gelu_new", drop_path_rate=0.2),
    case("EoMT half masked", (0.5, 0.3), num_blocks=2, **ODD),
]
BY_NAME = {case.name: case for case in CASES}
SURE = [case for case in CASES if case.name != "EoMT half masked"]  # nothing is drawn in them


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each case as transformers writes it."""
    return zoo.write_all(CASES, tmp_path_factory.mktemp("eomt"))


@contextmanager
def drawn_alike() -> Iterator[None]:
    """What is drawn is drawn in fp64, as the models are: `grid_sample` takes no other."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def targets(size: int = 20, seed: int = 4) -> dict[str, list[Tensor]]:
    """Masks and classes of each image; of one none, of one more than of the others."""
    make = torch.Generator().manual_seed(seed)
    counts = (3, 0, 5)
    masks = [(torch.rand(n, size, size, generator=make) < 0.4).double() for n in counts]
    return {
        "mask_labels": masks,
        "class_labels": [torch.randint(0, 5, (n,), generator=make) for n in counts],
    }


def compare(name: str, path: Path, training: bool = False, **more: Any) -> tuple[Any, Any]:
    """Every output of both, with the same draws; both are returned."""
    one, ours, theirs = BY_NAME[name], af.load(path), zoo.fresh_oracle(BY_NAME[name])
    theirs.criterion.empty_weight[-1] = theirs.config.no_object_weight  # was rounded to fp32
    inputs = {**pictures.images(one), **more}
    found = []
    for model in (ours.train(training), theirs.train(training)):
        with zoo.unrounded(), drawn_alike():
            torch.manual_seed(7)
            found.append(model(**inputs))
    mine, reference = found
    for output in OUTPUTS:
        wanted = getattr(reference, output, None)
        if wanted is not None:
            assert getattr(mine, output).shape == wanted.shape
            zoo.close(getattr(mine, output), wanted, one, output)
    if mine.loss is not None:
        mine.loss.backward()
        reference.loss.backward()
        compare_gradients(one, ours, theirs)
    return mine, reference


def compare_gradients(one: Case, ours: Any, theirs: Any) -> None:
    """Every gradient, by the names in a file, which are those in memory."""
    got = zoo.their_gradients(ours)
    wanted = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert set(got) == set(wanted)
    for name, grad in wanted.items():
        zoo.close(got[name], grad, one, f"gradient of {name}")


@pytest.mark.parametrize("case", SURE, ids=lambda case: case.name)
def test_the_same_numbers(case: Case, written: dict[str, Path]) -> None:
    with torch.no_grad():
        compare(case.name, written[case.name])


@pytest.mark.parametrize("name", ["EoMT", "EoMT masked"])
def test_the_same_loss_and_gradients(name: str, written: dict[str, Path]) -> None:
    mine, reference = compare(name, written[name], **targets())
    assert mine.loss.isfinite()
    assert reference.loss > 1


def test_the_same_training_with_masks_drawn_and_every_layer_learning(
    written: dict[str, Path],
) -> None:
    compare("EoMT half masked", written["EoMT half masked"], training=True, **targets())


def test_the_mask_matters(written: dict[str, Path]) -> None:
    model, inputs = af.load(written["EoMT masked"]), pictures.images(BY_NAME["EoMT masked"])
    with torch.no_grad():
        before = model(**inputs).masks_queries_logits
        model.head.masking.zero_()
        after = model(**inputs).masks_queries_logits
    assert (before - after).abs().max() > 0.1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_round_trip(case: Case, written: dict[str, Path], tmp_path: Path) -> None:
    zoo.compare_round_trip(case, written[case.name], tmp_path / "again")


def check_pairs() -> None:
    """Of queries with one mask alike, the one that says the class is taken."""
    masks, classes = torch.ones(1, 3, 4, 4), torch.zeros(1, 3, 3)
    classes[0, 2, 1] = classes[0, 0, 0] = 5.0
    wanted = [torch.ones(2, 4, 4)], [torch.tensor([1, 0])]
    ((mine, theirs),) = find_pairs(masks, classes, *wanted, MaskLoss(points=8))
    assert dict(zip(mine.tolist(), theirs.tolist(), strict=True)) == {2: 0, 0: 1}


def test_classes_decide_where_masks_do_not() -> None:
    check_pairs()


def test_without_any_target_only_the_classes_are_learnt(written: dict[str, Path]) -> None:
    model, inputs = af.load(written["EoMT"]), pictures.images(BY_NAME["EoMT"])
    none = {
        "mask_labels": [torch.zeros(0, 20, 20)] * 3,
        "class_labels": [torch.zeros(0).long()] * 3,
    }
    loss = model(**inputs, **none).loss
    loss.backward()
    assert loss.isfinite()
    assert loss > 0
    assert not model.head.mask[2].weight.grad.any()


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"class_labels": [torch.zeros(1).long()] * 3}, r"mask_labels\[0\]=\(3, 20, 20\)"),
        ({"mask_labels": [torch.zeros(1, 20, 20)]}, "of 1 and class_labels of 3 images"),
        (
            {"class_labels": [torch.tensor([0, 5, 1]), torch.zeros(0).long(), torch.zeros(5)]},
            r"class_labels\[0\] has \[0, 5, 1\], but there are 0 … 4",
        ),
    ],
)
def test_targets_that_do_not_fit_are_refused(
    odd: dict[str, Any], why: str, written: dict[str, Path]
) -> None:
    inputs = {**pictures.images(BY_NAME["EoMT"]), **targets(), **odd}
    with pytest.raises(ConfigError, match=why):
        af.load(written["EoMT"])(**inputs)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"num_blocks": 4}, "num_blocks=4 of num_hidden_layers=4"),
        ({"drop_path_rate": 1.5}, "drop_path=1.5"),
        ({"oversample_ratio": 0.5}, "must be at least 1"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(field: dict[str, Any], why: str) -> None:
    with pytest.raises((CheckpointError, ConfigError), match=why):
        read_config({**SIZES, "model_type": "eomt", **field})


def test_presets_are_transformers_models() -> None:
    raw, _ = write_config(af.preset("eomt-base"))
    with torch.device("meta"):
        theirs = EomtForUniversalSegmentation(EomtConfig(**raw))
    parameters = sum(p.numel() for p in theirs.parameters())
    assert af.count(af.preset("eomt-base")).parameters == parameters


def test_a_converted_model_is_certified_by_its_masks(
    written: dict[str, Path], tmp_path: Path
) -> None:
    certificate = convert(written["EoMT half masked"], tmp_path / "out")
    assert certificate["sound"]
    names = {seen["output"] for seen in certificate["outputs"]}
    assert {"masks_queries_logits", "class_queries_logits"} <= names


def test_a_fresh_model_is_saved_as_an_eomt(tmp_path: Path) -> None:
    tree = read_config({**SIZES, "model_type": "eomt"})[0]
    assert isinstance(tree.head, QueryMasks)
    model = af.build(tree, seed=0).eval()
    af.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "eomt"
    theirs = EomtForUniversalSegmentation.from_pretrained(tmp_path).eval()
    pixels = torch.randn(2, 2, 20, 20)
    with torch.no_grad():
        wanted = theirs(pixel_values=pixels).masks_queries_logits
        got = model(pixel_values=pixels).masks_queries_logits
    assert torch.allclose(got, wanted, atol=1e-4)
