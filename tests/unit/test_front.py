"""A head that reads the first tokens alone: the last layer computes no others, the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer import config
from allformer.config import Attention, Block, ClassHead, EncoderOnly, Feed, Norm, Patches, Stack
from allformer.core import stack as core_stack
from allformer.core.feed_forward import Feed as FeedModule
from allformer.core.model import EncoderOnlyModel
from allformer.core.replay import ReplayPixels
from allformer.errors import ConfigError
from tests.loud import make_loud

PATCHES = Patches(4, image=(8, 12))  # 6 patches and [CLS]
PLANE = config.LearnedPlane(PATCHES.shape, PATCHES.placed)
PRE = Block(Attention(2), Feed(24, act="gelu"), norm_at="pre")
STACK = Stack(16, PATCHES, PLANE, (PRE,) * 2, final_norm=Norm())
FIRST = ClassHead(("a", "b", "c"), at="first")
TWO = replace(PATCHES, distilled=True)

NARROW = {
    "pre-norm": EncoderOnly(STACK, FIRST),
    "post-norm": EncoderOnly(replace(STACK, blocks=(replace(PRE, norm_at="post"),) * 2), FIRST),
    "layer scale": EncoderOnly(replace(STACK, blocks=(replace(PRE, scale=0.5),) * 2), FIRST),
    "grouped heads": EncoderOnly(
        replace(STACK, blocks=(replace(PRE, attention=Attention(2, kv_heads=1)),) * 2), FIRST
    ),
    "low rank": EncoderOnly(
        replace(
            STACK, blocks=(replace(PRE, attention=Attention(2, mixer=config.LowRank(3, 7))),) * 2
        ),
        FIRST,
    ),
    "shared layers": EncoderOnly(replace(STACK, share=(0, 0)), FIRST),
    "pooler": EncoderOnly(STACK, ClassHead(("a", "b"), at="pool"), config.Pool()),
    "two heads": EncoderOnly(
        replace(STACK, source=TWO, position=config.LearnedPlane(TWO.shape, TWO.placed)),
        config.TeacherHead(("a", "b")),
    ),
}
WHOLE = {
    "window": EncoderOnly(
        replace(
            STACK, blocks=(PRE, replace(PRE, attention=Attention(2, mixer=config.Window(2, 2))))
        ),
        FIRST,
    ),
    "rotary": EncoderOnly(replace(STACK, position=None, relative=config.Rotary()), FIRST),
    "patches": EncoderOnly(STACK, ClassHead(("a", "b"), at="first+patches")),
}


def built(tree: EncoderOnly) -> EncoderOnlyModel:
    model = af.build(tree, seed=0)
    assert isinstance(model, EncoderOnlyModel)
    make_loud(model, 1)
    return model.double().eval()


def pixels() -> Tensor:
    return torch.randn(3, 3, 8, 12, generator=torch.Generator().manual_seed(0)).double()


def gradients(model: EncoderOnlyModel, **how: bool) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    out = model(pixel_values=pixels(), **how)["logits"]
    (out * torch.arange(1.0, out.numel() + 1).view_as(out)).sum().backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return out.detach(), {name: grad.clone() for name, grad in found.items()}


def widths(model: EncoderOnlyModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of a row that each feed-forward layer is given."""
    seen: list[int] = []
    plain: Callable[..., Tensor] = FeedModule.forward

    def spy(self: FeedModule, x: Tensor, seed: Tensor | None = None) -> Tensor:
        seen.append(x.shape[1])
        return plain(self, x, seed)

    monkeypatch.setattr(FeedModule, "forward", spy)
    model(pixel_values=pixels(), states=False)
    return seen


def check_front(kind: str) -> None:
    model = built({**NARROW, **WHOLE}[kind])
    (whole, old), (alone, new) = gradients(model), gradients(model, states=False)
    assert torch.allclose(whole, alone, rtol=0, atol=1e-12)
    assert old.keys() == new.keys()
    for name in old:
        assert torch.allclose(old[name], new[name], rtol=0, atol=1e-10), name


@pytest.mark.parametrize("kind", [*NARROW, *WHOLE])
def test_the_answer_alone_is_the_answer_beside_the_states_and_so_are_its_gradients(kind):
    check_front(kind)


@pytest.mark.parametrize("kind", ["pre-norm", "post-norm"])
def test_layers_by_fused_kernels_give_the_same_answer_alone(kind, monkeypatch):
    monkeypatch.setattr(core_stack, "ready", lambda *tensors: True)
    check_front(kind)


@pytest.mark.parametrize("kind", ["pre-norm", "low rank", "shared layers", "pooler"])
def test_the_last_layer_computes_the_first_token_alone(kind, monkeypatch):
    assert widths(built(NARROW[kind]), monkeypatch) == [7, 1]


def test_two_heads_want_two_tokens(monkeypatch):
    assert widths(built(NARROW["two heads"]), monkeypatch) == [8, 2]


@pytest.mark.parametrize("kind", ["rotary", "patches"])
def test_where_more_is_needed_all_is_computed(kind, monkeypatch):
    assert len(set(widths(built(WHOLE[kind]), monkeypatch))) == 1


def test_without_states_the_answer_is_all_that_is_given():
    model = built(NARROW["pooler"])
    assert {"last_hidden_state", "pooler_output"} < {*model(pixel_values=pixels())}
    assert [*model(pixel_values=pixels(), states=False)] == ["logits"]
    told = model(pixel_values=pixels(), labels=torch.tensor([0, 1, 1]), states=False)
    assert {*told} == {"loss", "logits"}


def test_without_a_head_there_is_nothing_but_states():
    with pytest.raises(ConfigError, match=r"states=False, but EncoderOnly.head=None.*leave it out"):
        built(EncoderOnly(STACK, None))(pixel_values=pixels(), states=False)


def test_a_trace_shows_every_token():
    model = built(NARROW["pre-norm"])
    seen = af.trace(model, pixel_values=pixels(), states=False)
    assert seen["encoder.1.feed.output"].shape == (3, 7, 16)


def test_a_changed_layer_computes_all(monkeypatch):
    model = built(NARROW["pre-norm"])
    model.encoder.layers[-1].attention.qkv.delta = lambda x, y: 2 * y
    whole = model(pixel_values=pixels()).logits
    assert torch.allclose(whole, model(pixel_values=pixels(), states=False).logits)
    assert widths(model, monkeypatch) == [7, 7]


@pytest.mark.parametrize("dropped", [0, 2])
def test_texts_with_padding_are_answered_alike(dropped):
    """Packed, and (as a first column of padding is read too) on their grid."""
    stack = Stack(16, config.Tokens(20), config.Sinusoidal(), (PRE,) * 2, final_norm=Norm())
    model = built(EncoderOnly(stack, FIRST))
    ids = torch.randint(20, (2, 6), generator=torch.Generator().manual_seed(0))
    keep = torch.ones_like(ids)
    keep[0, :dropped], keep[1, 3:] = 0, 0
    whole = model(input_ids=ids, attention_mask=keep).logits
    alone = model(input_ids=ids, attention_mask=keep, states=False).logits
    assert torch.allclose(whole, alone, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("states", [True, False])
def test_a_graph_of_images_is_one_and_gives_what_the_model_gives(states):
    """Whole: a break would be a wait in the middle of it."""
    model = built(NARROW["pooler"])
    replay = ReplayPixels(model.infer, next(model.parameters()))
    call = torch.compile(replay._run, backend="eager", fullgraph=True)
    with torch.inference_mode():
        for x in (pixels(), pixels()[:2]):
            found, wanted = call(x, 7, states), model(pixel_values=x, states=states)
            assert [*found] == [*wanted]
            assert all(torch.allclose(found[name], wanted[name]) for name in wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_images_through_cuda_graphs_give_what_the_model_gives():
    model = built(NARROW["pooler"]).float().cuda()
    x = pixels().float().cuda()
    with torch.inference_mode():
        plain = [model(pixel_values=rows) for rows in (x, x[:2])]
        model.compile()
        for _ in range(2):  # captured, then replayed
            for rows, wanted in zip((x, x[:2]), plain, strict=True):
                found = model(pixel_values=rows)
                assert all(torch.allclose(found[n], wanted[n], atol=1e-3) for n in wanted)
                alone = model(pixel_values=rows, states=False)
                assert [*alone] == ["logits"]
                assert torch.allclose(alone.logits, wanted.logits, atol=1e-3)
    assert model(pixel_values=x, labels=torch.tensor([0, 1, 1]).cuda()).loss.requires_grad
