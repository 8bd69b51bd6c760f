"""The whole recipe: one section each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from allformer.train.optim import AdamW, Optim
from allformer.train.schedule import InverseSqrt, Schedule
from allformer.train.sections.common import (
    CheckpointTokenizer,
    DecodeRecipe,
    LogRecipe,
    NoTokenizer,
    ParallelRecipe,
    TokenizerRecipe,
    Tokenizing,
    TrainRecipe,
)
from allformer.train.sections.data import PairData
from allformer.train.sections.model import AnyModelRecipe, CheckpointModel, ModelRecipe
from allformer.train.sections.section import NoOptions, Section
from allformer.train.sections.tune import TuneRecipe


@dataclass(frozen=True)
class Recipe:
    """Everything that a training run is. `options` are the objective's own settings, and `data` is
    read by its own section: those of seq2seq where they are left out."""

    name: str = "run"
    objective: str = "seq2seq"
    options: Any = None
    data: Any = None
    tokenizer: Tokenizing = None  # type: ignore[assignment]
    model: AnyModelRecipe = field(default_factory=ModelRecipe)
    tune: TuneRecipe | None = None  # what is trained of the model; None: all of it
    optim: Optim = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=InverseSqrt)
    train: TrainRecipe = field(default_factory=TrainRecipe)
    parallel: ParallelRecipe = field(default_factory=ParallelRecipe)
    log: LogRecipe = field(default_factory=LogRecipe)
    decode: DecodeRecipe = field(default_factory=DecodeRecipe)

    def __post_init__(self) -> None:
        usual: dict[str, Callable[[], Any]] = {
            "options": NoOptions, "data": PairData, "tokenizer": self._usual_tokenizer,
        }  # fmt: skip
        for name, make in usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, make())

    def _usual_tokenizer(self) -> Tokenizing:
        """A checkpoint comes with its tokeniser."""
        if isinstance(self.model, CheckpointModel):
            return CheckpointTokenizer(self.model.checkpoint)
        return TokenizerRecipe()

    def plain(self) -> dict[str, Any]:
        """Sections, lists and numbers, as in a file."""
        plain: dict[str, Any] = {}
        for name in (f.name for f in fields(self) if f.name != "options"):
            value = getattr(self, name)
            if value is None or isinstance(value, NoTokenizer):
                continue
            plain[name] = value.plain() if isinstance(value, Section) else value
        if options := self.options.plain():
            plain["objective"] = {"is": self.objective, **options}
        return plain

    def to_yaml(self) -> str:
        """Text that `read_recipe` reads back."""
        import yaml

        text: str = yaml.safe_dump(self.plain(), sort_keys=False, allow_unicode=True)
        return text
