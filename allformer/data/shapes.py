"""Drawn shapes: pictures whose class, colour, box, mask and caption are known, without a download.

    one = draw_one(seed=0, number=7)       # pixels, and its figure: kind, colour, place, size
    one.figures[0].caption()               # "a red star"; caption("zh"): "一个红色的星形"
    many = draw_scene(seed=0, number=7)    # several, with boxes and masks
    scenes = Shapes(1000, side=64, most=4, seed=1)   # a sequence of them

A picture is a function of its seed and number alone. Edges are smooth: each pixel is the mean of
`FINE` × `FINE` points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from allformer.errors import DataError

FINE = 4
Array = npt.NDArray[np.floating]
Pixels = npt.NDArray[np.uint8]
Masks = npt.NDArray[np.bool_]
Language = Literal["en", "zh"]

# How each is drawn: whether points (across, down), in a figure that reaches from −1 to 1, lie in it
Inside = Callable[[Array, Array], Masks]


def _polygon(*corners: tuple[float, float]) -> Inside:
    """Inside where a ray to the right crosses the edge an odd number of times."""

    def inside(x: Array, y: Array) -> Masks:
        odd = np.zeros(x.shape, bool)
        for (x1, y1), (x2, y2) in zip(corners, (*corners[1:], corners[0]), strict=True):
            if y1 != y2:
                here = (y1 > y) != (y2 > y)
                odd ^= here & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
        return odd

    return inside


def _around(*radii: float, count: int) -> Inside:
    """A polygon around the middle, its corners as far out as `radii` say in turn, one on top."""
    angles = (2 * math.pi * k / count for k in range(count))
    far = (radii[k % len(radii)] for k in range(count))
    return _polygon(
        *((r * math.sin(a), -r * math.cos(a)) for r, a in zip(far, angles, strict=True))
    )


def _heart(x: Array, y: Array) -> Masks:
    """(x² + y² − 1)³ ≤ x² y³, upright."""
    x, y = 1.25 * x, 0.15 - 1.2 * y
    round_it = x * x + y * y - 1
    inside: Masks = round_it * round_it * round_it <= x * x * y * y * y
    return inside


# The first ones are the least alike: a model that learns but for a minute gets those.
FIGURES: dict[str, Inside] = {
    "ring": lambda x, y: (x**2 + y**2 <= 0.95) & (x**2 + y**2 >= 0.3),
    "moon": lambda x, y: (x**2 + y**2 <= 0.95) & ((x - 0.5) ** 2 + y**2 >= 0.65),
    "triangle": _around(1.0, count=3),
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.8,
    "circle": lambda x, y: x**2 + y**2 <= 0.9,
    "star": _around(1.0, 0.42, count=10),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.3) & (np.maximum(abs(x), abs(y)) <= 0.9),
    "heart": _heart,
}
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "orange": (245, 140, 30),
    "yellow": (245, 215, 40),
    "green": (40, 150, 70),
    "blue": (40, 95, 210),
    "purple": (130, 60, 170),
}
KINDS = tuple(FIGURES)
CHINESE = {
    "circle": "圆形", "square": "方形", "triangle": "三角形", "star": "星形", "cross": "十字",
    "ring": "圆环", "moon": "月牙", "heart": "心形", "red": "红色", "orange": "橙色",
    "yellow": "黄色", "green": "绿色", "blue": "蓝色", "purple": "紫色",
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One shape: its middle and half its size as shares of the picture's side, and its turn."""

    kind: str
    colour: str
    x: float
    y: float
    reach: float
    turn: float = 0.0  # radians

    def caption(self, language: Language = "en") -> str:
        """`Figure("star", "red", …).caption()` is "a red star"."""
        if language == "zh":
            return f"一个{CHINESE[self.colour]}的{CHINESE[self.kind]}"
        article = "an" if self.colour[0] in "aeiou" else "a"
        return f"{article} {self.colour} {self.kind}"


@dataclass(frozen=True, eq=False)
class Drawing:
    """A picture (H W 3) with what is in it, from back to front; nothing in it is hidden whole."""

    pixels: Pixels
    figures: tuple[Figure, ...]
    masks: Masks  # N H W: the pixels of which each is the most

    @property
    def boxes(self) -> npt.NDArray[np.float64]:
        """N 4: left, top, right, bottom in pixels, around what is to be seen of each."""
        found = []
        for mask in self.masks:
            down, across = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
            found.append((across[0], down[0], across[-1] + 1, down[-1] + 1))
        return np.array(found, np.float64).reshape(-1, 4)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """N: the number of each one's kind in `KINDS`."""
        return np.array([KINDS.index(figure.kind) for figure in self.figures], np.int64)

    def label_map(self, nothing: int = 255) -> Pixels:
        """H W: the number of the kind that a pixel belongs to, or `nothing`."""
        ids = np.full(self.masks.shape[1:], nothing, np.uint8)
        for mask, label in zip(self.masks, self.labels, strict=True):
            ids[mask] = label
        return ids

    def caption(self, language: Language = "en") -> str:
        """All that is in it, from left to right: "a red star and a blue ring"."""
        told = [f.caption(language) for f in sorted(self.figures, key=lambda f: f.x)]
        if language == "zh":
            return "和".join(("、".join(told[:-1]), told[-1])) if len(told) > 1 else told[0]
        return " and ".join((", ".join(told[:-1]), told[-1])) if len(told) > 1 else told[0]


# --- drawing --------------------------------------------------------------------------------------


def draw(
    figures: Sequence[Figure],
    side: int = 32,
    ground: npt.ArrayLike = 255,
    grain: Array | None = None,
) -> Drawing:
    """`draw([Figure("star", "red", 0.5, 0.5, 0.4)])`: the later ones lie on the earlier ones.

    `ground` is a grey, or a picture (H W 3) to draw on; `grain` is added to it all in the end.
    """
    image = np.broadcast_to(np.asarray(ground, np.float32), (side, side, 3)).copy()
    covers = [_cover(figure, side) for figure in figures]
    seen = np.zeros((len(figures), side, side), np.float32)
    for i, (figure, cover) in enumerate(zip(figures, covers, strict=True)):
        image += cover[..., None] * (np.array(COLOURS[figure.colour], np.float32) - image)
        seen[:i] *= 1 - cover
        seen[i] = cover
    if grain is not None:
        image += grain
    return Drawing(np.rint(image.clip(0, 255)).astype(np.uint8), tuple(figures), seen > 0.5)


def _cover(figure: Figure, side: int) -> Array:
    """H W: how much of each pixel lies in it, 0 … 1."""
    cover = np.zeros((side, side), np.float32)
    far = 1.5 * figure.reach  # a square that is turned reaches over its side
    (left, right), (top, bottom) = (
        (max(0, math.floor((at - far) * side)), min(side, math.ceil((at + far) * side)))
        for at in (figure.x, figure.y)
    )
    across, down = (
        (np.arange(first * FINE, last * FINE, dtype=np.float32) + 0.5) / (side * FINE)
        for first, last in ((left, right), (top, bottom))
    )
    x, y = (across[None] - figure.x) / figure.reach, (down[:, None] - figure.y) / figure.reach
    sin, cos = math.sin(figure.turn), math.cos(figure.turn)
    inside = FIGURES[figure.kind](cos * x + sin * y, cos * y - sin * x)
    cells = inside.reshape(bottom - top, FINE, right - left, FINE)
    cover[top:bottom, left:right] = cells.mean((1, 3), dtype=np.float32)
    return cover


def draw_one(
    seed: int, number: int, side: int = 32, plain: bool = False, kinds: int = len(KINDS)
) -> Drawing:
    """One shape of the first `kinds`, anywhere; `plain`: in the middle, upright, on white."""
    chance = np.random.default_rng((seed, number))
    kind, colour = _named(chance, kinds)
    if plain:
        return draw([Figure(kind, colour, 0.5, 0.5, chance.uniform(0.3, 0.44))], side, 255)
    reach = chance.uniform(0.26, 0.44)
    x, y = chance.uniform(reach, 1 - reach, 2)
    figure = Figure(kind, colour, x, y, reach, chance.uniform(-0.3, 0.3))
    return draw([figure], side, *_ground(chance, side))


def draw_scene(
    seed: int, number: int, side: int = 64, most: int = 4, kinds: int = len(KINDS)
) -> Drawing:
    """One to `most` shapes of the first `kinds` that overlap but little."""
    chance = np.random.default_rng((seed, number, most))
    figures: list[Figure] = []
    for _ in range(chance.integers(1, most + 1)):
        kind, colour = _named(chance, kinds)
        for _ in range(20):  # where there is no room any more, there are fewer
            reach = chance.uniform(0.15, 0.28)
            x, y = chance.uniform(reach, 1 - reach, 2)
            if all(max(abs(f.x - x), abs(f.y - y)) > 0.8 * (f.reach + reach) for f in figures):
                figures.append(Figure(kind, colour, x, y, reach, chance.uniform(-0.3, 0.3)))
                break
    return draw(figures, side, *_ground(chance, side))


def _named(chance: np.random.Generator, kinds: int) -> tuple[str, str]:
    return KINDS[chance.integers(kinds)], tuple(COLOURS)[chance.integers(len(COLOURS))]


def _ground(chance: np.random.Generator, side: int) -> tuple[Array, Array]:
    """Grey, darker towards some side, and grain: no figure has its colour."""
    light, angle = chance.uniform(150, 235), chance.uniform(0, 2 * math.pi)
    down, across = np.mgrid[:side, :side].astype(np.float32) / side - 0.5
    slope = chance.uniform(0, 50) * (math.cos(angle) * across + math.sin(angle) * down)
    grain = chance.normal(0, 6, (side, side, 3)).astype(np.float32)
    return (light + slope)[..., None], grain


class Shapes(Sequence[Drawing]):
    """So many pictures: `Shapes(500, most=1)` of one shape each, else of up to `most`; of the first
    `kinds` of `KINDS`."""

    def __init__(
        self,
        count: int,
        *,
        side: int = 32,
        most: int = 1,
        kinds: int = len(KINDS),
        seed: int = 0,
        plain: bool = False,
    ) -> None:
        for name, value, least in (("count", count, 1), ("side", side, 8), ("most", most, 1)):
            if value < least:
                raise DataError(f"Shapes.{name}={value} must be at least {least}; give more")
        if not 1 <= kinds <= len(KINDS):
            raise DataError(f"Shapes.kinds={kinds} must be from 1 to {len(KINDS)}; give fewer")
        self.length, self.side, self.most, self.kinds = count, side, most, kinds
        self.seed, self.plain = seed, plain

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, number: int) -> Drawing: ...
    @overload
    def __getitem__(self, number: slice) -> list[Drawing]: ...
    def __getitem__(self, number: int | slice) -> Drawing | list[Drawing]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(self.length))]
        if not -self.length <= number < self.length:
            raise IndexError(f"there are {self.length} shapes; there is no number {number}")
        number %= self.length
        if self.most == 1:
            return draw_one(self.seed, number, self.side, self.plain, self.kinds)
        return draw_scene(self.seed, number, self.side, self.most, self.kinds)
