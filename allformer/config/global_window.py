"""A window, and global tokens that see everybody and are seen by everybody (Longformer)."""

from __future__ import annotations

from dataclasses import dataclass

from allformer.config.base import Natural
from allformer.config.check import refuse
from allformer.config.counting import Heads, Layers
from allformer.config.mixer import Mixer, keys_within


@dataclass(frozen=True)
class GlobalWindow(Mixer):
    """A query looks at `left` keys before it, `right` after it, itself and every global token, in
    one softmax. A global token looks at everybody, by projections of its own (Beltagy et al., 2020,
    section 3.1): q_global of it, k_global and v_global of all.

    Which tokens are global is told with each call: `model(…, global_attention_mask=marks)`. Where
    it is not, a head that reads the first token has that one marked, one that finds answers the
    question, one that chooses what follows the question; others none.
    """

    left: Natural
    right: Natural

    def projections(self, attention: Heads, dim: int) -> dict[str, int]:
        plain = super().projections(attention, dim)
        return plain | {f"{name}_global": rows for name, rows in plain.items()}

    def keys(self, n: int, causal: bool) -> float:
        return keys_within(self.left, self.right, n, causal)

    def check(self, attention: Heads, stack: Layers) -> None:
        if stack.causal:
            must = "has global tokens, which see what comes after them: no decoder"
            refuse(self, "left", must, f"try Window({self.left})")
        if stack.relative is not None:
            must = "has two kinds of queries and keys, and relative positions know one"
            refuse(self, "left", must, "set Stack.relative=None, or take Window")
