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
from allformer.auditor.mask_encoding import Encoding
from allformer.auditor.outputs import Out, read
from allformer.auditor.pictures import Picture

LABELS = ("labels", "label", "targets", "target", "y", "tgt_labels", "lm_labels")
MODELS = ("decoder", "encoder", "seq2seq")
ORDERED = ("decoder", "seq2seq")  # kinds that must not see the future


def everything(content: Tensor) -> Tensor:
    """B T: a mask that hides nothing."""
    return torch.ones(content.shape[:2], dtype=torch.bool)


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

    @property
    def sides(self) -> tuple[str, ...]:
        """ "x", and "source" if there is one."""
        return ("x",) if self.source is None else ("x", "source")

    def content(self, side: str) -> Tensor:
        """What is on a side, "x" or "source"."""
        content = self.x if side == "x" else self.source
        assert content is not None, "it has a source"
        return content

    def real(self, side: str) -> Tensor:
        """B T: which tokens of a side are real; all, where no mask says it."""
        keep = self.keep if side == "x" else self.source_keep
        return everything(self.content(side)) if keep is None else keep

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
class Side:
    """One of the two sequences: which arguments take it, what it is made of, and its padding."""

    names: list[str] = field(default_factory=list)
    ids: bool = True
    vocab: int = 0
    width: int = 0
    picture: Picture | None = None  # vectors are patches of an image
    keeps: bool = False  # a padding mask is taken for it
    counted: bool = False  # its padding can only be at the end

    def content(self, rows: int, length: int, call: Call, generator: torch.Generator) -> Tensor:
        """Random ids that are not special, or vectors."""
        if self.ids:
            allowed = torch.tensor(call.allowed(self.vocab or call.x.vocab))
            return allowed[torch.randint(len(allowed), (rows, length), generator=generator)]
        shape = rows, length, self.width or call.x.width
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(call.dtype)


@dataclass
class Call:
    """How to run one module; the fields are filled by `infer`."""

    kind: str
    style: str = ""
    x: Side = field(default_factory=Side)
    source: Side = field(default_factory=Side)
    slots: list[Slot] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    labels_name: str = ""
    labels_needed: bool = False
    positions_name: str = ""
    documents_name: str = ""
    length: int = 12
    longer: int = 2  # the source than x: lengths that differ tell the two apart
    time_first: bool = False
    scalar: bool = False  # one number for each position
    square: bool = False  # runs only with as many rows as positions
    lone_mask: str = ""  # a mask that fits one row, or as many rows as heads, and no other number
    pad: int | None = None  # an id that the module masks by itself, or that the user named
    pad_inside: bool = False
    special: frozenset[int] = frozenset()
    user: Callable[..., Any] | None = None
    user_arity: int = 0
    silence: bool = False  # dropout acts in eval: found, and switched off for the other checks
    seed: int = 0  # of what else draws in eval then
    draws: bool = False  # it does: each row gets other numbers
    as_log: bool = False  # the outputs are probabilities: found, their logarithms are compared
    dtype: torch.dtype = torch.float64
    notes: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)

    @property
    def has_source(self) -> bool:
        """Whether there is a second sequence."""
        return bool(self.source.names) or (self.user is not None and self.kind == "seq2seq")

    def side(self, name: str) -> Side:
        """ "x" or "source"."""
        return self.x if name == "x" else self.source

    def at_end(self, side: str) -> bool:
        """Whether it is told how many tokens of a side are real: padding can only follow them."""
        lengths = (s.encoding.shape == "lengths" for s in self.slots if s.side == side)
        return self.side(side).counted or any(lengths)

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
        """In which all runs take place: without dropout if it acts in eval, in one precision. What
        else draws there (masks, noise) draws the same each time then."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(default_dtype(self.dtype))
            if self.silence:
                stack.enter_context(NoDropout())
                stack.enter_context(torch.random.fork_rng())
                torch.manual_seed(self.seed)
            yield

    def arguments(self, batch: Batch, labels: Tensor | None = None) -> dict[str, Any]:
        """The keyword arguments for a batch."""
        flip = (lambda t: t.transpose(0, 1)) if self.time_first else (lambda t: t)
        out: dict[str, Any] = dict(self.constants)
        x = batch.x if self.x.picture is None else self.x.picture.of(batch.x)
        out |= {name: flip(x) for name in self.x.names}
        out |= {name: flip(batch.source) for name in self.source.names}
        for slot in self.slots:
            keep = batch.real(slot.side)
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
        given = [batch.x, batch.real("x")]
        if self.kind == "seq2seq":
            given = [batch.content("source"), batch.x, batch.real("source"), batch.real("x")]
        if self.user_arity == 1:
            return self.user(batch.x)
        return self.user(module, *given[: self.user_arity - 1])

    # --- inputs ---------------------------------------------------------------------------------

    def batch(self, rows: int, length: int = 0, seed: int = 0, source: int = 0) -> Batch:
        """Random inputs without special tokens."""
        generator = torch.Generator().manual_seed(seed)
        length = self.length if self.x.picture else length or self.length  # of images of one size
        x = self.x.content(rows, length, self, generator)
        if not self.has_source:
            return Batch(x)
        source = (source or length + 2) if self.longer > 0 else length + self.longer
        return Batch(x, source=self.source.content(rows, source, self, generator))

    def allowed(self, vocab: int) -> list[int]:
        """The ids that random content is made of."""
        return [i for i in range(min(vocab, 4096)) if i not in self.special]

    def other(self, x: Tensor, seed: int = 1) -> Tensor:
        """Content that differs from `x` at every place."""
        generator = torch.Generator().manual_seed(seed)
        if x.is_floating_point():
            return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
        allowed = self.allowed(min(self.x.vocab, self.source.vocab or self.x.vocab))
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
