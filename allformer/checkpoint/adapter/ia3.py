"""(IA)³ in PEFT's files: `{module}.ia3_l`, 1 K before what the module reads, N 1 behind it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allformer.checkpoint.adapter.fields import Fields
from allformer.checkpoint.adapter.form import (
    Form,
    NotPeft,
    Said,
    Tensors,
    Written,
    changes,
    check_shape,
    targets_of,
    unknown_module,
)
from allformer.checkpoint.adapter.names import Names
from allformer.errors import CheckpointError
from allformer.tune.ia3 import Ia3, Ia3Change
from allformer.tune.targets import WHOLE, Site, rows_of, sizes

END = ".ia3_l"


class Ia3Form(Form):
    """`peft_type: IA3`."""

    kind, method = "IA3", Ia3

    def read(self, fields: Fields, tensors: Tensors, names: Names, model: Any) -> Said:
        """The keys say which modules, their shapes at which end."""
        fields.inert(
            "target_modules", "exclude_modules", "feedforward_modules", "fan_in_fan_out",
            "init_ia3_weights",
        )  # fmt: skip
        modules = [key.removesuffix(END) for key in tensors if key.endswith(END)]
        if not modules:
            raise CheckpointError(f"{fields.file.parent} has no ia3_l: it changes nothing")
        unknown = [module for module in modules if names.site(module) is None]
        if unknown:
            raise unknown_module(fields, unknown[0], names, len(unknown))
        gives, reads, state = list[Site](), list[Site](), dict[str, Tensor]()
        for module in modules:
            site, tensor = names.site(module), tensors.pop(module + END)
            assert site is not None
            layer = model.get_submodule(site.path)
            rows, (inputs, outputs) = rows_of(layer, site.part), sizes(layer)
            where, size = f"{site.path}.delta.ia3", rows.stop - rows.start
            if tensor.ndim == 2 and tensor.shape[0] == 1 and (1, inputs) != (size, 1):
                check_shape(fields, module + END, tensor, (1, inputs))
                if size != outputs:
                    raise CheckpointError(
                        f"{fields.file.parent} multiplies what {module} reads, which others read "
                        f"too in this model ({site.path}); merge it with PEFT (merge_and_unload)"
                    )
                reads.append(site)
                state[f"{where}.into"] = tensor.reshape(-1)
            else:
                check_shape(fields, module + END, tensor, (size, 1))
                gives.append(site)
                state[f"{where}.parts.{site.part or WHOLE}"] = tensor.reshape(-1)
        return Said(_method(model, gives, reads), state)

    def write(self, method: Ia3, adapter: str, names: Names, model: Any) -> Written:
        """Module by module of theirs."""
        tensors: Tensors = {}
        inner: list[str] = []
        for path, change in changes(model, adapter, "ia3").items():
            assert isinstance(change, Ia3Change)
            layer = model.get_submodule(path)
            matrices = {m: rows_of(layer, s.part) for m, s in names.sites.items() if s.path == path}
            covered = sum(rows.stop - rows.start for rows in matrices.values())
            if covered != sizes(layer)[1]:
                raise NotPeft(f"{path} is no module of transformers'")
            if change.into is not None and change.rows:
                raise NotPeft(f"{path} is multiplied at both ends")
            for module, rows in matrices.items():
                if change.into is not None:
                    tensors[module + END] = change.into.detach()[None]
                    inner.append(module)
                elif any(r.start < rows.stop and rows.start < r.stop for r in change.rows.values()):
                    tensors[module + END] = _factors(change)[rows][:, None].contiguous()
        modules = [key.removesuffix(END) for key in tensors]
        written = {
            "target_modules": names.shortest(modules),
            "feedforward_modules": _feedforward(inner, modules, names),
            "fan_in_fan_out": any(module in names.transposed for module in modules),
            "init_ia3_weights": True,
        }
        return Written(written, tensors, modules)


def _method(model: Any, gives: list[Site], reads: list[Site]) -> Ia3:
    """One number for the layers, where both ends have the same; else full names."""
    targets, layers = targets_of(model, gives) if gives else ((), None)
    inputs, others = targets_of(model, reads) if reads else ((), None)
    if gives and reads and layers != others:
        targets, inputs = tuple(s.ours for s in gives), tuple(s.ours for s in reads)
        layers = None
    return Ia3(targets=targets, inputs=inputs, layers=layers if gives else others)


def _factors(change: Ia3Change) -> Tensor:
    """One for each output of the layer; 1 where nothing is changed."""
    first = next(iter(change.parts.values()))
    out = torch.ones(change.outputs, dtype=first.dtype, device=first.device)
    for name, rows in change.rows.items():
        out[rows] = change.parts[name].detach()
    return out


def _feedforward(inner: list[str], modules: list[str], names: Names) -> list[str]:
    """Names that PEFT, which compares letters here and not words, takes for these alone."""
    ends = names.shortest(inner)
    others = [module for module in modules if module not in inner]
    clear = all(not other.endswith(end) for end in ends for other in others)
    return ends if clear else inner
