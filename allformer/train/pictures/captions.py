"""What is said of pictures: captions of their own, or sentences made of the names of their classes.

Legend: N pictures, M texts, T tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allformer.data.pictures import Pictures
from allformer.data.pictures.picture import Array
from allformer.errors import ConfigError, DataError

# Wordings to train with and, apart from them, to test with: a class is to be known in sentences
# that were never seen. The name stands at the end, in the midst, at the beginning and alone.
TEMPLATES = (
    "a photo of a {}.", "a picture of a {}.", "a photo of the {}.", "this is a {}.", "a {}.", "{}",
    "an image that shows a {}.", "a small photo of one {}.", "the {} in this picture.",
    "a {} on a plain background.", "here you can see a {}.", "a good photo of a {}.",
    "one {}, seen from the side.", "{}, a photo.", "look, a {}!", "it is a picture of the {}.",
)  # fmt: skip
TEST_TEMPLATES = (
    "there is a {} in this image.", "a blurry picture of one {}.", "that looks like a {}.",
    "the photo shows a {}.", "my {}.", "this is a photo of {}.",
)  # fmt: skip
HOLE = "{}"


@dataclass(frozen=True, eq=False)
class Captions:
    """Distinct `texts`, and which of them may stand with each picture.

    Those of picture i are `choices[begin[i] : begin[i] + count[i]]`. Texts with one `meaning` say
    the same.
    """

    texts: tuple[str, ...]
    meaning: Array  # M
    wording: Array  # M: which template it is made of; of captions of their own 0
    choices: Array
    begin: Array  # N
    count: Array  # N

    def drawn(self, *key: int) -> Array:
        """One text of each picture, N, by the key alone: `captions.drawn(seed, epoch)`."""
        chance = np.random.default_rng(key).random(len(self.begin))
        drawn: Array = self.choices[self.begin + (chance * self.count).astype(np.int64)]
        return drawn


def own_captions(pictures: Pictures, name: str) -> Captions:
    """Those that the pictures come with; equal texts are one."""
    numbers: dict[str, int] = {}
    choices: list[int] = []
    count = np.zeros(len(pictures), np.int64)
    for i in range(len(pictures)):
        picture = pictures[i]
        if not picture.captions:
            raise DataError(
                f"{picture.name or f'picture {i}'} has no caption; objective={name!r} needs one "
                f"for each, or classes whose names are put into data.templates"
            )
        choices += [numbers.setdefault(text, len(numbers)) for text in picture.captions]
        count[i] = len(picture.captions)
    begin = count.cumsum() - count
    texts = np.arange(len(numbers))
    return Captions(tuple(numbers), texts, 0 * texts, np.array(choices), begin, count)


def put(names: Sequence[Sequence[str]], templates: Sequence[str]) -> tuple[list[str], Array]:
    """Every name of every class in every template, class by class, and the class of each text."""
    texts = [t.replace(HOLE, name) for each in names for name in each for t in templates]
    sizes = [len(each) * len(templates) for each in names]
    return texts, np.repeat(np.arange(len(names)), sizes)


def made_captions(
    numbers: Array, names: Sequence[Sequence[str]], templates: Sequence[str]
) -> Captions:
    """Sentences of the classes `numbers`, N, which have `names`."""
    texts, meaning = put(names, templates)
    sizes = np.bincount(meaning, minlength=len(names))
    starts = sizes.cumsum() - sizes
    choices = np.arange(len(texts))
    wording = choices % len(templates)
    return Captions(tuple(texts), meaning, wording, choices, starts[numbers], sizes[numbers])


def check_templates(name: str, templates: Sequence[str]) -> None:
    """Refuse wordings without a place for the name, and none at all."""
    if not templates:
        raise ConfigError(f"data.{name} is empty; give at least one: [a photo of a {HOLE}.]")
    for template in templates:
        if template.count(HOLE) != 1:
            raise ConfigError(
                f"data.{name} has {template!r}, which must have {HOLE} once, where a class's name "
                f"goes; try 'a photo of a {HOLE}.'"
            )


def names_of(labels: Sequence[str], given: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What each class is called: by `data.names`, else by its label."""
    odd = sorted(set(map(str, given)) - set(labels))
    if odd:
        raise ConfigError(
            f"data.names has {odd[0]!r}, which is no label; there is {', '.join(labels[:20])}"
        )
    found = []
    for label in labels:
        said = given.get(label, label)
        names = (said,) if isinstance(said, str) else tuple(said)
        if not names or not all(isinstance(name, str) and name.strip() for name in names):
            raise ConfigError(f"data.names.{label}={said!r} must be a name, or a list of them")
        found.append(names)
    taken = [name for each in found for name in each]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"data.names calls two classes {twice!r}; they cannot be told apart so")
    return found
