"""Longformer's attention: a window, and global tokens with projections of their own.

    a token:         softmax(q · [k of its window, k of the global tokens]) [v …]
    a global token:  softmax(q_global · k_global of all) v_global of all

Work and memory are T · (window + E), never T²: the window goes through `banded` in chunks, with the
global tokens as keys that everybody sees; on a GPU through FlexAttention, which leaves out blocks
without a window or a global token, or, for shorter rows and dropout, through flash attention.
Padding sees nobody and gets zeros.

Legend: B rows, T width, N packed tokens, H heads, G key/value heads, D head size, E the most global
tokens of a row, L global tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer import config
from allformer.core.attend import attention_scores, attention_weights, mix
from allformer.core.banded import Seen, banded
from allformer.core.compiling import uncompiled
from allformer.core.dropout import drop
from allformer.core.kernels import Case, attend
from allformer.core.kernels.flash_global import (
    Marked,
    Rows,
    flash_global,
    flash_whole,
    marked_tokens,
    rows_of,
    unbroken,
)
from allformer.core.kernels.flex import Flex
from allformer.core.kernels.flex_global import global_blocks, global_flex
from allformer.core.kernels.ragged import RaggedFlash
from allformer.core.layout import Layout
from allformer.core.look import Look, make_look
from allformer.core.mixers.mixer import Mixer, Scene
from allformer.core.registry import implements
from allformer.core.relatives.relative import Extra
from allformer.core.states import State
from allformer.core.taps import listening_exactly, tap
from allformer.errors import ConfigError

MARKS = "global_attention_mask"


class Globals(NamedTuple):
    """The global tokens: `marks` B T; their columns B E, `real` where there is one; and their
    `cells` among all B·T, L, row after row."""

    marks: Tensor
    columns: Tensor
    real: Tensor
    cells: Tensor


class Plan(NamedTuple):
    """`keep` (B T) is False at padding; `look`: the formula as it stands, for whoever asks for it
    or listens; `blocks`: Flex's; `rows` and `marked`: flash attention's, which takes tokens end to
    end."""

    layout: Layout
    kernel: str
    keep: Tensor | None = None
    found: Globals | None = None
    look: Look | None = None
    blocks: Any = None
    rows: Rows | None = None
    marked: Marked | None = None


@implements(config.GlobalWindow)
class GlobalWindow(Mixer):
    """See the top of this file."""

    takes = (MARKS,)

    def check(
        self,
        inputs: Mapping[str, Tensor],
        shape: tuple[int, int],
        stack: config.Stack,
        head: config.Head | None = None,
        prefix: str = "",
    ) -> None:
        """A question is what stands before the first separator; the reference wants three of them
        (RoBERTa's pairs), BERT's pairs have two. With one, all of a text would be its question.
        Asked on a CPU alone: a GPU would have to be waited for."""
        super().check(inputs, shape, stack, head, prefix)
        ids = inputs.get("input_ids")
        if MARKS in inputs or ids is None or not _asks(head) or ids.device.type != "cpu":
            return
        if stack.source.eos_id is None:
            raise ConfigError(
                f"the model does not say which token stands between a question and its text "
                f"(Tokens.eos_id=None), so that no question is found; give {prefix}{MARKS} with "
                f"ones at the question, or make it anew: af.lengthen(…, separator=ID)"
            )
        counts = (ids == _separator(stack)).sum(1)
        if not torch.compiler.is_compiling() and bool((counts < 2).any()):
            raise ConfigError(
                f"{prefix}input_ids has a row with {int(counts.min())} of the separator "
                f"{stack.source.eos_id} (Tokens.eos_id), so that its question is not found; give "
                f"{prefix}{MARKS} with ones at the question, or question and text by the tokeniser"
            )

    def plan(self, scene: Scene) -> Plan:
        layout = scene.query
        if scene.cached or scene.key is not layout:
            raise ConfigError(
                "GlobalWindow looks at whole rows of its own stack: it has no cache, looks at no "
                "other stack, and its rows cannot be cut among ranks; take Window or Full there"
            )
        keep = layout.keep
        found = self._globals(scene, keep)
        if scene.kernel == "eager" or listening_exactly():
            return Plan(layout, scene.kernel, keep, found, self._look(scene, keep, found))
        if self._flexes(scene):
            marks = None if found is None else found.marks
            size = layout.rows, layout.total
            blocks = global_blocks(size, self._reach, keep, marks, scene.device)
            return Plan(layout, scene.kernel, keep, found, blocks=blocks)
        if self._flashes(scene):
            rows = rows_of(layout, scene.device)
            marked = None if found is None else marked_tokens(layout, *found)
            return Plan(layout, scene.kernel, keep, found, rows=rows, marked=marked)
        return Plan(layout, scene.kernel, keep, found)

    @property
    def _reach(self) -> tuple[int, int]:
        return self.config.left, self.config.right

    @property
    def _drops(self) -> float:
        return self.dropout if self.training else 0.0

    def _flashes(self, scene: Scene) -> bool:
        case = Case(scene.kernel, scene.device, scene.dtype, self.size, packed=True)
        return RaggedFlash().fits(case) and unbroken(scene.query)

    def _flexes(self, scene: Scene) -> bool:
        window, drops = sum(self._reach) + 1, self._drops > 0
        case = Case(
            scene.kernel, scene.device, scene.dtype, self.size, full=False, window=window,
            width=scene.query.total, drops=drops,
        )  # fmt: skip
        return Flex().fits(case)

    def _globals(self, scene: Scene, keep: Tensor | None) -> Globals | None:
        marks = _marks(scene)
        if marks is None:
            return None
        found: Globals | None = _find(marks if keep is None else marks & keep)
        return found

    def _look(self, scene: Scene, keep: Tensor | None, found: Globals | None) -> Look:
        """Who looks at whom, as a mask over all pairs: B 1 T T."""
        left, right = self._reach
        place = torch.arange(scene.query.total, device=scene.device)
        far = place - place[:, None]  # T T
        may = ((far >= -left) & (far <= right))[None]
        if found is not None:
            may = may | found.marks[:, None, :] | found.marks[:, :, None]
        if keep is not None:
            may = may & keep[:, None, :] & keep[:, :, None]
        return make_look(may[:, None])

    def wants(self, plan: Plan) -> tuple[str, ...] | None:
        """Without global tokens their projections are not asked for."""
        return ("q", "k", "v") if plan.found is None else None

    def put(self, x: Tensor, plan: Plan, key: bool) -> Tensor:
        return plan.layout.to_grid(x) if plan.rows is None else x

    def forward(
        self, parts: dict[str, Tensor], plan: Plan, state: State | None, extra: Extra | None
    ) -> Tensor:
        if plan.rows is not None:
            return self._flash(parts, plan, plan.rows)
        own = {name: tap(self, name, self._split(x)) for name, x in parts.items()}  # B H T D
        context = self._fast(own, plan) if plan.look is None else self._formula(own, plan)
        return plan.layout.lay(context.transpose(1, 2).flatten(-2))  # B T H·D

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)

    def _formula(self, own: dict[str, Tensor], plan: Plan) -> Tensor:
        """The formula as it stands, over all pairs; a listener's run is the fast one, unless it
        puts other scores or weights there."""
        assert plan.look is not None
        scores = attention_scores(own["q"], own["k"], scale=self.scale)  # B H T T
        if plan.found is not None:
            whole = attention_scores(own["q_global"], own["k_global"], scale=self.scale)
            scores = torch.where(plan.found.marks[:, None, :, None], whole, scores)
        patched_scores = tap(self, "scores", scores)
        weights = attention_weights(patched_scores, plan.look)
        patched = tap(self, "weights", weights)
        if plan.kernel != "eager" and patched_scores is scores and patched is weights:
            return self._fast(own, plan)
        patched = drop(patched, self.dropout, self.training)
        context = mix(patched, own["v"])
        if plan.found is None:
            return context
        return torch.where(
            plan.found.marks[:, None, :, None], mix(patched, own["v_global"]), context
        )

    def _flash(self, parts: dict[str, Tensor], plan: Plan, rows: Rows) -> Tensor:
        """Over tokens end to end: N H D, in the layout's shape again."""
        shape = parts["q"].shape
        own = {
            name: x.reshape(-1, x.shape[-1] // self.size, self.size) for name, x in parts.items()
        }
        near = (own["q"], own["k"], own["v"])
        context = flash_global(near, rows, plan.marked, self._reach, self.scale, self._drops)
        if plan.marked is not None:
            tokens = plan.marked.tokens
            q = own["q_global"].index_select(0, tokens)
            far = (q, own["k_global"], own["v_global"])
            whole = flash_whole(far, rows, plan.marked, self.scale, self._drops)
            context = context.index_copy(0, tokens, whole)
        return context.reshape(shape)

    def _fast(self, own: dict[str, Tensor], plan: Plan) -> Tensor:
        context = self._near(own, plan)  # B H T D
        if plan.found is not None:
            context = self._overwrite(context, self._far(own, plan, plan.found), plan.found)
        if plan.layout.packed or plan.keep is None:
            return context
        return context.masked_fill(~plan.keep[:, None, :, None], 0.0)

    def _near(self, own: dict[str, Tensor], plan: Plan) -> Tensor:
        """Everybody's window, and the global tokens in the same softmax."""
        q, k, v = own["q"], own["k"], own["v"]
        if plan.blocks is not None:
            return global_flex(q, k, v, plan.blocks, self.scale)
        left, right = self._reach
        seen, keep = None, plan.keep
        if plan.found is not None:  # they are seen once, as what everybody sees
            columns, alone = plan.found.columns, ~plan.found.marks
            seen = Seen(_columns(k, columns), _columns(v, columns), plan.found.real)
            keep = alone if keep is None else keep & alone
        return banded(
            q, k, v, left, right, scale=self.scale, keep=keep, extra=seen, dropout=self._drops
        )

    def _far(self, own: dict[str, Tensor], plan: Plan, found: Globals) -> Tensor:
        """What global tokens see, which is everybody: B H E D."""
        q = _columns(own["q_global"], found.columns)
        look = Look() if plan.keep is None else make_look(plan.keep[:, None, None, :])
        return attend(
            q, own["k_global"], own["v_global"], look, scale=self.scale, dropout=self._drops,
            kernel=plan.kernel,
        )  # fmt: skip

    @staticmethod
    def _overwrite(context: Tensor, whole: Tensor, found: Globals) -> Tensor:
        """A global token's own context in place of its window's."""
        rows, heads, width, size = context.shape
        flat = context.transpose(1, 2).reshape(rows * width, heads, size)
        flat = flat.index_copy(0, found.cells, whole.transpose(1, 2)[found.real])
        return flat.view(rows, width, heads, size).transpose(1, 2)


@uncompiled
def _find(marks: Tensor) -> Globals | None:
    """How many there are is a size, so a compiled graph ends before this and begins anew."""
    most = int(marks.sum(1).max())  # the one look at the device, for all layers
    if not most:
        return None
    number = torch.arange(most, device=marks.device)
    order = torch.argsort(marks.int(), dim=1, descending=True, stable=True)
    real = number < marks.sum(1, keepdim=True)
    cells = marks.flatten().nonzero().squeeze(1)
    return Globals(marks, order[:, :most], real, cells)


def _columns(x: Tensor, columns: Tensor) -> Tensor:
    """Some columns of each row: B H T D and B E → B H E D."""
    where = columns[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, where)


def _marks(scene: Scene) -> Tensor | None:
    """Which tokens are global, B T: as the caller says, else as what reads the states needs it."""
    given = scene.inputs.get(MARKS)
    if given is not None:
        return scene.query.to_grid(given).bool()
    rows, width = scene.query.rows, scene.query.total
    place = torch.arange(width, device=scene.device).expand(rows, width)
    if any(isinstance(x, config.ClassHead) and x.at in READS_FIRST for x in _heads(scene.head)):
        return place == 0
    ids = scene.inputs.get("input_ids")
    if not _asks(scene.head) or ids is None:
        return None
    assert scene.stack is not None
    ends = scene.query.to_grid(ids) == _separator(scene.stack)
    first = ends.int().argmax(1, keepdim=True)  # 0 where there is none
    if not _chooses(scene.head):
        return place < first
    # What follows the question: behind its separator, and RoBERTa's second one.
    return place > first + ends.gather(1, (first + 1).clamp_max(width - 1))


READS_FIRST = ("first", "pool")


def _heads(head: config.Head | None) -> list[config.Head]:
    return list(config.heads_of(head))


def _asks(head: config.Head | None) -> bool:
    """Whether a question stands before what is read."""
    return any(isinstance(x, config.SpanHead) for x in _heads(head)) or _chooses(head)


def _chooses(head: config.Head | None) -> bool:
    return any(isinstance(x, config.ChoiceHead) for x in _heads(head))


def _separator(stack: config.Stack) -> int:
    """Between a question and its text: the token that ends texts."""
    end = stack.source.eos_id
    return -1 if end is None else end
