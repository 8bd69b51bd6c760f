"""Which mechanism for a long text: the fastest, the smallest, the nearest to full attention.

    found = compare(af.load("bert"), 4096)
    print(found.advice)
    found.rows["window"].seconds, .peak_bytes, .error

Each mechanism takes its slot in every layer of the stack that reads the text; the weights are the
model's own where they fit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.bench.advice import advice
from allformer.bench.fit import fit
from allformer.bench.measure import peak_bytes, seconds
from allformer.bench.mechanisms import Mechanism, read_mechanisms
from allformer.bench.row import Row
from allformer.config.remix import remix
from allformer.core.model import AnyModel
from allformer.errors import AllformerError, ConfigError


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: `rows` by mechanism, full attention first."""

    length: int
    device: str
    dtype: str
    train: bool
    trained: bool
    rows: dict[str, Row]

    @property
    def advice(self) -> str:
        """One line: which mechanism to take here, and why."""
        where = f"at {self.length:,} tokens on {self.device}"
        return f"{where}: {advice(self.rows, self.trained)}"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        rows = [asdict(row) for row in self.rows.values()]
        return {**asdict(self), "rows": rows, "advice": self.advice}


def compare(
    model: AnyModel,
    length: int,
    *,
    mechanisms: str | None = None,
    ids: Tensor | None = None,
    train: bool = False,
    trained: bool = True,
    budget: float = 1.0,
    say: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Time, memory and nearness of each mechanism in this model at `length` tokens.

        compare(model, 4096, mechanisms="window:256,linear", train=True)

    `ids` is the text, 1 × length, else random tokens. `train` measures forward and backward instead
    of forward alone. `trained=False` says that the weights are fresh, so that nearness means
    little. `budget` is how many seconds of calls are timed.
    """
    if length < 2:
        raise ConfigError(f"length={length} is no sequence; try 4096")
    chosen = read_mechanisms(mechanisms)
    first = next(model.parameters())
    if ids is None:
        ids = random_ids(model, length)
    rows: dict[str, Row] = {}
    wanted: Tensor | None = None
    for mechanism in (Mechanism("full", None), *(each for each in chosen if each.name != "full")):
        say(f"{mechanism}: {length:,} tokens on {first.device}")
        row, hidden = _row(mechanism, model, ids.to(first.device), train, budget, wanted)
        rows[str(mechanism)] = row
        wanted = hidden if mechanism.name == "full" else wanted
    kind = str(first.dtype).removeprefix("torch.")
    return Comparison(length, str(first.device), kind, train, trained, rows)


def random_ids(model: AnyModel, length: int, seed: int = 0) -> Tensor:
    """1 × length tokens, padding aside."""
    tokens = model.config.reader.tokens
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(tokens.vocab, (1, length), generator=generator)
    if tokens.pad_id is not None and tokens.vocab > 1:
        ids[ids == tokens.pad_id] = (tokens.pad_id + 1) % tokens.vocab
    return ids


def tree_for(tree: config.Model, mechanism: Mechanism, length: int) -> config.Model:
    """The model's tree with this mechanism where it reads, and positions for `length` tokens."""
    name, stack = next(iter(tree.stacks.items()))
    position = stack.position
    if isinstance(position, config.Learned) and position.length < length:
        stack = replace(stack, position=replace(position, length=length))
        changed: dict[str, Any] = {name: stack}
        tree = replace(tree, **changed)
    return remix(tree, mechanism.mixer(length, stack.causal), name)


def _row(
    mechanism: Mechanism,
    model: AnyModel,
    ids: Tensor,
    train: bool,
    budget: float,
    wanted: Tensor | None,
) -> tuple[Row, Tensor | None]:
    row = Row(str(mechanism))
    try:
        tree = tree_for(model.config, mechanism, ids.shape[1])
        stack = next(iter(tree.stacks.values()))
        row = replace(row, mixer=str(stack.blocks[0].attention.mixer))
        made, fresh = fit(model, tree)
        row = replace(row, fresh=len(fresh))
        return _measured(row, made, ids, train, budget, wanted)
    except AllformerError as error:
        return replace(row, refused=str(error)), None
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        return replace(row, refused="there is not enough memory for it"), None
    finally:
        gc.collect()
        if ids.is_cuda:
            torch.cuda.empty_cache()


def _measured(
    row: Row, model: AnyModel, ids: Tensor, train: bool, budget: float, wanted: Tensor | None
) -> tuple[Row, Tensor]:
    stack = next(iter(model.config.stacks))
    with torch.no_grad():
        hidden = model.states(input_ids=ids)[stack]

    def forward() -> Any:
        with torch.no_grad():
            return model.states(input_ids=ids)[stack]

    def both() -> Any:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward(model.states(input_ids=ids)[stack], torch.ones_like(hidden))

    call = both if train else forward
    if train:
        call()  # compiles the backward pass
    found = replace(
        row,
        seconds=seconds(call, ids.device, budget=budget),
        peak_bytes=peak_bytes(call, ids.device),
        error=0.0 if wanted is None else _error(hidden, wanted),
    )
    return found, hidden


def _error(hidden: Tensor, wanted: Tensor) -> float:
    a, b = hidden.double(), wanted.double()
    return float((a - b).norm() / b.norm())


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "memory" in str(error)
