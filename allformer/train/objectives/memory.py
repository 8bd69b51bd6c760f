"""Causal language models with a memory of segments: text is read in order, nothing is shuffled.

    objective: {is: causal-lm-memory, rows: stream}

Each row of a batch is a text that goes on where the last batch ended; what its layers read there is
their memory now, through which no gradient goes (Dai et al., 2019, section 3.2). `rows: stream`
puts all documents end to end, `</s>` after each, and gives every row an equal part of them, as the
paper's experiments do; `rows: documents` begins each document with an empty memory.

Legend: R rows, L tokens of a segment, M tokens remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor

from allformer.config import DecoderOnly
from allformer.core.inputs import Side
from allformer.core.taps import listening
from allformer.data.table import Table
from allformer.errors import ConfigError
from allformer.train.batch import Array, Frame
from allformer.train.objectives.causal_lm import CausalLM
from allformer.train.objectives.in_order import InOrder, SegmentBatch
from allformer.train.objectives.objective import Lengths, register
from allformer.train.sections.section import Section, Whole, one_of
from allformer.train.sections.vocabulary import Vocabulary


@dataclass(frozen=True)
class MemoryOptions(Section, section="objective"):
    """`stream`: documents end to end; `documents`: each begins anew. `memory` is how many tokens
    are remembered in validation, where not as many as in training."""

    rows: Annotated[str, one_of("stream", "documents")] = "stream"
    memory: Whole | None = None


class Memory:
    """What the layers of a model read in the segments before, layers R M dim, and where that is
    text, R M. Changed in place: a captured step reads and writes it where it lies."""

    def __init__(self, hidden: Tensor, real: Tensor) -> None:
        self.hidden, self.real = hidden, real

    def put(self, hidden: list[Tensor], real: Tensor) -> None:
        """The newest tokens of what is given."""
        size = self.real.shape[1]
        self.real.copy_(real[:, real.shape[1] - size :])
        for mine, new in zip(self.hidden, hidden, strict=True):
            mine[:, : size - new.shape[1]].zero_()
            mine[:, size - new.shape[1] :].copy_(new)


@register("causal-lm-memory")
class MemoryLM(CausalLM):
    """The next token, from this segment and what is remembered of those before it."""

    Options = MemoryOptions

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self._memories: dict[str, Memory] = {}
        self._kept: dict[str, Any] = {}

    # --- data -----------------------------------------------------------------------------------

    @property
    def streams(self) -> bool:
        options = self.recipe.options
        return not isinstance(options, MemoryOptions) or options.rows == "stream"

    @property
    def validation(self) -> Any:
        """All held-out texts, every token of them said, in rows of at least a few segments."""
        table = self.encoded.validation
        documents = table["ids"]
        size = int(table["bytes"].sum())
        if not self.streams:
            return InOrder.of_documents(
                documents, self.longest, self.rows_of_batch, self.marks, size=size
            )
        tokens = int(documents.lengths.sum()) + len(documents)
        rows = min(self.rows_of_batch, max(1, tokens // (8 * self.longest)))
        return InOrder.of_stream(documents, self.longest, rows, self.marks, size=size, whole=True)

    def rows(self, table: Table, epoch: int, number: int) -> Any:
        """Every row's text, in order; where it begins is by (seed, epoch)."""
        seed = (self.recipe.train.seed + number) % 2**63
        make = InOrder.of_stream if self.streams else InOrder.of_documents
        return make(
            table["ids"], self.longest, self.rows_of_batch, self.marks, seed=seed, epoch=epoch
        )

    def lengths(self, examples: Any) -> tuple[Lengths, Lengths]:
        lengths: Lengths = examples.lengths
        return lengths, lengths

    def order(self, examples: Any) -> list[Array]:
        """Segment after segment, of all rows at once."""
        found: list[Array] = examples.batches
        return found

    def frame(self) -> Frame | None:
        """Batches have one size."""
        return None

    def collate(self, examples: Any, index: Array, frame: Frame | None = None) -> Any:
        return examples.collate(index)

    # --- model ----------------------------------------------------------------------------------

    def config(self, vocabulary: Vocabulary) -> DecoderOnly:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ConfigError(
                "objective='causal-lm-memory' in several processes: each would read segments that "
                "do not follow one another; train in one"
            )
        tree = super().config(vocabulary)
        relative = tree.decoder.relative
        if relative is None or not relative.memory:
            raise ConfigError(
                "model.decoder.relative has no memory, which objective='causal-lm-memory' carries "
                "on; give it {is: XLRelative, memory: 256}, or use objective=causal-lm"
            )
        return tree

    # --- memory ---------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The memory of training, so that a resumed run goes on with it."""
        found = self._memories.get("train")
        return {} if found is None else {"hidden": found.hidden, "real": found.real}

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            self._memories["train"] = Memory(state["hidden"], state["real"])

    def _memory(self, model: Any, rows: int, dtype: torch.dtype) -> Memory:
        """That of training or that of validation, made when it is first wanted."""
        name = "train" if model.training else "validation"
        found, size = self._memories.get(name), self._size(model)
        shape = (len(model.decoder.order), rows, size, model.config.decoder.dim)
        if found is None or found.hidden.shape != shape:
            device = model.device
            hidden = torch.zeros(shape, dtype=dtype, device=device)
            blank = model.decoder.blank
            real = torch.full((rows, size), blank, dtype=torch.bool, device=device)
            self._memories[name] = found = Memory(hidden, real)
        return found

    def _size(self, model: Any) -> int:
        options = self.recipe.options
        own: int = model.config.decoder.relative.memory
        if model.training or not isinstance(options, MemoryOptions) or options.memory is None:
            return own
        return options.memory

    def _hidden(self, model: Any, batch: SegmentBatch, dtype: torch.dtype | None) -> Tensor:  # type: ignore[override]
        keep = batch.layout.keep
        memory = self._memory(model, batch.layout.rows, dtype or next(model.parameters()).dtype)
        fresh, blank = batch.fresh[:, None], model.decoder.blank
        hidden = memory.hidden.masked_fill(fresh[None, ..., None], 0.0)  # a copy: the backward
        real = memory.real | fresh if blank else memory.real & ~fresh  # pass reads it later
        cache = model.decoder.new_cache(memory.real.shape[1], hidden, real)
        side = Side(batch.layout, {"input_ids": batch.ids})
        out: Tensor = model.hidden({"decoder": side}, dtype=dtype, cache=cache)["decoder"]
        new = torch.ones_like(batch.ids, dtype=torch.bool) if keep is None else keep
        if not listening():  # to look at a step is not to take it
            with torch.no_grad():
                memory.put([x.own.hidden for x in cache.layers], torch.cat([real, new], dim=1))
        return out.flatten(0, -2)
