"""One optimiser step: the same as torch's own parts put together by hand, and safe from NaN."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from allformer.core.loss import IGNORE
from allformer.core.model import EncoderDecoderModel, build
from allformer.data.encoded import EncodedPairs, Rows
from allformer.train.batch import Frame
from allformer.train.objectives.seq2seq import PairBatch, Seq2Seq
from allformer.train.optim import AdamW
from allformer.train.step import Stepper, StepSettings
from tests.loud import make_loud
from tests.models import KINDS, VOCAB

RATE = 3e-3
# A key's bias has no gradient but rounding, which the default eps of 1e-9 would make a step of.
EPS = 1e-6


def rows(count: int, seed: int) -> Rows:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, count)
    ids = random.integers(4, VOCAB, lengths.sum()).astype(np.uint16)
    return Rows(ids, lengths, lengths.cumsum() - lengths)


SEQ2SEQ = Seq2Seq()
PAIRS = EncodedPairs(rows(24, 1), rows(24, 2))


def batch(*index: int, frame: Frame | None = None) -> PairBatch:
    return SEQ2SEQ.collate(PAIRS, np.array(index), frame)


def fresh(dtype: torch.dtype = torch.float64, layers: int | None = None) -> EncoderDecoderModel:
    """The same loud model each time, or its first layers alone."""
    tree = KINDS["seq2seq paper"]
    if layers is not None:
        sides = {name: replace(s, blocks=s.blocks[:layers]) for name, s in tree.stacks.items()}
        tree = replace(tree, **sides)
    model = make_loud(build(tree, seed=0).to(dtype), seed=1)
    assert isinstance(model, EncoderDecoderModel)
    return model.train()


def weights(model: EncoderDecoderModel) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def gradients(model: EncoderDecoderModel) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def moments(model: EncoderDecoderModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": optimizer.state[p][key]
        for name, p in model.named_parameters()
        for key in ("exp_avg", "exp_avg_sq", "step")
    }


def mean_loss(model: EncoderDecoderModel, data: PairBatch, smoothing: float) -> Tensor:
    """torch's own cross-entropy over the logits of padded rows."""
    source, target = data.source_layout, data.target_layout
    ids = source.to_grid(data.source), source.keep, target.to_grid(data.target), target.keep
    labels = target.to_grid(data.labels).masked_fill(~target.keep, IGNORE)
    logits = model(*ids).logits.flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels.flatten(), label_smoothing=smoothing)


def torch_step(
    model: EncoderDecoderModel, optimizer: torch.optim.Optimizer, data: PairBatch, clip: float
) -> Tensor:
    """What a step is, spelled out."""
    optimizer.zero_grad()
    mean_loss(model, data, smoothing=0.1).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return norm


def torch_adam(model: EncoderDecoderModel, decay: float) -> torch.optim.AdamW:
    def decays(name: str, p: Tensor) -> bool:
        return p.ndim == 2 and name != "encoder.source.embedding.weight"

    parameters = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in parameters if decays(n, p)], "weight_decay": decay},
        {"params": [p for n, p in parameters if not decays(n, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), eps=EPS, foreach=False)


STEPS = [(0, 1, 2), (3, 4), (5, 6, 7, 8, 9, 10), (11,), (12, 13, 14)]


# --- against torch -----------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_torchs_adamw_on_the_mean_loss(decay):
    ours, theirs = fresh(), fresh()
    stepper = Stepper(
        ours, SEQ2SEQ, StepSettings(optim=AdamW(clip=1e9, weight_decay=decay, eps=EPS))
    )
    optimizer = torch_adam(theirs, decay)
    for number, index in enumerate(STEPS, 1):
        rate = RATE / number
        for group in optimizer.param_groups:
            group["lr"] = rate
        result = stepper([batch(*index)], rate)
        norm = torch_step(theirs, optimizer, batch(*index), clip=1e9)
        torch.testing.assert_close(result.norm, norm, rtol=1e-9, atol=0)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-9, atol=1e-10)
    assert all((weights(ours)[n] != p).any() for n, p in weights(fresh()).items())


def test_clipping_in_the_optimiser_is_torchs_clip_grad_norm():
    ours, theirs, free = fresh(), fresh(), fresh()
    norms = [float(Stepper(fresh(), SEQ2SEQ, StepSettings())([batch(*i)], 0.0).norm) for i in STEPS]
    clip = sorted(norms)[1]  # one step is left alone, the others are clipped
    stepper = Stepper(ours, SEQ2SEQ, StepSettings(optim=AdamW(clip=clip, eps=EPS)))
    unclipped = Stepper(free, SEQ2SEQ, StepSettings(optim=AdamW(clip=1e9, eps=EPS)))
    optimizer = torch_adam(theirs, 0.0)
    for index in STEPS:
        result = stepper([batch(*index)], RATE)
        norm = torch_step(theirs, optimizer, batch(*index), clip)
        unclipped([batch(*index)], RATE)
        torch.testing.assert_close(result.norm, norm, rtol=1e-6, atol=0)  # before clipping
    # torch divides by norm + 1e-6 and ours takes the scale in fp32
    torch.testing.assert_close(
        moments(ours, stepper.optimizer), moments(theirs, optimizer), rtol=1e-5, atol=1e-8
    )
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-7)
    apart = [(weights(free)[n] - p).abs().max() for n, p in weights(ours).items()]
    assert max(apart) > 1e-4, "clipping must be seen"


@pytest.mark.parametrize("split", [[(0, 1, 2, 3), (4,), (5, 6)], [(6, 5), (4, 3, 2, 1, 0)]])
def test_accumulated_micro_batches_are_one_full_batch(split):
    full, parts = fresh(), fresh()
    for model, batches in ((full, [batch(*range(7))]), (parts, [batch(*s) for s in split])):
        stepper = Stepper(model, SEQ2SEQ, StepSettings(optim=AdamW(clip=1.0, eps=EPS)))
        result = stepper(batches, RATE)
        assert result.tokens == sum(b.tokens for b in batches) == batch(*range(7)).tokens
        model.result = result
    tokens = [batch(*s).tokens / len(s) for s in split]
    assert len(set(tokens)) == len(tokens), "the parts must be of unequal length"
    torch.testing.assert_close(gradients(parts), gradients(full), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(weights(parts), weights(full), rtol=1e-8, atol=1e-9)
    for name in ("loss", "nlls", "norm"):
        a, b = getattr(parts.result, name), getattr(full.result, name)
        torch.testing.assert_close(a, b, rtol=1e-10, atol=0)


def test_a_framed_step_is_the_plain_step():
    plain, framed = fresh(), fresh()
    frame = Frame(tokens=64, sentences=8, width=12)
    for model, data in ((plain, batch(1, 2, 3)), (framed, batch(1, 2, 3, frame=frame))):
        Stepper(model, SEQ2SEQ, StepSettings(optim=AdamW(eps=EPS)))([data], RATE)
    torch.testing.assert_close(weights(framed), weights(plain), rtol=1e-8, atol=1e-9)


# --- what is not finite ------------------------------------------------------------------------


def poisoned(stepper: Stepper, value: float) -> None:
    """The next losses have a gradient of `value` in one place."""
    plain = stepper.plain_loss

    def loss(*inputs):
        out, nll = plain(*inputs)
        return out + value * stepper.model.decoder.layers[0].feed.up.bias[3], nll

    stepper.plain_loss = loss


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_step_that_is_not_finite_changes_nothing(value):
    model = fresh(torch.float32)
    stepper = Stepper(model, SEQ2SEQ, StepSettings(optim=AdamW(weight_decay=0.1)))
    stepper([batch(0, 1)], RATE)
    before = weights(model), {k: v.clone() for k, v in moments(model, stepper.optimizer).items()}
    plain = stepper.plain_loss
    poisoned(stepper, value)
    result = stepper([batch(2, 3)], RATE)
    assert not result.norm.isfinite()
    after = weights(model), moments(model, stepper.optimizer)
    torch.testing.assert_close(after, before, rtol=0, atol=0)

    stepper.plain_loss = plain  # and the next step goes on as if nothing had been
    stepper([batch(4, 5)], RATE)
    twin = fresh(torch.float32)
    other = Stepper(twin, SEQ2SEQ, StepSettings(optim=AdamW(weight_decay=0.1)))
    other([batch(0, 1)], RATE)
    other([batch(4, 5)], RATE)
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=0)


# --- precisions --------------------------------------------------------------------------------


def test_bf16_computes_in_bf16_and_keeps_weights_and_moments_in_fp32():
    model = fresh(torch.float32)
    stepper = Stepper(model, SEQ2SEQ, StepSettings(precision="bf16"))
    seen = set()
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda _m, _i, out: seen.add(out.dtype))
    before = weights(model)
    for index in STEPS:
        stepper([batch(*index)], RATE * 1e-3)
    assert seen == {torch.bfloat16}
    held = {**weights(model), **gradients(model), **moments(model, stepper.optimizer)}
    assert {x.dtype for x in held.values()} == {torch.float32}
    # Updates of 3e-6 are far below bf16's spacing: only fp32 master weights can take them.
    moved = [(p - before[n]).abs().max() for n, p in weights(model).items()]
    assert min(moved) > 0
    assert max(moved) < 1e-4


def test_bf16_goes_where_fp32_goes():
    steps = {}
    for precision in ("fp32", "bf16"):
        model = fresh(torch.float32)
        stepper = Stepper(model, SEQ2SEQ, StepSettings(precision=precision, smoothing=0.0))
        steps[precision] = [float(stepper([batch(0, 1, 2, 3)], 1e-2).loss) for _ in range(12)]
    assert steps["fp32"][-1] < 0.5 * steps["fp32"][0]
    assert steps["bf16"] == pytest.approx(steps["fp32"], rel=0.15, abs=0.1)


def test_fp16_scales_the_loss_and_lowers_the_scale_when_it_overflows():
    model = fresh(torch.float32)
    stepper = Stepper(model, SEQ2SEQ, StepSettings(precision="fp16"))
    assert stepper.scaler is not None
    start = stepper.scaler.get_scale()
    poisoned(stepper, float("inf"))
    before = weights(model)
    stepper([batch(0, 1)], RATE)
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    assert stepper.scaler.get_scale() == start / 2

    del stepper.plain_loss  # the plain one again
    while True:  # loud weights overflow fp16 until the scale is small enough
        norm = stepper([batch(0, 1)], RATE).norm
        if norm.isfinite():
            break
        torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    twin = fresh(torch.float32)
    want = Stepper(twin, SEQ2SEQ, StepSettings())([batch(0, 1)], RATE)
    torch.testing.assert_close(norm, want.norm, rtol=0.02, atol=0)  # unscaled before clipping
    assert {x.dtype for x in weights(model).values()} == {torch.float32}
    assert any((p != before[n]).any() for n, p in weights(model).items())


# --- compiled ----------------------------------------------------------------------------------


def test_a_compiled_step_over_many_framed_batches_compiles_once(monkeypatch):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter, plain = CompileCounterWithBackend("aot_eager"), torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kw: plain(f, backend=counter, **kw))
    torch._dynamo.reset()
    frame = Frame(tokens=64, sentences=8, width=12)
    eager, compiled = fresh(layers=1), fresh(layers=1)  # the compiler takes seconds a layer
    steps = [
        Stepper(eager, SEQ2SEQ, StepSettings(optim=AdamW(eps=EPS))),
        Stepper(compiled, SEQ2SEQ, StepSettings(optim=AdamW(eps=EPS), compile=True)),
    ]
    batches = [(0,), (1, 2), (3, 4, 5, 6), (7, 8, 9), (10, 11, 12, 13, 14, 15), (16, 17)]
    for number, index in enumerate(batches, 1):
        for stepper in steps:
            stepper([batch(*index, frame=frame)], RATE / number)
    assert counter.frame_count == 1, "one graph, compiled once, without breaks"
    torch.testing.assert_close(weights(compiled), weights(eager), rtol=1e-7, atol=1e-9)
    torch._dynamo.reset()


# --- stopping and going on ---------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_restored_stepper_goes_on_bit_for_bit(precision):
    settings = StepSettings(optim=AdamW(weight_decay=0.01), precision=precision)
    straight = fresh(torch.float32)
    stepper = Stepper(straight, SEQ2SEQ, settings)
    for index in STEPS[:3]:
        stepper([batch(*index)], RATE)
    state = {
        "optimizer": stepper.optimizer.state_dict(),
        "scaler": None if stepper.scaler is None else stepper.scaler.state_dict(),
    }
    resumed = fresh(torch.float32)
    resumed.load_state_dict(straight.state_dict())
    other = Stepper(resumed, SEQ2SEQ, settings)
    other.load(deepcopy(state))
    for index in STEPS[3:]:
        stepper([batch(*index)], RATE)
        other([batch(*index)], RATE)
    torch.testing.assert_close(weights(resumed), weights(straight), rtol=0, atol=0)
    if stepper.scaler is not None and other.scaler is not None:
        assert other.scaler.get_scale() == stepper.scaler.get_scale()
