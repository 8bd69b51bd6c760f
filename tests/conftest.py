"""Every test starts from the same random state, on one thread, and runs the same examples.

`make test-all` (`pytest --all`) also runs what is marked `slow`, all cases of what is marked
`every(3)` (of which `make test` takes each third), and tries more examples; a test that can do more
or less asks for `thorough`:

    def test_any_file_is_read_or_refused(thorough):
        for seed in range(10_000 if thorough else 300): ...
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator

# Some virtual machines announce matrix units (AMX) that they do not have: torch's bf16 products
# then end in an illegal instruction. Read by oneDNN at its first use; processes inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Tiny tensors: a second thread waits more than it works, also in the processes of tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# openai-whisper's loops run as they are written: to compile them takes longer.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")

import hypothesis
import numpy
import pytest
import torch

# What runs in the background of a shell ignores Ctrl-C, under nohup that its terminal has closed,
# and so would the processes that are tested.
if threading.current_thread() is threading.main_thread():
    for told, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        number = getattr(signal, told, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
torch.set_num_threads(1)
if os.environ.get("TRITON_INTERPRET") == "1":
    from tests import interpreted  # noqa: F401  (Triton's interpreter, made to run)
for name, examples in (("usual", 25), ("thorough", 250)):
    hypothesis.settings.register_profile(
        name, derandomize=True, deadline=None, max_examples=examples, database=None
    )
hypothesis.settings.load_profile("usual")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests too: make test-all")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all"):
        hypothesis.settings.load_profile("thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow, and most cases of what has `every`, unless all is asked for."""
    if config.getoption("--all"):
        return
    left_out = {id(item) for item in items if item.get_closest_marker("slow")}
    cases: dict[str, int] = {}
    for item in items:
        if mark := item.get_closest_marker("every"):
            name = item.nodeid.split("[")[0]
            number = cases[name] = cases.get(name, -1) + 1
            if number % mark.args[0]:
                left_out.add(id(item))
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not in torch and transformers, which stay."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """True in `make test-all`: try everything, however long it takes."""
    return bool(pytestconfig.getoption("--all"))


@pytest.fixture(autouse=True)
def _undrawn() -> Iterator[None]:
    """A short run without the picture of its loss, which takes a third of it; the runs that several
    tests of a file share have theirs."""
    metrics = sys.modules.get("allformer.train.metrics")
    if metrics is None:
        yield
        return
    draw, metrics.draw_loss = metrics.draw_loss, lambda rows, path: None
    yield
    metrics.draw_loss = draw


@pytest.fixture(autouse=True, scope="session")
def _figures_as_declared() -> Iterator[None]:
    """Whatever a test trains: what validation finds is what the objective has declared."""
    loop = sys.modules.get("allformer.train.loop")
    if loop is None:
        yield
        return

    def checked(objective, model, *examples, **options):  # type: ignore[no-untyped-def]
        found = validate(objective, model, *examples, **options)
        if type(objective).__module__.startswith("allformer."):
            declared = figures_of(objective, model)
            assert sorted(found) == sorted(declared), f"{objective.name} declares {declared}"
        return found

    validate, figures_of = loop.validate, loop.figures_of
    loop.validate = checked
    yield
    loop.validate = validate


@pytest.fixture(autouse=True)
def _same_random_state() -> None:
    random.seed(0)
    numpy.random.seed(0)
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # without a device `torch.manual_seed` notes its whole stack for one that may come
        torch.default_generator.manual_seed(0)
