"""Boxes, masks and grids drawn on images."""

from __future__ import annotations

import numpy as np
import pytest

from allformer.errors import DataError

pytest.importorskip("PIL")
from allformer.images.draw import colour, draw_areas, draw_boxes, draw_masks, enlarged, grid

BLACK = np.zeros((40, 60, 3), np.uint8)


def test_a_box_is_drawn_on_its_edge_and_nowhere_else() -> None:
    pixels = np.asarray(draw_boxes(BLACK, [[10, 5, 30, 25]]))
    assert tuple(pixels[5, 20]) == tuple(pixels[24, 20]) == colour(0)
    assert tuple(pixels[15, 10]) == tuple(pixels[15, 29]) == colour(0)
    assert not pixels[15, 20].any()
    assert not pixels[26:].any()


def test_labels_stay_on_the_picture_and_belong_to_boxes() -> None:
    pixels = np.asarray(draw_boxes(BLACK, [[50, 0, 200, 90]], ["cat"], numbers=[3]))
    assert (pixels == colour(3)).all(-1).sum() > 100
    with pytest.raises(DataError, match="labels"):
        draw_boxes(BLACK, [[0, 0, 4, 4]], ["a", "b"])


def test_masks_let_the_image_shine_through_and_areas_are_by_class() -> None:
    mask = np.zeros((1, 40, 60), bool)
    mask[0, 10:20, 10:20] = True
    pixels = np.asarray(draw_masks(BLACK + 200, mask, [1], strength=0.5))
    assert np.allclose(pixels[15, 15], (np.array(colour(1)) + 200) / 2, atol=1)
    assert tuple(pixels[10, 10]) == colour(1)  # the edge
    assert (pixels[0] == 200).all()
    areas = np.where(mask[0], 1, -1)
    assert np.array_equal(np.asarray(draw_areas(BLACK + 200, areas, strength=0.5)), pixels)
    with pytest.raises(DataError, match="masks"):
        draw_masks(BLACK, mask[:, :20])


def test_a_grid_puts_images_side_by_side_and_small_ones_grow_by_whole_pixels() -> None:
    assert grid([BLACK] * 3, columns=2, gap=4).size == (124, 84)
    large, times = enlarged(BLACK, least=120)
    assert (large.size, times) == ((120, 80), 2)
