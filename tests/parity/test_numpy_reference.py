"""The lesson's NumPy Transformer against the model: fp64, loud weights, tap by tap, 1e-10."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from allformer.config import Norm, Sinusoidal
from allformer.core.block import Block as Layer
from allformer.core.kernels import attend
from allformer.core.look import Look
from allformer.core.model import EncoderDecoderModel
from allformer.core.trace import trace
from tests import lesson
from tests.diverge import assert_same
from tests.models import PAPER, loud, right_padding, seq2seq, tokens

numpy_transformer = lesson.load()
TOL = 1e-10


def weights_of(model: EncoderDecoderModel) -> dict:
    """Our weights in the lesson's form: named by the paper, matrices as (inputs, outputs)."""
    w: dict = {"embedding": array(model.encoder.source.embedding.weight)}
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        w[side] = [layer_weights(layer) for layer in stack.layers]
        if stack.final_norm is not None:
            w[f"{side}_norm"] = norm_weights(stack.final_norm)
    return w


def layer_weights(layer: Layer) -> dict:
    parts = {"attention": heads_weights(layer.attention, layer.attention.qkv, layer.attention.qkv)}
    if layer.has_cross:
        parts["cross"] = heads_weights(layer.cross, layer.cross.query, layer.cross.memory)
    for name in ("attention_norm", "cross_norm", "feed_norm"):
        if hasattr(layer, name):
            parts[name] = norm_weights(getattr(layer, name))
    up, down = layer.feed.up, layer.feed.down
    parts["feed"] = {
        "W_1": array(up.weight.T), "b_1": array(up.bias),
        "W_2": array(down.weight.T), "b_2": array(down.bias),
    }  # fmt: skip
    return parts


def heads_weights(attention, queries, keys_and_values) -> dict:
    out = {"W_O": array(attention.out.weight.T), "b_O": array(attention.out.bias)}
    for letter, fused in (("Q", queries), ("K", keys_and_values), ("V", keys_and_values)):
        weight, bias = fused.part(letter.lower())
        out |= {f"W_{letter}": array(weight.T), f"b_{letter}": array(bias)}
    return out


def norm_weights(norm) -> dict:
    return {"gamma": array(norm.weight), "beta": array(norm.bias)}


def array(x: Tensor) -> np.ndarray:
    return x.detach().numpy()


def check_model(norm_at: str, layout: str, kernel: str = "fast") -> None:
    """Every intermediate of the lesson equals the tap of the same name, at every real token."""
    final = Norm() if norm_at == "pre" else None
    config = seq2seq(replace(PAPER, norm_at=norm_at), position=Sinusoidal(layout), final_norm=final)
    model = loud(config)
    source, target = tokens(3, 51, 1), tokens(3, 48, 2)
    source_keep, target_keep = right_padding([51, 20, 3], 51), right_padding([17, 48, 30], 48)
    seen = trace(
        model,
        input_ids=source,
        attention_mask=source_keep,
        decoder_input_ids=target,
        decoder_attention_mask=target_keep,
        kernel=kernel,
    )
    _, notes = numpy_transformer.transformer(
        source.numpy(), source_keep.numpy(), target.numpy(), target_keep.numpy(),
        weights_of(model), heads=4, norm_at=norm_at, layout=layout,
    )  # fmt: skip
    assert set(notes) == set(seen), f"only on one side: {sorted(set(notes) ^ set(seen))}"
    lesson_says = {name: torch.from_numpy(value) for name, value in notes.items()}
    keep = {"encoder": source_keep, "decoder": target_keep}
    assert_same(seen, lesson_says, TOL, keep)
    # What the caller gets, without a listener (and so without padding): the same.
    out = model(source, source_keep, target, target_keep, kernel=kernel).logits
    real = target_keep.bool()
    torch.testing.assert_close(out[real], lesson_says["head.logits"][real], rtol=TOL, atol=TOL)


@pytest.mark.parametrize("kernel", ["fast", "eager"])
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("norm_at", ["post", "pre"])
def test_every_intermediate_equals_the_numpy_lesson(norm_at, layout, kernel):
    check_model(norm_at, layout, kernel)


def check_by_hand() -> None:
    """Loops over plain numbers = matrices in NumPy = the fast kernel."""
    q, k, v = torch.randn(3, 1, 1, 7, 5, dtype=torch.float64).mul(2)
    by_hand = numpy_transformer.attention_by_hand(*(x[0, 0].tolist() for x in (q, k, v)))
    matrices, weights, _ = numpy_transformer.attention(*(x.numpy() for x in (q, k, v)))
    fast = attend(q, k, v, Look(), scale=5**-0.5)
    np.testing.assert_allclose(matrices[0, 0], by_hand, rtol=0, atol=1e-12)
    np.testing.assert_allclose(matrices, fast.numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=0, atol=1e-12)


def test_attention_by_hand_equals_matrices_equals_the_fast_kernel():
    check_by_hand()


def check_large_scores() -> None:
    """exp(1000) is infinite in fp64; exp(1000 − 1000) is 1."""
    with np.errstate(all="ignore"):  # an overflow shows as NaN below
        out = numpy_transformer.softmax(np.array([1000.0, 999.0, -1000.0]))
    np.testing.assert_allclose(out, [1 / (1 + math.exp(-1)), 1 / (1 + math.e), 0.0], atol=1e-15)


def test_the_softmax_survives_scores_of_a_thousand():
    check_large_scores()


def test_the_lessons_masks_are_ours():
    np.testing.assert_array_equal(numpy_transformer.look_ahead_mask(9), np.tri(9, dtype=bool))


@pytest.fixture(scope="module")
def shown() -> str:
    """What the lesson prints."""
    return subprocess.run(
        [sys.executable, str(lesson.PATH)],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    ).stdout


def test_the_lesson_runs_and_shows_each_step(shown):
    for part in ("Attention by hand", "exp(s − max)", "decoder.0.cross.weights", "head.logits"):
        assert part in shown


@pytest.mark.parametrize("text", ["README.md", "README.zh-CN.md"])
def test_the_lessons_text_quotes_what_it_really_prints(text, shown):
    page = (lesson.PATH.parent / text).read_text(encoding="utf-8")
    quotes = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    lines = {line.strip() for line in shown.splitlines()}
    assert len(quotes) == 3
    for line in "".join(quotes).splitlines():
        assert line.strip() in lines
