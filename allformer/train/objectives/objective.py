"""What a model is taught: an objective gives examples, collates them, and sums losses.

    @register("causal-lm")
    class CausalLM(Objective[Lines, LineBatch]): ...

    train(make_recipe({"objective": "causal-lm", …}), "runs/mine")

One file each. The loop, the step, the stream of batches, validation and the diagnosis know an
objective by what is here and nothing of its models, sides or labels.

An objective may have settings of its own (`Options`: `objective: {is: NAME, …}`) and reads the data
section by a class of its own (`Data`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, B, Frame, moved
from allformer.train.predictions import Predictions
from allformer.train.sections.data import PathData
from allformer.train.sections.recipe import Recipe
from allformer.train.sections.section import NoOptions, Section
from allformer.train.shown_batch import ShownRow

E = TypeVar("E")  # the examples of an epoch
Lengths = npt.NDArray[np.int64]
Say = Callable[[str], None]


class Objective(ABC, Generic[E, B]):
    """One run's: made of its recipe, then given the data, then the tokeniser.

    The order of calls: `open`, `config` (all that can be refused is refused), `texts`,
    `tokenizer`, `encode`, `config` again for the tokeniser that there is now, and then `chunks`,
    `collate`, `ready` and `loss` again and again. One without `words` (of images alone) has no
    texts and no tokeniser: `encode` gets None for a `Tokenizer`, `config` for a `Vocabulary`.
    """

    name: ClassVar[str]  # under which it is registered
    words: ClassVar[bool] = True  # whether there is text, and so a tokeniser
    waits: bool = False  # whether its loss waits for the device, so that no graph of it is made
    compiles: ClassVar[bool] = True  # whether its loss may be compiled; captured it may be anyway
    shape: ClassVar[str] = "encoder-decoder"  # of a model that the recipe gives as sizes alone
    Options: ClassVar[type[Section]] = NoOptions
    Data: ClassVar[type[Section]] = PathData
    # The losses that are added up, each a mean over its own labels: BERT's words and pairs.
    terms: tuple[str, ...] = ("nll",)
    perplexity: ClassVar[bool] = True  # whether exp of the first term says something
    compares: ClassVar[bool] = False  # with what was before training: it is validated then too
    unit: ClassVar[str] = "tok"  # what a batch's `tokens` are, where a speed is shown
    specials: tuple[str, ...] = ()  # further special tokens of a tokeniser that is trained for it
    # The ranks that read other batches, for a loss that looks at all of a step; None: nobody else.
    others: Any = None
    # `aside("validating", done, total)` tells how far something is that steps wait for.
    aside: Callable[[str, int, int], None] = staticmethod(lambda what, done, total: None)
    # What its recipes have unless they say otherwise, where that is not what a translator's have.
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {"train": {"smoothing": 0.0}}

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.recipe = Recipe() if recipe is None else recipe

    # --- data -----------------------------------------------------------------------------------

    @abstractmethod
    def open(self, corpus: Any = None) -> None:
        """Find the data that the recipe names, or take `corpus` for it; nothing is read whole."""

    def texts(self) -> Iterable[str]:
        """The training texts, for the tokeniser to be trained on; none of one without words."""
        return ()

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """The tokeniser as the tasks shall find it: what it puts around a text, how long it is."""
        return trained

    @abstractmethod
    def encode(self, tokenizer: Any, say: Say) -> None:
        """Keep the examples for training and validation as ids; `say` what was left out."""

    @abstractmethod
    def examples(self, epoch: int) -> E:
        """The examples of an epoch: the same each time, or drawn anew by (seed, epoch) alone."""

    def chunks(self, epoch: int, first: int = 0) -> Iterator[E]:
        """An epoch's examples in parts, from number `first` on: one, unless it is a stream.

        The same parts each time, by (seed, epoch) alone: a resumed run begins in their midst.
        """
        if not first:
            yield self.examples(epoch)

    @property
    @abstractmethod
    def validation(self) -> E:
        """The examples that are held out."""

    @abstractmethod
    def lengths(self, examples: E) -> tuple[Lengths, Lengths]:
        """The tokens that each example takes on either side (twice the same where one is all)."""

    def order(self, examples: E) -> list[Array] | None:
        """The batches in an order of their own, as numbers of examples; None: cut by length, in a
        random order."""
        return None

    def expect(self, examples: E, index: Array) -> None:
        """These will be collated next: what takes long may begin."""

    def fingerprint(self) -> str:
        """Of the training data, to know it again when the run is resumed."""
        seen = blake2b(digest_size=16)
        for text in self.texts():
            data = text.encode("utf-8", "surrogatepass")
            seen.update(len(data).to_bytes(8, "little") + data)
        return seen.hexdigest()

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """The most tokens of a side of an example: a batch holds one at least."""
        longest: int = self.recipe.data.max_length
        return min(longest, self.recipe.train.batch_tokens)

    def config(self, vocabulary: Any) -> Any:
        """The config tree to train; one that this objective cannot train is refused."""
        return self.recipe.model.fitted(self.shape, self.longest, vocabulary)

    def generation(self, config: Any) -> dict[str, Any] | None:
        """The generation_config.json to leave beside the weights."""
        return None

    def leave(self, run: Path) -> None:
        """Write what the tasks need beside weights and tokeniser: how images are prepared."""

    def finish(self, run: Path) -> None:
        """Training has ended and the run is written: keep what has learnt beside the model, where
        that is asked for."""

    # --- batches and losses -----------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """One size for all batches of a compiled step; None: they have one size anyway."""
        tokens = self.recipe.train.batch_tokens
        rows = self.recipe.train.batch_rows or max(1, tokens // 6)
        return Frame(tokens, rows, self.longest)

    @abstractmethod
    def collate(self, examples: E, index: Array, frame: Frame | None = None) -> B:
        """The examples numbered `index` as one batch; with a `frame`, filled up to its size."""

    def at(self, step: int) -> None:
        """Step `step` comes next, the first is 1: what changes as training goes on, such as a
        temperature, is a function of it alone. A captured step reads what is changed in place."""

    @property
    def form(self) -> Hashable:
        """Which of several kinds of step comes next, where they do not do the same work: each kind
        is captured as a graph of its own."""
        return None

    def ready(self, batch: B) -> B:
        """What is done to a batch on the device before the step: augmentation, whole batches at
        once. Here nothing.

        It is run eagerly, without gradients, before `loss` and everything that is made of a batch.
        A batch with a field `key` has there, in training, a number that (seed, epoch, place) alone
        decide, so that a resumed run and a replay draw the same; in validation it has None, and
        nothing is left to chance. torch's own generators are left alone.
        """
        return batch

    def onto(self, batch: B, device: torch.device | str) -> B:
        """A batch as `loss` reads it: on the device, and made ready."""
        with torch.no_grad():
            return self.ready(moved(batch, device))

    @abstractmethod
    def loss(
        self,
        model: Any,
        batch: B,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Sums over the labels that count: the loss to go down, and the plain NLL to report.

        Each is a number, or with several `terms` a vector of them. The batch is on the model's
        device. Compiled, its `tokens` is 0: nothing here reads it.
        """

    # --- what learns beside the model -------------------------------------------------------------

    def meet(self, model: Any, captures: bool) -> None:
        """The model that a step trains is there, on its device: what learns beside it is made here,
        such as an opponent (`train.opponent`). `captures`: the step may become part of a graph."""

    def compare(self, model: Any) -> None:
        """Keep what the model says before its first step, for `predictions` at the end; called of
        one that `compares`. In `state`, it is there after a resume too."""

    def stepped(self, rate: Tensor | float) -> None:
        """The gradients of all micro-batches of a step are in, and the weights have followed them.

        What learns by steps and is no weight of the model follows here: an opponent, a codebook of
        moving means. It is part of what is captured: changes are in place and wait for nothing.
        `rate` is the step's, a tensor on the device where it is captured.
        """

    def figures(self) -> dict[str, float]:
        """Of the last step, for the log beside its loss: how an opponent fares."""
        return {}

    def state(self) -> dict[str, Any]:
        """What a resumed run must have to go on as if nothing had happened: tensors by name."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""

    def measured(self, model: Any) -> tuple[str, ...]:
        """The names of what `measures`, `follows` and `metrics` will find of this run's held-out
        examples: what `train.best` may say beside `nll` and the `nll_TERM` of several `terms`.
        Asked once the data is open and the model was met."""
        return ()

    def counts(self, batch: B) -> tuple[int, ...]:
        """How many labels each of `terms` is a sum over: what the batch says."""
        return getattr(batch, "counts", ()) or (batch.tokens,)

    def measures(
        self, model: Any, batch: B, *, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """Further sums over a batch of validation, reported as `validation_NAME` per label: of the
        first term, or of the one that the name begins with (`pair_accuracy` of `pair`)."""
        return {}

    def appraise(
        self, model: Any, batch: B, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The plain NLL of a batch of validation and its `measures`; one pass may give both."""
        _, nll = self.loss(model, batch, dtype=dtype)
        return nll, self.measures(model, batch, dtype=dtype)

    def follows(self, means: Mapping[str, float], examples: E) -> dict[str, float]:
        """Figures that follow from the means over a whole set: bits per byte from `nll`."""
        return {}

    def metrics(
        self, model: Any, examples: E, *, batch_tokens: int = 4096, dtype: torch.dtype | None = None
    ) -> dict[str, float]:
        """Figures of a whole set, which are no sums: F1, exact match, a rank correlation."""
        return {}

    def shown(self, batch: B) -> tuple[ShownRow, ...]:
        """A batch as text, and which of it is learnt; none: there is nothing to look at."""
        return ()

    def predictions(self, model: Any, examples: E, count: int = 50) -> Predictions | None:
        """What the model says of some of the examples, for the report; None: nothing to show."""
        return None


OBJECTIVES: dict[str, type[Objective[Any, Any]]] = {}
O = TypeVar("O", bound=type[Objective[Any, Any]])


def register(name: str) -> Callable[[O], O]:
    """Let recipes say `objective: NAME`; a later class of the same name takes its place."""

    def keep(cls: O) -> O:
        cls.name = name
        OBJECTIVES[name] = cls
        return cls

    return keep
