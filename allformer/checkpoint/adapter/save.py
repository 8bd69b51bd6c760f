"""`save_adapter`: an adapter of a model as PEFT lays it out, or in our own words.

save_adapter(model, "out")                        # the adapter that acts, where it is one
save_adapter(model, "out", name="tales", base="openai-community/gpt2")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.adapter.files import CONFIG, HEADS, WEIGHTS
from allformer.checkpoint.adapter.form import Form, NotPeft, Tensors
from allformer.checkpoint.adapter.forms import BY_METHOD
from allformer.checkpoint.adapter.library import HEAD_CONFIG, write_library
from allformer.checkpoint.adapter.names import Names
from allformer.checkpoint.adapter.own import OWN, methods_to_json
from allformer.checkpoint.adapter.task import task_of
from allformer.checkpoint.adapter.whole import write_whole
from allformer.checkpoint.save import config_of, write_json
from allformer.checkpoint.weights import write_tensors
from allformer.errors import CheckpointError
from allformer.tune.apply import active, check_free
from allformer.tune.bitfit import BitFit
from allformer.tune.state import adapter_state
from allformer.tune.tuning import must_be_tuned

LAYOUTS = ("peft", "allformer", "adapters")


def save_adapter(
    model: Any,
    path: str | Path,
    *,
    name: str | None = None,
    base: str | Path | None = None,
    layout: str | None = None,
    config: bool = True,
) -> str:
    """Write adapter_config.json, adapter_model.safetensors and, unless not `config`, config.json.

    `name` may be left out where one adapter acts. `base` is the model below, as others shall find
    it (by default where this one was loaded from). `layout` is "peft", "allformer" for our own
    words, or "adapters" for bottlenecks as that library has them; by default PEFT's where it has
    words for the adapter. Gives the layout written.
    """
    tuning = must_be_tuned(model)
    check_free(tuning)
    name = _the_one(model) if name is None else tuning.known(name)
    if tuning.adapters[name].in_place:
        raise CheckpointError(
            f"adapter {name!r} has trained the model itself; write that: af.save(model, {path!s})"
        )
    if layout not in (None, *LAYOUTS):
        raise CheckpointError(f"layout={layout!r} is not known; try {' or '.join(LAYOUTS)}")
    below = model.provenance.source if base is None else str(base)
    if layout == LAYOUTS[2]:
        _save_library(model, name, Path(path), below, config)
        return layout
    said, tensors = _in_own_words(model, name)
    written = LAYOUTS[1]
    if layout != LAYOUTS[1]:
        try:
            said, tensors = _as_peft(model, name)
            written = LAYOUTS[0]
        except (NotPeft, CheckpointError) as error:
            if layout is not None:
                why = str(error).partition(" (")[0]  # without what each family lacks
                raise CheckpointError(
                    f"adapter {name!r} cannot be said in PEFT's layout: {why}; leave layout out"
                ) from None
    said |= _below(below)
    if model.provenance.quantised is not None:
        said["quantised"] = model.provenance.quantised
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors({key: x.cpu() for key, x in tensors.items()}, directory / WEIGHTS[0])
    if config:
        write_json(directory / "config.json", config_of(model))
    write_json(directory / CONFIG, said)
    return written


def _save_library(model: Any, name: str, directory: Path, below: str, config: bool) -> None:
    """The files that the `adapters` library opens unless it is told of others."""
    said, tensors, head = write_library(model, name)
    said["model_name"] = below
    directory.mkdir(parents=True, exist_ok=True)
    if config:
        write_json(directory / "config.json", config_of(model))
    write_json(directory / CONFIG, said)
    torch.save({key: x.cpu() for key, x in tensors.items()}, directory / WEIGHTS[3])
    if head:
        torch.save({key: x.cpu().clone() for key, x in head.items()}, directory / HEADS[1])
        more = {"config": None, "name": None, "label2id": config_of(model).get("label2id")}
        write_json(directory / HEAD_CONFIG, {**said, **more})


def _the_one(model: Any) -> str:
    acting = active(model)
    if len(acting) != 1:
        there = ", ".join(must_be_tuned(model).adapters)
        raise CheckpointError(
            f"{len(acting)} adapters act on this model; name the one to write: name=… of {there}"
        )
    return acting[0]


def _below(base: str) -> dict[str, Any]:
    """The model below, and its revision where it is one of the hub."""
    name, at, revision = base.partition("@")
    if at and not Path(base).is_dir():
        return {"base_model_name_or_path": name, "revision": revision}
    return {"base_model_name_or_path": base or None, "revision": None}


def _in_own_words(model: Any, name: str) -> tuple[dict[str, Any], Tensors]:
    methods = model.tuning.adapters[name].methods
    return {"is": OWN, "methods": methods_to_json(methods)}, adapter_state(model, name)


def _as_peft(model: Any, name: str) -> tuple[dict[str, Any], Tensors]:
    adapter = model.tuning.adapters[name]
    form, method = _form(adapter.methods)
    names = Names(model)
    written = form.write(method, name, names, model)
    whole = write_whole(adapter.own, names, model, written.modules)
    if whole.bias != "none" and not form.biases:
        raise NotPeft(f"{form.kind} has no biases beside it")
    task = task_of(model, names, whole.modules)
    if form.tasked and task["task_type"] is None:
        raise NotPeft(f"it has no task for {names.architecture} with {form.kind}")
    said = {
        "peft_type": form.kind,
        "inference_mode": True,
        "modules_to_save": whole.modules or None,
        **({"bias": whole.bias} if form.biases else {}),
        **task,
        **written.fields,
    }
    tensors = written.tensors | whole.tensors
    return said, {f"{form.before}{key}": x for key, x in tensors.items()} | written.beside


def _form(methods: tuple[Any, ...]) -> tuple[Form, Any]:
    """The method that PEFT has a name for; biases may stand beside it."""
    main = [m for m in methods if not isinstance(m, BitFit)]
    if len(main) != 1:
        raise NotPeft("it has no name for these methods together")
    if type(main[0]) not in BY_METHOD:
        raise NotPeft(f"it has no {type(main[0]).name}")
    return BY_METHOD[type(main[0])], main[0]
