"""What an engine is asked, settled and checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.errors import ConfigError, LengthError
from allformer.generate.checks import check_together
from allformer.generate.generate import (
    check_generation,
    check_generator,
    check_processors,
    make_request,
    own_options,
    warn_unused,
)
from allformer.generate.options import GenerationConfig, settle
from allformer.generate.processors import Processor, checked
from allformer.generate.prompt import decoder_prompt, new_tokens, read_prompt
from allformer.generate.request import Request

# What makes no sense for one text whose tokens are handed out as they are made.
_REFUSED = {
    "num_return_sequences": "add the request so many times: the prompt is computed once",
    "num_beams": "call generate, or set num_beams=1",
    "stop_strings": "look for them in the text, and cancel the request",
    "prompt_lookup_num_tokens": "leave it out: the tokens are the same",
    "output_scores": "call generate",
    "output_logits": "call generate",
    "return_dict_in_generate": "leave it out: an engine gives replies",
}
_AT_LEAST_ONE = {"num_return_sequences", "num_beams"}
# Arguments of `generate` beside its options.
_ELSEWHERE = {
    "attention_mask": "give ids without padding",
    "streamer": "iterate over the reply that add gives, or over Engine.stream()",
    "tokenizer": "leave it out: an engine has ids alone",
    "limits": "give each request its max_new_tokens",
    "structured": "give processors=[structured.form(tokenizer, vocab=…, eos=[…], start=len(ids))]",
    "prefix": "leave it out: what requests have in common at their beginning is read once",
    "assistant_model": "leave it out: the tokens are the same",
    "cache": "leave it out, or call generate",
    "dtype": "say it to all: Engine(model, dtype=…)",
}


class Work(NamedTuple):
    """`ids` are what the decoder starts from, `source` what an encoder reads."""

    ids: list[int]
    source: tuple[int, ...]
    request: Request


def admit(
    model: DecoderOnlyModel | EncoderDecoderModel,
    ids: Sequence[int] | Tensor,
    generation: GenerationConfig | None,
    generator: torch.Generator | None,
    decoder_input_ids: Sequence[int] | Tensor | None,
    processors: Sequence[Processor],
    options: Mapping[str, Any],
) -> Work:
    """The arguments of `Engine.add` as the work that they mean; what cannot work is refused."""
    _check_names(model, options)
    options = dict(options)
    generation = options.pop("generation_config", None) or generation  # transformers' name for it
    check_generation(generation)
    check_processors(processors)
    g = settle(*own_options(model), generation, options=options)
    check_together(g)
    for name, way_out in _REFUSED.items():
        value = getattr(g, name, None)
        if value and not (name in _AT_LEAST_ONE and value == 1):
            raise ConfigError(f"an Engine does not take {name}={value!r}; {way_out}")
    if g.use_cache is False:
        raise ConfigError("an Engine does not take use_cache=False; leave it out, or call generate")
    warn_unused(g, options)
    check_generator(generator, model.device)
    prompt = _row(ids, "ids")
    with torch.inference_mode():
        # One row has no padding: an id is read, whichever it is.
        source, _ = read_prompt(model, prompt, torch.ones_like(prompt), g)
        start = source
        if isinstance(model, EncoderDecoderModel):
            _check_source(model, source.shape[1])
            given = (
                None if decoder_input_ids is None else _row(decoder_input_ids, "decoder_input_ids")
            )
            start = decoder_prompt(model, 1, given, g)
        elif decoder_input_ids is not None:
            raise ConfigError("decoder_input_ids is for an encoder-decoder; give ids alone")
        new = new_tokens(model, start.shape[1], 0, g)
        request = make_request(model, g, source, start, new, generator, None)
    request.processors = [*request.processors, *map(checked, processors)]
    read = () if start is source else tuple(source[0].tolist())
    return Work(start[0].tolist(), read, request)


def _check_names(model: DecoderOnlyModel | EncoderDecoderModel, options: Mapping[str, Any]) -> None:
    """Refuse what `generate` would take and an engine does not, by its name."""
    takes = model.encoder.takes if isinstance(model, EncoderDecoderModel) else ()
    for name in options:
        way_out = _ELSEWHERE.get(name, "call generate" if name in takes else None)
        if way_out is not None:
            raise ConfigError(f"an Engine does not take {name}; {way_out}")


def _check_source(model: EncoderDecoderModel, tokens: int) -> None:
    """A source that the encoder has no positions for would be found while others are at work."""
    room = model.config.encoder.longest
    if room is not None and tokens > room:
        raise LengthError(
            f"a source of {tokens} tokens, but the encoder has {room} positions; shorten or "
            f"split it"
        )


def _row(ids: Sequence[int] | Tensor, name: str) -> Tensor:
    """One row of ids, 1 L."""
    try:
        row = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"{name}={ids!r} must be whole numbers; give one list of ids") from None
    row = row.long() if not row.numel() else row
    if row.ndim == 1:
        row = row[None]
    if row.ndim != 2 or len(row) != 1 or row.is_floating_point() or row.dtype == torch.bool:
        raise ConfigError(
            f"{name} of the shape {tuple(row.shape)} and {row.dtype} must be one row of whole "
            f"numbers; add each row as a request of its own"
        )
    return row
