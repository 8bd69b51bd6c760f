"""Ours against `torch.nn.Transformer` and `nn.MultiheadAttention`: fp64, loud weights, 1e-10."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from allformer.config import Attention
from allformer.core.attention import Attention as MultiHead
from allformer.core.layout import Grid
from allformer.core.mixers.mixer import Scene
from allformer.core.model import build
from allformer.core.taps import listen
from allformer.core.trace import trace
from tests.diverge import assert_same, first_divergence
from tests.loud import make_loud
from tests.models import right_padding, tokens
from tests.parity import oracle as o

TOL = 1e-10
LAYERS = (2, 3)
SHAPES = [
    pytest.param("post", False, id="post-norm"),
    pytest.param("post", True, id="post-norm with final norms"),
    pytest.param("pre", True, id="pre-norm"),
]


def both(norm_at: str, act: str, final_norm: bool):
    """(ours, oracle) with the same loud weights, in fp64."""
    theirs = make_loud(o.Oracle(norm_at, act, final_norm, LAYERS).double(), seed=3)
    ours = build(o.our_config(norm_at, act, final_norm, LAYERS), seed=0).double()
    o.copy_weights(ours, theirs)
    return ours, theirs


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Source, its mask, target, its mask, labels: 52 and 48 tokens, ragged."""
    source, target = tokens(3, 52, 1, o.VOCAB), tokens(3, 48, 2, o.VOCAB)
    source_keep, target_keep = right_padding([52, 33, 7], 52), right_padding([29, 48, 11], 48)
    labels = tokens(3, 48, 3, o.VOCAB).masked_fill(target_keep == 0, -100)
    return source, source_keep, target, target_keep, labels


def check_forward(norm_at: str, act: str, final_norm: bool) -> None:
    ours, theirs = both(norm_at, act, final_norm)
    source, source_keep, target, target_keep, _ = batch()
    seen = trace(
        ours,
        input_ids=source,
        attention_mask=source_keep,
        decoder_input_ids=target,
        decoder_attention_mask=target_keep,
    )
    wanted = o.oracle_trace(theirs, source, source_keep, target, target_keep)
    assert set(wanted) <= set(seen), f"not compared: {sorted(set(wanted) - set(seen))}"
    keep = {"encoder": source_keep, "decoder": target_keep}
    # `seen` first: its order is that of the computation, so the first name is the culprit.
    assert_same(seen, wanted, TOL, keep)


def check_training_step(norm_at: str, act: str, final_norm: bool) -> None:
    """Loss, the gradient of every parameter, and every parameter after a step of Adam."""
    ours, theirs = both(norm_at, act, final_norm)
    source, source_keep, target, target_keep, labels = batch()
    wanted = theirs(source, source_keep, target, target_keep)
    out = ours(source, source_keep, target, target_keep, labels)
    real = target_keep.bool()
    close("logits", out.logits[real], wanted[real])
    loss = theirs.loss(wanted, labels, 0.0)
    close("loss", out.loss, loss)
    # The keys' bias has no effect, its gradient is rounding noise: eps is above that noise, or
    # Adam would divide noise by noise and make two different steps of it.
    adams = [
        torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-4)
        for model in (ours, theirs)
    ]
    out.loss.backward()
    loss.backward()
    assert count(ours) == count(theirs), "a parameter is compared with nothing"
    for name, hers, mine in o.gradients(ours, theirs):
        close(f"gradient of {name}", mine, hers)
    before = {name: hers.detach().clone() for name, hers, _ in o.pairs(ours, theirs)}
    for adam in adams:
        adam.step()
    for name, hers, mine in o.pairs(ours, theirs):
        close(f"{name} after Adam", mine, hers)
        assert not torch.equal(hers, before[name]), f"Adam did not move {name}"


def close(what: str, mine: Tensor, hers: Tensor) -> None:
    torch.testing.assert_close(mine, hers, rtol=TOL, atol=TOL, msg=lambda m: f"{what}: {m}")


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize(("norm_at", "final_norm"), SHAPES)
def test_every_step_of_the_forward_pass_equals_torch(norm_at, act, final_norm):
    check_forward(norm_at, act, final_norm)


@pytest.mark.parametrize("act", ["relu", "gelu"])
@pytest.mark.parametrize(("norm_at", "final_norm"), SHAPES)
def test_loss_gradients_and_an_adam_step_equal_torch(norm_at, act, final_norm):
    check_training_step(norm_at, act, final_norm)


# --- MultiHead against nn.MultiheadAttention ------------------------------------------------------


def check_attention(cross: bool, kernel: str = "fast", causal: bool = False) -> None:
    """Output, weights (per head and averaged), gradients of parameters and inputs."""
    dim, heads = 24, 3
    theirs = make_loud(nn.MultiheadAttention(dim, heads, batch_first=True).double(), seed=5)
    ours = MultiHead(Attention(heads), dim, "attention", cross=cross).double()
    o.copy_attention(ours, theirs)
    queries, keys = 49, 55 if cross else 49
    x = torch.randn(2, queries, dim, dtype=torch.float64).requires_grad_()
    memory = torch.randn(2, keys, dim, dtype=torch.float64).requires_grad_() if cross else x
    keep = right_padding([keys, 31], keys)
    triangle = torch.ones(queries, keys).bool().tril() if causal else None
    wanted, heads_weights = theirs(
        x, memory, memory,
        key_padding_mask=~keep.bool(),
        attn_mask=None if triangle is None else ~triangle,
        average_attn_weights=False,
    )  # fmt: skip
    key = Grid(2, keys, keep.bool())
    query = Grid(2, queries) if cross else key
    plan = ours.mixer.plan(Scene(query, key, x.device, x.dtype, causal, kernel))
    seen: dict[str, Tensor] = {}
    with listen(lambda name, value: seen.update({name: value.detach()})):
        ours(x, plan, memory if cross else None)
    out = ours(x, plan, memory if cross else None)
    close("weights of each head", seen["attention.weights"], heads_weights.detach())
    close("output", out, wanted)
    average = theirs(
        x, memory, memory, key_padding_mask=~keep.bool(),
        attn_mask=None if triangle is None else ~triangle,
    )[1]  # fmt: skip
    close("average weights", seen["attention.weights"].mean(1), average.detach())
    push = torch.randn_like(out)
    inputs = [x, memory] if cross else [x]
    mine = torch.autograd.grad(out, [*inputs, *ours.parameters()], push)
    hers = torch.autograd.grad(wanted, [*inputs, *theirs.parameters()], push)
    for i in range(len(inputs)):
        close(f"gradient of input {i}", mine[i], hers[i])
    grads = dict(zip((id(p) for p in ours.parameters()), mine[len(inputs) :], strict=True))
    for (name, _), g in zip(theirs.named_parameters(), hers[len(inputs) :], strict=True):
        kind = name.removeprefix("out_proj.")
        close(f"gradient of {name}", o.attention_part(ours, kind, lambda p: grads[id(p)]), g)


@pytest.mark.parametrize("kernel", ["fast", "eager"])
@pytest.mark.parametrize(
    ("cross", "causal"), [(False, False), (False, True), (True, False)],
    ids=["self", "causal self", "cross"],
)  # fmt: skip
def test_multi_head_equals_torch_with_weights_and_gradients(cross, causal, kernel):
    check_attention(cross, kernel, causal)


def test_a_divergence_is_named_at_its_first_tap():
    ours, _ = both("post", "relu", False)
    source, source_keep, target, _, _ = batch()
    inputs = {"input_ids": source, "attention_mask": source_keep, "decoder_input_ids": target}
    before = trace(ours, **inputs)
    with torch.no_grad():
        ours.decoder.layers[1].cross.out.bias[3] += 0.01
    after = trace(ours, **inputs)
    keep = {"encoder": source_keep, "decoder": torch.ones_like(target)}
    message = first_divergence(after, before, TOL, keep)
    assert message is not None
    assert message.startswith("decoder.1.cross.output differs by 0.01")
