"""What objectives of encoder-decoders share: a text is read, another is said, teacher-forced.

Which token the decoder begins with is the model's: our own begin with `<s>`, T5 with `<pad>`, BART
with `</s>`, mBART with the last token of what is to be said, its language.

Legend: N source tokens, M target tokens, all rows end to end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allformer.checkpoint.older_run import generation_of
from allformer.config import EncoderDecoder, LMHead
from allformer.core.inputs import Side
from allformer.core.layout import Layout
from allformer.core.loss import IGNORE
from allformer.core.model import EncoderDecoderModel
from allformer.errors import ConfigError
from allformer.families.original import BOS
from allformer.text.tokenizer import Tokenizer
from allformer.train.batch import Side as Laid
from allformer.train.objectives.objective import E, Objective
from allformer.train.objectives.words import SaysWords
from allformer.train.room import within
from allformer.train.sections.common import TokenizerRecipe
from allformer.train.sections.model import CheckpointModel
from allformer.train.sections.vocabulary import Vocabulary


class PairBatch(NamedTuple):
    """Source ids, what the decoder reads, and what it has to say (teacher forcing)."""

    source: Tensor  # N
    source_layout: Layout
    target: Tensor  # M, beginning with <s>; or with −1 − the row's last id: the model's own start
    target_layout: Layout
    labels: Tensor  # M, ending with </s>; −100 in filler
    tokens: int  # labels that count


def teacher_forced(source: Laid, said: Laid, start: int | None) -> PairBatch:
    """The decoder reads one place behind what it says, from `start` on; None: the model's own."""
    read = np.empty_like(said.ids)
    read[1:] = said.ids[:-1]
    begins = said.starts[said.starts < len(read)]
    if start is None:
        ends = said.layout[2][1:][: len(begins)] - 1  # rows without tokens are the last ones
        read[begins] = -1 - said.ids[ends]
    else:
        read[begins] = start
    labels = np.where(np.arange(len(said.ids)) < said.real, said.ids, IGNORE)
    return PairBatch(
        torch.from_numpy(source.ids),
        source.packed(),
        torch.from_numpy(read),
        said.packed(),
        torch.from_numpy(labels),
        said.real,
    )


def started(target: Tensor, config: EncoderDecoder) -> Tensor:
    """What the decoder reads, with the model's own token where a text begins."""
    if config.start_last:
        return torch.where(target < 0, -1 - target, target)
    assert config.start is not None  # `TextToText.config` sees to it
    return target.masked_fill(target < 0, config.start)


def around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a tokeniser puts before and after a text: BART's ((0,), (2,))."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    full = tokenizer.encode("a")
    for at in range(len(full) - len(plain) + 1):
        if full[at : at + len(plain)] == plain:
            return tuple(full[:at]), tuple(full[at + len(plain) :])
    raise ConfigError(f"{tokenizer} does not put its special tokens around a text")


class TextToText(SaysWords, Objective[E, PairBatch]):
    """Loss, figures and model of whatever is a text for a text."""

    @property
    def start(self) -> int | None:
        """The token that the decoder begins with; None: the model says it."""
        recipe = self.recipe
        fresh = isinstance(recipe.tokenizer, TokenizerRecipe)
        return BOS if fresh and not isinstance(recipe.model, CheckpointModel) else None

    def config(self, vocabulary: Vocabulary) -> EncoderDecoder:
        """An encoder-decoder with a head over the vocabulary.

        Where it has fewer positions than `data.max_length`, the recipe says so from then on.
        """
        tree = super().config(vocabulary)
        if not isinstance(tree, EncoderDecoder) or not isinstance(tree.head, LMHead):
            kind, head = type(tree).__name__, type(tree.head).__name__
            raise ConfigError(
                f"model is a {kind} with head {head}, but objective={self.name!r} needs an "
                f"EncoderDecoder with LMHead; choose such a preset, or change model.head"
            )
        self.recipe = within(self.recipe, tree)
        if tree.start is not None or tree.start_last:
            return tree
        # T5's tokeniser has no beginning of text: what fills rows begins them.
        begin = vocabulary.pad if vocabulary.pad is not None else vocabulary.eos
        return replace(tree, start_id=begin)

    def generation(self, config: Any) -> dict[str, Any]:
        """As the recipe searches."""
        decode = self.recipe.decode
        return generation_of(config, decode.beams, decode.length_penalty)

    def _hidden(
        self, model: EncoderDecoderModel, batch: PairBatch, dtype: torch.dtype | None
    ) -> Tensor:
        target = batch.target if self.start is not None else started(batch.target, model.config)
        sides = {
            "encoder": Side(batch.source_layout, {"input_ids": batch.source}),
            "decoder": Side(batch.target_layout, {"input_ids": target}),
        }
        return model.hidden(sides, dtype=dtype)["decoder"].flatten(0, -2)  # M dim
