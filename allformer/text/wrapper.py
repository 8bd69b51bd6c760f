"""The one class of tokenisers: a pipeline of the `tokenizers` library and what its file leaves out.

Made by `load_tokenizer` (a checkpoint's files), `train_tokenizer` (lines of text) or
`Tokenizer.load` (what training wrote).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
import torch

from allformer.errors import ConfigError, DataError
from allformer.text.batch import Batch
from allformer.text.chat import apply_template
from allformer.text.cutting import Cutter, check_lengths, copy_tokenizer
from allformer.text.files import json_file, write_pipeline, write_tokenizer
from allformer.text.ids import Ids
from allformer.text.inputs import Texts, not_text, pair_up
from allformer.text.marian import MarianPipeline
from allformer.text.settings import Settings
from allformer.text.special_tokens import around_language, special, template


class Tokenizer(Ids):
    """Text to ids and back.

    >>> tokenizer = load_tokenizer("bert-base-uncased")
    >>> tokenizer.encode("A dog runs.")
    [101, 1037, 3899, 3216, 1012, 102]
    >>> out = model(**tokenizer(["A dog runs.", "Two men talk."]))
    """

    # ---------------------------------------------------------------- text to ids

    def encode(
        self, text: str, pair: str | None = None, add_special_tokens: bool = True
    ) -> list[int]:
        """The ids of one text or a pair, with the special tokens that the family puts around.

        >>> tokenizer.encode("A dog runs.", add_special_tokens=False)
        [1037, 3899, 3216, 1012]

        A tokeniser that we trained puts nothing around: `<s>` and `</s>` are the caller's.
        """
        pairs = None if pair is None else [pair]
        return self.encode_batch([text], pairs, add_special_tokens=add_special_tokens)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        add_special_tokens: bool = True,
        dropout: float = 0.0,
    ) -> list[list[int]]:
        """The ids of many texts at once, much faster than one by one; lists of their own lengths.

        >>> tokenizer.encode_batch(["A dog runs.", "Two men talk."], dropout=0.1)
        [[52, 318, 77, 460, 9], [190, 131, 864, 9]]

        `dropout` > 0 is BPE-dropout (Provilkov et al. 2020): each merge is left out with that
        probability, so that training sees many cuts of a word. The draws come from a generator
        inside the `tokenizers` library which cannot be seeded: two runs differ.
        """
        inner = self._inner if dropout == 0 else self._with_dropout(dropout)
        inputs = pair_up(texts, pairs)
        try:
            encodings = inner.encode_batch_fast(inputs, add_special_tokens=add_special_tokens)
        except TypeError:
            raise not_text(texts, pairs) from None
        return [list(encoding.ids) for encoding in encodings]

    def __call__(
        self,
        texts: str | Texts,
        pairs: str | Texts | None = None,
        *,
        add_special_tokens: bool = True,
        padding_side: str | None = None,
        max_length: int | None = None,
        truncate: bool = False,
        windows: int | None = None,
        is_split_into_words: bool = False,
        device: torch.device | str | None = None,
    ) -> Batch:
        """Texts as a model takes them: `model(**tokenizer(["A dog runs.", "Two men talk."]))`.

        >>> tokenizer(questions, passages, max_length=384, windows=128)

        Rows are padded on `padding_side` (the family's own: right, for LLaMA left) with the pad
        token; where there is none (GPT-2) with `<eos>`, which the mask hides all the same.

        A row longer than `max_length` is an error unless one says what then: `truncate=True` cuts
        the longer of text and pair (`batch.cut` names the rows); `windows=128` makes several rows
        that overlap by 128 ids, each with the whole text and a part of its pair (`batch.texts`
        says whose row it is). `is_split_into_words`: each text is a list of words.
        """
        side = padding_side or self.padding_side
        if side not in ("left", "right"):
            raise ConfigError(f"padding_side={side!r} must be 'left' or 'right'")
        texts = [texts] if isinstance(texts, str) else texts
        pairs = [pairs] if isinstance(pairs, str) else pairs
        flags = {"add_special_tokens": add_special_tokens, "is_pretokenized": is_split_into_words}
        inputs = pair_up(texts, pairs)
        try:
            if truncate or windows is not None:
                max_length = max_length or self.model_max_length
                encodings = self._cutter.encode_cut(texts, pairs, max_length, windows, **flags)
            else:
                encodings = self._inner.encode_batch(inputs, **flags)
        except TypeError:
            raise not_text(texts, pairs) from None
        if max_length is not None:
            check_lengths([len(encoding.ids) for encoding in encodings], max_length)
        cut = [i for i, encoding in enumerate(encodings) if encoding.overflowing]
        owners = list(range(len(encodings)))
        if windows is not None:
            rows = [[encoding, *encoding.overflowing] for encoding in encodings]
            owners = [i for i, row in enumerate(rows) for _ in row]
            encodings, cut = [encoding for row in rows for encoding in row], []
        ids = self.special_ids
        batch = Batch(
            encodings,
            pad_id=ids.get("pad", ids.get("eos", 0)),
            padding_side=side,
            token_types=self.settings.token_types,
            texts=owners,
            cut=cut,
        )
        return batch if device is None else batch.to(device)

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        **variables: Any,
    ) -> str | list[int]:
        """A conversation as the one text that the model was trained on, or its ids.

        >>> tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], True)
        '<|user|>\\nHi</s>\\n<|assistant|>\\n'

        The template is the checkpoint's; it runs in jinja2's sandbox. `chat_template=` gives
        another, or the name of one of several; `continue_final_message=True` leaves the last
        message open; all else is handed to the template.
        """
        names = {f"{name}_token": token for name, token in self.settings.names.items()}
        text = apply_template(
            self.settings.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            **{**names, **variables},
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    # ---------------------------------------------------------------- others like it

    @property
    def target(self) -> Tokenizer:
        """The tokeniser of what the model writes: another one for Marian, mostly this one."""
        if isinstance(self._inner, MarianPipeline):
            return Tokenizer(self._inner.target, self.settings)
        if self.settings.target_language is not None:
            return self.with_language(self.settings.target_language)
        return self

    def with_language(self, code: str) -> Tokenizer:
        """mBART's for a language: `tokenizer.with_language("de_DE").encode("Ein Hund.")`."""
        at = self.settings.language_at
        if not at:
            raise ConfigError(
                f"with_language({code!r}) is for mBART; this {self.settings.tokenizer_class} puts "
                "no language code around a text"
            )
        inner = self._copy()
        inner.post_processor = around_language(inner, at, code, self.settings.names["eos"])
        return Tokenizer(inner, self.settings)

    def with_specials(
        self,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        between: Sequence[str] = (),
        type_of_pair: int = 0,
    ) -> Tokenizer:
        """One that puts these around a text: `tokenizer.with_specials(after=["</s>"])`.

        `between` stands between a text and its pair, whose token type is `type_of_pair`.
        """
        inner = self._copy()
        head, middle, tail = (
            tuple(special(inner, token) for token in part) for part in (before, between, after)
        )
        inner.post_processor = template(head, middle, tail, type_of_pair)
        return Tokenizer(inner, self.settings)

    # ---------------------------------------------------------------- files

    def save(self, path: str | Path) -> Path:
        """Write it into a directory, so that it opens here and in transformers.

        >>> tokenizer.save("runs/en-de")
        PosixPath('runs/en-de/tokenizer.json')

        `tokenizer.json`, `tokenizer_config.json` and the chat template, where there is one
        (Marian's: its own files). A `path` that ends in `.json` gets the first of them alone.
        """
        file = json_file(path)
        if file.parent == Path(path) or isinstance(self._inner, MarianPipeline):
            return write_tokenizer(Path(path), self._inner, self.settings)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_pipeline(self._inner, file)
        return file

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Open the `tokenizer.json` of a tokeniser that we trained, or the one in a directory.

        >>> Tokenizer.load("runs/en-de").vocab_size
        8000
        """
        file = json_file(path)
        if not file.is_file():
            raise DataError(f"no tokeniser at {file}; give a tokenizer.json or its directory")
        try:
            inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"{file} is not a readable tokenizer.json: {error}") from error
        return cls(inner)

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"

    def __reduce__(self) -> tuple[Any, ...]:  # to worker processes: by its text
        inner = self._inner
        state = inner if isinstance(inner, MarianPipeline) else inner.to_str()
        return _restore, (state, self.settings)

    @cached_property
    def _cutter(self) -> Any:
        if isinstance(self._inner, MarianPipeline):
            return self._inner
        return Cutter(self._inner, self.settings.truncation_side)

    def _copy(self) -> tokenizers.Tokenizer:
        if isinstance(self._inner, MarianPipeline):
            raise ConfigError("Marian's tokeniser puts </s> after each text, and nothing else")
        return copy_tokenizer(self._inner)

    def _with_dropout(self, dropout: float) -> tokenizers.Tokenizer:
        # A copy, so that neither a file saved meanwhile nor another thread sees the dropout.
        if self.kind != "bpe":
            raise ConfigError(
                f"dropout={dropout} needs a tokeniser of kind 'bpe', this one is {self.kind!r}; "
                "leave dropout=0 or train with kind='bpe'"
            )
        if not 0 < dropout <= 1:
            raise ConfigError(f"dropout={dropout} must lie in 0 to 1; 0.1 is usual")
        copy = self._copy()
        copy.encode_special_tokens = self.settings.split_special_tokens
        copy.model.dropout = dropout
        return copy


def _restore(state: str | MarianPipeline, settings: Settings) -> Tokenizer:
    return Tokenizer(
        tokenizers.Tokenizer.from_str(state) if isinstance(state, str) else state, settings
    )
