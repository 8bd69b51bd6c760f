"""The linear Transformer (Katharopoulos et al., 2020): φ(x) = elu(x) + 1 in place of softmax.

Its image models (section 4.2) read pixel after pixel: 8 heads of 32, 8 layers for MNIST and 16 for
CIFAR-10. The paper predicts a mixture of logistics; here the 256 values are a vocabulary. The sizes
for bytes of text are GPT-2's.
"""

from __future__ import annotations

from allformer.config import (
    Attention,
    Block,
    DecoderOnly,
    Features,
    Feed,
    Norm,
    Sinusoidal,
    Stack,
    Tokens,
    repeat,
)


def linear_transformer(dim: int, layers: int, heads: int, length: int) -> DecoderOnly:
    """A decoder over bytes: `linear_transformer(256, 8, 8, length=784)`."""
    block = Block(Attention(heads, mixer=Features("elu")), Feed(4 * dim, act="gelu"), norm_at="pre")
    stack = Stack(
        dim, Tokens(256), Sinusoidal(length=length), repeat(block, layers), causal=True,
        final_norm=Norm(),
    )  # fmt: skip
    return DecoderOnly(stack)


PRESETS = {
    "linear-mnist": lambda: linear_transformer(256, 8, 8, 784),
    "linear-cifar10": lambda: linear_transformer(256, 16, 8, 3072),
    "linear-bytes": lambda: linear_transformer(768, 12, 12, 8192),
}
