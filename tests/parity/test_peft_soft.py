"""Prefix- and prompt-tuning against PEFT: outputs, gradients, and what is generated, in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import allformer as af
from allformer import tune
from tests.parity.zoo import Case, batch, fresh_oracle, on_disk, unrounded

peft = pytest.importorskip("peft")
P = 3
SMALL = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def llama() -> Any:
    return hf.LlamaConfig(
        **SMALL, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96,
    )  # fmt: skip


def gpt2() -> Any:
    return hf.GPT2Config(**SMALL, n_embd=32, n_layer=2, n_head=4, n_positions=96)


def bert() -> Any:
    return hf.BertConfig(
        **SMALL, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=96, num_labels=3,
    )  # fmt: skip


def t5() -> Any:
    return hf.T5Config(
        **SMALL, d_model=32, d_kv=8, d_ff=40, num_layers=3, num_heads=4, decoder_start_token_id=0,
    )  # fmt: skip


def bart() -> Any:
    return hf.BartConfig(
        **SMALL, d_model=32, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40,
        max_position_embeddings=96, decoder_start_token_id=2, scale_embedding=True,
    )  # fmt: skip


CASES = {
    "gpt2": (Case("gpt2", hf.GPT2LMHeadModel, gpt2), "CAUSAL_LM"),
    "llama": (Case("llama", hf.LlamaForCausalLM, llama), "CAUSAL_LM"),
    "bert": (
        Case("bert", hf.BertForSequenceClassification, bert, labels="class"),
        "SEQ_CLS",
    ),
    "t5": (Case("t5", hf.T5ForConditionalGeneration, t5), "SEQ_2_SEQ_LM"),
    "bart": (Case("bart", hf.BartForConditionalGeneration, bart), "SEQ_2_SEQ_LM"),
}


def theirs(name: str, kind: str, path: Any) -> Any:
    """PEFT's model; its base is written to `path`."""
    case, task = CASES[name]
    base = fresh_oracle(case)
    on_disk(base, path)
    config: Any
    if kind == "prompt":
        config = peft.PromptTuningConfig(task_type=task, num_virtual_tokens=P)
    else:
        config = peft.PrefixTuningConfig(
            task_type=task, num_virtual_tokens=P, prefix_projection=kind == "made",
            encoder_hidden_size=7,
        )  # fmt: skip
    torch.manual_seed(3)
    model = peft.get_peft_model(base, config).eval()
    model.prompt_encoder.double()
    return model


def ours(name: str, kind: str, model: Any, path: Any) -> Any:
    """The same base, and the same numbers in our adapter."""
    mine = af.load(path, dtype=torch.float64)
    method = tune.Prompt(P) if kind == "prompt" else tune.Prefix(P, 7 if kind == "made" else None)
    tune.apply(mine, method, seed=0)
    tune.load_adapter_state(mine, "default", put(name, mine, encoder_of(model)))
    return mine.eval()


def encoder_of(model: Any) -> dict[str, Tensor]:
    return dict(model.prompt_encoder["default"].named_parameters())


NAMES = {
    "table": "embedding.weight", "into": "transform.0.weight", "into_bias": "transform.0.bias",
    "out": "transform.2.weight", "out_bias": "transform.2.bias",
}  # fmt: skip


def put(name: str, mine: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """PEFT's tensors (or their gradients) by our names."""
    found = dict(tune.adapter_state(mine))
    for path, there in found.items():
        last = path.rpartition(".")[2]
        if last in NAMES and NAMES[last] in given and ".delta." in path:
            wide = given[NAMES[last]].detach()
            found[path] = ordered(name, last, wide, there.shape)
    return found


def ordered(name: str, last: str, wide: Tensor, shape: Any) -> Tensor:
    """Of an encoder-decoder PEFT cuts the table of prefixes so that layer i has the keys 4i and the
    values 4i + 1 of 2L, counted round; of the vectors of a prompt it reads the first half."""
    if CASES[name][1] != "SEQ_2_SEQ_LM":
        return wide
    if wide.shape != shape:
        return wide[:P]
    if last in ("into", "into_bias") or (last == "table" and wide.shape[1] == 32):
        return wide
    axis = 1 if last == "table" else 0
    parts = wide.unflatten(axis, (6, 32)).movedim(axis, 0)  # three layers
    turned = torch.stack([parts[(4 * i + j) % 6] for i in range(3) for j in range(2)])
    return turned.movedim(0, axis).flatten(axis, axis + 1)


def inputs_of(name: str, model: Any, side: str = "right") -> dict[str, Tensor]:
    case, _ = CASES[name]
    given = batch(case, model.get_base_model(), side)
    given["attention_mask"] = given.get("attention_mask", torch.ones_like(given["input_ids"]))
    if "decoder_input_ids" in given:
        given["decoder_input_ids"] = given["decoder_input_ids"][:, :9]
    return given


def check_forward(name: str, kind: str, path: Any) -> None:
    """Outputs where there is no padding, and the gradients of all that is learned."""
    model = theirs(name, kind, path)
    mine = ours(name, kind, model, path)
    given = inputs_of(name, model)
    with unrounded():
        expected, found = model(**given).logits, mine(**given).logits
    if expected.ndim == 3 and expected.shape[1] > found.shape[1]:
        expected = expected[:, P:]
    if expected.ndim == 3 and CASES[name][1] == "CAUSAL_LM":
        keep = given["attention_mask"].bool()
        expected, found = expected[keep], found[keep]
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(4)).double()
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    grads = put(name, mine, {n: p.grad for n, p in encoder_of(model).items()})
    tuning = mine.tuning
    for where, parameter in tuning.parameters_of("default"):
        if ".delta." not in where:
            continue
        torch.testing.assert_close(parameter.grad, grads[where], atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("kind", ["prefix", "made", "prompt"])
@pytest.mark.parametrize("name", list(CASES))
def test_peft_gives_the_same(name, kind, tmp_path):
    check_forward(name, kind, tmp_path)


@pytest.mark.parametrize("kind", ["prefix", "prompt"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart"])
@pytest.mark.filterwarnings("ignore:Position ids are not supported")
def test_peft_writes_the_same(name, kind, tmp_path):
    model = theirs(name, kind, tmp_path)
    mine = ours(name, kind, model, tmp_path)
    ids = inputs_of(name, model, "none")["input_ids"][:2, :7]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for beams in (1, 3):
        how = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams}
        with torch.no_grad(), unrounded():
            expected, found = model.generate(**given, **how), mine.generate(**given, **how)
        assert torch.equal(found[:, -6:], expected[:, -6:])
