"""Find out how a module is called: try, watch what happens, keep what works, say what was found."""

from allformer.auditor.infer.arguments import OFFSETS
from allformer.auditor.infer.infer import infer
from allformer.auditor.infer.visibility import padding_influence, sees

__all__ = ["OFFSETS", "infer", "padding_influence", "sees"]
