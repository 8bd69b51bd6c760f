"""The model that an adapter stands on: its body is the base's, its head may be new to the task.

A base that was trained on words gets the head that the adapter brings along: by the config.json
of transformers' beside the adapter, or by PEFT's task. (`on_body.py`: by one of ours.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allformer.checkpoint.adapter.files import BEFORE, AdapterFiles, plain_names
from allformer.checkpoint.adapter.form import Tensors
from allformer.checkpoint.adapter.task import kind_of
from allformer.checkpoint.adapter.whole import LAYER
from allformer.checkpoint.files import TensorFiles
from allformer.checkpoint.stored import InMemory, Stored
from allformer.errors import CheckpointError
from allformer.families.config_json import find_family
from allformer.families.family import architecture_of
from allformer.json_file import read_object

HEADS = ("classifier", "score", "qa_outputs", "classification_head", "head")


@dataclass
class Task:
    """The config.json of the whole, the class of it where it is not the base's, and tensors that
    the base may lack."""

    raw: dict[str, Any]
    named: str | None
    new: Tensors = field(default_factory=dict)


def grown(adapter: AdapterFiles, raw: dict[str, Any], files: TensorFiles) -> Task:
    """A base whose vocabulary has other words than its files: those of the adapter's whole tables.

    Whoever adds tokens resizes the tables and saves them beside the adapter.
    """
    size, prefix = raw.get("vocab_size"), "" if "is" in raw else find_family(raw).prefix
    new: Tensors = {}
    for name, x in plain_names(adapter.tensors).items():
        tried = (name, prefix + name, name.removeprefix(prefix))
        found = next((known for known in tried if known in files), None)
        if found is not None and files[found].shape == (size, *x.shape[1:]) != x.shape:
            new[found] = x
    rows = {len(x) for x in new.values()}
    return Task({**raw, "vocab_size": rows.pop()}, None, new) if len(rows) == 1 else Task(raw, None)


def task_config(adapter: AdapterFiles, raw: dict[str, Any], architecture: str | None) -> Task:
    """What is to be built for an adapter on a base that has this config.json."""
    if architecture is not None:
        return Task(raw, architecture)
    if "is" in raw:
        return Task(raw, None)
    beside = adapter.directory / "config.json"
    if beside.is_file():
        own = read_object(beside, CheckpointError)
        named = architecture_of(own, find_family(own))
        same = named == architecture_of(raw, find_family(raw))
        return Task(own, None if same else named, _heads(adapter.tensors))
    return _by_task(adapter, raw)


def _by_task(adapter: AdapterFiles, raw: dict[str, Any]) -> Task:
    """The class of the base's family that has the head of PEFT's task, if the base has none."""
    family, kind = find_family(raw), kind_of(adapter.raw.get("task_type"))
    now = architecture_of(raw, family)
    if kind in (None, "bare") or family.architectures[now] == kind:
        return Task(raw, None)
    named = next((a for a, head in family.architectures.items() if head == kind), None)
    if named is None:
        return Task(raw, None)
    new = _heads(adapter.tensors)
    labels = _labels(new)
    names = {str(i): f"LABEL_{i}" for i in range(labels)}
    if kind in ("class", "token") and len(raw.get("id2label") or ()) != labels:
        raw = {**raw, "id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    return Task(raw, named, new)


def _labels(head: Tensors) -> int:
    """How many classes a head has, by its last matrix; 2 is what transformers takes for granted."""
    matrices = [name for name in head if name.endswith(".weight")]
    last = [name for name in matrices if name.endswith("out_proj.weight")] or matrices
    return len(head[last[0]]) if last else 2


def _heads(tensors: Mapping[str, Any]) -> Tensors:
    """The tensors of a head among those that an adapter has whole."""
    out: Tensors = {}
    for name, tensor in plain_names(dict(tensors)).items():
        plain = name.removeprefix(BEFORE[1])
        if plain.partition(".")[0] in HEADS and ".lora_" not in plain and LAYER not in plain:
            out[plain] = tensor
    return out


def with_new(files: TensorFiles, new: Tensors) -> TensorFiles:
    """The base's files, and tensors that they lack, or have of another shape (other labels)."""
    fresh: dict[str, Stored] = {
        name: InMemory(name, x, files.where)
        for name, x in new.items()
        if name not in files or files[name].shape != tuple(x.shape)
    }
    return TensorFiles(files.where, [*({**files, **fresh}).values()]) if fresh else files
