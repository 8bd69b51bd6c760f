# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Find out how a module is called: try, watch what happens, keep what works, say what was found."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from allformer.auditor.calls import LABELS, MODELS, ORDERED, Batch, Call, Slot, parameters
from allformer.auditor.encode import Encoding, causal_encodings, padding_encodings
from allformer.auditor.probe import distance, make_loud, scale_of
from allformer.auditor.watch import Watch
from allformer.errors import AuditError

LENGTHS = (12, 8, 16, 32, 5)
SOURCE_WORDS = ("src", "source", "enc", "memory", "cross", "context")
TARGET_WORDS = ("tgt", "trg", "target", "dec", "causal", "look_ahead")
OFFSETS = ("start_pos", "offset", "past_length", "start", "step", "pos_offset", "cache_position")
STOCK = {
    nn.MultiheadAttention: "attention",
    nn.TransformerEncoder: "encoder",
    nn.TransformerEncoderLayer: "block",
    nn.TransformerDecoder: "decoder",
    nn.TransformerDecoderLayer: "decoder",
    nn.Transformer: "seq2seq",
    nn.LayerNorm: "norm",
    nn.RMSNorm: "norm",
}


def infer(
    module: nn.Module,
    loud: Callable[[frozenset[int]], nn.Module],
    kind: str | None,
    *,
    vocab: int | None = None,
    source_vocab: int | None = None,
    pad: int | None = None,
    width: int | None = None,
    call: Callable[..., Any] | None = None,
) -> tuple[Call, nn.Module]:
    """How `module` is called, and the loud copy with which it was found out."""
    config = getattr(module, "config", None)
    said = kind
    kind = kind or _kind(module, config)
    plan = Call(kind)
    _special(plan, config, pad)
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    if not tables and kind in MODELS and not isinstance(module, tuple(STOCK)):
        tables = [int(p.shape[0]) for p in module.parameters() if p.ndim == 2 and p.shape[0] > 5]
    plan.vocab = vocab or _config_vocab(config) or (tables[0] if tables else 0)
    plan.source_vocab = source_vocab or 0
    if vocab is None and tables and not _config_vocab(config):
        plan.vocab = min(t for t in tables if t > 3) if max(tables) > 3 else max(tables)
    twin = loud(frozenset([plan.vocab] if plan.vocab else []))
    plan.dtype = next((p.dtype for p in twin.parameters() if p.is_floating_point()), torch.float64)
    if call is not None:
        _user(plan, call, module, tables, width)
    elif not _stock(plan, module):
        _roles(plan, module)
    _first_run(plan, module, twin, tables, width)
    if vocab is None and plan.ids and not _config_vocab(config):
        _sharpen_vocab(plan, twin, tables)
    _probabilities(plan, twin)
    if call is None:
        _last_only(plan, twin)
        _time_axis(plan, twin)
    if said is None and type(module) not in STOCK:
        _settle_kind(plan, module, twin, config)
    if call is None:
        _masks(plan, module, twin)
    else:
        plan.keeps = plan.user_arity > (4 if plan.kind == "seq2seq" else 2)
        plan.keeps_source = plan.kind == "seq2seq" and plan.user_arity > 3
    _pad_inside(plan, module, twin, pad)
    _say(plan, said)
    return plan, twin


# --- the first call that works ---------------------------------------------------------------------  # noqa: E501


def _kind(module: nn.Module, config: Any) -> str:
    if type(module) in STOCK:
        return STOCK[type(module)]
    names = parameters(module)
    if getattr(config, "is_encoder_decoder", False) or "decoder_input_ids" in names:
        return "seq2seq"
    required = [n for n, p in names.items() if p.default is p.empty and not _is_mask(n)]
    required = [n for n in required if n not in LABELS and names[n].kind.value < 2]
    if len(required) == 3 and not any(isinstance(m, nn.Embedding) for m in module.modules()):
        return "attention"
    if len(required) == 2 and any(isinstance(m, nn.Embedding) for m in module.modules()):
        return "seq2seq"
    return "encoder"


def _config_vocab(config: Any) -> int:
    value = getattr(config, "vocab_size", None)
    return value if isinstance(value, int) else 0


def _special(plan: Call, config: Any, pad: int | None) -> None:
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
             "mask_token_id", "sep_token_id", "cls_token_id", "unk_token_id")  # fmt: skip
    found = {getattr(config, n, None) for n in names} | {pad}
    ids = {i for i in found if isinstance(i, int)}
    plan.special = frozenset(ids | {0, 1})
    known = getattr(config, "pad_token_id", None)
    plan.pad = pad if pad is not None else known if isinstance(known, int) else None


def _user(plan: Call, call: Any, module: nn.Module, tables: list[int], width: int | None) -> None:
    takes = [
        p for p in inspect.signature(call).parameters.values()
        if p.kind.value < 2 and p.default is p.empty
    ]  # fmt: skip
    plan.user, plan.user_arity = call, max(1, len(takes))
    if any(p.kind.name == "VAR_POSITIONAL" for p in inspect.signature(call).parameters.values()):
        plan.user_arity = 3 if plan.kind == "seq2seq" else 2
    plan.style = f"your call function, with {plan.user_arity} arguments"


def _stock(plan: Call, module: nn.Module) -> bool:
    """torch's own modules, whose conventions are documented."""
    block, causal = Encoding("BS", "block"), Encoding("TS", "block")
    if type(module) not in STOCK or STOCK[type(module)] == "norm":
        return False
    plan.ids = plan.source_ids = False
    plan.style = f"torch.nn.{type(module).__name__}, by its documentation"
    if isinstance(module, nn.MultiheadAttention):
        plan.time_first = not module.batch_first
        plan.x_names = ["query", "key", "value"]
        plan.slots = [Slot("key_padding_mask", "x", block)]
    elif isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        plan.x_names = ["src"]
        plan.slots = [Slot("src_key_padding_mask", "x", block)]
        if plan.kind == "decoder":
            mask = "mask" if isinstance(module, nn.TransformerEncoder) else "src_mask"
            plan.slots.append(Slot(mask, "x", causal, causal=True))
    else:
        plan.x_names = ["tgt"]
        plan.source_names = ["src" if isinstance(module, nn.Transformer) else "memory"]
        plan.slots = [
            Slot("tgt_mask", "x", causal, causal=True),
            Slot("tgt_key_padding_mask", "x", block),
            Slot("memory_key_padding_mask", "source", block),
        ]
        if isinstance(module, nn.Transformer):
            plan.slots.append(Slot("src_key_padding_mask", "source", block))
    first = next(
        (m.batch_first for m in module.modules() if isinstance(m, nn.MultiheadAttention)), True
    )
    plan.time_first = not first
    return True


def _is_mask(name: str) -> bool:
    if "mask" in name or name in ("keep", "valid", "lengths", "lens", "src_lengths", "src_lens"):
        return True
    return "pad" in name and "idx" not in name and "id" not in name.split("_")


def _roles(plan: Call, module: nn.Module) -> None:
    """Which argument is what, from the signature."""
    names = {
        n: p for n, p in parameters(module).items()
        if p.kind.name in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
    }  # fmt: skip
    if not names:
        raise AuditError(
            "forward has no named arguments; tell how to call it: call=lambda module, ids: ..."
        )
    if "input_ids" in names:
        plan.style = "Hugging Face's argument names"
        if plan.kind == "seq2seq" and "decoder_input_ids" in names:
            plan.x_names, plan.source_names = ["decoder_input_ids"], ["input_ids"]
        else:
            plan.x_names = ["input_ids"]
        for name, value in (("use_cache", False), ("return_dict", True)):
            if name in names:
                plan.constants[name] = value
    else:
        _plain_roles(plan, names)
    rest = [n for n in names if n not in (*plan.x_names, *plan.source_names)]
    plan.labels_name = next((n for n in LABELS if n in rest), "")
    if plan.kind == "seq2seq" and plan.labels_name and "input_ids" not in names:
        plan.labels_name = plan.labels_name if plan.labels_name in ("labels", "label") else ""
    plan.positions_name = next(
        (n for n in ("position_ids", "positions", "pos_ids") if n in rest), ""
    )
    plan.documents_name = next(
        (n for n in ("document_ids", "doc_ids", "documents", "docs", "doc_id", "document_id",
                     "seq_ids", "sequence_ids", "segment_ids", "segments") if n in rest), ""
    )  # fmt: skip
    for name in rest:
        needed = names[name].default is inspect.Parameter.empty
        if needed and name == plan.labels_name:
            plan.labels_needed = True
        elif needed and (name in OFFSETS or names[name].annotation in (int, "int")):
            plan.constants[name] = 0
        elif needed and ("cache" in name or "past" in name):
            plan.constants[name] = None


def _plain_roles(plan: Call, names: dict[str, inspect.Parameter]) -> None:
    empty = inspect.Parameter.empty
    mains = [n for n in names if not _is_mask(n)]
    needed = [n for n in mains if names[n].default is empty and n not in OFFSETS]
    needed = [n for n in needed if not (n in LABELS and n != needed[0] and plan.kind != "seq2seq")]
    plan.style = f"forward({', '.join(names)})"
    if not mains:
        raise AuditError(f"{plan.style} has no argument for the input; give call=")
    if plan.kind == "seq2seq":
        pair = list(mains)[:2]
        if len(pair) < 2:
            raise AuditError(f"{plan.style} takes no second sequence; is kind='seq2seq' meant?")
        if any(word in pair[0] for word in ("tgt", "trg", "target", "dec")):
            pair.reverse()
        plan.source_names, plan.x_names = [pair[0]], [pair[1]]
    elif plan.kind == "attention":
        plan.x_names = needed[:3] if len(needed) >= 2 else mains[:1]
    else:
        plan.x_names = mains[:1]
        if len(needed) >= 2:
            plan.source_names = [needed[1]]


def _try(plan: Call, twin: Any, batch: Batch, labels: Tensor | None = None) -> Tensor | None:
    """The output, or None (and why, in `tried`)."""
    try:
        with torch.no_grad():
            return plan(twin, batch, labels).main.detach()
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        if text not in plan.tried:
            plan.tried.append(text)
        return None


def _widths(module: nn.Module) -> list[int]:
    """Likely sizes of the input's vectors, the likeliest first."""
    found: dict[int, float] = {}
    for m in module.modules():
        if isinstance(m, nn.MultiheadAttention):
            found[m.embed_dim] = found.get(m.embed_dim, 0) + 3
        elif isinstance(m, nn.Linear):
            found[m.in_features] = found.get(m.in_features, 0) + (1 if found else 2)
    for p in module.parameters():
        for n in p.shape:
            if n > 1:
                found[n] = found.get(n, 0) + 0.3
    return sorted(found, key=lambda n: -found[n]) or [24]


def _first_run(
    plan: Call, module: nn.Module, twin: Any, tables: list[int], width: int | None
) -> None:
    """Settle ids or vectors, their size, the length and the masks that must be given."""
    vectors_first = plan.kind in ("attention", "block", "feed")
    stock = not plan.ids and not plan.user
    if stock:
        orders = [False]
    elif vectors_first:
        orders = [False, True] if plan.vocab else [False]
    else:
        orders = [True, False] if plan.vocab else [False]
    needed = _needed_masks(plan, module)
    for ids in orders:
        for size in [0] if ids else [width] if width else _widths(module)[:6]:
            plan.ids = plan.source_ids = ids
            plan.width = plan.source_width = size or 0
            for fill in _fills(needed, plan):
                for length in LENGTHS if ids else LENGTHS[:3]:
                    trial = replace(plan, slots=[*plan.slots, *fill], length=length)
                    if _try(trial, twin, trial.batch(3)) is not None:
                        plan.slots, plan.length = trial.slots, length
                        plan.tried.clear()
                        return
    reasons = "; ".join(plan.tried[:3]) or "nothing could be tried: give vocab= or width="
    raise AuditError(
        f"the module could not be called ({plan.style}; {reasons}). Say how: "
        f"audit(module, call=lambda module, ids: module(...)), and kind=, vocab= where known"
    )


def _needed_masks(plan: Call, module: nn.Module) -> list[str]:
    if plan.user is not None or type(module) in STOCK:
        return []
    taken = {*plan.x_names, *plan.source_names, *plan.constants, plan.labels_name}
    return [
        n for n, p in parameters(module).items()
        if p.default is p.empty and p.kind.value < 2 and n not in taken and _is_mask(n)
    ]  # fmt: skip


def _fills(needed: list[str], plan: Call) -> list[list[Slot]]:
    """Ways to fill the masks that cannot be left out: all may be seen."""
    if not needed:
        return [[]]
    ways = []
    for polarity in ("keep", "block", "add", "keep_int"):
        for shape in ("BS", "B11S", "B1TS", "TS", "BTS", "B1S"):
            for cross in (shape, "B11S", "BS"):
                slots = []
                for name in needed:
                    side = _side(plan, name)
                    form = cross if side == "source" else shape
                    ordered = plan.kind in ORDERED and "T" in form
                    slots.append(Slot(name, side, Encoding(form, polarity), causal=ordered))
                ways.append(slots)
    ways.insert(0, [Slot(n, _side(plan, n), _default_encoding(n)) for n in needed])
    return ways


def _default_encoding(name: str) -> Encoding:
    return padding_encodings(name)[0]


def _side(plan: Call, name: str) -> str:
    if not plan.has_source:
        return "x"
    if any(word in name for word in TARGET_WORDS):
        return "x"
    if any(word in name for word in SOURCE_WORDS) or plan.kind == "seq2seq":
        return "source"
    return "x"


class _Lookups(TorchDispatchMode):
    """Which tables are read by which ids: (rows of the table, length of the ids)."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.inputs, self.found = inputs, {}  # type: ignore[var-annotated]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.__name__).split(".")[0]
        if name in ("embedding", "index", "index_select", "gather"):
            ids = args[1][0] if name == "index" else args[-1] if name == "index_select" else args[1]
            if isinstance(ids, Tensor) and not ids.is_floating_point():
                for x in self.inputs:  # (T, B) and packed models change the shape, not the ids
                    same = ids.numel() == x.numel() and torch.equal(
                        ids.flatten().sort().values, x.flatten().sort().values
                    )
                    if same and args[0].ndim == 2:
                        rows, n = int(args[0].shape[0]), int(x.shape[1])
                        self.found[n] = min(self.found.get(n, rows), rows)
        return func(*args, **(kwargs or {}))


def _sharpen_vocab(plan: Call, twin: Any, tables: list[int]) -> None:
    """Which table is read by which input: by calling with lengths that differ."""
    before, plan.vocab = plan.vocab, min([plan.vocab, *[t for t in tables if t > 3]])
    batch = plan.batch(3)
    seen = _Lookups([t for t in (batch.x, batch.source) if t is not None])
    with seen:
        out = _try(plan, twin, batch)
    plan.vocab = seen.found.get(batch.x.shape[1], before)
    if batch.source is not None:
        plan.source_vocab = seen.found.get(batch.source.shape[1], plan.vocab)
    if not seen.found and out is not None and out.shape[-1] in tables:
        plan.vocab = int(out.shape[-1])


def _last_only(plan: Call, twin: Any) -> None:
    """nanoGPT computes all logits only when it gets targets."""
    if not plan.labels_name or plan.labels_needed or not plan.ids:
        return
    with torch.no_grad():
        try:
            if not plan(twin, plan.batch(3)).pooled:
                return
            trial = replace(plan, labels_needed=True)
            if not trial(twin, plan.batch(3)).pooled:
                plan.labels_needed = True
                plan.notes.append(
                    f"without {plan.labels_name} only the last position is computed, so they are given"  # noqa: E501
                )
        except Exception:
            return


def _probabilities(plan: Call, twin: Any) -> None:
    """Outputs that are probabilities saturate: their logarithms are compared."""
    out = _try(plan, twin, plan.batch(2))
    if out is None or out.shape[-1] < 2 or float(out.min()) < 0:
        return
    plan.as_log = float((out.sum(-1) - 1).abs().max()) < 1e-4


def _time_axis(plan: Call, twin: Any) -> None:
    """(T, B) instead of (B, T): when attention *and* positions run along the first axis."""
    if plan.time_first or (plan.has_source and not plan.ids) or plan.kind in ("attention", "block"):
        return
    batch = plan.batch(3, 5)
    base = _try(plan, twin, batch)
    if base is None or base.ndim != 3 or base.shape[:2] != (3, 5):
        return
    changed = replace_x(batch, batch.x.clone())
    changed.x[0, 0] = plan.other(batch.x)[0, 0]
    moved = _try(plan, twin, changed)
    same = replace_x(batch, batch.x[:1, :1].expand_as(batch.x).clone())
    flat = _try(plan, twin, same)
    if moved is None or flat is None:
        return
    tol = 1e-6 * scale_of(base)
    across = distance(moved[1:, 0], base[1:, 0]) > tol
    along = distance(moved[0, 1:], base[0, 1:]) > tol
    by_row = distance(flat[1:], flat[:1].expand_as(flat[1:])) > tol
    by_time = distance(flat[:, 1:], flat[:, :1].expand_as(flat[:, 1:])) > tol
    if across and not along and by_row and not by_time:
        plan.time_first = True
        plan.notes.append("attention and positions run along the first axis: the input is (T, B)")


def replace_x(batch: Batch, x: Tensor) -> Batch:
    """The same batch with another x."""
    return replace(batch, x=x)


# --- kind ----------------------------------------------------------------------------------------


def sees(plan: Call, twin: Any, rows: int = 2) -> tuple[bool, bool] | None:
    """(the future moves the past, the past moves the future)."""
    batch = plan.batch(rows)
    half = batch.x.shape[1] // 2
    base = _try(plan, twin, batch)
    if base is None or base.ndim != 3:
        return None
    other = plan.other(batch.x)
    late, early = batch.x.clone(), batch.x.clone()
    late[:, half:], early[:, :half] = other[:, half:], other[:, :half]
    a, b = _try(plan, twin, replace_x(batch, late)), _try(plan, twin, replace_x(batch, early))
    if a is None or b is None:
        return None
    tol = 1e-6 * scale_of(base)
    return distance(a[:, :half], base[:, :half]) > tol, distance(b[:, half:], base[:, half:]) > tol


def _settle_kind(plan: Call, module: nn.Module, twin: Any, config: Any) -> None:
    if plan.kind != "encoder":
        return
    if not plan.ids:
        batch = plan.batch(1)
        watch = Watch(twin, [batch.x])
        with torch.no_grad(), watch:
            _try(plan, twin, batch)
        where = {s.where for s in watch.sites}
        repeated = [
            c for m in module.modules() if isinstance(m, nn.ModuleList | nn.Sequential)
            for c in m if any(True for _ in c.parameters()) and any(w for w in where if _inside(module, c, w))  # noqa: E501
        ]  # fmt: skip
        if watch.sites and not watch.other_linears():
            plan.kind = "attention"
            return
        if (watch.sites and len(where) == 1) or not repeated:
            plan.kind = "block"
            return
    found = sees(plan, twin)
    if found is not None and not found[0] and found[1]:
        plan.kind = "decoder"


def _inside(module: nn.Module, child: nn.Module, path: str) -> bool:
    names = [n for n, m in module.named_modules() if m is child]
    return any(path == n or path.startswith(n + ".") for n in names)


# --- masks -----------------------------------------------------------------------------------------  # noqa: E501


def _masks(plan: Call, module: nn.Module, twin: Any) -> None:
    """Which mask arguments there are, and how they want to be written."""
    if type(module) in STOCK:
        plan.keeps = True
        plan.keeps_source = plan.has_source
        return
    taken = {*plan.x_names, *plan.source_names, *plan.constants}
    names = [n for n in parameters(module) if _is_mask(n) and n not in taken]
    names = [
        n for n in names if not any(w in n for w in ("head_mask", "cross_attn_head", "labels"))
    ]
    mine = [n for n in names if _side(plan, n) == "x"]
    theirs = [n for n in names if _side(plan, n) == "source"]
    if plan.kind in ORDERED:
        mine = _causal_slot(plan, twin, mine)
    plan.keeps = _padding_slots(plan, twin, mine, "x") or any(
        s.causal and s.encoding.per_row for s in plan.slots
    )
    plan.keeps_source = _padding_slots(plan, twin, theirs, "source")


def _without(plan: Call, names: list[str]) -> list[Slot]:
    return [s for s in plan.slots if s.name not in names]


def _causal_slot(plan: Call, twin: Any, names: list[str]) -> list[str]:
    """If the module is not causal by itself, the mask that makes it so; the names left over."""
    given = [s.name for s in plan.slots if s.name in names]
    if not given:
        alone = sees(plan, twin)
        if alone is None or not alone[0]:
            return names
    for name in sorted(names, key=lambda n: "pad" in n):
        for encoding in causal_encodings(name):
            slot = Slot(name, "x", encoding, causal=True)
            trial = replace(plan, slots=[*_without(plan, [name]), slot])
            if sees(trial, twin) == (False, True):
                plan.slots = trial.slots
                plan.notes.append(f"causal by the mask that is given: {name} {encoding}")
                return [n for n in names if n != name]
    return names


def _padding_slots(plan: Call, twin: Any, names: list[str], side: str) -> bool:
    """Find the encoding in which padding matters least; True if there is such an argument."""
    if not names:
        return False
    groups = [names] if len(names) == 1 else [names, *([n] for n in names)]
    best: tuple[float, list[Slot]] | None = None
    for group in groups:
        for encoding in padding_encodings(group[0]):
            causal = bool(encoding.full and plan.kind in ORDERED and side == "x")
            slots = [Slot(n, side, encoding, causal) for n in group]
            trial = replace(plan, slots=[*_without(plan, group), *slots])
            score = padding_influence(trial, twin, side)
            if score is None:
                continue
            if best is None or score < best[0] * 0.1:
                best = score, trial.slots
            if score < 1e-7:
                break
        if best is not None and best[0] < 1e-7:
            break
    if best is None:
        return False
    plan.slots = best[1]
    return True


def padding_influence(plan: Call, twin: Any, side: str) -> float | None:
    """How much hidden content moves the output, over how much seen content does; None: no call."""
    batch = plan.batch(3)
    content = batch.x if side == "x" else batch.source
    assert content is not None
    keep = torch.ones(content.shape[:2], dtype=torch.bool)
    middle = content.shape[1] // 2
    if any(s.encoding.shape == "lengths" for s in plan.slots):
        middle = content.shape[1] - 1  # lengths can only say that the end is padding
    keep[:, middle - 1 : middle + 1] = False
    other = plan.other(content)

    def run(new: Tensor) -> Tensor | None:
        if side == "x":
            return _try(plan, twin, replace(batch, x=new, keep=keep))
        return _try(plan, twin, replace(batch, source=new, source_keep=keep))

    base = run(content)
    hidden = run(torch.where(_like(keep, content), content, other))
    seen_keep = keep.clone()
    seen_keep[:, 1:] = True  # change the first token: it is seen by all
    seen_keep[:, 0] = False
    shown = run(torch.where(_like(seen_keep, content), content, other))
    if base is None or hidden is None or shown is None:
        return None
    if base.ndim == 3 and side == "x":
        rows = torch.ones(content.shape[1], dtype=torch.bool)
        rows[middle - 1 : middle + 1] = False
        rows[0] = False
        base, hidden, shown = base[:, rows], hidden[:, rows], shown[:, rows]
    moved, control = distance(hidden, base), distance(shown, base)
    if not control < float("inf") or control < 1e-9 * scale_of(base):
        return None if moved == float("inf") else 1e6
    return moved / control


def _like(keep: Tensor, content: Tensor) -> Tensor:
    return keep[..., None] if content.is_floating_point() else keep


def _pad_inside(plan: Call, module: nn.Module, twin: Any, pad: int | None) -> None:
    """An id that the module masks by itself: no query looks at it."""
    if not plan.ids or plan.kind not in ("encoder", "decoder", "seq2seq"):
        return
    rows = [m.padding_idx for m in module.modules() if isinstance(m, nn.Embedding)]
    known = next((r for r in rows if r is not None), None)
    if plan.pad is None and known is not None:
        plan.pad = known
    if (plan.keeps_source if plan.has_source else plan.keeps) or plan.user is not None:
        return
    last = (plan.source_vocab or plan.vocab) - 1
    for candidate in dict.fromkeys([pad, known, plan.pad, 0, 1, 2, last]):
        if candidate is not None and 0 <= candidate <= last and _looks_away(plan, twin, candidate):
            plan.pad, plan.pad_inside = candidate, True
            plan.special = plan.special | {candidate}
            plan.notes.append(f"the module masks id {candidate} by itself: it is the padding")
            return


def _looks_away(plan: Call, twin: Any, candidate: int) -> bool:
    batch = plan.batch(1)
    content = batch.source if batch.source is not None else batch.x
    marked = content.clone()
    marked[:, 3:5] = candidate
    batch = replace(batch, source=marked) if batch.source is not None else replace_x(batch, marked)
    watch = Watch(twin, [t for t in (batch.x, batch.source) if t is not None])
    with torch.no_grad(), watch:
        _try(plan, twin, batch)
    weights = [
        s.weights for s in watch.sites
        if s.weights is not None and s.weights.shape[-1] == marked.shape[1]
    ]  # fmt: skip
    if not weights:
        return False
    hidden = [float(w[:, 5:, 3:5].abs().max()) for w in weights]
    plain = [float(w[:, 5:, :3].abs().max()) for w in weights]
    return min(hidden) < 1e-12 < min(plain)  # one attention that looks away is enough: a mask


# --- words -----------------------------------------------------------------------------------------  # noqa: E501


def _say(plan: Call, said: str | None) -> None:
    if said is None:
        plan.notes.append(f"kind {plan.kind!r}: inferred; give kind= if it is another")
    plan.notes.insert(0, f"called as {plan.style}")
    what = f"ids below {plan.vocab}" if plan.ids else f"vectors of {plan.width}"
    if plan.has_source:
        there = f"ids below {plan.source_vocab or plan.vocab}" if plan.source_ids else "vectors"
        what += f", source: {there}"
    plan.notes.insert(1, f"input: {what}")
    for slot in plan.slots:
        if not slot.causal:
            plan.notes.append(f"{slot.name}: {slot.encoding}, on the {slot.side} side")
    if plan.labels_name:
        plan.notes.append(f"targets are given as {plan.labels_name}")


__all__ = ["infer", "make_loud", "padding_influence", "sees"]
