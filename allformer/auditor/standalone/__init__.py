"""Things that are no whole model: positions, a feed-forward layer, a mask, a loss, a step, …

audit(SinusoidalEncoding(64), kind="positions")
audit(lambda logits, labels: ..., kind="loss", pad=0)
audit(step, kind="step")        # step(model, micro_batches): leaves gradients in the model
audit(search, kind="search")    # search(log_probs, start, end, beams, longest) → ids
"""

from allformer.auditor.standalone.audit import audit_special

__all__ = ["audit_special"]
