# mypy: disable-error-code="no-untyped-call,no-any-return"
"""How a module is called: found out from its type, its signature and its behaviour, and said.

    call = infer(model, "decoder", vocab=100)
    call(model, Batch(ids)).main          # B T F
    call.notes                            # what was inferred, in words

Names of arguments are read here, since they are the interface; no check reads names.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from allformer.auditor.budget import Budget
from allformer.auditor.encode import Encoding
from allformer.auditor.outputs import Out, read

LABELS = ("labels", "label", "targets", "target", "y", "tgt_labels", "lm_labels")
MODELS = ("decoder", "encoder", "seq2seq")
ORDERED = ("decoder", "seq2seq")  # kinds that must not see the future


@dataclass
class Batch:
    """One input: ids (B T) or vectors (B T D); `keep` is boolean, True at real tokens."""

    x: Tensor
    keep: Tensor | None = None
    source: Tensor | None = None
    source_keep: Tensor | None = None
    documents: Tensor | None = None

    @property
    def inputs(self) -> list[Tensor]:
        """x, and the source if there is one."""
        return [self.x] if self.source is None else [self.x, self.source]

    def content(self, side: str) -> Tensor | None:
        """What is on a side, "x" or "source"."""
        return self.x if side == "x" else self.source

    def hiding(self, side: str, keep: Tensor) -> Batch:
        """The same with a mask on a side."""
        return replace(self, **{"keep" if side == "x" else "source_keep": keep})


@dataclass
class Slot:
    """A mask argument: which side it is for, and how it is written."""

    name: str
    side: str  # "x" or "source"
    encoding: Encoding
    causal: bool = False

    @property
    def boolean(self) -> bool:
        """Whether a boolean mask belongs here, by its name: it says what is padding."""
        return "pad" in self.name and not self.causal


@dataclass
class Call:
    """How to run one module; the fields are filled by `infer`."""

    kind: str
    style: str = ""
    x_names: list[str] = field(default_factory=list)
    source_names: list[str] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    labels_name: str = ""
    labels_needed: bool = False
    positions_name: str = ""
    documents_name: str = ""
    ids: bool = True
    source_ids: bool = True
    vocab: int = 0
    source_vocab: int = 0
    width: int = 0
    source_width: int = 0
    length: int = 12
    time_first: bool = False
    same_length: bool = False  # the source must be as long as x
    scalar: bool = False  # one number for each position
    square: bool = False  # runs only with as many rows as positions
    longer: int = 2  # the source than x: lengths that differ tell the two apart
    keeps: bool = False  # takes a padding mask for x
    keeps_source: bool = False
    lone_mask: str = ""  # a mask that fits one row, or as many rows as heads, and no other number
    counted: frozenset[str] = frozenset()  # sides whose padding can only be at the end
    pad: int | None = None  # an id that the module masks by itself, or that the user named
    pad_inside: bool = False
    special: frozenset[int] = frozenset()
    user: Callable[..., Any] | None = None
    user_arity: int = 0
    silence: bool = False  # dropout acts in eval: found, and switched off for the other checks
    as_log: bool = False  # the outputs are probabilities: found, their logarithms are compared
    dtype: torch.dtype = torch.float64
    notes: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)

    @property
    def has_source(self) -> bool:
        """Whether there is a second sequence."""
        return bool(self.source_names) or (self.user is not None and self.kind == "seq2seq")

    def masks(self, side: str) -> bool:
        """Whether it takes a padding mask for a side."""
        return self.keeps if side == "x" else self.keeps_source

    def at_end(self, side: str) -> bool:
        """Whether it is told how many tokens of a side are real: padding can only follow them."""
        return side in self.counted or any(
            s.encoding.shape == "lengths" and s.side == side for s in self.slots
        )

    def hole(self, side: str, length: int) -> slice:
        """Two places for padding: in the middle, or at the end where it can only be there."""
        start = length - 2 if self.at_end(side) else length // 2 - 1
        return slice(start, start + 2)

    def __call__(self, module: Any, batch: Batch, labels: Tensor | None = None, **more: Any) -> Out:
        """Run `module` on a batch."""
        self.budget.spend()
        with self.manner():
            if self.user is not None:
                raw = self._by_user(module, batch)
            else:
                raw = module(**self.arguments(batch, labels), **more)
        rows, length = batch.x.shape[:2]
        out = read(raw, rows, length, self.time_first, self.scalar)
        if self.as_log:
            out.main = out.main.clamp(min=1e-300).log()
        return out

    @contextlib.contextmanager
    def manner(self) -> Iterator[None]:
        """In which all runs take place: without dropout if it acts in eval, in one precision."""
        with NoDropout() if self.silence else contextlib.nullcontext(), default_dtype(self.dtype):
            yield

    def arguments(self, batch: Batch, labels: Tensor | None = None) -> dict[str, Any]:
        """The keyword arguments for a batch."""
        flip = (lambda t: t.transpose(0, 1)) if self.time_first else (lambda t: t)
        out: dict[str, Any] = dict(self.constants)
        for name in self.x_names:
            out[name] = flip(batch.x)
        for name in self.source_names:
            out[name] = flip(batch.source)
        for slot in self.slots:
            content = batch.content(slot.side)
            keep = batch.keep if slot.side == "x" else batch.source_keep
            assert content is not None
            if keep is None:
                keep = torch.ones(content.shape[:2], dtype=torch.bool)
            out[slot.name] = slot.encoding(keep, batch.x.shape[1], slot.causal, self.dtype)
        if self.positions_name and batch.keep is not None:
            out[self.positions_name] = (batch.keep.long().cumsum(-1) - 1).clamp(min=0)
        if self.documents_name and batch.documents is not None:
            out[self.documents_name] = batch.documents
        if self.labels_name and (labels is not None or self.labels_needed):
            out[self.labels_name] = flip(batch.x.clone() if labels is None else labels)
        return out

    def _by_user(self, module: Any, batch: Batch) -> Any:
        assert self.user is not None
        ones = torch.ones(batch.x.shape[:2], dtype=torch.bool) if batch.keep is None else batch.keep
        if self.kind == "seq2seq":
            source = batch.source
            assert source is not None
            seen = batch.source_keep
            if seen is None:
                seen = torch.ones(source.shape[:2], dtype=torch.bool)
            given = [source, batch.x, seen, ones]
        else:
            given = [batch.x, ones]
        if self.user_arity == 1:
            return self.user(batch.x)
        return self.user(module, *given[: self.user_arity - 1])

    # --- inputs ---------------------------------------------------------------------------------

    def batch(self, rows: int, length: int = 0, seed: int = 0, source: int = 0) -> Batch:
        """Random inputs without special tokens."""
        generator = torch.Generator().manual_seed(seed)
        length = length or self.length
        x = self._content(rows, length, self.ids, self.vocab, self.width, generator)
        if not self.has_source:
            return Batch(x)
        source = (source or length + 2) if self.longer > 0 else length + self.longer
        return Batch(
            x,
            source=self._content(
                rows,
                source,
                self.source_ids,
                self.source_vocab or self.vocab,
                self.source_width or self.width,
                generator,
            ),
        )

    def _content(
        self, rows: int, length: int, ids: bool, vocab: int, width: int, generator: torch.Generator
    ) -> Tensor:
        if ids:
            allowed = torch.tensor([i for i in range(min(vocab, 4096)) if i not in self.special])
            return allowed[torch.randint(len(allowed), (rows, length), generator=generator)]
        return torch.randn(rows, length, width, generator=generator, dtype=torch.float64).to(
            self.dtype
        )

    def other(self, x: Tensor, seed: int = 1) -> Tensor:
        """Content that differs from `x` at every place."""
        generator = torch.Generator().manual_seed(seed)
        if x.is_floating_point():
            return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
        vocab = min(self.vocab, self.source_vocab or self.vocab, 4096)
        allowed = [i for i in range(vocab) if i not in self.special]
        place = {value: i for i, value in enumerate(allowed)}
        step = torch.randint(1, max(2, len(allowed)), x.shape, generator=generator)
        index = torch.tensor([place.get(int(i), 0) for i in x.flatten()]).view(x.shape)
        return torch.tensor(allowed)[(index + step) % len(allowed)]


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """A module in fp64 makes its masks and tables in fp64 too: finfo(fp64).min × an fp32 0 is NaN."""  # noqa: E501
    before = torch.get_default_dtype()
    if dtype == torch.float64:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        if dtype == torch.float64:
            torch.set_default_dtype(before)


class NoDropout(TorchFunctionMode):
    """Functional dropout does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (nn.functional.dropout, torch.dropout):
            return args[0] if args else kwargs["input"]
        if func is nn.functional.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            kwargs.pop("dropout_p", None)
        if func is nn.functional.multi_head_attention_forward:
            kwargs["training"] = False
        return func(*args, **kwargs)


def parameters(module: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a module's forward, without self."""
    target = module.forward if isinstance(module, nn.Module) else module
    try:
        return dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return {}
