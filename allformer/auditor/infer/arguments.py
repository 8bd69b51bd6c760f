"""Which argument of forward is what, by its name: the names are the interface."""

from __future__ import annotations

import inspect

from torch import nn

from allformer.auditor.calls import LABELS, Call, parameters
from allformer.errors import AuditError

CROSS_WORDS = ("memory", "cross", "context")
SOURCE_WORDS = ("src", "source", "enc", *CROSS_WORDS)
TARGET_WORDS = ("tgt", "trg", "target", "dec", "causal", "look_ahead")
OFFSETS = ("start_pos", "offset", "past_length", "start", "step", "pos_offset", "cache_position")
POSITIONS = ("position_ids", "positions", "pos_ids")
DOCUMENTS = (
    "document_ids", "doc_ids", "documents", "docs", "doc_id", "document_id", "seq_ids",
    "sequence_ids", "segment_ids", "segments",
)  # fmt: skip


def is_mask(name: str) -> bool:
    """Whether an argument says what is padding, or who sees whom."""
    if "mask" in name or name in ("keep", "valid") or is_lengths(name):
        return True
    words = name.split("_")  # padded_input is an input, pad_id a number
    return "pad" in name and not {"padded", "id", "idx"} & set(words) and "idx" not in name


def is_lengths(name: str) -> bool:
    """Whether an argument says how many tokens of each row are real: `valid_lens`, `src_len`."""
    words = name.split("_")
    if name in OFFSETS or not words or {"max", "min", "past", "use"} & set(words):
        return False
    if words[-1].endswith("lens") or words[-1] == "lengths":  # ilens: of the inputs
        return True
    return words[-1] in ("len", "length") and len(words) > 1


def side(plan: Call, name: str) -> str:
    """Which sequence a mask is for: "x" or "source"."""
    if not plan.has_source or any(word in name for word in TARGET_WORDS):
        return "x"
    if any(word in name for word in SOURCE_WORDS) or plan.kind == "seq2seq":
        return "source"
    return "x"


def roles(plan: Call, module: nn.Module) -> None:
    """Inputs, targets, positions, documents and what else must be given, from the signature."""
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
            plan.x.names, plan.source.names = ["decoder_input_ids"], ["input_ids"]
        else:
            plan.x.names = ["input_ids"]
        for name, value in (("use_cache", False), ("return_dict", True)):
            if name in names:
                plan.constants[name] = value
    else:
        _plain_roles(plan, names)
    rest = [n for n in names if n not in (*plan.x.names, *plan.source.names)]
    plan.labels_name = _first(LABELS, rest)
    if plan.kind == "seq2seq" and plan.labels_name and "input_ids" not in names:
        plan.labels_name = plan.labels_name if plan.labels_name in ("labels", "label") else ""
    plan.positions_name = _first(POSITIONS, rest)
    plan.documents_name = _first(DOCUMENTS, rest)
    for name in rest:
        needed = names[name].default is inspect.Parameter.empty
        if needed and name == plan.labels_name:
            plan.labels_needed = True
        elif needed and (name in OFFSETS or names[name].annotation in (int, "int")):
            plan.constants[name] = 0
        elif needed and ("cache" in name or "past" in name):
            plan.constants[name] = None


def _first(words: tuple[str, ...], names: list[str]) -> str:
    return next((w for w in words if w in names), "")


def _plain_roles(plan: Call, names: dict[str, inspect.Parameter]) -> None:
    """The inputs of a forward with names of its own: by their order."""
    mains = [n for n in names if not is_mask(n)]
    needed = [n for n in mains if names[n].default is inspect.Parameter.empty and n not in OFFSETS]
    needed = [n for n in needed if not (n in LABELS and n != needed[0] and plan.kind != "seq2seq")]
    plan.style = f"forward({', '.join(names)})"
    if not mains:
        raise AuditError(f"{plan.style} has no argument for the input; give call=")
    if plan.kind == "seq2seq":
        pair = mains[:2]
        if len(pair) < 2:
            raise AuditError(f"{plan.style} takes no second sequence; is kind='seq2seq' meant?")
        if any(word in pair[0] for word in ("tgt", "trg", "target", "dec")):
            pair.reverse()
        plan.source.names, plan.x.names = [pair[0]], [pair[1]]
    elif plan.kind == "attention":
        plan.x.names = needed[:3] if len(needed) >= 2 else mains[:1]
    else:
        plan.x.names = mains[:1]
        if len(needed) >= 2:
            plan.source.names = [needed[1]]
