"""Distributed checkpoints: every rank writes its own pieces, and reads others on another plan.

step-00000500/: torch.distributed.checkpoint's .metadata and __*.distcp, and state.pt beside them

The tensors in it are the ordinary ones: `model/NAME` and `optimizer/NAME/SLOT`, whatever plan they
were trained with. A single process's model.safetensors and state.pt are read as well.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from allformer.checkpoint.weights import read_tensors
from allformer.disk import sync
from allformer.errors import CheckpointError, TrainingError
from allformer.train.kept import appearing, cannot_save, drop_old
from allformer.train.parallel.collectives import Group
from allformer.train.parallel.holding import Holding
from allformer.train.parallel.pieces import Held, Piece, held, local

WEIGHTS, STATE, METADATA = "model.safetensors", "state.pt", ".metadata"


def is_distributed(checkpoint: Path) -> bool:
    """Whether many ranks wrote it."""
    return (checkpoint / METADATA).is_file()


class Spread:
    """A rank's pieces of a tensor, as torch.distributed.checkpoint asks for them."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(piece.offsets)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=_chunk(piece),
                    properties=TensorProperties.create_from_tensor(piece.numbers),
                    size=torch.Size(self.held.shape),
                ),
            )
            for piece in self.held.pieces
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [_chunk(piece) for piece in self.held.pieces]

    def at(self, index: MetadataIndex) -> Tensor:
        """The piece that begins there."""
        return next(p.numbers for p in self.held.pieces if torch.Size(p.offsets) == index.offset)


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.offsets), piece.numbers.shape)


class _Saves(DefaultSavePlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].at(index)


class _Loads(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Any = None, is_coordinator: bool = False
    ) -> None:
        """As it is: torch's own would make copies of what is no tensor of its kinds."""
        self.original_state_dict = self.state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        found: Tensor = self.state_dict[index.fqn].at(index)
        return found


# --- what there is to keep ------------------------------------------------------------------------


def everything(holding: Holding, stepper: Any) -> dict[str, Held]:
    """This rank's pieces of weights, optimiser state and moving average, by name."""
    found = {f"model/{name}": x for name, x in holding.held().items()}
    for name, parameter in holding.parameters().items():
        for slot, value in stepper.optimizer.state.get(parameter, {}).items():
            same = tuple(value.shape) == tuple(parameter.shape)
            pieces = holding.like(name, value, parameter) if same else held(value)
            found[f"optimizer/{name}/{slot}"] = pieces
    return found | {f"ema/{name}": x for name, x in _averages(holding, stepper).items()}


def _averages(holding: Holding, stepper: Any) -> dict[str, Held]:
    """The moving average, if there is one, by the names of the whole model."""
    found = {} if stepper.ema is None else stepper.ema.average
    names = {name: holding.canonical[name] for name in found}
    parameters = holding.parameters()
    return {name: holding.like(name, found[own], parameters[name]) for own, name in names.items()}


class Keeper:
    """Writes checkpoints in a thread of its own, one at a time; `group` is for that thread alone.

    The numbers are copied to the host first (that is all that training waits for). A checkpoint
    counts when the last rank has written: then its folder gets its name.
    """

    def __init__(self, holding: Holding, ranks: Any, group: Group) -> None:
        self.holding, self.ranks, self.group = holding, ranks, group
        self.thread: threading.Thread | None = None
        self.failed: TrainingError | None = None

    def save(self, run: Path, state: dict[str, Any], stepper: Any, keep: int, every: int) -> None:
        """Begin to write a checkpoint; one that is still on its way is waited for."""
        self.settle()
        staged = {name: x.copy() for name, x in everything(self.holding, stepper).items()}
        state = {**state, **self.ranks.random()}
        args = (run, state, staged, keep, every)
        self.thread = threading.Thread(target=self._write, args=args, name="checkpoint")
        self.thread.start()

    def _write(
        self,
        run: Path,
        state: dict[str, Any],
        staged: Mapping[str, Held],
        keep: int,
        every: int,
    ) -> None:
        try:
            if not self.ranks.main:
                part = run / "checkpoints" / f"step-{state['step']:08}.part"
                dist.barrier(self.group)  # the folder is there
                self._write_pieces(part, staged)
                return
            with appearing(run, state["step"]) as part:
                dist.barrier(self.group)
                self._write_pieces(part, staged)
                _write_state(part, state)
            drop_old(run, keep, every)
        except TrainingError as error:
            self.failed = error
        except Exception as error:
            self.failed = cannot_save(run, state["step"], error)

    def _write_pieces(self, part: Path, staged: Mapping[str, Held]) -> None:
        dcp_save(
            {name: Spread(x) for name, x in staged.items()},
            storage_writer=FileSystemWriter(part),
            planner=_Saves(),
            process_group=self.group,
        )

    def settle(self) -> None:
        """Wait for the checkpoint that is on its way; what went wrong with it is raised here."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.failed is not None:
            error, self.failed = self.failed, None
            raise error


def _write_state(part: Path, state: dict[str, Any]) -> None:
    with (part / STATE).open("wb") as file:
        torch.save(state, file)
        sync(file)


# --- reading, on any plan -------------------------------------------------------------------------


def read_state(checkpoint: Path, device: torch.device) -> dict[str, Any]:
    """What stands beside the weights."""
    try:
        state: dict[str, Any] = torch.load(
            checkpoint / STATE, map_location=device, weights_only=True
        )
    except Exception as error:  # whatever pickle and zip say of such bytes
        raise CheckpointError(f"{STATE} cannot be read ({type(error).__name__})") from None
    return state


def read_pieces(checkpoint: Path, wanted: Mapping[str, Held]) -> None:
    """Fill the pieces from a distributed checkpoint; each rank reads what it needs, alone."""
    reader = FileSystemReader(checkpoint)
    spread = {name: Spread(x) for name, x in wanted.items()}
    try:
        with warnings.catch_warnings():  # that each rank reads for itself is meant
            warnings.simplefilter("ignore")
            dcp_load(spread, storage_reader=reader, planner=_Loads(), no_dist=True)
    except (RuntimeError, ValueError, CheckpointException) as error:
        raise CheckpointError(
            f"{checkpoint} holds other weights than this model's ({_last_line(error)}); resume "
            f"with the model that it was trained with"
        ) from None


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def read_weights(checkpoint: Path, holding: Holding) -> None:
    """This rank's part of the weights, from either kind of checkpoint."""
    if is_distributed(checkpoint):
        read_pieces(checkpoint, {f"model/{name}": x for name, x in holding.held().items()})
    else:
        holding.put(read_tensors(checkpoint / WEIGHTS), str(checkpoint / WEIGHTS))


@torch.no_grad()
def take_mean(checkpoints: Sequence[Path], holding: Holding) -> None:
    """The mean of several checkpoints' weights, summed in fp64, into this rank's parts."""
    sums: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        read_weights(checkpoint, holding)
        for name, tensor in holding.tensors().items():
            here = local(tensor.detach()).double()
            sums[name] = here + sums[name] if name in sums else here
    for name, tensor in holding.tensors().items():
        local(tensor.detach()).copy_(sums[name] / len(checkpoints))


def restore(
    checkpoint: Path, holding: Holding, stepper: Any, device: torch.device
) -> dict[str, Any]:
    """Weights into the model; returns the state, with the optimiser's own for this rank in it."""
    state, optimizer = read_state(checkpoint, device), stepper.optimizer
    read_weights(checkpoint, holding)
    if is_distributed(checkpoint):
        slots = _read_slots(checkpoint, holding)
    else:
        slots = _own_slots(state["optimizer"], holding, optimizer)
    mine = optimizer.state_dict()
    names = holding.order_of(optimizer)
    mine["state"] = {i: slots[name] for i, name in enumerate(names) if name in slots}
    state["optimizer"] = mine
    if stepper.ema is not None and state.get("ema") is not None:
        averages, kept = _averages(holding, stepper), state["ema"]
        if is_distributed(checkpoint):
            read_pieces(checkpoint, {f"ema/{name}": x for name, x in averages.items()})
        else:
            for name, pieces in averages.items():
                pieces.put(kept["average"][name])
        state["ema"] = {"updates": kept["updates"], "average": dict(stepper.ema.average)}
    return state


def _read_slots(checkpoint: Path, holding: Holding) -> dict[str, dict[str, Tensor]]:
    """The optimiser's state of this rank's parameters."""
    metadata: Any = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    parameters = holding.parameters()
    slots: dict[str, dict[str, Tensor]] = {}
    wanted: dict[str, Held] = {}
    for key, found in metadata.items():
        kind, _, rest = key.partition("/")
        name, _, slot = rest.rpartition("/")
        if kind != "optimizer" or name not in parameters:
            continue
        size, dtype = tuple(found.size), found.properties.dtype
        whole = size == holding.shape(name) and bool(size)
        value = _empty(parameters[name], size, dtype, whole)
        slots.setdefault(name, {})[slot] = value
        wanted[key] = holding.like(name, value, parameters[name]) if whole else held(value)
    read_pieces(checkpoint, wanted)
    return slots


def _own_slots(
    kept: dict[str, Any], holding: Holding, optimizer: Any
) -> dict[str, dict[str, Tensor]]:
    """The same from a single process's optimiser, whose parameters are numbered."""
    parameters = holding.parameters()
    slots: dict[str, dict[str, Tensor]] = {}
    for number, name in enumerate(holding.order or holding.order_of(optimizer)):
        if name not in parameters or number not in kept["state"]:
            continue
        slots[name] = {}
        for slot, value in kept["state"][number].items():
            same = tuple(value.shape) == holding.shape(name) and value.ndim > 0
            mine = _empty(parameters[name], tuple(value.shape), value.dtype, same)
            (holding.like(name, mine, parameters[name]) if same else held(mine)).put(value)
            slots[name][slot] = mine
    return slots


def _empty(parameter: Tensor, size: tuple[int, ...], dtype: torch.dtype, same: bool) -> Tensor:
    """Room for a slot: of the parameter's own form on this rank, or of its size."""
    if same:
        return torch.zeros_like(parameter.detach(), dtype=dtype)
    return torch.zeros(size, dtype=dtype, device=local(parameter).device)
