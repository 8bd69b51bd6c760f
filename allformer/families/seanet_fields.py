"""What config.json says of the convolutions of sound codecs, which EnCodec and Mimi share."""

from __future__ import annotations

from typing import Any, Literal

from allformer.codecs.sound.config import Chunks
from allformer.codecs.sound.seanet_config import Seanet
from allformer.config import SoundCodec
from allformer.families.fields import Fields
from allformer.families.kinds import NUMBER, WHOLE, Kind

SIZES = Kind(
    "a list of sizes",
    lambda x: isinstance(x, list | tuple) and all(type(n) is int and n > 0 for n in x),
)
_PADDING = {name: name for name in ("reflect", "constant", "replicate")}
Norm = Literal["weights", "time"] | None


def read(fields: Fields, norm: Norm, lstm: int) -> Seanet:
    """The trunk; what norm it has and how many layers of an LSTM is the family's own."""
    return Seanet(
        channels=fields.take("audio_channels"),
        hidden=fields.take("num_filters"),
        ratios=tuple(fields.take("upsampling_ratios", kind=SIZES)),
        residuals=fields.take("num_residual_layers", kind=WHOLE),
        kernel=fields.take("kernel_size"),
        last_kernel=fields.take("last_kernel_size"),
        inner_kernel=fields.take("residual_kernel_size"),
        growth=fields.take("dilation_growth_rate"),
        narrow=fields.take("compress"),
        causal=fields.flag("use_causal_conv", True),
        trim=fields.take("trim_right_ratio", kind=NUMBER),
        padding=fields.choice("pad_mode", _PADDING),  # type: ignore[arg-type]
        norm=norm,
        lstm=lstm,
        shortcut=fields.flag("use_conv_shortcut", fields.usual["use_conv_shortcut"]),
    )


def prepares(tree: SoundCodec, chunks: Chunks | None = None) -> dict[str, Any]:
    """What preprocessor_config.json says of the sound that a codec reads."""
    return {
        "feature_extractor_type": "EncodecFeatureExtractor", "feature_size": tree.channels,
        "sampling_rate": tree.rate, "padding_side": "right", "padding_value": 0.0,
        "return_attention_mask": True, "chunk_length_s": None if chunks is None else chunks.seconds,
        "overlap": None if chunks is None else chunks.overlap,
    }  # fmt: skip


def write(trunk: Seanet) -> dict[str, Any]:
    """The inverse, but for norm and LSTM."""
    return {
        "audio_channels": trunk.channels, "num_filters": trunk.hidden,
        "upsampling_ratios": list(trunk.ratios), "num_residual_layers": trunk.residuals,
        "kernel_size": trunk.kernel, "last_kernel_size": trunk.last_kernel,
        "residual_kernel_size": trunk.inner_kernel, "dilation_growth_rate": trunk.growth,
        "compress": trunk.narrow, "use_causal_conv": trunk.causal, "trim_right_ratio": trunk.trim,
        "pad_mode": trunk.padding, "use_conv_shortcut": trunk.shortcut,
    }  # fmt: skip
