"""Encoder-decoders: how they are called, and what goes wrong between the two sides."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allformer.auditor import audit
from tests.auditor.zoo import SinePE, TutorialPE, fresh_layers

V = 53


class Look(nn.Module):
    """Attention with a mask B 1 T S, True where it may look."""

    def __init__(self, d, h, low):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.h, self.low = h, low

    def forward(self, x, memory, may):
        def cut(y):
            return y.unflatten(-1, (self.h, -1)).transpose(1, 2)

        q, k, v = cut(self.q(x)), cut(self.k(memory)), cut(self.v(memory))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        low = torch.finfo(scores.dtype).min if self.low is None else self.low
        weights = scores.masked_fill(~may, low).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, d, h, cross, low):
        super().__init__()
        self.own, self.n1, self.n2 = Look(d, h, low), nn.LayerNorm(d), nn.LayerNorm(d)
        self.feed = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        if cross:
            self.over, self.n3 = Look(d, h, None), nn.LayerNorm(d)

    def forward(self, x, may, memory=None, may_over=None):
        y = self.n1(x)
        x = x + self.own(y, y, may)
        if memory is not None:
            x = x + self.over(self.n3(x), memory, may_over)
        return x + self.feed(self.n2(x))


class Pair(nn.Module):
    """transformers' arguments; `odd` is what is written differently."""

    def __init__(self, odd="", d=32, h=4, n=2):
        super().__init__()
        self.odd, self.d = odd, d
        low = {
            "infinite": -torch.inf,
            "infinite counted": -torch.inf,
            "low": -20.0,
            "lower": -4.0,
        }.get(odd)
        self.embed, self.head = nn.Embedding(V, d), nn.Linear(d, V)
        nn.init.normal_(self.embed.weight, std=d**-0.5)
        nn.init.normal_(self.head.weight, std=0.02)
        self.register_buffer("places", SinePE(d).pe[0])
        self.reads = nn.ModuleList([Layer(d, h, False, None) for _ in range(n)])
        self.writes = nn.ModuleList([Layer(d, h, True, low) for _ in range(n)])

    def start(self, ids, keep):
        where = torch.arange(ids.shape[1]).expand_as(ids)
        if self.odd in ("counted", "infinite counted"):
            where = (keep.long().cumsum(1) - 1).clamp(min=0)
        return self.embed(ids) * math.sqrt(self.d) + self.places[where]

    def forward(
        self, input_ids, attention_mask=None, decoder_input_ids=None, decoder_attention_mask=None,
        labels=None,
    ):  # fmt: skip
        odd = self.odd
        if decoder_input_ids is None:
            given = labels.clamp(min=0)
            decoder_input_ids = {"fed": given, "fed late": F.pad(given[:, :-2], (2, 0))}.get(
                odd, F.pad(given[:, :-1], (1, 0))
            )
        source, target = (
            torch.ones_like(ids).bool() if mask is None else mask.bool()
            for ids, mask in (
                (input_ids, attention_mask),
                (decoder_input_ids, decoder_attention_mask),
            )
        )
        s, t = input_ids.shape[1], decoder_input_ids.shape[1]
        keys = source[:, None, None]
        inside = {"all": torch.ones_like(keys), "rows": source[:, None, :, None]}.get(odd, keys)
        if odd == "step by step":
            inside = keys & torch.ones(s, s).bool().tril()
        memory = first = self.start(input_ids, source)
        for layer in self.reads:
            memory = layer(memory, inside)
        if odd == "raw":
            memory = first
        over = torch.ones_like(keys) if odd == "over all" else keys
        if odd in ("triangle", "step by step"):
            over = keys & torch.ones(t, s).bool().tril()
        own = target[:, None, None] & torch.ones(t, t).bool().tril(1 if odd == "ahead" else 0)
        x = self.start(decoder_input_ids, target)
        for i, layer in enumerate(self.writes):
            x = layer(x, own, None if i and odd == "once" else memory, over)
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        return {"logits": logits, "loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


@pytest.mark.every(5)
@pytest.mark.parametrize("odd", ["", "counted", "infinite", "step by step"])
def test_sound_pairs_have_no_findings(odd):
    report = audit(Pair(odd), "seq2seq")
    assert report.ok, report.text()
    if odd == "infinite":  # the textbook's mask, and targets are padded on the right
        assert any("padding on the left" in note for note in report.notes)
    if not odd:
        assert "positions count the padding" in report.not_applicable["positions.left_padding"]


@pytest.mark.every(5)
@pytest.mark.parametrize(
    ("odd", "check", "said"),
    [
        ("all", "padding.ignored", "in the encoder real positions give padding a weight"),
        ("rows", "padding.query_axis", "rows of padding are masked instead"),
        ("over all", "cross.mask", "the cross-attention gives it a weight"),
        ("triangle", "cross.mask", "source positions up to t+0 only"),
        ("raw", "cross.unread", "move with token i alone"),
        ("once", "cross.unread", "writes.1.over never ran"),
        ("fed", "loss.shift", "the answer is an input"),
        ("fed late", "loss.shift", "shifted wrongly"),
        ("infinite counted", "mask.blind_rows", "NaN"),
        ("ahead", "mask.off_by_one", "exactly one ahead"),
        ("low", "mask.finite", "hidden scores are -20"),
        ("lower", "mask.finite", "hidden scores are -4"),
    ],
)
def test_the_first_finding_names_the_bug(odd, check, said):
    report = audit(Pair(odd), "seq2seq")
    assert report.findings[0].check == check, report.text()
    assert said in report.findings[0].evidence
    others = {f.check for f in report.findings[1:]}
    assert others <= {"weights.unused", "padding.ignored"}, report.text()


# --- how they are called ------------------------------------------------------------------------------  # noqa: E501


class SequenceFirst(nn.Module):
    """torch's translation tutorial: (T, B), and every mask is an argument."""

    def __init__(self, d=32, h=4):
        super().__init__()
        self.core = fresh_layers(nn.Transformer(d, h, 2, 2, 48, 0.1))
        self.src, self.tgt = nn.Embedding(V, d), nn.Embedding(V, d)
        self.places, self.out = TutorialPE(d), nn.Linear(d, V)
        for m in self.core.modules():
            if isinstance(m, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                nn.init.zeros_(m.linear1.bias)
                nn.init.zeros_(m.linear2.bias)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask,
                memory_key_padding_mask):  # fmt: skip
        return self.out(
            self.core(
                self.places(self.src(src)), self.places(self.tgt(trg)), src_mask, tgt_mask, None,
                src_padding_mask, tgt_padding_mask, memory_key_padding_mask,
            )
        )  # fmt: skip


class Forgetful(SequenceFirst):
    """Without defaults it must be given masks; with them it makes the triangle."""

    def forward(self, src, trg, src_padding_mask=None, tgt_padding_mask=None):
        n = trg.size(0)
        triangle = torch.ones(n, n, dtype=torch.bool).triu(1)
        return super().forward(src, trg, None, triangle, src_padding_mask, tgt_padding_mask, None)


@pytest.mark.slow
def test_sequence_first_translators_are_called_right():
    report = audit(SequenceFirst(), "seq2seq")
    assert report.ok, report.text()
    assert any("(T, B)" in line for line in report.inferred)
    assert "cross.mask" in report.passed
    assert audit(Forgetful(), "seq2seq").checks == {"cross.mask"}


class Lengths(Pair):
    """forward(source, target, source lengths), as in Dive into Deep Learning."""

    def forward(self, enc_x, dec_x, enc_valid_lens=None):
        keep = torch.ones_like(enc_x)
        if enc_valid_lens is not None and self.odd != "ignored":
            keep = torch.arange(enc_x.shape[1]) < enc_valid_lens[:, None]
        return super().forward(enc_x, keep, dec_x)["logits"]


def test_lengths_are_a_mask():
    report = audit(Lengths(), "seq2seq")
    assert report.ok, report.text()
    assert "cross.mask" in report.passed
    assert {"padding.ignored", "cross.mask"} <= audit(Lengths("ignored"), "seq2seq").checks


class OwnTriangle(Pair):
    """A target's mask stands in the place of the triangle that it makes by itself."""

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        if src_mask is None:
            src_mask = torch.ones(1, 1, src.shape[1], dtype=torch.bool)
        if tgt_mask is None:
            tgt_mask = torch.ones(1, tgt.shape[1], tgt.shape[1], dtype=torch.bool).tril()
        memory, x = self.start(src, None), self.start(tgt, None)
        for layer in self.reads:
            memory = layer(memory, src_mask[:, None])
        for layer in self.writes:
            x = layer(x, tgt_mask[:, None], memory, src_mask[:, None])
        return self.head(x)


def test_a_mask_in_the_place_of_the_triangle_holds_the_triangle():
    report = audit(OwnTriangle(), "seq2seq")
    assert report.ok, report.text()
    assert any(line.startswith("src_mask: (B, 1, S)") for line in report.inferred)


class Paddings(OwnTriangle):
    """Wrong: a mask that by its name holds padding alone takes the triangle's place."""

    def forward(self, src, tgt, src_padding_mask=None, tgt_padding_mask=None):
        own = None if tgt_padding_mask is None else ~tgt_padding_mask[:, None]
        over = None if src_padding_mask is None else ~src_padding_mask[:, None]
        return super().forward(src, tgt, over, own)


def test_padding_in_the_place_of_the_triangle_is_a_leak():
    assert "mask.future_leak" in audit(Paddings(), "seq2seq").checks


class IntegerMask(Pair):
    """(1 − mask) · min, whose 1 − mask is fp32 in every precision."""

    def forward(self, input_ids, attention_mask=None, decoder_input_ids=None):
        keep = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        added = (1.0 - keep) * torch.finfo(self.head.weight.dtype).min
        return super().forward(input_ids, added == 0, decoder_input_ids)


def test_masks_made_inside_follow_the_precision_of_the_audit():
    report = audit(IntegerMask(), "seq2seq")
    assert report.ok, report.text()
    assert torch.get_default_dtype() == torch.float32


class BatchFirst(nn.Module):
    def __init__(self, forgotten, d=32, h=4):
        super().__init__()
        self.core = nn.Transformer(d, h, 2, 2, 48, 0.1, batch_first=forgotten != "both sides")
        if forgotten == "the encoder":
            layer = nn.TransformerEncoderLayer(d, h, 48, 0.1)
            self.core.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed, self.places, self.out = nn.Embedding(V, d), SinePE(d), nn.Linear(d, V)

    def forward(self, src, trg):
        source, target = self.places(self.embed(src)), self.places(self.embed(trg))
        n = target.shape[1 if self.core.batch_first else 0]
        mask = torch.ones(n, n, dtype=torch.bool).triu(1)
        return self.out(self.core(source, target, tgt_mask=mask))


@pytest.mark.every(2)
@pytest.mark.parametrize("forgotten", ["", "the encoder", "both sides"])
def test_rows_that_mix_where_batch_first_is_forgotten(forgotten):
    report = audit(BatchFirst(forgotten), "seq2seq", only=["batch.mixing"])
    assert report.checks == ({"batch.mixing"} if forgotten else set()), report.text()


# --- masks that a call function is given --------------------------------------------------------------  # noqa: E501


class Told(nn.Module):
    """A pair whose call function says how many source tokens are real."""

    def __init__(self, odd=""):
        super().__init__()
        self.pair, self.odd = Pair("over all" if odd == "over all" else ""), odd

    def forward(self, source, target, lengths):
        keep = torch.arange(source.shape[1]) < lengths[:, None]
        if self.odd == "rows":  # each row has its neighbour's length
            keep = keep.roll(1, 0)
        return SimpleNamespace(y=self.pair(source, keep, target)["logits"])


def counted(module, source, target, source_keep, keep):
    return module(source, target, source_keep.sum(1)).y


def optional(module, source, target, source_keep=None, keep=None):
    number = torch.full((len(source),), source.shape[1])
    return module(source, target, number if source_keep is None else source_keep.sum(1)).y


@pytest.mark.slow
@pytest.mark.parametrize("call", [counted, optional])
def test_a_call_function_may_count_the_mask(call):
    report = audit(Told(), "seq2seq", vocab=V, call=call)
    assert report.ok, report.text()
    assert {"padding.ignored", "cross.mask"} <= set(report.passed)
    for odd, check in (("over all", "cross.mask"), ("rows", "batch.mixing")):
        report = audit(Told(odd), "seq2seq", vocab=V, call=call)
        assert report.findings[0].check == check, report.text()


class Turned(nn.Module):
    """The source's padding is hidden from one side, and all but the padding from the other."""

    def __init__(self, wrong, d=32):
        super().__init__()
        self.wrong, self.embed, self.head = wrong, nn.Embedding(V, d), nn.Linear(d, V)
        self.register_buffer("places", SinePE(d).pe[0])
        self.inner = nn.Transformer(d, 4, 1, 1, 48, batch_first=True)
        self.more = nn.MultiheadAttention(d, 4, batch_first=True)

    def forward(self, src, tgt, src_key_padding_mask=None):
        x, y = (self.embed(ids) + self.places[: ids.shape[1]] for ids in (src, tgt))
        pads = src_key_padding_mask
        over = ~pads if self.wrong and pads is not None else pads
        later = torch.ones(len(y[0]), len(y[0]), dtype=torch.bool).triu(1)
        y = self.inner(
            x, y, tgt_mask=later, src_key_padding_mask=pads, memory_key_padding_mask=pads
        )
        return self.head(y + self.more(y, x, x, key_padding_mask=over)[0])


@pytest.mark.parametrize("wrong", [False, True])
def test_a_mask_that_is_turned_around_on_one_of_two_ways(wrong):
    torch.manual_seed(0)
    report = audit(Turned(wrong), "seq2seq", vocab=V)
    assert report.checks == ({"mask.inverted"} if wrong else set()), report.text()
    assert not wrong or "in 1 of 4 attentions" in report.findings[0].evidence


class Narrow(Pair):
    """One triangle, made for the target, cut to the source's length: it must not be longer."""

    def forward(self, src, tgt):
        n, s = tgt.shape[1], src.shape[1]
        own = torch.ones(1, 1, n, n, dtype=torch.bool).tril()
        over = own[..., :s] if self.odd == "triangle" else torch.ones_like(own)[..., :1]
        memory, x = self.start(src, None), self.start(tgt, None)
        for layer in self.reads:
            memory = layer(memory, torch.ones(1, 1, 1, s, dtype=torch.bool))
        for layer in self.writes:
            x = layer(x, own, memory, over)
        return self.head(x)


def test_a_triangle_over_a_source_that_must_not_be_longer():
    report = audit(Narrow("triangle"), "seq2seq")
    assert report.findings[0].check == "cross.mask", report.text()
    assert any("must not be longer" in line for line in report.inferred)
    assert audit(Narrow(), "seq2seq").ok


class OpenAlone(Pair):
    """Causal only if it is given a mask of the target, as when it is called with inputs."""

    def forward(
        self, input_ids, attention_mask=None, decoder_input_ids=None, decoder_attention_mask=None,
        labels=None,
    ):  # fmt: skip
        if decoder_input_ids is None:
            shift = 1 if self.odd == "" else 2
            decoder_input_ids = F.pad(labels[:, :-shift], (shift, 0))
        keep = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        n = decoder_input_ids.shape[1]
        own = torch.ones(1, 1, n, n, dtype=torch.bool)
        if decoder_attention_mask is not None:
            own = own.tril() & decoder_attention_mask.bool()[:, None, None]
        over = keep.bool()[:, None, None]
        memory, x = self.start(input_ids, None), self.start(decoder_input_ids, None)
        for layer in self.reads:
            memory = layer(memory, over)
        for layer in self.writes:
            x = layer(x, own, memory, over)
        return {"logits": self.head(x)}


def test_labels_alone_are_read_with_the_masks_of_the_target():
    assert audit(OpenAlone(), "seq2seq", only=["loss.shift"]).ok
    late = audit(OpenAlone("late"), "seq2seq", only=["loss.shift"])
    assert "shifted wrongly" in late.findings[0].evidence
