"""Bugs that a second round of models from elsewhere showed, each beside the sound model: what
distances add to scores, values repeated in another order than keys, caches behind padding, masks
that fit as many rows as heads, a layer that reads the target for the source; and two sound models
that were taken for wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit

V, D, H = 53, 32, 4
ALIBI = tuple(2.0 ** -(2 * h) for h in range(1, H + 1))


def caught(model, check, kind="decoder", **more):
    report = audit(model, kind=kind, vocab=V, only=[check], **more)
    return [f.evidence for f in report.findings]


class Attention(nn.Module):
    """Grouped keys; `bias` H T S is added to the scores; `wrong` values in another order."""

    def __init__(self, groups=H, wrong=False):
        super().__init__()
        self.q, self.o = nn.Linear(D, D), nn.Linear(D, D)
        self.k, self.v = (nn.Linear(D, groups * D // H) for _ in "kv")
        self.groups, self.wrong = groups, wrong

    def forward(self, x, open_, bias=0.0, past=None, memory=None):
        b, t, _ = x.shape
        y = x if memory is None else memory
        q = self.q(x).view(b, t, H, -1).transpose(1, 2)
        k, v = (m(y).view(b, y.shape[1], self.groups, -1).transpose(1, 2) for m in (self.k, self.v))
        if past:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        kept = (k, v)
        times = H // self.groups
        k = k.repeat_interleave(times, 1)
        v = v.repeat(1, times, 1, 1) if self.wrong else v.repeat_interleave(times, 1)
        s = q @ k.mT * (D // H) ** -0.5 + bias
        s = s.masked_fill(~open_, torch.finfo(s.dtype).min)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D)), kept


class Layer(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention, self.one, self.two = attention, nn.LayerNorm(D), nn.LayerNorm(D)
        self.feed = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x, *rest, **more):
        y, kept = self.attention(self.one(x), *rest, **more)
        x = x + y
        return x + self.feed(self.two(x)), kept


class Stack(nn.Module):
    def __init__(self, layers=2, **options):
        super().__init__()
        self.words, self.norm = nn.Embedding(V, D), nn.LayerNorm(D)
        self.layers = nn.ModuleList(Layer(Attention(**options)) for _ in range(layers))
        self.head = nn.Linear(D, V)

    def end(self, x):
        return self.head(self.norm(x))


# --- what distances add ---------------------------------------------------------------------------


class Alibi(Stack):
    def __init__(self, slopes=ALIBI, across_rows=False):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)
        self.across_rows = across_rows

    def forward(self, input_ids):
        b, t = input_ids.shape
        at = torch.arange(t)
        bias = -self.slopes[:, None, None] * (at[:, None] - at).abs()
        if self.across_rows and b == H:
            bias = bias[:, None]
        x = self.words(input_ids)
        for layer in self.layers:
            x, _ = layer(x, at[:, None] >= at, bias)
        return self.end(x)


@pytest.mark.parametrize(
    ("slopes", "says"),
    [
        (ALIBI, None),
        (tuple(0.5 * s for s in ALIBI), None),
        (tuple(-s for s in ALIBI), "the sign of ALiBi is wrong"),
        ((1.0,) * H, "all heads have the slope 1"),
        (tuple(1 / s for s in ALIBI), "at most 1"),
    ],
)
def test_the_slopes_of_alibi(slopes, says):
    found = caught(Alibi(slopes), "positions.bias")
    assert (says is None and not found) or says in found[0]


def test_a_bias_that_lies_along_the_rows_where_there_are_as_many_as_heads():
    assert not caught(Alibi(), "positions.batch_axis")
    assert caught(Alibi(across_rows=True), "positions.batch_axis")


class Buckets(Stack):
    """T5's table in an encoder."""

    def __init__(self, both):
        super().__init__()
        self.table, self.both = nn.Embedding(17, H), both

    def forward(self, input_ids):
        at = torch.arange(input_ids.shape[1])
        back = at[:, None] - at
        cell = (back if self.both else back.clamp(min=0)).clamp(-8, 8) + 8
        x = self.words(input_ids)
        for layer in self.layers:
            x, _ = layer(x, torch.ones_like(back).bool(), self.table(cell).permute(2, 0, 1))
        return self.norm(x)


@pytest.mark.parametrize("both", [True, False])
def test_a_table_for_one_side_in_an_encoder(both):
    found = caught(Buckets(both), "positions.bias", "encoder")
    assert not found if both else "all later keys have the same score" in found[0]


# --- grouped values, caches -----------------------------------------------------------------------


class Cached(Stack):
    """Positions count real tokens; `bug` acts only when there is a past."""

    def __init__(self, bug="", **options):
        super().__init__(**options)
        self.places, self.bug = nn.Embedding(40, D), bug

    def forward(self, input_ids, attention_mask=None, past_key_values=None):
        b, t = input_ids.shape
        n = past_key_values[0][0].shape[2] if past_key_values else 0
        keep = torch.ones(b, n + t) if attention_mask is None else attention_mask
        where = (keep.long().cumsum(-1) - 1).clamp(min=0)[:, -t:]
        if n and self.bug == "counts padding":
            where = torch.arange(n, n + t).expand(b, t)
        at = torch.arange(n + t)
        open_ = (at[n:, None] >= at)[None, None] & keep.bool()[:, None, None]
        if n and self.bug == "sees padding":
            open_ = (at[n:, None] >= at)[None, None]
        x, kept = self.words(input_ids) + self.places(where), []
        for i, layer in enumerate(self.layers):
            x, one = layer(x, open_, past=past_key_values[i] if past_key_values else None)
            kept.append(one)
        return SimpleNamespace(logits=self.end(x), past_key_values=tuple(kept))


@pytest.mark.parametrize("bug", ["", "sees padding", "counts padding"])
def test_padding_on_the_left_is_minded_by_later_steps_too(bug):
    found = caught(Cached(bug), "cache.mismatch")
    assert found[0].startswith("row 1 padded on the left: ") if bug else not found


@pytest.mark.parametrize("wrong", [True, False])
def test_values_repeated_in_another_order_than_keys(wrong):
    found = caught(Cached(groups=2, wrong=wrong), "attention.grouped_order")
    assert "read value heads [0, 1, 0, 1]" in found[0] if wrong else not found


# --- an encoder and a decoder ---------------------------------------------------------------------


class Both(nn.Module):
    """Padding is id 0; `mixed`: of as many rows as heads each head has the mask of one row."""

    def __init__(self, mixed=False, deaf=False):
        super().__init__()
        self.words, self.head = nn.Embedding(V, D, padding_idx=0), nn.Linear(D, V)
        self.places = nn.Embedding(40, D)
        self.reads, self.own, self.across = (
            nn.ModuleList(Layer(Attention()) for _ in range(2)) for _ in range(3)
        )
        self.mixed, self.deaf = mixed, deaf

    def forward(self, src, tgt):
        keep = (src != 0)[:, None, None]
        keep = keep.transpose(0, 1) if self.mixed and len(src) == H else keep
        memory, x = (self.words(z) + self.places(torch.arange(z.shape[1])) for z in (src, tgt))
        for layer in self.reads:
            memory, _ = layer(memory, keep)
        at = torch.arange(tgt.shape[1])
        causal = at[:, None] >= at
        for i, (own, across) in enumerate(zip(self.own, self.across, strict=True)):
            x, _ = own(x, causal)
            deaf = self.deaf and i == 1
            x, _ = across(x, causal, memory=x) if deaf else across(x, keep, memory=memory)
        return self.head(x)


@pytest.mark.parametrize("mixed", [True, False])
def test_a_mask_of_the_padding_id_that_lies_along_the_heads(mixed):
    assert bool(caught(Both(mixed), "batch.mixing", "seq2seq")) == mixed


@pytest.mark.parametrize("deaf", [True, False])
def test_a_layer_that_reads_the_target_where_the_others_read_the_source(deaf):
    found = caught(Both(deaf=deaf), "cross.unread", "seq2seq")
    assert "which stands where that one does in another layer" in found[0] if deaf else not found


# --- sound models ---------------------------------------------------------------------------------


class Unit(nn.Module):
    """Queries and keys of length √d, written as a direction times √d; `times` is the scale."""

    def __init__(self, times):
        super().__init__()
        self.qkv, self.out, self.times = nn.Linear(D, 3 * D), nn.Linear(D, D), times

    def forward(self, x):
        q, k, v = (z.unflatten(-1, (H, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        q, k = (F.normalize(z, dim=-1) * (D // H) ** 0.5 for z in (q, k))
        return self.out(((q @ k.mT * self.times).softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("times", [(D // H) ** -0.5, 1.0])
def test_a_scale_of_what_is_normalised(times):
    assert bool(caught(Unit(times), "attention.scale", "attention")) == (times == 1.0)


class Latent(nn.Module):
    """Queries and keys made in two steps: linear maps before the scores, none after."""

    def __init__(self):
        super().__init__()
        self.down, self.norm = nn.Linear(D, 20), nn.LayerNorm(20)
        self.up, self.out = nn.Linear(20, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        parts = self.up(self.norm(self.down(x))).chunk(3, -1)
        q, k, v = (z.unflatten(-1, (H, -1)).transpose(1, 2) for z in parts)
        return self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class Loose(nn.Module):
    """Lists of parts instead of blocks; `bare`: nothing goes around them."""

    def __init__(self, bare):
        super().__init__()
        self.words, self.head, self.bare = nn.Embedding(V, D), nn.Linear(D, V), bare
        self.mix, self.norms = nn.ModuleList(), nn.ModuleList()
        self.feed = nn.ModuleList()
        for _ in range(2):
            self.mix.append(Latent())
            self.norms.append(nn.LayerNorm(D))
            self.feed.append(nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D)))

    def forward(self, ids):
        x = self.words(ids)
        for norm, mix, feed in zip(self.norms, self.mix, self.feed, strict=True):
            x = mix(norm(x)) + (0 if self.bare else x)
            x = x + feed(x)
        return self.head(x)


@pytest.mark.parametrize("bare", [True, False])
def test_a_latent_attention_is_no_block_of_its_own(bare):
    assert bool(caught(Loose(bare), "residual.missing")) == bare
