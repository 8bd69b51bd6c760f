"""What is written out in a forward pass, without a part of its own: norms, values, losses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit
from tests.auditor.test_neighbours import first
from tests.auditor.zoo import V

# --- norms --------------------------------------------------------------------------------------

NORMS = {
    "layer": (lambda x: (x - x.mean(-1, True)) * (x.var(-1, False, True) + 1e-5).rsqrt(), ""),
    "rms": (lambda x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt(), ""),
    "beside": (lambda x: (x - x.mean(-1, True)) / (x.std(-1, False, True) + 1e-6), ""),
    "fp32": (lambda x: x * ((300 * x).float().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt(), ""),
    "unit length": (lambda x: x / x.norm(dim=-1, keepdim=True), ""),
    "largest": (lambda x: x / x.abs().amax(-1, keepdim=True), ""),
    "unbiased": (lambda x: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-2),
                 "norm.variance"),
    "no root": (lambda x: (x - x.mean(-1, True)) / (x.var(-1, False, True) + 1e-5),
                "norm.variance"),
    "rms without root": (lambda x: x / (x.pow(2).mean(-1, keepdim=True) + 1e-6), "norm.variance"),
    "large epsilon": (lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 0.1).rsqrt(),
                      "norm.epsilon"),
}  # fmt: skip


class Plain(nn.Module):
    """A decoder of raw parameters; nothing in it is a module but the embeddings."""

    def __init__(self, norm, turn="qk", d=32, h=4, layers=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(40, d)
        self.a = nn.ParameterList([torch.randn(d, 4 * d) * d**-0.5 for _ in range(layers)])
        self.b = nn.ParameterList([torch.randn(2 * d, d) * d**-0.5 for _ in range(layers)])
        self.out = nn.Parameter(torch.randn(d, V) * 0.02)
        self.norm, self.turn, self.h = norm, turn, h

    def spin(self, x, back=False):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[-2])[:, None] / 100 ** (torch.arange(half) / half)
        angle = -angle if back else angle
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def forward(self, ids):
        x = self.emb(ids)
        if not self.turn:
            x = x + self.pos.weight[: ids.shape[1]]
        d = x.shape[-1]
        for a, b in zip(self.a, self.b, strict=True):
            q, k, v, up = (self.norm(x) @ a).split(d, -1)
            q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in (q, k, v))
            q, k = (self.spin(z) if "qk" in self.turn else z for z in (q, k))
            v = self.spin(v) if "v" in self.turn else v
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = self.spin(y, back=True) if "o" in self.turn else y
            x = x + y.transpose(1, 2).flatten(2) @ b[:d]
            x = x + F.gelu(up) @ b[d:]
        return self.norm(x) @ self.out


@pytest.mark.parametrize("name", NORMS)
def test_norms_without_a_part(name):
    norm, check = NORMS[name]
    torch.manual_seed(0)
    assert first(Plain(norm, turn=""), only=("norm.axis", "norm.variance", "norm.epsilon")) == check


@pytest.mark.parametrize(("turn", "check"), [("qk", ""), ("qkv", "positions.rotary"), ("qkvo", "")])
def test_values_that_turn_with_the_position(turn, check):
    torch.manual_seed(0)
    assert first(Plain(NORMS["rms"][0], turn), only=("positions.rotary",)) == check


def test_turned_values_by_choice():
    torch.manual_seed(0)
    model = Plain(NORMS["rms"][0], "qkv")
    assert first(model, only=("positions.rotary",), profile="turned-values") == ""


# --- losses -------------------------------------------------------------------------------------


def picked(logits, labels, how):
    y = labels[:, 1:]
    keep = y != 0
    nll = -logits[:, :-1].log_softmax(-1).gather(-1, y.clamp(min=0)[..., None])[..., 0] * keep
    if how == "rows":  # each sentence its own mean
        return (nll.sum(-1) / keep.sum(-1)).mean()
    if how == "sum":
        return nll.sum()
    return nll.mean() if how == "all" else nll.sum() / keep.sum()


@pytest.mark.parametrize(
    ("how", "check"), [("kept", ""), ("rows", ""), ("sum", ""), ("all", "loss.padding")]
)
def test_a_mean_that_counts_what_it_leaves_out(how, check):
    assert first(lambda logits, labels: picked(logits, labels, how), "loss", pad=0) == check


@pytest.mark.parametrize(("counts", "check"), [(False, ""), (True, "loss.padding")])
def test_a_models_own_mean_that_counts_what_it_leaves_out(counts, check):
    class Trained(Plain):
        def forward(self, ids, labels=None):
            logits = super().forward(ids)
            if labels is None:
                return logits
            each = F.cross_entropy(logits[:, :-1].mT, labels[:, 1:], reduction="none")
            return each.sum() / (each.numel() if counts else (labels[:, 1:] >= 0).sum()), logits

    torch.manual_seed(0)
    assert first(Trained(NORMS["rms"][0]), only=("loss.padding",)) == check


# --- saving -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drawn", "check"), [(True, "weights.save_load"), (False, "")])
def test_a_row_of_drawn_numbers_that_is_not_saved(drawn, check):
    class Weighed(Plain):
        def __init__(self):
            super().__init__(NORMS["rms"][0])
            self.weigh = 0.5 + torch.rand(V) if drawn else torch.linspace(0.5, 1.5, V)

        def forward(self, ids):
            return super().forward(ids) * self.weigh.to(self.out)

    torch.manual_seed(0)
    assert first(Weighed(), only=("weights.save_load",)) == check


# --- sub-layers in one part ---------------------------------------------------------------------


class Sub(nn.Module):
    def __init__(self, d, inner, place):
        super().__init__()
        self.norm, self.inner, self.place = nn.LayerNorm(d), inner, place

    def forward(self, x):
        if self.place == "post":
            return self.norm(x + self.inner(x))
        n = self.norm(x)
        return (n if self.place == "after" else x) + self.inner(n)


class Own(nn.Module):
    def __init__(self, d, h=2):
        super().__init__()
        self.qkv, self.o, self.h = nn.Linear(d, 3 * d), nn.Linear(d, d), h

    def forward(self, x):
        q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("place", "check"), [("pre", ""), ("post", ""), ("after", "residual.after_norm")]
)
def test_sub_layers_that_no_block_holds(place, check):
    class Pairs(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(40, d)
            feed = lambda: nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))  # noqa: E731
            self.layers = nn.ModuleList(
                nn.ModuleList([Sub(d, Own(d), place), Sub(d, feed(), place)]) for _ in range(2)
            )
            self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, V)

        def forward(self, ids):
            x = self.emb(ids) + self.pos.weight[: ids.shape[1]]
            for one, two in self.layers:
                x = two(one(x))
            return self.out(self.norm(x))

    assert first(Pairs, "encoder", only=("residual.after_norm",)) == check


@pytest.mark.parametrize("around", [True, False])
def test_sub_layers_side_by_side(around):
    class Beside(Plain):
        def forward(self, ids):
            x, d = self.emb(ids) + self.pos.weight[: ids.shape[1]], self.emb.weight.shape[1]
            for a, b in zip(self.a, self.b, strict=True):
                q, k, v, up = (self.norm(x) @ a).split(d, -1)
                q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in (q, k, v))
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                y = y.transpose(1, 2).flatten(2) @ b[:d] + F.gelu(up) @ b[d:]
                x = x + y if around else y
            return self.norm(x) @ self.out

    torch.manual_seed(0)
    check = "" if around else "residual.missing"
    assert first(Beside(NORMS["rms"][0]), only=("residual.missing",)) == check


# --- norms and sub-layers in bare lists ---------------------------------------------------------

FORMS = {
    "pre": "", "post": "", "sandwich": "", "branch": "", "normed at its end": "",
    "normed before the first": "", "each normed first": "residual.after_norm",
    "attention normed first": "residual.after_norm", "feed normed first": "residual.after_norm",
    "post, pre": "residual.after_norm",
}  # fmt: skip


def join(form, x, n, att, feed):
    if form == "post":
        x = n[0](x + att(x))
        return n[1](x + feed(x))
    if form == "sandwich":
        x = x + n[2](att(n[0](x)))
        return x + n[3](feed(n[1](x)))
    if form == "branch":
        x = x + n[0](att(x))
        return x + n[1](feed(x))
    if form == "post, pre":
        x = n[0](x + att(x))
        return x + feed(n[1](x))
    if form in ("each normed first", "attention normed first"):
        x = n[0](x)
        x = x + att(x)
    else:
        x = x + att(n[0](x))
    if form in ("each normed first", "feed normed first"):
        x = n[1](x)
        return x + feed(x)
    x = x + feed(n[1](x))
    return n[2](x) if form == "normed at its end" else x


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_norms_and_sub_layers_in_bare_lists(form, nested):
    class Bare(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(40, d)
            self.first = nn.LayerNorm(d) if form == "normed before the first" else nn.Identity()
            feed = lambda: nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))  # noqa: E731
            count = {"sandwich": 4, "normed at its end": 3}.get(form, 2)
            parts = [
                [nn.ModuleList(nn.LayerNorm(d) for _ in range(count)), Own(d), feed()]
                for _ in range(2)
            ]
            lists = parts if nested else zip(*parts, strict=True)
            self.lists = nn.ModuleList(nn.ModuleList(each) for each in lists)
            self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, V)

        def forward(self, ids):
            x = self.first(self.emb(ids) + self.pos.weight[: ids.shape[1]])
            for n, att, feed in self.lists if nested else zip(*self.lists, strict=True):
                x = join(form, x, n, att, feed)
            return self.out(self.norm(x))

    told = nested or form != "each normed first"  # which could be norms after the layers before
    check = FORMS[form] if told else ""
    torch.manual_seed(0)
    assert first(Bare, "encoder", only=("residual.after_norm",)) == check


def test_the_evidence_of_a_wrong_divisor_has_its_numbers():
    torch.manual_seed(0)
    model = Plain(NORMS["unbiased"][0], turn="")
    finding = audit(model, "decoder", only=("norm.variance",)).findings[0]
    for words in ("n/(n − 1)", "n = 32", "epsilon of 0.01"):
        assert words in finding.evidence
