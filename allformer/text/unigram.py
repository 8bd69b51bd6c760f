"""sentencepiece's own cut of a text into pieces, with the numbers of every intermediate step.

The `tokenizers` library's Unigram model adds scores in double precision, sentencepiece keeps the
best score of each place in single precision: where two cuts are equally good ("!?!?!?") they choose
differently. Where the reference is sentencepiece itself (Marian), so is this.
"""

from __future__ import annotations

import struct

from allformer.text.sentencepiece import NORMAL, USER_DEFINED, SentencePiece

_UNKNOWN_PENALTY = 10.0


class Unigram:
    """`Unigram(model).cut("▁Hello▁☃")` → `[("▁Hello", True), ("▁", True), ("☃", False)]`."""

    def __init__(self, model: SentencePiece) -> None:
        normal = [piece.score for piece in model.pieces if piece.kind == NORMAL] or [0.0]
        self.scores = {piece.text: piece.score for piece in model.pieces if piece.kind == NORMAL}
        for piece in model.pieces:
            if piece.kind == USER_DEFINED:  # better than any cut of it
                self.scores[piece.text] = len(piece.text.encode()) * max(normal) - 0.1
        self.unknown = min(normal) - _UNKNOWN_PENALTY
        self.longest = max(map(len, self.scores), default=1)

    def cut(self, text: str) -> list[tuple[str, bool]]:
        """The most probable pieces (Viterbi), and of each whether it is known.

        best(j) = max over i of best(i) + score(text[i:j]); unknown characters in a row are one.
        """
        best = [0.0] * (len(text) + 1)
        start = [-1] * (len(text) + 1)
        known = [False] * (len(text) + 1)
        for i in range(len(text)):
            for j in range(i + 1, min(i + self.longest, len(text)) + 1):
                score = self.scores.get(text[i:j])
                if score is None and j > i + 1:
                    continue
                total = _single(best[i] + (self.unknown if score is None else score))
                if start[j] < 0 or total > best[j]:
                    best[j], start[j], known[j] = total, i, score is not None
        pieces: list[tuple[str, bool]] = []
        end = len(text)
        while end:
            piece = text[start[end] : end], known[end]
            if pieces and not pieces[-1][1] and not piece[1]:
                piece = piece[0] + pieces.pop()[0], False
            pieces.append(piece)
            end = start[end]
        return pieces[::-1]


def _single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])
