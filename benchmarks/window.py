"""A window of ±512 over long rows: FlexAttention against SDPA with a mask, forward and backward.

    python benchmarks/window.py --tokens 16384

One row, 16 heads of 64, bf16, through the same plan that the layers use. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from allformer import config
from allformer.core.kernels import KERNELS
from allformer.core.kernels.flex import Flex
from allformer.core.layout import Grid
from allformer.core.mixers.mixer import Scene
from allformer.core.mixers.window import Window


def milliseconds(mixer: Window, scene: Scene, repeats: int = 20) -> float:
    """The median of forward and backward, after three for warmth; the plan is made once."""
    width = scene.query.total
    shape = (1, width, mixer.heads * mixer.size)
    parts = {
        name: torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for name in "qkv"
    }
    plan = mixer.plan(scene)
    grad, times = torch.randn(shape, device="cuda", dtype=torch.bfloat16), []
    for repeat in range(-3, repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        mixer(parts, plan, None, None).backward(grad)
        end.record()
        torch.cuda.synchronize()
        if repeat >= 0:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--reach", type=int, default=512)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    attention = config.Attention(16, mixer=config.Window(args.reach, args.reach))
    mixer = Window(attention, 1024, "window").cuda()
    grid, device = Grid(1, args.tokens), torch.device("cuda")
    scene = Scene(grid, grid, device, torch.bfloat16)
    flex = milliseconds(mixer, scene)
    assert isinstance(mixer.plan(scene).kernel, Flex)
    others = tuple(kernel for kernel in KERNELS if not isinstance(kernel, Flex))
    import allformer.core.kernels as kernels

    kernels.KERNELS = others
    sdpa = milliseconds(mixer, scene)
    print(f"{torch.cuda.get_device_name()}, {args.tokens} tokens, ±{args.reach}")
    print(f"SDPA with a mask {sdpa:.2f} ms, FlexAttention {flex:.2f} ms, {sdpa / flex:.1f} ×")


if __name__ == "__main__":
    main()
