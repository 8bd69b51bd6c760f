"""What is to be reproduced: a recipe, a score and how far from it one may end. One YAML file each.

about: characters of Shakespeare, nanoGPT's setting for a laptop
score: {figure: nll, expected: 1.88, tolerance: 0.05}
published: 1.88 (nanoGPT's README)
time: 4 min on 2 CPU cores
seen: 1.87 on 2 CPU cores            # left out: nobody has run it here yet
look: [what to look at when it is missed]
data: tiny-shakespeare               # a public corpus; left out where data is drawn
recipe: {…}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from allformer.errors import ConfigError, did_you_mean
from allformer.train.best import LOWER
from allformer.train.plain_yaml import read_yaml
from allformer.train.sections.section import Section, positive, read_section

NOT_SEEN = "not yet seen here"


@dataclass(frozen=True)
class Score(Section, section="score"):
    """A figure of the final validation, or bleu of what a translator writes for the val split."""

    figure: str
    expected: float
    tolerance: Annotated[float, positive("0.05")]

    @property
    def lower(self) -> bool:
        """Whether less of it is better."""
        return self.figure.split("_")[0] in LOWER or self.figure in LOWER

    def worse(self, found: float) -> float:
        """How much worse than expected; below 0 it is better."""
        return found - self.expected if self.lower else self.expected - found

    def passed(self, found: float) -> bool:
        """Not worse by more than the tolerance; NaN is."""
        return self.worse(found) <= self.tolerance

    def surprising(self, found: float) -> bool:
        """Better by more than the tolerance: the data may be other, or seen in training."""
        return self.worse(found) < -self.tolerance


@dataclass(frozen=True)
class Entry(Section, section="entry"):
    """One of them, by its name."""

    about: str
    score: Score
    published: str  # the figure and who gives it
    time: str  # and on what
    data: str = ""  # the public corpus; none, where the objective draws its own data
    recipe: Mapping[str, Any] = field(default_factory=dict)
    seen: str | None = None  # the score and the machine, where it was run
    look: tuple[str, ...] = ()
    checkpoint: bool = False  # whether a trained model is tuned, which --model names
    name: str = ""


def find(name: str) -> Entry:
    """`find("sst2-scratch")`; an error that says which there are."""
    known = entries()
    if name not in known:
        raise ConfigError(
            f"nothing to reproduce is called {name!r}; {did_you_mean(name, known)}there is "
            f"{', '.join(known)}"
        )
    return known[name]


@cache
def entries() -> dict[str, Entry]:
    """All that are packaged, by name."""
    found = {}
    for file in files(__package__).joinpath("entries").iterdir():
        name, _, ending = file.name.rpartition(".")
        if ending == "yaml":
            found[name] = read_entry(name, file.read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def read_entry(name: str, text: str) -> Entry:
    """One file's: `read_entry("mine", "about: …")`."""
    data = read_yaml(text, f"entry {name}")
    return replace(read_section(Entry, data, f"entry {name}"), name=name)
