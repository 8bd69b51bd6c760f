"""Classes of a whole sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from allformer.config.base import Positive
from allformer.config.check import Rule, refuse
from allformer.config.counting import Part, dense
from allformer.config.head import Head
from allformer.config.sound import Sound
from allformer.config.stack import Stack

_SOME = Rule(bool, "must be a tuple of at least one name", 'try ("no", "yes")')


@dataclass(frozen=True)
class SoundClassHead(Head):
    """Scores over `labels`: each state through a matrix to `width`, the mean of all, and another
    matrix, with nothing in between (Whisper for audio classification).

    With `weighted` the states are an average of what every layer reads and the last one gives, by
    learned weights (Yang et al., 2021, SUPERB).
    """

    labels: Annotated[tuple[str, ...], _SOME]
    width: Positive = 256
    weighted: bool = False

    def fits(self, stack: Stack) -> None:
        if not isinstance(stack.source, Sound):
            must = (
                f"are of a whole sound, but its stack has the source {type(stack.source).__name__}"
            )
            refuse(self, "labels", must, "use ClassHead")
        if self.weighted and stack.flow is not None:
            refuse(self, "weighted", "reads one stream of states", "give the stack flow=None")

    def parameters(self, stack: Stack) -> int:
        weights = len(stack.blocks) + 1 if self.weighted else 0
        return weights + dense(stack.states, self.width) + dense(self.width, len(self.labels))

    def lines(self, stack: Stack, name: str) -> Iterator[Part]:
        classes = len(self.labels)
        text = f"d·{self.width} + {self.width} + {self.width}·{classes} + {classes}"
        text += f" + {len(stack.blocks) + 1}" if self.weighted else ""
        yield Part(name, text, self.parameters(stack), 2 * stack.states * self.width)
