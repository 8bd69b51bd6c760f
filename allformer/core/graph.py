"""One call captured as a CUDA graph: static inputs, a replay, static outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def on_side_stream(call: Callable[[], Any]) -> Any:
    """Run a call as capturing wants it warmed up: on another stream, which then waits for it."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def copy_into(mine: Sequence[Tensor | None], new: Sequence[Tensor | None]) -> None:
    """Put new numbers where a captured graph reads them."""
    for static, given in zip(mine, new, strict=True):
        if static is not None and given is not None:
            static.copy_(given, non_blocking=True)


def _settle() -> None:
    """After a capture that failed torch's generator takes itself for captured, and refuses to draw;
    one that succeeds ends that."""
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros(1, device="cuda")


class Captured:
    """`Captured(call)` records what `call()` does on the GPU; `replay()` does it again."""

    def __init__(self, call: Callable[[], Any], pool: Any = None) -> None:
        self.graph = torch.cuda.CUDAGraph()
        try:
            # Only this thread is forbidden to allocate: another one may pin the next batches.
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
                self.result = call()
        except RuntimeError:
            _settle()
            raise

    def replay(self) -> Any:
        """The results stand where they stood: copy what must outlast the next replay."""
        self.graph.replay()
        return self.result
