"""Why a file may not fit a model: the usual causes, told from the names and shapes alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from allformer.checkpoint.files import TensorFiles

Shape = tuple[int, ...]


@dataclass
class Misfit:
    """What does not fit, by the file's names."""

    files: TensorFiles
    missing: dict[str, str] = field(default_factory=dict)  # theirs → ours
    unexpected: dict[str, Shape] = field(default_factory=dict)
    shape: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)  # file's, model's
    dtype: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.shape or self.dtype)


def likely_causes(misfit: Misfit, ours: Mapping[str, str]) -> list[str]:
    """The causes that explain something; `ours` is the whole map, their name → ours."""
    finders = (
        _another_format,
        _prefix,
        _older_names,
        _layers,
        _heads,
        _biases,
        _shapes,
    )
    return [cause for find in finders for cause in find(misfit, ours)]


def _another_format(misfit: Misfit, ours: Mapping[str, str]) -> Iterator[str]:
    names = list(misfit.unexpected)
    if any("lora_" in name for name in names):
        yield "an adapter (LoRA), not a whole model; load the model that it was trained on"
    marks = (".qweight", ".qzeros", ".SCB", ".weight_scale", ".weight_scale_inv", ".absmax")
    small = [s for s in misfit.files.values() if s.dtype.itemsize == 1 and s.dtype != torch.bool]
    if any(name.endswith(marks) for name in names) or (misfit.dtype and small):
        yield "a quantised checkpoint; load the one in fp32, fp16 or bf16 that it was made from"


def _prefix(misfit: Misfit, ours: Mapping[str, str]) -> Iterator[str]:
    """Names that differ from ours by what stands before them."""
    extra: Counter[str] = Counter()
    for sign, names, others in (
        ("+", misfit.unexpected, misfit.missing),
        ("-", misfit.missing, misfit.unexpected),
    ):
        for name in names:
            ends = [dot.end() for dot in re.finditer(r"\.", name)]
            extra.update(sign + name[:end] for end in ends if name[end:] in others)
    if not extra:
        return
    (found, count), *_ = extra.most_common(1)
    if count * 2 < len(misfit.missing):
        return
    sign, prefix = found[0], found[1:]
    if sign == "+":
        wrap = {"module.": " (DataParallel)", "_orig_mod.": " (torch.compile)"}.get(prefix, "")
        yield f"{count} names of the file begin with {prefix!r}{wrap}, the model's do not"
    else:
        yield f"{count} names of the file lack the prefix {prefix!r}: saved without its head"


def _older_names(misfit: Misfit, ours: Mapping[str, str]) -> Iterator[str]:
    if any(name.endswith((".gamma", ".beta")) for name in misfit.unexpected):
        yield "norms are called gamma and beta, as TensorFlow does: an older file of this model"


def _layers(misfit: Misfit, ours: Mapping[str, str]) -> Iterator[str]:
    """Whole layers too many or too few."""
    masked = {re.sub(r"\.\d+\.", ".N.", name) for name in ours}
    more = [n for n in misfit.unexpected if re.sub(r"\.\d+\.", ".N.", n) in masked]
    present = {re.sub(r"\.\d+\.", ".N.", name) for name in misfit.files}
    fewer = [n for n in misfit.missing if re.sub(r"\.\d+\.", ".N.", n) in present]
    for names, word in ((more, "more"), (fewer, "fewer")):
        if names:
            at = sorted({int(i) for name in names for i in re.findall(r"\.(\d+)\.", name)})
            said = ", ".join(map(str, at[:5])) + (" …" if at[5:] else "")
            yield f"the file has {word} layers than the config says (layers {said})"


def _heads(misfit: Misfit, ours: Mapping[str, str]) -> Iterator[str]:
    lacking = [theirs for theirs, own in misfit.missing.items() if own.startswith(("head", "pool"))]
    tops = {name.split(".")[0] for name in misfit.unexpected} - {n.split(".")[0] for n in ours}
    tables = [n for n in lacking if misfit.missing[n].endswith("table.weight")]
    if tables and not misfit.unexpected:
        yield (
            f"the file has no {tables[0]}: output and embedding are one table there; set "
            f"tie_word_embeddings to true in config.json"
        )
    elif lacking and tops:
        yield (
            f"another head: the file has {', '.join(sorted(tops)[:4])}, the model wants "
            f"{lacking[0]}; check `architectures` in config.json"
        )
    elif lacking and len(lacking) == len(misfit.missing):
        yield "the file is the bare model without a head; check `architectures` in config.json"
    elif tops and not misfit.missing:
        yield (
            f"the file has a head or part that the model has not ({', '.join(sorted(tops)[:4])}); "
            f"check `architectures` in config.json"
        )


def _biases(misfit: Misfit, ours: Mapping[str, str]) -> Iterator[str]:
    for names, word in ((misfit.unexpected, "has"), (misfit.missing, "lacks")):
        if names and all(name.endswith("bias") for name in names):
            yield (
                f"the file {word} biases where the config says otherwise; check the fields with "
                f"`bias` in config.json"
            )


def _shapes(misfit: Misfit, ours: Mapping[str, str]) -> Iterator[str]:
    turned = [n for n, (has, wants) in misfit.shape.items() if has == wants[::-1] != wants]
    if turned:
        yield f"{turned[0]} is stored transposed: another model's layout, or Conv1D for Linear"
    rows = Counter(
        (has[0], wants[0])
        for name, (has, wants) in misfit.shape.items()
        if has
        and wants
        and has[0] != wants[0]
        and has[1:] == wants[1:]
        and _is_table(ours.get(name, ""))
    )
    others = len(misfit.shape) - len(turned) - sum(rows.values())
    for name, (stored, wanted) in misfit.shape.items():
        if ours.get(name) == "head.out.weight" and len(stored) == 2 and stored[1:] == wanted[1:]:
            yield (
                f"the head has {stored[0]:,} outputs where config.json tells of {wanted[0]:,}; "
                f"check num_labels and id2label there (for answers it has 2)"
            )
            del rows[stored[0], wanted[0]]
    for (has, wants), _ in rows.most_common(2):
        yield (
            f"tables of {has:,} rows where the config says {wants:,}: a vocabulary (or length) "
            f"resized after training; check vocab_size and max_position_embeddings in config.json"
        )
    if others and not misfit.missing and not misfit.unexpected:
        yield "the names fit but sizes differ: the config.json of another size of this model"


def _is_table(name: str) -> bool:
    return any(word in name for word in ("embedding", "position", "head"))
