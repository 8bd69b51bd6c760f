"""An objective that is a loss and no more: a benchmark has its batches already."""

from __future__ import annotations

from typing import Any

from allformer.train.objectives.objective import Objective


class LossAlone(Objective[Any, Any]):
    """`loss` and `counts` are the child's; what has to do with data is not asked."""

    def _nothing(self, *args: Any, **more: Any) -> Any:
        raise NotImplementedError

    open = texts = encode = examples = lengths = collate = _nothing
    validation = property(_nothing)
