"""Small models for tests. Sizes differ from one another so that no two axes can be confused."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from allformer.config import (
    LSH,
    AdaptiveHead,
    AdaptiveTokens,
    Attention,
    Axial,
    Block,
    BlockSparse,
    BucketBias,
    ChoiceHead,
    ClassHead,
    Contrast,
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    Features,
    Feed,
    GlobalWindow,
    Learned,
    LearnedPlane,
    LinearScaling,
    Llama3Scaling,
    LMHead,
    Local,
    LowRank,
    Model,
    Norm,
    Patches,
    Pool,
    PretrainHead,
    Probe,
    ReadingHead,
    Reversible,
    Rotary,
    Sinusoidal,
    Sound,
    SoundClassHead,
    SpanHead,
    Spans,
    Stack,
    StoredSinusoids,
    Tokens,
    Transform,
    TwoTowers,
    VectorHead,
    Window,
    XLRelative,
    cycle,
    repeat,
)
from allformer.core.inputs import Side
from allformer.core.layout import Layout
from allformer.core.model import AnyModel, EncoderDecoderModel, build
from allformer.core.taps import listen
from allformer.families.dalle import dalle
from tests.loud import make_loud

VOCAB, PAD, BOS, EOS = 37, 0, 2, 3
TOKENS = Tokens(VOCAB, scale=True, pad_id=PAD, bos_id=BOS, eos_id=EOS)

# Post-norm as in the paper, and a modern block: between them they use every slot.
PAPER = Block(Attention(4), Feed(40), norm_at="post", dropout=0.0)
MODERN = Block(
    Attention(6, kv_heads=2, head_dim=5, bias=False),
    Feed(28, act="silu", gated=True, bias=False),
    norm=Norm("rms", 1e-6),
    norm_at="pre",
    dropout=0.0,
)
# In chunks that hold a whole row of most tests.
HASHED = Block(
    Attention(3, head_dim=6, bias=False, mixer=LSH(64, 2, seed=1)),
    Feed(28, chunk=16),
    norm_at="pre",
    dropout=0.0,
)
NEAR = replace(HASHED, attention=Attention(4, mixer=Local(64)))


def crossed(block: Block) -> Block:
    """The same block with cross-attention."""
    return replace(block, cross=block.attention)


def stack(block: Block = PAPER, layers: int = 2, **changes: object) -> Stack:
    """A small stack; `changes` replace fields of `Stack`."""
    plain = Stack(24, TOKENS, Sinusoidal(), repeat(block, layers), dropout=0.0)
    return replace(plain, **changes)


def encoder_only(block: Block = PAPER, **changes: object) -> EncoderOnly:
    return EncoderOnly(stack(block, **changes), LMHead())


def decoder_only(block: Block = PAPER, **changes: object) -> DecoderOnly:
    return DecoderOnly(stack(block, causal=True, **changes))


def seq2seq(block: Block = PAPER, **changes: object) -> EncoderDecoder:
    return EncoderDecoder(
        stack(block, **changes), stack(crossed(block), layers=3, causal=True, **changes)
    )


FINAL = Norm("rms", 1e-6)
KINDS: dict[str, Model] = {
    "seq2seq paper": seq2seq(),
    "seq2seq modern": seq2seq(MODERN, position=Learned(64), final_norm=FINAL),
    "decoder paper": decoder_only(),
    "decoder modern": decoder_only(MODERN, position=Learned(64), final_norm=FINAL),
    "encoder paper": encoder_only(),
    "encoder modern": encoder_only(MODERN, source_norm=Norm(), final_norm=FINAL),
    "seq2seq buckets": seq2seq(MODERN, position=None, relative=BucketBias(8, 20), final_norm=FINAL),
    "decoder window": decoder_only(
        blocks=cycle((MODERN, replace(MODERN, attention=Attention(4, mixer=Window(5)))), 3)
    ),
    "encoder narrow": EncoderOnly(
        stack(
            source=replace(TOKENS, width=10, types=3),
            position=Learned(64, offset=2),
            source_norm=Norm(),
            blocks=repeat(PAPER, 4),
            share=(0, 0, 1, 1),
        ),
        LMHead(bias=True, transform=Transform("gelu_tanh"), offset=True, scale=0.5),
    ),
}

PATCHES = Patches(4, channels=1, image=(8, 12))
SIGHT = stack(source=PATCHES, position=LearnedPlane(PATCHES.shape, PATCHES.placed))
HEARING = stack(
    Block(Attention(3, bias=("q", "v", "out")), Feed(28, "gelu"), norm_at="pre", dropout=0.0),
    source=Sound(5, hide_frames=Spans(0.2, 3), hide_mels=Spans(0.2, 1)),
    position=StoredSinusoids(8),
    final_norm=Norm(),
)
IMAGE_EMBEDS = VectorHead("first", 6, Norm(), "image_embeds")


# A spread over every slot and option, for what must hold of any config at all.
SPREAD: dict[str, Model] = {
    **KINDS,
    "unequal depths": EncoderDecoder(stack(layers=3), stack(crossed(PAPER), layers=1, causal=True)),
    "two vocabularies": EncoderDecoder(
        stack(source=Tokens(19)),
        stack(crossed(PAPER), causal=True, source=Tokens(23)),
        head=LMHead(tied=False, bias=True),
        shared=False,
    ),
    "apart but tied": replace(seq2seq(), shared=False),
    "shared but untied": replace(seq2seq(), head=LMHead(tied=False)),
    "headless": replace(seq2seq(), head=None),
    "halves": decoder_only(position=Sinusoidal("halves", 500.0, start=2)),
    "no positions": encoder_only(position=None),
    "head bias": replace(decoder_only(), head=LMHead(tied=True, bias=True)),
    "own scale": decoder_only(Block(Attention(3, scale=1.0), Feed(16, act="gelu"))),
    "layers that differ": encoder_only(blocks=cycle((PAPER, MODERN), 5)),
    "gated with bias": encoder_only(Block(Attention(2), Feed(16, "gelu_tanh", gated=True))),
    "one key head": decoder_only(Block(Attention(8, kv_heads=1), Feed(16))),
    "rotary": decoder_only(replace(MODERN, attention=Attention(4)), relative=Rotary(length=64)),
    "rotary squeezed": decoder_only(position=None, relative=Rotary(99.0, LinearScaling(3.0))),
    "rotary stretched": decoder_only(
        position=None, relative=Rotary(99.0, Llama3Scaling(4.0, 1.0, 3.0, 30))
    ),
    "counts all": encoder_only(position=Learned(64, 2, "all"), source=replace(TOKENS, types=2)),
    "counts ids": encoder_only(position=Learned(64, 1, "ids")),
    "pooled": EncoderOnly(stack(), None, Pool()),
    "classes": EncoderOnly(stack(), ClassHead(("a", "b", "c"), dense="tanh"), Pool()),
    "tags": EncoderOnly(stack(), ClassHead(("a", "b"), at="token", bias=False)),
    "last token": DecoderOnly(stack(causal=True), ClassHead(("a", "b"), at="last")),
    "last end": replace(seq2seq(), head=ClassHead(("a", "b"), at="eos", dense="relu")),
    "spans": EncoderOnly(stack(), SpanHead()),
    "choices": EncoderOnly(stack(), ChoiceHead(), Pool()),
    "global window": EncoderOnly(
        stack(replace(PAPER, attention=Attention(4, mixer=GlobalWindow(3, 2)))),
        ClassHead(("a", "b"), at="first"),
    ),
    "pretraining": EncoderOnly(
        stack(),
        PretrainHead(LMHead(bias=True, transform=Transform()), ClassHead(("a", "b"))),
        Pool(),
    ),
    "linear": decoder_only(
        replace(MODERN, attention=replace(MODERN.attention, mixer=Features("elu"))),
        final_norm=FINAL,
    ),
    "random features": decoder_only(
        replace(MODERN, attention=replace(MODERN.attention, mixer=Features("favor", 11))),
        final_norm=FINAL,
    ),
    "low rank": encoder_only(
        replace(MODERN, attention=replace(MODERN.attention, mixer=LowRank(5, 64)))
    ),
    "segments": decoder_only(position=None, relative=XLRelative(memory=64, clamp=5)),
    "clusters": DecoderOnly(
        stack(
            replace(PAPER, norm_at="pre"),
            causal=True,
            position=None,
            source=AdaptiveTokens(
                VOCAB, scale=True, pad_id=PAD, bos_id=BOS, eos_id=EOS, cutoffs=(9, 20), divide=2
            ),
            relative=XLRelative(memory=64, untie=False),
        ),
        AdaptiveHead(shares=(False, True, True)),
    ),
    "blocks that look at blocks": encoder_only(
        blocks=tuple(
            Block(Attention(4, mixer=BlockSparse(4, 1, seed)), Feed(40), dropout=0.0)
            for seed in range(2)
        ),
        source_norm=Norm(),
        dropout_at="summed",
    ),
    "questions": EncoderOnly(
        stack(source=replace(TOKENS, types=2)), ReadingHead(feed=Feed(18, "gelu"), sep_id=3)
    ),
    "two streams": DecoderOnly(
        stack(
            causal=True,
            position=Axial((8, 16), (10, 14)),
            blocks=cycle((HASHED, NEAR), 3),
            final_norm=Norm(),
            flow=Reversible(),
        ),
        LMHead(tied=False),
    ),
    "two streams, classes": EncoderOnly(
        stack(HASHED, flow=Reversible()), ClassHead(("a", "b"), at="first", dense="tanh")
    ),
    "two towers": TwoTowers(
        stack(MODERN, causal=True, final_norm=FINAL),
        SIGHT,
        Contrast(VectorHead("eos", 6, output="text_embeds"), IMAGE_EMBEDS),
    ),
    "two towers, sigmoid": TwoTowers(
        stack(layers=1),
        replace(SIGHT, dim=12),
        Contrast(
            VectorHead("first", 12, output="text_embeds", bias=True),
            VectorHead(Probe(3, Feed(8)), output="image_embeds"),
            2.3,
            -10.0,
        ),
    ),
    "text and an image": dalle(24, 3, 4, words=20, codes=17, text=6, shape=(5, 7), kernel=3),
    "sound to text": EncoderDecoder(
        HEARING,
        stack(crossed(replace(PAPER, norm_at="pre")), causal=True, position=Learned(64)),
        shared=False,
    ),
    "sound to classes": EncoderOnly(HEARING, SoundClassHead(("a", "b", "c"), 7, weighted=True)),
    "odd width": EncoderOnly(
        Stack(21, Tokens(11), Learned(9), repeat(Block(Attention(3), Feed(5)), 1))
    ),
}


def loud(config: Model, seed: int = 1) -> AnyModel:
    """Built, loud, fp64, in eval mode."""
    return make_loud(build(config, seed=0).double(), seed).eval()


@torch.no_grad()
def restless(config: EncoderDecoder, seed: int, end: float) -> EncoderDecoderModel:
    """Loud, but with sentences that change from step to step and end at different lengths.

    A loud decoder says one token for ever: biases and cross-attention, the same at each step,
    drown what changes. `end` is added to the logit of </s>, for a head with a bias.
    """
    model = loud(config, seed)
    assert isinstance(model, EncoderDecoderModel)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.mul_(0.1)
        elif "embedding" in name:
            parameter.mul_(0.6)
        elif name.startswith("decoder") and name.endswith("out.weight"):
            parameter.mul_(0.3)
    assert model.head is not None
    assert model.head.bias is not None
    model.head.bias[EOS] = end
    return model


def tokens(rows: int, width: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    """Random ids that are no special token."""
    return torch.randint(4, vocab, (rows, width), generator=torch.Generator().manual_seed(seed))


def right_padding(lengths: list[int], width: int) -> Tensor:
    """attention_mask with `lengths` real tokens at the left."""
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()


def left_padding(lengths: list[int], width: int) -> Tensor:
    """attention_mask with `lengths` real tokens at the right."""
    return right_padding(lengths, width).flip(-1)


def on_the_grid() -> AbstractContextManager[None]:
    """Run on the padded grid, as a trace or a compiled graph does, instead of packed."""
    return listen(lambda name, x: None)


def loss_of(
    model: EncoderDecoderModel,
    source: tuple[Tensor, Layout],
    target: tuple[Tensor, Layout],
    labels: Tensor,
    smoothing: float = 0.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Summed loss and NLL from ids in layouts, as training computes it."""
    sides = {
        name: Side(layout, {"input_ids": ids})
        for name, (ids, layout) in {"encoder": source, "decoder": target}.items()
    }
    hidden = model.hidden(sides, dtype=dtype)["decoder"]
    return model.vocab_head.score(hidden.flatten(0, -2), labels.flatten(), smoothing)
