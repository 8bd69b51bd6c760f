"""The tokeniser of OpenAI's Whisper files, from the `.tiktoken` vocabulary that openai-whisper has.

    tokenizer = openai_whisper_tokenizer(51_864)                       # of an English model
    tokenizer = openai_whisper_tokenizer(51_865, "multilingual.tiktoken")

A line has a token in base 64 and its rank: the lower that is, the sooner its parts are merged.
"""

from __future__ import annotations

import base64
import binascii
from importlib.util import find_spec
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from allformer.errors import DataError
from allformer.text import steps
from allformer.text.lossless import bytes_to_letters
from allformer.text.settings import Settings
from allformer.text.special_tokens import special, template
from allformer.text.vocabulary import Vocabulary
from allformer.text.whisper import END, before_text, special_tokens
from allformer.text.wrapper import Tokenizer

ENGLISH = 51_864  # tokens of a model of English alone
_OTHERS = len(special_tokens(0))  # special ones that are no languages


def openai_whisper_tokenizer(vocab: int, file: str | Path | None = None) -> Tokenizer:
    """The tokeniser of a model of `vocab` tokens; `file` is its vocabulary, by default the one
    that lies in the package openai-whisper."""
    path = _installed(vocab) if file is None else Path(file)
    ranks = read_ranks(path)
    languages = vocab - len(ranks) - _OTHERS
    if not 0 < languages <= 100:
        raise DataError(
            f"{path} has {len(ranks):,} tokens, which with {_OTHERS:,} special ones and languages "
            f"do not make the model's {vocab:,}; give the vocabulary that the model was trained "
            f"with"
        )
    vocabulary = Vocabulary(_spelt(ranks), _merges(ranks))
    inner = steps.byte_bpe(vocabulary, {}, {})
    inner.add_tokens(
        [AddedToken(x, special=True, normalized=False) for x in special_tokens(languages)]
    )
    return _around(inner)


def _around(inner: tokenizers.Tokenizer) -> Tokenizer:
    inner.post_processor = template(before_text(inner, {}), (), (special(inner, END),), 1)
    names = dict.fromkeys(("bos", "eos", "unk", "pad"), END)
    return Tokenizer(inner, Settings(names, tokenizer_class="WhisperTokenizer"))


def _installed(vocab: int) -> Path:
    """The vocabulary in openai-whisper, which is looked at and not imported."""
    found = find_spec("whisper")
    name = "gpt2.tiktoken" if vocab <= ENGLISH else "multilingual.tiktoken"
    where = [
        Path(each) / "assets" / name for each in (found and found.submodule_search_locations) or ()
    ]
    file = next((path for path in where if path.is_file()), None)
    if file is None:
        raise DataError(
            f"OpenAI's files of Whisper have no tokeniser, and {name} is looked for in the package "
            f"openai-whisper, which is not there; `pip install openai-whisper`, or give the file, "
            f"or the directory of a tokeniser"
        )
    return file


def read_ranks(path: Path) -> dict[bytes, int]:
    """Each token's bytes and its id: `read_ranks(Path("gpt2.tiktoken"))`."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        ranks = {
            base64.b64decode(token): int(rank)
            for token, rank in (line.split() for line in lines if line)
        }
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, binascii.Error) as error:
        raise DataError(
            f"{path} is no vocabulary of tiktoken's: {error}; each line has a token in base 64 and "
            f"its rank"
        ) from None
    if sorted(ranks.values()) != list(range(len(ranks))) or len(ranks) < 256:
        raise DataError(f"{path} has ranks with gaps, or too few; copy it again")
    return ranks


def _spelt(ranks: dict[bytes, int]) -> dict[str, int]:
    """Tokens by the letters that stand for their bytes, with their ids."""
    letters = bytes_to_letters()
    return {"".join(letters[byte] for byte in token): i for token, i in ranks.items()}


def _merges(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """The pairs that become each token, in the order of their ranks: any two neighbours that are
    one token together are merged, as tiktoken does."""
    letters, found = bytes_to_letters(), []
    for token in sorted(ranks, key=ranks.__getitem__):
        word = "".join([letters[byte] for byte in token])  # a letter each
        found += [
            (word[:i], word[i:])
            for i in range(1, len(token))
            if token[:i] in ranks and token[i:] in ranks
        ]
    return found
