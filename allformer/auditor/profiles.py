"""Legitimate oddities: found from the evidence where that is possible, else named by the user.

`audit(model, profile="t5")` or `profile=("shared-layers", "no-positions")`. A profile changes what
is expected of a check; it never silences one that finds something else.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from allformer.errors import AuditError

if TYPE_CHECKING:
    from allformer.auditor.context import Context
    from allformer.auditor.watch import Site

PROFILES = {
    "unscaled": "scores are not scaled (T5, GPT-Neo): the initialisation carries the scale",
    "mup": "scores are scaled by 1/d_k (maximal update parametrisation)",
    "shared-qk": "queries and keys share their projection, and no query sees itself (Reformer)",
    "shared-layers": "one layer is used several times (ALBERT, Universal Transformer)",
    "no-positions": "no positional information, by choice (a set, or a causal decoder without)",
    "no-output-projection": "the heads are not mixed",
    "turned-values": "values are rotated by position too, by choice (an option of RoFormer)",
    "streaming": "the encoder reads from left to right, by choice: what is later is not there yet",
    "other-base": "sinusoids or rotations have another base than 10,000, by choice",
    "right-padding": "padding is always on the right, so that positions need not be shifted",
}
FAMILIES = {
    "t5": ("unscaled",),
    "gpt-neo": ("unscaled",),
    "reformer": ("shared-qk",),
    "albert": ("shared-layers",),
    "universal": ("shared-layers",),
    "nope": ("no-positions",),
    "post-norm": (),
    "alibi": (),
}


def read_profile(asked: str | tuple[str, ...] | list[str] | None) -> frozenset[str]:
    """Names of profiles and families → the set of profiles."""
    names = [asked] if isinstance(asked, str) else list(asked or ())
    out: set[str] = set()
    for name in names:
        if name in PROFILES:
            out.add(name)
        elif name in FAMILIES:
            out.update(FAMILIES[name])
        else:
            choices = ", ".join([*PROFILES, *FAMILIES])
            raise AuditError(f"profile={name!r} is not known; there are {choices}")
    return frozenset(out)


def t5_like(ctx: Context, sites: list[Site]) -> bool:
    """Unscaled everywhere, and somewhere a trained term is added to the scores: T5."""
    if any(abs(s.scale - 1) > 1e-6 for s in sites) or not any(s.learned_bias for s in sites):
        return False
    ctx.odd("unscaled (as T5): scores get a trained position bias and no scale anywhere")
    return True


def cosine_attention(site: Site) -> bool:
    """Queries and keys of one length each: their product is a cosine, whose scale is free where
    that length is 1; where both are normalised to √d_k, it is 1/√d_k however that was written."""
    q, k = site.q.norm(dim=-1), site.k.norm(dim=-1)
    flat = all(float(n.std() / (n.mean() + 1e-30)) < 1e-3 for n in (q, k) if n.numel() > 1)
    if not flat or abs(float(k.mean()) - 1) < 0.01:
        return flat
    after = site.scale / (site.q_tag.factor * site.k_tag.factor)  # of the product itself
    return abs(float(q.mean() * k.mean()) * after / math.sqrt(site.q.shape[-1]) - 1) < 0.01


def along_length(ctx: Context, site: Site) -> bool:
    """Keys that are mixtures of tokens (Linformer): a parameter made so many, whatever the text."""
    keys = site.k.shape[1]
    if keys == site.q.shape[1] or not site.k_tag.weight:
        return False
    matrix = dict(ctx.module.named_parameters()).get(site.k_tag.weight)
    if matrix is None or matrix.ndim < 2 or matrix.shape[-2] != keys:
        return False
    ctx.odd(f"keys are projected along the length (as Linformer): {keys} for any text")
    return True


def stated_scale(ctx: Context, site: Site) -> bool:
    """A scale that the model's own config states (Gemma 2's scalar s as s^-½, a multiplier)."""
    # These words are the ecosystem's fields for it, not names of anything checked.
    for field, value in vars(getattr(ctx.module, "config", object)).items():
        named = ("attn" in field or "attention" in field) and ("scal" in field or "multi" in field)
        if not named or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value > 0 and min(abs(site.scale - value), abs(site.scale - value**-0.5)) < 1e-4:
            ctx.odd(
                f"scores are multiplied by {site.scale:.4g}: config.{field} = {value:g} says so"
            )
            return True
    return False


def stated_family(ctx: Context) -> frozenset[str]:
    """The profiles of the family that the model's own config states, as if the user named it."""
    family = getattr(getattr(ctx.module, "config", None), "model_type", None)
    found = FAMILIES.get(family.replace("_", "-"), ()) if isinstance(family, str) else ()
    if found:
        ctx.odd(f"{', '.join(found)}: config.model_type = {family!r} says so")
    return frozenset(found)
