"""What stands beside sub-layers and before the tokens: bottlenecks, prefixes and prompts."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from allformer import tune
from allformer.config import Learned
from allformer.core.starts import decay_groups
from allformer.core.taps import listen
from allformer.errors import ConfigError, LengthError
from tests.models import (
    PAPER,
    SPREAD,
    decoder_only,
    encoder_only,
    left_padding,
    loud,
    right_padding,
    seq2seq,
    tokens,
)
from tests.unit.test_tune import close, run, same, stir

FORMS = ("houlsby", "pfeiffer", "parallel")
SOFT = {
    "bottleneck": tune.Bottleneck(size=3),
    "prefix": tune.Prefix(3),
    "made prefix": tune.Prefix(2, hidden=5),
    "prompt": tune.Prompt(3),
}
GENERATED = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}


def put_on(model, method, name: str = "default", seed: int = 0):
    tune.apply(model, method, name, seed=seed)
    stir(model, name, seed)
    return model


# --- bottlenecks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["seq2seq paper", "segments", "sound to text"])
def test_a_bottleneck_is_put_on_and_taken_off(kind, form):
    model = loud(SPREAD[kind])
    base, state = run(model), copy.deepcopy(model.state_dict())
    tune.apply(model, tune.Bottleneck(form, 3), seed=0)
    close(run(model), base)
    stir(model)
    tuned = run(model)
    assert max((x - base[name]).abs().max() for name, x in tuned.items()) > 0.01
    tune.switch(model, None)
    assert same(run(model), base)
    tune.remove(model)
    assert same(model.state_dict(), state)


def neck(module, x: Tensor) -> Tensor:
    low = F.relu(x @ module.down.T + module.down_bias)
    return module.scale * (low @ module.up.T + module.up_bias)


def check_bottleneck(form: str, pre: bool) -> None:
    """A layer as the papers write it down, sub-layer by sub-layer."""
    config = decoder_only(replace(PAPER, norm_at="pre" if pre else "post"))
    model = put_on(loud(config), tune.Bottleneck(form, 3))
    block = model.decoder.layers[0]
    at = block.delta.each["default"]["bottleneck"].at
    seen: dict[str, Tensor] = {}
    with torch.no_grad(), listen(lambda name, x: seen.update({name: x})):
        model(input_ids=tokens(2, 7))
    x = seen["decoder.embedded"]
    for name in ("attention", "feed"):
        norm = getattr(block, f"{name}_norm")
        read = norm(x) if pre else x
        h = seen[f"decoder.0.{name}.output"]
        if name in at and form == "houlsby":
            h = h + neck(at[name], h)
        elif name in at and form == "parallel":
            assert at[name].scale == 4
            h = h + neck(at[name], read)
        elif name in at:
            h = h + neck(at[name], x + h if pre else norm(x + h))
        x = x + h if pre else norm(x + h)
        last = f"decoder.0.{name}_added" if pre else f"decoder.0.{name}_norm"
        torch.testing.assert_close(seen[last], x)
    assert ("attention" in at) == (form == "houlsby")


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_bottlenecks_follow_their_formulas(form, pre):
    check_bottleneck(form, pre)


def test_several_bottlenecks_act_one_after_the_other():
    model = loud(decoder_only())
    put_on(model, tune.Bottleneck("houlsby", 2), "a", 1)
    put_on(model, tune.Bottleneck("parallel", 2), "b", 2)
    ids = tokens(2, 7)
    found = {}
    for names in (("a",), ("b",), ("a", "b")):
        tune.switch(model, names)
        found[names] = model(input_ids=ids).logits
    assert not torch.allclose(found["a", "b"], found[("a",)])
    assert not torch.allclose(found["a", "b"], found[("b",)])


def test_a_bottleneck_behind_two_streams_is_refused():
    model = loud(SPREAD["two streams"])
    with pytest.raises(ConfigError, match="two; try form='houlsby'"):
        tune.apply(model, tune.Bottleneck("pfeiffer"))
    assert not hasattr(model, "tuning")
    base = run(model)
    put_on(model, tune.Bottleneck("houlsby", 2))
    assert not same(run(model), base)


# --- prefixes ------------------------------------------------------------------------------------


def check_prefix(method: tune.Prefix) -> None:
    """Every token looks at learned keys, then at those before it, as if as many tokens had been
    there: the same numbers as a cache into which the keys were written."""
    model = put_on(loud(decoder_only()), method)
    count, prefix = method.tokens, model.decoder.delta.each["default"]["prefix"]
    ids = tokens(2, 7)
    found = model(input_ids=ids).logits
    pairs = prefix(torch.float64)
    tune.switch(model, None)
    cache = model.new_cache()
    for state, (k, v) in zip(cache.layers, pairs, strict=True):
        state.own.update(k.expand(2, -1, -1, -1), v.expand(2, -1, -1, -1), None)
    cache.length = count
    with torch.no_grad():
        expected = model(input_ids=ids, cache=cache).logits
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", [tune.Prefix(3), tune.Prefix(2, hidden=5)])
def test_a_prefix_is_a_cache_that_was_learned(method):
    check_prefix(method)


def test_a_prefix_of_a_network_is_what_the_network_gives():
    model = put_on(loud(decoder_only()), tune.Prefix(2, hidden=5))
    made = model.decoder.delta.each["default"]["prefix"]
    flat = torch.tanh(made.table @ made.into.T + made.into_bias) @ made.out.T + made.out_bias
    keys, values = made(torch.float64)[1]
    groups, _, size = keys.shape[1:]
    width = groups * size
    torch.testing.assert_close(keys[0].transpose(0, 1).flatten(1), flat[:, 2 * width : 3 * width])
    torch.testing.assert_close(values[0].transpose(0, 1).flatten(1), flat[:, 3 * width :])


def test_a_prefix_goes_to_the_decoder_unless_stacks_are_named():
    model = loud(seq2seq())
    tune.apply(model, tune.Prefix(2))
    assert model.encoder.delta is None
    assert model.decoder.delta is not None
    tune.remove(model)
    base = run(model)
    put_on(model, tune.Prefix(2, stacks=("encoder",)))
    assert model.decoder.delta is None
    assert not same(run(model), base)


def test_images_and_sounds_have_prefixes_too():
    for kind in ("two towers, sigmoid", "sound to text", "sound to classes"):
        model = loud(SPREAD[kind])
        base = run(model)
        put_on(model, tune.Prefix(2))
        tuned = run(model)
        assert max((x - base[name]).abs().max() for name, x in tuned.items()) > 0.001
        tune.remove(model)
        assert same(run(model), base)


# --- prompts -------------------------------------------------------------------------------------


def check_prompt() -> None:
    """As if the caller had put the vectors before those of the tokens."""
    model = put_on(loud(decoder_only()), tune.Prompt(3))
    ids, mask = tokens(2, 7), right_padding([5, 7], 7)
    found = model(input_ids=ids, attention_mask=mask).logits
    table = model.decoder.source.delta.each["default"]["prompt"].table
    tune.switch(model, None)
    source = model.decoder.source
    vectors = torch.cat([table.expand(2, -1, -1), source.embedding(ids) * source.scale], 1)
    longer = F.pad(mask, (3, 0), value=1)
    expected = model(inputs_embeds=vectors, attention_mask=longer).logits[:, 3:]
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()])


def test_a_prompt_is_read_before_the_tokens():
    check_prompt()


def test_positions_that_are_given_are_those_behind_the_prompt():
    for config in (decoder_only(), SPREAD["rotary"], SPREAD["counts all"]):
        model = put_on(loud(config), tune.Prompt(3))
        first = getattr(model.stack(next(iter(model.prefixes))).source.position, "first", 0)
        ids, mask = tokens(2, 6), right_padding([4, 6], 6)
        told = {"attention_mask": mask, "position_ids": torch.arange(first, first + 6)[None]}
        found = model(input_ids=ids, **told).last_hidden_state
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(found, expected)


def test_a_prompt_starts_as_words():
    model = loud(decoder_only())
    source = model.decoder.source
    words = source.embedding.weight * source.scale
    tune.apply(model, tune.Prompt(5, ids=(4, 6)))
    table = model.decoder.source.delta.each["default"]["prompt"].table
    torch.testing.assert_close(table, words[torch.tensor([4, 6, 4, 6, 4])])
    tune.remove(model)
    tune.apply(model, tune.Prompt(4), seed=3)
    table = model.decoder.source.delta.each["default"]["prompt"].table
    assert all((row == words).all(1).any() for row in table)

    class Tokenizer:
        def encode(self, text: str) -> list[int]:
            return [7 + len(word) for word in text.split()]

    assert tune.Prompt.of("a bb", Tokenizer(), 3) == tune.Prompt(3, (8, 9))
    assert tune.Prompt.of("a bb", Tokenizer()).tokens == 2


def check_first() -> None:
    """Heads that read a row's first token read the first learned one, as in PEFT."""
    model = put_on(loud(SPREAD["classes"]), tune.Prompt(3))
    ids = tokens(2, 7)
    found = model(input_ids=ids)
    table = model.encoder.source.delta.each["default"]["prompt"].table
    assert found.last_hidden_state.shape[1] == 7
    with tune.using(model, None):
        # The head is the adapter's own, so that it is put beside the longer row.
        source = model.encoder.source
        vectors = torch.cat([table.expand(2, -1, -1), source.embedding(ids) * source.scale], 1)
        states = model(inputs_embeds=vectors).last_hidden_state
    torch.testing.assert_close(found.last_hidden_state, states[:, 3:])
    first = torch.cat([states[:, :1], states[:, 4:]], 1)
    torch.testing.assert_close(found.pooler_output, model.pooled(first))


def test_the_first_token_of_a_row_is_a_learned_one():
    check_first()


# --- what all of them must keep to ---------------------------------------------------------------


def check_padding(method: str) -> None:
    for config in (encoder_only(), decoder_only()):
        model = put_on(loud(config), SOFT[method])
        ids, mask = tokens(2, 9), right_padding([5, 9], 9)
        many = model(input_ids=ids, attention_mask=mask).last_hidden_state
        one = model(input_ids=ids[:1, :5]).last_hidden_state
        torch.testing.assert_close(many[:1, :5], one)


@pytest.mark.parametrize("method", SOFT)
def test_padding_changes_nothing(method):
    check_padding(method)


def check_written(method: str, beams: int = 1) -> None:
    """With a cache as without, and a row as alone."""
    for config in (decoder_only(), seq2seq()):
        model = put_on(loud(config), SOFT[method])
        ids, mask = tokens(2, 6, seed=4), left_padding([4, 6], 6)
        ids = ids.masked_fill(mask == 0, 0)
        how = {**GENERATED, "num_beams": beams}
        kept = model.generate(ids, attention_mask=mask, **how)
        again = model.generate(ids, attention_mask=mask, use_cache=False, **how)
        assert torch.equal(kept, again)
        if beams == 1:
            alone = model.generate(ids[:1, 2:], **how)
            assert torch.equal(kept[:1, -6:], alone[:, -6:])


@torch.no_grad()
def check_answered(method: str) -> None:
    """A decoder that goes on from a cache says what it says when all is read at once."""
    model = put_on(loud(seq2seq()), SOFT[method])
    ids, mask, text = tokens(2, 6), right_padding([4, 6], 6), tokens(2, 5, seed=3)
    whole = model(input_ids=ids, attention_mask=mask, decoder_input_ids=text).logits
    memory, cache = model.encode(ids, mask), model.new_cache()
    model.step(text[:, :3], cache, memory, mask)
    torch.testing.assert_close(model.step(text[:, 3:], cache, None, mask), whole[:, -1])


@pytest.mark.parametrize("method", SOFT)
def test_a_decoder_goes_on_from_what_it_has_read(method):
    check_answered(method)


@pytest.mark.parametrize("method", SOFT)
@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_written_with_and_without_a_cache(method, beams):
    check_written(method, beams)


def check_one_by_one(method: str) -> None:
    model = put_on(loud(decoder_only()), SOFT[method])
    ids = tokens(2, 7)
    whole = model(input_ids=ids).logits
    cache = model.new_cache()
    with torch.no_grad():
        steps = [model(input_ids=ids[:, :3], cache=cache).logits]
        steps += [model(input_ids=ids[:, i : i + 1], cache=cache).logits for i in range(3, 7)]
        torch.testing.assert_close(torch.cat(steps, 1), whole)
        assert cache.length == 7
        cache.cut(4)
        torch.testing.assert_close(model(input_ids=ids[:, 4:], cache=cache).logits, whole[:, 4:])


@pytest.mark.parametrize("method", SOFT)
def test_tokens_are_read_one_by_one_as_at_once(method):
    check_one_by_one(method)


PAIRS = {
    "prefix": (tune.Prefix(3), tune.Prefix(1)),
    "prompt": (tune.Prompt(2), tune.Prompt(2)),
    "bottleneck": (tune.Bottleneck(size=2), tune.Bottleneck("parallel", 2)),
    "both": (tune.Prefix(2), tune.Bottleneck("pfeiffer", 2)),
}


def check_rows(pair: str) -> None:
    """Each row as if its adapter acted alone."""
    model = loud(decoder_only())
    for i, name in enumerate("ab"):
        put_on(model, PAIRS[pair][i], name, i)
    rows = ["b", "a", "b"] if pair == "prompt" else ["b", None, "a"]
    ids, mask = tokens(3, 8), right_padding([8, 5, 7], 8)
    tune.switch(model, rows)
    mixed = model(input_ids=ids, attention_mask=mask).logits
    left = left_padding([8, 5, 7], 8)
    written = model.generate(ids.masked_fill(left == 0, 0), attention_mask=left, **GENERATED)
    for i, name in enumerate(rows):
        tune.switch(model, name)
        length = int(mask[i].sum())
        alone = model(input_ids=ids[i : i + 1, :length]).logits
        torch.testing.assert_close(mixed[i : i + 1, :length], alone)
        text = model.generate(ids[i : i + 1, 8 - length :], **GENERATED)
        assert torch.equal(written[i, -6:], text[0, -6:])


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_of_a_batch_have_their_own(pair):
    check_rows(pair)


@pytest.mark.parametrize("method", SOFT)
def test_only_what_is_new_is_trained(method):
    model = loud(decoder_only())
    tune.apply(model, SOFT[method], seed=0)
    model.train()
    model(input_ids=tokens(2, 7), labels=tokens(2, 7)).loss.backward()
    with_gradient = {n for n, p in model.named_parameters() if p.grad is not None}
    assert with_gradient
    assert all(".delta." in name for name in with_gradient)
    groups = decay_groups(model, 0.1)
    assert sum(len(group["params"]) for group in groups) == len(with_gradient)
    assert 0 < tune.trainable(model).share < 0.5


@pytest.mark.parametrize("method", SOFT)
@pytest.mark.parametrize("mode", ["layers", "selective"])
def test_recomputed_layers_have_the_same_gradients(method, mode):
    found = []
    for how in (None, mode):
        model = put_on(loud(decoder_only()), SOFT[method])
        model.recompute(how)
        model(input_ids=tokens(2, 7), labels=tokens(2, 7)).loss.backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    close(*found)


def test_a_state_is_kept_and_loaded():
    for method in SOFT.values():
        model, other = (loud(decoder_only()) for _ in range(2))
        put_on(model, method)
        tune.apply(other, method, seed=7)
        tune.load_adapter_state(other, "default", tune.adapter_state(model))
        ids = tokens(2, 6)
        assert torch.equal(model(input_ids=ids).logits, other(input_ids=ids).logits)


def test_methods_stand_together():
    model = loud(decoder_only())
    every = (tune.Lora(2), tune.Bottleneck(size=2), tune.Prefix(2), tune.Prompt(3))
    put_on(model, every)
    assert model.decoder.before == 5
    ids = tokens(2, 6)
    kept = model.generate(ids, **GENERATED)
    assert torch.equal(kept, model.generate(ids, use_cache=False, **GENERATED))
    found = model(input_ids=ids).logits
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids, kernel="eager").logits, found)


def test_ways_that_read_weights_see_what_is_there():
    for method in SOFT.values():
        model = loud(decoder_only())
        assert not model.extended
        put_on(model, method)
        assert model.extended
        assert any(getattr(part, "delta", None) is not None for part in model.modules())
        tune.switch(model, None)
        assert not model.extended


def test_what_cannot_be_merged_is_refused():
    for method in SOFT.values():
        model = put_on(loud(decoder_only()), method)
        with pytest.raises(ConfigError, match="cannot be merged"):
            tune.merge(model)


def test_a_text_is_refused_that_leaves_no_room():
    model = loud(decoder_only(position=Learned(12)))
    for method in (tune.Prefix(4), tune.Prompt(4)):
        put_on(model, method)
        with pytest.raises(LengthError, match="but the model has 8"):
            model.generate(tokens(1, 6), **{**GENERATED, "max_new_tokens": 4})
        assert model.generate(tokens(1, 6), **{**GENERATED, "max_new_tokens": 3}).shape[1] == 9
        with pytest.raises(LengthError):
            model(input_ids=tokens(1, 9))
        tune.remove(model)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tune.Bottleneck("housby"), "did you mean houlsby"),
        (lambda: tune.Bottleneck(size=0), "try 64"),
        (lambda: tune.Bottleneck(act="rellu"), "relu"),
        (lambda: tune.Prefix(0), "try 20"),
        (lambda: tune.Prompt(0), "try 20"),
        (lambda: tune.apply(loud(decoder_only()), tune.Prompt(2, ids=(999,))), "tokeniser"),
        (lambda: tune.apply(loud(decoder_only()), tune.Bottleneck(layers=(9,))), "no layer"),
        (lambda: tune.apply(loud(seq2seq()), tune.Prefix(2, stacks=("coder",))), "decoder"),
        (lambda: tune.apply(loud(SPREAD["sound to text"]), tune.Prompt(2)), "try Prefix"),
    ],
)
def test_what_cannot_work_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_rows_with_prompts_of_different_lengths_are_refused():
    model = loud(decoder_only())
    for name, count in (("a", 2), ("b", 3)):
        tune.apply(model, tune.Prompt(count), name)
    tune.switch(model, ["a", "b"])
    with pytest.raises(ConfigError, match="2 and 3 learned tokens"):
        model(input_ids=tokens(2, 5))
