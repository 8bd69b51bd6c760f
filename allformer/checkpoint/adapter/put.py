"""`load_adapter`: an adapter from its files onto a model that is there.

load_adapter(model, "path/to/adapter", name="tales")     # it alone acts then
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from allformer.checkpoint.adapter.fields import Fields
from allformer.checkpoint.adapter.files import AdapterFiles, open_adapter, plain_names
from allformer.checkpoint.adapter.forms import BY_KIND
from allformer.checkpoint.adapter.library import is_library, read_library
from allformer.checkpoint.adapter.names import Names, covered
from allformer.checkpoint.adapter.on_body import check_body, own_tree
from allformer.checkpoint.adapter.own import methods_from_json
from allformer.checkpoint.adapter.whole import base_tensors, read_whole
from allformer.errors import CheckpointError, ConfigError
from allformer.families.kinds import short
from allformer.tune.apply import DEFAULT, apply, remove
from allformer.tune.state import load_adapter_state


def load_adapter(model: Any, path: str | Path, *, name: str = DEFAULT) -> None:
    """Put an adapter that PEFT or `save_adapter` wrote on a model, and let it alone act.

    Everything else is frozen, as `tune.apply` has it: `tune.switch(model, …)` lets others act.
    """
    files = open_adapter(path)
    if (tree := own_tree(files)) is not None:
        check_body(tree, model.config, files)
    put_adapter(model, files, name)


def put_adapter(model: Any, files: AdapterFiles, name: str = DEFAULT) -> None:
    """`load_adapter` of files that are open."""
    methods, state = _read(model, files)
    try:
        apply(model, methods, name, seed=0)
    except ConfigError as error:
        raise CheckpointError(f"{files.directory} does not fit this model: {error}") from None
    try:
        load_adapter_state(model, name, state)
    except CheckpointError as error:
        remove(model, name)
        raise CheckpointError(f"{files.directory}: {error}") from None


def _read(model: Any, files: AdapterFiles) -> tuple[Any, dict[str, Any]]:
    if "is" in files.raw:
        return methods_from_json(files.raw, files.file), files.tensors
    if is_library(files.raw):
        return read_library(model, files)
    kind = files.raw.get("peft_type")
    if kind not in BY_KIND:
        raise CheckpointError(
            f"{files.file} has peft_type={short(kind)}, which is none that is known here; known "
            f"are {', '.join(BY_KIND)}"
        )
    form, names = BY_KIND[kind], Names(model)
    fields = Fields(files.raw, files.file)
    tensors = plain_names(files.tensors, form.before)
    said = form.read(fields, tensors, names, model)
    fields.close()
    own = read_whole(fields, tensors, names, model)
    whole = tuple(covered(own.keys(), base_tensors(model)))
    beside = tuple(path for path in own if not any(path.startswith(f"{m}.") for m in whole))
    return replace(said.method, whole=(*whole, *beside)), said.state | own
