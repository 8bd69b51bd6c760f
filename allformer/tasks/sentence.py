"""The directory layout of sentence-transformers: how token states become one vector of a text.

    modules.json                  the steps, in order
    0_Transformer/ or the root    the model; sentence_bert_config.json: the longest text
    1_Pooling/config.json         cls, mean, max, …
    2_Dense/, 2_Normalize/        what follows

Read as sentence-transformers reads it; a step that is not known is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from allformer.checkpoint.files import LONGEST_NAME, open_tensors
from allformer.checkpoint.load import read_json
from allformer.checkpoint.stored import read_whole
from allformer.errors import CheckpointError
from allformer.families.kinds import short
from allformer.json_file import read_json as read_json_file
from allformer.tasks.pooling import Dense, LayerNorm, Normalise, Pooling, Step

S = TypeVar("S")
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
KNOWN = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
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
    if _is_other(modules):
        return None
    if not any(module.kind == "Pooling" for module in modules):
        for module in modules:
            if module.kind not in KNOWN:
                raise _refuse(root, module.folder, module.kind)
        raise CheckpointError(
            f"{root / 'modules.json'} has no Pooling among its steps, so that nothing makes one "
            f"vector of a text; download it again"
        )
    (first, folder, _), *rest = modules
    if first != "Transformer":
        raise _refuse(root, folder, first)
    steps = tuple(s for m in rest if (s := _step(root, m.kind, m.folder)) is not None)
    settings = _first_json(folder)
    _check_transformer(folder, settings)
    top = _json(root / "config_sentence_transformers.json")
    prompts = _said(root, top, "prompts", dict)
    return Sentence(
        folder,
        steps,
        _said(folder, settings, "max_seq_length", int),
        bool(settings.get("do_lower_case")),
        {name: str(text) for name, text in (prompts or {}).items() if text},
        _said(root, top, "default_prompt_name", str),
        _said(root, top, "similarity_fn_name", str) or "cosine",
    )


def refuse_other_vectors(root: Path) -> None:
    """Vectors of a layout that is read as an ordinary checkpoint: they are made in another way."""
    modules = _modules(root) if (root / "modules.json").is_file() else []
    if rest := [module for module in modules if module.kind not in ("Transformer", "Dropout")]:
        raise _refuse(root, rest[0].folder, rest[0].kind)


class Module(NamedTuple):
    """A step: its class, its folder, and where the class comes from."""

    kind: str
    folder: Path
    room: str


def _modules(root: Path) -> list[Module]:
    """The steps, in order."""
    file = root / "modules.json"
    entries, found = read_json_file(file, CheckpointError), []
    try:
        for entry in sorted(entries, key=lambda m: m["idx"]):
            room, _, kind = str(entry["type"]).rpartition(".")
            found.append(Module(kind, _inside(root, str(entry["path"])), room))
        if not found:
            raise ValueError("it is empty")
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{file} is no list of modules ({type(error).__name__}: {error}); download it again"
        ) from None
    return found


def _inside(root: Path, path: str) -> Path:
    """A folder of the directory: what a file from elsewhere names never leads out of it."""
    parts = PureWindowsPath(path)  # splits at both slashes, and knows drives
    leads_out = (
        parts.is_absolute() or parts.drive or parts.root or ".." in parts.parts or "\0" in path
    )
    if leads_out or any(len(part.encode()) > LONGEST_NAME for part in parts.parts):
        raise CheckpointError(
            f"{root / 'modules.json'} names the folder {short(path)}, which is not inside the "
            f"directory; a step must lie in a folder of its own there"
        )
    return root.joinpath(*parts.parts)


def _is_other(modules: list[Module]) -> bool:
    """Of a cross-encoder or a sparse one: an ordinary checkpoint for us."""
    elsewhere = any("cross_encoder" in m.room or "sparse_encoder" in m.room for m in modules)
    return elsewhere or [m.kind for m in modules] == ["Transformer"]


def _said(where: Path, settings: dict[str, Any], name: str, kind: type[S]) -> S | None:
    """A setting, if it is of its type."""
    value = settings.get(name)
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise CheckpointError(
        f"{where} has {name}={short(value)} in its settings, which must be a {kind.__name__}"
    )


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
    modes = modes if isinstance(modes, list) else [modes]
    unknown = [mode for mode in modes if mode not in SWITCHES.values()]
    unknown += [key for key in settings if key.startswith("pooling_mode_") and key not in SWITCHES]
    if unknown:
        raise CheckpointError(
            f"{path / 'config.json'} pools by {unknown[0]!r}, which is not known; known are "
            f"{', '.join(SWITCHES.values())}"
        )
    return Pooling(tuple(modes), bool(settings.get("include_prompt", True)))


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
    text = (_said(folder, settings, "modality_config", dict) or {}).get("text")
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
    return CheckpointError(
        f"{root / 'modules.json'} has the step {path.name or 'at its root'} ({short(kind)}), which "
        f"is not supported; supported are {', '.join(KNOWN)}"
    )
