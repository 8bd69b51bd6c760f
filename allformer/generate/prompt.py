"""What a search starts from: the rows of ids, their mask, and how long they may become."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from allformer.config import Learned, Stack
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel
from allformer.errors import ConfigError, LengthError
from allformer.generate.checks import as_tuple
from allformer.generate.options import GenerationConfig

_DEFAULT = 20  # new tokens where nobody says how many, as in transformers


def read_prompt(
    model: EncoderDecoderModel | DecoderOnlyModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    g: GenerationConfig,
) -> tuple[Tensor, Tensor | None]:
    """`input_ids` (rows S) and `attention_mask` on the model's device, checked."""
    bos = g.bos_token_id
    if input_ids is None:
        rows = 1 if attention_mask is None else len(attention_mask)
        input_ids, attention_mask = torch.empty(rows, 0, dtype=torch.long), None
    if not isinstance(input_ids, Tensor) or input_ids.ndim != 2 or input_ids.is_floating_point():
        raise ConfigError(
            f"input_ids={_shape(input_ids)} must be whole numbers, rows × tokens; "
            f"try torch.tensor([ids])"
        )
    ids = input_ids.to(model.device, torch.long)
    if ids.shape[1] == 0:
        if bos is None or bos < 0:
            raise ConfigError("the prompt is empty and bos_token_id is None; give one of them")
        ids, attention_mask = ids.new_full((len(ids), 1), bos), None
    if not isinstance(attention_mask, Tensor | None):
        raise ConfigError(
            f"attention_mask={_shape(attention_mask)} must be a tensor, rows × tokens; "
            f"try torch.tensor(attention_mask)"
        )
    if attention_mask is not None and attention_mask.shape != ids.shape:
        raise ConfigError(
            f"attention_mask has the shape {tuple(attention_mask.shape)}, but input_ids "
            f"{tuple(ids.shape)}; give one 1 (keep) or 0 (padding) for each id"
        )
    _check_ids(ids, model, "input_ids")
    mask = None if attention_mask is None else attention_mask.to(ids.device).bool()
    if isinstance(model, DecoderOnlyModel):
        return ids, _left_padded(ids, mask, g)
    _warn_if_longer(ids.shape[1], model.config.encoder, "a source")
    return ids, mask


def read_other(
    model: EncoderDecoderModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    inputs: dict[str, Tensor],
) -> tuple[Tensor, Tensor | None]:
    """What an encoder reads that knows no tokens, moved to its device and checked; gives rows of
    no ids, which stand for the source, and the mask, if it is one of what the decoder looks at."""
    names = ", ".join(model.encoder.source.takes)
    if input_ids is not None:
        raise ConfigError(
            f"input_ids={_shape(input_ids)}, but the encoder reads {names}; give "
            f"decoder_input_ids for what the text begins with"
        )
    for name, x in inputs.items():
        inputs[name] = x.to(model.device) if isinstance(x, Tensor) else x
    mask = None if attention_mask is None else attention_mask.to(model.device)
    told = {} if mask is None else {"attention_mask": mask}
    rows, _ = model.encoder.check({**inputs, **told})
    ids = torch.empty(rows, 0, dtype=torch.long, device=model.device)
    return ids, mask if model.encoder.source.masked else None


def trained_length(stack: Stack) -> int | None:
    """How many tokens a stack was trained for, where its config tells and nothing enforces it."""
    places = (stack.position, stack.relative)
    lengths = [getattr(p, "length", None) for p in places if not isinstance(p, Learned)]
    return next((length for length in lengths if length is not None), None)


def _warn_if_longer(tokens: int, stack: Stack, what: str) -> None:
    """Rotary and sinusoidal positions go on for ever; what was learned with them does not.

    The text has no number but the model's, so that one call, or one file, is told once.
    """
    trained = trained_length(stack)
    if trained is not None and tokens > trained:
        warnings.warn(
            f"{what} is longer than the {trained} tokens that the model was trained for: what it "
            f"writes may be nonsense; shorten it",
            stacklevel=5,
        )


def _left_padded(ids: Tensor, mask: Tensor | None, g: GenerationConfig) -> Tensor | None:
    """A decoder's mask: read off the padding if none is given; every row must end in a token."""
    pad, given = g.pad_token_id, mask is not None
    if mask is None and pad is not None and pad not in as_tuple(g.eos_token_id):
        mask = ids != pad
    if mask is None or bool(mask[:, -1].all()):
        return mask
    row = int((~mask[:, -1]).nonzero()[0])
    what = "attention_mask" if given else f"pad_token_id={pad}"
    raise ConfigError(
        f"{what} says that row {row} of input_ids ends in padding, but a decoder goes on from the "
        f"last token; pad on the left (padding_side='left')"
        + ("" if given else ", or give attention_mask")
    )


def decoder_prompt(
    model: EncoderDecoderModel, rows: int, given: Tensor | None, g: GenerationConfig
) -> Tensor:
    """What the decoder of an encoder-decoder starts from: its start token, and what was given."""
    start = as_tuple(
        g.bos_token_id if g.decoder_start_token_id is None else g.decoder_start_token_id
    )
    if not start:
        raise ConfigError(
            "an encoder-decoder needs decoder_start_token_id or bos_token_id to begin; give one"
        )
    if len(start) not in (1, rows):
        raise ConfigError(
            f"decoder_start_token_id has {len(start)} ids for {rows} rows; give one, or one each"
        )
    first = torch.tensor(start, device=model.device)[:, None].expand(rows, 1)
    ids = first
    if given is not None:
        if given.ndim != 2 or len(given) != rows or given.shape[1] == 0:
            raise ConfigError(
                f"decoder_input_ids={_shape(given)} must be {rows} rows × at least one token; "
                f"give them so, or leave them out"
            )
        ids = given.to(model.device, torch.long)
        if bool((ids[:, :1] != first).all()):
            ids = torch.cat([first, ids], dim=1)
    _check_ids(ids, model, "decoder_start_token_id or decoder_input_ids")
    return ids


def new_tokens(
    model: EncoderDecoderModel | DecoderOnlyModel, prompt: int, skip: int, g: GenerationConfig
) -> int:
    """How many tokens may follow a prompt that wide, of which `skip` columns are padding."""
    room = model.config.decoder.longest
    if room is not None:
        room -= model.decoder.before
    new = g.max_new_tokens
    if new is None and g.max_length is not None:
        new = g.max_length - prompt
        if new < 1:
            raise ConfigError(
                f"max_length={g.max_length} counts the prompt, which has {prompt} tokens; "
                f"try max_new_tokens, which does not"
            )
    if new is None:
        new = _DEFAULT if room is None else max(1, min(_DEFAULT, room - prompt))
        warnings.warn(
            f"neither max_new_tokens nor max_length is given: at most {new} tokens are generated",
            stacklevel=4,
        )
    if isinstance(model, DecoderOnlyModel):
        _warn_if_longer(prompt - skip, model.config.decoder, "a prompt")
    # The last token is said, not read.
    if room is not None and prompt - skip + new - 1 > room:
        left = room - (prompt - skip) + 1
        way_out = f"try max_new_tokens={left}" if left > 0 else "shorten or split the prompt"
        raise LengthError(
            f"a prompt of {prompt - skip} tokens and max_new_tokens={new} need "
            f"{prompt - skip + new - 1} positions, but the model has {room}; {way_out}"
        )
    if (g.min_new_tokens or 0) > new:
        warnings.warn(
            f"min_new_tokens={g.min_new_tokens} is more than the {new} that may be generated",
            stacklevel=4,
        )
    return new


def _check_ids(ids: Tensor, model: EncoderDecoderModel | DecoderOnlyModel, name: str) -> None:
    stack = model.config.reader if name == "input_ids" else model.config.writer
    vocab = stack.source.vocab
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
        raise ConfigError(
            f"{name} has {int(ids.min())} … {int(ids.max())}, but the vocabulary is 0 … "
            f"{vocab - 1}; use the tokeniser of this model"
        )


def _shape(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
