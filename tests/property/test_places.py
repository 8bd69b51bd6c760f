"""Who may look at whom is a comparison of places, whatever lies where in memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from allformer import config
from allformer.core.attention import Attention
from allformer.core.inputs import Side
from allformer.core.layout import Grid, Layout, pack
from allformer.core.mixers.mixer import Scene
from allformer.core.places import Places, mask_of
from allformer.core.relatives.relative import PLAIN, Relation
from tests.loud import make_loud
from tests.models import KINDS, left_padding, loud, on_the_grid, right_padding, tokens

CPU = torch.device("cpu")
REACHES = [None, (0, 0), (2, 0), (0, 3), (2, 1), (50, 50)]


def close(mine: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-10)


def by_hand(places: Places, causal: bool, reach: tuple[int, int] | None) -> Tensor:
    """Pair by pair, as the words say."""
    rows = max(len(places.query), len(places.key), 1 if places.real is None else len(places.real))
    query, key = (x.expand(rows, -1).tolist() for x in (places.query, places.key))
    mask = torch.ones(rows, 1, len(query[0]), len(key[0])).bool()
    for r in range(rows):
        for i, mine in enumerate(query[r]):
            for j, theirs in enumerate(key[r]):
                there = places.real is None or bool(places.real[r, j])
                after = causal and theirs > mine
                far = reach is not None and not mine - reach[0] <= theirs <= mine + reach[1]
                mask[r, 0, i, j] = there and not after and not far
    return mask


def check_mask(seed: int = 0) -> None:
    """Places in any order: caches wrap around, lie in pages, are padded on the left."""
    random = torch.Generator().manual_seed(seed)
    for rows, real in ((1, False), (3, False), (3, True)):
        key = torch.stack([torch.randperm(9, generator=random) for _ in range(rows)])
        query = torch.randint(0, 9, (rows, 4), generator=random)
        keep = torch.rand(3, 9, generator=random) < 0.6 if real else None
        for one in (query, query[:, :1]):
            places = Places(one, key, keep)
            for causal in (False, True):
                for reach in REACHES:
                    mask = mask_of(places, causal, reach)
                    wanted = by_hand(places, causal, reach)
                    if mask is None:
                        assert wanted.all()
                    else:
                        assert torch.equal(mask.expand(wanted.shape), wanted), (causal, reach)


def check_grid() -> None:
    """New tokens stand behind what is cached; only whole rows in order are plain."""
    keep = right_padding([7, 5], 7).bool()
    counter = torch.tensor(4)
    for past, keep_it, room in ((0, None, None), (4, None, None), (4, keep, None), (4, keep, 9)):
        new = 7 - past
        grid = Grid(2, new, keep_it, past) if room is None else Grid(2, new, None, counter, room)
        places = grid.places(CPU)
        assert places.query.tolist() == [list(range(past, 7))]
        assert places.key.tolist() == [list(range(room or 7))]
        assert places.plain == (keep_it is None)
        assert places.triangle == (past == 0)
        if room is None:
            assert places.real is keep_it
        for reach in REACHES:
            for causal in (False, True):
                mask = mask_of(places, causal, reach)
                wanted = by_hand(places, causal, reach)
                assert wanted.all() if mask is None else torch.equal(mask.expand_as(wanted), wanted)
    last = Grid(2, 1, past=6).places(CPU)
    assert mask_of(last, True, None) is None, "nobody comes after the last"
    assert mask_of(last._replace(last=False), True, None) is not None
    padded = Grid(2, 1, keep, past=6).places(CPU)
    assert torch.equal(mask_of(padded, True, None), keep[:, None, None, :])
    behind = Grid(2, 1, None, torch.tensor(6), 9).places(CPU)
    assert mask_of(behind, True, None)[0, 0, 0].tolist() == [True] * 7 + [False] * 2


@torch.no_grad()
def check_alike() -> None:
    """Each side lies as it can; the numbers are those of two grids."""
    model = loud(KINDS["seq2seq paper"])
    source, target = tokens(3, 12, 1), tokens(3, 9, 2)
    source_keep, target_keep = left_padding([12, 7, 4], 12), right_padding([9, 5, 2], 9)

    def sides(mask: Tensor | None, packed: bool, ids: Tensor) -> Side:
        if mask is None:
            return Side(Grid(*ids.shape), {"input_ids": ids}, ids)
        layout: Layout = pack(mask) if packed else Grid(*ids.shape, mask.bool())
        return Side(layout, {"input_ids": layout.lay(ids)}, ids)

    for one in (None, source_keep):
        for two in (None, target_keep):
            real = torch.ones_like(target).bool() if two is None else two.bool()
            with on_the_grid():
                wanted = model(source, one, target, two).last_hidden_state[real]
            close(model(source, one, target, two).last_hidden_state[real], wanted)
            for ways in ((False, False), (False, True), (True, False), (True, True)):
                given = {
                    "encoder": sides(one, ways[0], source),
                    "decoder": sides(two, ways[1], target),
                }
                hidden = model.hidden(given)["decoder"]
                close(given["decoder"].layout.to_grid(hidden)[real], wanted)


class Added(Relation):
    """The same numbers, added for all layers at once or by the layer's own part."""

    adds = True

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def bias(self, places: Places) -> Tensor:
        return self.table[:, places.distance + 20].transpose(0, 1)  # R H T S


class AddedByPart(Added):
    def bias(self, places: Places) -> None:
        return None

    def scores(self, q: Tensor, places: Places, part: nn.Module | None) -> Tensor:
        assert q.shape[1:] == (4, places.query.shape[1], 6)
        return super().bias(places).expand(len(q), -1, -1, -1)


@torch.no_grad()
def check_added() -> None:
    """What a relation adds reaches the scores, under every mask and in every kernel."""
    layer = make_loud(Attention(config.Attention(4), 24, "layer").double(), 1)
    table = torch.randn(4, 41, dtype=torch.float64) * 3
    keep = left_padding([8, 5, 2], 8)
    x = torch.randn(3, 8, 24, dtype=torch.float64)
    for layout in (Grid(3, 8), Grid(3, 8, keep.bool()), pack(keep)):
        laid = layout.lay(x) if layout.packed else x
        for causal in (False, True):
            for kernel in ("fast", "eager"):
                found = []
                for relation in (PLAIN, Added(table), AddedByPart(table)):
                    scene = Scene(layout, layout, CPU, x.dtype, causal, kernel, relation)
                    out = layer(laid, layer.mixer.plan(scene), relation=relation)
                    found.append(layout.to_grid(out))
                close(found[1], found[2])
                assert (found[1] - found[0]).abs().max() > 0.1, "nothing is added"
                # row 0, by the formula
                q, k, v = (y.view(8, 4, 6).transpose(0, 1) for y in layer.qkv.cut(layer.qkv(x[0])))
                steps = torch.arange(8)
                scores = q @ k.mT / 6**0.5 + table[:, steps[None] - steps[:, None] + 20]
                if causal:
                    scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf"))
                context = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
                close(found[1][0], layer.out(context))


class Mirrored(Relation):
    """Queries and keys with the other sign: no score changes, but a value would."""

    turns = True

    def turn(self, heads: Tensor) -> Tensor:
        return -heads


@torch.no_grad()
def check_turned() -> None:
    """Queries and keys are turned, both and nothing else."""
    for groups in (4, 2, 1):
        layer = Attention(config.Attention(4, kv_heads=groups), 24, "layer").double()
        make_loud(layer, 1)
        x, grid = torch.randn(2, 7, 24, dtype=torch.float64), Grid(2, 7)
        plan = layer.mixer.plan(Scene(grid, grid, CPU, x.dtype, True))
        close(layer(x, plan, relation=Mirrored()), layer(x, plan))
        before = layer.qkv(x)
        turned = layer._turn(before, Mirrored())
        count = (4 + groups) * 6
        assert torch.equal(turned[..., :count], -before[..., :count])
        assert torch.equal(turned[..., count:], before[..., count:])


@given(seed=st.integers(0, 999))
def test_a_mask_is_the_comparison_of_places(seed):
    check_mask(seed)


def test_new_tokens_stand_behind_what_is_cached():
    check_grid()


def test_two_sides_may_lie_differently():
    check_alike()


def test_what_a_relation_adds_reaches_the_scores():
    check_added()


def test_a_relation_turns_queries_and_keys_alone():
    check_turned()


@pytest.mark.parametrize("reach", REACHES)
def test_a_window_is_the_same_whether_a_row_is_whole_or_read_in_parts(reach):
    whole = mask_of(Grid(1, 9).places(CPU), True, reach)
    part = mask_of(Grid(1, 4, past=5).places(CPU), True, reach)
    assert whole is not None
    assert part is not None
    assert torch.equal(whole[:, :, 5:], part)
