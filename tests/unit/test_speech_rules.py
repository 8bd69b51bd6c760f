"""What may be said next, which text is best, how windows are cut: by hand, on a small vocabulary.

Ids: 0 … 9 words (0 is a space), 10 the end, 11 … 17 other special ones, 18 … 23 times.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import torch

from allformer.speech.decoding import before_text, compression_ratio
from allformer.speech.options import DecodingOptions
from allformer.speech.result import Decoded
from allformer.speech.rules import Rules, Trail
from allformer.speech.search import Beams, Likeliest, Text, best_text
from allformer.speech.segments import cut
from allformer.speech.vocabulary import Vocabulary

NAMES = (
    "endoftext", "startoftranscript", "translate", "transcribe", "startoflm", "startofprev",
    "nospeech", "notimestamps",
)  # fmt: skip
SIZE, END, TIME = 24, 10, 18
HEADS = {11, 12, 13, 14, 15, 16}
CPU = torch.device("cpu")


class Digits:
    """A space is 0, every digit itself, all else 9."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0 if c == " " else int(c) if c.isdigit() else 9 for c in text]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return "".join(" " if i == 0 else str(i) for i in ids)

    def token_to_id(self, token: str) -> int | None:
        names = {f"<|{name}|>": 10 + i for i, name in enumerate(NAMES)}
        return names.get(token)


def vocabulary() -> Vocabulary:
    return Vocabulary(Digits(), SIZE)


def allowed(said: list[int], likely: Iterable[int] = (), **options: Any) -> set[int]:
    """What may follow `said`, where all tokens score 0, but the `likely` ones 5."""
    words = vocabulary()
    asked = DecodingOptions(suppress_tokens=(3,), **{"max_initial_timestamp": 0.04, **options})
    rules, trail = Rules.make(words, asked, CPU), Trail.start(1, words, CPU)
    for token in said:
        trail.add(torch.tensor([token]))
    logits = torch.zeros(1, SIZE)
    logits[0, list(likely)] = 5.0
    return set(rules(logits, trail)[0].isfinite().nonzero()[:, 0].tolist())


WORDS = {0, 1, 2, 4, 5, 6, 7, 8, 9}  # 3 is never said


def check_rules() -> None:
    assert allowed([]) == {18, 19, 20}, "a text begins with a time, and soon"
    assert allowed([], max_initial_timestamp=None) == {18, 19, 20, 21, 22, 23}
    assert allowed([18]) == WORDS | {END}, "after the first time come words"
    assert allowed([18, 1], [2]) == WORDS | {END, 19, 20, 21, 22, 23}, "no segment is empty"
    assert allowed([18, 1]) == {19, 20, 21, 22, 23}, "times together are likelier"
    assert allowed([18, 1, 20], [END]) == {END, 20, 21, 22, 23}, "a time after words has a twin"
    assert allowed([18, 1, 20, 20]) == WORDS | {END}, "a pair is enough"
    assert allowed([18, 1, 20, 20, 2], [2]) == WORDS | {END, 21, 22, 23}, "times do not go back"


def check_no_times() -> None:
    times = set(range(TIME, SIZE))
    untimed = {"without_timestamps": True}
    assert allowed([], **untimed) == (WORDS - {0}) | {17} | times, "no blank at first"
    assert allowed([], suppress_blank=False, **untimed) == WORDS | {END, 17} | times
    assert allowed([1], **untimed) == WORDS | {END, 17} | times


def check_rows_move() -> None:
    words = vocabulary()
    trail = Trail.start(2, words, CPU)
    for tokens in ([18, 18], [1, 1], [20, 2]):
        trail.add(torch.tensor(tokens))
    trail.select(torch.tensor([1, 0, 0]))
    assert trail.stamped.tolist() == [False, True, True]
    assert trail.before.tolist() == [False, False, False]
    assert trail.last.tolist() == [18, 20, 20]


def check_greedy() -> None:
    search = Likeliest(DecodingOptions(), 2, 4, 3, CPU)
    for favourite in ([1, 3], [3, 0], [2, 2]):  # rows that have ended say no more
        logits = torch.zeros(2, 4)
        logits[range(2), favourite] = 2.0
        search.take(logits)
    (first,), (second,) = search.texts()
    step = float(logits.log_softmax(-1).max())
    assert (first.tokens, second.tokens) == ([1], [])
    assert abs(first.logprob - 2 * step) < 1e-6
    assert abs(second.logprob - step) < 1e-6
    assert search.done()


def check_beams() -> None:
    """Those that end are kept with the score that they have, and the best of all is among them."""
    end, longest, vocab = 3, 4, 4
    make = torch.Generator().manual_seed(0)
    table = torch.randn(longest, vocab + 1, vocab, generator=make)  # by the step and the last
    table[..., end] += 1.0
    table[0, :, end] = float("-inf")
    logp = table.log_softmax(-1)
    scores: dict[tuple[int, ...], float] = {}
    for text in product(range(end), repeat=3):
        for length in (1, 2, 3):
            steps = [*zip((vocab, *text[:length]), (*text[:length], end), strict=True)]
            scores[text[:length]] = sum(float(logp[i, a, b]) for i, (a, b) in enumerate(steps))
    search = Beams(DecodingOptions(beam_size=3, patience=20.0), 1, longest, end, CPU)
    last = torch.full((3,), vocab)
    for step in range(longest):
        last, rows = search.take(table[step][last])
        assert len(rows) == 3
        assert len({tuple(row) for row in search.said.tolist()}) == 3, "beams differ"
    [texts] = search.texts()
    ended = {tuple(t.tokens): t.logprob for t in texts if len(t.tokens) < longest}
    assert len(ended) > 3
    for text, score in ended.items():
        assert abs(scores[text] - score) < 1e-5
    assert max(scores, key=scores.__getitem__) in ended


def check_best() -> None:
    texts = [Text([1, 2], -1.0), Text([1, 2, 3, 4, 5, 6, 7, 8], -2.0), Text([], -5.0)]
    assert best_text(texts, None) is texts[1]
    assert best_text(texts, 0.0) is texts[0]


def decoded(*tokens: int) -> Decoded:
    return Decoded(tokens, "", "en", 0.0, -0.1, 0.0, 1.0)


def check_cut() -> None:
    words = vocabulary()
    found = cut(decoded(18, 1, 20, 20, 2, 22, 22, 4), words, 1000, 3000)
    assert [(x.start, x.end, x.text) for x in found.segments] == [
        (10.0, 10.04, "1"), (10.04, 10.08, "2"),
    ]  # fmt: skip
    assert (found.moved, found.whole) == (8, False), "what is not whole is heard again"
    found = cut(decoded(18, 1, 20, 20, 2, 22), words, 0, 3000)
    assert [x.end for x in found.segments] == [0.04, 0.08]
    assert (found.moved, found.whole) == (3000, True), "one time at the end: nothing is left"
    [lone] = cut(decoded(18, 1, 2), words, 500, 700).segments
    assert (lone.start, lone.end, lone.tokens) == (5.0, 12.0, (18, 1, 2))
    [lone] = cut(decoded(18, 1, 2, 23), words, 500, 700).segments
    assert lone.end == 5.0 + 5 * 0.02


def check_prompt() -> None:
    words, places = vocabulary(), 12
    plain = before_text(words, DecodingOptions(), "en", places)
    assert plain == [11]
    untimed = DecodingOptions(without_timestamps=True, prompt="1234567", prefix="8")
    assert before_text(words, untimed, "en", places) == [15, 3, 4, 5, 6, 7, 11, 17, 0, 8]
    short = DecodingOptions(sample_len=4, prefix="678")
    assert before_text(words, short, "en", places) == [11, 7, 8]


def test_what_may_come_next():
    check_rules()


def test_without_times_only_blanks_are_ruled():
    check_no_times()


def test_what_the_rules_remember_moves_with_the_rows():
    check_rows_move()


def test_the_likeliest_tokens_until_the_end():
    check_greedy()


def test_beams_find_the_best_of_all_texts():
    check_beams()


def test_the_best_text_is_so_for_its_length():
    check_best()


def test_times_cut_a_window_into_segments():
    check_cut()


def test_a_prompt_and_a_prefix_stand_around_the_start():
    check_prompt()


def test_a_text_that_repeats_itself_packs_well():
    assert compression_ratio("and so on " * 50) > 15
    assert compression_ratio("Had he married a more amiable woman") < 1.2
