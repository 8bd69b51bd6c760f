"""The auditor: mechanical checks that find the classical Transformer bugs in any nn.Module.

from allformer.auditor import audit, assert_sound, mask
report = audit(model, kind="decoder", vocab=1000)

All that others use of it is here. What only some need is imported when it is asked for: comparing
(`consistency`), running apart (`run_apart`), printing (`show`), and the lab (`teach`, `lab`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from allformer.auditor.catalogue import CATALOGUE
from allformer.auditor.mask_doctor import Mask, mask
from allformer.auditor.report import Finding, Report
from allformer.auditor.run import assert_sound, audit

if TYPE_CHECKING:
    from allformer.auditor import lab
    from allformer.auditor.comparisons import consistency
    from allformer.auditor.lab.teach import teach
    from allformer.auditor.render import show
    from allformer.auditor.sandbox import run_apart

_LATER = {"consistency": "comparisons", "run_apart": "sandbox", "show": "render", "teach": "lab"}

__all__ = [
    "CATALOGUE", "Finding", "Mask", "Report", "assert_sound", "audit", "consistency", "lab", "mask",
    "run_apart", "show", "teach",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "lab":
        return import_module(f"{__name__}.lab")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
