"""A bug beside the sound design that looks most like it: the one is named, the other is not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit
from tests.auditor.zoo import RMS, V


class Heads(nn.Module):
    """Self-attention of raw parameters, with every choice that the tests make."""

    def __init__(self, d=36, h=3, causal=True, choice=""):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, h, d, d // h) * d**-0.5)
        self.o = nn.Parameter(torch.randn(h, d // h, d) * d**-0.5)
        self.h, self.causal, self.choice = h, causal, choice
        if choice == "conv":
            self.mix = nn.Conv1d(3 * d, 3 * d, 3, groups=3 * d)
        if "table" in choice:
            self.on_keys, self.on_values = (nn.Embedding(9, d // h) for _ in range(2))

    def forward(self, x, keep=None):
        c, t = self.choice, x.shape[1]
        picks = (0, 0, 2) if c == "one weight" else (0, 1, 2)
        q, k, v = (torch.einsum("btc,hcd->bhtd", x, self.w[i]) for i in picks)
        if c == "conv":
            flat = torch.cat([z.transpose(1, 2).flatten(2) for z in (q, k, v)], -1)
            flat = self.mix(F.pad(flat.mT, (2, 0))).mT
            q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in flat.chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return torch.einsum("bhtd,hdc->btc", y, self.o)
        scale, terms = 1 / math.sqrt(q.shape[-1]), 1
        gap = (torch.arange(t)[:, None] - torch.arange(t)).clamp(-4, 4) + 4
        s = q @ k.mT
        if "table" in c:
            s = s + torch.einsum("bhid,ijd->bhij", q, self.on_keys(gap))
            terms = 2 if c == "table, shared scale" else 1
        s = s * (0.7 * scale if c == "odd scale" else scale / math.sqrt(terms))
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1) & self.causal
        s = s.masked_fill(hidden, float("-inf"))
        if keep is not None and c != "mask after":
            s = s.masked_fill(~keep.bool()[:, None, None], torch.finfo(s.dtype).min)
        w = s.softmax(-1)
        if keep is not None and c == "mask after":
            w = w * keep.to(w.dtype)[:, None, None]
        if c == "scaled after":
            w = w * scale
        y = torch.einsum("bhij,bhjd->bhid", w, v)
        if "table" in c:
            y = y + torch.einsum("bhij,ijd->bhid", w, self.on_values(gap))
        if c == "merged":
            y = torch.einsum(
                "bhij,bhjd->bhid", w, v
            )  # a second product, of which the first is none
            y = y.reshape(y.shape[0], t, self.h, -1).transpose(1, 2)
        return torch.einsum("bhtd,hdc->btc", y, self.o)


class Layer(nn.Module):
    def __init__(self, d, h, place, choice, causal):
        super().__init__()
        self.att, self.place = Heads(d, h, causal, choice), place
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.n = nn.ModuleList([RMS(d) for _ in range(4)])
        if place in ("pre", "post", "branch", "mixed"):
            self.n = self.n[:2]

    def forward(self, x, keep=None):
        n, att, ff = self.n, lambda y: self.att(y, keep), self.ff
        if self.place == "branch":
            x = x + n[0](att(x))
            return x + n[1](ff(x))
        if self.place == "sandwich":
            x = x + n[2](att(n[0](x)))
            return x + n[3](ff(n[1](x)))
        if self.place == "post":
            x = n[0](x + att(x))
            return n[1](x + ff(x))
        if self.place == "mixed":
            x = x + n[0](att(x))
            return n[1](x + ff(x))
        x = x + att(n[0](x))
        return x + ff(n[1](x))


class Model(nn.Module):
    def __init__(self, place="pre", final=True, choice="", causal=True, d=36, h=3):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(40, d)
        self.layers = nn.ModuleList([Layer(d, h, place, choice, causal) for _ in range(2)])
        self.norm, self.out = RMS(d) if final else nn.Identity(), nn.Linear(d, V)
        for table in (self.emb, self.pos, self.out):
            nn.init.normal_(table.weight, std=0.02)

    def body(self, ids, mask=None):
        x = self.emb(ids) + self.pos.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return x

    def forward(self, ids):
        return self.out(self.norm(self.body(ids)))


class Encoder(Model):
    def __init__(self, **more):
        super().__init__(causal=False, **more)

    def forward(self, ids, mask=None):
        return self.out(self.norm(self.body(ids, mask)))


def first(module, kind="decoder", **more):
    torch.manual_seed(0)
    report = audit(module() if isinstance(module, type) else module, kind, **more)
    return report.findings[0].check if report.findings else ""


# --- inside attention ---------------------------------------------------------------------------


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("choice", "check"),
    [
        ("", ""),
        ("one weight", "attention.shared_projections"),
        ("scaled after", "attention.scale"),
        ("odd scale", "attention.scale"),
        ("merged", "heads.merge"),
        ("conv", ""),  # Primer: the factor of queries that a convolution gave
        ("table", ""),  # Shaw: keys and values with a table each
        ("table, shared scale", ""),  # DeBERTa: the root of all the products' sizes
    ],
)
def test_attention_of_raw_parameters(choice, check):
    assert first(Model(choice=choice)) == check


@pytest.mark.parametrize(("choice", "check"), [("", ""), ("mask after", "mask.after_softmax")])
def test_a_padding_mask_that_acts_after_the_softmax(choice, check):
    assert first(Encoder(choice=choice), "encoder") == check


def test_heads_that_are_put_beside_each_other_need_a_projection():
    class Bundle(nn.Module):
        def __init__(self, project):
            super().__init__()
            self.heads = nn.ModuleList([Single() for _ in range(3)])
            self.o = nn.Linear(36, 36) if project else nn.Identity()

        def forward(self, x):
            return x + self.o(torch.cat([head(x) for head in self.heads], -1))

    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(36, 12) for _ in range(3))

        def forward(self, x):
            s = self.q(x) @ self.k(x).mT / 12**0.5
            return s.softmax(-1) @ self.v(x)

    only = ["attention.output_projection"]
    assert audit(Bundle(True), "attention", width=36, only=only).ok
    assert not audit(Bundle(False), "attention", width=36, only=only).ok


@pytest.mark.parametrize(
    ("stated", "check"),
    [
        ({}, "attention.scale"),
        ({"hidden_size": 12 / 0.49}, "attention.scale"),  # a size states no scale
        ({"query_pre_attn_scalar": 12 / 0.49}, ""),
        ({"attention_multiplier": 0.7 * 12**-0.5}, ""),
    ],
)
def test_a_scale_that_the_config_states(stated, check):
    model = Model(choice="odd scale")
    model.config = SimpleNamespace(**stated)
    assert first(model) == check


# --- norms and residuals ------------------------------------------------------------------------


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("place", "final", "check"),
    [
        ("pre", True, ""),
        ("post", False, ""),
        ("sandwich", True, ""),  # Gemma 2
        ("branch", True, ""),  # OLMo 2, Swin v2
        ("branch", False, "residual.after_norm"),
        ("mixed", True, "residual.after_norm"),
    ],
)
def test_norms_on_the_branch(place, final, check):
    assert first(Model(place, final)) == check


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_a_norm_inside_a_model_without_the_root(power):
    class Divided(RMS):
        def forward(self, x):
            return x / (x.pow(2).mean(-1, keepdim=True) + self.eps) ** power * self.weight

    model = Model()
    for layer in model.layers:
        layer.n = nn.ModuleList([Divided(36), Divided(36)])
    assert first(model) == ("" if power == 0.5 else "norm.variance")


# --- parameters ---------------------------------------------------------------------------------


def test_a_norm_that_is_never_applied():
    class Forgotten(Model):
        def forward(self, ids):
            return self.out(self.body(ids))

    assert first(Forgotten) == "weights.unused"


@pytest.mark.parametrize("asked", [False, True])
def test_a_part_that_an_argument_asks_for_is_used(asked):
    class Optional(Encoder):
        def __init__(self):
            super().__init__()
            self.extra = nn.Linear(36, 36)

        def forward(self, ids, mask=None, global_tokens=None):
            x = self.body(ids, mask)
            if global_tokens is not None and asked:
                x = x + self.extra(x) * global_tokens.to(x.dtype)[..., None]
            return self.out(self.norm(x))

    assert first(Optional, "encoder") == ("" if asked else "weights.unused")


def test_a_pooler_that_is_not_given_back_is_a_note():
    class Pooled(Encoder):
        def __init__(self, first_only):
            super().__init__()
            self.pooler, self.first_only = nn.Linear(36, 36), first_only

        def forward(self, ids, mask=None):
            x = self.norm(self.body(ids, mask))
            self.pooler(x[:, 0] if self.first_only else x)
            return self.out(x)

    report = audit(Pooled(True), "encoder")
    assert report.ok
    assert any("pooler" in note for note in report.notes)
    assert first(Pooled(False), "encoder") == "weights.unused"


class Routed(nn.Module):
    """One expert of several for each token; `broken` never asks the last."""

    def __init__(self, broken, d=36):
        super().__init__()
        self.router, self.broken = nn.Linear(d, 6), broken
        self.experts = nn.ModuleList([nn.Linear(d, d) for _ in range(6)])

    def forward(self, x):
        p = self.router(x)[..., : 5 if self.broken else 6].softmax(-1)
        weight, which = p.max(-1, keepdim=True)
        return sum(weight * (which == i) * e(x) for i, e in enumerate(self.experts))


@pytest.mark.parametrize("broken", [False, True])
def test_an_expert_that_nobody_chose_is_no_unused_one(broken):
    model = Model()
    for layer in model.layers:
        layer.ff = Routed(broken)
    assert first(model) == ("weights.unused" if broken else "")


def test_a_head_in_a_plain_list_is_not_saved():
    class Hidden(Model):
        def __init__(self):
            super().__init__()
            self.heads = [nn.Linear(36, V)]
            del self.out

        def forward(self, ids):
            return self.heads[0](self.norm(self.body(ids)))

    report = audit(Hidden(), "decoder")
    assert report.findings[0].check == "weights.save_load"
    assert report.findings[0].where.startswith("heads.0")


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", ["random", "saved", "waves"])
def test_a_random_table_that_is_not_saved(kind):
    class Noisy(Model):
        def __init__(self):
            super().__init__()
            waves = torch.outer(torch.arange(40.0), 10000.0 ** -(torch.arange(18.0) / 18))
            table = torch.cat([waves.sin(), waves.cos()], -1) if kind == "waves" else None
            table = torch.randn(40, 36) * 0.1 if table is None else table
            self.register_buffer("noise", table, persistent=kind == "saved")

        def forward(self, ids):
            x = self.body(ids) + self.noise[: ids.shape[1]]
            return self.out(self.norm(x))

    only = ["weights.save_load"]
    assert first(Noisy, only=only) == ("weights.save_load" if kind == "random" else "")


# --- the start of training ----------------------------------------------------------------------


def zero_outputs(model):
    """GPT-like and muP starts: output maps, the head and the queries at 0."""
    nn.init.zeros_(model.out.weight)
    for layer in model.layers:
        nn.init.zeros_(layer.att.o)
        nn.init.zeros_(layer.att.w[0])
        nn.init.zeros_(layer.ff[2].weight)


def zero_both(model):
    for layer in model.layers:
        for m in (layer.ff[0], layer.ff[2]):
            nn.init.zeros_(m.weight)
            nn.init.zeros_(m.bias)


def far_bias(model):
    for layer in model.layers:
        nn.init.constant_(layer.ff[0].bias, -10.0)


@pytest.mark.parametrize(
    ("start", "check"),
    [(zero_outputs, ""), (zero_both, "training.gradients"), (far_bias, "training.gradients")],
)
def test_what_starts_where_no_gradient_reaches_it(start, check):
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        start(model)
    assert first(model) == check


def test_gates_of_one_number_that_start_shut():
    class Gated(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.gate = inner, nn.Parameter(torch.zeros(1))

        def forward(self, *given):
            return self.gate * self.inner(*given)

    model = Model()
    for layer in model.layers:
        layer.att, layer.ff = Gated(layer.att), Gated(layer.ff)
    assert first(model) == ""


# --- the loss -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("cut", "check"), [(0, ""), (1, "loss.eos")])
def test_the_last_label_counts(cut, check):
    class Trained(Model):
        def forward(self, input_ids, labels=None):
            logits = self.out(self.norm(self.body(input_ids)))
            if labels is None:
                return {"logits": logits}
            end = labels.shape[1] - cut
            flat = logits[:, : end - 1].flatten(0, 1)
            return {"loss": F.cross_entropy(flat, labels[:, 1:end].flatten()), "logits": logits}

    assert first(Trained) == check
