"""What each option may be. A value that cannot work is refused where it is written down."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from allformer.errors import ConfigError


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _ids(value: Any) -> bool:
    return isinstance(value, tuple) and all(_whole(i) and i >= 0 for i in value)


def _words(value: Any) -> bool:
    return isinstance(value, tuple) and all(_ids(word) and word for word in value)


def _biases(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and pair[0] and _ids(pair[0])
        and (_number(pair[1]) or pair[1] == -math.inf)  # which forbids
        for pair in value
    )  # fmt: skip


def _forced(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and _whole(pair[0]) and pair[0] > 0
        and (pair[1] is None or (_whole(pair[1]) and pair[1] >= 0))
        for pair in value
    )  # fmt: skip


def _texts(value: Any) -> bool:
    every = (value,) if isinstance(value, str) else value
    return isinstance(every, tuple) and bool(every) and all(isinstance(t, str) and t for t in every)


class _Rule:
    def __init__(self, holds: Callable[[Any], bool], must: str, way_out: str, *names: str) -> None:
        self.holds, self.must, self.way_out, self.names = holds, must, way_out, names


_RULES = (
    # Past these bounds it is a slip, or a file that means harm: it would run for days.
    _Rule(
        lambda v: _whole(v) and 1 <= v <= 1_000_000,
        "must be a whole number of at least 1, and at most a million", "try 1 or more",
        "max_new_tokens", "max_length", "num_return_sequences",
    ),
    _Rule(
        lambda v: _whole(v) and 1 <= v <= 1_000,
        "must be a whole number of at least 1, and at most a thousand", "try 1 or more",
        "num_beams",
    ),
    _Rule(
        lambda v: _whole(v) and v >= 0, "must be a whole number of at least 0", "0 turns it off",
        "min_new_tokens", "min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "top_k",
    ),
    _Rule(
        lambda v: _number(v) and v > 0, "must be a number above 0", "1.0 changes nothing",
        "repetition_penalty", "encoder_repetition_penalty",
    ),
    _Rule(lambda v: _number(v) and v > 0, "must be seconds above 0", "leave it out", "max_time"),
    _Rule(
        lambda v: _number(v) and v >= 0, "must be a number above 0",
        "below 1 is safer, above 1 bolder; do_sample=False takes the likeliest token each time",
        "temperature",
    ),
    # An exponent of the length: a million to a higher power is no number of fp64.
    _Rule(
        lambda v: _number(v) and abs(v) <= 50, "must be a finite number from -50 to 50",
        "1.0 is the default", "length_penalty",
    ),
    _Rule(
        lambda v: _number(v) and 0 <= v <= 1, "must lie in 0 … 1", "leave it out to keep all",
        "top_p", "min_p",
    ),
    _Rule(
        lambda v: _number(v) and 0 < v <= 1, "must lie in 0 … 1, without 0", "leave it out",
        "typical_p", "top_h",
    ),
    _Rule(
        lambda v: _number(v) and 0 <= v < 1, "must lie in 0 … 1, without 1", "0 turns it off",
        "epsilon_cutoff", "eta_cutoff",
    ),
    _Rule(
        lambda v: isinstance(v, bool) or v == "never", "is not a choice",
        'try True, False or "never"', "early_stopping",
    ),
    _Rule(
        lambda v: isinstance(v, bool), "must be True or False", "correct its type",
        "do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "output_scores",
        "output_logits", "return_dict_in_generate",
    ),
    _Rule(
        lambda v: _whole(v) and 1 <= v <= 1_000,
        "must be a whole number of at least 1, and at most a thousand", "try 10, or leave it out",
        "prompt_lookup_num_tokens", "max_matching_ngram_size", "num_assistant_tokens",
    ),
    _Rule(
        lambda v: v in ("constant", "heuristic", "heuristic_transient"), "is not a choice",
        'try "constant" or "heuristic"', "num_assistant_tokens_schedule",
    ),
    _Rule(
        lambda v: _number(v) and 0 <= v <= 1, "must lie in 0 … 1", "0 turns it off",
        "assistant_confidence_threshold",
    ),
    # Checkpoints write -1 for "none"; it is read as that where it is used.
    _Rule(_whole, "must be a token's id", "give one whole number", "pad_token_id", "bos_token_id"),
    _Rule(
        lambda v: _whole(v) and v >= 0, "must be a token's id", "give one whole number",
        "forced_bos_token_id",
    ),
    _Rule(
        _forced, "must pair a length with the id that stands there", "try [[1, 50362]]",
        "forced_decoder_ids",
    ),
    _Rule(
        lambda v: _whole(v) or (isinstance(v, tuple) and bool(v) and all(map(_whole, v))),
        "must be a token's id or a list of them", "correct its value",
        "eos_token_id", "forced_eos_token_id", "decoder_start_token_id",
    ),
    _Rule(
        _ids, "must be a list of token ids", "correct its value",
        "suppress_tokens", "begin_suppress_tokens",
    ),
    _Rule(
        _words, "must be a list of lists of token ids", "try [[5], [7, 8]]", "bad_words_ids",
    ),
    _Rule(
        _biases, "must pair token ids with a bias", "try [[[5, 7], -2.0]] or {(5, 7): -2.0}",
        "sequence_bias",
    ),
    _Rule(
        lambda v: isinstance(v, tuple) and len(v) == 2 and _whole(v[0]) and _number(v[1]),
        "must be a start and a factor", "try (10, 1.1)", "exponential_decay_length_penalty",
    ),
    _Rule(
        _texts, "must be a text or a list of texts, none of them empty", "correct its value",
        "stop_strings",
    ),
)  # fmt: skip

RULES = {name: rule for rule in _RULES for name in rule.names}


def check_fields(owner: Any) -> None:
    """Each field that is set against its rule, then those that must fit together."""
    for name, rule in RULES.items():
        value = getattr(owner, name)
        if value is not None and not rule.holds(value):
            raise ConfigError(f"{name}={value!r} {rule.must}; {rule.way_out}")
    _check_forced(owner)


def _check_forced(owner: Any) -> None:
    """A token that is forced and forbidden would leave nothing to say."""
    never = set(owner.suppress_tokens or ())
    steps = [("forced_decoder_ids", (i,)) for _, i in owner.forced_decoder_ids or ()]
    ends = ("forced_bos_token_id", "forced_eos_token_id")
    for name, forced in [*((name, as_tuple(getattr(owner, name))) for name in ends), *steps]:
        if forced and set(forced) <= never:
            raise ConfigError(
                f"{name}={getattr(owner, name)} is also in suppress_tokens, so nothing could be "
                f"said; take it out of one of them"
            )


def check_together(settled: Any) -> None:
    """What can only be judged when all is settled: what `generate` is about to do."""
    beams, back = settled.num_beams or 1, settled.num_return_sequences or 1
    if settled.prompt_lookup_num_tokens:
        check_guessing(settled, "prompt_lookup_num_tokens")
    if settled.do_sample and settled.temperature == 0:
        raise ConfigError(
            "temperature=0 must be a number above 0; use do_sample=False for the likeliest token "
            "each time"
        )
    if back > 1 and beams == 1 and not settled.do_sample:
        raise ConfigError(
            f"num_return_sequences={back}: greedy search finds one sequence; set num_beams={back} "
            f"or more, or do_sample=True"
        )
    if beams > 1 and back > beams:
        raise ConfigError(
            f"num_return_sequences={back} must be at most num_beams={beams}; try num_beams={back}"
        )


def check_guessing(settled: Any, name: str) -> None:
    """Guesses are tried out on one sequence of each row, and taken back."""
    if (settled.num_beams or 1) > 1:
        raise ConfigError(f"{name} cannot guess for num_beams={settled.num_beams}; set num_beams=1")
    if settled.use_cache is False:
        raise ConfigError(f"{name} needs the cache; leave use_cache=False out")


def as_tuple(value: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """One id, several or none, as a tuple."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)
