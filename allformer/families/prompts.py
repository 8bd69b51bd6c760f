"""The words that a family's models were taught to read before a text, by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from allformer.errors import ConfigError


@dataclass(frozen=True)
class Prompts:
    """`Prompts(summarise="summarize: ")`; a task without words has an empty text."""

    summarise: str = ""
    translate: str = ""  # "translate {source} to {target}: "
    languages: Mapping[str, str] = field(default_factory=dict)  # by code, as `translate` has them

    def code(self, language: str) -> str:
        """A language by its code or its name: `T5.code("German")` is "de"."""
        codes = {name.lower(): code for code, name in self.languages.items()}
        return codes.get(language.lower(), language)

    def way(self, source: str, target: str) -> str:
        """The words before a text to translate: `T5.way("en", "German")`."""
        return self.translate.format(source=self._name(source), target=self._name(target))

    def _name(self, language: str) -> str:
        code = self.code(language)
        if code not in self.languages:
            known = ", ".join(self.languages)
            raise ConfigError(
                f"language {language!r} is none that this family was trained for ({known}); give "
                f"the words that this checkpoint was trained with as prefix="
            )
        return self.languages[code]
