"""The attention weights of the first samples, small enough to travel inside the page.

A map is its weights in 255 steps, one byte each, row after row, as base64: where W is B H T S in
the trace, head h of sample b is T·S bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Protocol

import torch
from torch import Tensor

from allformer import config
from allformer.core.model import Model
from allformer.core.taps import listen
from allformer.explain.words import Pair, label, word

MOST_SAMPLES, MOST_TOKENS = 6, 48
MOST_WEIGHTS = 700_000  # in all: 930 kB of page
CELL, FONT = 26, 13


class ReadsTokens(Protocol):
    """What the report needs of a tokeniser."""

    @property
    def bos_id(self) -> int: ...
    @property
    def eos_id(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def tokens(self, ids: list[int]) -> list[str]: ...


# What the rows and the columns of each kind of map are, among a sample's tokens.
AXES = {"cross": ("written", "source"), "encoder": ("source",) * 2, "decoder": ("read",) * 2}


def attention_maps(
    model: Model[Any], tokenizer: ReadsTokens, pairs: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """The maps of the first (source, output) pairs that are short enough, as plain data.

    A model of one stack reads the sources alone. One that mixes without weights has no maps.
    """
    found: list[dict[str, Any]] = []
    room, training = MOST_WEIGHTS, model.training
    model.eval()
    for source, target in pairs:
        read = tokenizer.encode(source)
        alone = len(model.config.stacks) == 1
        writes = model.head is None or model.head.writes  # else the decoder reads the input again
        written = tokenizer.encode(target) if writes and not alone else read
        size = _weights(model.config, len(read) + 1, len(written) + 1)
        if max(len(read), len(written)) + 1 > _longest(model.config) or size > room or not read:
            continue
        make = _alone if alone else _sample
        try:
            found.append({"text": source, **make(model, tokenizer, read, written)})
        except KeyError:  # a mixer of another kind
            break
        room -= size
        if len(found) == MOST_SAMPLES:
            break
    model.train(training)
    return found


def alignment(sample: dict[str, Any]) -> str:
    """A still picture for a page without script: the last layer's attention, averaged."""
    kind = next(iter(sample["maps"]))
    rows, columns = (sample[name] for name in AXES[kind])
    heads = [torch.frombuffer(bytearray(base64.b64decode(m)), dtype=torch.uint8)
             for m in sample["maps"][kind][-1]]  # fmt: skip
    mean = torch.stack(heads).float().mean(0).div(255).view(len(rows), len(columns))
    left = 14 + FONT * max(_ems(token) for token in rows)
    top = 14 + FONT * max(_ems(token) for token in columns)
    width, height = left + CELL * len(columns), top + CELL * len(rows)
    return (
        f'<svg class="align {kind}" width="{width:.0f}" height="{height:.0f}" role="img" '
        f"{label(still(sample))}>"
        + "".join(_axis(rows, columns, left, top))
        + "".join(_cells(mean, left, top))
        + "</svg>"
    )


def still(sample: dict[str, Any]) -> Pair:
    """What the still picture is."""
    return word("attention.static" if "cross" in sample["maps"] else "attention.static.one")


def _longest(model: config.Model) -> int:
    """How many tokens a sample may have: what fits the page and what the model can read."""
    return min([MOST_TOKENS, *(s.longest for s in model.stacks.values() if s.longest is not None)])


def _weights(model: config.Model, source: int, target: int) -> int:
    """How many attention weights a sample has in all layers and heads."""
    n = 0
    for stack in model.stacks.values():
        own = source if stack is model.reader else target
        for block in stack.blocks:
            n += block.attention.heads * own * own
            n += 0 if block.cross is None else block.cross.heads * own * source
    return n


def _alone(
    model: Model[Any], tokenizer: ReadsTokens, read: list[int], _: list[int]
) -> dict[str, Any]:
    """Of one stack that reads a text as its tokeniser gives it."""
    (name, stack) = next(iter(model.config.stacks.items()))
    seen = _seen(model, input_ids=[read])
    maps = _layers(seen, f"{name}.{{}}.attention.weights", len(stack.blocks))
    kind = "decoder" if stack.causal else "encoder"
    return {AXES[kind][0]: tokenizer.tokens(read), "maps": {kind: maps}}


def _sample(
    model: Model[Any], tokenizer: ReadsTokens, read: list[int], written: list[int]
) -> dict[str, Any]:
    start = getattr(model.config, "start", None)
    begin = tokenizer.bos_id if start is None else start  # T5 begins with its padding
    source, target = [*read, tokenizer.eos_id], [begin, *written]
    seen = _seen(model, input_ids=[source], decoder_input_ids=[target])
    return {
        "source": tokenizer.tokens(source),
        "read": tokenizer.tokens(target),  # what the decoder has read at each row
        "written": tokenizer.tokens([*written, tokenizer.eos_id]),  # what it writes there
        "maps": {
            "cross": _layers(seen, "decoder.{}.cross.weights", len(model.config.decoder.blocks)),
            "encoder": _layers(
                seen, "encoder.{}.attention.weights", len(model.config.encoder.blocks)
            ),
            "decoder": _layers(
                seen, "decoder.{}.attention.weights", len(model.config.decoder.blocks)
            ),
        },
    }


def _seen(model: Model[Any], **ids: list[list[int]]) -> dict[str, Tensor]:
    """The weights of all layers; no head is run: some of them would look for more."""
    found: dict[str, Tensor] = {}

    def note(name: str, x: Tensor) -> None:
        if name.endswith(".weights"):
            found[name] = x.detach()

    inputs: dict[str, Any] = {n: torch.tensor(x, device=model.device) for n, x in ids.items()}
    with torch.no_grad(), listen(note):
        model.states(**inputs)
    return found


def _layers(seen: dict[str, Tensor], name: str, n: int) -> list[list[str]]:
    return [[_pack(head) for head in seen[name.format(i)][0]] for i in range(n)]


def _pack(weights: Tensor) -> str:
    steps = weights.float().nan_to_num().mul(255).round().to(torch.uint8).cpu()
    return base64.b64encode(steps.numpy().tobytes()).decode()


def _ems(token: str) -> float:
    """About how wide a token is, in font sizes: Chinese is square, Latin about half of that."""
    return sum(1.0 if ord(letter) > 0x2E80 else 0.58 for letter in token)


def _axis(rows: list[str], columns: list[str], left: float, top: float) -> Iterator[str]:
    for i, token in enumerate(rows):
        y = top + CELL * (i + 0.5) + 4
        yield f'<text class="end" x="{left - 8:.0f}" y="{y:.0f}">{escape(token)}</text>'
    for j, token in enumerate(columns):
        x, y = left + CELL * (j + 0.5), top - 8
        if all(ord(letter) > 0x2E80 for letter in token):  # Chinese stands upright in a column
            yield f'<text class="upright" x="{x:.0f}" y="{y:.0f}">{escape(token)}</text>'
        else:
            turn = f'transform="translate({x + 4:.0f} {y:.0f}) rotate(-90)"'
            yield f'<text class="start" {turn}>{escape(token)}</text>'


def _cells(weights: Tensor, left: float, top: float) -> Iterator[str]:
    for i, row in enumerate(weights.tolist()):
        for j, weight in enumerate(row):
            if weight >= 0.01:
                yield (
                    f'<rect class="cell" x="{left + CELL * j:.0f}" y="{top + CELL * i:.0f}" '
                    f'width="{CELL - 1}" height="{CELL - 1}" fill-opacity="{weight:.2f}"/>'
                )
