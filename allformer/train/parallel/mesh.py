"""Many processes as one: who they are, what each has, and what they tell each other.

ranks = Mesh({"data": 2, "tensor": 2, …}, device)
ranks.prepare(model, device, dtype)                # now it has this rank's part
stepper = Stepper(model, objective, settings, ranks)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from allformer.core.model import build
from allformer.core.precision import widen
from allformer.errors import AllformerError, ConfigError
from allformer.train.optim import Adafactor, Muon
from allformer.train.parallel.checkpoint import Keeper
from allformer.train.parallel.collectives import Group, sum_gradients
from allformer.train.parallel.context import cut_rows
from allformer.train.parallel.data import Copies
from allformer.train.parallel.holding import Holding
from allformer.train.parallel.pieces import local
from allformer.train.parallel.pipeline import Stages, cut_layers
from allformer.train.parallel.ranks import Backward, One, Ranks, stream_seed
from allformer.train.parallel.shard import Shards
from allformer.train.parallel.tensor import cut_tensors
from allformer.train.tuned import beside

T = TypeVar("T")
DIMS = ("pipeline", "data", "shard", "context", "tensor")  # neighbours talk most: tensor last


class Mesh(Ranks):
    """This process among the others: `Mesh({"data": 2, "tensor": 2, …}, device)`."""

    def __init__(self, sizes: dict[str, int], device: torch.device) -> None:
        self.sizes, self.device = sizes, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.main = self.rank == 0
        self.mesh = init_device_mesh(
            device.type, tuple(sizes[name] for name in DIMS), mesh_dim_names=DIMS
        )
        self.at = {name: self.mesh[name].get_local_rank() for name in DIMS}
        self.readers = self._group("data", "shard")  # read different batches
        self.losers = self._group("pipeline", "data", "shard", "context")  # have parts of a loss
        self.sharers = self._group("shard", "context")  # keep parts of the weights
        self.copies = self._group("data", "context")
        self.turn = self.at["data"] * sizes["shard"] + self.at["shard"], self._size("data", "shard")
        self.framed = sizes["pipeline"] > 1
        self.host = dist.new_group(backend="gloo")
        self.behind = dist.new_group(backend="gloo")  # for checkpoints in the background alone
        self._shared: list[tuple[str, Group]] = []
        self._runner: Any = None
        self._holding: Holding | None = None
        self._seed = 0

    def _size(self, *dims: str) -> int:
        return math.prod(self.sizes[name] for name in dims)

    def _group(self, *dims: str) -> Group:
        """The ranks that differ from this one in `dims` alone; None: there is no other."""
        if self._size(*dims) == 1:
            return None
        grid = torch.arange(self.world).view([self.sizes[name] for name in DIMS])
        order = [i for i, name in enumerate(DIMS) if name not in dims]
        order += [i for i, name in enumerate(DIMS) if name in dims]
        rows = grid.permute(order).reshape(-1, self._size(*dims)).tolist()
        groups = [(row, dist.new_group(row)) for row in rows]  # by all ranks, in one order
        return next(group for row, group in groups if self.rank in row)

    @property
    def told(self) -> str:  # type: ignore[override]
        """`, 4 processes (shard 2 × tensor 2)`"""
        parts = " × ".join(f"{name} {n}" for name, n in self.sizes.items() if n > 1)
        return f", {self.world} processes ({parts})"

    def _line(self, name: str) -> Group:
        """The ranks along one dimension of the mesh."""
        return self.mesh.get_group(name)

    # --- beginning --------------------------------------------------------------------------------

    def same(self, make: Callable[[], T]) -> T:
        found: list[Any] = [None, None]
        if self.main:
            try:
                found[0] = make()
            except AllformerError as error:  # for all: nobody shall wait in vain
                found[1] = error
        dist.broadcast_object_list(found, src=0, group=self.host)
        if found[1] is not None:
            raise found[1]
        made: T = found[0]
        return made

    def first(self, make: Callable[[], T]) -> T:
        if self.main:
            found = make()
        self.wait()
        if not self.main:
            found = make()
        return found

    def compiles(self, asked: bool | None, device: torch.device) -> bool:
        plain = self._size("data") == self.world
        if asked and not plain:
            raise ConfigError(
                "compile=True goes with parallel.data alone: what the other ranks send comes in "
                "the midst of the graph; leave compile out"
            )
        return plain and (device.type == "cuda" if asked is None else asked)

    def cradle(self, device: torch.device) -> torch.device:
        """A model that is cut may not fit the device whole."""
        return torch.device("cpu") if self._size("pipeline", "shard", "tensor") > 1 else device

    def check(self, recipe: Any) -> None:
        self._check_adapter(recipe.tune)
        cut = [name for name in ("pipeline", "shard", "tensor") if self.sizes[name] > 1]
        if not cut:
            return
        precision, optim, log = recipe.train.precision, recipe.optim, recipe.log
        if precision in ("fp16", "fp8"):
            raise ConfigError(
                f"train.precision={precision} needs a scale that all ranks agree on, and with "
                f"parallel.{cut[0]} each sees other numbers; use bf16"
            )
        parts = [name for name in cut if name != "pipeline"]
        if isinstance(optim, Muon) or (parts and isinstance(optim, Adafactor)):
            raise ConfigError(
                f"optim.name={optim.named} needs whole matrices of all layers, and "
                f"parallel.{(parts or cut)[0]} leaves a part of them on each rank; use adamw, or "
                f"parallel.data alone"
            )
        if log.statistics or log.spike:
            which = "statistics" if log.statistics else "spike"
            raise ConfigError(
                f"log.{which}={getattr(log, which)} looks at a whole model, and parallel.{cut[0]} "
                f"leaves a part of it on each rank; set it to 0, or use parallel.data alone"
            )

    def _check_adapter(self, asked: Any) -> None:
        parts = [name for name in DIMS if name != "data" and self.sizes[name] > 1]
        if parts and beside(asked):
            raise ConfigError(
                f"tune.is={asked.told} is trained by copies of the model, and parallel.{parts[0]}="
                f"{self.sizes[parts[0]]} leaves a part of it on each rank; use parallel.data "
                f"alone, a base in few bits (model.quantise), or tune: full"
            )

    def prepare(self, model: Any, device: torch.device, dtype: torch.dtype | None) -> None:
        self._holding = holding = Holding(model)
        if self.sizes["pipeline"] > 1:
            holding.number()
        if self.sizes["tensor"] > 1:
            holding.cuts = cut_tensors(
                model, self.at["tensor"], self.sizes["tensor"], self._line("tensor")
            )
        if self.sizes["pipeline"] > 1:
            stage, stages = self.at["pipeline"], self.sizes["pipeline"]
            mine = cut_layers(model, holding, stage, stages)
            self._runner = Stages(model.to(device), mine, stage, stages, self._line("pipeline"))
            self._shared = self._share_groups()
        elif self.sizes["shard"] > 1:  # which moves it layer by layer: the whole may not fit
            self._runner = Shards(model, self._shard_mesh(), dtype)
        elif self.copies is not None:
            self._runner = Copies(model.to(device), self.copies)
        else:
            model.to(device)
        self.keeper = Keeper(holding, self, self.behind)

    def _shard_mesh(self) -> Any:
        """Shards over rows' parts too: they have the same weights. Copies are their own axis."""
        if self.sizes["context"] > 1:
            flat = self.mesh["shard", "context"]._flatten("sharers")
            return self.mesh["data", "sharers"] if self.sizes["data"] > 1 else flat
        return self.mesh["data", "shard"] if self.sizes["data"] > 1 else self.mesh["shard"]

    def _share_groups(self) -> list[tuple[str, Group]]:
        """For each tensor that lies in several stages (a tied table), the group of those."""
        assert self._holding is not None
        shared = {n: tuple(s) for n, s in self._holding.stages.items() if len(s) > 1}
        grid = torch.arange(self.world).view([self.sizes[name] for name in DIMS])
        groups: dict[tuple[int, ...], Group] = {}
        for stages in dict.fromkeys(shared.values()):
            for row in grid[list(stages)].flatten(1).T.tolist():
                group = dist.new_group(row)
                if self.rank in row:
                    groups[stages] = group
        return [(n, groups[s]) for n, s in shared.items() if s in groups]

    # --- random numbers ---------------------------------------------------------------------------

    @property
    def stream(self) -> int:
        """Ranks of one tensor group draw alike; all others have numbers of their own."""
        number = 0
        for name in DIMS[:-1]:
            number = number * self.sizes[name] + self.at[name]
        return number

    def seed(self, seed: int) -> None:
        self._seed = seed
        if self.stream:
            torch.manual_seed(stream_seed(seed, self.stream))

    def random(self) -> dict[str, Any]:
        """Where the random numbers of all ranks stand, for a checkpoint."""
        on_gpu = self.device.type == "cuda"
        mine = (torch.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None)
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine, group=self.host)
        return {"plan": self.sizes, "random": found, "seed": self._seed}

    def restore_random(self, state: dict[str, Any]) -> None:
        """As they stood if the plan is the same; else begun anew, from the seed and the step."""
        if state.get("plan") == self.sizes:
            host, gpu = state["random"][self.rank]
            torch.set_rng_state(host.cpu())
            if gpu is not None and self.device.type == "cuda":
                torch.cuda.set_rng_state(gpu.cpu())
            return
        torch.manual_seed(stream_seed(self._seed, self.stream, state["step"]))

    # --- a step -----------------------------------------------------------------------------------

    def total(self, counts: Sequence[int]) -> tuple[int, ...]:
        if self.readers is None:
            return tuple(counts)
        all_of_them = torch.tensor(list(counts))  # on the host: nothing waits for the device
        dist.all_reduce(all_of_them, group=self.readers)
        return tuple(all_of_them.tolist())

    def any(self, flag: bool) -> bool:
        found = torch.tensor(int(flag))
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return bool(found)

    def work(
        self, one: One, backward: Backward, batches: Sequence[Any], terms: int = 1
    ) -> tuple[Tensor, Tensor]:
        shares = self.sizes["context"]

        def ours(batch: Any) -> tuple[Tensor, Tensor]:
            if shares == 1:
                return one(batch)
            with cut_rows(self._model, self._line("context")):
                mean, nll = one(batch)
            return mean / shares, nll / shares

        run = self._runner or self._plainly
        done = run(ours, backward, batches)
        if self.sizes["pipeline"] > 1:
            self._sum_stages()
        return self._results(done, terms)

    @property
    def _model(self) -> Any:
        assert self._holding is not None, "prepare comes first"
        return self._holding.model

    @staticmethod
    def _plainly(one: One, backward: Backward, batches: Sequence[Any]) -> list[Any]:
        done = []
        for batch in batches:
            mean, nll = one(batch)
            backward(mean)
            done.append((mean.detach(), nll.detach()))
        return done

    def _sum_stages(self) -> None:
        """Gradients of what several stages hold, then of the copies."""
        assert self._holding is not None
        parameters = self._holding.parameters()
        for name, group in self._shared:
            if name in parameters:
                parameter: Any = parameters[name]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad, group=group)
        if self.copies is not None:
            sum_gradients(list(parameters.values()), self.copies)

    def _results(self, done: list[Any], terms: int) -> tuple[Tensor, Tensor]:
        """Losses and NLLs, summed over micro-batches and ranks."""
        found = torch.zeros(1 + terms, dtype=torch.float64, device=self.device)
        for mean, nll in done:
            found[0] += mean.double().reshape(())
            found[1:] += nll.double().reshape(-1)
        if self.losers is not None:
            dist.all_reduce(found, group=self.losers)
        return found[0], found[1:]

    def norm(self, model: Any) -> Tensor:
        assert self._holding is not None
        kinds: tuple[list[Tensor], list[Tensor]] = [], []  # whole ones, and those cut by heads
        for name, parameter in self._holding.parameters().items():
            holders = self._holding.stages.get(name, [0])
            if parameter.grad is not None and holders[0] == self.at["pipeline"]:
                kinds[name in self._holding.cuts].append(widen(local(parameter.grad)))
        norms = [torch.nn.utils.get_total_norm(grads).to(self.device) for grads in kinds]
        wide = torch.promote_types(norms[0].dtype, norms[1].dtype)
        squares = torch.stack([norm.to(wide).square() for norm in norms])
        if self.sizes["shard"] > 1:
            dist.all_reduce(squares, group=self.sharers)
        if self.sizes["tensor"] > 1:
            dist.all_reduce(squares[1:], group=self._line("tensor"))
        total = squares.sum()
        if self.sizes["pipeline"] > 1:
            dist.all_reduce(total, group=self._line("pipeline"))
        return total.sqrt()

    # --- looking and keeping ----------------------------------------------------------------------

    @contextmanager
    def looking(self, model: Any) -> Iterator[Any]:
        if self.sizes["pipeline"] > 1:
            yield self.whole(model, everyone=True).to(self.device)
        elif isinstance(self._runner, Shards):
            with self._runner.looking(model):
                yield model
        else:
            yield model

    def holding(self, model: Any) -> Holding:
        assert self._holding is not None
        return self._holding

    @torch.no_grad()
    def whole(self, model: Any, everyone: bool = False) -> Any:
        """On the main rank's host, or on every rank's; what is not cut is the model itself."""
        if self._size("pipeline", "shard", "tensor") == 1:
            return model
        assert self._holding is not None
        holds = everyone or self.main
        full = build(model.config, device="cpu" if holds else "meta", seed=0)
        full.to(next(model.parameters()).dtype)
        mine = self._holding.held()
        for name, tensor in Holding(full).tensors().items():
            found = torch.zeros(tensor.shape, dtype=tensor.dtype, device=self.device)
            if name in mine and self._speaks_for(name):
                mine[name].into(found)
            dist.all_reduce(found) if everyone else dist.reduce(found, 0)
            if holds:
                tensor.detach().copy_(found)
        full.provenance = model.provenance
        return full.train(model.training) if holds else model

    def _speaks_for(self, name: str) -> bool:
        """Whether this rank is the first to hold its pieces of a tensor."""
        assert self._holding is not None
        first = self._holding.stages.get(name, [0])[0]
        parts = self.sizes["shard"] > 1
        return (
            self.at["data"] == 0
            and self.at["pipeline"] == first
            and (parts or self.at["context"] == 0)
            and (self.at["tensor"] == 0 or name in self._holding.cuts)
        )

    def put(self, model: Any, tensors: dict[str, Tensor], where: str) -> None:
        self.holding(model).put(tensors, where)

    def settle(self) -> None:
        if self.keeper is not None:
            self.keeper.settle()
        self.wait()

    def wait(self) -> None:
        dist.barrier(self.host)

    def close(self) -> None:
        dist.destroy_process_group()
