"""Between config.json and the config tree, for whichever family it is.

model, provenance = read_config(raw, keys)   # keys: the names in the weight files
raw, provenance = write_config(model)        # the family that can say it, checked
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from allformer.core.provenance import Provenance
from allformer.errors import CheckpointError, ConfigError, did_you_mean
from allformer.families import FAMILIES
from allformer.families.family import Family, NotThisFamily, architecture_of
from allformer.families.fields import Fields
from allformer.families.heads import write_labels
from allformer.families.kinds import TEXT, TEXTS, check_kind
from allformer.families.weights import Joined, Weight, WeightMap, names_of


def find_family(raw: Mapping[str, Any]) -> Family:
    """The family that `model_type` names; older files name only their architecture."""
    kind = raw.get("model_type")
    check_kind("model_type", kind, TEXT)
    check_kind("architectures", raw.get("architectures"), TEXTS)
    if kind is None:
        named = (raw.get("architectures") or [None])[0]
        for family in FAMILIES.values():
            if named in family.architectures:
                return family
    if kind not in FAMILIES:
        raise CheckpointError(
            f"config.json has model_type={kind!r}, which is no family that allformer knows; "
            f"known are {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind]


def read_config(
    raw: Mapping[str, Any],
    keys: Collection[str] = (),
    *,
    architecture: str | None = None,
    ignore: Iterable[str] = (),
) -> tuple[Any, Provenance]:
    """The tree that a config.json means, and what is needed to write it back."""
    family = find_family(raw)
    if architecture is not None:
        raw = {**raw, "architectures": [architecture]}
    name = architecture_of(raw, family)
    fields = Fields(raw, family.name, family.usual, ignore)
    fields.must("quantization_config")
    fields.must("auto_map")
    try:
        model = family.read(fields, name, keys)
    except ConfigError as error:
        raise CheckpointError(f"config.json does not fit a {family.name} model: {error}") from None
    extras = fields.close()
    return model, Provenance(family.name, name, extras, dict(raw))


def write_config(
    model: Any, provenance: Provenance | None = None, family: str | None = None
) -> tuple[dict[str, Any], Provenance]:
    """The config.json of the family that can say this tree; reading it gives the tree again.

    A family that is named is the only one tried; else that of the provenance comes first.
    """
    if family is not None and family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES)
        there = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"family={family!r} is not known; {hint}try {there}")
    known = provenance or Provenance()
    own = [known.family] if known.family else []
    names = [family] if family else dict.fromkeys([*own, *FAMILIES])
    why: dict[str, str] = {}
    for name in names:
        try:
            return _write_as(model, FAMILIES[name], known)
        except NotThisFamily as error:
            why[name] = str(error)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in why.items())
    raise CheckpointError(
        f"no family of transformers can say this model ({reasons}); "
        f'save it with family="allformer", in our own layout'
    )


def _at_rest(model: Any, told: bool) -> Any:
    """Without dropped paths, which act in training alone: no config.json says them by layer, and
    those that say one number for all are of few families (`told`)."""
    layered = {
        name: part for name, part in _layered(model) if any(b.drop_path for b in part.blocks)
    }
    rates = {block.drop_path for _, part in _layered(model) for block in part.blocks}
    if not layered or (told and len(rates) == 1):
        return model
    changes = {
        name: replace(part, blocks=tuple(replace(b, drop_path=0.0) for b in part.blocks))
        for name, part in layered.items()
    }
    return replace(model, **changes)


def _layered(model: Any) -> list[tuple[str, Any]]:
    """The slots that hold layers: the stacks, and a head in which the last layers run."""
    slots = {**model.stacks, "head": getattr(model, "head", None)}
    return [(name, part) for name, part in slots.items() if hasattr(part, "blocks")]


def _write_as(
    model: Any, family: Family, provenance: Provenance
) -> tuple[dict[str, Any], Provenance]:
    if not isinstance(model, family.tree):
        raise NotThisFamily(f"says no {type(model).__name__}")
    model = _at_rest(model, family.drop_path)
    known = provenance if provenance.family == family.name else None
    kind = family.kind(model)
    fitting = [a for a, head in family.architectures.items() if head == kind]
    if known is not None and known.architecture in fitting:
        fitting.insert(0, known.architecture)
    if not fitting:
        raise NotThisFamily(f"has no architecture with the head {type(model.head).__name__}")
    # First, since it refuses a tree that has no such weights.
    written = {**family.write(model), **write_labels(model.head)}
    keys, wanted = file_keys(family.weights(model, fitting[0])), family.same(model)
    if known is not None and (raw := _as_it_was(known, family, fitting[0], keys, wanted)):
        return raw, Provenance(family.name, fitting[0], known.extras)
    extras = dict(family.fresh) if known is None else known.extras
    fixed = {"architectures": fitting[:1], "model_type": family.name}
    # Fields that change nothing stay as they were, unless the model has changed meanwhile.
    # The labels say how many there are; transformers would believe the number rather.
    counts = {"num_labels", "_num_labels"} if "id2label" in written else set()
    for changed in (counts, counts | set(written)):
        kept = {name: value for name, value in extras.items() if name not in changed}
        raw = {**written, **kept, **fixed}
        again = family.same(read_config(raw, keys)[0])
        if again == wanted:
            return raw, Provenance(family.name, fitting[0], extras)
    raise NotThisFamily(f"cannot say it: it would read {_difference(wanted, again)}")


def _as_it_was(
    known: Provenance, family: Family, architecture: str, keys: Collection[str], wanted: Any
) -> dict[str, Any] | None:
    """The config.json that was read, in its own words, if it still means this tree."""
    raw = {**known.fields, **known.extras}
    if raw.get("model_type") != family.name or raw.get("architectures") != [architecture]:
        return None  # older files say neither
    try:
        return raw if family.same(read_config(raw, keys)[0]) == wanted else None
    except CheckpointError:  # of a field that was ignored, or of a file with other weights
        return None


def file_keys(ops: WeightMap) -> set[str]:
    """The names that a weight map writes."""
    names = {name for op in ops if isinstance(op, Weight) for name in names_of(op)}
    for op in ops:
        if isinstance(op, Joined):
            names = (names - set(op.parts)) | {op.theirs}
    return names


def _difference(ours: Any, theirs: Any, where: str = "") -> str:
    """The first slot in which two trees differ."""
    if type(ours) is not type(theirs) or not hasattr(ours, "__dataclass_fields__"):
        return f"{where.lstrip('.')}={theirs!r} for {ours!r}"
    for name in ours.__dataclass_fields__:
        a, b = getattr(ours, name), getattr(theirs, name)
        if name == "blocks" and len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                if x != y:
                    return _difference(x, y, f"{where}.blocks[{i}]")
        if a != b:
            return _difference(a, b, f"{where}.{name}")
    return "the same"
