"""The loss: torch's cross-entropy with less memory, the right label at the right position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allformer.core.loss import IGNORE, linear_cross_entropy
from tests.models import BOS, KINDS, VOCAB, left_padding, loud, on_the_grid, right_padding, tokens


def check_linear_cross_entropy(
    n: int, vocab: int, smoothing: float, chunk: int | None, bias: bool, ignored: int, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(n, 6, dtype=torch.float64).requires_grad_()
    weight = torch.randn(vocab, 6, dtype=torch.float64).requires_grad_()
    b = torch.randn(vocab, dtype=torch.float64).requires_grad_() if bias else None
    targets = torch.randint(0, vocab, (n,))
    targets[torch.randperm(n)[:ignored]] = IGNORE
    loss, nll = linear_cross_entropy(hidden, weight, b, targets, smoothing, chunk)
    logits = F.linear(hidden, weight, b)
    wanted = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss, wanted, rtol=1e-10, atol=1e-10)
    plain = F.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(nll, plain, rtol=1e-10, atol=1e-10)
    assert not nll.requires_grad
    inputs = [x for x in (hidden, weight, b) if x is not None]
    mine = torch.autograd.grad(loss * 0.37, inputs)  # a factor: gradients must be scaled by it
    hers = torch.autograd.grad(wanted * 0.37, inputs)
    for a, h in zip(mine, hers, strict=True):
        torch.testing.assert_close(a, h, rtol=1e-10, atol=1e-10)
    assert (mine[0][targets == IGNORE] == 0).all()


@given(
    n=st.integers(1, 12),
    vocab=st.integers(2, 9),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    chunk=st.sampled_from([None, 1, 3, 5]),
    bias=st.booleans(),
    ignored=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_linear_cross_entropy_is_torchs_with_its_gradients(
    n, vocab, smoothing, chunk, bias, ignored, seed
):
    check_linear_cross_entropy(n, vocab, smoothing, chunk, bias, ignored, seed)


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias"])
def test_a_frozen_input_leaves_the_other_gradients_alone(frozen):
    values = {
        "hidden": torch.randn(7, 6, dtype=torch.float64),
        "weight": torch.randn(9, 6, dtype=torch.float64),
        "bias": torch.randn(9, dtype=torch.float64),
    }
    wants = [x.requires_grad_() for name, x in values.items() if name != frozen]
    targets = torch.randint(0, 9, (7,))
    loss, _ = linear_cross_entropy(*values.values(), targets, 0.1)
    wanted = F.cross_entropy(
        F.linear(*values.values()), targets, reduction="sum", label_smoothing=0.1
    )
    for mine, hers in zip(
        torch.autograd.grad(loss, wants, allow_unused=True),
        torch.autograd.grad(wanted, wants),
        strict=True,
    ):
        assert mine is not None
        torch.testing.assert_close(mine, hers, rtol=1e-10, atol=1e-10)


# --- which label is predicted where ---------------------------------------------------------------


def targets_by_gradient(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """∂loss/∂logits = p − q: its minimum names the target; a row of zeros has none."""
    (grad,) = torch.autograd.grad(loss, logits)
    return grad.argmin(-1), grad.abs().amax(-1) > 0


def check_decoder_labels() -> None:
    """labels = input_ids: position t predicts token t + 1, the last predicts nothing."""
    model, ids = loud(KINDS["decoder paper"]), tokens(2, 48)
    labels = ids.clone()
    labels[1, 30:] = IGNORE
    with on_the_grid():
        out = model(ids, labels=labels)
    target, counted = targets_by_gradient(out.loss, out.logits)
    assert torch.equal(target[:, :-1][counted[:, :-1]], labels[:, 1:][labels[:, 1:] != IGNORE])
    assert counted.sum(-1).tolist() == [47, 29]
    assert not counted[:, -1].any()


def check_seq2seq_labels() -> None:
    """Position t predicts label t and has read the labels before it, but not label t."""
    model = loud(KINDS["seq2seq paper"])
    source, labels = tokens(2, 20, 1), tokens(2, 48, 2)
    labels[1, 30:] = IGNORE
    out = model(source, labels=labels)
    target, counted = targets_by_gradient(out.loss, out.logits)
    assert torch.equal(counted, labels != IGNORE)
    assert torch.equal(target[counted], labels[counted])
    changed = labels.clone()
    changed[:, 10] = (labels[:, 10] + 5) % VOCAB
    moved = (model(source, labels=changed).logits - out.logits).abs().amax((0, 2))
    assert moved[:11].max() < 1e-11, "a position has read the label that it must predict"
    assert moved[11] > 1e-6, "the label before is not read"
    assert model.shift_right(labels)[:, 0].tolist() == [BOS, BOS]
    assert torch.equal(model.shift_right(labels)[0, 1:], labels[0, :-1])


def check_left_padded_labels(route: str) -> None:
    """The loss of a left-padded batch is that of its sentences: padding predicts nothing."""
    model, ids = loud(KINDS["decoder paper"]), tokens(2, 48)
    for pad in (left_padding, right_padding):
        mask = pad([48, 20], 48)
        labels = ids.masked_fill(mask == 0, IGNORE)
        if route == "packed":
            loss = model(ids, mask, labels).loss
        else:
            with on_the_grid():
                loss = model(ids, mask, labels).loss
        second = ids[1:, mask[1].bool()]
        alone = model(ids[:1], labels=ids[:1]).loss * 47 + model(second, labels=second).loss * 19
        torch.testing.assert_close(loss, alone / 66, rtol=1e-10, atol=0)


def test_a_decoders_position_predicts_the_next_token():
    check_decoder_labels()


def test_a_seq2seq_position_predicts_its_label_without_having_read_it():
    check_seq2seq_labels()


@pytest.mark.parametrize("route", ["packed", "grid"])
def test_the_loss_of_a_padded_batch_is_that_of_its_sentences(route):
    check_left_padded_labels(route)


def test_the_loss_of_half_precision_logits_is_computed_in_fp32():
    model = loud(KINDS["decoder paper"]).float()
    ids = tokens(2, 48)
    assert model(ids, labels=ids, dtype=torch.bfloat16).loss.dtype == torch.float32
