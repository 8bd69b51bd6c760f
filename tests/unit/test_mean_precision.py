"""Mean average precision by pycocotools, on cases that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from allformer.metrics.mean_precision import Found, There, mean_precision

pytest.importorskip("pycocotools")
BOXES = np.array([[0, 0, 10, 10], [20, 20, 40, 40]], float)
CLASSES = np.array([0, 2])


def test_what_is_found_exactly_scores_one_and_what_is_not_nothing() -> None:
    there = [There(BOXES, CLASSES)]
    right = mean_precision([Found(BOXES, CLASSES, np.array([0.9, 0.8]))], there, 3)
    assert right == pytest.approx({"map": 1.0, "map50": 1.0, "map75": 1.0, "recall": 1.0})
    swapped = mean_precision([Found(BOXES, CLASSES[::-1], np.array([0.9, 0.8]))], there, 3)
    assert swapped["map50"] == 0
    nobody = Found(BOXES[:0], CLASSES[:0], np.zeros(0))
    assert mean_precision([nobody], there, 3)["map"] == 0


def test_a_box_that_is_a_third_off_counts_up_to_its_overlap() -> None:
    moved = np.array([[0, 0, 10, 7]], float)  # IoU 0.7
    found = [Found(moved, CLASSES[:1], np.array([0.9]))]
    figures = mean_precision(found, [There(BOXES[:1], CLASSES[:1])], 3)
    assert (figures["map50"], figures["map75"]) == pytest.approx((1.0, 0.0))
    assert figures["map"] == pytest.approx(0.5)  # 0.50, 0.55, 0.60, 0.65, 0.70 of ten


def test_a_false_one_that_is_surer_halves_the_precision() -> None:
    found = Found(np.concatenate([BOXES[1:], BOXES[:1]]), np.array([0, 0]), np.array([0.9, 0.5]))
    figures = mean_precision([found], [There(BOXES[:1], CLASSES[:1])], 3)
    assert figures["map50"] == pytest.approx(0.5)


def test_a_crowd_is_neither_missed_nor_false() -> None:
    there = There(BOXES, np.array([0, 0]), np.array([False, True]))
    found = Found(BOXES, np.array([0, 0]), np.array([0.9, 0.95]))
    assert mean_precision([found], [there], 1)["map"] == pytest.approx(1.0)


def test_masks_are_compared_pixel_by_pixel() -> None:
    mask = np.zeros((1, 20, 20), bool)
    mask[0, 2:12, 2:12] = True
    half = mask.copy()
    half[0, 8:] = False  # IoU 0.6
    boxes = np.array([[2, 2, 12, 12]], float)
    there = [There(boxes, np.array([0]), masks=mask)]
    found = [Found(boxes, np.array([0]), np.array([0.9]), half)]
    figures = mean_precision(found, there, 1, kind="segm")
    assert (figures["map50"], figures["map75"]) == pytest.approx((1.0, 0.0))
