"""Checkpoints of a running training: everything needed to go on as if nothing had happened.

Each is a folder that appears whole or not at all, with the SHA-256 of its files beside them: what a
disk has changed since is not trusted, and the checkpoint before it counts. A single process writes
model.safetensors and state.pt; many write torch's distributed checkpoints (`parallel/checkpoint`).
Either is read by either.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.weights import read_tensors
from allformer.disk import sync
from allformer.errors import CheckpointError
from allformer.train.kept import (
    CHECKSUMS,
    appearing,
    checkpoints,
    damage,
    drop_old,
    set_aside,
    step_of,
)
from allformer.train.parallel.checkpoint import STATE, WEIGHTS, is_distributed, read_state, restore
from allformer.train.step import Stepper
from allformer.train.tuned import put_trained, save_trained

__all__ = [
    "CHECKSUMS", "STATE", "WEIGHTS", "checkpoints", "damage", "load_state", "save_state",
    "set_aside", "step_of",
]  # fmt: skip


def save_state(
    run: Path, step: int, stepper: Stepper, extra: dict[str, Any], *, keep: int, every: int
) -> None:
    """Write a checkpoint (whole or not at all) and drop all but the last `keep`.

    What is there goes only after the new one is down on the disk.
    """
    if stepper.ranks.keeper is not None:
        state = _plain(step, stepper, extra)
        stepper.ranks.keeper.save(run, state, stepper, keep=keep, every=every)
        return
    with appearing(run, step) as part:
        _write(part, step, stepper, extra)
    drop_old(run, keep, every)


def _plain(step: int, stepper: Stepper, extra: dict[str, Any]) -> dict[str, Any]:
    """What is no tensor of the model's size."""
    scaler = None if stepper.scaler is None else stepper.scaler.state_dict()
    ema = None if stepper.ema is None else {"updates": stepper.ema.updates}
    return {"step": step, "scaler": scaler, "ema": ema, **extra}


def _write(part: Path, step: int, stepper: Stepper, extra: dict[str, Any]) -> None:
    save_trained(stepper.model, part / WEIGHTS)
    state = _plain(step, stepper, extra) | {
        "optimizer": stepper.optimizer.state_dict(),
        "ema": None if stepper.ema is None else stepper.ema.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state() if stepper.on_gpu else None,
    }
    with (part / STATE).open("wb") as file:
        torch.save(state, file)
        sync(file)


def load_state(
    run: Path, model: Any, stepper: Stepper, say: Callable[[str], None]
) -> dict[str, Any]:
    """Restore the newest good checkpoint; returns what was stored beside it.

    A damaged one is set aside under another name, and said so.
    """
    checkpoint = stepper.ranks.same(lambda: _newest_good(run, say))
    device = model.device
    if stepper.ranks.keeper is not None or is_distributed(checkpoint):
        state = restore(checkpoint, stepper.ranks.holding(model), stepper, device)
        stepper.load(state)
        stepper.ranks.restore_random(state)
    else:
        state = read_state(checkpoint, device)
        tensors = read_tensors(checkpoint / WEIGHTS)
        put_trained(model, tensors, str(checkpoint / WEIGHTS))  # another model is no damage
        stepper.load(state)
        torch.set_rng_state(state["rng"].cpu())
        if stepper.on_gpu and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu())
    say(f"going on from step {state['step']:,} ({checkpoint.name})")
    return state


def _newest_good(run: Path, say: Callable[[str], None]) -> Path:
    found = checkpoints(run)
    if not found:
        raise CheckpointError(
            f"{run} has no checkpoint to resume from; start anew without --resume, "
            f"or give a folder with checkpoints/step-…"
        )
    for checkpoint in reversed(found):
        try:
            _check(checkpoint)
        except CheckpointError as error:
            set_aside(checkpoint, str(error), say)
            continue
        return checkpoint
    raise CheckpointError(
        f"{run}: all {len(found)} checkpoints are damaged and set aside as checkpoints/*.damaged; "
        f"copy a good one back, or start anew with another --out"
    )


def _check(checkpoint: Path) -> None:
    """Raise what is wrong with a checkpoint, before anything is touched."""
    if found := damage(checkpoint):
        raise CheckpointError(found)
    read_state(checkpoint, torch.device("cpu"))
    if not is_distributed(checkpoint):
        read_tensors(checkpoint / WEIGHTS)
