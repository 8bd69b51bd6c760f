"""Mimi (Défossez et al., 2024): 12.5 frames a second, the first code of each for what is said.

    codec = build(codec_preset("mimi"), seed=0)
    codes = codec.encode(wave, books=8)              # B 1 T → B 8 F
    again = codec.decode(codes)                      # B 1 F·1920

Its Transformers are the core's `Stack`, over frames.

Legend: B batch, C channels, T samples, Q codebooks, F frames, d numbers a frame, V codes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allformer import config
from allformer.codecs.codebook import nearest
from allformer.codecs.sound.books import Books
from allformer.codecs.sound.codec import SoundCodecModel
from allformer.codecs.sound.convolution import Convolution, Upward
from allformer.codecs.sound.mimi_config import CodecFrames, Mimi
from allformer.codecs.sound.seanet import Half
from allformer.codecs.sound.seanet_config import Conv
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.precision import cast, widen
from allformer.core.registry import implements
from allformer.core.sources.source import Source
from allformer.core.stack import Stack
from allformer.core.taps import tap

_LEAST = 1e-5  # no sum is divided by less


@implements(CodecFrames)
class CodecFramesSource(Source):
    """Frames as they come."""

    takes = ("inputs_embeds",)

    def __init__(self, stack: config.Stack, path: str) -> None:
        super().__init__(stack, path)
        self.finish()

    def check(self, inputs: Mapping[str, Tensor], prefix: str = "") -> tuple[int, int]:
        rows, width = inputs["inputs_embeds"].shape[:2]
        return rows, width

    def vectors(self, side: Side) -> Tensor:
        return side.inputs["inputs_embeds"]


class MeanBook(nn.Module):
    """A codebook of which the sums and counts are kept, not the means that are its vectors."""

    sums: Tensor
    counts: Tensor
    begun: Tensor

    def __init__(self, codes: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.empty(codes, dim))
        self.register_buffer("counts", torch.empty(codes))
        self.register_buffer("begun", torch.empty(1))

    def reset_parameters(self) -> None:
        """Small, each as if it stood for itself."""
        nn.init.uniform_(self.sums, -1 / len(self.sums), 1 / len(self.sums))
        self.counts.fill_(1.0)
        self.begun.fill_(1.0)

    def table(self) -> Tensor:
        """Its vectors, V d."""
        return widen(self.sums) / widen(self.counts).clamp_min(_LEAST)[:, None]

    def nearest(self, x: Tensor) -> Tensor:
        """Of vectors … d the nearest code of each, …"""
        return nearest(x, self.table())

    def look_up(self, ids: Tensor) -> Tensor:
        """… → … d"""
        return F.embedding(ids, self.table())


class Projected(nn.Module):
    """Codebooks narrower than a frame: a matrix goes before them, another one behind."""

    decays = ("into", "out")

    def __init__(self, tree: Mimi, count: int) -> None:
        super().__init__()
        self.books = Books(MeanBook(tree.codes, tree.code_dim) for _ in range(count))
        self.into = self.out = None
        if tree.projects:
            self.into = nn.Parameter(torch.empty(tree.code_dim, tree.dim))
            self.out = nn.Parameter(torch.empty(tree.dim, tree.code_dim))

    def reset_parameters(self) -> None:
        for matrix in (self.into, self.out):
            if matrix is not None:
                nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5)

    def encode(self, z: Tensor, count: int) -> Tensor:
        """B d F → B count F"""
        return self.books.encode(z if self.into is None else cast(self.into, z.dtype) @ z, count)

    def decode(self, codes: Tensor) -> Tensor:
        """B Q F → B d F"""
        z = self.books.decode(codes)
        return z if self.out is None else cast(self.out, z.dtype) @ z


@implements(Mimi)
class MimiModel(SoundCodecModel[Mimi]):
    """Convolutions, a Transformer, fewer frames; two quantisers; and back."""

    def __init__(self, tree: Mimi) -> None:
        super().__init__(tree)
        trunk, dim, every = tree.trunk, tree.dim, tree.every
        self.encoder = Half(trunk.encoder(dim), trunk, "encoder")
        self.encoder_stack = Stack(tree.encoder, "encoder_stack")
        fewer = Conv(dim, dim, 2 * every, every)
        self.downsample = Convolution(fewer, trunk, None, padding="replicate", bias=False)
        self.semantic = Projected(tree, tree.semantic)
        self.acoustic = Projected(tree, tree.acoustic)
        more = fewer._replace(up=True)
        self.upsample = Upward(more, trunk, None, groups=tree.groups, bias=False)
        self.decoder_stack = Stack(tree.decoder, "decoder_stack")
        self.decoder = Half(trunk.decoder(dim), trunk, "decoder")

    @property
    def least(self) -> int:
        return self.config.semantic

    def compressed(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        x = self.encoder(cast(x, dtype or x.dtype))
        z: Tensor = self.downsample(_over_time(self.encoder_stack, x))
        return tap(self, "frames", widen(z))

    def choose(self, z: Tensor, books: int) -> Tensor:
        """Both quantise the same frames: the acoustic books do not go on where the semantic ones
        have ended (section 3.3.3)."""
        codes = self.semantic.encode(z, self.least)
        if books == self.least:
            return codes
        return torch.cat([codes, self.acoustic.encode(z, books - self.least)], dim=1)

    def vectors(self, codes: Tensor) -> Tensor:
        said = self.semantic.decode(codes[:, : self.least])
        if codes.shape[1] == self.least:
            return said
        return said + self.acoustic.decode(codes[:, self.least :])

    def sounded(self, z: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        x = _over_time(self.decoder_stack, self.upsample(cast(z, dtype or self.dtype)))
        return widen(self.decoder(x))


def _over_time(stack: Stack, x: Tensor) -> Tensor:
    """A stack over frames, B d F → B d F."""
    frames = x.transpose(1, 2).contiguous()  # B F d
    side = Side(Grid(*frames.shape[:2]), {"inputs_embeds": frames})
    out: Tensor = stack(stack.source(side), side.layout)
    return out.transpose(1, 2)
