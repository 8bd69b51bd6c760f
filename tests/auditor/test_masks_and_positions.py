"""Masks, padding and positions: slips that show only with uneven padding, in the frequencies, in
the scores, or in a part by itself; and sound neighbours that do almost the same."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit
from allformer.auditor.evidence.sinusoid import equal_or_rising

V, D, H = 61, 48, 4


class Layer(nn.Module):
    """Pre-norm, rows and heads in one axis; the mask comes as what is blocked, (B, T, T)."""

    def __init__(self, o):
        super().__init__()
        self.o, self.n, self.m = o, nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.w = (nn.Linear(D, D) for _ in range(4))
        self.f, self.g = nn.Linear(D, 96), nn.Linear(96, D)
        self.r = nn.Linear(D, D, bias=False) if o.get("relative") else None

    def heads(self, x):
        return x.unflatten(-1, (H, -1)).transpose(1, 2)

    def turn(self, x, place):
        n, d = x.shape[-2:]
        i = torch.arange(0, d, 2)
        e = (i // d).float() if self.o.get("rotary") == "whole" else i / d
        e = e * {"halved": 0.5, "rising": -1.0}.get(self.o["rotary"], 1.0)
        along = {"heads": x.shape[1], "rows": x.shape[0]}.get(self.o["rotary"], n)
        where = place[:, None] if along == n else torch.arange(along)
        where = where / 4 if self.o["rotary"] == "stretched" else where
        a = (where.double()[..., None] * self.o.get("theta", 1e4) ** -e).to(x.dtype)
        a = {"heads": a[:, None], "rows": a[:, None, None]}.get(self.o["rotary"], a)
        c, s = a.cos(), a.sin()
        u, w = x.chunk(2, -1)
        return torch.cat([u * c - w * s, u * s + w * c], -1)

    def forward(self, x, blocked, place=None):
        b, t, _ = x.shape
        q, k, v = (self.heads(f(self.n(x))) for f in (self.q, self.k, self.v))
        if self.o.get("rotary"):
            q, k = self.turn(q, place), self.turn(k, place)
        s = q @ k.transpose(-2, -1)
        if self.r is not None:
            gaps = torch.arange(t, dtype=x.dtype)[:, None] * 100.0 ** -(torch.arange(D) / D)
            far = self.r(gaps.sin()).unflatten(-1, (H, -1)).transpose(0, 1)  # H T d, by distance
            p = q @ far.transpose(-2, -1)
            if self.o["relative"] == "right":
                i = torch.arange(t)
                p = p.gather(-1, (i[:, None] - i).clamp(min=0).expand_as(p))
            s = s + p
        if self.o.get("alibi"):  # m · j: equal, in a row, to − m · (i − j)
            bias = 2.0 ** -torch.arange(1, H + 1)[:, None, None] * torch.arange(t)
            s = s + (bias.mT if self.o["alibi"] == "queries" else bias)
        s = s / math.sqrt(t if self.o.get("scale") == "keys" else q.shape[-1])
        many = (blocked if blocked.ndim == 4 else blocked[:, None]).expand(b, H, t, t)
        if self.o.get("repeat"):
            many = blocked.repeat(H, 1, 1).view(b, H, t, t)
        if self.o.get("add"):
            s = s + self.o["add"] * many.to(x.dtype)
        else:
            s = s.masked_fill(many, self.o.get("fill", torch.finfo(x.dtype).min))
        if self.o.get("cap"):  # after the mask, which should be last
            s = 20 * torch.tanh(s / 20)
        p = s.softmax(-1)
        if self.o.get("cut"):  # masked again, and of sum 1 again
            p = p * ~many
            p = p / p.sum(-1, keepdim=True).clamp(min=1e-13)
        y = (p @ v).transpose(1, 2).flatten(2)
        x = x + self.w(y)
        return x + self.g(F.gelu(self.f(self.m(x))))


class Model(nn.Module):
    def __init__(self, **o):
        super().__init__()
        self.o = o
        self.e, self.h, self.n = nn.Embedding(V, D), nn.Linear(D, V), nn.LayerNorm(D)
        self.layers = nn.ModuleList([Layer(o) for _ in range(2)])
        half = torch.arange(0, D, 2) / D * (-1 if o.get("sign") else 1)
        a = torch.arange(80)[:, None] * 10000.0**-half
        table = torch.stack([a.sin(), a.cos()], -1).flatten(1)
        self.register_buffer("pe", table * o.get("size", 1.0))

    def run(self, ids, keep):
        b, t = ids.shape
        blocked = torch.ones(t, t, dtype=torch.bool).triu(self.o.get("diagonal", 1))
        if self.o.get("below"):
            blocked = torch.ones(t, t, dtype=torch.bool).tril()
        if self.o.get("window"):
            far = torch.arange(t)[:, None] - torch.arange(t)
            blocked = blocked | ~self.o["window"](far)
        blocked = blocked.expand(b, t, t)
        x = self.e(ids)
        place = torch.arange(t).expand(b, t)
        if keep is not None:
            counted = ~keep if self.o.get("two ways") else keep
            place = (keep.long().cumsum(1) - 1).clamp(min=0)
            if self.o.get("zeroed"):
                x = x * keep[..., None]
            elif self.o.get("heads"):  # (B, 1, T) meets (B, H, T, T) on the heads
                blocked = blocked[:1, None] | ~keep[:, None, :]
            else:
                blocked = blocked | ~counted[:, None, :]
        if self.o.get("backwards"):
            place = torch.arange(t - 1, -1, -1).expand(b, t)
        if not any(self.o.get(k) for k in ("rotary", "relative", "alibi")):
            x = x + (self.pe[place] * keep[..., None] if self.o.get("zeroed") and keep is not None
                     else self.pe[place])  # fmt: skip
        for layer in self.layers:
            x = layer(x, blocked, place)
        return self.h(self.n(x))


class Decoder(Model):
    def forward(self, ids):
        return self.run(ids, None)


class Padded(Model):
    def forward(self, ids, mask=None):
        return self.run(ids, None if mask is None else mask.bool())


MASKS = ("batch.", "mask.", "padding.", "positions.", "attention.scale")


def first(model, kind="decoder", **options):
    """The first finding about masks, positions or scale; None if there is none."""
    found = [f.check for f in audit(model, kind, **options).findings]
    return next((c for c in found if c.startswith(MASKS)), None)


@pytest.mark.every(3)
@pytest.mark.parametrize("options", [
    {}, {"rotary": "right"}, {"rotary": "right", "theta": 1e7}, {"rotary": "stretched"},
    {"rotary": "right", "theta": 100.0},  # a number that the model holds is meant
    {"relative": "right"}, {"alibi": True}, {"size": 0.05}, {"size": 7.0},
    {"window": lambda far: far < 4}, {"window": lambda far: far % 2 == 0},
    {"window": lambda far: (far == 0) | (far >= 3) & (far % 3 == 0)},
    {"fill": 0.0, "cut": True},
])  # fmt: skip
def test_sound_decoders_stay_quiet(options):
    assert first(Decoder(**options), vocab=V) is None
    assert first(Padded(**options), vocab=V) is None


@pytest.mark.every(3)
@pytest.mark.parametrize(("options", "check"), [
    ({"sign": True}, "positions.frequencies"),
    ({"rotary": "whole"}, "positions.frequencies"),
    ({"rotary": "rising"}, "positions.frequencies"),
    ({"rotary": "halved"}, "positions.frequencies"),
    ({"rotary": "halved", "theta": 5e5}, "positions.frequencies"),
    ({"rotary": "heads"}, "positions.missing"),
    ({"rotary": "rows"}, "positions.batch_axis"),
    ({"relative": "unshifted"}, "positions.rotary"),
    ({"scale": "keys"}, "attention.scale"),
    ({"fill": -10.0}, "mask.finite"),
    ({"add": -6.0}, "mask.finite"),
    ({"add": 1.0}, "mask.ambiguous"),
    ({"diagonal": 2}, "mask.off_by_one"),
    ({"below": True}, "mask.inverted"),
    ({"alibi": "queries"}, "positions.missing"),
    ({"size": 0.05, "sign": True}, "positions.frequencies"),
    ({"window": lambda far: (far == 0) | (far >= 4)}, "mask.inverted"),
    ({"window": lambda far: far >= 4}, "mask.inverted"),
    ({"fill": 0.0}, "mask.finite"),
    ({"fill": 1e-9}, "mask.finite"),
    ({"fill": 0.0, "window": lambda far: far < 4}, "mask.finite"),
    ({"cap": True}, "mask.finite"),
])  # fmt: skip
def test_decoders(options, check):
    assert first(Decoder(**options), vocab=V) == check


@pytest.mark.parametrize("base", [1e4, 5e5])
@pytest.mark.parametrize("sign", [1, -1])
def test_frequencies_that_rise_in_small_heads(base, sign):
    turn = torch.arange(12.0)[:, None] * base ** (sign * torch.arange(4).double() / 4)
    assert bool(equal_or_rising(torch.cat([turn.cos(), turn.sin()], -1))) == (sign > 0)


def test_halved_exponents_by_choice():
    model = Decoder(rotary="halved")
    assert first(model, vocab=V, profile="other-base") is None


@pytest.mark.parametrize(("options", "check"), [
    ({"repeat": True}, "batch.mixing"),
    ({"heads": True}, "batch.mixing"),
    ({"zeroed": True}, "padding.ignored"),
    ({"two ways": True}, "mask.inverted"),
    ({"backwards": True}, "positions.left_padding"),
])  # fmt: skip
def test_padding_in_decoders(options, check):
    assert first(Padded(**options), vocab=V) == check


class Encoder(nn.Module):
    """The same without a causal mask."""

    def __init__(self):
        super().__init__()
        self.e, self.p, self.h = nn.Embedding(V, D), nn.Embedding(40, D), nn.Linear(D, V)
        self.layer = Layer({})

    def forward(self, ids, mask):
        n = ids.shape[1]
        keep = torch.ones_like(ids) if mask is None else mask
        hidden = (keep == 0)[:, None].expand(-1, n, n)
        return self.h(self.layer(self.e(ids) + self.p.weight[:n], hidden))


# --- parts by themselves --------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, wrong=""):
        super().__init__()
        self.wrong, self.inner = wrong, nn.MultiheadAttention(24, 3, batch_first=True)

    def forward(self, x, padding_mask=None):
        n = x.shape[1]
        blocked = torch.ones(n, n, dtype=torch.bool).triu(1) if "causal" in self.wrong else None
        if self.wrong == "causal 01":
            blocked = blocked.to(x.dtype)
        if padding_mask is not None and self.wrong == "01":
            padding_mask = padding_mask.to(x.dtype)
        return self.inner(x, x, x, attn_mask=blocked, key_padding_mask=padding_mask)[0]


@pytest.mark.parametrize(("wrong", "check"), [
    ("", None), ("01", "mask.ambiguous"), ("causal 01", "mask.ambiguous"),
])  # fmt: skip
def test_masks_of_0_and_1_that_are_added(wrong, check):
    assert first(Attention(wrong), "attention") == check


def test_padding_the_wrong_way_round_in_a_call():
    def right(module, x, keep):
        return module(x, ~keep)

    def wrong(module, x, keep):
        return module(x, keep)

    assert first(Attention(), "attention", width=24, call=right) is None
    assert first(Attention(), "attention", width=24, call=wrong) == "mask.inverted"


class Grouped(nn.Module):
    """Loud weights by shape (C, G, d); the query heads of a key head are one matmul's rows."""

    def __init__(self, mask):
        super().__init__()
        self.mask, self.q = mask, nn.Parameter(torch.randn(24, 2, 3, 8) / 5)
        self.kv = nn.Parameter(torch.randn(2, 24, 2, 8) / 5)
        self.w = nn.Parameter(torch.randn(2, 3, 8, 24) / 7)

    def forward(self, x):
        q, n = torch.einsum("btc,cghd->bghtd", x, self.q), x.shape[1]
        k, v = (torch.einsum("btc,cgd->bgtd", x, w) for w in self.kv)
        s = torch.einsum("bghtd,bgsd->bghts", q, k) / math.sqrt(8)
        far = torch.arange(n)[:, None] - torch.arange(n)
        p = s.masked_fill(~self.mask(far), -math.inf).softmax(-1)
        return torch.einsum("bghts,bgsd,ghdc->btc", p, v, self.w)


@pytest.mark.parametrize(("mask", "check"), [
    (lambda far: far >= 0, None),
    (lambda far: far >= -1, "mask.off_by_one"),
    (lambda far: far <= 0, "mask.inverted"),
    (lambda far: far.abs() < 3, None),
    (lambda far: (far == 0) | (far >= 3), "mask.inverted"),
])  # fmt: skip
def test_masks_inside_an_attention_of_large_scores(mask, check):
    assert first(Grouped(mask), "attention", width=24) == check


class Cross(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.wrong, self.inner = wrong, nn.MultiheadAttention(24, 3, batch_first=True)

    def forward(self, x, context):
        return self.inner(x, x if self.wrong else context, x if self.wrong else context)[0]


def test_a_context_that_is_not_read():
    assert audit(Cross(), "attention").ok
    assert audit(Cross(True), "attention").checks == {"cross.unread"}


class MaskedCross(Cross):
    def forward(self, x, context, context_mask=None):
        given = x if self.wrong else context
        return self.inner(x, given, given, key_padding_mask=context_mask)[0]


def test_an_unread_context_comes_before_its_mask():
    assert audit(MaskedCross(), "attention").ok
    assert audit(MaskedCross(True), "attention").findings[0].check == "cross.unread"


class After(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.wrong, self.qkv, self.w = wrong, nn.Linear(24, 72), nn.Linear(24, 24)

    def forward(self, x, mask=None):
        q, k, v = (z.unflatten(-1, (3, 8)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / math.sqrt(8)
        keep = torch.ones(x.shape[:2]).bool() if mask is None else mask.bool()
        keep = keep[:, None, None]
        low = torch.finfo(s.dtype).min
        p = s.softmax(-1) * keep if self.wrong else s.masked_fill(~keep, low).softmax(-1)
        return self.w((p @ v).transpose(1, 2).flatten(2))


def test_padding_that_is_cut_after_the_softmax():
    assert first(After(), "attention") is None
    assert first(After(True), "attention") == "mask.after_softmax"


def joined(how):
    def make(ids):
        keep, n = ids != 0, ids.shape[1]
        lower = torch.ones(n, n, dtype=torch.bool).tril()
        if how == "or":
            return keep[:, None, None] | lower
        return (keep[:, None, :, None] if how == "query" else keep[:, None, None]) & lower

    return make


@pytest.mark.parametrize(("how", "check"), [
    ("and", None), ("or", "mask.future_leak"), ("query", "padding.query_axis"),
])  # fmt: skip
def test_masks_made_from_ids(how, check):
    assert audit(joined(how), "mask", pad=0).checks == ({check} if check else set())


def test_additive_masks_have_one_reading():
    lower = torch.ones(6, 6).tril(-1).bool()
    hidden = torch.zeros(6, 6).masked_fill(lower, -math.inf)
    assert audit(hidden, "mask").checks == {"mask.inverted"}
    assert audit(torch.zeros(6, 6).masked_fill(lower.T, -math.inf), "mask").ok
    assert audit((1 - torch.ones(6, 6).tril()) * -math.inf, "mask").checks == {"mask.blind_rows"}


class Rotation(nn.Module):
    def __init__(self, wrong=""):
        super().__init__()
        e = torch.arange(0, 16, 2) // 16 if wrong == "whole" else torch.arange(0, 16, 2) / 16
        a = torch.arange(64)[:, None] * 10000.0**-e
        if wrong == "plain":
            self.c, self.s = a.cos(), a.sin()
        else:
            self.register_buffer("c", a.cos())
            self.register_buffer("s", a.sin())

    def forward(self, x):
        c, s = self.c[: x.shape[-2]], self.s[: x.shape[-2]]
        u, w = x[..., ::2], x[..., 1::2]
        return torch.stack([u * c - w * s, u * s + w * c], -1).flatten(-2)


@pytest.mark.parametrize(("wrong", "check"), [
    ("", None), ("whole", "positions.frequencies"), ("plain", "positions.buffer"),
])  # fmt: skip
def test_rotations(wrong, check):
    assert audit(Rotation(wrong), "positions").checks == ({check} if check else set())


class Waves(nn.Module):
    """Sines, then cosines, without a table."""

    def __init__(self, power=-1.0):
        super().__init__()
        self.register_buffer("speed", 10000.0 ** (power * torch.arange(0, 36, 2) / 36))

    def forward(self, x):
        a = torch.arange(x.shape[1])[:, None] * self.speed
        return x + torch.cat([a.sin(), a.cos()], -1).to(x.dtype)


def test_sinusoids_in_halves_without_a_table():
    assert audit(Waves(), "positions").ok
    assert audit(Waves(1.0), "positions").checks == {"positions.frequencies"}


# --- no false alarms ------------------------------------------------------------------------------


class Discriminator(nn.Module):
    """One number for each token; its loss leaves padding out by the mask."""

    def __init__(self, counts=False):
        super().__init__()
        self.counts, self.inner = counts, Encoder()
        self.out = nn.Linear(V, 1)

    def forward(self, input_ids, attention_mask=None, labels=None):
        x = self.out(self.inner(input_ids, attention_mask)).squeeze(-1)
        if labels is None:
            return x
        loss = F.binary_cross_entropy_with_logits(x, labels.to(x.dtype), reduction="none")
        if attention_mask is not None and not self.counts:
            loss = loss * attention_mask
        return loss.mean(), x


def test_one_number_for_each_token():
    sound = audit(Discriminator(), "encoder", vocab=V)
    assert not sound.checks & {"padding.ignored", "loss.padding", "batch.mixing"}, sound.text()
    assert "loss.padding" in audit(Discriminator(True), "encoder", vocab=V).checks


class SingleSoftmax(Padded):
    """The softmax is always in fp32: fp64's lowest number is −inf there."""

    def __init__(self, value=None):
        super().__init__()
        self.value = value
        for layer in self.layers:
            layer.forward = lambda x, blocked, _, layer=layer: self.step(layer, x, blocked)

    def step(self, layer, x, blocked):
        q, k, v = (layer.heads(f(layer.n(x))) for f in (layer.q, layer.k, layer.v))
        low = torch.finfo(x.dtype).min if self.value is None else self.value
        s = (q @ k.mT / math.sqrt(D // H)).masked_fill(blocked[:, None], low)
        y = (s.softmax(-1, dtype=torch.float32).to(x.dtype) @ v).transpose(1, 2).flatten(2)
        x = x + layer.w(y)
        return x + layer.g(F.gelu(layer.f(layer.m(x))))


@pytest.mark.parametrize(("value", "check"), [(None, None), (-math.inf, "mask.blind_rows")])
def test_blind_rows_are_judged_in_the_modules_own_dtype(value, check):
    report = audit(SingleSoftmax(value), "decoder", vocab=V, only=["mask.blind_rows"])
    assert report.checks == ({check} if check else set()), report.text()
