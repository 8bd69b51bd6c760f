"""One window of 30 s, or many: from what the encoder heard to text.

    memory = listener.encode(mel)                                       # A M T: once
    [decoded] = decode(listener, memory, DecodingOptions(beam_size=5))
    decoded.text, decoded.avg_logprob, decoded.no_speech_prob

Legend: A windows, R texts (rows), V vocabulary.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from allformer.errors import LengthError
from allformer.speech.language import detect_language
from allformer.speech.listener import Listens
from allformer.speech.options import DecodingOptions
from allformer.speech.result import Decoded
from allformer.speech.rules import Rules, Trail
from allformer.speech.search import Search, best_text, make_search
from allformer.speech.vocabulary import Vocabulary


@torch.inference_mode()
def decode(
    listener: Listens,
    memory: Tensor,
    options: DecodingOptions,
    generator: torch.Generator | None = None,
) -> list[Decoded]:
    """What each window says; `memory` (A S dim) is what the encoder made of them.

    All windows are read side by side and have the same prompt. `generator` is for temperatures
    above 0.
    """
    vocabulary = listener.vocabulary
    languages = _languages(listener, memory, options)
    starts = [before_text(vocabulary, options, code, listener.places) for code in languages]
    ids = torch.tensor(starts, device=memory.device)  # A L
    rules = Rules.make(vocabulary, options, memory.device)
    longest = min(_most(options, listener.places), listener.places - ids.shape[1] + 1)
    search = make_search(options, len(ids), longest, vocabulary.end, memory.device, generator)
    silence = run(listener, memory, ids, rules, search, longest)
    out = []
    for language, texts, quiet in zip(languages, search.texts(), silence.tolist(), strict=True):
        best = best_text(texts, options.length_penalty)
        text = vocabulary.decode(best.tokens).strip()
        out.append(
            Decoded(
                tokens=tuple(best.tokens),
                text=text,
                language=language,
                temperature=options.temperature,
                avg_logprob=best.logprob / (len(best.tokens) + 1),
                no_speech_prob=quiet,
                compression_ratio=compression_ratio(text),
            )
        )
    return out


def run(
    listener: Listens, memory: Tensor, ids: Tensor, rules: Rules, search: Search, longest: int
) -> Tensor:
    """Token after token until all have ended; returns the probability of no speech, A."""
    vocabulary = listener.vocabulary
    at = ids[0].tolist().index(vocabulary.begin)
    heard = listener.begin(ids, memory, at)
    logits, state = heard.next, heard.state
    silence = heard.at.softmax(-1)[:, vocabulary.silence]
    if search.copies > 1:
        each = torch.arange(len(ids), device=ids.device).repeat_interleave(search.copies)
        logits = logits.index_select(0, each)
        state.select(each)
    trail = Trail.start(len(logits), vocabulary, ids.device)
    for left in range(longest, 0, -1):
        tokens, rows = search.take(rules(logits, trail))
        if left == 1 or search.done():
            break
        if rows is not None:
            state.select(rows)
            trail.select(rows)
        trail.add(tokens)
        logits = listener.step(tokens, state)
    return silence


def before_text(
    vocabulary: Vocabulary, options: DecodingOptions, language: str, places: int
) -> list[int]:
    """The tokens that a text is written after: what was said before, the start, its prefix."""
    half = places // 2
    start = vocabulary.start(language, options.task, timed=not options.without_timestamps)
    tokens = list(start)
    prefix = _tokens(vocabulary, options.prefix)
    room = half - _most(options, places)
    tokens += prefix[-room:] if room > 0 else prefix  # as in openai-whisper: no room is all of it
    prompt = _tokens(vocabulary, options.prompt)
    if prompt:
        tokens = [vocabulary.previous, *prompt[-(half - 1) :], *tokens]
    if len(tokens) > places:
        raise LengthError(
            f"prompt and prefix are {len(tokens)} tokens, but the decoder has {places} places; "
            f"shorten the prefix"
        )
    return tokens


def compression_ratio(text: str) -> float:
    """How much smaller zlib makes a text: much, where it repeats itself.

    >>> compression_ratio("and so on " * 50)
    20.0
    """
    raw = text.encode("utf-8")
    return len(raw) / len(zlib.compress(raw))


def _languages(listener: Listens, memory: Tensor, options: DecodingOptions) -> list[str]:
    vocabulary = listener.vocabulary
    if options.language is not None:
        return [vocabulary.language(options.language)] * len(memory)
    if not vocabulary.multilingual:
        return ["en"] * len(memory)
    return [max(chances, key=chances.__getitem__) for chances in detect_language(listener, memory)]


def _most(options: DecodingOptions, places: int) -> int:
    return options.sample_len or places // 2


def _tokens(vocabulary: Vocabulary, given: str | Sequence[int] | None) -> list[int]:
    if given is None:
        return []
    return vocabulary.encode(given) if isinstance(given, str) else list(given)
