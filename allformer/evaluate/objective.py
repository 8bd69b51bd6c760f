"""The figures of an objective on a split: those that training reports, of any run or checkpoint."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from allformer import config
from allformer.checkpoint.codec import load_codec
from allformer.checkpoint.hub import find_checkpoint
from allformer.checkpoint.load import load, read_config_of
from allformer.checkpoint.run import SOUND_TOKENS
from allformer.checkpoint.sound_codec import load_sound_codec
from allformer.core.precision import pick_device
from allformer.data.records.open import open_splits
from allformer.errors import ConfigError, DataError, TaskError
from allformer.families.family import head_kind
from allformer.images import load_processor
from allformer.tasks.image_pipeline import ImagePipeline, open_image_pipeline
from allformer.tasks.pipeline import Pipeline, open_pipeline
from allformer.train.objectives import find_objective
from allformer.train.progress import Asides
from allformer.train.recipe import make_recipe, read_recipe
from allformer.train.sections.recipe import Recipe
from allformer.train.validate import validate

RECIPE = "recipe.yaml"
NAMES = {"test": "test", "val": "validation", "train": "train"}
# What a data section with files of its own does not have.
_PLAIN: dict[str, Any] = {"corpus": None, "weights": (), "stream": False, "hold_out": None}
# What a checkpoint is for, by its shape and the kind of its head.
_ENCODER = {
    "class": "classification", "token": "tagging", "span": "answering", "bare": "vectors",
}  # fmt: skip
TOLD = {
    config.DecoderOnly: {**_ENCODER, "words": "causal-lm"},
    config.EncoderOnly: {
        **_ENCODER,
        "words": "masked-lm",
        "pretrain": "masked-lm",
        "choice": "choice",
    },
    config.EncoderDecoder: {**_ENCODER, "words": "seq2seq"},
}


@runtime_checkable
class Scored(Protocol):
    """A data section that knows how it is scored on another split, or on other data."""

    def scored(self, path: str | None, split: str | None) -> tuple[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Wordless:
    """What needs nothing beside its weights to be scored: a codec of sound, a stage of AudioLM."""

    model: Any = field(repr=False)
    directory: Path
    tokenizer: None = None

    @property
    def architecture(self) -> str:
        """`EncodecModel`; of a run of our own, what it is."""
        return self.model.provenance.architecture or type(self.model.config).__name__


Opened = Pipeline | ImagePipeline | Wordless


def recipe_of(directory: Path) -> Recipe | None:
    """What a run was trained by; None for a checkpoint from elsewhere."""
    path = directory / RECIPE
    return read_recipe(path) if path.is_file() else None


def open_any(model: str, device: str | None = None, dtype: torch.dtype | None = None) -> Opened:
    """A checkpoint that reads text, or one that sees, or a codec: by what its config reads."""
    directory = find_checkpoint(model)
    if (directory / SOUND_TOKENS).is_file():
        return Wordless(load(directory, device=pick_device(device), dtype=dtype), directory)
    file = directory / "config.json"
    tree = read_config_of(file) if file.is_file() else None
    if isinstance(tree, config.Codec):
        model_of = load_codec(directory, device=pick_device(device), dtype=dtype)
        return ImagePipeline(model_of, load_processor(directory), directory)  # type: ignore[arg-type]
    if isinstance(tree, config.SoundCodec):
        codec = load_sound_codec(directory, device=pick_device(device), dtype=dtype)
        return Wordless(codec, directory)
    stacks = () if tree is None else tree.stacks.values()
    if any(isinstance(stack.source, config.Patches | config.ResNet) for stack in stacks):
        return open_image_pipeline(directory, device=device, dtype=dtype)
    return open_pipeline(directory, device=device, dtype=dtype)


def told_objective(pipeline: Opened) -> str:
    """The objective that a checkpoint's head tells: `told_objective(gpt2)` → "causal-lm"."""
    tree = pipeline.model.config
    if isinstance(tree, config.Codec):
        return "image-codec"
    if isinstance(tree, config.SoundCodec):
        return "sound-codec"
    if isinstance(pipeline, ImagePipeline) and "classify-image" in pipeline.can:
        return "image-classification"
    kind = head_kind(tree)
    if kind == "words" and isinstance(tree.reader.source, config.Sound):
        return "transcription"
    found = next((table for shape, table in TOLD.items() if isinstance(tree, shape)), {})
    if kind not in found:
        raise TaskError(
            f"{pipeline.directory} is a {pipeline.architecture}, whose head tells no objective to "
            f"score it by; give --objective"
        )
    return found[kind]


def checkpoint_recipe(
    pipeline: Opened, objective: str, data: str, overrides: Iterable[str] = ()
) -> Recipe:
    """A recipe for a checkpoint that none of ours has trained, so that it can be scored."""
    given = {
        "objective": objective,
        "model": {"checkpoint": str(pipeline.directory)},
        "data": {"path": data},
    }
    return make_recipe(given, overrides, "evaluate")


def evaluate_objective(
    pipeline: Opened,
    recipe: Recipe,
    *,
    data: str | None = None,
    split: str | None = None,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> dict[str, Any]:
    """What validation reports of a model, on a split of its recipe's data or on other `data`.

    >>> evaluate_objective(pipeline, recipe_of(Path("runs/sst2")), split="test")["accuracy"]
    0.81

    `split` is test, val or train; None takes test where the data is a directory with one, else
    val. A file in `data` is the split itself.
    """
    name, found = _on(recipe, data, split)
    objective = find_objective(found.objective)(found)
    objective.open()
    objective.encode(pipeline.tokenizer if objective.words else None, say)
    examples = objective.examples(0) if name == "train" else objective.validation
    count = len(objective.lengths(examples)[0])
    if not count:
        raise DataError("there is nothing to score: the split has no example; give another")
    objective.aside = Asides(say)
    figures = validate(objective, pipeline.model, examples, batch_tokens=found.train.batch_tokens)
    head: dict[str, Any] = {"objective": found.objective, "split": name, "examples": count}
    if objective.perplexity:
        figures = {"nll": figures.pop("nll"), "perplexity": math.nan, **figures}
        figures["perplexity"] = math.exp(min(figures["nll"], 700.0))
    return head | figures


def _on(recipe: Recipe, data: str | None, split: str | None) -> tuple[str, Recipe]:
    """The recipe whose validation split is the one that is asked for, and what to call it."""
    if split is not None and split not in NAMES:
        raise DataError(f"split={split!r} is not known; try {', '.join(NAMES)}")
    own = recipe.data
    if isinstance(own, Scored):
        name, section = own.scored(data, split)
        return name, replace(recipe, data=section)
    where = data if data is not None else getattr(own, "path", None)
    folder = isinstance(where, str) and Path(where).is_dir()
    if data is None and (split in ("val", "train") or not folder):
        if split == "test":
            raise DataError(
                f"the data has no test split: data.path={where!r} is no directory with one; give "
                f"--data FILE, or --split val"
            )
        return split or "val", recipe
    assert isinstance(where, str)
    if not folder:
        return split or "all", replace(recipe, data=_only(own, where))
    format = getattr(own, "format", "auto")
    if split is None and data is None and set(_there(where, format)) <= {"train"}:
        return "val", recipe  # which training held out
    name, files = split_files(where, split, format)
    return name, replace(recipe, data=_only(own, files))


def split_files(
    folder: str, split: str | None, format: str = "auto"
) -> tuple[str, tuple[str, ...]]:
    """The files of a split in a directory: `split_files("wikitext", None)` → ("test", (…,)).

    None takes test, else val, else all that there is.
    """
    there = _there(folder, format)
    name = split or next((name for name in NAMES if name in there), "test")
    if name not in there:
        raise DataError(
            f"{folder} has no {name} split; it has {', '.join(there) or 'none'}; try --split "
            f"{next(iter(there), 'val')}, or give --data FILE"
        )
    return name, there[name]


def _there(folder: str, format: str) -> dict[str, tuple[str, ...]]:
    found = open_splits(folder, format)
    parts = {name: getattr(found, part) for name, part in NAMES.items()}
    return {
        name: tuple(str(source.path) for source in part.sources)
        for name, part in parts.items()
        if part is not None
    }


def _only(own: Any, files: str | tuple[str, ...]) -> Any:
    """The data section for which these files are all there is."""
    known = {field.name for field in fields(own)}
    if not {"path", "validation"} <= known:
        raise ConfigError(
            f"{type(own).__name__} names no file to validate on, so that other data cannot be "
            f"scored; leave --data out"
        )
    one = files[0] if not isinstance(files, str) and len(files) == 1 else files
    plain = {name: x for name, x in _PLAIN.items() if name in known}
    return replace(own, path=one, validation=one, **plain)
