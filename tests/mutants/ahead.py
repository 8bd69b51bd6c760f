"""Planted bugs of what helps a search: guesses, a prefix, a memory of eight bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tests.mutants.mutants import Mutant, bug
from tests.property import test_chunked, test_states
from tests.unit import test_fixed_rounds, test_int8_cache, test_prefix, test_speculative

KILLERS: dict[str, Callable[[], None]] = {
    "as likely": partial(test_speculative.check_distribution, "model"),
    "as likely, n-grams": partial(test_speculative.check_distribution, "ngrams"),
    "guessed, drawn": partial(test_speculative.check_guessed, "llama", "drawn"),
    "guessed, processed": partial(test_speculative.check_guessed, "llama", "processed"),
    "guessed, windows": partial(test_speculative.check_guessed, "window", "greedy"),
    "guessed, source": partial(test_speculative.check_guessed, "t5", "greedy"),
    "chance given back": test_speculative.check_given_back,
    "rounds replayed": partial(test_fixed_rounds.replayed, "llama", "drawn"),
    "n-grams found": test_speculative.check_ngrams,
    "n-grams guessed": test_speculative.check_guesses,
    "hashes cut": test_chunked.check_cut_before_hashing,
    "ring spared": test_states.check_spare,
    "conversation": partial(test_prefix.check_conversation, "llama", True),
    "conversation, hashes": partial(test_prefix.check_conversation, "hashes", False),
    "rows of a prefix": test_prefix.check_rows,
    "padding of a prefix": test_prefix.check_padding,
    "eight bits": partial(test_int8_cache.check_error, torch.float32, 32),
    "eight bits, half": partial(test_int8_cache.check_error, torch.bfloat16, 32),
    "eight bits, pieces": partial(test_int8_cache.check_pieces, "llama"),
}
SPECULATE, PREFIX = "allformer.generate.speculative", "allformer.generate.prefix"
FIXED = "allformer.generate.fixed:FixedStepper"
DRAFTS, STEPPER = "allformer.generate.drafts", "allformer.generate.stepper"

MUTANTS: list[Mutant] = [
    # --- guesses ----------------------------------------------------------------------------------
    bug("wrong guesses stay in the cache", "later tokens look at what was never said",
        f"{SPECULATE}:speculate", "stepper.forget(guess.shape[1] - right, state)", "pass",
        "as likely", "guessed, drawn"),
    bug("one guess too many is kept", "a wrong token is said", f"{SPECULATE}:_right",
        "int(same.all(0).long().cumprod(0).sum())",
        "min(same.shape[1], 1 + int(same.all(0).long().cumprod(0).sum()))", "as likely"),
    bug("a later hit makes up for a miss", "tokens after a wrong one are taken for right",
        f"{SPECULATE}:_right", "cumprod(0)", "clone()", "as likely"),
    bug("noise is thrown away with a guess", "seeds say something else with guesses",
        f"{SPECULATE}:Noise.use", "del self.queue[:count]", "self.queue.clear()", "as likely"),
    bug("noise is used twice", "the next token knows how the last one was drawn",
        f"{SPECULATE}:Noise.use", "del self.queue[:count]", "del self.queue[: count - 1]",
        "as likely", "as likely, n-grams"),
    bug("processors do not see the guesses", "repetition is counted up to the guess alone",
        f"{SPECULATE}:choose", "text[:, : length + i]", "text[:, :length]", "guessed, processed"),
    bug("chance is not given back", "the next call draws something else", f"{SPECULATE}:speculate",
        "written.finish(noise.drawn)", "written.finish(rows.steps)", "chance given back"),
    bug("the mask keeps wrong guesses", "positions run ahead", f"{STEPPER}:DecoderStepper.forget",
        "state.mask.shape[1] - tokens]", "state.mask.shape[1]]", "guessed, drawn",
        raises=Exception),
    bug("a decoder behind an encoder keeps wrong guesses", "it looks at what was never said",
        f"{STEPPER}:EncoderDecoderStepper.forget", "state.forget(tokens)", "pass",
        "guessed, source"),
    bug("the guesser keeps its wrong guesses", "it guesses from a text that nobody said",
        f"{DRAFTS}:Smaller.told", "guessed - 1 - right", "0", "guessed, drawn",
        raises=Exception),
    bug("a ring spares nothing", "windows cannot be taken back", "states.ring:Ring.update",
        "self.size - self.more", "self.size", "ring spared", "guessed, windows",
        raises=Exception),
    bug("hashes of a draft stay", "Reformer sorts too soon", "states.hashed:Hashed.cut",
        "if length < self.since:", "if False:", "hashes cut"),
    bug("fillers stay", "what filled a round up is looked at", f"{FIXED}.verify",
        "self.forget(self.width - count, state)", "pass", "rounds replayed", raises=Exception),
    bug("a round reads the tokens of the one that was captured", "a text that goes in circles",
        "allformer.generate.fixed:Round.__call__", "self.given[:, : tokens.shape[1]] = tokens",
        "self.given = tokens", "rounds replayed", raises=Exception),
    bug("wrong guesses stay in a fixed memory", "later tokens look at what was never said",
        f"{FIXED}.forget", "state.cache.length.sub_(tokens)", "pass", "rounds replayed",
        raises=Exception),
    bug("the first place instead of the latest", "old news is repeated",
        f"{DRAFTS}:after_ngrams", "(alike * places).amax(1)",
        "(alike * places).masked_fill(~alike, 99).amin(1) % 99", "n-grams found"),
    bug("short n-grams first", "one token in common beats two", f"{DRAFTS}:after_ngrams",
        "found | (latest == 0)", "latest == 0", "n-grams found"),
    bug("n-grams find themselves", "the text's end follows itself", f"{DRAFTS}:after_ngrams",
        "text[:, :-1].unfold", "text.unfold", "n-grams found", "n-grams guessed",
        raises=Exception),
    bug("guesses stop where the text does", "what repeats is not followed",
        f"{DRAFTS}:Ngrams.propose", "turn % (text.shape[1] - start)[:, None]",
        "turn.clamp_max(text.shape[1] - 1 - int(start.max()))", "n-grams guessed"),
    # --- a prefix ---------------------------------------------------------------------------------
    bug("a prefix swallows the prompt", "what follows its last token is not known",
        f"{PREFIX}:shared", "ids.shape[1] - 1", "ids.shape[1]", "rows of a prefix",
        raises=Exception),
    bug("one row's beginning for all", "rows go on from each other's text", f"{PREFIX}:shared",
        "min(lengths)", "max(lengths)", "rows of a prefix"),
    bug("rows of a prefix stay where they were", "rows go on from each other's text",
        f"{PREFIX}:Prefix._enter", "rows != list(range(len(kept)))", "len(rows) != len(kept)",
        "rows of a prefix", raises=Exception),
    bug("padding goes for a token", "a row that begins later finds another's beginning",
        f"{PREFIX}:_marked", "ids if mask is None else", "ids if True else",
        "padding of a prefix"),
    bug("hashes are taken up", "a text in pieces is not the whole one", f"{PREFIX}:_goes_on",
        "pieces and (", "(", "conversation, hashes"),
    bug("an answer is kept one token too long", "the last token is not read at all",
        f"{PREFIX}:Prefix._keep", "state.read[:, :length]",
        "torch.nn.functional.pad(state.read[:, :length], (0, 1), value=4)", "conversation",
        raises=Exception),
    # --- eight bits -------------------------------------------------------------------------------
    bug("cut off instead of rounded", "twice the error", "states.int8:quantised",
        "steps.round()", "steps.trunc()", "eight bits"),
    bug("one scale for all tokens", "a loud token blurs the others", "states.int8:quantised",
        "parts.abs().amax(-1) / 127", "parts.abs().amax(-1).amax().expand(parts.shape[:-1]) / 127",
        "eight bits"),
    bug("steps counted in half precision", "three quarters of a step off",
        "states.int8:quantised", "widen(parts) / widen(torch.where(scale > 0, scale, 1.0))",
        "parts / torch.where(scale > 0, scale, 1.0)", "eight bits, half"),
    bug("values are not cut", "an old value for a new key", "states.int8:Int8.cut",
        "self._values.cut(length)", "pass", "eight bits, pieces", raises=Exception),
    bug("values stay in their rows", "another row's values", "states.int8:Int8.select",
        "self._values.select(rows)", "pass", "eight bits, pieces"),
]  # fmt: skip
