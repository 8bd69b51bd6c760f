"""Every test starts from the same random state, on one thread, and runs the same examples."""

import os
import random

# Some virtual machines announce matrix units (AMX) that they do not have: torch's bf16 products
# then end in an illegal instruction. Read by oneDNN at its first use; processes inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import hypothesis
import numpy
import pytest
import torch

hypothesis.settings.register_profile(
    "allformer", derandomize=True, deadline=None, max_examples=25, database=None
)
hypothesis.settings.load_profile("allformer")
torch.set_num_threads(1)  # tiny tensors: a second thread waits more than it works


@pytest.fixture(autouse=True)
def _same_random_state() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
