"""A checkpoint's config.json, field by field: each is read, checked, or known to change nothing.

A field that nobody asked for is refused by name: it might change the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allformer.errors import CheckpointError

# What transformers writes for every model and what changes no number of the model itself:
# bookkeeping, initialisation, and defaults of generation (`generate.options` reads those).
INERT = frozenset(
    """
    architectures model_type transformers_version torch_dtype dtype _name_or_path _commit_hash
    use_cache return_dict output_hidden_states output_attentions output_past torchscript
    use_bfloat16 tf_legacy_loss tokenizer_class prefix finetuning_task task_specific_params
    gradient_checkpointing chunk_size_feed_forward initializer_range initializer_factor init_std
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens sep_token_id
    bos_token_id eos_token_id pad_token_id decoder_start_token_id num_labels
    _num_labels label2id id2label problem_type _attn_implementation_autoset attn_implementation
    tie_word_embeddings classifier_dropout hidden_dropout
    force_bos_token_to_be_generated gradient_checkpointing_kwargs static_position_embeddings
    """.split()  # noqa: SIM905
)
# What must have a certain value, else the model is another one.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "pruned_heads": ({}, None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False, None),
    "layer_norm_type": (None,),
}
_MISSING: Any = object()


class Fields:
    """`fields.take("hidden_size", 768)`; afterwards `fields.close()` refuses what nobody took.

    `usual` has the values of absent fields, as the family's files leave them out.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        kind: str,
        usual: Mapping[str, Any] | None = None,
        ignore: Iterable[str] = (),
    ) -> None:
        self.raw, self.kind, self.usual = dict(raw), kind, usual or {}
        self.taken: set[str] = set()
        self.known: set[str] = set()  # looked at, and of no effect as they stand
        self.ignore = frozenset(ignore)

    def take(self, name: str, default: Any = _MISSING, *, older: str | None = None) -> Any:
        """The field's value, under this or an older name; null counts as absent."""
        names = (name,) if older is None else (name, older)
        self.taken.update(names)
        for known in names:
            if self.raw.get(known) is not None:
                return self.raw[known]
        default = self.usual.get(name, _MISSING) if default is _MISSING else default
        if default is _MISSING:
            raise CheckpointError(
                f"config.json lacks {name!r}, which a {self.kind} model needs; add it"
            )
        return default

    def must(self, name: str, *allowed: Any) -> None:
        """Refuse any value but these (or none): the core cannot say what it means."""
        self.known.add(name)
        value = self.raw.get(name)
        if value is not None and value not in allowed and name not in self.ignore:
            raise CheckpointError(
                f"config.json has {name}={value!r}, which is not supported and would change the "
                f"numbers (supported: {', '.join(map(repr, allowed)) or 'absent'}); "
                f"load(…, ignore=[{name!r}]) goes on without it"
            )

    def inert(self, *names: str) -> None:
        """Fields of this family that change nothing, whatever they say."""
        self.known.update(names)

    def choice(self, name: str, known: Mapping[str, str], default: Any = _MISSING) -> str:
        """A name that the table translates: `fields.choice("hidden_act", ACT, "gelu")`."""
        value = self.take(name, default)
        if value not in known:
            raise CheckpointError(
                f"config.json has {name}={value!r}, which is not known; try {', '.join(known)}"
            )
        return known[value]

    def token(self, name: str, vocab: int) -> int | None:
        """A token id of the vocabulary; the first of a list; None where it points outside."""
        value = self.raw.get(name, self.usual.get(name))
        value = value[0] if isinstance(value, list) and value else value
        return value if type(value) is int and 0 <= value < vocab else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in order."""
        names = self.raw.get("id2label")
        if not names:
            count = self.raw.get("num_labels") or self.usual.get("num_labels", 2)
            return tuple(f"LABEL_{i}" for i in range(count))
        try:
            ordered = sorted((int(key), str(name)) for key, name in names.items())
        except (AttributeError, ValueError):
            raise CheckpointError(
                f"config.json has id2label={names!r}; it must name the label of each number"
            ) from None
        if [key for key, _ in ordered] != list(range(len(ordered))):
            raise CheckpointError(
                f"config.json has id2label with the numbers {[key for key, _ in ordered]}; "
                f"they must run from 0 without gaps"
            )
        return tuple(name for _, name in ordered)

    def close(self) -> dict[str, Any]:
        """Refuse what is left; returns what changes nothing, to be written back as it was."""
        for name, values in NEUTRAL.items():
            if name not in self.taken:
                self.must(name, *values)
        left = {
            name: value
            for name, value in self.raw.items()
            if name not in self.taken | self.known | INERT | self.ignore and not _off(value)
        }
        if left:
            name, value = next(iter(left.items()))
            raise CheckpointError(
                f"config.json has {name}={value!r}, which allformer does not know for a "
                f"{self.kind} model and which may change its numbers"
                + (f" (and {', '.join(list(left)[1:])})" if len(left) > 1 else "")
                + f"; load(…, ignore={list(left)}) goes on without"
            )
        return {n: v for n, v in self.raw.items() if n not in self.taken | self.ignore}


def _off(value: Any) -> bool:
    """Unknown and switched off: it asks for nothing."""
    return value is None or value is False or value == {} or value == []
