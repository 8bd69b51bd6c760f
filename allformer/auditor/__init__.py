"""The auditor: mechanical checks that find the classical Transformer bugs in any nn.Module.

from allformer.auditor import audit, assert_sound, mask
report = audit(model, kind="decoder", vocab=1000)
"""

from allformer.auditor.masks import Mask, mask
from allformer.auditor.report import Finding, Report
from allformer.auditor.run import assert_sound, audit

__all__ = ["Finding", "Mask", "Report", "assert_sound", "audit", "mask"]
