"""The mask doctor: what kind of mask is this, which polarity, and how is it written elsewhere?

    m = mask(tensor, like="torch.mha")     # say the convention you have
    print(m)                               # kind, polarity, warnings, a picture
    m.to("sdpa"), m.to("additive")         # the same mask for somebody else

Conventions: "torch.mha" True = blocked (nn.MultiheadAttention, key_padding_mask); "sdpa" True = may
be seen (F.scaled_dot_product_attention); "hf" 1 = keep (attention_mask); "additive" 0 and −inf.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from allformer.errors import AuditError

LIKE = {
    "torch.mha": "boolean, True = blocked: nn.MultiheadAttention, nn.Transformer",
    "sdpa": "boolean, True = may be seen: F.scaled_dot_product_attention",
    "hf": "integer, 1 = keep: attention_mask in transformers and in allformer",
    "additive": "float, 0 = may be seen, −inf (or very negative) = blocked: added to the scores",
}
ALIASES = {"mha": "torch.mha", "torch": "torch.mha", "float": "additive", "transformers": "hf"}


@dataclass
class Mask:
    """A mask, read: `visible` is boolean, True = may be seen, in the shape that was given."""

    visible: Tensor
    like: str  # the convention it was read in
    kind: str  # "causal", "padding", "causal + padding", "full", "window", "other", …
    sure: bool = True
    warnings: list[str] = field(default_factory=list)

    def to(self, like: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same mask in another convention."""
        like = _known(like)
        if like == "torch.mha":
            return ~self.visible
        if like == "sdpa":
            return self.visible.clone()
        if like == "hf":
            return self.visible.long()
        return torch.zeros(self.visible.shape, dtype=dtype).masked_fill(
            ~self.visible, float("-inf")
        )

    def draw(self, most: int = 32) -> str:
        """A picture: █ may be seen, · is blocked; rows are queries, columns keys."""
        x = self.visible
        while x.ndim > 2:
            x = x[0]
        x = x[None] if x.ndim == 1 else x
        rows = ["".join("█" if v else "·" for v in row[:most]) for row in x[:most].tolist()]
        cut = " …" if x.shape[-1] > most else ""
        return "\n".join(row + cut for row in rows) + ("\n…" if x.shape[0] > most else "")

    def __str__(self) -> str:
        sure = "" if self.sure else " (a guess)"
        lines = [
            f"{self.kind} mask {tuple(self.visible.shape)}, read as {self.like}{sure}: {LIKE[self.like]}"  # noqa: E501
        ]
        lines += [f"warning: {w}" for w in self.warnings]
        return "\n".join([*lines, self.draw()])


def _known(like: str) -> str:
    name = ALIASES.get(like, like)
    if name not in LIKE:
        raise AuditError(f"like={like!r} is no convention; there are {', '.join(LIKE)}")
    return name


def mask(tensor: Tensor, like: str | None = None) -> Mask:
    """Read a mask; `like` says its convention, without it the likeliest is taken and said."""
    if not isinstance(tensor, Tensor):
        raise AuditError(f"mask takes a tensor; this is a {type(tensor).__name__}")
    if tensor.ndim == 0 or tensor.numel() == 0:
        raise AuditError(
            f"a mask of shape {tuple(tensor.shape)} masks nothing; give (S,), (T, S) or more"
        )
    warnings: list[str] = []
    guess, sure = _guess(tensor, warnings)
    chosen = _known(like) if like is not None else guess
    visible = _read(tensor, chosen)
    if like is not None and chosen != guess and guess == "additive":
        warnings.append("the values look additive (0 and very negative): is the convention right?")
    _rows(visible, warnings)
    result = Mask(visible, chosen, _kind(visible), sure or like is not None, warnings)
    _inverted(result, like, warnings)
    return result


def _guess(x: Tensor, warnings: list[str]) -> tuple[str, bool]:
    """The convention that the values and the shape suggest."""
    if x.is_floating_point():
        values = x.detach()
        if bool(values.isnan().any()):
            warnings.append("it holds NaN: every score it is added to becomes NaN")
        if bool(((values == 0) | (values == 1)).all()) and bool((values == 1).any()):
            warnings.append(
                "a float mask of 0 and 1 is *added* to the scores by SDPA and nn.MultiheadAttention: "  # noqa: E501
                "it hides nothing; make it boolean (it is read here as 1 = keep)"
            )
            return "hf", False
        low = values[torch.isfinite(values) & (values < 0)]
        if low.numel() and float(low.min()) > -1e5:
            warnings.append(
                f"hidden entries are only {float(low.min()):g}: larger scores pass through; use −inf "  # noqa: E501
                f"or torch.finfo(dtype).min"
            )
        if low.numel() and float(low.min()) < -65504 and x.dtype != torch.float16:
            warnings.append(f"{float(low.min()):g} does not fit fp16 (it ends at −65504)")
        return "additive", True
    if x.dtype == torch.bool:
        return _boolean(x, warnings)
    if not bool(((x == 0) | (x == 1)).all()):
        warnings.append("integers other than 0 and 1: document or token ids are no mask")
    return "hf", True


def _boolean(x: Tensor, warnings: list[str]) -> tuple[str, bool]:
    """True = blocked or True = visible? A causal or a padding pattern gives it away."""
    if x.ndim >= 2 and x.shape[-1] == x.shape[-2]:
        flat = x.reshape(-1, *x.shape[-2:])[0]
        lower = torch.ones_like(flat).tril()
        if torch.equal(flat, lower):
            return "sdpa", True
        if torch.equal(flat, ~lower):
            return "torch.mha", True
        diagonal = flat.diagonal()
        if bool(diagonal.all()):
            return "sdpa", True  # everybody sees itself
        if not bool(diagonal.any()):
            return "torch.mha", True
    first = x[..., 0]
    if bool(first.all()) and not bool(x.all()):
        return "sdpa", False
    if not bool(first.any()) and bool(x.any()):
        return "torch.mha", False
    warnings.append(
        "boolean, and nothing tells whether True means blocked (nn.MultiheadAttention) or visible "
        "(SDPA); say like="
    )
    return "sdpa", False


def _read(x: Tensor, like: str) -> Tensor:
    if like == "additive":
        return x > -1e4 if x.is_floating_point() else x >= 0
    on = x != 0
    return ~on if like == "torch.mha" else on


def _rows(visible: Tensor, warnings: list[str]) -> None:
    blind = ~visible.any(-1)
    if bool(blind.any()):
        n = int(blind.sum())
        what = "everything is hidden" if bool(blind.all()) else f"{n} rows see nothing"
        warnings.append(f"{what}: softmax over only −inf is NaN there")
    if bool(visible.all()):
        warnings.append("nothing is hidden: without it the result is the same")


def _inverted(result: Mask, like: str | None, warnings: list[str]) -> None:
    """A mask that is causal only the other way round."""
    x = result.visible
    if like is None or x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        return
    flat = x.reshape(-1, *x.shape[-2:])[0]
    upper = torch.ones_like(flat).triu(1)
    if torch.equal(flat, upper) or torch.equal(flat, torch.ones_like(flat).triu()):
        warnings.append(
            f"read as {result.like} each position sees the *later* ones only: it is inverted, or the "  # noqa: E501
            f"convention is another"
        )


def _kind(visible: Tensor) -> str:
    if bool(visible.all()):
        return "full"
    if not bool(visible.any()):
        return "empty"
    if visible.ndim == 1 or visible.shape[-2] == 1 or visible.shape[-1] != visible.shape[-2]:
        return _padding_kind(visible)
    square = visible.reshape(-1, *visible.shape[-2:])
    lower = torch.ones_like(square[0]).tril()
    if all(torch.equal(m, lower) for m in square):
        return "causal"
    if all(torch.equal(m, m[:1].expand_as(m)) for m in square):
        return "padding"
    if all(torch.equal(m, lower & m.any(0)) for m in square):
        return "causal + padding"
    if all(
        torch.equal(m, lower.tril(1)) or torch.equal(m, torch.ones_like(m).tril(1)) for m in square
    ):
        return "causal, off by one (one later position is seen)"
    if all(torch.equal(m, lower.tril(-1)) for m in square):
        return "causal, off by one (no position sees itself)"
    if all(not bool((m & ~lower).any()) for m in square):
        return "causal with gaps (a window, or packed documents)"
    if all(torch.equal(m, m.T) for m in square):
        return "symmetric (a window, or packed documents)"
    return "other"


def _padding_kind(visible: Tensor) -> str:
    rows = visible.reshape(-1, visible.shape[-1])
    falling = (~rows[:, :-1] & rows[:, 1:]).any()
    rising = (rows[:, :-1] & ~rows[:, 1:]).any()
    if rising and not falling:
        return "padding (right)"
    if falling and not rising:
        return "padding (left)"
    return "padding (both sides or inside)"
