"""Checkpoints of a running training: everything needed to go on as if nothing had happened."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.weights import load_weights, save_weights
from allformer.core.model import EncoderDecoderModel
from allformer.errors import CheckpointError
from allformer.train.step import Stepper


def checkpoints(run: Path) -> list[Path]:
    """The run's checkpoints, oldest first."""
    return sorted((run / "checkpoints").glob("step-????????"))


def save_state(
    run: Path, step: int, stepper: Stepper, extra: dict[str, Any], *, keep: int, every: int
) -> Path:
    """Write a checkpoint (whole or not at all) and drop all but the last `keep`.

    An older one that an interrupt left between two multiples of `every` goes too: the mean of the
    last checkpoints is the same whether a run was interrupted or not.
    """
    final = run / "checkpoints" / f"step-{step:08}"
    part = final.with_name(final.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_weights(stepper.model, part / "model.safetensors")
    state = {
        "step": step,
        "optimizer": stepper.optimizer.state_dict(),
        "scaler": None if stepper.scaler is None else stepper.scaler.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state() if stepper.on_gpu else None,
        **extra,
    }
    torch.save(state, part / "state.pt")
    shutil.rmtree(final, ignore_errors=True)
    os.replace(part, final)
    saved = checkpoints(run)
    between = [old for old in saved[:-1] if int(old.name.removeprefix("step-")) % every]
    regular = [old for old in saved if old not in between]
    for old in between + regular[:-keep]:
        shutil.rmtree(old)
    return final


def load_state(run: Path, model: EncoderDecoderModel, stepper: Stepper) -> dict[str, Any]:
    """Restore the newest checkpoint; returns what was stored beside it."""
    found = checkpoints(run)
    if not found:
        raise CheckpointError(
            f"{run} has no checkpoint to resume from; start anew without --resume, "
            f"or give a folder with checkpoints/step-…"
        )
    newest = found[-1]
    load_weights(model, newest / "model.safetensors")
    try:
        state: dict[str, Any] = torch.load(
            newest / "state.pt", map_location=model.device, weights_only=True
        )
    except Exception as error:
        raise CheckpointError(
            f"{newest / 'state.pt'} cannot be read ({type(error).__name__}); remove {newest} to "
            f"resume from the checkpoint before it"
        ) from None
    stepper.load(state)
    torch.set_rng_state(state["rng"].cpu())
    if stepper.on_gpu and state["cuda_rng"] is not None:
        torch.cuda.set_rng_state(state["cuda_rng"].cpu())
    return state
