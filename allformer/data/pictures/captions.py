"""What a picture is called: its own captions, or its label put into templates.

captions_of(pictures, ("a photo of a {}.",), {"0": "T-shirt"})     # one tuple a picture
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allformer.data.pictures.picture import Pictures
from allformer.errors import DataError

TEMPLATES = ("a photo of a {}", "a picture of a {}", "{}")


def captions_of(
    pictures: Pictures, templates: Sequence[str] = TEMPLATES, names: Mapping[str, str] | None = None
) -> list[tuple[str, ...]]:
    """The captions of each picture; `names` are words for labels, where their own are none."""
    labels = worded(pictures.labels, names or {})
    known = [tuple(worded_in(template, name) for template in templates) for name in labels]
    found = []
    for i in range(len(pictures)):
        picture = pictures[i]
        if not picture.captions and picture.label is None:
            raise DataError(
                f"{picture.name or f'picture {i}'} has neither a caption nor a label; give one"
            )
        found.append(picture.captions or known[picture.label or 0])
    return found


def worded(labels: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Each label in words; a name for a label that is not there is refused."""
    odd = [name for name in names if name not in labels]
    if odd:
        raise DataError(f"data.names has {odd[0]!r}, but the labels are {', '.join(labels[:20])}")
    return tuple(names.get(label, label) for label in labels)


def worded_in(template: str, name: str) -> str:
    """`worded_in("a photo of a {}", "ankle boot")` is "a photo of an ankle boot"."""
    if "{}" not in template:
        raise DataError(f"data.templates has {template!r} without {{}}, where a label goes; add it")
    if name[:1].lower() in "aeiou":
        template = template.replace(" a {}", " an {}").replace("A {}", "An {}")
        template = "an {}" + template[4:] if template.startswith("a {}") else template
    return template.replace("{}", name)
