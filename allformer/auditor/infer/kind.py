"""What a module is, if nobody says it: from its type and signature, then from what it does."""

from __future__ import annotations

from typing import Any

from torch import nn

from allformer.auditor.calls import LABELS, Call, parameters
from allformer.auditor.infer.arguments import is_mask
from allformer.auditor.infer.attempt import watched
from allformer.auditor.infer.torch_modules import STOCK
from allformer.auditor.infer.visibility import one_sided, sees
from allformer.auditor.probe import lies_in


def first_kind(module: nn.Module, config: Any) -> str:
    """A first guess; "encoder" stands for all that is still to be settled."""
    if type(module) in STOCK:
        return STOCK[type(module)]
    names = parameters(module)
    if getattr(config, "is_encoder_decoder", False) or "decoder_input_ids" in names:
        return "seq2seq"
    required = [n for n, p in names.items() if p.default is p.empty and not is_mask(n)]
    required = [n for n in required if n not in LABELS and names[n].kind.value < 2]
    embeds = any(isinstance(m, nn.Embedding) for m in module.modules())
    if len(required) == 3 and not embeds:
        return "attention"
    if len(required) == 2 and embeds:
        return "seq2seq"
    return "encoder"


def settle_kind(plan: Call, module: nn.Module, twin: Any) -> None:
    """Tell attentions, blocks, decoders and encoders by what they do."""
    if plan.kind != "encoder":
        return
    if not plan.x.ids:
        watch = watched(plan, twin, plan.batch(1))
        where = {s.where for s in watch.sites}
        if watch.sites and not watch.other_linears():
            plan.kind = "attention"
            return
        if len(where) == 1 or not _repeats(module, where):
            plan.kind = "block"
            return
    found, (hide, all_) = sees(plan, twin), _causal_layers(plan, twin)
    # without a position axis: a decoder that pools its end, where each layer hides what is later
    causal = 0 < hide == all_ if found is None else not found[0] and found[1]
    if found is not None and found[0] and hide:
        causal = True
        plan.notes.append(
            f"the evidence is mixed: {hide} of {all_} self-attentions hide later tokens, "
            f"{all_ - hide} do not; taken for a decoder that leaks"
        )
    if causal:
        plan.kind = "decoder"


def _causal_layers(plan: Call, twin: Any) -> tuple[int, int]:
    """How many self-attentions look at no later key; none if others look at no earlier one."""
    n = plan.length
    looks = [
        s.weights.abs().nan_to_num(0.0).amax(0) > 1e-12
        for s in watched(plan, twin, plan.batch(1)).sites
        if s.weights.shape[1:] == (n, n)
    ]
    back = any(one_sided(look.mT) for look in looks)
    return 0 if back else sum(one_sided(look) for look in looks), len(looks)


def _repeats(module: nn.Module, where: set[str]) -> bool:
    """Whether a list holds parts with attention in them."""
    names = {id(m): n for n, m in module.named_modules()}
    return any(
        lies_in(w, names[id(c)])
        for m in module.modules() if isinstance(m, nn.ModuleList | nn.Sequential)
        for c in m if any(True for _ in c.parameters())
        for w in where
    )  # fmt: skip
