"""The examples of docs/design.md run as they stand, and keep what the house promises.

Classes of a user's own build, run, train, count, save and load: each example does so itself. What
is added here are the properties that every mixer, source, head and relative position must have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer.config import (
    Attention,
    Beside,
    ClassHead,
    DecoderOnly,
    EncoderOnly,
    Full,
    LMHead,
    Rotary,
    Several,
    config_from_json,
    cycle,
)
from allformer.config.check import CLASSES
from allformer.core.inputs import Side
from allformer.core.layout import pack
from allformer.core.model import AnyModel, build
from allformer.core.registry import _MODULES, implements
from allformer.core.starts import decay_groups
from allformer.count import count
from allformer.errors import CheckpointError, ConfigError
from allformer.families import FAMILIES
from allformer.tune import METHODS
from tests.loud import make_loud
from tests.models import PAPER, stack, tokens

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("design.md", "design.zh-CN.md")
NAMES = ("mixer", "source", "head", "relative", "objective", "method", "family")
OPEN = [name for name in NAMES if name != "objective"]
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def blocks(page: str) -> dict[str, str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return dict(zip(NAMES, found, strict=True))


def run(page: str, name: str) -> SimpleNamespace:
    """An example in a namespace of its own: what a script would be."""
    names: dict[str, object] = {"__name__": "design_example"}
    # without this file's own `from __future__`: the example is a script of its own
    exec(compile(blocks(page)[name], f"{page}: {name}", "exec", dont_inherit=True), names)
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def house() -> Iterator[None]:
    """What examples register is forgotten afterwards."""
    with patch.dict(CLASSES), patch.dict(_MODULES), patch.dict(METHODS):
        yield


@pytest.fixture(scope="module")
def example(house: None) -> dict[str, SimpleNamespace]:
    return {name: run("design.md", name) for name in OPEN}


@pytest.fixture
def linear(example) -> type:
    return example["mixer"].LinearAttention


def made(config) -> AnyModel:
    return make_loud(build(config).double(), seed=3).eval()


def mixing(mixer, **changes) -> DecoderOnly:
    block = replace(PAPER, attention=Attention(4, kv_heads=2, mixer=mixer))
    return DecoderOnly(stack(block, causal=True, **changes))


# --- the pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(page, name, house, capsys):
    run(page, name)
    assert capsys.readouterr().out, "it shows something"


@pytest.mark.parametrize("page", PAGES)
def test_the_objective_trains(page, house, capsys):
    objectives = pytest.importorskip(
        "allformer.train.objectives", reason="training does not speak of objectives yet"
    )
    with patch.dict(objectives.OBJECTIVES):
        result = run(page, "objective").result
    assert result.validation_perplexity < 5
    assert "DecoderOnly" in capsys.readouterr().out


def test_both_languages_have_the_same_code():
    assert blocks(PAGES[0]) == blocks(PAGES[1])


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_the_page_names_exists(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    named = re.findall(r"`(?:allformer/)?((?:core|config|families)/[\w/.]*)`", text)
    assert len(named) >= 10
    for path in named:
        assert (DOCS.parent / "allformer" / path).exists(), path


def test_the_pictures_are_what_their_script_draws():
    drawn: dict[str, object] = {"__name__": "design_picture"}
    exec((DOCS / "images" / "design.py").read_text(encoding="utf-8"), drawn)
    for number, language in enumerate(drawn["LANGUAGES"]):  # type: ignore[arg-type]
        path = DOCS / "images" / f"design-{language}.svg"
        assert path.read_text(encoding="utf-8") == drawn["picture"](number)  # type: ignore[operator]
    for *_, file in (row[:7] for row in drawn["BOXES"]):  # type: ignore[attr-defined]
        for i, path in enumerate(file.split(" · ")):
            part = path if i == 0 or path.startswith("core/") else f"core/{path}"
            assert (DOCS.parent / "allformer" / part).exists(), file


# --- the mixer ------------------------------------------------------------------------------------


def reference(q: Tensor, k: Tensor, v: Tensor, heat: Tensor) -> Tensor:
    """Weights φ(q)·φ(k) of the keys up to the query, summing to 1: T H D each → T H D."""

    def phi(x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, x.exp())

    q, k = phi(q * heat[:, None]), phi(k * heat[:, None])
    weights = torch.einsum("thd,shd->hts", q, k).tril()
    return torch.einsum("hts,she->the", weights / weights.sum(-1, keepdim=True), v)


def test_the_mixer_is_its_formula(linear):
    model = made(mixing(linear()))
    with torch.no_grad():
        seen = af.trace(model, input_ids=tokens(1, 9))
        layer = model.decoder.layers[1].attention
        x = seen["decoder.0.feed_norm"]
        q, k, v = (part[0].unflatten(-1, (-1, 6)) for part in layer.qkv.cut(layer.qkv(x)))
        k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
        wanted = reference(q, k, v, layer.mixer.heat)
    torch.testing.assert_close(seen["decoder.1.attention.context"][0], wanted.flatten(-2), **TIGHT)


@pytest.mark.parametrize("relative", [None, Rotary()])
@pytest.mark.parametrize("cuts", [(1,) * 9, (4, 1, 4), (8, 1)])
def test_step_by_step_is_all_at_once(linear, cuts, relative):
    model, ids = made(mixing(linear(), relative=relative)), tokens(3, 9)
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[0, :5] = mask[1, :2] = 0
    with torch.no_grad():
        whole = model(input_ids=ids, attention_mask=mask).logits
        cache, said, end = model.new_cache(), [], 0
        for width in cuts:
            begin, end = end, end + width
            new = {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end]}
            said.append(model(**new, cache=cache).logits)
    stepped = torch.cat(said, dim=1)
    torch.testing.assert_close(stepped[mask.bool()], whole[mask.bool()], **TIGHT)


def mixed(linear) -> DecoderOnly:
    """Layers of both kinds in one stack: each has its plan and its state."""
    kinds = [replace(PAPER, attention=Attention(4, mixer=mixer)) for mixer in (linear(), Full())]
    return DecoderOnly(replace(stack(causal=True), blocks=cycle(kinds, 4)))


@pytest.mark.parametrize("beams", [1, 3])
def test_generating_with_the_cache_is_generating_without(linear, beams):
    for config in (mixing(linear()), mixed(linear)):
        model, ids = made(config), tokens(2, 6)
        mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
        options = {"attention_mask": mask, "max_new_tokens": 6, "num_beams": beams}
        cached, plain = (model.generate(ids, use_cache=use, **options) for use in (True, False))
        assert torch.equal(cached, plain)


@pytest.mark.parametrize("name", ["mixer", "relative"])
@pytest.mark.parametrize("left", [True, False])
def test_padding_changes_nothing(example, name, left):
    model = made(_tree(example, name))
    ids, filler = tokens(2, 7), tokens(2, 4)
    wide = torch.cat([filler, ids] if left else [ids, filler], dim=1)
    mask = torch.zeros(2, 11, dtype=torch.long)
    where = slice(4, None) if left else slice(0, 7)
    mask[:, where] = 1
    with torch.no_grad():
        alone = model(input_ids=ids).logits
        torch.testing.assert_close(
            model(input_ids=wide, attention_mask=mask).logits[:, where], alone, **TIGHT
        )


@pytest.mark.parametrize("name", ["mixer", "relative", "both ways"])
def test_packed_is_the_grid(example, name):
    model = made(_tree(example, name))
    (stack_name,) = model.config.stacks
    ids = tokens(3, 8)
    keep = torch.arange(8) < torch.tensor([[3], [8], [5]])
    packed = pack(keep)
    with torch.no_grad():
        rows = model.hidden({stack_name: Side(packed, {"input_ids": ids[keep]})})[stack_name]
        grid = af.trace(model, input_ids=ids, attention_mask=keep.long()).output.last_hidden_state
    torch.testing.assert_close(rows, grid[keep], **TIGHT)


def _tree(example, name: str):
    mixer = example["mixer"].LinearAttention()
    if name == "both ways":
        return EncoderOnly(stack(replace(PAPER, attention=Attention(4, mixer=mixer))), LMHead())
    if name == "mixer":
        return mixing(mixer)
    relative = example["relative"].Alibi()
    return DecoderOnly(stack(PAPER, causal=True, position=None, relative=relative))


def test_the_mixer_is_counted_by_its_own_words(linear):
    few, many = (count(mixing(linear()), n) for n in (16, 4096))
    assert few.flops_per_token == many.flops_per_token
    assert few.cache_bytes_per_token == 0


def test_a_learned_factor_is_trained_and_does_not_decay(linear):
    model = build(mixing(linear(0.25)), seed=0)
    heat = model.decoder.layers[0].attention.mixer.heat
    assert torch.equal(heat.detach(), torch.full((4,), 0.25))
    model(input_ids=tokens(2, 9), labels=tokens(2, 9)).loss.backward()
    assert heat.grad is not None
    assert heat.grad.abs().min() > 0
    decaying, kept = (group["params"] for group in decay_groups(model, 0.1))
    assert any(p is heat for p in kept)
    assert not any(p is heat for p in decaying)


def test_the_mixer_refuses_what_it_cannot_add(linear, example):
    model = build(mixing(linear(), relative=example["relative"].Alibi()))
    with pytest.raises(ConfigError, match=r"LinearAttention has no scores to add to; try"):
        model(input_ids=tokens(1, 4))


# --- the source, the head, the relative position --------------------------------------------------


def test_a_series_is_read_alike_packed_padded_and_through_every_door(example):
    model = made(example["source"].tree)
    values = torch.randn(2, 9, 3, dtype=torch.float64)
    mask = torch.tensor([[1] * 9, [0, 0, 0, 0, 1, 1, 1, 1, 1]])
    inputs = {"values": values, "attention_mask": mask}
    packed = pack(mask)
    with torch.no_grad():
        seen = af.trace(model, **inputs)
        states = model.states(**inputs)["encoder"]
        rows = model.hidden({"encoder": Side(packed, {"values": packed.lay(values)})})["encoder"]
        alone = model(values=values[1:, 4:])
    torch.testing.assert_close(packed.lay(states), rows, **TIGHT)
    torch.testing.assert_close(packed.lay(seen.output.last_hidden_state), rows, **TIGHT)
    torch.testing.assert_close(rows[9:], alone.last_hidden_state[0], **TIGHT)
    torch.testing.assert_close(seen.output.logits[1:], alone.logits, **TIGHT)


def test_a_series_of_another_shape_is_refused(example):
    model = build(example["source"].tree)
    for given, says in (
        ({}, r"^values=None must be rows × steps × 3; give"),
        ({"values": torch.randn(2, 9, 4)}, r"^values=\(2, 9, 4\) must be rows × steps × 3; give"),
        ({"input_ids": tokens(2, 9)}, r"^input_ids is no input of this model; it takes values, "),
        ({"values": torch.randn(2, 60, 3)}, r"60 tokens is longer than .*Learned.length=50"),
    ):
        with pytest.raises((ConfigError, af.errors.LengthError), match=says):
            model(**given)
    with pytest.raises(ConfigError, match=r"EncoderOnlyModel cannot generate"):
        model.generate(max_new_tokens=2)


def test_padding_is_not_scored_by_the_value_head(example):
    value = example["head"].Value()
    several = Several((
        Beside("words", LMHead(), "logits", "labels"),
        Beside("value", value, "worth", "gain"),
    ))  # fmt: skip
    ids, aim = tokens(2, 7), torch.randn(2, 7, dtype=torch.float64)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    for head, target in ((value, "returns"), (several, "gain")):
        model = made(DecoderOnly(stack(causal=True), head))
        more = {"labels": torch.full_like(ids, -100)} if head is several else {}
        with torch.no_grad():
            out = model(input_ids=ids, attention_mask=mask, **{target: aim}, **more)
        found = out.value if head is value else out.worth
        wanted = (found - aim).square()[mask.bool()].mean()
        torch.testing.assert_close(out.loss, wanted, **TIGHT)
        with pytest.raises(ConfigError, match=rf"{target}=\(2, 6\) must be of the shape \(2, 7\)"):
            model(input_ids=ids, **{target: aim[:, 1:]}, **more)


def test_distances_are_those_of_places_in_a_cache_too(example):
    model, ids = made(_tree(example, "relative")), tokens(2, 8)
    with torch.no_grad():
        whole, cache = model(input_ids=ids).logits, model.new_cache()
        model(input_ids=ids[:, :5], cache=cache)
        rest = model(input_ids=ids[:, 5:], cache=cache).logits
        formula = model(input_ids=ids, kernel="eager").logits
    torch.testing.assert_close(rest, whole[:, 5:], **TIGHT)
    torch.testing.assert_close(formula, whole, **TIGHT)


# --- what all of them share -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixer", "source", "head", "relative"])
def test_the_trees_go_to_json_and_back(example, name):
    tree = example[name].tree
    assert config_from_json(tree.to_json()) == tree


@pytest.mark.parametrize("name", ["mixer", "source", "head", "relative"])
def test_a_class_that_was_not_imported_is_named(example, name, tmp_path):
    af.save(example[name].model, tmp_path, family="allformer")
    own = {n: c for n, c in CLASSES.items() if c.__module__ == "design_example"}
    with patch.dict(CLASSES):
        for each in own:
            del CLASSES[each]
        with pytest.raises(
            CheckpointError,
            match=r"config\.json: config\..*\.is='\w+' is not known; .*of your own must be import",
        ):
            af.load(tmp_path)
    assert af.load(tmp_path).config == example[name].tree


def test_tensors_that_nobody_starts_are_refused(linear, example):
    class Silent(example["mixer"].LinearMixer):
        reset_parameters = None

    with patch.dict(_MODULES):
        implements(linear)(Silent)
        with pytest.raises(
            ConfigError,
            match=r"^decoder\.layers\.0\.attention\.mixer \(Silent\) has tensors but no "
            r"reset_parameters\(\).*; add the method to Silent$",
        ):
            build(mixing(linear()))


def test_a_class_without_a_module_is_told_where_to_look(linear):
    with patch.dict(_MODULES):
        del _MODULES[linear]
        with pytest.raises(ConfigError, match=r"LinearAttention has no module; .*docs/design\.md"):
            build(mixing(linear()))


# --- the family -----------------------------------------------------------------------------------


def test_the_family_is_what_transformers_has(example, tmp_path):
    transformers = pytest.importorskip("transformers")
    family = example["family"].FAMILY
    config = family.make({**family.presets["qwen2-0.5b"], **example["family"].small})
    model = made(config)
    with patch.dict(FAMILIES, qwen2=family):
        af.save(model, tmp_path, family="qwen2")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(theirs).__name__ == "Qwen2ForCausalLM"
    ids = torch.randint(100, (2, 48))
    with torch.no_grad():
        ours, wanted = model(input_ids=ids).logits, theirs(ids).logits
    # transformers computes its RMS norms in fp32
    assert (ours - wanted).abs().max() < 2e-6 * wanted.abs().max()


def test_the_family_refuses_what_it_cannot_say(example, tmp_path):
    family = example["family"].FAMILY
    raw = {**family.presets["qwen2-0.5b"], **example["family"].small}
    with pytest.raises(CheckpointError, match=r"use_sliding_window=True, which is not supported"):
        family.make({**raw, "use_sliding_window": True})
    model = DecoderOnly(stack(causal=True), ClassHead(("a", "b"), at="last"))
    with patch.dict(FAMILIES, qwen2=family), pytest.raises(CheckpointError, match="qwen2: has no"):
        af.save(build(model), tmp_path, family="qwen2")
    assert "qwen2" not in FAMILIES
