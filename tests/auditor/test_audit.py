"""The report, the user's module left alone, odd modules, the mask doctor, the other kinds."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import allformer as af
from allformer.auditor import Report, assert_sound, audit, consistency, mask
from allformer.auditor.lab import build
from allformer.errors import AuditError
from tests.auditor.zoo import RMS, MetaLlama, MhaEncoder, NanoGPT, SinePE

# --- the report -------------------------------------------------------------------------------------  # noqa: E501


def leaky():
    return build("decoder", "no_mask", width=24, heads=3, layers=1, vocab=31)


def test_a_report_goes_to_text_json_junit_and_markdown():
    report = af.audit(leaky(), kind="decoder", vocab=31)
    assert not report.ok
    finding = next(f for f in report.findings if f.check == "mask.future_leak")
    assert finding.severity == "error"
    assert finding.why
    assert finding.mend
    assert finding.link.startswith("https://")
    assert "moves the output" in report.text()
    again = Report.from_json(report.to_json())
    assert again.findings == report.findings
    assert json.loads(report.to_json())["ok"] is False
    suite = ElementTree.fromstring(report.to_junit())
    assert len(suite.findall("testcase/failure")) == len(report.findings)
    assert len(suite.findall("testcase/skipped")) == len(report.not_applicable)
    assert "mask.future_leak" in report.to_markdown()
    assert all(report.not_applicable.values())


def test_findings_speak_chinese():
    report = audit(leaky(), "decoder", vocab=31, lang="zh", only=["mask.future_leak"])
    assert report.findings[0].title == "位置看到了未来"
    assert "证据" in report.text()


def test_assert_sound_names_the_finding():
    with pytest.raises(AssertionError, match=r"mask\.future_leak"):
        assert_sound(leaky(), "decoder", vocab=31, only=["mask.future_leak"])


# --- the user's things are left alone ----------------------------------------------------------------  # noqa: E501


def test_the_module_the_mode_and_the_random_state_stay():
    model = NanoGPT(p=0.1).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    audit(model, "decoder")
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert all(p.grad is None for p in model.parameters())
    assert not model._forward_hooks
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


class Rude(nn.Module):
    """Prints, and changes global state."""

    def __init__(self):
        super().__init__()
        self.inner = NanoGPT()

    def forward(self, idx, targets=None):
        print("here I am")
        torch.manual_seed(7)
        torch.set_default_dtype(torch.float64)
        return self.inner(idx, targets)


def test_a_module_that_prints_and_changes_global_state(capsys):
    report = audit(Rude(), "decoder", only=["mask.future_leak"])
    assert capsys.readouterr().out == ""
    assert any("printed" in note for note in report.notes)
    assert torch.get_default_dtype() == torch.float32


class Strange(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(5, 5)

    def forward(self, *, graph, edges):
        return self.w(graph) @ edges


def test_an_unknown_signature_is_said_with_a_way_out():
    with pytest.raises(AuditError, match="call="):
        audit(Strange(), "encoder")


def test_wrapped_modules_are_audited_inside():
    for wrapped in (torch.compile(NanoGPT()), nn.DataParallel(NanoGPT())):
        assert audit(wrapped, "decoder", only=["mask.future_leak"]).subject == "NanoGPT"


def test_a_module_that_gives_no_numbers_has_the_one_finding():
    class Broken(MhaEncoder):
        def forward(self, ids):
            return super().forward(ids) * float("nan")

    report = audit(Broken(), "encoder")
    assert [f.check for f in report.findings] == ["training.nan"]
    assert "NaN" in report.findings[0].evidence


def test_an_unknown_kind_or_profile_lists_the_choices():
    with pytest.raises(AuditError, match="seq2seq"):
        audit(NanoGPT(), "transformer")
    with pytest.raises(AuditError, match="shared-layers"):
        audit(NanoGPT(), "decoder", profile="odd")


def test_a_call_function_says_how():
    class Odd(nn.Module):
        def __init__(self, causal):
            super().__init__()
            self.inner = NanoGPT() if causal else MhaEncoder()

        def forward(self, batch):
            out = (
                self.inner(batch["x"], batch["x"])
                if isinstance(self.inner, NanoGPT)
                else self.inner(batch["x"])
            )
            return {"answer": out}

    def call(module, ids):
        return module({"x": ids})["answer"]

    assert audit(Odd(True), "decoder", vocab=53, call=call).ok
    report = audit(Odd(False), "decoder", vocab=53, call=call)
    assert "mask.future_leak" in report.checks


def test_a_builder_is_checked_between_two_builds():
    class Loose(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.table = MhaEncoder(), torch.randn(53, 53)

        def forward(self, ids):
            return self.inner(ids) @ self.table.to(self.inner.head.weight)

    report = audit(Loose, "encoder", only=["weights.save_load"])
    assert report.checks == {"weights.save_load"}


# --- other kinds --------------------------------------------------------------------------------------  # noqa: E501


class Norm(nn.Module):
    def __init__(self, wrong=""):
        super().__init__()
        self.a, self.b, self.wrong = (
            nn.Parameter(torch.ones(16)),
            nn.Parameter(torch.zeros(16)),
            wrong,
        )

    def forward(self, x):
        axis = 1 if self.wrong == "axis" else -1
        mean = x.mean(axis, keepdim=True)
        if self.wrong == "std":
            return self.a * (x - mean) / (x.std(axis, keepdim=True, unbiased=False) + 1e-3) + self.b
        variance = x.var(axis, keepdim=True, unbiased=self.wrong == "unbiased")
        eps = {"eps": 0.05, "none": 0.0}.get(self.wrong, 1e-5)
        return self.a * (x - mean) / (variance + eps).sqrt() + self.b


@pytest.mark.parametrize(
    ("wrong", "check"),
    [("", None), ("axis", "norm.axis"), ("unbiased", "norm.variance"), ("eps", "norm.epsilon"),
     ("std", "norm.epsilon"), ("none", "norm.epsilon")],
)  # fmt: skip
def test_norms(wrong, check):
    report = audit(Norm(wrong), "norm")
    assert report.checks == ({check} if check else set()), report.text()


def test_rms_norm_is_a_norm():
    assert audit(RMS(20), "norm").ok


class Table(nn.Module):
    def __init__(self, wrong=""):
        super().__init__()
        self.inner, self.wrong = SinePE(24), wrong
        if wrong == "buffer":
            self.pe = self.inner.pe.clone()

    def forward(self, x):
        if self.wrong == "buffer":
            return x + self.pe[:, : x.size(1)]
        if self.wrong == "batch":
            return x + self.inner.pe[0, : x.size(0), None]
        if self.wrong == "same":
            return x + self.inner.pe[:, :1]
        return self.inner(x)


@pytest.mark.parametrize(
    ("wrong", "check"),
    [("", None), ("buffer", "positions.buffer"), ("batch", "positions.batch_axis"),
     ("same", "positions.missing")],
)  # fmt: skip
def test_positions(wrong, check):
    report = audit(Table(wrong), "positions")
    assert report.checks == ({check} if check else set()), report.text()


def rotary(wrong):
    def forward(q, k):
        def turn(x, sign=1.0):
            n, d = x.shape[-2:]
            angle = torch.arange(n)[:, None] * 10000.0 ** -(torch.arange(d // 2) / (d // 2)) * sign
            angle = (
                angle.repeat_interleave(2, -1)
                if wrong == "layout"
                else torch.cat([angle, angle], -1)
            )
            return (
                x * angle.cos() + torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1) * angle.sin()
            )

        return turn(q), turn(k, -1.0 if wrong == "sign" else 1.0)

    return forward


@pytest.mark.parametrize("wrong", ["", "layout", "sign"])
def test_rotary_positions(wrong):
    report = audit(rotary(wrong), "positions")
    assert report.checks == ({"positions.rotary"} if wrong else set()), report.text()


def test_losses():
    def right(logits, labels):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def twice(logits, labels):
        return F.cross_entropy(logits[:, :-2].flatten(0, 1), labels[:, 2:].flatten())

    def soft(logits, labels):
        return F.cross_entropy(logits.softmax(-1).flatten(0, 1), labels.flatten())

    def counts_padding(logits, labels):
        return -logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).mean()

    assert audit(right, "loss").ok
    assert audit(twice, "loss").checks == {"loss.shift"}
    assert "loss.softmax" in audit(soft, "loss").checks
    assert "loss.padding" in audit(counts_padding, "loss").checks
    eos = audit(lambda a, b: F.cross_entropy(a.flatten(0, 1), b.flatten(), ignore_index=3), "loss", pad=3, eos=3)  # fmt: skip  # noqa: E501
    assert eos.checks == {"loss.eos"}


def test_accumulation():
    def right(model, batches):
        total = sum(int((labels != -100).sum()) for _, labels in batches)
        for ids, labels in batches:
            out = model(ids, labels)
            (out.loss * int((labels != -100).sum()) / total).backward()

    def means(model, batches):
        for ids, labels in batches:
            (model(ids, labels).loss / len(batches)).backward()

    assert audit(right, "step").ok
    assert audit(means, "step").checks == {"loss.accumulation"}


def beam_search(early):
    def search(scores, start, end, beams, longest):
        live, done = [(0.0, [start])], []
        for _ in range(longest):
            grown = []
            for total, ids in live:
                row = scores(torch.tensor([ids]))[0]
                grown += [(total + float(row[i]), [*ids, i]) for i in range(len(row))]
            grown = sorted(grown, reverse=True)[:beams]
            done += [g for g in grown if g[1][-1] == end]
            live = [g for g in grown if g[1][-1] != end]
            if (early and done) or not live:
                break
        return max(done if early and done else [*done, *live])[1]

    return search


def test_searches():
    assert audit(beam_search(early=False), "search").ok
    assert audit(beam_search(early=True), "search").checks == {"search.wrong"}


def test_masks_that_are_made():
    assert audit(lambda n: torch.ones(n, n).bool().tril(), "mask").ok
    assert audit(lambda n: torch.ones(n, n).bool().triu(1), "mask").ok  # True = blocked
    assert audit(lambda n: torch.ones(n, n).bool().tril(1), "mask").checks == {"mask.off_by_one"}
    assert audit(lambda n: torch.ones(n, n).tril(), "mask").checks == {"mask.ambiguous"}


# --- the mask doctor ----------------------------------------------------------------------------------  # noqa: E501


@pytest.mark.parametrize("like", ["torch.mha", "sdpa", "hf", "additive"])
@pytest.mark.parametrize("shape", ["causal", "padding"])
def test_masks_go_from_any_convention_to_any_other(like, shape):
    if shape == "causal":
        visible = torch.ones(5, 5).bool().tril()
    else:
        visible = torch.tensor([[True, True, True, False], [True, True, False, False]])
    given = {"torch.mha": ~visible, "sdpa": visible, "hf": visible.long(),
             "additive": torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)}[like]  # fmt: skip  # noqa: E501
    read = mask(given, like=like)
    assert torch.equal(read.visible, visible)
    assert shape in read.kind
    assert torch.equal(read.to("torch.mha"), ~visible)
    assert torch.equal(read.to("additive") == 0, visible)
    assert torch.equal(mask(given).visible, visible)  # found without being told, too
    assert "█" in str(read)


def test_the_doctor_warns():
    assert "added" in str(mask(torch.ones(3, 3).tril()))
    assert any("NaN" in w for w in mask(torch.zeros(2, 4, dtype=torch.bool), like="sdpa").warnings)
    assert any("say like=" in w for w in mask(torch.tensor([[True, False], [False, True]])[:, [0, 1, 0]]).warnings)  # fmt: skip  # noqa: E501
    assert any("larger scores" in w for w in mask(torch.tensor([[0.0, -100.0]])).warnings)
    causal = torch.ones(4, 4).bool().tril()
    assert any("inverted" in w for w in mask(causal, like="torch.mha").warnings)
    with pytest.raises(AuditError, match=r"torch\.mha"):
        mask(causal, like="numpy")


# --- consistency ---------------------------------------------------------------------------------------  # noqa: E501


def test_consistency_of_a_sound_model():
    rows = {r.name: r for r in consistency(MetaLlama(), "decoder", vocab=53, compile=False)}
    assert not [str(r) for r in rows.values() if r.state == "differs"]
    for name in (
        "batch = single",
        "cached = uncached",
        "eager = fast kernel",
        "save → load = same",
    ):
        assert rows[name].state == "same", str(rows[name])


def test_consistency_says_where_a_difference_begins():
    class Odd(MhaEncoder):
        def __init__(self):
            super().__init__()
            self.a[1] = Shifting(40)

    class Shifting(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x) + x.mean(0, keepdim=True)

    rows = {r.name: r for r in consistency(Odd(), "encoder", vocab=53, compile=False)}
    assert rows["batch = single"].state == "differs"
    assert rows["batch = single"].begins == "a.1"


def test_import_is_cheap_and_lazy():
    import subprocess
    import sys

    code = "import allformer, sys; assert 'allformer.auditor' not in sys.modules; allformer.audit"
    subprocess.run([sys.executable, "-c", code], check=True)
