"""EnCodec's config.json and weights (Défossez et al., 2022): the codec itself stands in
`allformer.codecs.sound`, with its presets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from allformer.codecs.sound.config import Chunks, Encodec
from allformer.errors import CheckpointError
from allformer.families import seanet_fields, seanet_map
from allformer.families.family import Family, architectures, expect
from allformer.families.fields import Fields
from allformer.families.kinds import LAYERS, NUMBER, Kind
from allformer.families.weights import WeightMap

ARCHITECTURES = architectures("Encodec", "Model")
USUAL = {
    "sampling_rate": 24_000, "audio_channels": 1, "normalize": False, "hidden_size": 128,
    "num_filters": 32, "num_residual_layers": 1, "norm_type": "weight_norm", "kernel_size": 7,
    "last_kernel_size": 7, "residual_kernel_size": 3, "dilation_growth_rate": 2,
    "use_causal_conv": True, "pad_mode": "reflect", "compress": 2, "num_lstm_layers": 2,
    "trim_right_ratio": 1.0, "codebook_size": 1024, "use_conv_shortcut": True,
    "upsampling_ratios": [8, 5, 4, 2], "target_bandwidths": [1.5, 3.0, 6.0, 12.0, 24.0],
}  # fmt: skip
NORMS = {"weight_norm": "weights", "time_group_norm": "time"}
BOOK = {"vectors": "embed", "sums": "embed_avg", "counts": "cluster_size", "begun": "inited"}
RATES = Kind("a list of numbers", lambda x: isinstance(x, list) and all(map(NUMBER.holds, x)))


def read(fields: Fields, architecture: str, keys: Collection[str]) -> Encodec:
    """config.json → the tree."""
    dim = fields.take("hidden_size")
    fields.take("codebook_dim", dim)
    fields.must("codebook_dim", dim)
    norm: Literal["weights", "time"] = fields.choice("norm_type", NORMS)  # type: ignore[assignment]
    trunk = seanet_fields.read(fields, norm, fields.take("num_lstm_layers", kind=LAYERS))
    return Encodec(
        rate=fields.take("sampling_rate"),
        trunk=trunk,
        dim=dim,
        codes=fields.take("codebook_size"),
        bandwidths=tuple(fields.take("target_bandwidths", kind=RATES)),
        loudness=fields.flag("normalize", False),
        chunks=_chunks(fields),
    )


def _chunks(fields: Fields) -> Chunks | None:
    seconds = fields.take("chunk_length_s", None, kind=NUMBER)
    if seconds is None:
        fields.inert(NUMBER, "overlap")  # of nothing
        return None
    overlap = fields.take("overlap", None, kind=NUMBER)
    if overlap is None:
        raise CheckpointError(
            f"config.json has chunk_length_s={seconds} and no overlap, so that nothing says where "
            f'the next chunk begins; add "overlap": 0.01, or what the model was made with'
        )
    return Chunks(seconds, overlap)


def write(tree: Encodec) -> dict[str, Any]:
    """The tree → config.json."""
    norms = {ours: theirs for theirs, ours in NORMS.items()}
    expect(tree.trunk.norm in norms, "has convolutions without a norm")
    expect(tree.trunk.lstm > 0, "has no LSTM")
    chunks = tree.chunks
    return {
        **seanet_fields.write(tree.trunk),
        "norm_type": norms[str(tree.trunk.norm)], "num_lstm_layers": tree.trunk.lstm,
        "sampling_rate": tree.rate, "hidden_size": tree.dim, "codebook_dim": tree.dim,
        "codebook_size": tree.codes, "target_bandwidths": list(tree.bandwidths),
        "normalize": tree.loudness, "chunk_length_s": None if chunks is None else chunks.seconds,
        "overlap": None if chunks is None else chunks.overlap,
    }  # fmt: skip


def weights(tree: Encodec, architecture: str) -> WeightMap:
    """The map of an EnCodec file."""
    trunk, dim = tree.trunk, tree.dim
    return [
        *seanet_map.OLDER,
        *seanet_map.half(trunk, trunk.encoder(dim), "encoder"),
        *seanet_map.half(trunk, trunk.decoder(dim), "decoder"),
        *seanet_map.books("quantiser", "quantizer", tree.books, BOOK),
    ]


FAMILY = Family(
    "encodec", ARCHITECTURES, USUAL, {}, read, write, weights, tree=Encodec,
    prepares=lambda tree: seanet_fields.prepares(tree, tree.chunks),
)  # fmt: skip
