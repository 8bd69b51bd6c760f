"""The directory layout of sentence-transformers: how token states become one vector of a text.

    modules.json                  the steps, in order
    0_Transformer/ or the root    the model; sentence_bert_config.json: the longest text
    1_Pooling/config.json         cls, mean, max, …
    2_Dense/, 2_Normalize/        what follows

Read as sentence-transformers reads it; a step that is not known is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from allformer.checkpoint.files import open_tensors
from allformer.checkpoint.load import read_json
from allformer.checkpoint.stored import read_whole
from allformer.errors import CheckpointError
from allformer.tasks.pooling import Dense, LayerNorm, Normalise, Pooling, Step

# The older form: a switch for each, in the order in which several are put side by side.
SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Named after the first model of a kind; all hold the same fields.
TRANSFORMER_FILES = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
ACTS = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid",
    "SiLU": "silu", "Mish": "mish", "ReLU6": "relu6",
}  # fmt: skip


@dataclass(frozen=True)
class Sentence:
    """What the layout says: `read_sentence("all-MiniLM-L6-v2").steps`."""

    folder: Path  # of the model
    steps: tuple[Step, ...] = ()
    max_length: int | None = None
    lower: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    prompt_name: str | None = None  # the one that is used unless told otherwise
    measure: str = "cosine"


def read_sentence(root: Path) -> Sentence | None:
    """The layout of a directory; None where it is no sentence encoder's."""
    if not (root / "modules.json").is_file():
        return None
    modules = _modules(root)
    if not any(kind == "Pooling" for kind, _ in modules):
        return None  # of a cross-encoder or a sparse one: an ordinary checkpoint for us
    (first, folder), *rest = modules
    if first != "Transformer":
        raise _refuse(root, folder, first)
    steps = tuple(step for kind, path in rest if (step := _step(root, kind, path)) is not None)
    settings = _first_json(folder)
    _check_transformer(folder, settings)
    top = _json(root / "config_sentence_transformers.json")
    return Sentence(
        folder,
        steps,
        settings.get("max_seq_length"),
        bool(settings.get("do_lower_case")),
        {name: text for name, text in (top.get("prompts") or {}).items() if text},
        top.get("default_prompt_name"),
        top.get("similarity_fn_name") or "cosine",
    )


def _modules(root: Path) -> list[tuple[str, Path]]:
    """(class, folder) of each step."""
    file = root / "modules.json"
    try:
        entries = sorted(json.loads(file.read_text(encoding="utf-8")), key=lambda m: m["idx"])
        return [(str(m["type"]).rsplit(".", 1)[-1], root / m["path"]) for m in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{file} is no list of modules ({type(error).__name__}: {error}); download it again"
        ) from None


def _step(root: Path, kind: str, path: Path) -> Step | None:
    if kind == "Dropout":
        return None  # of training alone
    if kind == "Pooling":
        return _pooling(path, read_json(path / "config.json"))
    if kind == "Normalize":
        _check_names(path, _json(path / "config.json"))
        return Normalise()
    if kind == "LayerNorm":
        weights = _weights(path, ("norm.weight", "norm.bias"))
        return LayerNorm(weights["norm.weight"], weights["norm.bias"])
    if kind == "Dense":
        return _dense(path, read_json(path / "config.json"))
    raise _refuse(root, path, kind)


def _pooling(path: Path, settings: dict[str, Any]) -> Pooling:
    modes = settings.get("pooling_mode")
    if modes is None:
        modes = [mode for switch, mode in SWITCHES.items() if settings.get(switch)] or ["mean"]
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    unknown = [mode for mode in modes if mode not in SWITCHES.values()]
    unknown += [key for key in settings if key.startswith("pooling_mode_") and key not in SWITCHES]
    if unknown:
        raise CheckpointError(
            f"{path / 'config.json'} pools by {unknown[0]!r}, which is not known; known are "
            f"{', '.join(SWITCHES.values())}"
        )
    return Pooling(modes, bool(settings.get("include_prompt", True)))


def _dense(path: Path, settings: dict[str, Any]) -> Dense:
    _check_names(path, settings)
    name = str(settings.get("activation_function", "Tanh"))
    act = ACTS.get(name.rsplit(".", 1)[-1])
    if act is None or settings.get("use_residual"):
        what = "use_residual" if act is not None else f"activation_function={name!r}"
        raise CheckpointError(
            f"{path / 'config.json'} has {what}, which is not supported; supported are "
            f"{', '.join(ACTS)}, without residual"
        )
    bias = settings.get("bias", True)
    weights = _weights(path, ("linear.weight", "linear.bias") if bias else ("linear.weight",))
    return Dense(weights["linear.weight"], weights.get("linear.bias"), act)


def _weights(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    files = open_tensors(path)
    if set(files) != set(names):
        raise CheckpointError(f"{path} holds {', '.join(files)}; expected are {', '.join(names)}")
    return {name: read_whole(files[name]) for name in names}


def _check_names(path: Path, settings: dict[str, Any]) -> None:
    """A step that reads or writes something other than the sentence's vector."""
    for key in ("module_input_name", "module_output_name"):
        if settings.get(key) not in (None, "sentence_embedding"):
            raise CheckpointError(
                f"{path / 'config.json'} has {key}={settings[key]!r}, which is not supported; "
                f"supported is 'sentence_embedding'"
            )


def _check_transformer(folder: Path, settings: dict[str, Any]) -> None:
    """Newer versions can say which task, inputs and outputs the model has."""
    text = (settings.get("modality_config") or {}).get("text")
    wanted = {
        "transformer_task": (None, "feature-extraction"),
        "module_output_name": (None, "token_embeddings"),
        "processing_kwargs": (None, {}),
        "query_length": (None,),
        "document_length": (None,),
        "query_expansion": (None,),
    }
    wrong = [key for key, allowed in wanted.items() if settings.get(key) not in allowed]
    if text not in (None, {"method": "forward", "method_output_name": "last_hidden_state"}):
        wrong.append("modality_config")
    if wrong:
        raise CheckpointError(
            f"{folder} asks for {wrong[0]}={settings[wrong[0]]!r} of sentence-transformers, which "
            f"is not supported; supported are encoders of plain text"
        )


def _first_json(folder: Path) -> dict[str, Any]:
    return next((found for name in TRANSFORMER_FILES if (found := _json(folder / name))), {})


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _refuse(root: Path, path: Path, kind: str) -> CheckpointError:
    known = "Transformer, Pooling, Dense, LayerNorm, Normalize and Dropout"
    return CheckpointError(
        f"{root / 'modules.json'} has the step {path.name or 'at its root'} ({kind}), which is not "
        f"supported; supported are {known}"
    )
