"""Plain sizes as config trees: an encoder-decoder, a decoder, an encoder, one over patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    EncoderOnly,
    Feed,
    Learned,
    LearnedPlane,
    Norm,
    Patches,
    Pool,
    Stack,
    Tokens,
    repeat,
)
from allformer.errors import ConfigError
from allformer.families.original import PAD, transformer

_VOCAB = 1 << 10  # until the tokeniser says how large it is
_SIDE = 8  # patches along a side, until the images are known


def encoder_decoder(length: int, act: str | None, norm_at: str | None, **sizes: Any) -> Any:
    """The original Transformer; sines before cosines, as Marian has them."""
    act, norm_at = act or "relu", norm_at or "post"
    return transformer(**sizes, act=act, norm_at=norm_at, vocab=_VOCAB, layout="halves")


def decoder(length: int, act: str | None, norm_at: str | None, **sizes: Any) -> DecoderOnly:
    """GPT-2's form: norms before, learned positions, a final norm, a tied head."""
    blocks = _blocks(act or "gelu_tanh", norm_at or "pre", Norm(), **sizes)
    return DecoderOnly(
        Stack(
            sizes["dim"],
            Tokens(_VOCAB),
            Learned(length),
            blocks,
            causal=True,
            final_norm=Norm() if blocks[0].norm_at == "pre" else None,
            dropout=sizes["dropout"],
        )
    )


def encoder(length: int, act: str | None, norm_at: str | None, **sizes: Any) -> EncoderOnly:
    """BERT's form, which transformers can open: norms after, two kinds of segments, learned
    positions, a pooler."""
    norm = Norm(eps=1e-12)
    blocks = _blocks(act or "gelu", norm_at or "post", norm, **sizes)
    stack = Stack(
        sizes["dim"],
        Tokens(_VOCAB, types=2, pad_id=PAD, pad_fixed=True),
        Learned(length, count="all"),
        blocks,
        source_norm=norm,
        final_norm=norm if blocks[0].norm_at == "pre" else None,
        dropout=sizes["dropout"],
    )
    return EncoderOnly(stack, pool=Pool())


def image_encoder(patch: int, cls: bool, registers: int, **sizes: Any) -> EncoderOnly:
    """ViT's form, which transformers can open: norms before, a learned position for each patch.

    The images' size and channels are not known yet: the objective puts them in.
    """
    norm = Norm(eps=1e-12)
    source = Patches(patch, 3, (_SIDE * patch,) * 2, cls=cls, registers=registers)
    stack = Stack(
        sizes["dim"],
        source,
        LearnedPlane(source.shape, source.placed),
        _blocks("gelu", "pre", norm, **sizes),
        final_norm=norm,
        dropout=sizes["dropout"],
    )
    return EncoderOnly(stack)


def _no_patch(**sizes: Any) -> Any:
    raise ConfigError(
        "model.patch is missing: an image is read in squares of so many pixels a side; try "
        "model: {patch: 4, dim: 192, heads: 3, layers: 9} for small images, or a preset (vit-small)"
    )


def _blocks(act: str, norm_at: str, norm: Norm, **sizes: Any) -> tuple[Block, ...]:
    block = Block(
        Attention(sizes["heads"], dropout=sizes["attention_dropout"]),
        Feed(sizes["feed"], act=act, dropout=sizes["feed_dropout"]),
        norm=norm,
        norm_at=norm_at,  # type: ignore[arg-type]
        dropout=sizes["dropout"],
    )
    return repeat(block, sizes["layers"])


SHAPES: dict[str, Callable[..., Any]] = {
    "encoder-decoder": encoder_decoder, "decoder": decoder, "encoder": encoder,
    "image-encoder": _no_patch,
}  # fmt: skip
