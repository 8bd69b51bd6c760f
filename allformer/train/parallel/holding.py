"""What a rank holds of a model, under the names of the whole one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from allformer.checkpoint.run import is_beside
from allformer.core.starts import decay_groups
from allformer.errors import CheckpointError
from allformer.train.parallel.pieces import Held, held
from allformer.train.parallel.tensor import Cut
from allformer.tune.tuning import tuning_of


class Holding:
    """`Holding(model)` of a whole model, before it is cut; then `cuts` and `stages` are filled.

    A tensor that is shared has one name, the first that the whole model has for it, also on a rank
    that holds it in its second place alone. `stages` says which groups of layers hold a name. Of a
    model with an adapter on it, the adapter is all that is held.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.canonical: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        first: dict[int, str] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            self.canonical[name] = first.setdefault(id(tensor), name)
            self.shapes.setdefault(first[id(tensor)], tuple(tensor.shape))
        self.adapter = adapter_paths(model)
        self.cuts: dict[str, Cut] = {}
        self.stages: dict[str, list[int]] = {}
        self.order: list[str] = []  # of the whole model's optimiser, where this one's differs

    def number(self) -> None:
        """Remember in which order a single process's optimiser has the parameters."""
        names = {id(x): self.canonical[n] for n, x in self.model.named_parameters()}
        groups = decay_groups(self.model, 1.0)
        self.order = [names[id(p)] for group in groups for p in group["params"]]

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and stored buffers that lie here."""
        found: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            if self.adapter is None or self.canonical[name] in self.adapter:
                found.setdefault(self.canonical[name], tensor)
        return found

    def parameters(self) -> dict[str, Tensor]:
        """Of these, what is trained."""
        return {n: x for n, x in self.tensors().items() if isinstance(x, nn.Parameter)}

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self.shapes[name]

    def like(self, name: str, tensor: Tensor, parameter: Tensor) -> Held:
        """The pieces of a tensor that has the form of this rank's `parameter` of that name."""
        return held(tensor, self.cuts.get(name), like=parameter)

    def held(self) -> dict[str, Held]:
        """The pieces of all tensors."""
        return {n: held(x, self.cuts.get(n)) for n, x in self.tensors().items()}

    def put(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Whole tensors into what lies here; an adapter's have the names of its own files."""
        mine = self.held()
        if self.adapter is not None:
            tensors = {n: tensors[path] for n, path in self.adapter.items() if path in tensors}
        if missing := sorted(set(mine) - set(tensors)):
            raise CheckpointError(
                f"{where} has no {missing[0]}; give the checkpoint of the same model"
            )
        for name, pieces in mine.items():
            if tuple(tensors[name].shape) != pieces.shape:
                raise CheckpointError(
                    f"{where}: {name} is {tuple(tensors[name].shape)}, but the model's is "
                    f"{pieces.shape}; give the checkpoint of the same model"
                )
            pieces.put(tensors[name])

    def order_of(self, optimizer: Any) -> list[str]:
        """The names of an optimiser's parameters, in its order."""
        names = {id(x): name for name, x in self.parameters().items()}
        return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def adapter_paths(model: nn.Module) -> dict[str, str] | None:
    """What an adapter's tensors are called in the model, and in the adapter's state; None: all
    weights are trained."""
    tuning = tuning_of(model)
    if tuning is None or not is_beside(model):
        return None
    paths = {id(p): path for name in tuning.adapters for path, p in tuning.parameters_of(name)}
    named = model.state_dict(keep_vars=True).items()
    return {name: paths[id(tensor)] for name, tensor in named if id(tensor) in paths}
