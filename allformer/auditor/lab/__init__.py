"""The break-it lab: every bug of the catalogue planted in a small model, next to the right one."""

from allformer.auditor.lab.bugs import BUGS, Bug
from allformer.auditor.lab.page import draw, to_markdown
from allformer.auditor.lab.plant import build, lines
from allformer.auditor.lab.tasks import VOCAB
from allformer.auditor.lab.teach import SIZE, measure, planted, teach

__all__ = [
    "BUGS", "SIZE", "VOCAB", "Bug", "build", "draw", "lines", "measure", "planted", "teach",
    "to_markdown",
]  # fmt: skip
