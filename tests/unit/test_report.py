"""`report.html`: complete, offline, in two languages, and unbroken by whatever the data holds."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
import string
from html import unescape
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

import allformer as af
from allformer.config import (
    Attention,
    Block,
    EncoderDecoder,
    Feed,
    Learned,
    LMHead,
    Norm,
    Sinusoidal,
    Stack,
    Tokens,
    cycle,
    repeat,
)
from allformer.core.position import sinusoid
from allformer.explain import charts, tables
from allformer.explain.diagram import architecture
from allformer.explain.headline import compact, duration, number
from allformer.explain.report import COMMANDS, FACTS, Sample, write_report
from allformer.explain.samples import differences
from allformer.explain.words import WORDS

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;<!--\u2028{{data}}"
VOID = {"meta", "link", "br", "wbr", "img", "input"}


class Letters:
    """A tokeniser of single letters, enough for a report."""

    bos_id, eos_id = 2, 3

    def encode(self, text: str) -> list[int]:
        return [4 + ord(letter) % 900 for letter in text]

    def tokens(self, ids: list[int]) -> list[str]:
        return [f"<{i}>" if i < 4 else f"·{i}" for i in ids]


def rows(n: int = 50) -> list[dict[str, Any]]:
    train = [
        {"step": 10 * i, "loss": 9 / i, "nll": 8 / i, "rate": 1e-4 * i, "tokens_per_second": 1e4,
         "seconds": i, "gradient_norm": 1.0}
        for i in range(1, n)
    ]  # fmt: skip
    return [*train, *({"step": 100 * i, "seconds": i, "validation_nll": 7 / i} for i in (1, 2, 3))]


def model_of(**changes: Any) -> EncoderDecoder:
    return dataclasses.replace(af.preset("original-tiny"), **changes)


def modern(learned: int = 40) -> EncoderDecoder:
    """Pre-norm, RMS, gated, grouped heads, learned positions, two vocabularies, free head."""
    feed, few = Feed(96, act="silu", gated=True, bias=False), Attention(4, kv_heads=2, bias=False)
    own = Block(few, feed, norm=Norm("rms"), norm_at="pre", dropout=0.0)
    cross = dataclasses.replace(own, cross=Attention(4))
    norm = Norm("rms")
    return EncoderDecoder(
        Stack(
            64, Tokens(1000), Learned(learned), repeat(own, 1), source_norm=norm, final_norm=norm
        ),
        Stack(64, Tokens(1207), Learned(learned), repeat(cross, 3), causal=True, final_norm=norm),
        head=LMHead(tied=False, bias=True),
        shared=False,
    )


def report(tmp_path: Path, config: EncoderDecoder | None = None, **changes: Any) -> str:
    model = af.build(config or af.preset("original-tiny"), seed=0)
    given: dict[str, Any] = {
        "history": rows(),
        "scores": {"exact_match": 97.3, "bleu": 98.1, "bleu_signature": "nrefs:1|tok:zh"},
        "samples": [Sample("I drink tea.", "我喝茶。", "我喝水。"), Sample("No.", "不。", "不。")],
        "facts": {"title": "A run", "direction": "English → Chinese", "steps": 490, "seconds": 75},
        **changes,
    }
    path = write_report(tmp_path / "run" / "report.html", model=model, tokenizer=Letters(), **given)  # type: ignore[arg-type]
    return path.read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


class Outline(HTMLParser):
    """Tags, attributes and text; fails on a tag that is closed out of turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


# --- the page -------------------------------------------------------------------------------------


def test_loads_nothing_from_outside(tmp_path: Path) -> None:
    page = report(tmp_path)
    assert "http:" not in page
    assert "https:" not in page
    assert "@import" not in page
    for tag, name, value in Outline(page).attributes:
        if name in ("src", "href", "action", "data", "poster", "srcset"):
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert not name.startswith("on"), (tag, name)
    assert set(re.findall(r"url\(([^)]*)\)", page)) == {"#tip"}


def test_allows_its_own_script_alone(tmp_path: Path) -> None:
    page = report(tmp_path)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; media-src data:; "
    policy += "style-src 'unsafe-inline'; "
    assert policy + f"script-src 'sha256-{digest}'" in page


def test_is_well_formed_and_has_every_section(tmp_path: Path) -> None:
    page = report(tmp_path)
    outline = Outline(page)
    assert outline.open == []
    ids = [value for _, name, value in outline.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    for section in ("samples", "curves", "attention", "positions", "architecture", "cost", "next"):
        assert section in ids
        assert f'href="#{section}"' in page
    assert "{{" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_is_small_enough_even_for_the_big_shape(tmp_path: Path) -> None:
    from allformer.families.original import transformer

    config = transformer(1024, 16, 64, 6, vocab=1000)
    page = report(tmp_path, config, samples=[Sample("a" * 40, None, "b" * 40)] * 8)
    assert len(page.encode()) < 1_500_000
    assert data_of(page)["attention"]


# --- the words ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [key for key in WORDS if key != "chart.plain"])
def test_every_word_is_in_both_languages(key: str) -> None:
    en, zh = WORDS[key]
    assert en
    assert zh
    assert not re.search(r"[\u4e00-\u9fff]", en)
    if re.search(r"[a-z]{3} [a-z]{3}", re.sub(r"<.*?>", "", en)):  # more than names and symbols
        assert re.search(r"[\u4e00-\u9fff]", zh)
    fields = [
        {name for _, name, _, _ in string.Formatter().parse(text) if name} for text in (en, zh)
    ]
    assert fields[0] == fields[1]
    assert set(re.findall(r"<.*?>", en)) == set(re.findall(r"<.*?>", zh))


def test_page_carries_both_languages_and_english_first(tmp_path: Path) -> None:
    page = report(tmp_path)
    files = resources.files("allformer.explain")
    templates = ("report.html", "run.html", "attention.html")
    text = "".join(files.joinpath(name).read_text("utf-8") for name in templates)
    keys = [key for key in re.findall(r"\{\{@?([\w.]+)\}\}", text) if key in WORDS]
    assert len(keys) > 18
    for key in keys:
        for text in WORDS[key]:
            assert text in page, key
    assert '<html lang="en">' in page
    assert page.count('class="en" lang="en"') == page.count('class="zh" lang="zh-Hans"') > 100
    assert page.count(" data-en=") == page.count(" data-zh=") > 8


def test_script_asks_for_no_word_that_is_missing() -> None:
    script = resources.files("allformer.explain").joinpath("report.js").read_text("utf-8")
    asked = set(re.findall(r'\bsay\("([\w.]+)"', script))
    asked |= set(re.findall(r'\? "([\w.]+)" : "', script)) & {k[3:] for k in WORDS}
    known = {key[3:] for key in WORDS if key.startswith("js.")}
    assert asked <= known
    for key in known - asked:  # chosen by a condition
        assert f'"{key}"' in script, key


def test_names_of_commands_and_facts_are_translated() -> None:
    assert all(f"next.{name}" in WORDS for name in COMMANDS)
    assert all(f"facts.{name}" in WORDS for name in FACTS)


def test_a_fact_may_come_in_both_languages(tmp_path: Path) -> None:
    page = report(tmp_path, facts={"title": {"en": "First run", "zh": "第一次训练"}, "data": "<d>"})
    assert "<title>First run</title>" in page
    assert data_of(page)["title"] == ["First run", "第一次训练"]
    assert "&lt;d&gt;" in page


# --- hostile and missing data ---------------------------------------------------------------------


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = report(
        tmp_path,
        samples=[Sample(HOSTILE, HOSTILE + "x", HOSTILE), Sample("</script><!--", None, "&")],
        facts={"title": HOSTILE, "direction": HOSTILE, "command": HOSTILE, HOSTILE: HOSTILE,
               "commands": {"train": HOSTILE}, "device": {"en": HOSTILE, "zh": HOSTILE}},
        scores={"bleu": 1.0, "bleu_signature": HOSTILE, HOSTILE: 3.0},
    )  # fmt: skip
    outline = Outline(page)
    assert outline.tags.count("script") == 2
    assert outline.open == []
    assert not any(name == "onerror" for _, name, _ in outline.attributes)
    assert "<img src=x" not in page
    assert HOSTILE in outline.text
    assert unescape(data_of(page)["title"][0]) == HOSTILE
    assert [sample["text"] for sample in data_of(page)["attention"]] == ["</script><!--"]


def test_hostile_tokens_stay_text(tmp_path: Path) -> None:
    class Evil(Letters):
        def tokens(self, ids: list[int]) -> list[str]:
            return [HOSTILE] * len(ids)

    model = af.build(af.preset("original-tiny"), seed=0)
    path = write_report(
        tmp_path / "r.html", model=model, tokenizer=Evil(), history=[], scores={},  # type: ignore[arg-type]
        samples=[Sample("ab", None, "c")], facts={},
    )  # fmt: skip
    outline = Outline(path.read_text(encoding="utf-8"))
    assert outline.tags.count("script") == 2
    assert HOSTILE in outline.text


def test_nothing_but_a_model_is_enough(tmp_path: Path) -> None:
    page = report(tmp_path, history=[], scores={}, samples=[], facts={})
    assert WORDS["curves.none"][1] in page
    assert WORDS["samples.none"][1] in page
    assert WORDS["attention.title"][1] not in page
    assert 'href="#attention"' not in page
    assert WORDS["page.title"][0] in page
    assert "BLEU" not in Outline(page).text


def test_where_all_texts_are_too_long_for_a_map_it_is_said_and_nothing_is_explained(
    tmp_path: Path,
) -> None:
    page = report(tmp_path, samples=[Sample("a " * 400, None, "b " * 400)])
    assert WORDS["attention.none"][1] in page
    assert WORDS["attention.heads"][1] not in page


def test_a_diverged_history_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    history = [*rows(), {"step": 500, "loss": math.nan, "nll": math.inf, "rate": None}]
    plots = data_of(report(tmp_path, history=history))["plots"]
    assert plots["loss"]["series"][0]["points"][-1][0] == 490
    assert {"loss", "lr", "tokens", "norm"} <= set(plots)
    assert "exact" not in plots


def test_samples_too_long_for_the_model_are_left_out(tmp_path: Path) -> None:
    long, short = Sample("a" * 20, None, "b"), Sample("abc", None, "d")
    page = report(tmp_path, modern(learned=10), samples=[long, short])
    assert [sample["text"] for sample in data_of(page)["attention"]] == ["abc"]


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        af.preset("original-tiny"),
        modern(),
        model_of(head=LMHead(tied=True, bias=True)),
        model_of(head=LMHead(tied=False)),
        model_of(shared=False),
    ],
    ids=["tiny", "modern", "bias", "untied", "unshared"],
)
def test_parameters_are_those_of_the_model(tmp_path: Path, config: EncoderDecoder) -> None:
    page = report(tmp_path, config)
    total = sum(p.numel() for p in af.build(config, device="meta").parameters())
    assert f'<td class="n">{total:,}</td><td></td><td></td></tr></tfoot>' in page
    assert WORDS["cost.check"][0] in page
    for part in af.count(config).parts:
        assert tables.part_name(part.name)[1] in page
        text = tables.formula(part.formula)
        assert text[0] in page
        if re.search("[a-z]{4}", part.formula.replace("length", "")):
            assert text[0] != text[1], f"{part.formula!r} has no Chinese"


def test_attention_in_the_page_is_the_models(tmp_path: Path) -> None:
    sample = data_of(report(tmp_path))["attention"][0]
    letters, model = Letters(), af.build(af.preset("original-tiny"), seed=0).eval()
    source, out = [*letters.encode("I drink tea."), 3], letters.encode("我喝水。")
    seen = af.trace(
        model,
        input_ids=torch.tensor([source]),
        decoder_input_ids=torch.tensor([[2, *out]]),
    )
    want = seen["decoder.1.cross.weights"][0, 3]
    got = torch.tensor(list(base64.b64decode(sample["maps"]["cross"][1][3]))) / 255
    assert got.view(len(out) + 1, len(source)).sub(want).abs().max() < 0.003
    assert sample["source"] == letters.tokens(source)
    assert sample["read"] == letters.tokens([2, *out])
    assert sample["written"] == letters.tokens([*out, 3])
    assert [len(sample["maps"][kind]) for kind in ("encoder", "decoder", "cross")] == [2, 2, 2]


def test_writing_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = af.build(af.preset("original-tiny"), seed=0)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    write_report(
        tmp_path / "r.html", model=model, tokenizer=Letters(), history=[], scores={},  # type: ignore[arg-type]
        samples=[Sample("a", None, "b")], facts={},
    )  # fmt: skip
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_positions_follow_the_configured_layout_and_base(tmp_path: Path, layout: str) -> None:
    tiny = af.preset("original-tiny")
    place = Sinusoidal(layout=layout, base=500.0, start=2)  # type: ignore[arg-type]
    config = model_of(
        encoder=dataclasses.replace(tiny.encoder, position=place),
        decoder=dataclasses.replace(tiny.decoder, position=place),
    )
    page = report(tmp_path, config)
    plots = data_of(page)["plots"]
    shown = plots["map-encoder"]
    numbers = torch.frombuffer(bytearray(base64.b64decode(shown["values"])), dtype=torch.int8)
    want = sinusoid(torch.arange(2, 66), 128, layout=layout, base=500.0)
    assert (numbers.view(64, 128) / 127 * shown["scale"] - want).abs().max() < 0.005
    assert "map-decoder" not in plots
    assert WORDS[f"positions.{layout}"][0] in page


def test_learned_positions_are_shown_for_both_stacks(tmp_path: Path) -> None:
    page = report(tmp_path, modern())
    plots = data_of(page)["plots"]
    assert plots["map-encoder"]["rows"] == plots["map-decoder"]["rows"] == 40
    assert plots["map-encoder"]["values"] != plots["map-decoder"]["values"]


def test_a_model_without_positions_says_so(tmp_path: Path) -> None:
    tiny = af.preset("original-tiny")
    bare = [dataclasses.replace(s, position=None) for s in (tiny.encoder, tiny.decoder)]
    assert WORDS["positions.none"][1] in report(
        tmp_path, model_of(encoder=bare[0], decoder=bare[1])
    )


# --- parts ----------------------------------------------------------------------------------------


def words_of(svg: str) -> str:
    return unescape(re.sub(r"<tspan class=\"zh\".*?</tspan>|<[^>]*>", "\n", svg))


def test_diagram_names_the_post_norm_parts_of_the_paper() -> None:
    text = words_of(architecture(af.preset("original-base")))
    assert text.count("Add, LayerNorm") == 5
    assert "37,000 × 512 · √d, shared" in text
    assert "8 heads of 64" in text
    assert "512 → 2048 → 512, ReLU" in text
    assert "Decoder × 6 layers" in text
    assert "B × 8 × T × S" in text  # the cross-attention's scores
    assert "K  B × 8 × S × 64" in text
    assert "the embedding table again" in text
    assert "sinusoidal" in text


def test_diagram_names_the_modern_parts() -> None:
    text = words_of(architecture(modern()))
    assert text.count("RMSNorm") == 5 + 1 + 2  # sub-layers, source norm, final norms
    assert "Add, " not in text
    assert "4 heads of 16, 2 for K and V" in text
    assert "64 → 2 · 96 → 64, SwiGLU" in text
    assert "64 → 1,207 + b" in text
    assert "learned" in text
    assert "Encoder × 1 layer" in text
    assert "shared" not in text
    assert "√d" not in text


def test_diagram_tells_when_layers_differ_and_when_there_is_no_head(tmp_path: Path) -> None:
    tiny = af.preset("original-tiny")
    wide = dataclasses.replace(tiny.encoder.blocks[0], feed=Feed(64, act="gelu"))
    stack = dataclasses.replace(tiny.encoder, blocks=cycle((tiny.encoder.blocks[0], wide), 4))
    config = model_of(encoder=stack, head=None)
    assert "hidden states" in words_of(architecture(config))
    assert WORDS["architecture.mixed"][0] in report(tmp_path, config)


@pytest.mark.parametrize(
    ("output", "reference", "want"),
    [
        ("我喝水。", "我喝茶。", ("我喝<del>水</del>。", "我喝<ins>茶</ins>。")),
        ("a red cat", "a cat", ("a <del>red </del>cat", "a cat")),
        ("", "<b>", ("", "<ins>&lt;b&gt;</ins>")),
    ],
)
def test_differences_are_marked_by_word_or_character(
    output: str, reference: str, want: tuple[str, str]
) -> None:
    assert differences(output, reference) == want


def test_shares_of_the_work_add_up_and_attention_grows() -> None:
    config = af.preset("original-base")
    shares = []
    for length in tables.LENGTHS:
        table = af.count(config, length)
        parts = tables.split(table)
        assert sum(parts.values()) == table.flops_per_token
        assert parts["quadratic"] / table.flops_per_token == pytest.approx(table.attention_share)
        shares.append(table.attention_share)
    assert shares == sorted(shares)
    n = tables.crossing(config)
    assert n is not None
    near, far = (tables.split(af.count(config, int(n * k))) for k in (0.9, 1.1))
    assert near["quadratic"] < near["feed"]
    assert far["quadratic"] > far["feed"]


def test_long_curves_are_thinned_to_their_ends() -> None:
    points = [(float(i), float(i % 7)) for i in range(10_000)]
    thin = charts.thin(points)
    assert len(thin) <= charts.MOST_POINTS + 1
    assert thin[-1] == points[-1]
    assert charts.smooth([(0.0, 1.0), (1.0, 4.0), (2.0, 1.0)]) == [
        (0.0, 1.0),
        (1.0, 2.0),
        (2.0, 1.0),
    ]


def test_repeated_steps_of_a_resumed_run_count_once() -> None:
    history = [{"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.0}, {"step": 2, "loss": 3.0}]
    assert charts.rows_to_points(history, "loss") == [(1.0, 5.0), (2.0, 3.0)]


@pytest.mark.parametrize("low", [0.0, 1.0, 0.00012])
@pytest.mark.parametrize("high", [0.0003, 1.0, 7.3, 123_456.0])
def test_axes_have_a_few_round_ticks_inside(low: float, high: float) -> None:
    axis = charts.linear(low, high, 5)
    assert 2 <= len(axis.ticks) <= 7 or high <= low
    assert all(-1e-9 <= axis.place(tick) <= 1 + 1e-9 for tick in axis.ticks)
    if 0 < low < high:
        log = charts.logarithmic(low, high)
        assert all(0 <= log.place(tick) <= 1 for tick in log.ticks)


def test_numbers_are_written_for_readers() -> None:
    assert duration(4.2)[0] == "4.2 s"
    assert duration(90) == ("1 min 30 s", "1 分 30 秒")
    assert duration(3725)[1] == "1 小时 2 分"
    assert [number(n) for n in (240_000, 97.25, 1.0234, 100.0)] == [
        "240,000",
        "97.2",
        "1.02",
        "100.0",
    ]
    assert [compact(n) for n in (63_082_496, 999_600, 12)] == ["63.1M", "1000k", "12"]
    want = {5e-4: "5e-4", 0.25: "0.25", 12_000: "12,000", 2.5e6: "2.5M", 0: "0"}
    assert {n: charts.short(n) for n in want} == want


def test_dropout_is_spoken_of_where_there_is_some(tmp_path):
    told = "Training is measured with dropout on"
    assert told in report(tmp_path)
    tiny = af.preset("original-tiny")
    without = {
        side: dataclasses.replace(
            getattr(tiny, side),
            dropout=0.0,
            blocks=tuple(dataclasses.replace(b, dropout=0.0) for b in getattr(tiny, side).blocks),
        )
        for side in ("encoder", "decoder")
    }
    assert told not in report(tmp_path, model_of(**without))
