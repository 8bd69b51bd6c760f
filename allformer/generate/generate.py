"""`generate`: text ids in, text ids out, with transformers' options and its tokens.

generate(model, input_ids, attention_mask, max_new_tokens=50)                     # greedy
generate(model, input_ids, num_beams=4, length_penalty=0.6, max_new_tokens=50)    # beams
generate(model, input_ids, do_sample=True, top_p=0.9, generator=g)                # drawn
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.errors import ConfigError
from allformer.generate import lean, static  # noqa: F401  (they register themselves)
from allformer.generate.aids import Aids
from allformer.generate.beams import search_beams
from allformer.generate.checks import as_tuple, check_together
from allformer.generate.decode import decode
from allformer.generate.drafts import GUESSING
from allformer.generate.options import DEFAULTS, GenerationConfig, settle
from allformer.generate.prefix import Prefix
from allformer.generate.processors import Processor, checked, first_free, make_processors
from allformer.generate.prompt import decoder_prompt, new_tokens, read_other, read_prompt
from allformer.generate.request import Draw, Generated, Request, Streamer
from allformer.generate.stepper import check_dtype, padding_columns, stepper_for
from allformer.generate.stop import Stop
from allformer.generate.structured import Structured
from allformer.generate.warp import make_warps

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff",
             "eta_cutoff")  # fmt: skip


def generate(
    model: EncoderDecoderModel | DecoderOnlyModel,
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    generation: GenerationConfig | None = None,
    *,
    streamer: Streamer | None = None,
    generator: torch.Generator | None = None,
    tokenizer: Any = None,
    decoder_input_ids: Tensor | None = None,
    limits: Sequence[int] | None = None,
    processors: Sequence[Processor] = (),
    structured: Structured | None = None,
    prefix: Prefix | None = None,
    assistant_model: EncoderDecoderModel | DecoderOnlyModel | None = None,
    cache: str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Any:
    """Continue the rows of `input_ids` (a decoder), or answer them (an encoder-decoder).

    Gives ids: prompt and new tokens of a decoder, start token and new tokens of an
    encoder-decoder, `num_return_sequences` of each row one below the other, padded on the right.
    With `return_dict_in_generate=True` a `Generated`.

    `options` are the fields of `GenerationConfig`; they win over `generation`, which wins over the
    model's own (`model.provenance.generation`, if there is one). A decoder's prompts are padded on
    the left. `stop_strings` needs `tokenizer`, and so does `structured`: the form that what is
    written must have (`generate/structured.py`). `limits` has for each row how many tokens it may
    get, where that is less than `max_new_tokens`. `processors` change the scores of each step
    behind those that the options ask for (`generate/processors.py`). `prefix` keeps what was read
    for the next call (`generate/prefix.py`). `assistant_model`, a smaller one, guesses ahead: the
    tokens are the same, and sooner there (`generate/speculative.py`). `cache="int8"` remembers keys
    and values in eight bits (`core/states/int8.py`). `dtype` is what is computed in; `torch.int8`,
    on a CPU, has weights and what they meet in eight bits, which is faster and not exact
    (docs/generation.md). What an encoder's mixers take (`global_attention_mask`) may be given too,
    and what it reads in place of tokens (`input_features`).
    """
    if dtype is not torch.int8:  # the lean way's, which refuses what it does not serve
        check_dtype(dtype)
    stepper = stepper_for(model, dtype)  # refuses what cannot generate
    aids = Aids(prefix, assistant_model, cache)
    inputs = _of_encoder(model, options)
    generation = options.pop("generation_config", None) or generation  # transformers' name for it
    check_generation(generation)
    g = settle(*own_options(model), *aids.options(), generation, options=options)
    if not isinstance(structured, Structured | None):
        raise ConfigError(
            f"structured={structured!r} must be a Structured; try Structured.regex('[0-9]+')"
        )
    if structured is not None:
        g = replace(g, forced_eos_token_id=None)  # the form says where it ends
    check_together(g)
    aids.check(model, g, options)
    warn_unused(g, options, assistant_model is not None)
    beams = g.num_beams or 1
    if streamer is not None and beams > 1:
        raise ConfigError(f"a streamer cannot follow num_beams={beams}; set num_beams=1")
    check_generator(generator, model.device)
    check_processors(processors)
    _check_streamer(streamer)
    with torch.inference_mode():
        if isinstance(model, EncoderDecoderModel) and not model.config.encoder.source.vocab:
            source, mask = read_other(model, input_ids, attention_mask, inputs)
        else:
            source, mask = read_prompt(model, input_ids, attention_mask, g)
        ids = source
        if isinstance(model, EncoderDecoderModel):
            ids = decoder_prompt(model, len(source), decoder_input_ids, g)
        elif decoder_input_ids is not None:
            raise ConfigError("decoder_input_ids is for an encoder-decoder; give input_ids alone")
        found = Generated(ids)
        if len(ids):
            # All that can be refused is refused before the model has any work.
            skip = padding_columns(mask) if ids is source else 0
            new = new_tokens(model, ids.shape[1], skip, g)
            request = make_request(model, g, source, ids, new, generator, tokenizer)
            request.streamer = streamer
            request.processors = [*request.processors, *map(checked, processors)]
            if structured is not None:
                request.processors.append(_form(structured, model, tokenizer, g, request, ids))
            if limits is not None:
                request.limit = request.limit.minimum(_row_limits(limits, len(ids)))
            if aids.asked(g):
                found = aids.search(model, g, request, ids, source, mask, inputs, dtype)
            else:
                state = stepper.open(source, mask, g.use_cache is not False, **inputs)
                state.ahead = int(request.limit.max())
                try:
                    found = (search_beams if beams > 1 else decode)(stepper, state, ids, request)
                finally:
                    state.close()
    return _plain(found, g)


def _of_encoder(model: Any, options: dict[str, Any]) -> dict[str, Tensor]:
    """Inputs of an encoder's mixers, and of one that reads no tokens, taken out of the options."""
    if not isinstance(model, EncoderDecoderModel):
        return {}
    tokens = model.config.encoder.source.vocab
    own = set(model.encoder.takes) - set(model.encoder.source.takes if tokens else ())
    return {name: options.pop(name) for name in own & options.keys()}


def own_options(model: EncoderDecoderModel | DecoderOnlyModel) -> list[GenerationConfig]:
    """The model's own options, the weaker first.

    A generation_config.json stands alone, as in transformers: what it leaves out is not looked for
    in config.json.
    """
    told = model.provenance.generation
    if told is not None and not isinstance(told, GenerationConfig):
        return [GenerationConfig.from_dict(told)]
    tokens = model.config.decoder.source
    said = {
        "pad_token_id": tokens.pad_id,
        "bos_token_id": tokens.bos_id,
        "eos_token_id": tokens.eos_id,
    }
    if isinstance(model, EncoderDecoderModel):
        said["decoder_start_token_id"] = model.config.start
    own = GenerationConfig.from_model_config({**said, **model.provenance.extras})
    return [own] if told is None else [own, told]


def make_request(
    model: EncoderDecoderModel | DecoderOnlyModel,
    g: GenerationConfig,
    source: Tensor,
    ids: Tensor,
    new: int,
    generator: torch.Generator | None,
    tokenizer: Any,
) -> Request:
    """The options as the work that they mean."""
    (rows, prompt), beams, back = ids.shape, g.num_beams or 1, g.num_return_sequences or 1
    eos = tuple(i for i in as_tuple(g.eos_token_id) if i >= 0)
    strings = (g.stop_strings,) if isinstance(g.stop_strings, str) else g.stop_strings or ()
    if g.min_new_tokens is not None:
        g = replace(g, min_length=None)  # transformers lets the one override the other
    processors = make_processors(
        g, prompt=prompt, longest=prompt + new, eos=eos, source=source,
        vocab=model.config.decoder.source.vocab,
    )  # fmt: skip
    copies = beams if beams > 1 else back
    keep = 1 if beams == 1 else 1 + (len(eos) or 1)
    back_dict = bool(g.return_dict_in_generate)
    return Request(
        limit=torch.full((rows,), new),
        stop=Stop(eos, strings, tokenizer, g.max_time),
        pad=_fill(g, eos, beams, bool(strings or g.max_time)),
        processors=processors,
        warps=make_warps(g, keep) if g.do_sample else (),
        renormalise=bool(g.renormalize_logits),
        draw=Draw(rows * (1 if beams > 1 else copies), generator) if g.do_sample else None,
        copies=copies,
        parts=not model.by_row,
        back=back,
        length_penalty=1.0 if g.length_penalty is None else float(g.length_penalty),
        early_stopping=g.early_stopping or False,
        keep_scores=back_dict and bool(g.output_scores),
        keep_logits=back_dict and bool(g.output_logits),
        keep_trail=back_dict,
    )


def _form(
    structured: Structured,
    model: EncoderDecoderModel | DecoderOnlyModel,
    tokenizer: Any,
    g: GenerationConfig,
    request: Request,
    ids: Tensor,
) -> Processor:
    """What keeps to the form; it is the last to change the scores."""
    vocab, start = model.config.decoder.source.vocab, first_free(g, ids.shape[1])
    return structured.form(tokenizer, vocab=vocab, eos=request.stop.eos, start=start)


def _fill(g: GenerationConfig, eos: tuple[int, ...], beams: int, may_stop: bool) -> int:
    """The id behind the end of a sequence: the pad id, or the first end token."""
    pad = None if g.pad_token_id is None or g.pad_token_id < 0 else g.pad_token_id
    if pad is None and not eos and beams > 1 and may_stop:
        raise ConfigError(
            "pad_token_id=None and eos_token_id=None: beams that stop at different lengths "
            "cannot be put into one tensor; give pad_token_id"
        )
    if eos and (pad is None or (beams > 1 and pad == 0)):
        return eos[0]  # beams of transformers are filled with `pad or eos`, and 0 counts as none
    return pad or 0


def _plain(found: Generated, g: GenerationConfig) -> Any:
    """Outside of inference mode, so that what comes back can be trained on."""

    def copied(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(copied, x))
        return x.clone() if isinstance(x, Tensor) else x

    if not g.return_dict_in_generate:
        return copied(found.sequences)
    if not g.output_scores:
        found = replace(found, sequences_scores=None)
    return Generated(**{each.name: copied(getattr(found, each.name)) for each in fields(found)})


def _row_limits(limits: Sequence[int], rows: int) -> Tensor:
    if not isinstance(limits, Sequence) or not all(isinstance(x, Integral) for x in limits):
        raise ConfigError(f"limits={limits!r} must be a list of whole numbers; give one a row")
    if len(limits) != rows:
        raise ConfigError(f"limits has {len(limits)} numbers for {rows} rows; give one each")
    if min(limits) < 1:
        raise ConfigError(f"limits has {min(limits)}, which must be at least 1; try 1 or more")
    return torch.tensor(limits, dtype=torch.long)


def warn_unused(g: GenerationConfig, options: dict[str, Any], assisted: bool = False) -> None:
    """An option that was asked for and does nothing is a mistake in the call."""
    idle = [] if g.do_sample else [(name, "do_sample=True") for name in _SAMPLING]
    if (g.num_beams or 1) == 1:
        idle += [("length_penalty", "num_beams > 1"), ("early_stopping", "num_beams > 1")]
    if not assisted:
        idle += [(name, "assistant_model") for name in GUESSING]
    if assisted or not g.prompt_lookup_num_tokens:
        idle.append(("max_matching_ngram_size", "prompt_lookup_num_tokens"))
    for name, needs in idle:
        if options.get(name) and options[name] != DEFAULTS.get(name):
            warnings.warn(f"{name}={options[name]} does nothing without {needs}", stacklevel=3)


def check_generation(generation: object) -> None:
    if not isinstance(generation, GenerationConfig | None):
        given = "generation" if isinstance(generation, dict) else "generation.to_dict()"
        raise ConfigError(
            f"generation={type(generation).__name__} must be allformer's GenerationConfig; "
            f"try GenerationConfig.from_dict({given})"
        )


def check_processors(processors: object) -> None:
    """A list of what can be called; `structured` and others are no processors."""
    if isinstance(processors, Sequence) and all(map(callable, processors)):
        return
    raise ConfigError(
        f"processors={processors!r} must be a list of functions (ids, scores, rows) → scores; "
        f"try processors=[…]"
    )


def _check_streamer(streamer: object) -> None:
    """What cannot listen would be found out when the prompt has been read."""
    hears = all(callable(getattr(streamer, name, None)) for name in ("put", "end"))
    if streamer is not None and not hears:
        raise ConfigError(
            f"streamer={streamer!r} must have put(ids) and end(); try allformer.tasks.Stream"
        )


def check_generator(generator: torch.Generator | None, device: torch.device) -> None:
    if generator is not None and not hasattr(generator, "device"):
        raise ConfigError(
            f"generator={generator!r} must be a torch.Generator; "
            f"try torch.Generator('{device.type}').manual_seed(1)"
        )
    if generator is not None and generator.device.type != device.type:
        raise ConfigError(
            f"generator draws on {generator.device}, but the model is on {device}; "
            f"make it with torch.Generator('{device.type}')"
        )
