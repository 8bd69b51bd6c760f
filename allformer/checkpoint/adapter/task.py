"""PEFT's `task_type`: which of its classes wraps the model, and trains its head unasked."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from allformer import config
from allformer.checkpoint.adapter.names import Names

# The kind of head (`families.family.head_kind`), PEFT's task, and the modules that PEFT takes for
# new to it and expects in the file.
TASKS = {
    "class": ("SEQ_CLS", ("classifier", "score")),
    "token": ("TOKEN_CLS", ("classifier", "score")),
    "span": ("QUESTION_ANS", ("qa_outputs",)),
    "bare": ("FEATURE_EXTRACTION", ()),
}


def task_of(model: Any, names: Names, saved: Collection[str]) -> dict[str, Any]:
    """`task_type`, or where no task fits the class of the model itself (`auto_mapping`)."""
    task = _task(model, names, saved)
    family = names.family.name
    mapping = {
        "base_model_class": names.architecture,
        "parent_library": f"transformers.models.{family}.modeling_{family}",
    }
    return {"task_type": task, "auto_mapping": mapping if task is None else None}


def _task(model: Any, names: Names, saved: Collection[str]) -> str | None:
    tree, kind = model.config, names.family.architectures[names.architecture]
    if not all(isinstance(stack.source, config.Tokens) for stack in tree.stacks.values()):
        return None  # PEFT's tasks are of texts
    if kind == "words":
        known = {config.DecoderOnly: "CAUSAL_LM", config.EncoderDecoder: "SEQ_2_SEQ_LM"}
        return known.get(type(tree))
    task, new = TASKS.get(kind, (None, ()))
    there = [module for module in new if module in names.modules]
    return task if all(module in saved for module in there) else None


def kind_of(task: str | None) -> str | None:
    """The kind of head that a task wants: `kind_of("SEQ_CLS")` → "class"."""
    words = {"CAUSAL_LM": "words", "SEQ_2_SEQ_LM": "words"}
    return {said: kind for kind, (said, _) in TASKS.items()}.get(task or "", words.get(task or ""))
