"""torch's own modules, whose conventions are documented."""

from __future__ import annotations

from torch import nn

from allformer.auditor.calls import Call, Slot
from allformer.auditor.mask_encoding import Encoding

STOCK = {
    nn.MultiheadAttention: "attention",
    nn.TransformerEncoder: "encoder",
    nn.TransformerEncoderLayer: "block",
    nn.TransformerDecoder: "decoder",
    nn.TransformerDecoderLayer: "decoder",
    nn.Transformer: "seq2seq",
    nn.LayerNorm: "norm",
    nn.RMSNorm: "norm",
}
BLOCK, CAUSAL = Encoding("BS", "block"), Encoding("TS", "block")


def stock(plan: Call, module: nn.Module) -> bool:
    """Fill the call of one of torch's modules; False if it is none."""
    if type(module) not in STOCK or STOCK[type(module)] == "norm":
        return False
    plan.x.ids = plan.source.ids = False
    plan.style = f"torch.nn.{type(module).__name__}, by its documentation"
    if isinstance(module, nn.MultiheadAttention):
        plan.x.names = ["query", "key", "value"]
        plan.slots = [Slot("key_padding_mask", "x", BLOCK)]
    elif isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        plan.x.names = ["src"]
        plan.slots = [Slot("src_key_padding_mask", "x", BLOCK)]
        if plan.kind == "decoder":
            mask = "mask" if isinstance(module, nn.TransformerEncoder) else "src_mask"
            plan.slots.append(Slot(mask, "x", CAUSAL, causal=True))
    else:
        plan.x.names = ["tgt"]
        plan.source.names = ["src" if isinstance(module, nn.Transformer) else "memory"]
        plan.slots = [
            Slot("tgt_mask", "x", CAUSAL, causal=True),
            Slot("tgt_key_padding_mask", "x", BLOCK),
            Slot("memory_key_padding_mask", "source", BLOCK),
        ]
        if isinstance(module, nn.Transformer):
            plan.slots.append(Slot("src_key_padding_mask", "source", BLOCK))
    attentions = (m for m in module.modules() if isinstance(m, nn.MultiheadAttention))
    plan.time_first = not next((m.batch_first for m in attentions), True)
    return True
