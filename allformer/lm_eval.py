"""Allformer's models in lm-eval, the harness that most published scores of language models are by.

    python -m allformer.lm_eval --model allformer --model_args pretrained=runs/mine \\
        --tasks hellaswag --batch_size auto

is `lm_eval` with one model more: all its options hold. (lm-eval 0.4.13 looks for models in its own
package alone, so that ours must be imported first. In Python: `import allformer.lm_eval`, then
`lm_eval.simple_evaluate(model="allformer", model_args="pretrained=…")`.)

Scores are those of `--model hf` on the same checkpoint: texts are cut into tokens, contexts cut to
length, answers cut at stop strings in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from allformer.config import DecoderOnly
from allformer.core.precision import pick_device
from allformer.errors import AllformerError, ConfigError, TaskError
from allformer.evaluate.windows import token_scores
from allformer.generate.checks import as_tuple
from allformer.tasks.batching import BUDGET, by_length
from allformer.tasks.pipeline import open_pipeline
from allformer.tasks.writing import settings

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import (
        handle_stop_sequences,
        has_bos_prefix,
        normalize_gen_kwargs,
        postprocess_generated_text,
    )
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    raise ImportError(
        f"the adapter needs lm-eval 0.4.13 or later ({error}); pip install 'allformer[lm-eval]'"
    ) from error

LENGTH = 2048  # tokens of a model that says no limit: lm-eval's own default
NEW = 256  # tokens of an answer, where the task does not say

Pair = tuple[Any, list[int], list[int]]  # what it is called in the cache, context, continuation


@register_model("allformer")
class AllformerLM(TemplateLM):  # type: ignore[misc]
    """A decoder behind lm-eval's three questions: how likely is this, all of it, and what follows.

    `pretrained` is a directory or a hub id. `batch_size=auto` fills batches by tokens; a number is
    rows. `dtype` is fp32, bf16, …; `prefix_token_id` is read before a text that has no context,
    instead of the model's own beginning.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = NEW,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
    ) -> None:
        super().__init__()
        self.pipeline = open_pipeline(pretrained, device=_device(device), dtype=_dtype(dtype))
        self.model, self.words = self.pipeline.model, self.pipeline.tokenizer
        if not isinstance(self.model.config, DecoderOnly):
            raise TaskError(
                f"{pretrained} is a {self.pipeline.architecture}; lm-eval's adapter takes decoders "
                f"with a head over the vocabulary, as GPT-2 and LLaMA are"
            )
        self.model.vocab_head  # noqa: B018  (raises, and says how to get one)
        self._device = self.model.device
        self.rows = _rows(batch_size, max_batch_size)
        self.max_length = max_length or _longest(self.pipeline)
        self.max_gen_toks, self.add_bos_token = max_gen_toks, add_bos_token
        self._prefix = prefix_token_id

    # --- tokens -----------------------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int | None:
        return self.words.special_ids.get("eos")

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without context: the beginning, else the end."""
        ids = self.words.special_ids
        found = self._prefix if self._prefix is not None else ids.get("bos", ids.get("eos"))
        if found is None:
            raise ConfigError(
                "the tokeniser has neither a beginning nor an end to put before a text without "
                "context; give --model_args prefix_token_id=ID"
            )
        return found

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **more: Any
    ) -> list[int]:
        special = True if self.add_bos_token is None else self.add_bos_token
        if add_special_tokens is not None:
            special = add_special_tokens
        elif special and has_bos_prefix(string, self._prefix_text()):
            special = False
        return self.words.encode(string, add_special_tokens=special)

    def _prefix_text(self) -> str | None:
        ids = self.words.special_ids
        known = self._prefix is not None or "bos" in ids or "eos" in ids
        return self.words.decode([self.prefix_token_id], False) if known else None

    @property
    def tokenizer_name(self) -> str:
        return str(self.pipeline.directory).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        found = self.words.settings.chat_template
        if isinstance(found, dict):
            found = found.get(chat_template if isinstance(chat_template, str) else "default")
        return found or ""

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        text = self.words.apply_chat_template(
            chat_history, add_generation_prompt, continue_final_message=not add_generation_prompt
        )
        assert isinstance(text, str)
        return text

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes beside the scores."""
        count = sum(p.numel() for p in self.model.parameters())
        return {"model_num_parameters": count, "model_architecture": self.pipeline.architecture}

    # --- how likely -------------------------------------------------------------------------------

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Of whole texts: each token once, with as much before it as fits."""
        pairs: list[Pair] = []
        owners: list[int] = []
        for i, request in enumerate(requests):
            windows = get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, 1
            )
            parts: list[Pair] = [(None, *make_disjoint_window(window)) for window in windows]
            pairs += parts
            owners += [i] * len(parts)
        totals = [0.0] * len(requests)
        scores = self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm)
        for i, (value, _) in zip(owners, scores, strict=True):
            totals[i] += value
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    @torch.inference_mode()
    def _loglikelihood_tokens(
        self, requests: list[Pair], disable_tqdm: bool = False, **more: Any
    ) -> list[tuple[float, bool]]:
        """Rows that are read alike are read once, however many answers are scored after them."""
        read: dict[tuple[int, ...], list[int]] = {}
        for i, (_, context, answer) in enumerate(requests):
            if not context or not 0 < len(answer) <= self.max_length:
                raise AllformerError(
                    f"a request has {len(context)} tokens of context and {len(answer)} to score; "
                    f"it needs one at least of each, and at most max_length={self.max_length}"
                )
            row = tuple((context + answer)[-(self.max_length + 1) : -1])
            read.setdefault(row, []).append(i)
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        rows = list(read)
        bar = tqdm(total=len(requests), desc="loglikelihood", disable=disable_tqdm)
        for group in self._groups([len(row) for row in rows]):
            some = [rows[i] for i in group]
            for hidden, ids in zip(self._states(some), some, strict=True):
                for i in read[ids]:
                    found[i] = self._score(hidden[: len(ids)], requests[i])
                    bar.update(1)
        bar.close()
        return found

    def _states(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """The hidden states of rows of any length, R T dim."""
        ids, mask = self._padded(rows)
        states: Tensor = self.model.states(input_ids=ids, attention_mask=mask)["decoder"]
        return states

    def _score(self, hidden: Tensor, request: Pair) -> tuple[float, bool]:
        key, _, answer = request
        nll, best = token_scores(self.model, hidden[-len(answer) :], torch.tensor(answer))
        scored = (-float(nll.sum()), bool(best.all()))
        if key is not None:  # windows of a longer text are not kept one by one
            self.cache_hook.add_partial("loglikelihood", key, scored)
        return scored

    # --- what follows -----------------------------------------------------------------------------

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context, up to the first stop string."""
        alike: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            alike.setdefault(repr(request.args[1]), []).append(i)
        found = [""] * len(requests)
        bar = tqdm(total=len(requests), desc="generate_until", disable=disable_tqdm)
        for members in alike.values():
            asked = requests[members[0]].args[1]
            options, until, new = self._options(asked)
            room = self.max_length - new
            contexts = [self.tok_encode(requests[i].args[0])[-room:] for i in members]
            for group in self._groups([len(row) + new for row in contexts]):
                written = self._write([contexts[n] for n in group], options, until, new)
                for n, text in zip(group, written, strict=True):
                    found[members[n]] = text
                    self.cache_hook.add_partial("generate_until", requests[members[n]].args, text)
                bar.update(len(group))
        bar.close()
        return found

    def _options(self, asked: dict[str, Any]) -> tuple[dict[str, Any], list[str], int]:
        """The options of `generate`, the stop strings (the end among them), the most new tokens."""
        options: dict[str, Any] = dict(normalize_gen_kwargs(asked, self.max_gen_toks))
        until = handle_stop_sequences(options.pop("until", None), eos=self._end_text())
        new: int = options.pop("max_gen_toks")
        if new >= self.max_length:
            raise ConfigError(
                f"max_gen_toks={new} must be less than max_length={self.max_length}, so that a "
                f"context fits before it; give --gen_kwargs max_gen_toks={self.max_length // 2}"
            )
        if not options.get("do_sample"):
            options.pop("temperature", None)
        return options, [text for text in until if text], new

    def _write(
        self, rows: list[list[int]], options: dict[str, Any], until: list[str], new: int
    ) -> list[str]:
        stops = [text for text in until if text != self._end_text()]
        written = self._generate(rows, {**options, "stop_strings": stops or None}, new)
        # `generate` lets a stop string begin in the context, lm-eval does not: go on without.
        again = [
            i
            for i, (ids, text) in enumerate(written)
            if len(ids) < new and not self._ended(ids) and not any(stop in text for stop in until)
        ]
        if again:
            longer = self._generate([rows[i] for i in again], options, new)
            for i, each in zip(again, longer, strict=True):
                written[i] = each
        return [postprocess_generated_text(text, until, None) for _, text in written]

    def _generate(
        self, rows: list[list[int]], options: dict[str, Any], new: int
    ) -> list[tuple[list[int], str]]:
        """The new ids of each row, without what pads them, and their text."""
        ids, mask = self._padded(rows, left=True)
        out = self.model.generate(
            ids, attention_mask=mask, tokenizer=self.words, max_new_tokens=new, **options,
            eos_token_id=self._ends() or None, return_dict_in_generate=False,
        )  # fmt: skip
        pad = settings(self.pipeline).pad_token_id
        found = []
        for row in out[:, ids.shape[1] :].tolist():
            while row and row[-1] == pad and not self._ended(row):
                row.pop()
            found.append((row, self.words.decode(row)))
        return found

    def _ends(self) -> list[int]:
        """What ends an answer: the model's own end tokens, and the tokeniser's."""
        known = as_tuple(settings(self.pipeline).eos_token_id)
        return [*known, *(i for i in [self.eot_token_id] if i is not None and i not in known)]

    def _ended(self, ids: Sequence[int]) -> bool:
        return any(end in ids for end in self._ends())

    def _end_text(self) -> str | None:
        return None if self.eot_token_id is None else self.words.decode([self.eot_token_id], False)

    # --- batches ----------------------------------------------------------------------------------

    def _groups(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows of like length, longest first: so many of them, or so many tokens."""
        if self.rows is None:
            yield from by_length(lengths, BUDGET.get(self.model.device.type, BUDGET["cpu"]))
            return
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        for first in range(0, len(order), self.rows):
            yield order[first : first + self.rows]

    def _padded(self, rows: Sequence[Sequence[int]], left: bool = False) -> tuple[Tensor, Tensor]:
        """Ids and mask, R T, on the model's device."""
        width, pad = max(map(len, rows)), self.pipeline.stack.source.pad_id or 0
        ids = torch.full((len(rows), width), pad, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            where = slice(width - len(row), width) if left else slice(len(row))
            ids[i, where], mask[i, where] = torch.tensor(row), 1
        return ids.to(self.model.device), mask.to(self.model.device)


def _rows(asked: int | str | None, most: int | None) -> int | None:
    """Rows of a batch; None: as many as fit a budget of tokens."""
    if asked is None or str(asked).startswith("auto"):
        return most
    rows = int(asked)
    if rows < 1:
        raise ConfigError(f"batch_size={asked} must be at least 1, or auto")
    return rows


def _longest(pipeline: Any) -> int:
    """As lm-eval finds it: the model's positions, else what it was trained for, else 2,048."""
    found: int | None = pipeline.trained or pipeline.stack.trained or pipeline.longest
    return found or LENGTH


def _device(name: str | None) -> torch.device:
    """lm-eval says cuda:0 where nobody has said anything, on a machine without a GPU too."""
    return pick_device(None if name == "cuda:0" and not torch.cuda.is_available() else name)


def _dtype(name: str | None) -> torch.dtype | None:
    """`fp32` and torch's own names, `float32`; auto is the file's."""
    if name in (None, "auto"):
        return None
    short = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    found = getattr(torch, short.get(str(name), str(name)), None)
    if not isinstance(found, torch.dtype):
        raise ConfigError(f"dtype={name!r} is not known; try {', '.join(short)}")
    return found


def main() -> None:
    """`lm_eval`, which knows `--model allformer`."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except AllformerError as error:
        sys.exit(f"allformer: {error}")


if __name__ == "__main__":
    main()
