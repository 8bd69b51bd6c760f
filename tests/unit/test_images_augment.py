"""Augmentations do what their papers say, by the generator's chance alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps

from allformer.errors import ConfigError
from allformer.images.augment import (
    Chain,
    CutMix,
    Mixup,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
)
from allformer.images.augment import operations as does
from allformer.images.augment.boxes import draw_boxes
from allformer.images.augment.rand_augment import OPERATIONS


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(count=16, size=(12, 10), channels=3):
    values = torch.randint(1, 256, (count, channels, *size), generator=chance(9))
    return values / 255


ALL = [
    RandomFlip(), RandomCrop(2), RandomResizedCrop((8, 8)), RandomErasing(1.0), RandAugment(),
    RandAugment(1, 30), Chain((RandomFlip(), RandomErasing())),
]  # fmt: skip


@pytest.mark.parametrize("step", ALL, ids=lambda step: type(step).__name__)
def test_a_seed_says_all_and_the_given_images_stay(step):
    images = batch()
    kept = images.clone()
    torch.manual_seed(1)
    first = step(images, chance(3))
    torch.manual_seed(2)
    assert torch.equal(first, step(images, chance(3)))
    assert not torch.equal(first, step(images, chance(4)))
    assert torch.equal(images, kept)
    assert first.dtype == images.dtype
    assert first.min() >= 0
    assert first.max() <= 1
    with pytest.raises(ConfigError, match=r"must be B × C × H × W in floating"):
        step((images * 255).byte(), chance())


def test_about_half_are_mirrored():
    images = batch(400, (2, 3))
    found = RandomFlip()(images, chance())
    mirrored = (found == images.flip(-1)).flatten(1).all(1)
    assert (mirrored | (found == images).flatten(1).all(1)).all()
    assert 160 < mirrored.sum() < 240
    assert torch.equal(RandomFlip(1.0)(images, chance()), images.flip(-1))
    assert torch.equal(RandomFlip(0.0)(images, chance()), images)


def test_a_moved_crop_is_a_part_of_the_padded_image_and_every_move_occurs():
    images = batch(300, (5, 4))
    found, padded, moves = RandomCrop(1)(images, chance()), F.pad(images, (1,) * 4), set()
    for image, whole in zip(found, padded, strict=True):
        here = [
            (top, left) for top in range(3) for left in range(3)
            if torch.equal(image, whole[:, top : top + 5, left : left + 4])
        ]  # fmt: skip
        assert len(here) == 1
        moves |= set(here)
    assert len(moves) == 9


@pytest.mark.parametrize("size", [(6, 7), (12, 10), (15, 11)])  # smaller, as they are, larger
def test_a_resized_crop_is_its_box_resized(size):
    images, step = batch(9), RandomResizedCrop(size, scale=(0.2, 1.0))
    found, boxes = step(images, chance(5)), step.boxes(9, 12, 10, chance(5))
    for i, (image, crop) in enumerate(zip(images, found, strict=True)):
        top, left, height, width = (int(side[i]) for side in boxes)
        part = image[None, :, top : top + height, left : left + width]
        wanted = F.interpolate(part, size, mode="bilinear", antialias=True)
        torch.testing.assert_close(crop, wanted[0], atol=2e-6, rtol=0)


def test_boxes_have_the_areas_shapes_and_places_that_are_asked_for():
    boxes = draw_boxes(500, (200, 100), (0.1, 0.5), (0.5, 2.0), chance())
    boxes = type(boxes)(*(side[boxes.found] for side in boxes))
    assert len(boxes.top) > 450
    shares = boxes.height * boxes.width / 20_000
    ratios = boxes.width / boxes.height
    assert 0.09 < shares.min() < 0.12
    assert 0.45 < shares.max() < 0.51
    assert 0.49 < ratios.min() < 0.55
    assert 1.7 < ratios.max() < 2.05
    assert abs(ratios.log().mean()) < 0.1, "as often wide as high"
    assert boxes.top.min() == boxes.left.min() == 0
    assert (boxes.top + boxes.height).max() >= 199
    assert (boxes.left + boxes.width).max() == 100


def test_where_no_box_fits_the_middle_is_taken():
    step = RandomResizedCrop((4, 4), scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert [int(side) for side in step.boxes(1, 4, 12, chance())] == [0, 4, 4, 4]
    assert [int(side) for side in step.boxes(1, 12, 4, chance())] == [4, 0, 4, 4]


def test_one_box_of_the_chosen_images_is_erased():
    images = batch(200, (20, 20))
    found = RandomErasing(0.5, value=0.0)(images, chance())
    lost = found == 0
    chosen = lost.flatten(1).any(1)
    assert 75 < chosen.sum() < 125
    assert torch.equal(found[~lost], images[~lost])
    for mask in lost[chosen]:
        rows, columns = mask[0].any(1), mask[0].any(0)
        assert (mask == (rows[:, None] & columns)).all(), "a box, in all channels"
        assert 0.01 < rows.sum() * columns.sum() / 400 < 0.36
    noise = RandomErasing(1.0)(images, chance())
    changed = (noise != images).any(1)
    assert noise.permute(0, 2, 3, 1)[changed].std() > 0.25, "noise, not a colour"


def test_mixup_mixes_images_and_labels_in_the_same_measure():
    images, labels = batch(6), torch.tensor([0, 1, 2, 3, 0, 1])
    mix = Mixup(0.8, classes=4)
    found, targets = mix(images, labels, chance())
    generator = chance()
    partner = torch.randperm(6, generator=generator)
    share = mix.share(generator)
    assert 0 < share < 1
    torch.testing.assert_close(found, share * images + (1 - share) * images[partner])
    one_hot = F.one_hot(labels, 4).float()
    torch.testing.assert_close(targets, share * one_hot + (1 - share) * one_hot[partner])
    again, soft = mix(images, one_hot, chance())
    assert torch.equal(again, found)
    assert torch.equal(soft, targets)


def test_the_share_is_of_a_beta_distribution():
    generator = chance()
    shares = np.array([Mixup(0.4, classes=2).share(generator) for _ in range(2000)])
    assert abs(shares.mean() - 0.5) < 0.03
    assert abs(shares.var() - 1 / (4 * (2 * 0.4 + 1))) < 0.01


def test_cutmix_takes_a_box_of_another_image_and_counts_its_pixels():
    images, labels = torch.arange(6.0)[:, None, None, None].expand(6, 3, 20, 30), torch.arange(6)
    for seed in range(20):
        found, targets = CutMix(1.0, classes=6)(images, labels, chance(seed))
        for i, (image, target) in enumerate(zip(found, targets, strict=True)):
            others = image != i
            rows, columns = others[0].any(1), others[0].any(0)
            assert (others == (rows[:, None] & columns)).all()
            torch.testing.assert_close(target[i], 1 - others[0].float().mean())
            torch.testing.assert_close(target.sum(), torch.tensor(1.0))


def test_the_box_of_cutmix_has_the_share_of_the_other_unless_the_edge_cuts_it():
    mix, size = CutMix(1.0, classes=2), (40, 40)
    shares = [mix.parts(0.75, size, chance(seed))[2] for seed in range(40)]
    assert min(shares) == 0.75
    assert 0.8 < max(shares) < 1
    (_, _, high, wide), pixels, share = mix.parts(1.0, size, chance())
    assert high * wide == 0
    assert pixels == share == 1


def picture(seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(30, 200, (24, 31, 3), np.uint8))


def tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255


@pytest.mark.parametrize(
    ("name", "pillow", "amount"),
    [
        *(
            (name, lambda image, x, kind=kind: kind(image).enhance(x), amount)
            for name, kind in (
                ("brightness", ImageEnhance.Brightness), ("colour", ImageEnhance.Color),
                ("contrast", ImageEnhance.Contrast), ("sharpness", ImageEnhance.Sharpness),
            )
            for amount in (0.1, 0.7, 1.9)
        ),
        ("posterise", lambda image, x: ImageOps.posterize(image, int(x)), 4),
        ("solarise", lambda image, x: ImageOps.solarize(image, round(255 * x)), 0.4),
        ("autocontrast", lambda image, x: ImageOps.autocontrast(image), 0),
        ("equalise", lambda image, x: ImageOps.equalize(image), 0),
        ("rotate", lambda image, x: image.rotate(x, Image.Resampling.BILINEAR), 90),
    ],
)  # fmt: skip
def test_an_operation_is_pillows(name, pillow, amount):
    exact = name in ("posterise", "solarise", "equalise")
    image = picture().resize((24, 24)) if name == "rotate" else picture()
    found = does.apply(name, tensor(image), torch.tensor([float(amount)]))
    gap = (found - tensor(pillow(image, amount))).abs().max() * 255
    assert gap < (0.01 if exact else 2.1)


def test_a_channel_of_one_value_stays():
    plain = torch.full((1, 3, 4, 4), 0.3)
    for name in ("autocontrast", "equalise"):
        assert torch.equal(does.apply(name, plain, torch.zeros(1)), plain)


def test_geometry_moves_pixels_where_it_says():
    image = batch(2, (7, 11))
    moved = does.apply("translate_x", image, torch.tensor([2 / 11, -3 / 11]))
    torch.testing.assert_close(moved[0, :, :, :-2], image[0, :, :, 2:])
    torch.testing.assert_close(moved[1, :, :, 3:], image[1, :, :, :-3])
    assert moved[0, :, :, -2:].abs().max() < 1e-5, "black from outside"
    up = does.apply("translate_y", image, torch.tensor([3 / 7, 0.0]))
    torch.testing.assert_close(up[0, :, :-3], image[0, :, 3:])
    torch.testing.assert_close(up[1], image[1])
    sheared = does.apply("shear_x", image, torch.tensor([1.0, 1.0]))
    for row in range(7):  # a row moves by its distance from the middle
        by = row - 3
        wanted = torch.zeros(2, 3, 11)
        columns = [x for x in range(11) if 0 <= x + by < 11]
        wanted[:, :, columns] = image[:, :, row, [x + by for x in columns]]
        torch.testing.assert_close(sheared[:, :, row], wanted, atol=1e-5, rtol=0)
    flipped = does.apply("shear_y", image.transpose(2, 3), torch.tensor([1.0, 1.0]))
    torch.testing.assert_close(flipped.transpose(2, 3), sheared)


def test_rand_augment_applies_one_of_the_operations_to_each_image_and_all_occur():
    images, step = batch(150, (12, 12)), RandAugment(1, 15)
    found, seen = step(images, chance()), set()
    for image, after in zip(images, found, strict=True):
        fits = set()
        for name, amount in OPERATIONS.items():
            for sign in (-1.0, 1.0):
                wanted = does.apply(name, image[None], amount(torch.tensor([sign * 0.5])))[0]
                if torch.allclose(after, wanted, atol=1e-6):
                    fits.add(name)
        assert fits
        seen |= fits
    assert seen == set(OPERATIONS)


def test_rand_augment_of_strength_0_only_evens_out_and_more_strength_changes_more():
    images = batch(64)
    mild = tuple(set(OPERATIONS) - {"autocontrast", "equalise", "solarise"})
    none = RandAugment(2, 0, mild)(images, chance())
    torch.testing.assert_close(none, images, atol=1e-5, rtol=0)
    change = [(RandAugment(1, s, mild)(images, chance()) - images).abs().mean() for s in (3, 9, 30)]
    assert change[0] < change[1] < change[2]


def test_grey_images_are_augmented_too():
    images = batch(40, channels=1)
    assert RandAugment(3)(images, chance()).shape == images.shape


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomFlip(1.5), "RandomFlip.probability=1.5 must be from 0 to 1"),
        (lambda: RandomCrop(0), "RandomCrop.padding=0 must be at least 1"),
        (lambda: RandomResizedCrop((8, 8), scale=(0.5, 1.2)), "scale=.*at most 1"),
        (lambda: RandomErasing(ratio=(2, 1)), "ratio=.*a smaller and a larger"),
        (lambda: RandAugment(strength=31), "strength=31 must be from 0 to 30"),
        (lambda: RandAugment(operations=("blur",)), "must be some of identity"),
        (lambda: Mixup(0, classes=4), "Mixup.alpha=0 must be greater than 0"),
        (lambda: CutMix(1.0, classes=1), "CutMix.classes=1 must be at least 2"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_boxes_of_a_uniform_area_are_uniform_in_their_share():
    boxes = draw_boxes(400, (300, 300), (0.2, 0.4), (1.0, 1.0), chance())
    shares = sorted((boxes.height * boxes.width / 90_000).tolist())
    assert math.isclose(shares[200], 0.3, abs_tol=0.02)
