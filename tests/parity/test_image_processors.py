"""Images are prepared to the last bit as transformers' processors (PIL backend) prepare them.

That backend, the "slow" processors of transformers 4, is the oracle; the other needs torchvision.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor
from transformers.image_transforms import (
    center_crop,
    get_resize_output_image_size,
    get_size_with_aspect_ratio,
)
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.imagegpt.image_processing_pil_imagegpt import ImageGPTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from allformer.errors import DataError
from allformer.images import Processor, load_processor
from allformer.images.clusters import paint
from allformer.images.prepare import centre_crop
from allformer.images.settings import make_settings
from allformer.images.sizes import resized

CLASSES = {
    "ViTImageProcessor": ViTImageProcessorPil,
    "DeiTImageProcessor": DeiTImageProcessorPil,
    "BitImageProcessor": BitImageProcessorPil,
    "CLIPImageProcessor": CLIPImageProcessorPil,
    "SiglipImageProcessor": SiglipImageProcessorPil,
}
SHAPES = [(30, 47), (47, 30), (64, 64), (7, 90), (33, 20)]
SMALL = {"size": {"height": 32, "width": 24}}
CASES = [
    *({"image_processor_type": kind} for kind in CLASSES),
    # each filter, up and down
    *({"image_processor_type": "ViTImageProcessor", "resample": n, "size": 20} for n in range(6)),
    # each dialect of sizes
    *(
        {"image_processor_type": "CLIPImageProcessor", "size": size, "do_center_crop": False}
        for size in (
            21, [21, 33], {"shortest_edge": 21}, {"shortest_edge": 40, "longest_edge": 50},
            {"shortest_edge": 30, "longest_edge": 200}, {"max_height": 25, "max_width": 90},
            {"height": 19, "width": 40},
        )
    ),
    {"image_processor_type": "SiglipImageProcessor", "size": 21},
    # crops smaller, larger, and larger in one direction
    *(
        {"image_processor_type": "BitImageProcessor", "size": 31, "crop_size": crop}
        for crop in (16, 17, 64, 65, {"height": 60, "width": 9}, {"height": 9, "width": 71})
    ),
    {"image_processor_type": "CLIPImageProcessor", "do_resize": False, "crop_size": 40},
    # switches and numbers
    {"image_processor_type": "ViTImageProcessor", **SMALL, "do_rescale": False},
    {"image_processor_type": "ViTImageProcessor", **SMALL, "do_normalize": False},
    {"image_processor_type": "ViTImageProcessor", **SMALL, "rescale_factor": 0.00784313725490196},
    {
        "image_processor_type": "ViTImageProcessor", **SMALL,
        "do_rescale": False, "do_normalize": False,
    },
    {"image_processor_type": "DeiTImageProcessor", **SMALL, "do_center_crop": False},
    {"image_processor_type": "ViTImageProcessor", **SMALL, "image_mean": 0.4, "image_std": 0.3},
    {
        "image_processor_type": "ViTImageProcessor", **SMALL,
        "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
    },
    # files of other times
    {"feature_extractor_type": "ViTFeatureExtractor", "size": 28, "do_resize": True},
    {"feature_extractor_type": "CLIPFeatureExtractor", "size": 28, "crop_size": 28},
    {"image_processor_type": "CLIPImageProcessorFast", "size": 28, "do_convert_rgb": None},
    # a switch that is null is off
    {"image_processor_type": "ViTImageProcessor", **SMALL, "do_normalize": None},
    {"image_processor_type": "CLIPImageProcessor", **SMALL, "do_center_crop": None},
    {"image_processor_type": "BitImageProcessor", **SMALL, "do_rescale": None, "do_resize": None},
    {"image_processor_type": "ViTImageProcessor", "size": 28, "default_to_square": None},
]  # fmt: skip


def pictures():
    generator = np.random.default_rng(0)
    for height, width in SHAPES:
        yield Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def oracle(raw):
    kind = raw.get("image_processor_type") or raw["feature_extractor_type"]
    kind = kind.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor")
    said = {key: value for key, value in raw.items() if not key.endswith("_type")}
    return CLASSES[kind](**said)


def check_pixels(raw):
    reference, ours = oracle(raw), Processor(make_settings(raw))
    for image in pictures():
        theirs = reference(image, return_tensors="pt")["pixel_values"]
        found = ours(image)
        assert found.dtype == theirs.dtype
        assert found.shape == theirs.shape
        assert torch.equal(found, theirs), (found.double() - theirs.double()).abs().max()


@pytest.mark.parametrize("raw", CASES, ids=lambda raw: "-".join(f"{v}" for v in raw.values())[:70])
def test_pixels_are_the_processors_bit_for_bit(raw):
    check_pixels(raw)


def test_sizes_and_crops_of_any_image_are_the_references(thorough):
    chance = np.random.default_rng(2)
    for _ in range(5000 if thorough else 500):
        height, width, short, more = chance.integers(1, 700, 4).tolist()
        image = np.zeros((3, height, width), np.uint8)
        first = "channels_first"
        theirs = get_resize_output_image_size(image, short, False, input_data_format=first)
        assert resized({"shortest_edge": short}, height, width) == theirs
        both = {"shortest_edge": short, "longest_edge": short + more}
        theirs = get_size_with_aspect_ratio((height, width), short, short + more)
        assert resized(both, height, width) == theirs
    for _ in range(500 if thorough else 60):
        height, width, tall, wide = chance.integers(1, 12, 4).tolist()
        image = chance.integers(0, 256, (height, width, 3), dtype=np.uint8)
        theirs = center_crop(image, (tall, wide), input_data_format="channels_last")
        assert np.array_equal(centre_crop(image, tall, wide), theirs)


COLOURS = np.random.default_rng(3).uniform(-1, 1, (50, 3)).tolist()
NUMBERED = [
    {"feature_extractor_type": "ImageGPTFeatureExtractor", "size": 9, "clusters": COLOURS},
    {"image_processor_type": "ImageGPTImageProcessor", "clusters": COLOURS},
    {"image_processor_type": "ImageGPTImageProcessorFast", "size": 9, "clusters": COLOURS,
     "do_normalize": False, "resample": 3},
    {"image_processor_type": "ImageGPTImageProcessor", "size": 9, "clusters": COLOURS,
     "do_normalize": False, "image_mean": [0.5]},
    {"image_processor_type": "ImageGPTImageProcessor", "size": {"height": 5, "width": 8},
     "do_color_quantize": False},
]  # fmt: skip


def check_numbers(raw):
    reference = ImageGPTImageProcessorPil(
        **{
            **{key: value for key, value in raw.items() if not key.endswith("_type")},
            "size": dict(make_settings(raw).size),
        }
    )
    ours = Processor(make_settings(raw))
    for image in pictures():
        theirs = reference(image, return_tensors="pt")[ours.gives]
        found = ours(image)
        assert found.dtype == theirs.dtype
        assert torch.equal(found, theirs)


@pytest.mark.parametrize("raw", NUMBERED, ids=range(len(NUMBERED)))
def test_numbers_of_colours_are_the_processors_bit_for_bit(raw, tmp_path):
    check_numbers(raw)
    fresh = Processor(make_settings(raw))
    fresh.save(tmp_path)
    assert load_processor(tmp_path).settings == fresh.settings
    theirs = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = next(pictures())
    assert torch.equal(fresh(image), theirs(image, return_tensors="pt")[fresh.gives])


def test_colours_that_are_painted_are_found_again():
    settings = make_settings(NUMBERED[0])
    image = next(pictures())
    numbers = Processor(settings)(image)
    painted = paint(numbers.numpy(), settings.clusters, (9, 9))
    assert painted.shape == (1, 9, 9, 3)
    assert torch.equal(Processor(settings)(painted[0]), numbers)


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({}, "clusters has no colours"),
        ({"clusters": [[1, 2]]}, "red, green, blue"),
        ({"clusters": [1.0]}, "red, green, blue"),
        ({"clusters": [["a", 0, 0]]}, "must be a number"),
        ({"clusters": COLOURS, "do_center_crop": True}, "do_center_crop"),
    ],
)
def test_colours_that_are_none_are_refused(field, why):
    with pytest.raises(DataError, match=why):
        make_settings({"image_processor_type": "ImageGPTImageProcessor", **field})


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "YCbCr"])
@pytest.mark.parametrize(
    "kind", ["CLIPImageProcessor", "SiglipImageProcessor", "BitImageProcessor"]
)
def test_other_colours_become_rgb_as_in_the_processors(kind, mode):
    image = next(pictures()).convert("RGBA" if "A" in mode else "RGB")
    if "A" in mode:
        image.putalpha(Image.fromarray(np.arange(30 * 47, dtype=np.uint8).reshape(30, 47)))
    raw = {
        "image_processor_type": kind,
        "size": {"height": 24, "width": 24},
        "do_center_crop": False,
    }
    theirs = oracle(raw)(image.convert(mode), return_tensors="pt")["pixel_values"]
    assert torch.equal(Processor(make_settings(raw))(image.convert(mode)), theirs)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_arrays_are_prepared_as_in_the_processors(channels):
    values = np.random.default_rng(1).integers(0, 256, (30, 47, channels), dtype=np.uint8)
    raw = {"image_processor_type": "CLIPImageProcessor", "size": 24, "crop_size": 24}
    for array in (values, values.transpose(2, 0, 1)):
        theirs = oracle(raw)(array, return_tensors="pt")["pixel_values"]
        assert torch.equal(Processor(make_settings(raw))(array), theirs)


def test_a_grey_model_sees_grey():
    raw = {
        "image_processor_type": "ViTImageProcessor",
        "size": 28,
        "image_mean": [0.3],
        "image_std": [0.4],
    }
    image = next(pictures()).convert("L")
    theirs = oracle(raw)(image, return_tensors="pt")["pixel_values"]
    assert theirs.shape == (1, 1, 28, 28)
    assert torch.equal(Processor(make_settings(raw))(image), theirs)


@pytest.mark.parametrize("kind", CLASSES)
def test_what_transformers_saved_is_read_and_written_back_byte_for_byte(kind, tmp_path):
    reference = CLASSES[kind](size={"height": 18, "width": 22}, do_center_crop=False)
    reference.save_pretrained(tmp_path / "theirs")
    ours = load_processor(tmp_path / "theirs")
    ours.save(tmp_path / "ours")
    saved = (tmp_path / "theirs" / "preprocessor_config.json").read_bytes()
    assert (tmp_path / "ours" / "preprocessor_config.json").read_bytes() == saved
    image = next(pictures())
    assert torch.equal(ours(image), reference(image, return_tensors="pt")["pixel_values"])


def test_fresh_settings_are_saved_as_transformers_opens_them(tmp_path):
    ours = Processor(
        make_settings({"image_processor_type": "DeiTImageProcessor", "size": 20, "crop_size": 16})
    )
    ours.save(tmp_path)
    theirs = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    image = next(pictures())
    assert torch.equal(ours(image), theirs(image, return_tensors="pt")["pixel_values"])
    assert load_processor(tmp_path).settings == ours.settings


def test_a_processor_inside_a_whole_wins_and_both_files_are_kept(tmp_path):
    inner = {"image_processor_type": "CLIPImageProcessor", "size": 20, "crop_size": 20}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": inner}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**inner, "crop_size": 10}))
    ours = load_processor(tmp_path)
    theirs = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert ours.settings.crop_size == dict(theirs.crop_size) == {"height": 20, "width": 20}
    ours.save(tmp_path / "again")
    for name in ("processor_config.json", "preprocessor_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_class_that_nothing_names_is_the_models(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"size": 20, "crop_size": 10}')
    with pytest.raises(DataError, match=r"config.json: nothing says of which class"):
        load_processor(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "dinov2"}')
    assert load_processor(tmp_path).settings.image_processor_type == "BitImageProcessor"
