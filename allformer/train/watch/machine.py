"""The machine under a run: what its chip can do at most, and how much memory was taken."""

from __future__ import annotations

import platform
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

from allformer.core.matmul import matmul


class Chip(NamedTuple):
    """TFLOP/s of dense matrix products, as the makers' data sheets say, without sparsity."""

    half: float  # bf16 and fp16, summed in fp32
    tf32: float
    single: float


# By words of the name that torch gives a device; the first that fits.
CHIPS = {
    "B200": Chip(2250.0, 1125.0, 75.0),
    "H200": Chip(989.4, 494.7, 66.9),
    "H100 PCIe": Chip(756.0, 378.0, 51.2),
    "H100 NVL": Chip(835.0, 417.5, 60.0),
    "H100": Chip(989.4, 494.7, 66.9),
    "A100": Chip(312.0, 156.0, 19.5),
    "A40": Chip(149.7, 74.8, 37.4),
    "A30": Chip(165.0, 82.0, 10.3),
    "A10": Chip(125.0, 62.5, 31.2),
    "L40S": Chip(362.0, 183.0, 91.6),
    "L40": Chip(181.0, 90.5, 90.5),
    "L4": Chip(121.0, 60.0, 30.3),
    "V100": Chip(125.0, 15.7, 15.7),  # fp16; it has no bf16 and no tf32
    "T4": Chip(65.0, 8.1, 8.1),
    "RTX 5090": Chip(209.5, 104.8, 104.8),
    "RTX 4090": Chip(165.2, 82.6, 82.6),
    "RTX 3090": Chip(71.0, 35.6, 35.6),
    "MI300X": Chip(1307.4, 653.7, 163.4),
    "MI250X": Chip(383.0, 95.7, 95.7),
}
SIDE = {"cpu": 512, "cuda": 4096}  # of the matrices by which a chip that is not listed is measured
GIB = 2**30


class Peak(NamedTuple):
    """Operations a second that cannot be passed, and where the figure is from."""

    flops: float
    source: str

    def __str__(self) -> str:
        return f"{self.flops / 1e12:.3g} TFLOP/s ({self.source})"


def find_peak(device: torch.device, dtype: torch.dtype | None = None) -> Peak:
    """`find_peak(device, torch.bfloat16)`: of the table, or measured where it is not there.

    A CPU is always measured, with the threads that torch has now: its data sheet knows neither them
    nor the other programs.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part, chip in CHIPS.items():
            if re.search(rf"\b{part}\b", name):
                return Peak(1e12 * _column(chip, dtype), f"{name}, data sheet")
    return measured_peak(device, dtype)


def _column(chip: Chip, dtype: torch.dtype | None) -> float:
    if dtype in (torch.bfloat16, torch.float16):
        return chip.half
    return chip.single if torch.get_float32_matmul_precision() == "highest" else chip.tf32


@torch.no_grad()
def measured_peak(device: torch.device, dtype: torch.dtype | None = None) -> Peak:
    """The best of a few products of square matrices: tens of milliseconds, no random numbers."""
    side = SIDE.get(device.type, 512)
    x = torch.ones(side, side, device=device, dtype=dtype or torch.float32)
    best = float("inf")
    for _ in range(6):  # the first ones warm up
        _wait(device)
        begin = time.perf_counter()
        matmul(x, x, None)  # as layers have it
        _wait(device)
        best = min(best, time.perf_counter() - begin)
    return Peak(2 * side**3 / best, "a matrix product, measured")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine_name(device: torch.device) -> str:
    """`NVIDIA H200`, or the processor with the threads that torch has of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        pass
    count = torch.get_num_threads()
    return f"{name}, {count} thread{'s' if count > 1 else ''}"


def memory_taken(device: torch.device) -> float | None:
    """The most GiB so far: torch's tensors on a GPU, else the whole process; None: unknown."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / GIB
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024) / GIB
