"""What a model is taught: an objective gives examples, collates them, and sums losses.

    @register("causal-lm")
    class CausalLM(Objective[Lines, LineBatch]): ...

    train(make_recipe({"objective": "causal-lm", …}), "runs/mine")

One file each. The loop, the step, the stream of batches, validation and the diagnosis know an
objective by what is here and nothing of its models, sides or labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Array, B, Frame
from allformer.train.model import model_config
from allformer.train.recipe import Recipe

E = TypeVar("E")  # the examples of an epoch
Lengths = npt.NDArray[np.int64]
Say = Callable[[str], None]


class Objective(ABC, Generic[E, B]):
    """One run's: made of its recipe, then given the data, then the tokeniser.

    The order of calls: `open`, `config` (all that can be refused is refused), `texts`,
    `tokenizer`, `encode`, and then `examples`, `collate` and `loss` again and again.
    """

    name: ClassVar[str]  # under which it is registered

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.recipe = Recipe() if recipe is None else recipe

    # --- data -----------------------------------------------------------------------------------

    @abstractmethod
    def open(self, corpus: Any = None) -> None:
        """Find the data that the recipe names, or take `corpus` for it; nothing is read whole."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """The training texts, for the tokeniser to be trained on."""

    def tokenizer(self, trained: Tokenizer) -> Tokenizer:
        """The tokeniser as the tasks shall find it: what it puts around a text, how long it is."""
        return trained

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, say: Say) -> None:
        """Keep the examples for training and validation as ids; `say` what was left out."""

    @abstractmethod
    def examples(self, epoch: int) -> E:
        """The examples of an epoch: the same each time, or drawn anew by (seed, epoch) alone."""

    @property
    @abstractmethod
    def validation(self) -> E:
        """The examples that are held out."""

    @abstractmethod
    def lengths(self, examples: E) -> tuple[Lengths, Lengths]:
        """The tokens that each example takes on either side (twice the same where one is all)."""

    def fingerprint(self) -> str:
        """Of the training data, to know it again when the run is resumed."""
        seen = blake2b(digest_size=16)
        for text in self.texts():
            data = text.encode("utf-8", "surrogatepass")
            seen.update(len(data).to_bytes(8, "little") + data)
        return seen.hexdigest()

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocab: int) -> Any:
        """The config tree to train; one that this objective cannot train is refused."""
        return model_config(self.recipe.model, vocab)

    def generation(self, config: Any) -> dict[str, Any] | None:
        """The generation_config.json to leave beside the weights."""
        return None

    # --- batches and losses -----------------------------------------------------------------------

    @abstractmethod
    def collate(self, examples: E, index: Array, frame: Frame | None = None) -> B:
        """The examples numbered `index` as one batch; with a `frame`, filled up to its size."""

    @abstractmethod
    def loss(
        self,
        model: Any,
        batch: B,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sums over the labels that count: the loss to go down, and the plain NLL to report.

        The batch is on the model's device. Compiled, its `tokens` is 0: nothing here reads it.
        """

    def measures(
        self, model: Any, batch: B, *, dtype: torch.dtype | None = None
    ) -> dict[str, Tensor]:
        """Further sums over a batch of validation, reported as `validation_NAME` per label."""
        return {}


OBJECTIVES: dict[str, type[Objective[Any, Any]]] = {}
O = TypeVar("O", bound=type[Objective[Any, Any]])


def register(name: str) -> Callable[[O], O]:
    """Let recipes say `objective: NAME`; a later class of the same name takes its place."""

    def keep(cls: O) -> O:
        cls.name = name
        OBJECTIVES[name] = cls
        return cls

    return keep
