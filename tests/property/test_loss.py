"""The loss: torch's cross-entropy with less memory, the right label at the right position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allformer.core import loss as core_loss
from allformer.core.loss import IGNORE, entropy_sums, linear_cross_entropy
from tests.models import BOS, KINDS, VOCAB, left_padding, loud, on_the_grid, right_padding, tokens


def check_linear_cross_entropy(
    n: int,
    vocab: int,
    smoothing: float,
    chunk: int | None,
    bias: bool,
    ignored: int,
    seed: int,
    z: float = 0.0,
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(n, 6, dtype=torch.float64).requires_grad_()
    weight = torch.randn(vocab, 6, dtype=torch.float64).requires_grad_()
    b = torch.randn(vocab, dtype=torch.float64).requires_grad_() if bias else None
    targets = torch.randint(0, vocab, (n,))
    targets[torch.randperm(n)[:ignored]] = IGNORE
    loss, nll = linear_cross_entropy(hidden, weight, b, targets, smoothing, chunk, z)
    logits = F.linear(hidden, weight, b)
    wanted = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    wanted = wanted + z * (logits.logsumexp(-1).square() * (targets != IGNORE)).sum()
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
    z=st.sampled_from([0.0, 0.3]),
)
def test_linear_cross_entropy_is_torchs_with_its_gradients(
    n, vocab, smoothing, chunk, bias, ignored, seed, z
):
    """With the z-loss added to it, z · (log Σ exp)² of each row that counts."""
    check_linear_cross_entropy(n, vocab, smoothing, chunk, bias, ignored, seed, z)


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


def problem(n: int, vocab: int, ignored: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """hidden, weight, bias and targets, of which some are −100."""
    shapes = [(n, 6), (vocab, 6), (vocab,)]
    inputs = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    targets = torch.randint(0, vocab, (n,))
    targets[torch.randperm(n)[:ignored]] = IGNORE
    return [*inputs, targets]


def check_chunk_gradient(
    n: int, vocab: int, smoothing: float, ignored: int, compiling: bool, seed: int
) -> None:
    """Either form of ∂loss/∂logits is what autograd makes of the chunk's loss."""
    torch.manual_seed(seed)
    *_, targets = problem(n, vocab, ignored)
    logits = torch.randn(n, vocab, dtype=torch.float64).mul(3).requires_grad_()
    loss, _, logp = core_loss._chunk(logits, targets, smoothing)
    (wanted,) = torch.autograd.grad(loss, logits)
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(torch.compiler, "is_compiling", lambda: compiling)
        mine = core_loss._chunk_gradient(logp.detach().clone(), targets, smoothing)
    assert mine.dtype == torch.float64
    torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-14)
    assert (mine[targets == IGNORE] == 0).all()


@pytest.mark.parametrize("compiling", [False, True], ids=["eager", "compiled"])
@given(
    n=st.integers(1, 9),
    vocab=st.integers(2, 9),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    ignored=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_both_forms_of_the_gradient_are_that_of_the_loss(
    compiling, n, vocab, smoothing, ignored, seed
):
    check_chunk_gradient(n, vocab, smoothing, ignored, compiling, seed)


def check_compiled(
    backend: str, smoothing: float, dtype: torch.dtype = torch.float64, ignored: int = 4
) -> None:
    """One graph without breaks, which gives what the eager code gives, gradients included."""
    *inputs, targets = problem(11, 7, ignored, dtype)

    def run(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor):
        assert torch.compiler.is_compiling() == compiling
        return linear_cross_entropy(hidden, weight, bias, targets, smoothing, chunk=3)

    torch._dynamo.reset()  # other tests' graphs of the same code do not count against this one
    compiling = True
    loss, nll = torch.compile(run, backend=backend, fullgraph=True)(*inputs, targets)
    compiling = False
    wanted, wanted_nll = run(*inputs, targets)
    tol = {"rtol": 2**-7, "atol": 1e-3} if dtype == torch.bfloat16 else {"rtol": 1e-12, "atol": 0}
    torch.testing.assert_close((loss, nll), (wanted, wanted_nll), **tol)
    assert not nll.requires_grad
    mine = torch.autograd.grad(loss * 0.37, inputs)
    hers = torch.autograd.grad(wanted * 0.37, inputs)
    if dtype == torch.float64:
        tol["atol"] = 1e-14
    torch.testing.assert_close(mine, hers, **tol)
    assert (mine[0][targets == IGNORE] == 0).all()


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["fp64", "bf16"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_and_eager_loss_are_one(backend, smoothing, dtype):
    check_compiled(backend, smoothing, dtype)


def check_no_gradient_work() -> None:
    """Where no gradient can be asked for, none is made: evaluation costs half."""
    *inputs, targets = problem(7, 9, 2)
    wanted = linear_cross_entropy(*inputs, targets, 0.1, 3)

    def fail(*_args: object) -> Tensor:
        raise AssertionError("a gradient is made that nobody can ask for")

    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(core_loss, "_chunk_gradient", fail)
        patcher.setattr(core_loss, "_outer", fail)
        with torch.no_grad():
            quiet = linear_cross_entropy(*inputs, targets, 0.1, 3)
        frozen = linear_cross_entropy(*(x.detach() for x in inputs), targets, 0.1, 3)
        for loss, nll in (quiet, frozen):
            assert not loss.requires_grad
            torch.testing.assert_close((loss, nll), wanted, rtol=1e-12, atol=0)
        with pytest.raises(AssertionError, match="nobody can ask"):
            linear_cross_entropy(*inputs, targets, 0.1, 3)  # so the checks above can fail


def test_without_gradients_no_gradient_work_is_done():
    check_no_gradient_work()


def test_inputs_and_targets_are_left_as_they_were():
    inputs = problem(7, 9, 2)
    before = [x.detach().clone() for x in inputs]
    loss, _ = linear_cross_entropy(*inputs, 0.1, 3)
    loss.backward()
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


def test_the_mean_cross_entropy_is_the_sum_over_its_targets():
    hidden, weight, bias, targets = problem(12, 9, 5)
    total, _ = linear_cross_entropy(hidden, weight, bias, targets, 0.0)
    logits = F.linear(hidden, weight, bias)
    mean = entropy_sums(logits.view(3, 4, 9), targets.view(3, 4)).mean
    wanted = F.cross_entropy(logits, targets)
    torch.testing.assert_close(mean, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(mean, total / 7, rtol=1e-12, atol=0)


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
            loss = model(ids, mask, labels=labels).loss
        else:
            with on_the_grid():
                loss = model(ids, mask, labels=labels).loss
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
