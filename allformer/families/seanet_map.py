"""What files call the convolutions and codebooks of sound codecs, which EnCodec and Mimi share."""

from __future__ import annotations

from collections.abc import Iterator

from allformer.codecs.sound.seanet_config import Conv, Layer, Recurrent, Residual, Seanet
from allformer.families.weights import Op, Renamed, Same

# torch's weight norm, before and since it is a parametrisation. Published files have the older
# names, and transformers writes those back that it read.
OLDER = (
    Renamed(r"\.weight_g$", ".parametrizations.weight.original0", kept=True),
    Renamed(r"\.weight_v$", ".parametrizations.weight.original1", kept=True),
)
NORMED = {
    "length": "parametrizations.weight.original0",
    "direction": "parametrizations.weight.original1",
}
_LSTM = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def half(trunk: Seanet, layers: Iterator[Layer], name: str) -> Iterator[Op]:
    """An encoder's or decoder's; ours and theirs are numbered alike."""
    for i, layer in enumerate(layers):
        where = f"{name}.layers.{i}"
        if isinstance(layer, Conv):
            yield from convolution(trunk, where)
        elif isinstance(layer, Residual):
            for place in (1, 3):  # each behind an activation
                yield from convolution(trunk, f"{where}.block.{place}")
            if trunk.shortcut:
                yield from convolution(trunk, f"{where}.shortcut")
        elif isinstance(layer, Recurrent):
            for n in range(trunk.lstm):
                for kind in _LSTM:
                    yield Same(f"{where}.{kind}_l{n}", f"{where}.lstm.{kind}_l{n}")


def convolution(trunk: Seanet, where: str) -> Iterator[Op]:
    """Its weights and bias, and those of its norm."""
    weights = NORMED if trunk.norm == "weights" else {"weight": "weight"}
    for ours, theirs in {**weights, "bias": "bias"}.items():
        yield Same(f"{where}.{ours}", f"{where}.conv.{theirs}")
    if trunk.norm == "time":
        for name in ("weight", "bias"):
            yield Same(f"{where}.norm.{name}", f"{where}.norm.{name}")


def books(ours: str, theirs: str, count: int, names: dict[str, str]) -> Iterator[Op]:
    """Codebooks, of which `names` says what files call their tensors."""
    for q in range(count):
        for own, name in names.items():
            yield Same(f"{ours}.layers.{q}.{own}", f"{theirs}.layers.{q}.codebook.{name}")
