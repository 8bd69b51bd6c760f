"""generate: the same whatever the cache and the batch, the best there is, and clear refusals."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from allformer.config import LMHead, Tokens
from allformer.core.model import DecoderOnlyModel, EncoderDecoderModel, build
from allformer.errors import ConfigError, GenerationError, LengthError
from allformer.generate import stepper
from allformer.generate.generate import generate
from allformer.generate.options import GenerationConfig
from tests.models import (
    BOS,
    EOS,
    KINDS,
    PAD,
    decoder_only,
    encoder_only,
    left_padding,
    loud,
    restless,
    right_padding,
    tokens,
)

LENGTHS = [9, 4, 7, 1, 9, 6]
MODELS = ["decoder paper", "decoder modern", "seq2seq paper", "seq2seq modern"]
ENDS = [EOS, 8, 21, 30]


@pytest.fixture(autouse=True)
def _loudly():
    """No warning goes unseen: a test that expects one asks for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@cache
def model(kind: str) -> Any:
    if kind.startswith("seq2seq"):
        return restless(replace(KINDS[kind], head=LMHead(tied=False, bias=True)), seed=1, end=4.0)
    return lively(replace(KINDS[kind], head=LMHead(tied=False)), seed=0 if "paper" in kind else 3)


@torch.no_grad()
def lively(config: Any, seed: int) -> DecoderOnlyModel:
    """A decoder that does not say one token for ever."""
    net = loud(config, seed)
    assert isinstance(net, DecoderOnlyModel)
    for name, parameter in net.named_parameters():
        if "embedding" in name:
            parameter.mul_(0.5)
        elif "position" in name:
            parameter.mul_(2.0)
    return net


def batch(kind: str, seed: int = 3) -> tuple[Tensor, Tensor]:
    side = right_padding if kind.startswith("seq2seq") else left_padding
    mask = side(LENGTHS, max(LENGTHS))
    return tokens(len(LENGTHS), max(LENGTHS), seed).where(mask.bool(), PAD), mask


def said(row: list[int], prompt: int) -> list[int]:
    """What is new in a row, up to its end."""
    new = row[prompt:]
    stops = [i for i, token in enumerate(new) if token in ENDS]
    return new[: stops[0] + 1] if stops else new


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "length_penalty": 0.6},
    "early": {"num_beams": 4, "early_stopping": True},
    "never": {"num_beams": 2, "early_stopping": "never"},
}


# --- cache and batch ---------------------------------------------------------------------------


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", MODELS)
def test_with_and_without_a_cache_the_same_is_said(kind, search):
    options = {"max_new_tokens": 12, "eos_token_id": ENDS, **SEARCHES[search]}
    cached = generate(model(kind), *batch(kind), **options)
    plain = generate(model(kind), *batch(kind), use_cache=False, **options)
    assert cached.tolist() == plain.tolist()


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", MODELS)
def test_a_row_in_a_ragged_batch_says_what_it_says_alone(kind, search):
    options = {"max_new_tokens": 12, "eos_token_id": ENDS, **SEARCHES[search]}
    ids, mask = batch(kind)
    together = generate(model(kind), ids, mask, **options)
    start = 1 if kind.startswith("seq2seq") else ids.shape[1]
    lengths = set()
    for row in range(len(ids)):
        one = ids[row : row + 1][:, mask[row].bool()]
        alone = generate(model(kind), one, **options)
        own = 1 if kind.startswith("seq2seq") else one.shape[1]
        assert said(alone[0].tolist(), own) == said(together[row].tolist(), start)
        lengths.add(len(said(alone[0].tolist(), own)))
    assert len(lengths) >= 3, "rows must end at different times"


def test_the_prompt_is_read_once_for_all_beams_and_draws(monkeypatch):
    monkeypatch.setattr(stepper, "FASTER", [])  # so that the model's step is asked
    for kind, cls in (("decoder paper", DecoderOnlyModel), ("seq2seq paper", EncoderDecoderModel)):
        shapes: list[tuple[int, int]] = []
        plain = cls.step

        def step(self, ids, *args, _plain=plain, _shapes=shapes, **kwargs):
            _shapes.append(tuple(ids.shape))
            return _plain(self, ids, *args, **kwargs)

        monkeypatch.setattr(cls, "step", step)
        ids, mask = batch(kind)
        width = ids.shape[1] if cls is DecoderOnlyModel else 1
        for options in ({"num_beams": 3}, {"do_sample": True, "num_return_sequences": 3}):
            shapes.clear()
            generate(model(kind), ids, mask, max_new_tokens=3, eos_token_id=None, **options)
            assert shapes == [(6, width), (18, 1), (18, 1)]


# --- the best there is -------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
def test_enough_beams_find_the_best_continuations_of_all(penalty):
    """Against brute force: every continuation of up to four of five tokens, scored by hand."""
    few = Tokens(5, pad_id=PAD, bos_id=BOS, eos_id=EOS)
    words = (0, 1, 2, 4)
    every = [[*s, EOS] for n in range(4) for s in product(words, repeat=n)]
    every += [list(s) for s in product(words, repeat=4)]
    winners = set()
    for seed in range(6):
        config = replace(decoder_only(source=few), head=LMHead(tied=False))
        net = lively(config, seed)
        prompt = torch.randint(1, 5, (1, 6), generator=torch.Generator().manual_seed(seed))
        scored = []
        width = max(map(len, every))
        rows = torch.tensor([s + [EOS] * (width - len(s)) for s in every])
        with torch.no_grad():
            read = torch.cat([prompt.expand(len(rows), -1), rows], dim=1)
            logp = net(read).logits[:, 5:-1].log_softmax(-1).gather(2, rows[..., None])[..., 0]
        for sequence, each in zip(every, logp, strict=True):
            scored.append((float(each[: len(sequence)].sum()) / len(sequence) ** penalty, sequence))
        scored.sort(reverse=True)
        out = generate(
            net, prompt, max_new_tokens=4, num_beams=len(every), num_return_sequences=3,
            length_penalty=penalty, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        found = [
            row[6 : 6 + len(s)] for row, (_, s) in zip(out.sequences.tolist(), scored, strict=False)
        ]
        assert found == [sequence for _, sequence in scored[:3]]
        assert out.sequences_scores.tolist() == pytest.approx([s for s, _ in scored[:3]], rel=1e-10)
        winners.add(tuple(scored[0][1]))
    assert len(winners) > 2, "the models are too much alike to tell a wrong search"


def test_the_returned_beams_come_best_first_and_are_all_different():
    ids, mask = batch("decoder modern")
    out = generate(
        model("decoder modern"), ids, mask, max_new_tokens=8, num_beams=5, num_return_sequences=4,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    assert out.sequences.shape[0] == 4 * len(ids)
    for scores, rows in zip(
        out.sequences_scores.view(-1, 4), out.sequences.view(6, 4, -1), strict=True
    ):
        assert scores.tolist() == sorted(scores.tolist(), reverse=True)
        assert len({tuple(row) for row in rows.tolist()}) == 4
    # the prompt stands before each of them
    assert torch.equal(out.sequences[:, : ids.shape[1]], ids.repeat_interleave(4, dim=0))


# --- streaming ---------------------------------------------------------------------------------


class Listener:
    def __init__(self) -> None:
        self.heard: list[Tensor] = []
        self.ended = 0

    def put(self, value: Tensor) -> None:
        assert value.device.type == "cpu"
        self.heard.append(value)

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "num_return_sequences": 2}])
@pytest.mark.parametrize("kind", ["decoder modern", "seq2seq modern"])
def test_a_streamer_hears_the_prompt_and_then_each_token(kind, options):
    listener = Listener()
    out = generate(
        model(kind),
        *batch(kind),
        max_new_tokens=11,
        eos_token_id=ENDS,
        streamer=listener,
        **options,
    )
    prompt, *new = listener.heard
    assert prompt.ndim == 2
    assert all(token.shape == (len(out),) for token in new)
    assert torch.cat([prompt, torch.stack(new, dim=1)], dim=1).tolist() == out.tolist()
    assert listener.ended == 1


def test_a_streamer_cannot_follow_beams():
    with pytest.raises(ConfigError, match="streamer cannot follow num_beams=2; set num_beams=1"):
        generate(model("decoder paper"), tokens(1, 3), streamer=Listener(), num_beams=2)


# --- what comes back ---------------------------------------------------------------------------


def test_what_comes_back_can_be_trained_on():
    net = model("decoder paper")
    for options in ({}, {"num_beams": 2}):
        out = generate(net, tokens(2, 4), max_new_tokens=3, **options)
        assert not out.is_inference()
        net(out, labels=out).loss.backward()
    net.zero_grad()
    full = generate(
        net, tokens(2, 4), max_new_tokens=3, num_beams=2, return_dict_in_generate=True,
        output_scores=True, output_logits=True,
    )  # fmt: skip
    assert not any(x.is_inference() for x in (full.sequences_scores, *full.scores, *full.logits))


def test_scores_are_only_there_when_asked_for():
    net, ids = model("decoder paper"), tokens(1, 4)
    plain = generate(net, ids, max_new_tokens=2, num_beams=2, return_dict_in_generate=True)
    assert plain.scores is plain.logits is plain.sequences_scores is None
    assert plain.sequences.tolist() == generate(net, ids, max_new_tokens=2, num_beams=2).tolist()


@pytest.mark.parametrize("beams", [1, 3])
def test_scores_that_somebody_has_are_not_written_over(beams):
    ids, mask = batch("decoder modern")
    seen = []

    def keep(_, scores, rows):
        seen.append(scores)
        return scores

    options = {"max_new_tokens": 4, "min_new_tokens": 4, "num_beams": beams, "eos_token_id": 9}
    options |= {"suppress_tokens": [5, 6], "do_sample": False}
    told = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    net = model("decoder modern")
    plain = generate(net, ids, mask, **options)
    out = generate(net, ids, mask, **options, **told)
    heard = generate(net, ids, mask, processors=[keep], **options)
    assert torch.equal(plain, out.sequences)
    assert torch.equal(plain, heard)
    for logits, scores, kept in zip(out.logits, out.scores, seen, strict=True):
        assert logits.isfinite().all()
        wanted = logits.log_softmax(-1) if beams > 1 else logits
        wanted = wanted.index_fill(1, torch.tensor([5, 6, 9]), float("-inf"))
        assert torch.equal(scores, wanted)
        assert torch.equal(kept, wanted)


def test_no_rows_give_no_rows():
    assert generate(model("decoder paper"), tokens(0, 4), max_new_tokens=2).shape == (0, 4)


# --- limits ------------------------------------------------------------------------------------


def test_max_length_counts_the_prompt_and_max_new_tokens_wins():
    net, ids = model("decoder paper"), tokens(2, 7)
    free = {"eos_token_id": None}
    assert generate(net, ids, max_length=9, **free).shape == (2, 9)
    assert generate(net, ids, max_length=9, max_new_tokens=5, **free).shape == (2, 12)
    with pytest.raises(
        ConfigError, match="max_length=7 counts the prompt, which has 7 tokens; try"
    ):
        generate(net, ids, max_length=7)
    with pytest.warns(UserWarning, match="at most 20 tokens are generated"):
        assert generate(net, ids, **free).shape == (2, 27)
    with pytest.warns(UserWarning, match="min_new_tokens=4 is more than the 3"):
        generate(net, ids, max_new_tokens=3, min_new_tokens=4)


def test_learned_positions_are_counted_before_any_work(monkeypatch):
    net = model("decoder modern")  # 64 positions
    fits = generate(net, tokens(1, 60), max_new_tokens=5, eos_token_id=None)
    assert fits.shape == (1, 65)  # the last token is said, not read
    with pytest.warns(UserWarning, match="at most 4 tokens"):
        assert generate(net, tokens(1, 60), eos_token_id=None).shape == (1, 64)
    padded = torch.nn.functional.pad(tokens(1, 60), (9, 0))
    mask = torch.nn.functional.pad(torch.ones(1, 60), (9, 0))
    again = generate(net, padded, mask, max_new_tokens=5, eos_token_id=None)
    assert again[:, 9:].tolist() == fits.tolist()

    def step(*args, **kwargs):
        raise AssertionError("work was done")

    monkeypatch.setattr(DecoderOnlyModel, "step", step)
    way_out = r"60 tokens and max_new_tokens=6 .* 64; try max_new_tokens=5"
    with pytest.raises(LengthError, match=way_out):
        generate(net, tokens(1, 60), max_new_tokens=6)
    with pytest.raises(LengthError, match="shorten or split the prompt"):
        generate(net, tokens(1, 70), max_new_tokens=1)

    monkeypatch.setattr(EncoderDecoderModel, "encode", step)
    for options in ({"max_new_tokens": 65}, {"max_new_tokens": 2, "stop_strings": "x"}):
        with pytest.raises((LengthError, ConfigError), match=r"try max_new_tokens=64|stop_strings"):
            generate(model("seq2seq modern"), tokens(1, 6), **options)


def test_an_end_in_the_prompt_does_not_end_anything():
    ids = torch.tensor([[5, EOS, 7, EOS]])
    assert generate(model("decoder paper"), ids, max_new_tokens=4, min_new_tokens=4).shape == (1, 8)


def test_time_runs_out(monkeypatch):
    from allformer.generate import stop

    ticks = iter(range(1000))
    monkeypatch.setattr(stop.time, "monotonic", lambda: next(ticks))
    for options in ({}, {"num_beams": 2}):
        out = generate(
            model("decoder paper"), tokens(2, 4), max_new_tokens=30, max_time=3.5,
            eos_token_id=None, pad_token_id=1, **options,
        )  # fmt: skip
        assert out.shape == (2, 8)


# --- prompts -----------------------------------------------------------------------------------


def test_an_empty_prompt_starts_from_the_start_token():
    net = model("decoder paper")
    want = generate(net, torch.tensor([[BOS]]), max_new_tokens=5)
    assert generate(net, max_new_tokens=5).tolist() == want.tolist()
    empty = torch.empty(2, 0, dtype=torch.long)
    assert generate(net, empty, max_new_tokens=5).tolist() == want.tolist() * 2
    with pytest.raises(ConfigError, match="prompt is empty and bos_token_id is None; give one"):
        generate(net, max_new_tokens=5, bos_token_id=None)


def test_a_prompt_that_ends_in_padding_is_refused():
    net, mask = model("decoder paper"), right_padding([4, 2], 4)
    with pytest.raises(ConfigError, match=r"attention_mask says that row 1 .* pad on the left"):
        generate(net, tokens(2, 4), mask, max_new_tokens=2)
    with pytest.raises(
        ConfigError, match=r"pad_token_id=0 says that row 1 .* or give attention_mask"
    ):
        generate(net, tokens(2, 4) * mask, max_new_tokens=2)
    assert generate(net, tokens(2, 4) * mask, torch.ones(2, 4), max_new_tokens=2).shape == (2, 6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            (torch.tensor([1, 2]),),
            r"must be whole numbers, rows × tokens; try torch.tensor\(\[ids\]\)",
        ),
        (([[1, 2]],), "input_ids=list must be whole numbers"),
        ((torch.ones(1, 2),), "input_ids=torch.float32"),
        ((torch.tensor([[5, 37]]),), "input_ids has 5 … 37, but the vocabulary is 0 … 36"),
        ((torch.tensor([[-1, 3]]),), "input_ids has -1 … 3"),
        ((torch.tensor([[5, 7]]), torch.ones(1, 3)), r"shape \(1, 3\), but input_ids \(1, 2\)"),
    ],
)
def test_input_that_is_none_is_refused(inputs, message):
    with pytest.raises(ConfigError, match=message):
        generate(model("decoder paper"), *inputs, max_new_tokens=2)


def test_the_decoders_start_is_checked():
    net, ids = model("seq2seq paper"), tokens(2, 3)
    with pytest.raises(ConfigError, match="has 3 ids for 2 rows; give one, or one each"):
        generate(net, ids, max_new_tokens=2, decoder_start_token_id=[1, 2, 3])
    with pytest.raises(ConfigError, match="needs decoder_start_token_id or bos_token_id"):
        generate(net, ids, max_new_tokens=2, bos_token_id=None, decoder_start_token_id=None)
    with pytest.raises(ConfigError, match=r"decoder_input_ids=.* must be 2 rows"):
        generate(net, ids, max_new_tokens=2, decoder_input_ids=tokens(1, 3))
    with pytest.raises(ConfigError, match="decoder_input_ids is for an encoder-decoder"):
        generate(model("decoder paper"), ids, max_new_tokens=2, decoder_input_ids=ids)


def test_a_model_without_a_decoder_is_refused():
    with pytest.raises(ConfigError, match="EncoderOnlyModel cannot generate: it has no decoder"):
        generate(build(encoder_only()), tokens(1, 3), max_new_tokens=2)


# --- options -----------------------------------------------------------------------------------


def test_options_win_over_the_config_and_the_config_over_the_models_own():
    net = lively(replace(KINDS["decoder paper"], head=LMHead(tied=False)), seed=3)
    ids = tokens(1, 4)
    said = GenerationConfig(max_new_tokens=3, eos_token_id=None, bos_token_id=7)
    net.provenance.generation = said
    assert generate(net, ids).shape == (1, 7)
    assert generate(net)[0, 0] == 7
    given = GenerationConfig(max_new_tokens=5)
    assert generate(net, ids, generation=given).shape == (1, 9)
    assert generate(net, ids, generation_config=given).shape == (1, 9)
    assert generate(net, ids, generation=given, max_new_tokens=6).shape == (1, 10)


def test_an_option_can_be_taken_back_with_none():
    net, ids = model("decoder paper"), tokens(2, 6, seed=8)
    own = GenerationConfig(max_new_tokens=12, suppress_tokens=list(range(4, 30)), eos_token_id=ENDS)
    plain = generate(net, ids, max_new_tokens=12, eos_token_id=None)
    held = generate(net, ids, generation=own)
    assert held.tolist() != plain.tolist()
    back = generate(net, ids, generation=own, suppress_tokens=None, eos_token_id=None)
    assert back.tolist() == plain.tolist()
    # top_k is 50 unless it is taken back: nobody says so, but transformers does it
    assert GenerationConfig(top_k=None).top_k is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be a whole number of at least 1"),
        (
            {"num_beams": 2, "num_return_sequences": 3},
            "must be at most num_beams=2; try num_beams=3",
        ),
        ({"num_return_sequences": 2}, "greedy search finds one sequence; set num_beams=2"),
        ({"do_sample": True, "temperature": 0.0}, "temperature=0 .* use do_sample=False"),
        ({"do_sample": True, "temperature": -1.0}, "temperature=-1.0 must be a number above 0"),
        ({"num_beam": 3}, "no option 'num_beam'; did you mean num_beams?"),
        ({"qqqq": 3}, "no option 'qqqq'; see GenerationConfig"),
        ({"num_beam_groups": 2}, "num_beam_groups=2 is not supported; use num_beams alone"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6 is not supported; leave it out"),
        ({"stop_strings": "x"}, "stop_strings needs the tokeniser .* give tokenizer="),
        ({"sequence_bias": {(99,): 1.0}}, "has token 99, but the vocabulary ends at 36"),
        ({"forced_bos_token_id": 99}, r"forced_bos_token_id=\[99\] must lie in the vocabulary"),
        ({"logits_processor": [len]}, r"logits_processor=.* give processors=\[lambda ids, scores"),
        ({"stopping_criteria": [len]}, "stopping_criteria=.* use stop_strings or max_time"),
        ({"cache_implementation": "statik"}, "cache_implementation='statik' is not supported"),
        ({"streamer": 3}, r"streamer=3 must have put\(ids\) and end\(\)"),
        ({"length_penalty": 1e3, "num_beams": 2}, "length_penalty=1000.0 must be a finite number"),
        ({"generation_config": {"num_beams": 2}}, "generation=dict must be allformer's"),
        ({"generator": 5}, "generator=5 must be a torch.Generator"),
        ({"processors": len}, "processors=.* must be a list of functions"),
        ({"structured": "[0-9]"}, "must be a Structured; try Structured.regex"),
        ({"prefix": True}, "prefix=True must be a Prefix"),
        ({"limits": 3}, "limits=3 must be a list of whole numbers"),
        ({"attention_mask": [[1, 1, 1]]}, "attention_mask=list must be a tensor"),
        ({"dtype": "bf16"}, "dtype='bf16' cannot be computed in; try torch.bfloat16"),
        ({"dtype": torch.long}, "dtype=torch.int64 cannot be computed in"),
        ({"inputs_embeds": torch.ones(1)}, "inputs_embeds=.* is not supported; give input_ids"),
        (
            {"exponential_decay_length_penalty": (1, 1.1), "eos_token_id": None},
            r"eos_token_id=\[\] must lie in the vocabulary",
        ),
        (
            {"num_beams": 2, "stop_strings": "x", "eos_token_id": None, "pad_token_id": None},
            "give pad_token_id|stop_strings needs",
        ),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_a_way_out(options, message):
    with pytest.raises(ConfigError, match=message):
        generate(model("decoder paper"), tokens(1, 3), **{"max_new_tokens": 2} | options)


@pytest.mark.parametrize("more", [{}, {"do_sample": True}, {"num_beams": 3}], ids=str)
@pytest.mark.parametrize("factor", [1e300, 10**300], ids=["float", "int"])
def test_the_end_is_no_likelier_than_a_number_can_say(factor, more):
    net, ids = model("decoder paper"), tokens(2, 3)
    end = {"eos_token_id": 5, "pad_token_id": 0, "min_new_tokens": 3}
    decay = {"exponential_decay_length_penalty": (0, factor)}
    out = generate(net, ids, max_new_tokens=6, **end, **decay, **more)
    assert out[:, 6].tolist() == [5, 5]  # factor³ is far beyond any dtype


def test_options_that_change_nothing_may_stand():
    net, ids = model("decoder paper"), tokens(1, 5)
    neutral = {
        "num_beam_groups": 1, "diversity_penalty": 0.0, "penalty_alpha": 0.0, "guidance_scale": 1,
        "cache_implementation": "static", "logits_processor": [], "synced_gpus": False,
        "typical_p": 1.0, "assistant_model": None, "low_memory": True, "top_p": 1.0,
    }  # fmt: skip
    plain = generate(net, ids, max_new_tokens=6)
    assert generate(net, ids, max_new_tokens=6, **neutral).tolist() == plain.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "temperature=0.5 does nothing without do_sample=True"),
        ({"top_p": 0.5}, "top_p=0.5 does nothing without do_sample=True"),
        ({"length_penalty": 2.0}, "length_penalty=2.0 does nothing without num_beams > 1"),
        ({"early_stopping": True}, "early_stopping=True does nothing without num_beams > 1"),
        (
            {"num_assistant_tokens": 3},
            "num_assistant_tokens=3 does nothing without assistant_model",
        ),
        ({"max_matching_ngram_size": 3}, "does nothing without prompt_lookup_num_tokens"),
    ],
)
def test_an_option_that_does_nothing_says_so(options, message):
    with pytest.warns(UserWarning, match=message):
        generate(model("decoder paper"), tokens(1, 3), max_new_tokens=1, **options)


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}]
)
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda scores: None, "a processor gave NoneType for scores; return the scores"),
        (lambda scores: scores.long(), "a processor gave torch.int64 for scores"),
        (lambda scores: scores[:, :5], r"a processor made scores of \(\d, 5\) from \(\d, 37\)"),
        (lambda scores: scores[:1], "a processor made scores of"),
    ],
)
def test_a_processor_that_gives_no_scores_is_told_of(options, made, message):
    with pytest.raises(ConfigError, match=message):
        generate(
            model("decoder paper"), tokens(2, 5), max_new_tokens=3,
            processors=[lambda ids, scores, rows: made(scores)], **options,
        )  # fmt: skip


# --- numbers that are none ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 2}, {"do_sample": True}, {"do_sample": True, "num_beams": 2}]
)
def test_scores_that_are_not_numbers_stop_everything(options):
    net = lively(replace(KINDS["decoder paper"], head=LMHead(tied=False)), seed=3)
    with torch.no_grad():
        net.head.table.weight[11] = float("nan")
    with pytest.raises(GenerationError, match=r"not numbers \(NaN\); look for NaN in the weights"):
        generate(net, tokens(2, 3), max_new_tokens=2, **options)
    if not options:  # beams have made them log-probabilities before: all of them NaN
        generate(net, tokens(2, 3), max_new_tokens=2, remove_invalid_values=True)


def test_a_draw_from_nothing_is_refused():
    with pytest.raises(GenerationError, match="do not forbid every token"):
        generate(
            model("decoder paper"), tokens(1, 3), max_new_tokens=2, do_sample=True,
            suppress_tokens=list(range(37)),
        )  # fmt: skip


def test_a_generator_must_draw_where_the_model_is():
    with pytest.raises(
        ConfigError, match=r"generator draws on meta, but the model is on cpu; make"
    ):
        generate(
            model("decoder paper"), tokens(1, 3), max_new_tokens=1, do_sample=True,
            generator=_Elsewhere(),
        )  # fmt: skip


class _Elsewhere:
    device = torch.device("meta")
