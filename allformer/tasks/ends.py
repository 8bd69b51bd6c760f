"""Stop strings in a text: where it ends, and what may become one.

ends = Ends(["\\n\\n", "User:"])
ends.find("Yes.\\n\\nNo.", 0)      # 4: the text is "Yes."
ends.held("Yes.\\nUs")             # 2: "Us" may become "User:"
"""

from __future__ import annotations

from collections.abc import Iterable


class Ends:
    """Strings that end a text and are no part of it."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.strings = tuple(strings)
        self.longest = max(map(len, self.strings), default=0)

    def find(self, text: str, seen: int) -> int:
        """Where the first one begins that reaches beyond `seen` characters; −1: there is none."""
        found = [text.find(string, max(0, seen - len(string) + 1)) for string in self.strings]
        return min((at for at in found if at >= 0), default=-1)

    def held(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of one."""
        for count in range(min(self.longest - 1, len(text)), 0, -1):
            if any(string.startswith(text[-count:]) for string in self.strings):
                return count
        return 0


def as_strings(told: str | Iterable[str] | None) -> tuple[str, ...]:
    """`stop_strings` as `generate` takes it: none, one or several."""
    return (told,) if isinstance(told, str) else tuple(told or ())
