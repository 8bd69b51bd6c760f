"""Text and an image in one sequence: who sees whom by brute force, and a step as in the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer.config import (
    Attention,
    ColumnMask,
    DecoderOnly,
    ImageMask,
    Joined,
    JoinedHead,
    LMHead,
    NearMask,
    RowMask,
    TextAndPlane,
    Tokens,
)
from allformer.core.layout import Grid
from allformer.core.registry import module_for
from allformer.core.states import Static
from allformer.errors import ConfigError, LengthError
from allformer.families.dalle import dalle, masks
from tests.models import loud

TEXT, ROWS, COLUMNS, WORDS, CODES = 6, 5, 7, 20, 17
WIDTH = TEXT + ROWS * COLUMNS
SMALL = dalle(
    24, 4, 4, words=WORDS, codes=CODES, text=TEXT, shape=(ROWS, COLUMNS), kernel=3, pad_id=1
)


def seen(mixer: ImageMask, query: int, key: int) -> bool:
    """The paper's words, one pair at a time."""
    if key > query:
        return False
    if key < mixer.text:
        return True
    far = query - key
    if isinstance(mixer, RowMask):  # the previous ones, the last of which stands above
        return far <= mixer.width
    if isinstance(mixer, ColumnMask):
        return (query - mixer.text) % mixer.width == (key - mixer.text) % mixer.width
    assert isinstance(mixer, NearMask)
    side = mixer.kernel // 2
    return any(
        far == up * mixer.width + left for up in range(side + 1) for left in range(-side, side + 1)
    )


def check_mask(mixer: ImageMask, width: int = WIDTH) -> None:
    module = module_for(mixer)(Attention(2, mixer=mixer), 8, "mixer")
    places = Grid(1, width).places(torch.device("cpu"))
    mask = module.mask(places)[0, 0]
    wanted = torch.tensor([[seen(mixer, q, k) for k in range(width)] for q in range(width)])
    assert torch.equal(mask, wanted)  # of lists pytest would work out the difference, for minutes
    assert mixer.keys(width, True) == pytest.approx(mask.sum().item() / width)


MIXERS = [
    RowMask(TEXT, COLUMNS), ColumnMask(TEXT, COLUMNS), NearMask(TEXT, COLUMNS, 3),
    NearMask(TEXT, COLUMNS, 1), NearMask(TEXT, 6, 7), NearMask(TEXT, COLUMNS, 11), RowMask(1, 1),
    ColumnMask(3, 1), NearMask(2, 4, 5),
]  # fmt: skip


@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_everybody_sees_whom_the_paper_lets_them_see(mixer: ImageMask) -> None:
    check_mask(mixer)
    check_mask(mixer, 3)


def test_masks_by_layer_are_the_papers() -> None:
    kinds = [type(mixer).__name__[0] for mixer in masks(10, 256, 32)]
    assert "".join(kinds) == "RCRRRCRRRN"
    assert masks(1, 256, 32) == (NearMask(256, 32, 11),)


def row(seed: int = 0, rows: int = 2, width: int = WIDTH) -> Tensor:
    """Texts, the second shorter, and images."""
    make = torch.Generator().manual_seed(seed)
    text = torch.randint(2, WORDS, (rows, TEXT), generator=make)
    text[1, 4:] = 1
    codes = torch.randint(WORDS, WORDS + CODES, (rows, ROWS * COLUMNS), generator=make)
    return torch.cat([text, codes], 1)[:, :width]


def formula(model: Any, ids: Tensor) -> Tensor:
    """The whole decoder written out: loops over layers, one mask each, in fp64."""
    stack, w = model.config.decoder, dict(model.named_parameters())
    source = "decoder.source"
    x = w[f"{source}.embedding.weight"][ids]
    for b in range(len(ids)):
        for t in range(TEXT):
            if ids[b, t] == 1:
                x[b, t] = w[f"{source}.empty.weight"][t]
    rows, columns = w[f"{source}.position.rows"], w[f"{source}.position.columns"]
    places = [w[f"{source}.position.text"][t] for t in range(TEXT)]
    places += [rows[i // COLUMNS] + columns[i % COLUMNS] for i in range(ROWS * COLUMNS)]
    x = x + torch.stack(places)[: ids.shape[1]]

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    n = ids.shape[1]
    for i, block in enumerate(stack.blocks):
        at = f"decoder.layers.{i}"
        h = dense(norm(x, f"{at}.attention_norm"), f"{at}.attention.qkv")
        q, k, v = (y.unflatten(-1, (4, 6)).transpose(1, 2) for y in h.chunk(3, -1))
        mask = torch.tensor(
            [[seen(block.attention.mixer, a, b) for b in range(n)] for a in range(n)]
        )
        scores = (q @ k.mT / 6**0.5).masked_fill(~mask, float("-inf"))
        h = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + dense(h, f"{at}.attention.out")
        h = dense(norm(x, f"{at}.feed_norm"), f"{at}.feed.up")
        x = x + dense(torch.nn.functional.gelu(h), f"{at}.feed.down")
    logits = norm(x, "decoder.final_norm") @ w["head.table.weight"].T
    for t in range(n):
        say = slice(0, WORDS) if t >= TEXT - 1 else slice(WORDS, None)
        logits[:, t, say] = float("-inf")
    return logits


@torch.no_grad()
def check_formula() -> None:
    model, ids = loud(SMALL), row()
    torch.testing.assert_close(model(input_ids=ids).logits, formula(model, ids), rtol=0, atol=1e-9)


def test_the_decoder_is_the_formula() -> None:
    check_formula()


@torch.no_grad()
def check_steps(static: bool = False) -> None:
    model, ids = loud(SMALL), row(3)
    whole = model(input_ids=ids).logits
    cache = Static.cache(4, WIDTH) if static else model.new_cache()
    steps = [model.step(ids[:, :TEXT], cache)]
    steps += [model.step(ids[:, t : t + 1], cache) for t in range(TEXT, WIDTH)]
    torch.testing.assert_close(torch.stack(steps, 1), whole[:, TEXT - 1 :], rtol=0, atol=1e-9)


@pytest.mark.parametrize("static", [False, True], ids=["growing", "static"])
def test_a_step_sees_what_the_whole_row_sees(static: bool) -> None:
    check_steps(static)


@torch.no_grad()
def test_generate_fills_the_grid_with_codes_and_every_kernel_agrees() -> None:
    model, text = loud(SMALL), row()[:, :TEXT]
    options = {"max_new_tokens": ROWS * COLUMNS, "attention_mask": torch.ones_like(text)}
    ids = model.generate(text, **options)
    assert ids.shape == (2, WIDTH)
    assert ids[:, TEXT:].min() >= WORDS
    again = model.generate(text, use_cache=False, **options)
    assert ids.tolist() == again.tolist()
    fast, eager = model(input_ids=ids).logits, model(input_ids=ids, kernel="eager").logits
    torch.testing.assert_close(fast, eager, rtol=0, atol=1e-10)
    with pytest.raises(LengthError, match=r"TextAndPlane\.shape"):
        model(input_ids=torch.cat([ids, ids[:, -1:]], 1))


@torch.no_grad()
def test_a_row_without_what_fills_it_up_is_the_same_packed_and_on_its_grid() -> None:
    model, ids = loud(SMALL), row()
    mask = torch.ones_like(ids)
    mask[1, 30:] = 0
    out = model(input_ids=ids, attention_mask=mask).logits
    alone = model(input_ids=ids[1:, :30]).logits
    torch.testing.assert_close(out[1:, :30], alone, rtol=0, atol=1e-10)


def check_score() -> None:
    """By parts of the vocabulary, the loss is that of the masked logits."""
    model, ids = loud(SMALL), row()
    out = model(input_ids=ids, labels=ids)
    states = model.states(input_ids=ids)["decoder"][:, :-1]
    head, targets = model.vocab_head, ids[:, 1:]
    loss, nll = head.score(states.flatten(0, 1), targets.flatten(), 0.0)
    torch.testing.assert_close(loss / targets.numel(), out.loss)
    torch.testing.assert_close(nll, loss)
    text, _ = head.score_part(
        states[:, : TEXT - 1].flatten(0, 1), targets[:, : TEXT - 1].flatten(), 0.0
    )
    codes = targets[:, TEXT - 1 :].flatten() - WORDS
    image, _ = head.score_part(states[:, TEXT - 1 :].flatten(0, 1), codes, 0.0, codes=True)
    torch.testing.assert_close(text + image, loss)
    logits = out.logits[:, TEXT - 1 :, WORDS:]
    torch.testing.assert_close(head.codes(out.last_hidden_state[:, TEXT - 1 :]), logits)


def test_the_loss_by_parts_is_that_of_the_masked_logits() -> None:
    check_score()


def test_the_preset_has_twelve_billion_parameters_and_is_saved_as_its_tree() -> None:
    tree = af.preset("dalle")
    assert 11.9e9 < af.count(tree).parameters < 12.4e9
    assert af.config_from_json(tree.to_json()) == tree


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Joined(20, words=20), "leaves no codes"),
        (lambda: Joined(30, words=20, pad_id=25), "is a code"),
        (lambda: NearMask(6, 7, 4), "must be odd"),
        (lambda: replace(SMALL.decoder, causal=False), "set causal=True"),
        (lambda: replace(SMALL.decoder, position=TextAndPlane(5, (5, 7))), "give text=6"),
        (lambda: replace(SMALL.decoder, source=Joined(37, words=20, length=6, shape=(7, 5)),
                         position=None), "make them equal"),
        (lambda: DecoderOnly(replace(SMALL.decoder, source=Tokens(30)), JoinedHead()), "Joined"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_a_plain_head_over_both_vocabularies_works_too() -> None:
    model = af.build(DecoderOnly(SMALL.decoder, LMHead()), seed=0)
    assert model(input_ids=row()).logits.isfinite().all()
