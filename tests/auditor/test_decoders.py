"""Decoders with caches of any make, padding by an id, documents in a row, and odd outputs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit

V, PAD, END = 53, 1, 2


class PairsCache:
    """A class of the user's own: the module asks it how much it holds."""

    def __init__(self):
        self.pairs = {}

    def held(self):
        return self.pairs[0][0].shape[2] if self.pairs else 0

    def put(self, layer, k, v):
        if layer in self.pairs:
            k, v = (torch.cat(p, 2) for p in zip(self.pairs[layer], (k, v), strict=True))
        self.pairs[layer] = k, v
        return k, v


class CountedCache(PairsCache):
    """Its length is moved on by whoever generates."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def held(self):
        return self.number

    def step(self):
        self.number = next(iter(self.pairs.values()))[0].shape[2]


class Story(nn.Module):
    """Rows of ids, learned positions; `odd` is what is written differently."""

    def __init__(self, odd="", d=36, h=3, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(V, d), nn.Embedding(64, d)
        self.qkv = nn.ModuleList([nn.Linear(d, 3 * d) for _ in range(layers)])
        self.out = nn.ModuleList([nn.Linear(d, d) for _ in range(layers)])
        self.feed = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
                for _ in range(layers)
            ]
        )
        self.norm = nn.ModuleList([nn.LayerNorm(d) for _ in range(layers + 1)])
        self.head, self.h, self.odd = nn.Linear(d, V, bias=False), h, odd
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.04)

    def run(self, ids, where, hidden, low=None, put=None):
        """`where` B T positions, `hidden` B T S; `put(layer, k, v)` gives all keys and values."""
        x = self.words(ids) + self.places(where)
        for i, qkv in enumerate(self.qkv):
            q, k, v = (
                z.unflatten(-1, (self.h, -1)).transpose(1, 2)
                for z in qkv(self.norm[i](x)).chunk(3, -1)
            )
            if put is not None:
                k, v = put(i, k, v)
            s = q @ k.mT * q.shape[-1] ** -0.5
            s = s.masked_fill(hidden[:, None], torch.finfo(s.dtype).min if low is None else low)
            x = x + self.out[i]((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
            x = x + self.feed[i](x)
        return self.head(self.norm[-1](x))

    def step(self, ids, past, put=None):
        """All of `ids` after `past` earlier tokens."""
        t = ids.shape[1]
        begin = 0 if self.odd == "positions" else past
        after = 1 + (0 if self.odd == "mask" else past)
        hidden = torch.ones(1, t, past + t, dtype=torch.bool).triu(after)
        return self.run(ids, torch.arange(begin, begin + t)[None], hidden, None, put)


class WithObject(Story):
    def forward(self, tokens, cache=None):
        if cache is None:
            return self.step(tokens, 0)
        return self.step(tokens, cache.held(), cache.put)


class WithCounted(Story):
    def forward(self, tokens, kv_cache: CountedCache | None = None):
        if kv_cache is None:
            return self.step(tokens, 0)
        return self.step(tokens, kv_cache.held(), kv_cache.put)


class WithPrefix(Story):
    """All tokens so far are given; with a dict that holds something, the last one is computed."""

    def forward(self, tokens, incremental_state=None):
        def put(layer, k, v):
            if layer in incremental_state:
                k, v = (torch.cat(p, 2) for p in zip(incremental_state[layer], (k, v), strict=True))
            incremental_state[layer] = k, v
            return k, v

        if incremental_state is None:
            return self.step(tokens, 0), {"attn": None}
        if not incremental_state:
            return self.step(tokens, 0, put), {"attn": None}
        return self.step(tokens[:, -1:], tokens.shape[1] - 1, put), {"attn": None}


@pytest.mark.parametrize("kind", [WithObject, WithCounted, WithPrefix])
def test_caches_of_any_make_are_stepped_with(kind):
    report = audit(kind(), "decoder")
    assert report.ok, report.text()
    assert "cache.mismatch" in report.passed
    for odd in ("positions", "mask") if kind is WithObject else ("positions",):
        assert audit(kind(odd), "decoder").checks == {"cache.mismatch"}


class WithPadding(Story):
    """An id is the padding: no query looks at it, and positions leave it out."""

    def forward(self, ids):
        keep = ids != PAD
        n = ids.shape[1]
        where = (keep.long().cumsum(1) - 1).clamp(min=0)
        if self.odd == "positions":
            where = torch.arange(n)[None]
        hidden = ~keep[:, None] | torch.ones(n, n, dtype=torch.bool).triu(1)
        return SimpleNamespace(
            scores=self.run(ids, where, hidden, -torch.inf if self.odd == "infinite" else None)
        )


def test_padding_by_an_id_is_tried_on_the_left():
    sound = audit(WithPadding(), "decoder", pad=PAD)
    assert sound.ok, sound.text()
    assert {"mask.blind_rows", "positions.left_padding"} <= set(sound.passed)
    assert audit(WithPadding("infinite"), "decoder", pad=PAD).checks == {"mask.blind_rows"}
    wrong = audit(WithPadding("positions"), "decoder", pad=PAD)
    assert wrong.checks == {"positions.left_padding"}
    assert audit(WithPadding("positions"), "decoder", pad=PAD, profile="right-padding").ok


class WithDocuments(Story):
    """A document ends with END; the next token is the first of another."""

    def forward(self, ids):
        number = (ids == END).long().cumsum(1).roll(1, 1)
        number[:, 0] = 0
        n = ids.shape[1]
        place = torch.arange(n)
        begins = (number != number.roll(1, 1)).long() * place
        where = place - begins.cummax(1).values
        hidden = torch.ones(1, n, n, dtype=torch.bool).triu(1)
        if self.odd != "see":
            hidden = hidden | (number[:, :, None] != number[:, None])
        if self.odd == "one document":
            where, hidden = place[None], torch.ones(1, n, n, dtype=torch.bool).triu(1)
        return self.run(ids, where, hidden)


def test_positions_that_begin_anew_say_that_documents_are_meant():
    sound = audit(WithDocuments(), "decoder", eos=END)
    assert sound.ok, sound.text()
    assert "packing.leak" in sound.passed
    assert audit(WithDocuments("see"), "decoder", eos=END).checks == {"packing.leak"}
    plain = audit(WithDocuments("one document"), "decoder", eos=END)
    assert plain.ok
    assert "begins nothing anew" in plain.not_applicable["packing.leak"]


class AlongRows(nn.Module):
    """torch's layers want (T, B, D); with batch_first=False and (B, T, D) they attend along B."""

    def __init__(self, batch_first, d=32):
        super().__init__()
        self.words, self.places = nn.Embedding(V, d), nn.Parameter(torch.randn(64, d) * 0.02)
        nn.init.normal_(self.words.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 64, 0.0, F.gelu, batch_first=batch_first)
        self.core, self.head = nn.TransformerEncoder(layer, 1, None, False), nn.Linear(d, V)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).triu(1)
        return self.head(self.core(self.words(ids) + self.places[:n], mask))


def test_a_module_that_runs_only_where_rows_are_as_many_as_positions_mixes_them():
    assert audit(AlongRows(True), "decoder").ok
    report = audit(AlongRows(False), "decoder")
    assert report.checks == {"batch.mixing"}
    assert "as many rows as positions" in report.findings[0].evidence
