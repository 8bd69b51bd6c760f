"""What a run directory of an older version lacks, made up from what it has.

Before, `train` left the tokeniser without `</s>` around a text and wrote no generation_config.json:
the translator of runs knew both by itself. Now every task reads them from the files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from allformer.config import EncoderDecoder
from allformer.errors import CheckpointError
from allformer.text.load import load_tokenizer
from allformer.text.tokenizer import Tokenizer

RECIPE = "recipe.yaml"


def generation_of(config: Any, beams: int = 4, length_penalty: float = 1.0) -> dict[str, Any]:
    """The generation_config.json of a translator: its tokens, its search, what is never said."""
    tokens = config.decoder.source
    never = [i for i in (tokens.pad_id, tokens.bos_id) if i is not None and i != tokens.eos_id]
    said = {
        "bos_token_id": tokens.bos_id,
        "decoder_start_token_id": config.start,
        "eos_token_id": tokens.eos_id,
        "length_penalty": length_penalty,
        "num_beams": beams,
        "pad_token_id": tokens.pad_id,
        "suppress_tokens": never or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def older_generation(directory: Path, config: Any) -> dict[str, Any] | None:
    """How a run without generation_config.json translates: as its recipe says."""
    if not isinstance(config, EncoderDecoder) or not (directory / RECIPE).is_file():
        return None
    decode = _recipe(directory).get("decode") or {}
    return generation_of(
        config, **{k: decode[k] for k in ("beams", "length_penalty") & decode.keys()}
    )


def own_tokenizer(directory: Path, config: Any) -> Tokenizer:
    """The tokeniser beside a config tree of our own, as the tasks want it.

    One that we trained for an encoder-decoder and that puts nothing around a text gets `</s>`
    after it; the longest text is the recipe's.
    """
    plain = not (directory / "tokenizer_config.json").is_file()
    tokenizer = Tokenizer.load(directory) if plain else load_tokenizer(directory)
    trained = tokenizer.settings.names.get("eos") == "</s>" and not tokenizer.encode("")
    if not isinstance(config, EncoderDecoder) or not trained:
        return tokenizer
    longest = None
    if (directory / RECIPE).is_file():
        longest = (_recipe(directory).get("data") or {}).get("max_length")
    return closed(tokenizer, longest if isinstance(longest, int) else None)


def closed(tokenizer: Tokenizer, longest: int | None = None) -> Tokenizer:
    """A trained tokeniser for reading sources: `</s>` after a text of at most `longest` ids."""
    with_end = tokenizer.with_specials(after=[tokenizer.settings.names["eos"]])
    settings = with_end.settings
    longest = longest or settings.model_max_length
    return Tokenizer(with_end._inner, replace(settings, model_max_length=longest))


def _recipe(directory: Path) -> dict[str, Any]:
    import yaml

    path = directory / RECIPE
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); correct or remove it") from None
    return found if isinstance(found, dict) else {}
