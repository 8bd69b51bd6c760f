"""Bugs that were missed on models from elsewhere, each in several styles of code, and the sound
model beside it: encoders that are causal, decoders of which one layer leaks, rotary positions that
count padding, sinusoids of another base, a padding id that is none."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit
from allformer.errors import AuditError

V, D, H = 53, 32, 4
STYLES = ("mha", "hand", "einsum", "sdpa")


def turn(x, where):
    """Rotary positions on B H T d, pairs (i, i + d/2); where B T."""
    half = x.shape[-1] // 2
    a = where[:, None, :, None].to(x) * 10000 ** -(torch.arange(half).to(x) / half)
    u, w = x.chunk(2, -1)
    return torch.cat([u * a.cos() - w * a.sin(), u * a.sin() + w * a.cos()], -1)


class Heads(nn.Module):
    """Multi-head attention in one of four styles; `open_` B or 1, T, T: True = may be seen."""

    def __init__(self, style):
        super().__init__()
        self.style = style
        if style == "mha":
            self.inner = nn.MultiheadAttention(D, H, batch_first=True)
        elif style == "einsum":
            self.w = nn.ParameterList([nn.Parameter(torch.randn(D, D) * D**-0.5) for _ in "qkvo"])
        else:
            self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, open_, where=None):
        b, t, _ = x.shape
        if self.style == "mha":
            blocked = ~open_.expand(b, t, t).repeat_interleave(H, 0)
            return self.inner(x, x, x, attn_mask=blocked, need_weights=False)[0]
        if self.style == "einsum":
            q, k, v = (torch.einsum("btc,cd->btd", x, w) for w in self.w[:3])
        else:
            q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (z.view(b, t, H, -1).transpose(1, 2) for z in (q, k, v))
        if where is not None:
            q, k = turn(q, where), turn(k, where)
        if self.style == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=open_[:, None])
        elif self.style == "einsum":
            s = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(D // H)
            s = s.masked_fill(~open_[:, None], torch.finfo(s.dtype).min)
            y = torch.einsum("bhts,bhsd->bhtd", s.softmax(-1), v)
        else:
            s = (q @ k.transpose(-2, -1)) / math.sqrt(D // H)
            y = s.masked_fill(~open_[:, None], torch.finfo(s.dtype).min).softmax(-1) @ v
        y = y.transpose(1, 2).reshape(b, t, D)
        return torch.einsum("btc,cd->btd", y, self.w[3]) if self.style == "einsum" else self.out(y)


class Layer(nn.Module):
    """Pre-norm; `causal` says whether this layer hides what is later."""

    def __init__(self, style, causal):
        super().__init__()
        self.causal, self.attend = causal, Heads(style)
        self.n, self.m = nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x, keep, where=None):
        t = x.shape[1]
        open_ = torch.ones(1, t, t, dtype=torch.bool)
        if self.causal:
            open_ = open_.tril()
        if keep is not None:
            open_ = open_ & keep[:, None, :] | torch.eye(t, dtype=torch.bool)
        x = x + self.attend(self.n(x), open_, where)
        return x + self.ff(self.m(x))


class Stack(nn.Module):
    """Tokens, positions, layers; `rotary` is "" or "real" (counts real tokens) or "all"."""

    def __init__(self, style="hand", causal=(False, False), rotary="", base=0.0, heads="tokens"):
        super().__init__()
        self.emb, self.rotary, self.heads = nn.Embedding(V, D), rotary, heads
        self.layers = nn.ModuleList([Layer(style, c) for c in causal])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)
        self.pos = nn.Embedding(64, D) if not rotary and not base else None
        if base:
            angle = torch.arange(256.0)[:, None] / base ** (torch.arange(0, D, 2) / D)
            self.register_buffer("pe", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))

    def hidden(self, ids, keep):
        where = torch.arange(ids.shape[1]).expand(ids.shape)
        if self.rotary == "real" and keep is not None:
            where = (keep.long().cumsum(-1) - 1).clamp(min=0)
        x = self.emb(ids)
        if self.pos is not None:
            x = x + self.pos(where)
        elif not self.rotary:
            x = x + self.pe[where].to(x)
        for layer in self.layers:
            x = layer(x, keep, where if self.rotary else None)
        return self.norm(x)


class Masked(Stack):
    """forward(ids, attention_mask): an encoder, or a decoder that takes a padding mask."""

    def forward(self, ids, attention_mask=None):
        x = self.hidden(ids, None if attention_mask is None else attention_mask.bool())
        if self.heads == "tokens":
            return self.head(x)
        return self.head(x[:, -1] if self.heads == "last" else x.mean(1))


class Trained(Stack):
    """forward(idx, targets=None) → logits, loss."""

    def forward(self, idx, targets=None):
        logits = self.head(self.hidden(idx, None))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Translator(nn.Module):
    """forward(src, tgt, src_mask) with an encoder whose layers may be causal."""

    def __init__(self, causal=False):
        super().__init__()
        self.emb, self.pos, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.encoder = nn.ModuleList([Layer("sdpa", causal) for _ in range(2)])
        layer = nn.TransformerDecoderLayer(D, H, 64, 0.0, batch_first=True)
        self.decoder = nn.ModuleList(
            [layer, nn.TransformerDecoderLayer(D, H, 64, 0.0, batch_first=True)]
        )

    def place(self, ids):
        return self.emb(ids) + self.pos(torch.arange(ids.shape[1]))

    def forward(self, src, tgt, src_mask=None):
        memory = self.place(src)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        x, t = self.place(tgt), tgt.shape[1]
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        blocked = None if src_mask is None else ~src_mask
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=later, memory_key_padding_mask=blocked)
        return self.head(x)


def built(kind, **options):
    torch.manual_seed(0)
    return kind(**options)


# --- an encoder that is causal -------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("causal", [(True, True), (False, True)])
def test_a_causal_encoder_is_named(style, causal):
    report = audit(built(Masked, style=style, causal=causal), "encoder", vocab=V)
    assert report.checks == {"mask.causal"}, report.text()
    assert f"{sum(causal)} of 2" in report.findings[0].evidence


@pytest.mark.every(3)
@pytest.mark.parametrize("style", STYLES)
def test_an_encoder_that_sees_both_sides_is_clean(style):
    assert audit(built(Masked, style=style), "encoder", vocab=V).ok


def test_torch_encoder_layers_with_a_causal_mask_are_named():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.pos = nn.Embedding(V, D), nn.Embedding(64, D)
            layer = nn.TransformerEncoderLayer(D, H, 64, 0.0, batch_first=True)
            self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            for p in self.enc.parameters():
                if p.ndim > 1:
                    nn.init.xavier_uniform_(p)

        def forward(self, tokens):
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            x = self.emb(tokens) + self.pos(torch.arange(tokens.shape[1]))
            return self.enc(x, mask=mask.to(x), is_causal=True)

    torch.manual_seed(0)
    assert audit(Wrapped(), "encoder", vocab=V).checks == {"mask.causal"}


def test_a_causal_classifier_is_named_and_a_decoder_that_pools_its_end_is_not():
    mean = built(Masked, causal=(True, True), heads="mean")
    assert "mask.causal" in audit(mean, "encoder", vocab=V).checks
    last = built(Masked, causal=(True, True), heads="last")
    report = audit(last, vocab=V)
    assert report.kind == "decoder"
    assert "mask.causal" not in report.checks


def test_a_causal_encoder_of_a_translator_is_named():
    assert audit(built(Translator, causal=True), "seq2seq", vocab=V).checks == {"mask.causal"}
    assert audit(built(Translator), "seq2seq", vocab=V).ok


@pytest.mark.parametrize(
    ("off", "check"), [(torch.triu, "mask.inverted"), (lambda m: m.tril(1), "mask.off_by_one")]
)
def test_an_encoder_with_a_triangle_of_another_kind_is_named(off, check):
    class Cut(Heads):
        def forward(self, x, open_, where=None):
            return super().forward(x, off(open_), where)

    model = built(Masked)
    for layer in model.layers:
        layer.attend.__class__ = Cut
    assert check in audit(model, "encoder", vocab=V).checks


def test_a_streaming_encoder_is_a_profile():
    model = built(Masked, causal=(True, True))
    assert audit(model, "encoder", vocab=V, profile="streaming").ok


# --- mixed evidence ------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("causal", [(True, True, False), (False, True, True)])
def test_without_a_kind_some_causal_layers_mean_a_decoder_that_leaks(style, causal):
    report = audit(built(Trained, style=style, causal=causal))
    assert report.kind == "decoder"
    assert "mask.future_leak" in report.checks, report.text()
    assert any("mixed: 2 of 3 self-attentions" in line for line in report.inferred)


@pytest.mark.parametrize("causal", [(True, True, True), (False, False, False)])
def test_without_a_kind_layers_that_agree_are_believed(causal):
    report = audit(built(Trained, causal=causal))
    assert report.kind == ("decoder" if all(causal) else "encoder")
    assert report.ok, report.text()
    assert not any("mixed" in line for line in report.inferred)


# --- rotary positions under left padding ---------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("style", ["hand", "einsum", "sdpa"])
def test_rotary_positions_that_count_padding_are_named(style):
    wrong = built(Masked, style=style, causal=(True, True), rotary="all")
    report = audit(wrong, "decoder", vocab=V)
    assert report.checks == {"positions.left_padding"}, report.text()
    assert "3" in report.findings[0].evidence
    right = built(Masked, style=style, causal=(True, True), rotary="real")
    assert audit(right, "decoder", vocab=V).ok
    assert audit(wrong, "decoder", vocab=V, profile="right-padding").ok


def test_complex_rotary_that_counts_padding_is_named():
    class Complex(Masked):
        def hidden(self, ids, keep):
            t = ids.shape[1]
            x = self.emb(ids)
            step = 10000.0 ** -(torch.arange(0, D // H, 2) / (D // H))
            angle = torch.polar(torch.ones(t, D // H // 2), torch.outer(torch.arange(t), step))
            for layer in self.layers:
                open_ = torch.ones(1, t, t, dtype=torch.bool).tril()
                if keep is not None:
                    open_ = open_ & keep[:, None] | torch.eye(t, dtype=torch.bool)
                q, k, v = layer.attend.qkv(layer.n(x)).view(*x.shape[:2], 3, H, -1).unbind(2)
                q, k = (
                    torch.view_as_real(
                        torch.view_as_complex(z.unflatten(-1, (-1, 2))) * angle[:, None]
                    ).flatten(-2)
                    for z in (q, k)
                )
                y = F.scaled_dot_product_attention(
                    *(z.transpose(1, 2) for z in (q, k, v)), attn_mask=open_[:, None]
                )
                x = x + layer.attend.out(y.transpose(1, 2).flatten(2))
                x = x + layer.ff(layer.m(x))
            return self.norm(x)

    model = built(Complex, style="sdpa", causal=(True, True), rotary="all")
    assert audit(model, "decoder", vocab=V).checks == {"positions.left_padding"}


# --- sinusoids of another base -------------------------------------------------------------------


@pytest.mark.every(4)
@pytest.mark.parametrize("base", [20.0, 1e3, 5e3])
def test_sinusoids_of_a_small_base_are_named_with_their_reach(base):
    report = audit(built(Masked, base=base), "encoder", vocab=V)
    assert report.checks == {"positions.frequencies"}, report.text()
    assert f"{base:,.0f}" in report.findings[0].evidence


def test_sinusoids_of_base_1000_say_how_far_they_reach_and_may_be_meant():
    model = built(Masked, base=1e3)
    said = audit(model, "encoder", vocab=V).findings[0].evidence
    assert "256 positions" in said
    report = audit(model, "encoder", vocab=V, profile="other-base")
    assert report.ok
    assert any("1,000" in note for note in report.notes)


@pytest.mark.every(4)
@pytest.mark.parametrize("base", [2e4, 1e5, 5e5])
def test_sinusoids_of_a_large_base_are_a_note(base):
    report = audit(built(Masked, base=base), "encoder", vocab=V)
    assert report.ok, report.text()
    assert any(f"{base:,.0f}" in note for note in report.notes), report.notes


def test_sinusoids_of_base_10000_need_no_word():
    report = audit(built(Masked, base=1e4), "encoder", vocab=V)
    assert report.ok
    assert not any("base" in note for note in report.notes)


def test_a_table_by_itself_is_judged_by_its_base_too():
    def table(base):
        angle = torch.arange(64.0)[:, None] / base ** (torch.arange(0, D, 2) / D)
        wave = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        return lambda x: x + wave[: x.shape[1]]

    assert audit(table(1e3), "positions").checks == {"positions.frequencies"}
    assert audit(table(1e4), "positions").ok
    assert any("100,000" in note for note in audit(table(1e5), "positions").notes)


# --- ids that are none ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pad", "eos"])
@pytest.mark.parametrize("value", [9999, V, -7])
def test_an_id_outside_the_vocabulary_is_an_error_not_a_finding(name, value):
    with pytest.raises(AuditError, match=f"{name}={value} .* {V}"):
        audit(built(Trained, causal=(True, True)), "decoder", **{name: value})
