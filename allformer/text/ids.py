"""What every tokeniser knows of its ids: their text, their pieces, which are special."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import tokenizers
from tokenizers import decoders

from allformer.errors import DataError
from allformer.text.marian import MarianPipeline
from allformer.text.sentencepiece import SPACE
from allformer.text.settings import Settings

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")  # of the tokenisers that we train, ids 0 to 3
TRAINED = Settings(
    names=dict(zip(("pad", "unk", "bos", "eos"), SPECIALS, strict=True)), split_special_tokens=True
)
_MODEL_KIND = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "char"}
_CLEAN_UP = [
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"),
    (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
]  # fmt: skip
CLEANED = tuple(spaced for spaced, _ in _CLEAN_UP)  # what is closed up where a text is cleaned


class _SpecialId:
    """The id of a special token, or an error that says which there are."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, tokenizer: Ids, owner: type) -> int:
        ids = tokenizer.special_ids
        if self.name not in ids:
            raise DataError(
                f"this {tokenizer.settings.tokenizer_class} has no {self.name} token; it has "
                f"{', '.join(ids) or 'no special token'} (tokenizer.special_ids)"
            )
        return ids[self.name]


class Ids:
    """The half of `Tokenizer` that reads ids."""

    def __init__(
        self, inner: tokenizers.Tokenizer | MarianPipeline, settings: Settings = TRAINED
    ) -> None:
        wanted = settings.names.values()
        missing = [token for token in wanted if inner.token_to_id(token) is None]
        if missing:
            raise DataError(
                f"the tokeniser has no {', '.join(missing)}; all of {', '.join(wanted)} are "
                "needed: train one with train_tokenizer, or open a checkpoint's with load_tokenizer"
            )
        inner.encode_special_tokens = settings.split_special_tokens
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self.settings = settings

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; special tokens are left out unless asked for.

        >>> tokenizer.decode([101, 1037, 3899, 3216, 1012, 102, 0, 0])
        'a dog runs.'
        """
        numbers = [int(i) for i in ids]
        text = str(self._inner.decode(numbers, skip_special_tokens=skip_special_tokens))
        for spaced, close in _CLEAN_UP if self.settings.clean_up else ():
            text = text.replace(spaced, close)
        return text

    def decode_batch(
        self, batch: Iterable[Iterable[int]], skip_special_tokens: bool = True
    ) -> list[str]:
        """The texts of many lists of ids.

        >>> tokenizer.decode_batch([[52, 318], [190, 131]])
        ['A dog', 'Two men']
        """
        return [self.decode(ids, skip_special_tokens) for ids in batch]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The pieces to show a reader, as on the axes of an attention plot; "·" stands for a space.

        >>> tokenizer.tokens(tokenizer.encode("A dog runs."))
        ['·A', '·dog', '·runs', '.']
        """
        pieces = []
        for i in ids:
            piece = self._inner.id_to_token(int(i))
            if piece is None:
                raise DataError(f"id {int(i)} is not in the vocabulary of {self.vocab_size} pieces")
            decoder = self._inner.decoder
            if isinstance(decoder, decoders.ByteLevel):  # "Ġ" is a space, "Ã¤" a letter
                piece = decoder.decode([piece]).replace(" ", SPACE)
            pieces.append(piece.replace(SPACE, "·").replace(" ", "·"))
        return pieces

    @property
    def kind(self) -> str:
        """How it cuts words: "bpe", "wordpiece", "unigram" or "char"."""
        name = type(self._inner.model).__name__
        return _MODEL_KIND.get(name, name)

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special and added tokens included; `len(tokenizer)` too."""
        return int(self._inner.get_vocab_size())

    def __len__(self) -> int:
        return self.vocab_size

    def token_to_id(self, token: str) -> int | None:
        """The id of a piece as the vocabulary writes it: `tokenizer.token_to_id("[MASK]")`."""
        return self._inner.token_to_id(token)

    @property
    def model_max_length(self) -> int | None:
        """The most ids that the model takes, where the checkpoint says so."""
        return self.settings.model_max_length

    @property
    def padding_side(self) -> str:
        """The side on which rows are padded, "left" or "right"."""
        return self.settings.padding_side

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """The special tokens that there are: `{"unk": 100, "sep": 102, "pad": 0, …}`."""
        ids = {name: self._inner.token_to_id(token) for name, token in self.settings.names.items()}
        return {name: i for name, i in ids.items() if i is not None}

    # An error where there is none; `special_ids` has those that there are.
    pad_id = _SpecialId("pad")  # fills a row of a batch
    unk_id = _SpecialId("unk")  # what the vocabulary lacks
    bos_id = _SpecialId("bos")  # starts a text
    eos_id = _SpecialId("eos")  # ends a text
    cls_id = _SpecialId("cls")  # at the head of what is classified
    sep_id = _SpecialId("sep")  # between a text and its pair
    mask_id = _SpecialId("mask")  # a gap to be filled
