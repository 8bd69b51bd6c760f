"""What transformers calls the modules and tensors of a model of ours, in memory as PEFT sees them.

names = Names(model)
names.site("bert.encoder.layer.0.attention.self.query")     # our q in layer 0
names.shortest(["…layer.0.attention.self.query", …])        # ["query"]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from allformer.families import FAMILIES
from allformer.families.config_json import write_config
from allformer.families.weights import Alias, Transposed, Unused, Weight, names_of
from allformer.tune.targets import Site, sites


class Names:
    """Of one model; a model of no family is refused with `CheckpointError`."""

    def __init__(self, model: Any) -> None:
        _, known = write_config(model.config, model.provenance, None)
        self.family, self.architecture = FAMILIES[known.family], known.architecture
        ops = self.family.weights(model.config, self.architecture)
        self.sites = {self.now(site.theirs): site for site in sites(model) if site.theirs}
        # Each tensor of theirs: the operation that says where in ours it lies.
        self.tensors = {
            self.now(name): op for op in ops if isinstance(op, Weight) for name in names_of(op)
        }
        self.aliases = {self.now(op.theirs): self.now(op.of) for op in ops if isinstance(op, Alias)}
        self.transposed = {
            self.now(op.theirs).removesuffix(".weight") for op in ops if isinstance(op, Transposed)
        }
        # What a module of theirs holds and no tensor of ours is.
        self.others = {self.now(op.theirs) for op in ops if isinstance(op, Unused)}
        self.modules = modules_of((*self.tensors, *self.aliases))

    def now(self, name: str) -> str:
        """A name of their files, or of older versions, as transformers has it in memory now."""
        for pattern, to in self.family.in_memory:
            name = re.sub(pattern, to, name)
        return name

    def find(self, name: str, among: Collection[str]) -> str | None:
        """The one that a name means: as it is, or with or without the name of the body.

        An adapter of a bare model fits one with a head, and the other way round.
        """
        name, prefix = self.now(name), self.family.prefix
        tried = (name, prefix + name, name.removeprefix(prefix))
        return next((known for known in tried if known in among), None)

    def site(self, module: str) -> Site | None:
        """The linear layer of ours, or the part of one, that a module of theirs is."""
        found = self.find(module, self.sites)
        return None if found is None else self.sites[found]

    def shortest(self, chosen: Sequence[str]) -> list[str]:
        """The shortest ends of names that mean these modules and no other of the model."""
        return shortest(chosen, self.modules)


def modules_of(tensors: Iterable[str]) -> set[str]:
    """The modules that some tensors are in, with those around them."""
    found: set[str] = set()
    for name in tensors:
        parts = name.split(".")[:-1]
        found |= {".".join(parts[: i + 1]) for i in range(len(parts))}
    return found


def shortest(chosen: Sequence[str], among: Collection[str], least: int = 1) -> list[str]:
    """Ends of `chosen` names that no other name `among` them has, each of as few words as does.

    `shortest(["a.0.q", "a.1.q"], ["a.0.q", "a.1.q", "a.0.k"])` → `["q"]`
    """
    wanted, ends = set(chosen), dict[str, None]()
    for name in chosen:
        if any(is_end(end, name) for end in ends):
            continue
        words = name.split(".")
        for count in range(min(least, len(words)), len(words) + 1):
            end = ".".join(words[-count:])
            if all(other in wanted for other in among if is_end(end, other)):
                break
        ends[end] = None
    return list(ends)


def is_end(end: str, name: str) -> bool:
    """Whether a name ends with these words, as PEFT compares: `is_end("q", "layer.0.q")`."""
    return name == end or name.endswith(f".{end}")


def covered(tensors: Collection[str], every: Collection[str]) -> list[str]:
    """The outermost modules of which all tensors (of `every` there is) are among these.

    `covered({"head.a.weight", "head.b.weight"}, {…, "norm.weight"})` → `["head"]`
    """
    found: dict[str, None] = {}
    for name in tensors:
        words = name.split(".")[:-1]
        for count in range(1, len(words) + 1):
            module = ".".join(words[:count])
            if all(x in tensors for x in every if x.startswith(f"{module}.")):
                found[module] = None
                break
    return list(found)
