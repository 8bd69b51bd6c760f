"""Watch the operators of one forward pass: which matmuls are attention, and what happens there.

    with Watch(model, inputs) as seen: model(ids)
    seen.sites[0].scale          # what Q·Kᵀ was multiplied by before the softmax

Nothing here reads names. A *site* is a matmul of two activations, whose result goes through a
softmax and then into a second matmul. Legend: N batch × heads, T queries, S keys, D head size.
"""

from allformer.auditor.watch.inject import Inject
from allformer.auditor.watch.moments import Division
from allformer.auditor.watch.records import Site, Table, Tag
from allformer.auditor.watch.watch import Watch

__all__ = ["Division", "Inject", "Site", "Table", "Tag", "Watch"]
