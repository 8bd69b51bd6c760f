"""What `train.precision` means: the dtype of activations, loss scaling, products in float8.

    precision = find_precision("auto", device)
    scaler = precision.scaler(device)          # of fp16 only
    if precision.float8:
        use_float8(model)                      # train/float8.py

Weights stay as they are (fp32): each layer casts them to its input's dtype where it uses them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allformer.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Precision:
    """`dtype` is of the activations; None: that of the weights."""

    name: str
    dtype: torch.dtype | None
    scales: bool = False  # small gradients would be lost in fp16: the loss is multiplied first
    float8: bool = False  # the products of layers

    def scaler(self, device: torch.device) -> torch.amp.GradScaler | None:
        """What scales the loss, or None where nothing is to be scaled."""
        return torch.amp.GradScaler(device.type) if self.scales else None


TABLE = {
    each.name: each
    for each in (
        Precision("fp32", None),
        Precision("bf16", torch.bfloat16),
        Precision("fp16", torch.float16, scales=True),
        Precision("fp8", torch.bfloat16, float8=True),
    )
}
NAMES = ("auto", *TABLE)
FLOAT8_FROM = (8, 9)  # the compute capability of Ada; Hopper is 9.0


def find_precision(asked: str, device: torch.device) -> Precision:
    """`find_precision("auto", device)`: bf16 on a GPU that has it, else fp32."""
    if asked == "auto":
        half = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return TABLE["bf16" if half else "fp32"]
    if asked not in TABLE:
        hint = did_you_mean(asked, NAMES)
        raise ConfigError(
            f"train.precision={asked!r} is not a choice; {hint}try {', '.join(NAMES)}"
        )
    found = TABLE[asked]
    if found.float8:
        _need_float8(device)
    return found


def _need_float8(device: torch.device) -> None:
    here = f"a {device.type}"
    if device.type == "cuda" and torch.version.cuda is not None:
        capability = torch.cuda.get_device_capability(device)
        if capability >= FLOAT8_FROM:
            return
        here = (
            f"{torch.cuda.get_device_name(device)} of capability {'.'.join(map(str, capability))}"
        )
    raise ConfigError(
        f"train.precision=fp8 needs an NVIDIA GPU of capability 8.9 or more (Ada, Hopper), and "
        f"this is {here}; try bf16"
    )
