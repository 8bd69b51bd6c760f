"""Plain sizes as config trees: an encoder-decoder, a decoder, an encoder, one over patches, and one
over sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    Feed,
    Learned,
    LearnedPlane,
    LMHead,
    Norm,
    Patches,
    Pool,
    Sound,
    Stack,
    StoredSinusoids,
    Tokens,
    repeat,
)
from allformer.errors import ConfigError
from allformer.families.dalle import dalle
from allformer.families.original import PAD, transformer
from allformer.families.whisper import BIAS

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


def image_encoder(
    patch: int, cls: bool, registers: int, drop_path: float, **sizes: Any
) -> EncoderOnly:
    """ViT's form, which transformers can open: norms before, a learned position for each patch.

    The images' size and channels are not known yet: the objective puts them in. The last layer
    drops its paths as often as is said, the first never, those between in proportion.
    """
    norm = Norm(eps=1e-12)
    blocks = _blocks("gelu", "pre", norm, **sizes)
    far = max(1, len(blocks) - 1)
    blocks = tuple(replace(b, drop_path=drop_path * i / far) for i, b in enumerate(blocks))
    source = Patches(patch, 3, (_SIDE * patch,) * 2, cls=cls, registers=registers)
    stack = Stack(
        sizes["dim"],
        source,
        LearnedPlane(source.shape, source.placed),
        blocks,
        final_norm=norm,
        dropout=sizes["dropout"],
    )
    return EncoderOnly(stack)


def text_and_image(length: int, act: str | None, norm_at: str | None, **sizes: Any) -> DecoderOnly:
    """DALL-E's form; words, codes, and the grid are not known yet: the objective puts them in."""
    for name, said in {
        "act": act,
        "norm_at": norm_at,
        "feed_dropout": sizes["feed_dropout"],
    }.items():
        if said:
            raise ConfigError(
                f"model.{name}={said!r}: DALL-E's decoder has its own; leave it out, or give a tree"
            )
    names = ("dim", "layers", "heads", "feed", "dropout", "attention_dropout")
    return dalle(**{name: sizes[name] for name in names})


def recogniser(
    length: int,
    act: str | None,
    norm_at: str | None,
    decoder_layers: int | None = None,
    **sizes: Any,
) -> EncoderDecoder:
    """Whisper's form, which transformers can open: norms before, keys without a bias, stored
    sinusoids; a window of 30 s, unless the objective says otherwise."""
    norm = norm_at or "pre"
    blocks = _blocks(act or "gelu", norm, Norm(), **sizes)
    heard = tuple(replace(b, attention=replace(b.attention, bias=BIAS)) for b in blocks)
    said = replace(heard[0], cross=heard[0].attention)
    end, drop = Norm() if norm == "pre" else None, sizes["dropout"]
    encoder = Stack(
        sizes["dim"], Sound(), StoredSinusoids(1500), heard, final_norm=end, dropout=drop
    )
    decoder = Stack(
        sizes["dim"],
        Tokens(_VOCAB),
        Learned(length, count="all"),
        repeat(said, decoder_layers or sizes["layers"]),
        causal=True,
        final_norm=end,
        dropout=drop,
    )
    return EncoderDecoder(encoder, decoder, LMHead(), shared=False, start_id=0)


def _no_patch(**sizes: Any) -> Any:
    raise ConfigError(
        "model.patch is missing: an image is read in squares of so many pixels a side; try "
        "model: {patch: 4, dim: 192, heads: 3, layers: 9} for small images, or a preset (vit-small)"
    )


def _no_towers(**sizes: Any) -> Any:
    raise ConfigError(
        "model.vision is missing: images and their captions are read by a tower each; try model: "
        "{vision: {patch: 4, dim: 192, heads: 3, layers: 6}, text: {dim: 128, heads: 4, layers: "
        "2}}, or a preset (clip-vit-base-patch32)"
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
    "text-and-image": text_and_image,
    "two-towers": _no_towers,
    "recogniser": recogniser,
}  # fmt: skip
