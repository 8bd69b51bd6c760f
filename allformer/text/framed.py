"""A trained tokeniser for texts that are read as a whole: `<s> text </s>`, `<s> text </s> pair
</s>`."""

from __future__ import annotations

from dataclasses import replace

from allformer.text.special_tokens import special, template
from allformer.text.wrapper import Tokenizer


def framed(tokenizer: Tokenizer, longest: int | None = None, types: bool = False) -> Tokenizer:
    """`<s>` is what a text is classified by, `</s>` what parts two; `types` are BERT's segments.

    >>> tokenizer = framed(train_tokenizer(lines, vocab=200), 128, types=True)
    >>> tokenizer.tokens(tokenizer.encode("A dog.", "It runs."))
    ['<s>', '·A', '·dog', '.', '</s>', '·It', '·runs', '.', '</s>']
    """
    inner = tokenizer._copy()
    names = tokenizer.settings.names
    begin, end = special(inner, names["bos"]), special(inner, names["eos"])
    inner.post_processor = template((begin,), (end,), (end,), type_of_pair=int(types))
    inputs = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    return Tokenizer(
        inner,
        replace(
            tokenizer.settings,
            names={**names, "cls": names["bos"], "sep": names["eos"]},
            model_max_length=longest or tokenizer.settings.model_max_length,
            token_types=types,
            config={**tokenizer.settings.config, "model_input_names": inputs},
        ),
    )
