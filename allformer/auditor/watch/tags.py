"""What is known of the tensors of one pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from allformer.auditor.watch.records import Part, Tag


class Tags:
    """A tag for each tensor: `tags.put(x, Tag(data=True)); tags.of(x).data`."""

    def __init__(self, module: nn.Module | None, inputs: Iterable[Tensor]) -> None:
        self._tags: dict[int, Tag] = {}
        self._alive: list[Tensor] = []  # ids are unique only among the living
        self._data: set[int] = set()  # storages of what depends on the input
        self._names: dict[int, str] = {}  # storages of trained parameters
        for tensor in inputs:
            self.put(tensor, Tag(data=True))
        for name, parameter in module.named_parameters() if module is not None else ():
            if parameter.requires_grad:
                self._names[_storage(parameter)] = name

    def of(self, tensor: Any) -> Tag:
        """What is known of this tensor."""
        if not isinstance(tensor, Tensor):
            return Tag()
        found = self._tags.get(id(tensor))
        if found is None:
            storage = _storage(tensor)
            name = self._names.get(storage)
            found = Tag(storage in self._data, trained=name is not None, weight=name or "")
            found.part = Part.of(tensor) if name else None
        return found

    def put(self, tensor: Tensor, tag: Tag) -> None:
        """Write down what is known of it."""
        self._tags[id(tensor)] = tag
        self._alive.append(tensor)
        if tag.data:
            self._data.add(_storage(tensor))

    def moved(self, given: Tensor, out: Tensor) -> tuple[str, Part | None]:
        """The parameter, and the part of it, that a moved part of a parameter is; or a copy is."""
        tag = self.of(given)
        if self._names.get(_storage(out)) is not None:
            return tag.weight, Part.of(out)
        return (tag.weight, tag.part) if out.numel() == given.numel() else ("", None)


def lead(tags: list[Tag]) -> Tag:
    """The tag that a result inherits: that of attention scores first, then of a linear map."""
    for want in ("scores", "probs", "mixed"):
        for tag in tags:
            if getattr(tag, want) is not None:
                return tag
    known = [tag for tag in tags if tag.data and tag.linear >= 0]
    if known and all(tag.linear == known[0].linear for tag in known):
        others = [tag for tag in tags if tag.data and tag.linear < 0]
        return Tag() if others and len(tags) == 2 and not known[0].trained else known[0]
    return Tag()


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)
