# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Watch the operators of one forward pass: which matmuls are attention, and what happens there.

    with Watch(model, inputs) as seen: model(ids)
    seen.sites[0].scale          # what Q·Kᵀ was multiplied by before the softmax

Nothing here reads names. A *site* is a matmul of two activations, whose result goes through a
softmax and then into a second matmul. Legend: N batch × heads, T queries, S keys, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

MOVES = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "permute",
        "transpose",
        "t",
        "expand",
        "clone",
        "contiguous",
        "unsqueeze",
        "squeeze",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "unbind",
        "chunk",
        "cat",
        "stack",
        "index_select",
        "repeat",
        "flip",
        "roll",
        "alias",
        "detach",
        "narrow",
        "as_strided",
        "unfold",
        "index",
        "gather",
        "movedim",
    ]
)
MATMULS = frozenset({"mm", "bmm", "addmm", "baddbmm"})


@dataclass
class Site:
    """One attention: what went into its two matmuls and its softmax."""

    number: int
    where: str
    op: int  # the number of the matmul Q·Kᵀ
    q: Tensor  # N T D
    k: Tensor  # N S D
    scores: Tensor  # N T S, the bare product
    q_tag: Tag
    k_tag: Tag
    scale: float = 1.0
    learned_scale: bool = False
    learned_bias: bool = False  # a trained term is added to the scores, as in T5
    softmax_in: Tensor | None = None
    softmax_dim: int = -1
    weights: Tensor | None = None  # N T S, as the second matmul gets them
    v: Tensor | None = None  # N S D
    v_tag: Tag | None = None
    mix_op: int = -1  # the number of the matmul weights·V
    out_op: int = -1  # the first linear map after it: W_O
    out_input: Tensor | None = None

    @property
    def masked_in(self) -> Tensor:
        """The softmax's input in the shape of the scores."""
        assert self.softmax_in is not None
        return self.softmax_in.reshape(self.scores.shape)


@dataclass
class Tag:
    """What is known of a tensor."""

    data: bool = False  # depends on the input
    trained: bool = False  # depends on a parameter
    linear: int = -1  # the linear map whose output this is, moved or changed element by element
    weight: str = ""  # the parameter of that map
    part: tuple[int, int] = (0, 0)  # which of its numbers
    columns: Tensor | None = None  # for each element, the column of that output it came from
    factor: float = 1.0  # what it was multiplied by since
    learned_factor: bool = False
    learned_bias: bool = False
    scores: Site | None = None
    probs: Site | None = None
    mixed: Site | None = None
    exponential: bool = False


@dataclass
class Table:
    """Something added to the activations that does not depend on them: a table of positions."""

    op: int
    value: Tensor
    trained: bool
    out_shape: tuple[int, ...]


class Inject(TorchDispatchMode):
    """Count the matmuls as `Watch` does, and change the outputs of some."""

    def __init__(self, inject: dict[int, Callable[[Tensor, Any], Tensor]]) -> None:
        super().__init__()
        self.inject, self.count = inject, 0

    def __enter__(self) -> Inject:
        self._kernel = sdpa_kernel(SDPBackend.MATH)
        self._kernel.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._kernel.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if _name(func) in MATMULS:
            number, self.count = self.count, self.count + 1
            if number in self.inject:
                out = self.inject[number](out, args)
        return out


@dataclass
class Watch(TorchDispatchMode):
    """See the module's text. `inject` changes the output of a matmul, by its number."""

    module: nn.Module | None
    inputs: Iterable[Tensor] = ()
    inject: dict[int, Callable[[Tensor, Any], Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self.sites: list[Site] = []
        self.tables: list[Table] = []
        self.angles: list[Tensor] = []  # what went into sin and cos
        self.norm_shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        self.outputs: dict[int, Tensor] = {}  # of the linear maps, by number
        self.paths: dict[int, str] = {}  # where each of them was called
        self.count = 0
        self._by_exp = torch.empty(0)  # what went into a softmax that is written out
        self._found: list[Site] = []
        self._tags: dict[int, Tag] = {}
        self._alive: list[Any] = []  # ids are unique only among the living
        self._path: list[str] = []
        self._handles: list[Any] = []
        self._data_storage: set[int] = set()
        self._names: dict[int, str] = {}
        for tensor in self.inputs:
            self._set(tensor, Tag(data=True))
        if self.module is not None:
            for name, parameter in self.module.named_parameters():
                if parameter.requires_grad:
                    self._names[_storage(parameter)] = name

    # --- switching on and off -------------------------------------------------------------------

    def __enter__(self) -> Watch:
        if self.module is not None:
            for name, child in self.module.named_modules():
                self._handles += [
                    child.register_forward_pre_hook(lambda *_, n=name: self._path.append(n)),
                    child.register_forward_hook(self._leave, always_call=True),
                ]
        self._fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        self._kernel = sdpa_kernel(SDPBackend.MATH)
        self._kernel.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._kernel.__exit__(*error)
        torch.backends.mha.set_fastpath_enabled(self._fast)
        for handle in self._handles:
            handle.remove()
        self.sites = [site for site in self._found if site.weights is not None]
        for number, site in enumerate(self.sites):
            site.number = number

    def _leave(self, *_: Any) -> None:
        if self._path:
            self._path.pop()

    # --- one operator ---------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, number = _name(func), self.count
        if name in MATMULS:
            self.count += 1
            if number in self.inject:
                out = self.inject[number](out, args)
        tensors = [a for a in _flat(args) if isinstance(a, Tensor)]
        if isinstance(out, Tensor):
            self._set(out, self._tag(func, name, number, args, kwargs or {}, tensors, out))
        elif isinstance(out, tuple | list):
            self._tag_many(func, name, args, tensors, out)
        return out

    def _tag(
        self, func: Any, name: str, number: int, args: Any, kwargs: Any, tensors: Any, out: Tensor
    ) -> Tag:
        tags = [self.tag(t) for t in tensors]
        plain = Tag(any(t.data for t in tags), any(t.trained for t in tags))
        if name in MATMULS:
            return self._matmul(name, number, args, kwargs, out, plain)
        if name in ("sin", "cos") and not plain.trained:
            self.angles.append(tensors[0])
        if name in ("_softmax", "_safe_softmax") and tags[0].scores is not None:
            return self._softmax(tensors[0], tags[0], args[1], plain)
        if not tags:
            return plain
        lead = self._lead(tags)
        if name in MOVES or name == "_to_copy":
            return replace(
                lead,
                data=plain.data,
                trained=plain.trained,
                columns=_moved(func, name, args, lead, tensors, tags, self),
            )
        if name in ("view_as_complex", "view_as_real"):
            columns = lead.columns
            if columns is not None:
                whole = name == "view_as_complex"
                columns = columns[..., 0] if whole else columns[..., None].expand(out.shape)
            return replace(lead, data=plain.data, trained=plain.trained, columns=columns)
        if not any(t.shape == out.shape for t in tensors) and not _broadcast(tensors, out):
            return plain
        new = replace(lead, data=plain.data, trained=plain.trained)
        if new.columns is not None and new.columns.shape != out.shape:
            new.columns = _expanded(new.columns, out.shape)
        if name in ("mul", "div"):
            self._scale(name, args, tags, tensors, new)
        if name == "exp" and new.scores is not None:
            new.exponential = True
        if name == "div" and tags[0].exponential and tags[0].scores is not None:
            return self._softmax(self._by_exp, tags[0], -1, plain)
        if name == "exp" and lead.scores is not None:
            self._by_exp = tensors[0]
        if name in ("add", "sub") and len(tags) == 2:
            self._added(number, tensors, tags, new, out)
        if name == "copy":
            new = replace(tags[-1], data=plain.data)
        return new

    def _tag_many(self, func: Any, name: str, args: Any, tensors: Any, out: Any) -> None:
        tags = [self.tag(t) for t in tensors]
        lead = self._lead(tags) if tags else Tag()
        data, trained = any(t.data for t in tags), any(t.trained for t in tags)
        if name == "native_layer_norm":
            where = self._path[-1] if self._path else ""
            self.norm_shapes.append((where, tuple(args[1]), tuple(tensors[0].shape)))
        labels: Any = None
        if name in MOVES and lead.columns is not None and not isinstance(args[0], list | tuple):
            labels = func(lead.columns, *args[1:])
        for i, piece in enumerate(out):
            if isinstance(piece, Tensor):
                columns = labels[i] if labels is not None else None
                if (
                    labels is None
                    and lead.columns is not None
                    and piece.shape == lead.columns.shape
                ):
                    columns = lead.columns
                keep = lead if name in MOVES or piece.shape == tensors[0].shape else Tag()
                self._set(piece, replace(keep, data=data, trained=trained, columns=columns))

    def _matmul(
        self, name: str, number: int, args: Any, kwargs: Any, out: Tensor, plain: Tag
    ) -> Tag:
        added = args[0] if name in ("addmm", "baddbmm") else None
        left, right = args[1:3] if added is not None else args[:2]
        lt, rt = self.tag(left), self.tag(right)
        if lt.probs is not None or rt.probs is not None:
            return self._mix(left, right, lt, rt, number, plain, out)
        if lt.data and rt.data:
            return self._scores(left, right, lt, rt, added, kwargs, number, plain, out)
        if lt.data != rt.data:  # a linear map: one side is a weight
            data_tag, weight = (lt, right) if lt.data else (rt, left)
            if data_tag.mixed is not None and data_tag.mixed.out_op < 0:
                data_tag.mixed.out_op = number
                rows = left if lt.data else right.transpose(-2, -1)
                data_tag.mixed.out_input = rows.reshape(-1, rows.shape[-1])
            self.outputs[number] = out
            self.paths[number] = self._path[-1] if self._path else ""
            axis = -1 if lt.data else -2
            shape = [1] * out.ndim
            shape[axis] = out.shape[axis]
            columns = torch.arange(out.shape[axis]).view(shape).expand(out.shape)
            name = self._names.get(_storage(weight), "")
            start = weight.storage_offset()
            part = (start, start + weight.numel())
            return replace(plain, linear=number, weight=name, part=part, columns=columns)
        return plain

    def _scores(
        self,
        left: Any,
        right: Any,
        lt: Tag,
        rt: Tag,
        added: Any,
        kwargs: Any,
        number: int,
        plain: Tag,
        out: Tensor,
    ) -> Tag:
        q, k = _three(left), _three(right).transpose(-2, -1)
        site = Site(-1, self._path[-1] if self._path else "", number, q, k, q @ k.mT, lt, rt)
        self._found.append(site)
        tag = replace(plain, scores=site, factor=lt.factor * rt.factor * kwargs.get("alpha", 1))
        tag.learned_factor = lt.learned_factor or rt.learned_factor
        if added is not None:
            tag.learned_bias = self.tag(added).trained and not self.tag(added).data
        return tag

    def _softmax(self, scores: Tensor, tag: Tag, dim: int, plain: Tag) -> Tag:
        site = tag.scores
        assert site is not None
        site.softmax_in, site.softmax_dim = scores, dim
        site.scale, site.learned_scale = tag.factor, tag.learned_factor
        site.learned_bias = tag.learned_bias
        return replace(plain, probs=site)

    def _mix(
        self, left: Any, right: Any, lt: Tag, rt: Tag, number: int, plain: Tag, out: Tensor
    ) -> Tag:
        first = lt.probs is not None
        site = lt.probs if first else rt.probs
        assert site is not None
        if site.weights is not None:
            return plain
        site.weights = _three(left) if first else _three(right).transpose(-2, -1)
        site.v, site.v_tag = (_three(right), rt) if first else (_three(left).transpose(-2, -1), lt)
        site.mix_op = number
        return replace(plain, mixed=site)

    def other_linears(self) -> list[int]:
        """Linear maps that are no part of an attention."""
        own = {s.out_op for s in self.sites}
        for s in self.sites:
            own |= {t.linear for t in (s.q_tag, s.k_tag, s.v_tag) if t is not None}
        return [n for n in self.outputs if n not in own]

    # --- small parts ----------------------------------------------------------------------------

    def tag(self, tensor: Tensor) -> Tag:
        """What is known of this tensor."""
        if not isinstance(tensor, Tensor):
            return Tag()
        found = self._tags.get(id(tensor))
        if found is None:
            storage = _storage(tensor)
            found = Tag(data=storage in self._data_storage, trained=storage in self._names)
            if found.trained:
                found.weight = self._names[storage]
        return found

    def _set(self, tensor: Tensor, tag: Tag) -> None:
        self._tags[id(tensor)] = tag
        self._alive.append(tensor)
        if tag.data:
            self._data_storage.add(_storage(tensor))

    @staticmethod
    def _lead(tags: list[Tag]) -> Tag:
        """The tag that a result inherits: that of attention scores first, then of a linear map."""
        for want in ("scores", "probs", "mixed"):
            for tag in tags:
                if getattr(tag, want) is not None:
                    return tag
        known = [tag for tag in tags if tag.data and tag.linear >= 0]
        if known and all(tag.linear == known[0].linear for tag in known):
            others = [tag for tag in tags if tag.data and tag.linear < 0]
            return Tag() if others and len(tags) == 2 and not known[0].trained else known[0]
        return Tag()

    def _scale(self, name: str, args: Any, tags: Any, tensors: Any, new: Tag) -> None:
        other = args[1]
        if isinstance(other, Tensor):
            if args[0].numel() == 1 and other.numel() > 1 and name == "mul":
                other = args[0]
            if other.numel() != 1:
                small = other.shape[-1] == 1 and (other.ndim < 2 or other.shape[-2] == 1)
                if small and self.tag(other).trained and not self.tag(other).data:
                    new.learned_factor = True
                return
            if self.tag(other).trained:
                new.learned_factor = True
                return
            other = float(other)
        if isinstance(other, int | float) and not isinstance(other, bool):
            value = float(other)
            if name == "div":
                value = 1 / value if value else float("inf")
            new.factor *= value

    def _added(self, number: int, tensors: Any, tags: Any, new: Tag, out: Tensor) -> None:
        one, other = tags
        if one.data == other.data:
            if one.scores is None and other.scores is None and one.linear != other.linear:
                new.linear, new.columns = -1, None  # a residual: no longer the output of one map
            if one.mixed is not other.mixed:
                new.mixed = None
            return
        constant = tensors[1] if one.data else tensors[0]
        tag = other if one.data else one
        if new.scores is not None:
            new.learned_bias |= tag.trained
        elif constant.ndim >= 2 and constant.numel() > constant.shape[-1] and out.ndim >= 3:
            self.tables.append(Table(number, constant, tag.trained, tuple(out.shape)))


def _name(func: Any) -> str:
    return str(func.__name__).split(".")[0].rstrip("_")


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _flat(args: Any) -> Iterable[Any]:
    for a in args:
        if isinstance(a, tuple | list):
            yield from a
        else:
            yield a


def _three(x: Tensor) -> Tensor:
    return x[None] if x.ndim == 2 else x


def _broadcast(tensors: list[Tensor], out: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(*(t.shape for t in tensors)) == out.shape
    except RuntimeError:
        return False


def _expanded(columns: Tensor, shape: torch.Size) -> Tensor | None:
    try:
        return columns.expand(shape)
    except RuntimeError:
        return None


def _moved(
    func: Any, name: str, args: Any, lead: Tag, tensors: Any, tags: Any, watch: Watch
) -> Tensor | None:
    """Where each element came from, after an operator that only moves elements."""
    if lead.columns is None:
        return None
    if name == "_to_copy":
        return lead.columns
    try:
        if name in ("cat", "stack"):
            parts = [watch.tag(t).columns for t in args[0]]
            if any(p is None for p in parts):
                return None
            return func(parts, *args[1:])
        if name in ("view", "_unsafe_view", "reshape"):
            return lead.columns.reshape(args[1])
        return func(lead.columns, *args[1:])
    except (RuntimeError, TypeError, IndexError):
        return None
