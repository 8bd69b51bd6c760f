"""How the processes of a run find each other, and what is said when one is lost.

with together(recipe.parallel, device, run) as ranks:        # `Ranks()` where nobody else is there
    …

Under torchrun the numbers of the recipe's section `parallel` are the sizes of one DeviceMesh.
"""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from allformer.errors import AllformerError, ConfigError, TrainingError
from allformer.train.parallel.mesh import DIMS, Mesh
from allformer.train.parallel.ranks import ALONE, Ranks
from allformer.train.sections.common import ParallelRecipe

PATIENCE = 10.0  # seconds in which torchrun ends a rank whose main one has failed


def launched() -> bool:
    """Whether torchrun (or another launcher with its variables) started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process is the first of those that were launched, or the only one."""
    return not launched() or os.environ["RANK"] == "0"


def resolve(asked: ParallelRecipe, world: int) -> dict[str, int]:
    """The sizes of the mesh, `data` filled up; what does not fit is refused."""
    sizes = {name: asdict(asked)[name] for name in DIMS}
    rest = math.prod(n for name, n in sizes.items() if name != "data")
    sizes["data"] = sizes["data"] or max(1, world // rest)
    said = " × ".join(f"{name} {n}" for name, n in sizes.items() if n > 1) or "1"
    if math.prod(sizes.values()) != world:
        raise ConfigError(
            f"parallel is {said} = {math.prod(sizes.values())} processes, but there "
            f"{'is' if world == 1 else 'are'} {world}; start it with torchrun --nproc-per-node "
            f"{math.prod(sizes.values())} -m allformer train …, or change the section parallel"
        )
    odd = [name for name in ("shard", "context") if sizes[name] > 1]
    if sizes["pipeline"] > 1 and odd:
        raise ConfigError(
            f"parallel.pipeline={sizes['pipeline']} goes with data and tensor, not with "
            f"{' and '.join(odd)}; set {odd[0]} to 1, or pipeline"
        )
    return sizes


def find_ranks(asked: ParallelRecipe, device: torch.device) -> Ranks:
    """The processes that train together, as the recipe says."""
    world = int(os.environ["WORLD_SIZE"]) if launched() else 1
    if dist.is_available() and dist.is_initialized():
        world = dist.get_world_size()
    sizes = resolve(asked, world)
    if world == 1:
        return ALONE
    if not dist.is_initialized():
        _meet("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    return Mesh(sizes, device)


def _meet(backend: str) -> None:
    """Find each other through torchrun's store.

    Of a job that was started again its agent may still have the old addresses (as torchrun does
    without --rdzv-backend): every start has names of its own.
    """
    store, rank, world = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"start-{attempt}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)


@contextmanager
def together(asked: ParallelRecipe, device: torch.device, run: Path) -> Iterator[Ranks]:
    """`find_ranks` for the time of a run; what a lost process leaves behind is told in a sentence.

    Other ranks than the main one are quiet: what is wrong with all of them the main one says, and
    torchrun ends the others meanwhile. Of a lost process two speak: one of them may be the lost.
    """
    ours = not (dist.is_available() and dist.is_initialized())
    ranks = find_ranks(asked, device)
    try:
        yield ranks
    except Exception as error:
        told = _lost(error, run) if ranks.world > 1 else None
        if told is not None:
            raise told if dist.get_rank() < 2 else SystemExit(1) from None
        if not ranks.main and getattr(error, "exit_status", 1) == 130:  # Ctrl-C: one says so
            raise SystemExit(130) from None
        if not ranks.main:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(PATIENCE)
        raise
    if ours and ranks.world > 1:
        ranks.close()


def _lost(error: Exception, run: Path) -> TrainingError | None:
    """An error of a collective, as what it means: a process that is no longer there."""
    if isinstance(error, AllformerError) or not isinstance(error, RuntimeError):
        return None
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if not isinstance(error, dist.DistError) and not re.search(r"gloo|nccl|[Cc]onnection", said):
        return None
    said = re.sub(r"^\[.*?\] *", "", said).split(". ")[0]
    return TrainingError(
        f"another process of this run has ended ({said}); its own last words say why. What was "
        f"saved is whole: start the same command again under torchrun, or go on with --resume {run}"
    )


def own_device(device: torch.device) -> torch.device:
    """The GPU of this process among those of its machine."""
    if device.type != "cuda" or not launched():
        return device
    number = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
