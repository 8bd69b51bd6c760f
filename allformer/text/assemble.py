"""Special and added tokens, what stands around a text, and the settings: the same for all families.

As transformers 5 does it (`TokenizersBackend.__init__`), down to the order in which tokens that the
vocabulary lacks get their ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, processors

from allformer.errors import ConfigError
from allformer.text.families import Family
from allformer.text.marian import MarianPipeline
from allformer.text.settings import SPECIAL_NAMES, Settings
from allformer.text.sidecar import Sidecar, Token
from allformer.text.special_tokens import around_language, special, template
from allformer.text.vocabulary import Names
from allformer.text.wrapper import Tokenizer

_ENDLESS = 10**12  # transformers writes 1e30 for "no limit"


def family_names(family: Family, sidecar: Sidecar) -> Names:
    """The family's special tokens, where the checkpoint does not say otherwise."""
    names: Names = {}
    for key in SPECIAL_NAMES:
        default = family.names.get(key)
        value = sidecar.named(key, default)
        if isinstance(default, AddedToken) and (isinstance(value, str) or value is default):
            # A copy of the default: add_tokens sets a flag on it.
            flags = {"lstrip": default.lstrip, "rstrip": default.rstrip}
            if not default.normalized:  # left out, it follows from whether the token is special
                flags["normalized"] = False
            value = AddedToken(str(value), **flags)
        names[key] = value
    return names


def add_tokens(
    inner: tokenizers.Tokenizer, sidecar: Sidecar, names: Names, further: Sequence[Token]
) -> None:
    """Add what is listed as added, then the special tokens that are not, in transformers' order."""
    if "extra_special_tokens" in sidecar.options:
        further = sidecar.options["extra_special_tokens"] or []
    named = [token for token in (*names.values(), *sidecar.specific.values()) if token is not None]
    listed: list[Token] = [token for _, token in sorted(sidecar.added.items())]
    known = {token.content for token in inner.get_added_tokens_decoder().values()}
    known |= {str(token) for token in listed}
    for token in (*named, *further):
        if str(token) not in known and token not in listed:
            listed.append(token)
    special = {str(token) for token in named}
    tokens = []
    for token in listed:
        if isinstance(token, str):
            token = AddedToken(token, special=True)
        elif not token.special and str(token) in special:
            token.special = True
        tokens.append(token)
    inner.add_tokens(tokens)
    wrong = [
        f"{token.content} is {inner.token_to_id(token.content)}, not {i}"
        for i, token in sorted(sidecar.added.items())
        if inner.token_to_id(token.content) != i
    ]
    if wrong:
        warnings.warn(
            f"the added tokens do not get the ids that the checkpoint lists: {'; '.join(wrong[:5])}"
            f"{' …' if len(wrong) > 5 else ''}; its vocabulary and its added tokens do not fit",
            stacklevel=4,
        )


def put_around(
    inner: tokenizers.Tokenizer, sidecar: Sidecar, names: Names, family: Family | None
) -> None:
    """Set which special tokens stand around one text and around a pair."""
    ids = {key: special(inner, str(token)) for key, token in names.items() if token is not None}
    options = sidecar.options
    if family is not None and family.language_at:
        code = options.get("src_lang") or "en_XX"
        inner.post_processor = around_language(inner, family.language_at, code, ids["eos"][0])
    elif family is not None and family.before is not None:
        inner.post_processor = template(family.before(inner, options), (), (ids["eos"],), 1)
    elif family is not None and family.around is not None:
        if family.around_wins or inner.post_processor is None:
            inner.post_processor = family.around(ids, options)
    elif options.get("add_bos_token") or options.get("add_eos_token"):
        bos = [f"{ids['bos'][0]}:"] if options.get("add_bos_token") and "bos" in ids else []
        eos = [f"{ids['eos'][0]}:"] if options.get("add_eos_token") and "eos" in ids else []
        first = [f"{token}0" for token in bos] + ["$A:0"] + [f"{token}0" for token in eos]
        second = [f"{token}1" for token in bos] + ["$B:1"] + [f"{token}1" for token in eos]
        inner.post_processor = processors.TemplateProcessing(
            single=first,
            pair=first + second,
            special_tokens=[ids[name] for name, on in (("bos", bos), ("eos", eos)) if on],
        )


def finish(
    inner: tokenizers.Tokenizer | MarianPipeline,
    sidecar: Sidecar,
    names: Names,
    tokenizer_class: str,
    family: Family | None,
    *,
    padding_side: str = "right",
    max_length: int | None = None,
) -> Tokenizer:
    """The tokeniser, with its settings."""
    options = sidecar.options
    limit = options.get("model_max_length", options.get("max_len", max_length))
    inputs = options.get("model_input_names")
    clean = bool(options.get("clean_up_tokenization_spaces", False))
    if type(inner.model).__name__ == "BPE" and isinstance(inner, tokenizers.Tokenizer):
        # It would take spaces out of byte-level text that the model wrote; transformers 5 refuses.
        clean = clean and bool(options.get(_CLEAN_BPE, False))
    side = options.get("padding_side", family.padding_side if family else padding_side)
    if side not in ("left", "right"):
        raise ConfigError(f"tokenizer_config.json: padding_side={side!r} must be left or right")
    cut = options.get("truncation_side", "right")
    if cut not in ("left", "right"):
        raise ConfigError(f"tokenizer_config.json: truncation_side={cut!r} must be left or right")
    return Tokenizer(
        inner,
        Settings(
            names={key: str(token) for key, token in names.items() if token is not None},
            model_max_length=int(limit) if limit is not None and 0 < limit <= _ENDLESS else None,
            padding_side=side,
            truncation_side=cut,
            token_types=(
                "token_type_ids" in inputs if inputs else bool(family and family.token_types)
            ),
            clean_up=clean,
            split_special_tokens=bool(options.get("split_special_tokens", False)),
            language_at=family.language_at if family else "",
            target_language=options.get("tgt_lang"),
            chat_template=sidecar.chat_template,
            tokenizer_class=tokenizer_class,
            config=sidecar.config,
        ),
    )


_CLEAN_BPE = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
