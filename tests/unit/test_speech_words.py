"""Tokens into words, paths through attention, punctuation, and what two readings agree upon."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from allformer.errors import ConfigError
from allformer.speech.agreement import Agreement, same_word
from allformer.speech.dtw import median_filter, warp
from allformer.speech.split import split
from allformer.speech.word_times import (
    Timing,
    fit_segment,
    join_punctuation,
    shorten_at_sentences,
    time_words,
    token_times,
    usual_length,
)

END = 1000  # the first special token of the toy vocabulary below


def brute(cost: np.ndarray) -> list[tuple[int, int]]:
    """The reference's recursion, cell by cell."""
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf, dtype=np.float32)
    total[0, 0] = 0
    step = {}
    for j in range(1, m + 1):
        for i in range(1, n + 1):
            both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            moved, before = (0, 1), column
            if both < row and both < column:
                moved, before = (1, 1), both
            elif row < both and row < column:
                moved, before = (1, 0), row
            total[i, j] = np.float32(cost[i - 1, j - 1]) + before
            step[i, j] = moved
    i, j = n, m
    path = []
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        down, right = (0, 1) if i == 0 else (1, 0) if j == 0 else step[i, j]
        i, j = i - down, j - right
    return path[::-1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (4, 9), (12, 40)])
@pytest.mark.parametrize("kind", ["numbers", "ties", "gaps"])
def test_the_path_is_the_cheapest_one(shape: tuple[int, int], kind: str) -> None:
    cost = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    if kind == "ties":
        cost = np.round(cost)
    if kind == "gaps":  # frames without any attention: 0 / 0
        cost[:, shape[1] // 2 :] = np.nan
    rows, columns = warp(cost)
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == brute(cost)


def test_a_path_through_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no path"):
        warp(np.zeros((0, 5)))


def test_the_median_filter_mirrors_the_ends() -> None:
    x = torch.randn(2, 3, 20, generator=torch.Generator().manual_seed(0))
    mirrored = np.pad(x.numpy(), ((0, 0), (0, 0), (3, 3)), mode="reflect")
    want = np.stack([np.median(mirrored[..., i : i + 7], axis=-1) for i in range(20)], axis=-1)
    np.testing.assert_array_equal(median_filter(x, 7).numpy(), want)
    short = x[..., :3]
    assert torch.equal(median_filter(short, 7), short)
    with pytest.raises(ConfigError, match="odd"):
        median_filter(x, 4)


def spell(tokens: list[int]) -> str:
    """A toy vocabulary: a byte for each token, special ones by their number."""
    out, held = "", b""
    for token in tokens:
        if token < 256:
            held += bytes([token])
        else:
            out += held.decode("utf-8", errors="replace") + f"<|{token}|>"
            held = b""
    return out + held.decode("utf-8", errors="replace")


def cut(text: str, spaced: bool, more: tuple[int, ...] = ()) -> list[str]:
    tokens = [*text.encode(), *more, END]
    words = split(tokens, spell, END, spaced)
    assert [token for _, those in words for token in those] == tokens
    return [word for word, _ in words]


def test_words_are_cut_at_spaces_and_signs() -> None:
    assert cut(" Well, it's 5 €.", spaced=True) == [
        " Well", ",", " it", "'s", " 5", " €", ".", "<|1000|>",
    ]  # fmt: skip


def test_chinese_is_cut_into_characters() -> None:
    assert cut("你好，世界", spaced=False) == ["你", "好", "，", "世", "界", "<|1000|>"]
    assert cut("你好 hm", spaced=True) == ["你好", " hm", "<|1000|>"]


def test_bytes_that_are_no_character_lose_no_token() -> None:
    words = cut("a", spaced=False, more=(0xE4, 0xBD))  # two of three bytes, then the end
    assert words[0] == "a"
    assert words[-1] == "<|1000|>"


def timings(*said: tuple[str, float, float]) -> list[Timing]:
    return [Timing(word, [i], start, end, 0.5) for i, (word, start, end) in enumerate(said)]


def test_attention_on_a_diagonal_gives_its_times() -> None:
    scores = torch.zeros(1, 6, 40)  # two tokens of the prompt, three of text, the end
    for token in range(3):
        scores[0, 2 + token, 10 * token : 10 * token + 10] = 9.0
    begins = token_times(scores, first=2)
    assert begins.tolist() == [0.0, 0.2, 0.4]
    words = time_words([(" a", [1]), (" b", [2]), ("<|end|>", [END])], begins, [0.5, 1.0])
    assert [(one.word, one.start, one.end) for one in words] == [(" a", 0.0, 0.2), (" b", 0.2, 0.4)]


def test_times_of_tokens_follow_the_formula() -> None:
    scores = 3 * torch.randn(3, 9, 60, generator=torch.Generator().manual_seed(5))
    x = np.exp(scores.double().numpy())
    x /= x.sum(-1, keepdims=True)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    wide = np.pad(x, ((0, 0), (0, 0), (3, 3)), mode="reflect")
    x = np.stack([np.median(wide[..., i : i + 7], axis=-1) for i in range(60)], -1).mean(0)
    path = brute(-x[3:-1])
    want = [next(j for i, j in path if i == row) * 0.02 for row in range(5)]
    assert token_times(scores, first=3).tolist() == pytest.approx(want)


def fitted(start: float, end: float, last: float, *words: tuple[float, float]) -> list[float]:
    said = timings(*((" w", *times) for times in words))
    found = fit_segment(said, start, end, last, usual=0.3)
    return [*found, *(x for one in said for x in (one.start, one.end))]


def test_a_segment_follows_its_words_unless_they_reach_far_beyond_it() -> None:
    near = pytest.approx
    assert fitted(1.0, 3.0, 0.9, (0.7, 1.2), (1.2, 3.4)) == near([0.7, 3.4, 0.7, 1.2, 1.2, 3.4])
    assert fitted(1.0, 3.0, 0.2, (0.2, 1.1), (1.1, 3.9)) == near([1.0, 3.0, 0.8, 1.1, 1.1, 3.0])
    # After a pause the first word is cut at twice the usual length, and so is the second.
    assert fitted(0.0, 9.0, 0.0, (5.0, 8.0)) == near([7.4, 8.0, 7.4, 8.0])
    assert fitted(0.0, 9.0, 0.0, (5.0, 6.0), (6.0, 8.0)) == near([6.8, 8.0, 6.8, 7.4, 7.4, 8.0])
    assert fitted(0.0, 9.0, 7.0, (5.0, 8.0)) == near([5.0, 8.0, 5.0, 8.0])  # no pause
    assert fitted(2.0, 3.0, 0.0) == [2.0, 3.0]


def test_signs_join_their_words() -> None:
    said = timings(
        (' "', 0, 1), (" Oh", 1, 2), (",", 2, 3), ('"', 3, 4), (" he", 4, 5), (".", 5, 6)
    )
    join_punctuation(said)
    assert [one.word for one in said] == ["", ' " Oh,"', "", "", " he.", ""]
    assert [one.tokens for one in said] == [[], [0, 1, 2, 3], [], [], [4, 5], []]
    assert (said[1].start, said[1].end) == (1, 2)


def test_a_pause_between_sentences_belongs_to_no_word() -> None:
    said = timings((" one", 0, 0.2), (".", 0.2, 3.0), (" two", 3.0, 6.0), (" three", 6.0, 6.2))
    usual = usual_length(said)
    assert usual == 0.7
    shorten_at_sentences(said, 0.2)
    assert [(one.start, one.end) for one in said[1:3]] == [
        (0.2, pytest.approx(0.6)),
        (5.6, 6.0),
    ]


def reading(text: str, start: float = 0.0) -> list[Timing]:
    words = text.split()
    return [Timing(f" {w}", [], start + i, start + i + 0.9, 1.0) for i, w in enumerate(words)]


def spoken(words: list[Timing]) -> str:
    return "".join(one.word for one in words).strip()


def test_what_two_readings_begin_with_is_settled() -> None:
    agreement = Agreement()
    assert agreement.hear(reading("the cat")) == []
    assert spoken(agreement.hear(reading("The cat, sad"))) == "The cat,"
    assert spoken(agreement.pending) == "sad"
    assert spoken(agreement.hear(reading("the cat sat on"))) == ""  # sad or sat?
    assert spoken(agreement.hear(reading("the cat sat on a"))) == "sat on"
    assert spoken(agreement.settle()) == "a"
    assert agreement.end == 4.9


def test_a_word_heard_again_is_told_from_one_said_twice() -> None:
    agreement = Agreement()
    for _ in range(2):
        agreement.hear(reading("it was very"))
    late = [*reading("it was"), *reading("very cold", 2.85)]  # the same word, later than before
    agreement.hear(late)
    assert spoken(agreement.pending) == "cold"
    agreement.hear([*reading("it was very"), *reading("very cold", 3.0)])
    assert spoken(agreement.pending) == "very cold"


def test_words_are_the_same_but_for_signs_and_capitals() -> None:
    assert same_word(" Wood,", " wood")
    assert not same_word(" wood", " would")
    assert not same_word("，", "。")
