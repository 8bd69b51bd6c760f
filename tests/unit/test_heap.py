"""Memory that a step frees stays for the next one."""

from __future__ import annotations

import sys

import pytest
import torch

from allformer.core import heap

resource = pytest.importorskip("resource", reason="page faults are counted by Unix")
CPU = torch.device("cpu")


def faults(times: int = 8) -> int:
    """Of pages, while a tensor of 64 MB is made and freed so many times."""
    torch.ones(1 << 24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(heap._libc() is None, reason="glibc's allocator has these settings")
def test_large_tensors_take_the_pages_of_those_before_them_and_give_them_back_at_the_end() -> None:
    usual = faults()
    with heap.kept(CPU):
        inside = faults()
        with heap.kept(CPU):  # texts that a training asks about
            pass
        after = faults()
    assert usual > 1000  # huge pages: 2 MB each
    # Once in a while a heap in use finds a place elsewhere: of eight tensors, not of each.
    assert max(inside, after) < usual / 3
    assert faults() > usual / 2


def test_other_devices_and_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(heap, "_set", lambda *given: called.append(given))
    with heap.kept(torch.device("cuda")):
        pass
    monkeypatch.setattr(sys, "platform", "darwin")
    heap._libc.cache_clear()
    try:
        with heap.kept(CPU):
            pass
    finally:
        heap._libc.cache_clear()
    assert not called
