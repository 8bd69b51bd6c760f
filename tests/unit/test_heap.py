"""Memory that a step frees stays for the next one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from allformer.core import heap

CPU = torch.device("cpu")

# A process of its own: in a heap that others have cut up, large blocks find places in the middle.
COUNT = """
import resource, torch
from allformer.core import heap

def faults():  # of pages, while a tensor of 64 MB is made and freed eight times
    torch.ones(1 << 24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
cpu = torch.device("cpu")
print(faults())
with heap.kept(cpu):
    print(faults())
    with heap.kept(cpu):  # texts that a training asks about
        pass
    print(faults())
print(faults())
"""


@pytest.mark.skipif(heap._libc() is None, reason="glibc's allocator has these settings")
def test_large_tensors_take_the_pages_of_those_before_them_and_give_them_back_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    usual, inside, after, outside = map(int, done.stdout.split())
    assert usual > 200  # pages of 2 MB, at the least
    # One of eight may find its place anew, on either side of the end; never all, and never none.
    assert inside < usual / 4
    assert after < usual / 10
    assert outside > usual / 10


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
