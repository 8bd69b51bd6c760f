"""sentencepiece's normaliser, with the place in the text of every character that it gives.

The `tokenizers` library has one too (`normalizers.Precompiled`), but it asks for the replacement
of whole graphemes and takes the shortest entry that fits, where sentencepiece takes the longest:
the two differ on combining accents. Where the reference is sentencepiece itself (Marian), so is
this.
"""

from __future__ import annotations

import struct
from array import array

from allformer.errors import DataError
from allformer.text.sentencepiece import SPACE, USER_DEFINED, SentencePiece


class Normalizer:
    """`Normalizer(model)("Ⅷ  e\u0301")` → `("▁VIII▁é", [(0, 0), (0, 1), …])`, text and places."""

    def __init__(self, model: SentencePiece) -> None:
        self.model = model
        self.table = CharsMap(model)
        self.kept = sorted(  # never replaced: the user's own symbols, the longest first
            (piece.text for piece in model.pieces if piece.kind == USER_DEFINED), key=len
        )[::-1]

    def __call__(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        out: list[str] = []
        places: list[tuple[int, int]] = []
        gap = self.model.squeeze  # a space now would be one too many
        at = 0
        while at < len(text):
            piece, size = self._next(text, at)
            for char in piece:
                if char == " " and gap:
                    continue
                out.append(SPACE if char == " " else char)
                places.append((at, at + size))
                gap = self.model.squeeze and char == " "
            at += size
        while self.model.squeeze and out and out[-1] == SPACE:
            out.pop()
            places.pop()
        if out and self.model.dummy_prefix:
            out.insert(0, SPACE)
            places.insert(0, (places[0][0], places[0][0]))
        return "".join(out), places

    def _next(self, text: str, at: int) -> tuple[str, int]:
        """What stands at `at`, replaced, and how many characters that was."""
        for symbol in self.kept:
            if text.startswith(symbol, at):
                return symbol, len(symbol)
        return self.table.longest(text, at) or (text[at], 1)


class CharsMap:
    """The compiled table: a double-array trie (darts-clone) over UTF-8, then the replacements."""

    def __init__(self, model: SentencePiece) -> None:
        blob = model.charsmap
        self.units = array("I")
        self.texts = b""
        if not blob:
            return
        try:
            (size,) = struct.unpack_from("<I", blob)
            if size % 4 or size + 4 > len(blob):
                raise ValueError(f"a table of {size} bytes in {len(blob)}")
            self.units.extend(struct.unpack_from(f"<{size // 4}I", blob, 4))
        except (struct.error, ValueError) as error:
            raise DataError(f"{model.path}: its table of characters is damaged ({error})") from None
        self.texts = blob[4 + size :]

    def longest(self, text: str, at: int) -> tuple[str, int] | None:
        """The replacement of the longest entry that stands at `at`, and the entry's length."""
        units, found = self.units, None
        if not units:
            return None
        node = _offset(units[0])
        for i in range(at, len(text)):
            for byte in text[i].encode("utf-8", "surrogatepass"):
                node ^= byte
                if node >= len(units) or units[node] & 0x800000FF != byte:
                    break
                unit = units[node]
                node ^= _offset(unit)
                leaf = unit >> 8 & 1
            else:
                if leaf:
                    start = units[node] & 0x7FFFFFFF
                    found = start, i + 1 - at
                continue
            break
        if found is None:
            return None
        start, size = found
        return self.texts[start : self.texts.index(b"\0", start)].decode("utf-8"), size


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 0x200) >> 6)
