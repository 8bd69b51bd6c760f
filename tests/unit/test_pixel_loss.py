"""The loss of pixels, a few images at a time, beside PyTorch's of all of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from allformer.core import pixel_loss
from allformer.core.loss import IGNORE
from allformer.core.pixel_loss import pixel_entropy


def drawn(size: tuple[int, int], dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Loud scores 3 5 4 6, and labels, of which a third does not count, and one image's none."""
    draw = torch.Generator().manual_seed(0)
    scores = (3 * torch.randn(3, 5, 4, 6, generator=draw, dtype=torch.float64)).to(dtype)
    labels = torch.randint(5, (3, *size), generator=draw)
    labels[torch.rand(labels.shape, generator=draw) < 1 / 3] = IGNORE
    labels[1] = IGNORE
    return scores.requires_grad_(), labels


def plain(scores: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    wide = F.interpolate(scores, labels.shape[1:], mode="bilinear", align_corners=False)
    how = {"ignore_index": IGNORE, "reduction": "none", "label_smoothing": smoothing}
    return F.cross_entropy(wide, labels, **how).sum((1, 2))  # type: ignore[arg-type]


def check(size: tuple[int, int] = (13, 17), smoothing: float = 0.1, weights: bool = True) -> None:
    scores, labels = drawn(size)
    loss, nll = pixel_entropy(scores, labels, smoothing)
    weight = torch.tensor([0.7, 1.0, -2.0], dtype=torch.float64) if weights else torch.ones(3)
    (found,) = torch.autograd.grad((loss * weight).sum(), scores)
    wanted = plain(scores, labels, smoothing)
    (slope,) = torch.autograd.grad((wanted * weight).sum(), scores)
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nll, plain(scores, labels, 0.0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, slope, rtol=1e-12, atol=1e-12)
    assert not nll.requires_grad


@pytest.mark.parametrize("size", [(4, 6), (8, 12), (13, 17), (3, 5)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_pytorchs_in_value_and_gradient(size, smoothing):
    check(size, smoothing)


@pytest.mark.parametrize("budget", [1, 2 * 5 * 13 * 17])
def test_it_does_not_matter_how_many_images_are_taken_at_a_time(monkeypatch, budget):
    monkeypatch.setattr(pixel_loss, "_NEAR", budget)
    check()


def test_scores_in_half_precision_are_widened_before_they_are_resized():
    scores, labels = drawn((13, 17), torch.bfloat16)
    loss, _ = pixel_entropy(scores, labels)
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert scores.grad is not None
    assert scores.grad.dtype == torch.bfloat16
    torch.testing.assert_close(loss, plain(scores.detach().float(), labels, 0.0))


def test_nothing_is_kept_where_nobody_wants_a_gradient():
    scores, labels = drawn((13, 17))
    with torch.no_grad():
        loss, _ = pixel_entropy(scores, labels)
    assert loss.grad_fn is None
    loss, _ = pixel_entropy(scores.detach(), labels)
    assert not loss.requires_grad


def test_a_second_derivative_is_refused_not_wrong():
    scores, labels = drawn((8, 12))
    loss, _ = pixel_entropy(scores, labels)
    (slope,) = torch.autograd.grad((loss * scores.sum()).sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        slope.sum().backward()
