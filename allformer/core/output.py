"""What a model call gives back, by transformers' names and in its order.

out = model(input_ids=ids, labels=labels)
out.loss, out["logits"], out[0]          # the first: the loss if there is one
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree

NAMES = (
    "loss",
    "logits",  # B T V, B T labels or B labels
    "pred_boxes",  # B Q 4: centre and size as shares of the image
    "cls_logits",  # B labels, of DeiT's pair of heads
    "distillation_logits",  # B labels
    "start_logits",  # B T
    "end_logits",  # B T
    "prediction_logits",  # B T V, of BERT's pair of heads
    "seq_relationship_logits",  # B 2
    "reconstruction",  # B C H W, the pixels of an image
    "last_hidden_state",  # B T dim
    "pooler_output",  # B dim
    "encoder_last_hidden_state",  # B S dim
    "mems",  # layers M B dim, of a model that remembers segments
)
_SAME = {"sop_logits": "seq_relationship_logits"}  # ALBERT's name: sentence order


class Output(dict[str, Tensor]):
    """A dict whose keys are attributes too; one of `NAMES` that does not apply is None."""

    def __init__(self, *args: Any, **values: Tensor | None) -> None:
        given = dict(*args, **values)
        order = {name: i for i, name in enumerate(NAMES)}
        ranked = sorted(given, key=lambda name: order.get(name, 1))  # a head's own: with the logits
        super().__init__((name, given[name]) for name in ranked if given[name] is not None)

    def __getattr__(self, name: str) -> Tensor | None:
        name = _SAME.get(name, name)
        if name in self or name in NAMES:
            return self.get(name)
        raise AttributeError(f"{name!r} is not there; there is {', '.join(self)}")

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Tensor, ...]:
        """The values in order."""
        return tuple(self.values())


# torch.export and functional transforms take results apart and put them together again.
_pytree.register_pytree_node(
    Output,
    lambda out: (list(out.values()), list(out)),
    lambda values, names: Output(zip(names, values, strict=True)),
    serialized_type_name="allformer.Output",
)
