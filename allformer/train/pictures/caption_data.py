"""The data section of pictures with captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allformer.errors import ConfigError
from allformer.train.pictures.augment import AugmentedPictures
from allformer.train.pictures.captions import (
    TEMPLATES,
    TEST_TEMPLATES,
    check_templates,
    names_of,
)


@dataclass(frozen=True)
class CaptionData(AugmentedPictures):
    """Pictures with captions, or with classes whose names are put into `templates`.

    `test_templates` are wordings to validate with that are never trained on; `names` says what to
    call a class, perhaps by several names: `{T-shirt/top: [t-shirt, top]}`.
    """

    templates: tuple[str, ...] | None = None
    test_templates: tuple[str, ...] | None = None
    names: Mapping[str, Any] = field(default_factory=dict)

    def worded(self, labels: Sequence[str]) -> CaptionData:
        """The same with wordings for these classes: as said, else the usual ones."""
        said = {
            "templates": TEMPLATES if self.templates is None else self.templates,
            "test_templates": (
                TEST_TEMPLATES if self.test_templates is None else self.test_templates
            ),
        }
        for name, templates in said.items():
            check_templates(name, templates)
        if both := set(said["templates"]) & set(said["test_templates"]):
            raise ConfigError(
                f"data.test_templates has {sorted(both)[0]!r}, which data.templates has too; they "
                f"are to be wordings that were never seen"
            )
        names_of(labels, self.names)
        return replace(self, templates=said["templates"], test_templates=said["test_templates"])
