# mypy: disable-error-code="no-untyped-call"
"""`Watch`: see the package's text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from allformer.auditor.watch import arithmetic, attention, columns
from allformer.auditor.watch.inject import Changes, Inject
from allformer.auditor.watch.moments import Moments
from allformer.auditor.watch.operators import MATMULS, MOVES, Operator
from allformer.auditor.watch.records import Site, Table, Tag
from allformer.auditor.watch.tags import Tags, lead


class Watch(Inject):
    """`with Watch(model, [ids]) as seen: model(ids)`; `inject` changes outputs of matmuls."""

    def __init__(
        self, module: nn.Module | None, inputs: Iterable[Tensor] = (), inject: Changes | None = None
    ) -> None:
        super().__init__(inject or {})
        self.module = module
        self.tags = Tags(module, inputs)
        self.sites: list[Site] = []
        self.tables: list[Table] = []
        self.norm_shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        self.moments = Moments()
        self.outputs: dict[int, Tensor] = {}  # of the linear maps, by number
        self.paths: dict[int, str] = {}  # where each of them was called
        self._by_exp = torch.empty(0)  # what went into a softmax that is written out
        self._found: list[Site] = []
        self._path: list[str] = []
        self._handles: list[Any] = []

    def __enter__(self) -> Watch:
        if self.module is not None:
            for name, child in self.module.named_modules():
                self._handles += [
                    child.register_forward_pre_hook(lambda *_, n=name: self._path.append(n)),
                    child.register_forward_hook(self._leave, always_call=True),
                ]
        self._fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.backends.mha.set_fastpath_enabled(self._fast)
        for handle in self._handles:
            handle.remove()
        self.sites = [site for site in self._found if site.mix_op >= 0]
        for number, site in enumerate(self.sites):
            site.number = number

    def _leave(self, *_: Any) -> None:
        if self._path:
            self._path.pop()

    @property
    def _where(self) -> str:
        return self._path[-1] if self._path else ""

    def other_linears(self) -> list[int]:
        """Linear maps that are no part of an attention."""
        own = {s.out_op for s in self.sites}
        for s in self.sites:
            own |= {t.linear for t in (s.q_tag, s.k_tag, s.v_tag) if t is not None} | s.term_ops
        return [n for n in self.outputs if n not in own]

    # --- one operator ---------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op = self.run(func, args, kwargs or {})
        self.moments.look(op, self._where)
        if isinstance(op.out, Tensor):
            self.tags.put(op.out, self._tag(op))
        elif isinstance(op.out, tuple | list):
            self._tag_many(op)
        return op.out

    def _tag(self, op: Operator) -> Tag:
        tags = [self.tags.of(t) for t in op.tensors]
        plain = Tag(any(t.data for t in tags), any(t.trained for t in tags))
        if op.name in MATMULS:
            return self._matmul(op, plain)
        if op.name in ("_softmax", "_safe_softmax") and tags[0].scores is not None:
            return attention.softmax(op.tensors[0], tags[0], op.args[1], plain)
        if not tags:
            return plain
        if len(tags) == 1 and tags[0].weight and not plain.data and op.name in MOVES:
            weight, part = self.tags.moved(op.tensors[0], op.out)
            return replace(plain, weight=weight, part=part)
        if op.name == "cat":
            attention.beside(tags)
        new = replace(lead(tags), data=plain.data, trained=plain.trained)
        if op.name in MOVES or op.name in ("mul", "div"):
            arithmetic.keep_factor(tags, new)
        if op.name in MOVES or op.name == "_to_copy":
            new.columns = columns.moved(new.columns, op, self.tags)
        elif op.name in ("view_as_complex", "view_as_real"):
            new.columns = columns.paired(new.columns, op)
        elif not op.elementwise:
            return plain
        elif op.name == "copy":
            return replace(tags[-1], data=plain.data)
        elif op.name == "div" and tags[0].exponential and tags[0].scores is not None:
            return attention.softmax(self._by_exp, tags[0], -1, plain)
        else:
            new.columns = columns.expanded(new.columns, op.out.shape)
            self._arithmetic(op, tags, new)
        return new

    def _arithmetic(self, op: Operator, tags: list[Tag], new: Tag) -> None:
        if op.name in ("mul", "div"):
            arithmetic.scale(op, self.tags, new)
        elif op.name == "exp" and new.scores is not None:
            new.exponential, self._by_exp = True, op.tensors[0]
        elif op.name in ("add", "sub") and len(tags) == 2:
            table = arithmetic.add(op, tags[0], tags[1], new)
            if table is not None:
                self.tables.append(table)

    def _matmul(self, op: Operator, plain: Tag) -> Tag:
        left, right = (self.tags.of(t) for t in op.factors)
        if left.probs is not None or right.probs is not None:
            return attention.mix(op, self.tags, plain)
        if left.data and right.data:
            tag = attention.scores(op, self.tags, plain, self._where)
            assert tag.scores is not None
            self._found.append(tag.scores)
            return tag
        if left.data or right.data:
            return self._linear(op, left if left.data else right, left.data, plain)
        return plain

    def _linear(self, op: Operator, given: Tag, data_first: bool, plain: Tag) -> Tag:
        """A linear map: one side is a weight."""
        left, right = op.factors
        rows, weight = (left, right) if data_first else (right.mT, left)
        if given.mixed is not None and given.mixed.out_op < 0:
            given.mixed.out_op, given.mixed.mix_op = op.number, given.mix_op
            given.mixed.out_input = rows.reshape(-1, rows.shape[-1])
        self.outputs[op.number], self.paths[op.number] = op.out, self._where
        known = self.tags.of(weight)
        return replace(
            plain,
            linear=op.number,
            term_ops=frozenset([op.number]),
            weight=known.weight,
            part=known.part,
            columns=columns.fresh(op.out, -1 if data_first else -2),
        )

    def _tag_many(self, op: Operator) -> None:
        """Operators with several outputs: norms, and those that cut a tensor into pieces."""
        tags = [self.tags.of(t) for t in op.tensors]
        first = lead(tags) if tags else Tag()
        data, trained = any(t.data for t in tags), any(t.trained for t in tags)
        if op.name == "native_layer_norm":
            shapes = tuple(op.args[1]), tuple(op.tensors[0].shape)
            self.norm_shapes.append((self._where, *shapes))
        labels: Any = None
        if op.name in MOVES and first.columns is not None and isinstance(op.args[0], Tensor):
            labels = op.func(first.columns, *op.args[1:])
        for i, piece in enumerate(op.out):
            if isinstance(piece, Tensor):
                where = None
                if labels is not None:
                    where = labels[i]
                elif first.columns is not None and piece.shape == first.columns.shape:
                    where = first.columns
                keep = first if op.name in MOVES or piece.shape == op.tensors[0].shape else Tag()
                self.tags.put(piece, replace(keep, data=data, trained=trained, columns=where))
