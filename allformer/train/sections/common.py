"""The sections that every recipe has; the data section is the objective's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from allformer.config.check import Rule
from allformer.text.tokenizer import KINDS, SPECIALS
from allformer.train.precision import NAMES
from allformer.train.sections.section import (
    Count,
    Section,
    Whole,
    at_least,
    at_most,
    one_of,
    share,
)

Often = Annotated[
    int | float,
    Rule(
        lambda x: 0 < x < 1 or (x >= 1 and x == int(x) and repr(x) != "1.0"),
        "must be a whole number of at least 1 (steps), or a share of all steps below 1",
        "try 500, or 0.1 (1.0 might be either: 1 is each step)",
    ),
]
RECOMPUTE = ("none", "layers", "selective")
_ROOM = 1 << 10  # a vocabulary to check with, before the tokeniser says how large it is


@dataclass(frozen=True)
class Tokenizing(Section, section="tokenizer"):
    """Where the tokeniser comes from."""

    @property
    def room(self) -> int:
        """So many ids to check a model with, before the tokeniser is there."""
        return _ROOM


@dataclass(frozen=True)
class TokenizerRecipe(Tokenizing):
    """One that is trained on the run's own texts."""

    kind: Annotated[str, one_of(*KINDS)] = "bpe"
    vocab: Annotated[int, at_least(len(SPECIALS) + 2)] = 8000
    lowercase: bool = False
    # BPE-dropout: train lines are cut anew, at random, each epoch
    dropout: Annotated[float, share("0.1, which is usual", whole=True)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dropout and self.kind != "bpe":
            self.refuse("dropout", f"needs tokenizer.kind=bpe, not {self.kind}", "set it to 0")

    @property
    def room(self) -> int:
        return self.vocab


@dataclass(frozen=True)
class CheckpointTokenizer(Tokenizing):
    """That of a checkpoint: a directory or a hub id."""

    checkpoint: str


@dataclass(frozen=True)
class NoTokenizer(Tokenizing):
    """Of an objective without words."""


@dataclass(frozen=True)
class TrainRecipe(Section, section="train"):
    """The loop."""

    steps: Count = 10_000
    epochs: Annotated[float | None, at_least(0.001)] = None  # if given, they say the steps
    batch_tokens: Count = 4096  # of each side, in a micro-batch
    batch_rows: Annotated[int | None, at_least(1)] = None  # and at most so many examples
    accumulate: Count = 1
    pool: Whole = 50  # batches whose examples are sorted by length together; 0: random batches
    smoothing: Annotated[float, share("0.1")] = 0.1
    z_loss: Annotated[float, at_least(0.0)] = 0.0  # times log² of the sum over the vocabulary
    precision: Annotated[str, one_of(*NAMES)] = "auto"
    recompute: Annotated[str, one_of(*RECOMPUTE)] = "none"  # activations: computed again, not kept
    redraw: Whole = 0  # random features (Performer), every so many steps; 0: never
    ema: Annotated[float | None, share("0.999")] = None  # the weights' moving average is what stays
    validate_every: Often = 500  # steps, or below 1 their share of all
    save_every: Often = 500
    keep: Annotated[int | None, at_least(1)] = None  # the last so many checkpoints; else `average`
    average: Count = 5  # the final weights are the mean of the last so many checkpoints
    best: str | None = None  # a validation figure: its best checkpoint stays, and is the result
    patience: Annotated[int | None, at_least(1)] = (
        None  # validations without a better one; then end
    )
    seed: Annotated[int, at_least(0), at_most(2**63 - 1)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None and self.best is None:
            self.refuse("patience", "needs a figure to wait for", "set train.best=nll, or another")

    def often(self, every: float, steps: int) -> int:
        """So many steps: `recipe.often(0.1, 200)` → 20, `recipe.often(500, 200)` → 500."""
        return max(1, round(every * steps)) if every < 1 else int(every)


@dataclass(frozen=True)
class LogRecipe(Section, section="log"):
    """What is written down on the way."""

    every: Count = 50  # steps
    tensorboard: bool = True
    wandb: str | None = None  # a project of Weights & Biases
    statistics: Whole = 0  # gradients and activations by layer, every so many steps; 0: never
    spike: Annotated[float, at_least(0.0)] = 0.0  # a loss so many times its usual spread is kept


@dataclass(frozen=True)
class ParallelRecipe(Section, section="parallel"):
    """How many processes share what; their product is torchrun's number of processes."""

    data: Whole = 0  # copies of the model, each with its own rows; 0: what the others leave
    shard: Count = 1  # copies that keep a part of the weights each (FSDP)
    tensor: Count = 1  # parts of every matrix
    context: Count = 1  # parts of every row
    pipeline: Count = 1  # groups of layers


@dataclass(frozen=True)
class DecodeRecipe(Section, section="decode"):
    """How a model that writes searches unless told otherwise."""

    beams: Annotated[int, at_least(1), at_most(1000)] = 4
    length_penalty: float = 1.0
