"""Copies to experiment on: loud, in fp64, with nothing of the user's module or state changed.

Modules at their default initialisation are nearly linear: attention is flat, norms are the
identity, biases are zero. Many bugs hide there, so a copy is filled with louder weights.
"""

from __future__ import annotations

import contextlib
import copy
import io
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from allformer.errors import AuditError

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


@contextlib.contextmanager
def guarded(printed: list[str] | None = None) -> Iterator[None]:
    """Keep the process as it was: random state, default dtype, grad mode, threads, output."""
    import numpy

    state = random.getstate(), numpy.random.get_state()
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    grad, device = torch.is_grad_enabled(), torch.get_default_device()
    deterministic = torch.are_deterministic_algorithms_enabled()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its nested tensors have no shape
    out = io.StringIO()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with contextlib.redirect_stdout(out):
                yield
        finally:
            random.setstate(state[0])
            numpy.random.set_state(state[1])
            if torch.get_default_dtype() != dtype:
                torch.set_default_dtype(dtype)
            if torch.get_default_device() != device:
                torch.set_default_device(device)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            if torch.are_deterministic_algorithms_enabled() != deterministic:
                torch.use_deterministic_algorithms(deterministic)
            torch.set_grad_enabled(grad)
            torch.backends.mha.set_fastpath_enabled(fast)
            if printed is not None and out.getvalue():
                printed.append(out.getvalue())


def bare(module: nn.Module) -> nn.Module:
    """What torch.compile, DataParallel and DistributedDataParallel wrap; compiled code is refused."""  # noqa: E501
    if isinstance(module, torch.jit.ScriptModule):
        raise AuditError(
            "the module is TorchScript, whose operators cannot be watched; give what it was made of"
        )
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    inner = module.module if isinstance(module, wrappers) else getattr(module, "_orig_mod", None)
    return bare(inner) if isinstance(inner, nn.Module) else module


def duplicate(module: nn.Module) -> nn.Module:
    """A deep copy on the CPU, or an error that says why there is none."""
    # Tensors that a forward pass left behind (attention kept to look at) have a graph: cut it.
    memo: dict[int, Any] = {}
    for m in module.modules():
        for value in vars(m).values():
            for v in value if isinstance(value, list | tuple) else [value]:
                if isinstance(v, Tensor) and v.grad_fn is not None:
                    memo[id(v)] = v.detach().clone()
    try:
        twin = copy.deepcopy(module, memo)
    except Exception as error:
        raise AuditError(
            f"the module cannot be copied ({type(error).__name__}: {error}), and the audit never "
            f"touches the original; give a function that builds it: audit(build, ...)"
        ) from error
    for parameter in twin.parameters():
        if parameter.device.type == "meta":
            raise AuditError("the module is on the meta device: it has no weights; build it on cpu")
    return twin.to("cpu")


def real_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Floating parameters, each storage once; frozen ones (tables) only if all are frozen."""
    everything = [(n, p) for n, p in module.named_parameters() if p.is_floating_point()]
    trained = [(n, p) for n, p in everything if p.requires_grad]
    yield from trained or everything


@torch.no_grad()
def make_loud(module: nn.Module, seed: int, tables: frozenset[int] = frozenset()) -> nn.Module:
    """Matrices std 1.5/√size, tables std 1, vectors near 1 stay 1 ± 0.3, others ± 0.3."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = {
        id(p) for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    }
    for _, p in real_parameters(module):
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float32).to(p.dtype)
        wide = [n for n in p.shape if n > 1]
        if p.numel() == 1:  # a temperature stays, a gate that starts shut (ReZero) is opened
            p.copy_(p if float(p) else torch.full_like(p, 0.5))
            continue
        if len(wide) <= 1:
            p.copy_((1.0 if float(p.mean()) > 0.5 else 0.0) + 0.3 * noise)
        elif id(p) in embeddings or p.shape[0] in tables:
            p.copy_(noise)
        else:
            p.copy_(noise * 1.5 * usual_size(p))
    for m in module.modules():  # the zero row of padding stays zero, as in training
        if isinstance(m, nn.Embedding) and m.padding_idx is not None:
            m.weight[m.padding_idx].zero_()
    return module


def usual_size(p: Tensor) -> float:
    """The standard deviation with which a matrix keeps the size of what it maps, either way."""
    size = (p.shape[-1] * p[..., 0].numel()) ** 0.5 if p.ndim == 2 else p.shape[-2]
    return float(1 / float(size) ** 0.5)


def distance(a: Tensor, b: Tensor) -> float:
    """max |a − b|; infinite where one of them is not finite and the other is another number."""
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    gap = (a.double() - b.double()).abs()
    gap = gap.masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)
    return float("inf") if not bool(torch.isfinite(gap).all()) else float(gap.max())


def scale_of(x: Tensor) -> float:
    """The size of a tensor's numbers, never 0."""
    finite = x.double()[torch.isfinite(x)]
    return float(finite.abs().max()) + 1e-30 if finite.numel() else 1.0


def brief(error: BaseException, most: int = 120) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())[:most]


def lies_in(where: str, part: str) -> bool:
    """Whether a path lies in a part: `lies_in("layers.0.attn", "layers.0")`."""
    return where == part or where.startswith(part + ".")


def each_part(module: nn.Module, run: Callable[[], Any], look: Callable[..., None]) -> None:
    """`look(name, part, args, kwargs, out)` whenever a part has run, the module itself (“”) too.

    Not while `look` itself runs a part, nor for copies: hooks are copied with what they hang on.
    """
    hooks = []
    looking = False
    for name, m in module.named_modules():

        def hook(
            part: Any, args: Any, kwargs: Any, out: Any, name: str = name, own: nn.Module = m
        ) -> None:
            nonlocal looking
            if looking or part is not own:
                return
            looking = True
            try:
                look(name, part, args, kwargs, out)
            finally:
                looking = False

        hooks.append(m.register_forward_hook(hook, with_kwargs=True))
    try:
        run()
    finally:
        for h in hooks:
            h.remove()


def part_outputs(module: nn.Module, run: Callable[[], Any]) -> list[tuple[str, Tensor]]:
    """The outputs of all parts, in the order in which they end."""
    kept: list[tuple[str, Tensor]] = []

    def look(name: str, _m: Any, _a: Any, _k: Any, out: Any) -> None:
        first = out[0] if isinstance(out, tuple) and out else out
        if isinstance(first, Tensor) and first.is_floating_point() and name:
            kept.append((name, first.detach()))

    each_part(module, run, look)
    return kept
