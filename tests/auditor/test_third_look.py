"""What a third round of models from elsewhere showed, each bug beside the sound model: prompts read
in pieces, norms before one sub-layer and after another, sums that leave a sub-layer out, rows that
get the first row's mask, sinks nobody reads, losses that read no targets; and sound models that
were taken for wrong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit

V, D, H = 41, 24, 3


def evidence(module, check, kind="decoder", **more):
    report = audit(module, kind=kind, only=[check], **{"vocab": V} | more)
    assert check in report.checks or check in report.passed, report.not_applicable
    return [f.evidence for f in report.findings if f.check == check]


class Attention(nn.Module):
    def __init__(self, sinks=""):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.sinks = nn.Parameter(torch.zeros(H)) if sinks else None
        self.added = sinks == "read"

    def forward(self, x, open_, past=None):
        b, t, _ = x.shape
        q, k, v = (m(x).view(b, t, H, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        s = (q @ k.mT * (D // H) ** -0.5).masked_fill(~open_, torch.finfo(q.dtype).min)
        if self.added:
            s = torch.cat([s, self.sinks.view(1, H, 1, 1).expand(b, -1, t, 1)], -1)
        w = s.softmax(-1)[..., : k.shape[2]]
        return self.o((w @ v).transpose(1, 2).reshape(b, t, D)), (k, v)


class Layer(nn.Module):
    def __init__(self, form="pre", sinks=""):
        super().__init__()
        self.attention, self.form = Attention(sinks), form
        self.one, self.two, self.end = (nn.LayerNorm(D) for _ in range(3))
        self.more = nn.Linear(D, D)
        self.feed = nn.Sequential(nn.Linear(D, 48), nn.GELU(), nn.Linear(48, D))

    def forward(self, x, open_, past=None):
        form = self.form
        idle = self.one(x) if form == "idle" else None  # and nothing reads it
        before = x if form in ("post", "post, pre", "raw, both", "idle") else self.one(x)
        y, kept = self.attention(before, open_, past)
        if form == "two projections":
            y = self.more(y)
        if form == "post" or idle is not None:
            x = (self.one if idle is None else self.end)(x + y)
            return self.two(x + self.feed(x)), kept
        if form == "post, pre":
            x = self.one(x + y)
            return x + self.feed(self.two(x)), kept
        h = x + y
        if form == "pre, post":
            return self.two(h + self.feed(h)), kept
        if form == "pre, branch":
            return h + self.two(self.feed(h)), kept
        if form == "skips":
            return x + self.feed(self.two(h)), kept
        h = h + self.feed(self.two(h))
        return (self.end(h) if form in ("normed at its end", "raw, both") else h), kept


class Model(nn.Module):
    def __init__(self, form="pre", bug="", sinks=""):
        super().__init__()
        self.table, self.places = nn.Embedding(V, D), nn.Embedding(32, D)
        self.layers = nn.ModuleList(Layer(form, sinks) for _ in range(2))
        self.norm, self.head, self.bug = nn.LayerNorm(D), nn.Linear(D, V), bug
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def logits(self, ids, keep=None, cache=None):
        t, p = ids.shape[1], 0 if cache is None else cache[0][0].shape[2]
        begin = 0 if self.bug == "places begin anew" and t > 1 else p
        places = torch.arange(begin, begin + t, device=ids.device)
        x = self.table(ids) + self.places(places.flip(0) if self.bug == "from the end" else places)
        behind = {"triangle begins anew": 0, "one token at a time": p + t}.get(self.bug, p)
        shown = behind if p and t > 1 else p
        open_ = torch.ones(t, p + t, dtype=torch.bool, device=ids.device).tril(shown)
        if keep is not None:
            keep = keep[:1] if self.bug == "the first row's mask" else keep
            open_ = open_ & keep[:, None, None].bool()
        new = []
        for i, layer in enumerate(self.layers):
            x, kept = layer(x, open_, None if cache is None else cache[i])
            new.append(kept)
        return self.head(self.norm(x)), new

    def forward(self, ids):
        return self.logits(ids)[0]


class Cached(Model):
    def forward(self, ids, cache=None):
        return self.logits(ids, cache=cache)


class Masked(Model):
    def forward(self, ids, attention_mask=None):
        return self.logits(ids, attention_mask)[0]


@pytest.mark.parametrize("bug", ["", "places begin anew", "triangle begins anew"])
def test_a_prompt_read_in_pieces(bug):
    said = evidence(Cached(bug=bug), "cache.mismatch")
    assert bool(said) == bool(bug)
    assert not bug or "then 4 in one call" in said[0]


def test_a_cache_for_one_token_at_a_time_is_a_note():
    report = audit(Cached(bug="one token at a time"), kind="decoder", only=["cache.mismatch"])
    assert report.ok
    assert "one token at a time" in report.notes[0]


@pytest.mark.parametrize("bug", ["", "the first row's mask"])
def test_a_mask_of_the_first_row_for_all(bug):
    assert bool(evidence(Masked(bug=bug), "batch.mixing")) == bool(bug)


MIXED = ["pre, post", "pre, branch", "post, pre", "raw, both"]


@pytest.mark.parametrize("bug", ["", "from the end"])
def test_positions_that_follow_the_length_of_the_text(bug):
    said = evidence(Model(bug=bug), "positions.left_padding") if bug else []
    assert bool(said) == bool(bug)
    assert audit(Model(), "decoder", vocab=V, only=["positions.left_padding"]).ok


class Reads(Model):
    """An encoder that masks the padding by itself."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, ids):
        real = ids != 0
        open_ = {"": real, "inverted": ~real}.get(self.way, real)[:, None, None]
        if self.way == "along the queries":
            open_ = real[:, None, :, None].expand(-1, -1, -1, ids.shape[1])
        x = self.table(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, open_)[0]
        return self.head(self.norm(x))


@pytest.mark.parametrize(
    ("way", "check"),
    [("", None), ("inverted", "mask.inverted"), ("along the queries", "padding.query_axis")],
)
def test_a_padding_id_that_the_model_masks_by_itself(way, check):
    only = ["mask.inverted", "padding.ignored", "padding.query_axis"]
    report = audit(Reads(way), "encoder", vocab=V, only=only)
    assert report.findings[0].check == check if check else report.ok, report.text()
    assert way != "inverted" or "all 12 keys are hidden" in report.findings[0].evidence


class Given(Attention):
    """With scores and weights as two functions make them; `open_` says what should be seen."""

    def __init__(self, scores, weights=lambda w: w):
        super().__init__()
        self.scores, self.weights = scores, weights

    def forward(self, x, open_, past=None):
        b, t, _ = x.shape
        q, k, v = (m(x).view(b, t, H, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        w = self.weights(self.scores(q @ k.mT * (D // H) ** -0.5, open_).softmax(-1))
        return self.o((w @ v).transpose(1, 2).reshape(b, t, D)), None


def usual(s, open_):
    return s.masked_fill(~open_, torch.finfo(s.dtype).min)


def lifted(s, open_):
    """The mask with the wrong sign."""
    return s + 1e9 * ~open_


def lowered(s, open_):
    """Later tokens are hidden, padding is lowered by 10."""
    back = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    return s.masked_fill(~back, torch.finfo(s.dtype).min) - 10 * (~open_ & back).to(s.dtype)


def favoured(w):
    """What distances add is added to the weights."""
    far = torch.arange(w.shape[-1])[:, None] - torch.arange(w.shape[-1])
    return w - 2.0 ** -torch.arange(1, H + 1).to(w)[:, None, None] * far.abs()


@pytest.mark.parametrize(
    ("scores", "weights", "check"),
    [
        (usual, lambda w: w, None),
        (lifted, lambda w: w, "mask.inverted"),
        (lowered, lambda w: w, "mask.finite"),
        (usual, favoured, "positions.bias"),
    ],
)
def test_what_is_done_to_scores_and_weights(scores, weights, check):
    torch.manual_seed(0)
    model = Masked()
    for layer in model.layers:
        layer.attention = Given(scores, weights)
    only = ["mask.inverted", "mask.finite", "positions.bias"]
    report = audit(model, "decoder", vocab=V, only=only)
    assert report.findings[0].check == check if check else report.ok, report.text()


class Lost(Given):
    """What it read is thrown away."""

    def forward(self, x, open_, past=None):
        return 0 * super().forward(x, open_)[0], None


def test_what_an_attention_reads_and_loses_is_no_inverted_mask():
    model = Masked()
    for layer in model.layers:
        layer.attention = Lost(usual)
    assert "mask.inverted" not in audit(model, "decoder", vocab=V).checks


@pytest.mark.parametrize("form", ["pre", "post", "normed at its end", "idle", *MIXED])
def test_norms_before_one_sub_layer_and_after_another(form):
    said = evidence(Model(form), "residual.after_norm")
    assert bool(said) == (form in MIXED)
    block = audit(Layer(form), kind="block", width=D, only=["residual.after_norm"], call=alone)
    assert bool(block.findings) == (form in MIXED)


def alone(layer, x):
    return layer(x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))[0]


@pytest.mark.parametrize("form", ["pre", "post", "two projections", "skips"])
def test_a_sum_that_leaves_the_attention_out(form):
    said = evidence(Model(form), "residual.missing")
    assert bool(said) == (form == "skips")


@pytest.mark.parametrize("sinks", ["read", "idle"])
def test_attention_sinks_that_nothing_reads(sinks):
    said = evidence(Model(sinks=sinks), "weights.unused")
    idle = [line for line in said if "attention.sinks" in line]
    assert bool(idle) == (sinks == "idle")


class Flagged(Model):
    """`has_mask` says whether there is one."""

    def forward(self, ids, has_mask=True):
        return self.logits(ids)[0]


def test_a_switch_is_no_mask():
    report = audit(Flagged(), kind="decoder", vocab=V, only=["padding.ignored"])
    assert report.ok
    assert not any("has_mask:" in said for said in report.inferred)


class Learns(Model):
    def __init__(self, deaf):
        super().__init__()
        self.deaf = deaf

    def forward(self, ids, targets=None):
        logits = self.logits(ids)[0]
        wanted = ids if self.deaf else targets
        return logits, None if targets is None else F.cross_entropy(logits.mT, wanted)


@pytest.mark.parametrize("deaf", [False, True])
def test_a_loss_that_reads_no_targets(deaf):
    said = evidence(Learns(deaf), "loss.shift")
    assert bool(said) == deaf
    assert not deaf or "does not read targets" in said[0]


class Laid(Model):
    """Logits and labels that are laid out in one way, or in two."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def forward(self, ids, targets=None):
        logits = self.logits(ids)[0]
        if targets is None:
            return logits, None
        if self.way == "reshaped":
            return logits, F.cross_entropy(logits.reshape(len(ids), V, -1), targets)
        labels = targets.T if self.way == "transposed" else targets
        return logits, F.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))


@pytest.mark.parametrize(
    ("way", "words"), [("", ""), ("transposed", "laid out (T, B)"), ("reshaped", "were reshaped")]
)
def test_labels_that_lie_in_another_order_than_the_logits(way, words):
    said = evidence(Laid(way), "loss.shift")
    assert bool(said) == bool(way)
    assert not way or words in said[0]


class OwnMask(Model):
    """Its mask may be given; else it makes one."""

    def __init__(self, diagonal):
        super().__init__()
        self.diagonal = diagonal

    def forward(self, ids, mask=None):
        t = ids.shape[1]
        x = self.table(ids) + self.places.weight[:t]
        if mask is None:
            mask = torch.ones(t, t, dtype=torch.bool).tril(self.diagonal)
        for layer in self.layers:
            x = layer(x, mask)[0]
        return self.head(self.norm(x))


@pytest.mark.parametrize(("diagonal", "wrong"), [(0, False), (1, True), (32, False)])
def test_the_mask_that_is_made_where_none_is_given(diagonal, wrong):
    """One that is made wrongly is seen; where none is made, it must be given."""
    module = OwnMask(diagonal)
    assert bool(evidence(module, "mask.off_by_one")) == wrong


def taught(kind):
    def loss(logits, labels):
        end = logits.shape[1] - (2 if kind == "without the last" else 1)
        given, wanted = logits[:, :end].flatten(0, 1), labels[:, 1 : end + 1].flatten()
        log = given.softmax(-1) if kind == "not the logarithm" else given.log_softmax(-1)
        return F.nll_loss(log, wanted)

    return loss


@pytest.mark.parametrize(
    ("kind", "check"),
    [("", None), ("not the logarithm", "loss.softmax"), ("without the last", "loss.eos")],
)
def test_losses_by_themselves(kind, check):
    assert audit(taught(kind), kind="loss").checks == ({check} if check else set())


def stepping(weighed, shift):
    def step(model, micro_batches):
        lines = [(model(ids).logits, labels) for ids, labels in micro_batches]
        lines = [(a[:, :-1], b[:, 1:]) if shift else (a, b) for a, b in lines]
        count = sum(int((labels != -100).sum()) for _, labels in lines)
        for logits, labels in lines:
            loss = F.cross_entropy(logits.mT, labels, reduction="sum" if weighed else "mean")
            (loss / (count if weighed else len(lines))).backward()

    return step


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("weighed", [False, True])
def test_a_step_with_a_loss_of_its_own(weighed, shift):
    assert audit(stepping(weighed, shift), kind="step").ok == weighed
