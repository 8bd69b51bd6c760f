"""Linear layers whose matrix is held in eight or four bits, with a scale for each group of inputs.

    w[o, i] = scale[o, g] · q[o, i] + least[o, g]            g = i // group

    layer = Quantised(packed, scale, bits=4, parts={"q": 64, "k": 16, "v": 16})
    layer(x), layer.dense(torch.float32)

Without `least`, q is signed and zero is zero: −8 … 7 in four bits, −128 … 127 in eight. With it,
four bits are 0 … 15; eight bits are signed still. A scale for each output alone is one group of
all inputs. What every faster product is held against is `plain`: the matrix made whole, then
multiplied.

Legend: N outputs, K inputs, G groups of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from allformer.core.int8 import multiplies_bytes, times_bytes
from allformer.core.linear import Delta, Fused, Linear, Parts, changed
from allformer.core.matmul import matmul
from allformer.core.precision import cast
from allformer.core.quantised_cpu import (
    FEW,
    GROUPS,
    ROWS,
    HalfBytes,
    half_bytes,
    only_result,
    ordered,
    rows_of_block,
)
from allformer.errors import ConfigError

BITS = (4, 8)
HALF = 8  # added to signed four bits, so that half a byte holds them
ALL = slice(None)


def pack(q: Tensor, bits: int, signed: bool = True) -> Tensor:
    """Integers N K as bytes N K·bits/8; of four bits two to a byte, the earlier in the low half.

    `signed` four bits are −8 … 7 and stored as 0 … 15; eight bits are signed always.
    """
    if bits == 8:
        return q.to(torch.int8).view(torch.uint8)
    halves = (q + HALF if signed else q).to(torch.uint8)
    return halves[:, 0::2] | (halves[:, 1::2] << 4)


def unpack(packed: Tensor, bits: int, signed: bool = True) -> Tensor:
    """The integers again, N K, as int8."""
    if bits == 8:
        return packed.view(torch.int8)
    halves = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(1).view(torch.int8)
    return halves - HALF if signed else halves


class Quantised(Parts, nn.Module):
    """y = x Wᵀ + b in x's dtype, W in `bits` bits; it takes a `Linear`'s or a `Fused`'s place.

    `packed` N K·bits/8 uint8, `scale` N G, `least` N G or None. `bias` has the rows of the parts
    that are `biased` (all, unless said), as `Fused` has it. The matrix is not trained; a `delta`
    beside it can be.

    On a CPU the bytes of four bits stand in the order that the product there wants; whoever asks
    for `packed` puts them back, and has them in the plain order, as `state_dict` and copies do.
    """

    packed: Tensor
    scale: Tensor
    least: Tensor | None

    def __init__(
        self,
        packed: Tensor,
        scale: Tensor,
        least: Tensor | None = None,
        *,
        bits: int,
        bias: Tensor | None = None,
        parts: Mapping[str, int] | None = None,
        biased: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.bits, self.parts = bits, dict(parts or {})
        self.biased = tuple(biased or (self.parts if bias is not None else ()))
        _check(packed, scale, least, bits)
        self.outputs, self.inputs = len(packed), packed.shape[1] * 8 // bits
        self.group = self.inputs // scale.shape[1]
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("least", least)
        self.bias = bias if bias is None else nn.Parameter(bias.detach())
        self.delta: Delta | None = None
        self._turned: HalfBytes | None = None

    @classmethod
    def like(
        cls,
        linear: Linear,
        packed: Tensor,
        scale: Tensor,
        least: Tensor | None = None,
        *,
        bits: int,
    ) -> Quantised:
        """In the place of `linear`: with its parts, its bias and its delta."""
        parts, biased = None, None
        if isinstance(linear, Fused):
            parts, biased = linear.parts, linear.biased
        layer = cls(packed, scale, least, bits=bits, bias=linear.bias, parts=parts, biased=biased)
        layer.delta = linear.delta
        return layer.train(linear.training)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Quantised:
        """`model.to(torch.bfloat16)` says what is computed in: scales are part of the numbers."""
        self._put_back()
        held = {name: x for name, x in self._buffers.items() if x is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in held.items():
            new = self._buffers[name]
            if new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "packed":
            self._put_back()
        return super().__getattr__(name)

    def _numbers_of_cpu(self) -> Tensor | None:
        """The numbers 0 … 15, N K, where they do not stand in the plain order."""
        held = self._buffers.get("packed")
        if held is None or held.ndim == 2:
            return None
        block = rows_of_block() if self._turned is None else self._turned.block
        assert block is not None
        return ordered(held[0], block)

    def _plain_bytes(self) -> Tensor | None:
        """The bytes in the plain order, where they do not stand in it."""
        with torch.inference_mode(False):  # what stays is written to by others, too
            numbers = self._numbers_of_cpu()
            return None if numbers is None else pack(numbers, 4, signed=False)

    def _put_back(self) -> None:
        plain = self._plain_bytes()
        if plain is not None:
            self._buffers["packed"], self._turned = plain, None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        plain = self._plain_bytes()
        if plain is not None:
            destination[f"{prefix}packed"] = plain

    def _load_from_state_dict(self, *given: Any, **more: Any) -> None:
        self._put_back()
        super()._load_from_state_dict(*given, **more)

    def integers(self, rows: slice = ALL) -> Tensor:
        """q, N K, as int8."""
        numbers = self._numbers_of_cpu()
        if numbers is not None:
            q = numbers[rows].view(torch.int8)
            return q - HALF if self.least is None else q
        return unpack(self.packed[rows], self.bits, signed=self.least is None)

    def dense(self, dtype: torch.dtype, rows: slice = ALL) -> Tensor:
        """The matrix, N K, or some of its rows: worked out in fp32 at least, and rounded once."""
        wide = torch.promote_types(dtype, torch.float32)
        q = self.integers(rows).view(-1, self.inputs // self.group, self.group)  # N G group
        w = q.to(wide).mul_(self.scale[rows, :, None])
        if self.least is not None:
            w += self.least[rows, :, None]
        return w.flatten(1).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.bare(x) if self.delta is None else changed(self, x)

    def bare(self, x: Tensor) -> Tensor:
        """The product alone, without the delta."""
        y = self._fast(x) if only_result(x) else None
        if y is None and x.requires_grad and torch.is_grad_enabled():
            y = self._remade(x)
        return self.plain(x) if y is None else y

    def _remade(self, x: Tensor) -> Tensor | None:
        """The product of one who learns beside the matrix: autograd would keep it whole."""
        if torch.compiler.is_compiling():
            return None
        product: Tensor = _Remade.apply(x, self)  # type: ignore[no-untyped-call]
        bias = self.addend(x.dtype)
        return product if bias is None else product + bias

    def _fast(self, x: Tensor) -> Tensor | None:
        """The product on a CPU without the whole matrix, where there is one."""
        rows = x.reshape(-1, self.inputs)
        if self.bits == 8:
            if self.scale.shape[1] > 1 or self.least is not None or not multiplies_bytes():
                return None
            y = times_bytes(rows.float(), self.integers(), self.scale[:, 0].float(), fine=True)
        else:
            odd = self.group not in GROUPS or self.outputs % ROWS
            if odd or len(rows) > FEW or not len(rows) or rows_of_block() is None:
                return None
            y = self._half_bytes().times(rows, self.group)
        bias = self.addend(y.dtype)
        y = y if bias is None else y.add_(bias)
        return y.to(x.dtype).view(*x.shape[:-1], self.outputs)

    def _half_bytes(self) -> HalfBytes:
        turned = self._turned
        mine = self._buffers["packed"], self.scale
        if turned is None or turned.packed is not mine[0] or turned.of is not mine[1]:
            with torch.inference_mode(False):
                turned = half_bytes(unpack(self.packed, 4, signed=False), self.scale, self.least)
            self._turned, self._buffers["packed"] = turned, turned.packed
        return turned

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a pickle, has the plain order."""
        plain, state = self._plain_bytes(), {**self.__dict__, "_turned": None}
        if plain is not None:
            state["_buffers"] = {**self._buffers, "packed": plain}
        return state

    def plain(self, x: Tensor) -> Tensor:
        """The oracle: the whole matrix in x's dtype, then the product."""
        return matmul(x, self.dense(x.dtype), self.addend(x.dtype))

    def part(self, name: str) -> tuple[Tensor, Tensor | None]:
        """One projection's matrix, made whole in fp32, and its bias."""
        return self.dense(torch.float32, self.rows(name)), self.bias_of(name)

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, bits={self.bits}, group={self.group}"


class _Remade(torch.autograd.Function):
    """x Wᵀ, for whose gradient the matrix is made whole again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Quantised) -> Tensor:
        ctx.layer = layer
        return matmul(x, layer.dense(x.dtype), None)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (dy,) = grads
        return dy @ ctx.layer.dense(dy.dtype), None


def _check(packed: Tensor, scale: Tensor, least: Tensor | None, bits: int) -> None:
    if bits not in BITS or packed.dtype != torch.uint8:
        raise ConfigError(f"Quantised.bits={bits} of {packed.dtype}; try 4 or 8, in torch.uint8")
    shape = (len(packed), packed.shape[1] * 8 // bits)
    if len(scale) != shape[0] or shape[1] % scale.shape[1]:
        raise ConfigError(
            f"Quantised.scale of {tuple(scale.shape)} fits no matrix of {shape}; give a row for "
            f"each output, and as many groups in it as divide the inputs"
        )
    if least is not None and least.shape != scale.shape:
        raise ConfigError(
            f"Quantised.least of {tuple(least.shape)} must have scale's shape, {tuple(scale.shape)}"
        )


class QuantisedApart(Parts, nn.Module):
    """Projections of one input, held each in its own way: `QuantisedApart(q=…, k=…, v=…)`.

    For files that give values more bits than queries and keys; else one `Quantised` serves.
    """

    def __init__(self, **parts: Quantised) -> None:
        super().__init__()
        self.each = nn.ModuleDict(parts)
        self.parts = {name: layer.outputs for name, layer in parts.items()}
        self.biased = tuple(name for name, layer in parts.items() if layer.bias is not None)
        self.inputs, self.outputs = next(iter(parts.values())).inputs, sum(self.parts.values())
        self.delta: Delta | None = None

    @property
    def layers(self) -> dict[str, Quantised]:
        """The projections by name."""
        return dict(self.each.items())  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.bare(x) if self.delta is None else changed(self, x)

    def bare(self, x: Tensor) -> Tensor:
        """The products alone, without the delta."""
        return torch.cat([layer(x) for layer in self.each.values()], -1)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The matrices one below the other, N K."""
        return torch.cat([layer.dense(dtype) for layer in self.layers.values()])

    def addend(self, dtype: torch.dtype) -> Tensor | None:
        """The biases one behind the other, zeros for the parts that have none."""
        if not self.biased:
            return None
        rows = ((layer.bias, layer) for layer in self.layers.values())
        full = [layer.scale.new_zeros(layer.outputs) if r is None else r for r, layer in rows]
        return torch.cat([cast(x, dtype) for x in full])

    def bias_of(self, name: str) -> Tensor | None:
        """One projection's bias."""
        bias: Tensor | None = self.layers[name].bias
        return bias

    def part(self, name: str) -> tuple[Tensor, Tensor | None]:
        """One projection's matrix, made whole in fp32, and its bias."""
        return self.layers[name].dense(torch.float32), self.bias_of(name)


AnyQuantised = Quantised | QuantisedApart


def is_quantised(model: nn.Module) -> bool:
    """Whether a layer inside is held in few bits."""
    return any(isinstance(layer, Quantised) for layer in model.modules())


def size_of(model: nn.Module) -> int:
    """Parameters, those held in few bits among them."""
    held = sum(x.outputs * x.inputs for x in model.modules() if isinstance(x, Quantised))
    return held + sum(p.numel() for p in model.parameters())


def scale_names(model: nn.Module) -> set[str]:
    """Tensors that keep their dtype whatever the model is converted to: they are the numbers."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, layer in model.named_modules()
        if isinstance(layer, Quantised)
        for name in ("scale", "least")
    }


def widened(layer: AnyQuantised, dtype: torch.dtype) -> Linear:
    """The plain layer that multiplies by the same matrix, in `dtype`."""
    biases = [layer.bias_of(name) for name in layer.biased] if layer.parts else [layer.bias]
    there = [bias.detach().to(dtype) for bias in biases if bias is not None]
    with torch.device("meta"):
        wide = (
            Fused(layer.inputs, layer.biased, **layer.parts)
            if layer.parts
            else Linear(layer.inputs, layer.outputs, bias=bool(there))
        )
    wide.weight = nn.Parameter(layer.dense(dtype))
    wide.bias = nn.Parameter(torch.cat(there)) if there else None  # type: ignore[assignment]
    wide.delta = layer.delta
    return wide.train(layer.training)


def widen_all(module: nn.Module, dtype: torch.dtype) -> None:
    """Every layer inside that is held in few bits, made plain in place: `widen_all(model, fp32)`.

    To train the matrices, to run what asks for plain layers, or to write them for others.
    """
    for name, child in module.named_children():
        if isinstance(child, AnyQuantised):
            setattr(module, name, widened(child, dtype))
        else:
            widen_all(child, dtype)
