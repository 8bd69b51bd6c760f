"""Random combinations of generation options, fixed by their seed."""

from __future__ import annotations

import random
from typing import Any

from tests.models import VOCAB


def beam_or_greedy(seed: int, *, encoder: bool) -> dict[str, Any]:
    """Options that search (nothing is drawn): each is there about every third time."""
    r = random.Random(seed)
    out: dict[str, Any] = {"max_new_tokens": r.choice([1, 2, 7, 12, 18]), "do_sample": False}
    beams = r.choice([1, 1, 2, 3, 4, 6])
    if beams > 1:
        out |= {
            "num_beams": beams,
            "num_return_sequences": r.randint(1, beams),
            "length_penalty": r.choice([-1.0, 0.0, 0.7, 1.0, 2.0]),
            "early_stopping": r.choice([True, False, "never"]),
        }
    return out | said(r, encoder=encoder)


def sampled(seed: int, *, encoder: bool) -> dict[str, Any]:
    """Options that draw."""
    r = random.Random(seed)
    out: dict[str, Any] = {"max_new_tokens": r.choice([2, 7, 12]), "do_sample": True}
    beams = r.choice([1, 1, 1, 2, 4])
    if beams > 1:
        out |= {"num_beams": beams, "early_stopping": r.choice([True, False, "never"])}
    out["num_return_sequences"] = r.randint(1, 3 if beams == 1 else beams)
    choices = {
        "temperature": [0.3, 0.8, 1.7],
        "top_k": [0, 3, 12],
        "top_p": [0.3, 0.9],
        "min_p": [0.05, 0.3],
        "typical_p": [0.4, 0.9],
        "epsilon_cutoff": [0.02, 0.1],
        "eta_cutoff": [0.02, 0.1],
        "top_h": [0.3, 0.8],
    }
    out |= {name: r.choice(values) for name, values in choices.items() if r.random() < 0.3}
    out |= said(r, encoder=encoder)
    out.pop("remove_invalid_values", None)  # transformers' own draws break on what it puts there
    return out


def said(r: random.Random, *, encoder: bool) -> dict[str, Any]:
    """Options about what may be said."""

    def some(low: int, high: int) -> list[int]:
        return r.sample(range(4, VOCAB), r.randint(low, high))

    new = r.choice([2, 5, 9])
    choices: dict[str, Any] = {
        "min_new_tokens": new,
        "min_length": r.choice([3, 14]),
        "repetition_penalty": r.choice([0.8, 1.3, 2.0]),
        "encoder_repetition_penalty": r.choice([0.7, 1.5]),
        "no_repeat_ngram_size": r.choice([1, 2, 3]),
        "encoder_no_repeat_ngram_size": r.choice([1, 2, 3]),
        "bad_words_ids": [[i] for i in some(1, 3)] + [some(2, 2), some(3, 3)],
        "sequence_bias": [[some(1, 1), 2.5], [some(2, 2), -3.0], [[*some(1, 1), 3], 4.0]],
        "suppress_tokens": some(1, 6),
        "begin_suppress_tokens": some(1, 6),
        "forced_bos_token_id": some(1, 1)[0],
        "forced_eos_token_id": r.choice([3, [3, some(1, 1)[0]]]),
        "eos_token_id": r.choice([[3, *some(1, 2)], some(1, 1)[0], [*some(3, 3), 3]]),
        "pad_token_id": some(1, 1)[0],
        "exponential_decay_length_penalty": (r.choice([1, 4]), r.choice([1.05, 1.5])),
        "remove_invalid_values": True,
        "renormalize_logits": True,
        "use_cache": False,
    }
    if encoder:
        choices["decoder_start_token_id"] = some(1, 1)[0]
    out = {name: value for name, value in choices.items() if r.random() < 0.25}
    if "suppress_tokens" in out:  # what is forced as well is refused by both
        out["suppress_tokens"] = [i for i in out["suppress_tokens"] if i not in _forced(out)]
    return out


def _forced(options: dict[str, Any]) -> list[int]:
    ends = options.get("forced_eos_token_id", [])
    return [options.get("forced_bos_token_id"), *(ends if isinstance(ends, list) else [ends])]
