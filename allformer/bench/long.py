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
from functools import partial
from typing import Any

import torch
from torch import Tensor

from allformer import config
from allformer.bench.advice import advice
from allformer.bench.fit import fit
from allformer.bench.measure import in_turn, peak_bytes
from allformer.bench.mechanisms import Mechanism, read_mechanisms
from allformer.bench.reading import learn, read
from allformer.bench.row import Row
from allformer.config.longer import seen_by_all
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

    @property
    def best(self) -> dict[str, str]:
        """The fastest, the smallest, and the nearest to full attention, which is not asked."""
        rows = [row for row in self.rows.values() if row.measured]
        others = [row for row in rows if row.error is not None and row.mechanism != "full"]
        found: dict[str, str] = {}
        if rows:
            found["fastest"] = min(rows, key=lambda row: row.seconds or 0.0).mechanism
            found["smallest"] = min(rows, key=lambda row: row.peak_bytes or 0).mechanism
        if others:
            found["nearest"] = min(others, key=lambda row: row.error or 0.0).mechanism
        return found

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        rows = [asdict(row) for row in self.rows.values()]
        return {**asdict(self), "rows": rows, "best": self.best, "advice": self.advice}


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
    little. `budget` is how many seconds of calls of each are timed, at least one.
    """
    if length < 2:
        raise ConfigError(f"length={length} is no sequence; try 4096")
    chosen = [each for each in read_mechanisms(mechanisms) if each.name != "full"]
    first = next(model.parameters())
    ids = (random_ids(model, length) if ids is None else ids).to(first.device)
    rows: dict[str, Row] = {}
    calls: dict[str, Callable[[], Any]] = {}
    wanted: Tensor | None = None
    for mechanism in (Mechanism("full"), *chosen):
        name = str(mechanism)
        say(f"{name}: {length:,} tokens on {first.device}")
        rows[name], hidden, call = _tried(mechanism, model, ids, train)
        if hidden is None or call is None:
            continue
        calls[name] = call
        wanted = hidden if wanted is None and name == "full" else wanted
        if wanted is not None:
            rows[name] = replace(rows[name], error=_error(hidden, wanted))
    _measure(rows, calls, first.device, budget)
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


def _tried(
    mechanism: Mechanism, model: AnyModel, ids: Tensor, train: bool
) -> tuple[Row, Tensor | None, Callable[[], Any] | None]:
    """What can be said before it is measured, its hidden states, and the call that is timed."""
    row = Row(str(mechanism))
    try:
        tree = mechanism.tree(model.config, ids.shape[1])
        mixer = tree.reader.blocks[0].attention.mixer
        made, fresh = fit(model, tree)
        inputs, segment = _inputs(mixer, ids), mechanism.segment
        row = replace(row, mixer=str(mixer), fresh=len(fresh))
        row = replace(row, whole=(seen_by_all(tree) or 0) >= ids.shape[1])
        hidden = read(made, inputs, segment)
        call = partial(learn if train else read, made, inputs, segment)
        if train:
            call()  # compiles the backward pass
        return row, hidden, call
    except AllformerError as error:
        return replace(row, refused=str(error)), None, None
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        return replace(row, refused="there is not enough memory for it"), None, None
    finally:
        model.zero_grad(set_to_none=True)
        _tidy(ids.device)


def _measure(
    rows: dict[str, Row],
    calls: dict[str, Callable[[], Any]],
    device: torch.device,
    budget: float,
) -> None:
    """Times in turn, then each one's peak."""
    for name, took in in_turn(calls, device, budget=budget).items():
        rows[name] = replace(rows[name], seconds=took)
    for name, call in calls.items():
        _tidy(device)
        rows[name] = replace(rows[name], peak_bytes=peak_bytes(call, device))


def _tidy(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _inputs(mixer: config.Mixer, ids: Tensor) -> dict[str, Tensor]:
    """The text; where some tokens are global, the first one is, as for classification."""
    inputs = {"input_ids": ids}
    if isinstance(mixer, config.GlobalWindow):
        inputs["global_attention_mask"] = torch.zeros_like(ids)
        inputs["global_attention_mask"][:, 0] = 1
    return inputs


def _error(hidden: Tensor, wanted: Tensor) -> float:
    a, b = hidden.double(), wanted.double()
    return float((a - b).norm() / b.norm())


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "memory" in str(error)
