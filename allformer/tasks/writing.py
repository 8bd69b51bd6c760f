"""From texts to the texts that a model writes: what generate, translate and summarise share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from allformer.core.model import DecoderOnlyModel
from allformer.errors import ConfigError
from allformer.generate.checks import as_tuple
from allformer.generate.generate import own_options
from allformer.generate.options import GenerationConfig, settle
from allformer.generate.processors import first_free
from allformer.generate.structured import Structured
from allformer.tasks.batching import check_lengths, encode, feed, warn_unknown
from allformer.tasks.ends import Ends, as_strings
from allformer.tasks.pace import Clock
from allformer.tasks.pipeline import Pipeline
from allformer.text.batch import Batch
from allformer.text.tokenizer import Tokenizer


def settings(
    pipeline: Pipeline,
    said: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> GenerationConfig:
    """The checkpoint's own options, over them those of one of its tasks, over all the caller's."""
    own = own_options(pipeline.model)  # type: ignore[arg-type]
    return settle(*own, GenerationConfig.from_dict(said or {}), options=options or {})


def write(
    pipeline: Pipeline,
    texts: Sequence[str],
    said: Mapping[str, Any],
    options: dict[str, Any],
    *,
    most: Callable[[int], int],
    seed: int | None = None,
    special: bool = True,
    truncate: bool = False,
    whole: bool = False,
) -> list[list[str]]:
    """What the model writes for each text, `num_return_sequences` of them.

    `said` is what the checkpoint says of the task. `most(tokens)` is how many tokens may follow a
    text of so many, where neither caller nor checkpoint says: of an encoder-decoder each text has
    its own limit, whatever its neighbours. `special=False` when the special tokens are in the texts
    already; `whole` warns of a text that has no end. Among the options may be a `streamer`, a
    `pace`, the form that texts must have (`structured`), a `prefix`, an `assistant_model`, a
    `cache` and the `dtype` to compute in; one of `stop_strings` ends a text and is no part of it.
    """
    decoder = isinstance(pipeline.model, DecoderOnlyModel)
    batch = _encode(pipeline, texts, decoder, special, truncate)
    device = pipeline.model.device
    options = {**options, "return_dict_in_generate": True}
    streamer, pace = options.pop("streamer", None), options.pop("pace", None)
    structured, prefix = options.pop("structured", None), options.pop("prefix", None)
    cache, dtype = options.pop("cache", None), options.pop("dtype", None)
    assistant = options.pop("assistant_model", None)
    g = settings(pipeline, said, options)
    ends = Ends(as_strings(g.stop_strings))
    back = g.num_return_sequences or 1
    fixed = {
        "generation": GenerationConfig.from_dict(said),
        "generator": _generator(seed, device),
        "tokenizer": pipeline.tokenizer,
        "structured": structured,
        "prefix": prefix,
        "assistant_model": assistant,
        "cache": cache,
        "dtype": dtype,
    }
    out: list[list[str]] = [[] for _ in texts]
    cut = broken = 0
    # A row without tokens begins at bos: it cannot stand beside others.
    alone = decoder and not bool(batch["attention_mask"].any(1).all())
    # A decoder writes as much as it may; a translation is about as long as its source.
    new = g.max_new_tokens or g.max_length or most(0)
    batches = feed(
        pipeline,
        batch,
        grows=lambda length: length + (new if decoder else length),
        share=max(g.num_beams or 1, back),
        left=decoder,
        alone=alone,
    )
    for rows, inputs in batches:
        width = inputs["input_ids"].shape[1]
        limits = _limits(pipeline, g, most, inputs["attention_mask"].sum(1).tolist(), width)
        clock = Clock(streamer)
        found = pipeline.model.generate(
            **inputs, **fixed, streamer=clock.streamer, **options | limits
        )
        clock.stop()
        written = found.sequences[:, max(1, width) if decoder else 1 :].tolist()
        if "limits" in limits:  # what follows is filler, which may look like an end
            written = [row[: limits["limits"][n // back]] for n, row in enumerate(written)]
        cut += sum(not _ended(g, row) for row in written)
        if pace is not None:
            known = 0 if prefix is None else prefix.reused * len(rows)
            read = int(inputs["attention_mask"].sum())
            clock.tell(pace, read, known, [_length(g, row) for row in written])
            if found.speculation is not None:
                pace.guesses += found.speculation
        if structured is not None:
            broken += _broken(pipeline, structured, g, max(1, width) if decoder else 1, written)
        prompts = [batch_row(batch, row) if decoder else [] for row in rows]
        for n, new in enumerate(written):
            text = text_of(pipeline.tokenizer, prompts[n // back], new, ends)
            out[rows[n // back]].append(text)
    if broken:
        way_out = ", or leave stop_strings out (--stop)" if g.stop_strings else ""
        warnings.warn(
            f"{broken} of {len(texts) * back} texts ended before the form was complete; "
            f"raise max_new_tokens (--max-new-tokens){way_out}",
            stacklevel=5,
        )
    if whole and cut:
        warnings.warn(
            f"no end was reached in {cut} of {len(texts) * back} texts, which may be cut short; "
            f"raise max_new_tokens (--max-new-tokens)",
            stacklevel=5,
        )
    return out


def _generator(seed: int | None, device: torch.device) -> torch.Generator | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
        raise ConfigError(f"seed={seed!r} must be a whole number of at most 64 bits; try 1")
    return torch.Generator(device.type).manual_seed(seed)


def batch_row(batch: Batch, row: int) -> list[int]:
    """The ids of a row without its padding."""
    ids: Tensor = batch["input_ids"][row][batch["attention_mask"][row].bool()]
    return ids.tolist()


def _encode(
    pipeline: Pipeline, texts: Sequence[str], decoder: bool, special: bool, truncate: bool
) -> Batch:
    if not decoder:
        return encode(pipeline, texts, limit=pipeline.trained, truncate=truncate)
    batch = pipeline.tokenizer(texts, padding_side="left", add_special_tokens=special)
    warn_unknown(batch, texts, pipeline)
    check_lengths(batch, texts, pipeline.positions, pipeline, "shorten it")
    return batch


def _limits(
    pipeline: Pipeline,
    g: GenerationConfig,
    most: Callable[[int], int],
    lengths: list[int],
    width: int,
) -> dict[str, Any]:
    """How many new tokens in all and for each row, where nobody has said."""
    if g.max_new_tokens is not None or g.max_length is not None:
        return {}
    longest = pipeline.model.config.writer.longest
    decoder = isinstance(pipeline.model, DecoderOnlyModel)
    rows = [most(width)] if decoder else [most(length) for length in lengths]
    if longest is not None:  # the last token is said, not read
        room = max(1, longest - (max(1, width) if decoder else 1) + 1)
        rows = [min(limit, room) for limit in rows]
    return {"max_new_tokens": max(rows)} | ({} if decoder else {"limits": rows})


def _ended(g: GenerationConfig, row: list[int]) -> bool:
    ends = as_tuple(g.eos_token_id)
    return not ends or any(end in row for end in ends)


def _length(g: GenerationConfig, row: list[int]) -> int:
    """How many tokens were written: the end is one, what fills the row behind it is not."""
    ends, last = as_tuple(g.eos_token_id), len(row)
    end = next((i for i, token in enumerate(row, 1) if token in ends), None)
    while end is None and last and row[last - 1] == g.pad_token_id:
        last -= 1
    return last if end is None else end


def _broken(
    pipeline: Pipeline,
    structured: Structured,
    g: GenerationConfig,
    prompt: int,
    written: list[list[int]],
) -> int:
    """How many rows do not have the form: the most tokens, or a stop string, came before its end.

    A form holds from the first token on that the model may choose.
    """
    start, vocab = first_free(g, prompt), pipeline.model.config.writer.source.vocab
    eos = [token for token in as_tuple(g.eos_token_id) if token >= 0]
    form = structured.form(pipeline.tokenizer, vocab=vocab, eos=eos, start=start)
    return sum(not form.complete(row[start - prompt :]) for row in written)


def text_of(
    tokenizer: Tokenizer, prompt: list[int], new: list[int], ends: Ends | None = None
) -> str:
    """What the new ids add to the text of the prompt, so that a space between them is kept.

    One of `ends` ends it and is no part of it; it may have begun in the prompt.
    """
    before, after = tokenizer.decode(prompt) if prompt else "", tokenizer.decode([*prompt, *new])
    if not after.startswith(before):
        before, after = "", tokenizer.decode(new)
    end = -1 if ends is None else ends.find(after, len(before))
    return after[len(before) :] if end < 0 else after[len(before) : end]
