"""Loud tiny models with loud adapters of PEFT's, compared with ours: disk to disk, in fp64."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers as hf
from torch import Tensor

import allformer as af
from tests.parity import zoo

TOLERANCE = 1e-10
WIDE = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
PAIR = {
    "vocab_size": 60, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "max_position_embeddings": 40, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
T5 = {
    "vocab_size": 60, "d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 3,
    "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip
WHISPER = {
    **PAIR, "max_source_positions": 20, "max_target_positions": 30, "num_mel_bins": 8,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
WHISPER.pop("max_position_embeddings")
GPT2 = {
    "vocab_size": 60, "n_positions": 40, "n_embd": 24, "n_layer": 2, "n_head": 2,
    "bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
QUIET = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def texts(**more: Tensor) -> dict[str, Tensor]:
    """Two rows, the second shorter."""
    make = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 60, (2, 9), generator=make)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask, **more}


def words() -> dict[str, Tensor]:
    """The same, each token to be said but the first: with PEFT's prompts that is one too."""
    inputs = texts()
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    labels[:, 0] = -100
    return {**inputs, "labels": labels}


def classes() -> dict[str, Tensor]:
    """The same, of one class each."""
    return texts(labels=torch.tensor([2, 0]))


def pairs() -> dict[str, Tensor]:
    """The same, with a text to be said."""
    return texts(labels=torch.tensor([[5, 6, 7, 8], [9, 10, 2, -100]]))


def pictures() -> dict[str, Tensor]:
    """Two small images, of one class each."""
    make = torch.Generator().manual_seed(3)
    pixels = torch.randn(2, 3, 8, 8, generator=make, dtype=torch.float64)
    return {"pixel_values": pixels, "labels": torch.tensor([1, 2])}


def sounds() -> dict[str, Tensor]:
    """Two spectrograms, with a text to be said."""
    make = torch.Generator().manual_seed(3)
    mel = torch.randn(2, 8, 40, generator=make, dtype=torch.float64)
    return {"input_features": mel, "labels": torch.tensor([[5, 6, 7, 8], [9, 10, 2, -100]])}


@dataclass(frozen=True)
class Base:
    """A model of transformers', its inputs, and PEFT's task."""

    make: Callable[[], Any]
    inputs: Callable[[], dict[str, Tensor]]
    task: str | None
    lora: tuple[str, ...]  # modules that LoRA changes


BASES = {
    "bert": Base(
        lambda: hf.BertForSequenceClassification(
            hf.BertConfig(vocab_size=60, num_labels=3, **WIDE, **STILL)
        ),
        classes, "SEQ_CLS", ("query", "value", "attention.output.dense"),
    ),
    "gpt2": Base(
        lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)), words, "CAUSAL_LM",
        ("c_attn", "mlp.c_proj"),
    ),
    "llama": Base(
        lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(vocab_size=60, num_key_value_heads=1, pad_token_id=0, **WIDE)
        ),
        words, "CAUSAL_LM", ("q_proj", "k_proj", "gate_proj", "down_proj"),
    ),
    "t5": Base(
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)), pairs, "SEQ_2_SEQ_LM",
        ("q", "v", "wi_0"),
    ),
    "bart": Base(
        lambda: hf.BartForConditionalGeneration(hf.BartConfig(**PAIR, **QUIET)), pairs,
        "SEQ_2_SEQ_LM", ("q_proj", "v_proj", "fc2"),
    ),
    "vit": Base(
        lambda: hf.ViTForImageClassification(
            hf.ViTConfig(image_size=8, patch_size=4, num_labels=3, **WIDE, **STILL)
        ),
        pictures, None, ("q_proj", "v_proj", "mlp.fc1"),
    ),
    "whisper": Base(
        lambda: hf.WhisperForConditionalGeneration(hf.WhisperConfig(**WHISPER, **QUIET)), sounds,
        None, ("q_proj", "v_proj", "out_proj"),
    ),
}  # fmt: skip


@cache
def _place() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


@cache
def base(name: str) -> tuple[Any, Path]:
    """transformers' model, loud, in fp64 and eval mode, and where it lies; leave it as it is."""
    case = zoo.Case(name, lambda _: BASES[name].make(), lambda: None)  # type: ignore[arg-type]
    model = zoo.fresh_oracle(case)
    return model, zoo.on_disk(model, Path(_place().name) / name)


def peft_model(name: str, config: Any, seed: int = 5) -> Any:
    """PEFT's model with a loud adapter, in fp64."""
    import peft

    model = peft.get_peft_model(deepcopy(base(name)[0]), config)
    make = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=make, dtype=torch.float64)
            parameter.data = parameter.data.double() + 0.3 * noise
    return model.eval()


def peft_opens(name: str, path: Path) -> Any:
    """What PEFT makes of an adapter's directory."""
    import peft

    model = peft.PeftModel.from_pretrained(deepcopy(base(name)[0]), path)
    if hasattr(model, "prompt_encoder"):  # in fp32, whatever the model and the file are in
        model.prompt_encoder.double()
        peft.set_peft_model_state_dict(model, files_of(path))
    return model.eval()


def run(model: Any, inputs: dict[str, Any]) -> Any:
    """A model's answer, with nothing narrowed to fp32 inside."""
    with zoo.unrounded():
        return model(**inputs)


def alike(ours: Any, theirs: Any, inputs: dict[str, Any]) -> None:
    """The same loss and scores, where there is no padding."""
    a, b = run(ours, inputs), run(theirs, inputs)
    near(a.loss, b.loss, "loss")
    mask = inputs.get("attention_mask")
    x, y = a.logits, b.logits
    if x.ndim == 3:
        y = y[:, -x.shape[1] :]  # PEFT gives scores of learned tokens too
    if mask is not None and x.shape[:2] == mask.shape:
        x, y = x[mask.bool()], y[mask.bool()]
    near(x, y, "logits")


def near(a: Tensor, b: Tensor, what: str) -> None:
    """To 1e-10 of the largest value."""
    assert a.shape == b.shape, f"{what}: {tuple(a.shape)}, not {tuple(b.shape)}"
    worst = (a.double() - b.double()).abs().max().item()
    limit = TOLERANCE * max(1.0, b.abs().max().item())
    assert worst <= limit, f"{what} differs by {worst:.3g}"


def step(model: Any, inputs: dict[str, Any], optimiser: Callable[..., Any], **how: Any) -> None:
    """One step of what is trained."""
    model.zero_grad()
    run(model, inputs).loss.backward()
    optimiser([p for p in model.parameters() if p.requires_grad], **how).step()


def trains_alike(name: str, theirs: Any, folder: Path) -> None:
    """After a step of SGD (the gradients), then one of AdamW, the files of both are the same."""
    inputs = BASES[name].inputs()
    theirs.save_pretrained(folder / "start")
    ours = af.load(folder / "start", base=base(name)[1])
    # The biases of keys change nothing: their gradients are zero but for rounding, which AdamW
    # would blow up with a smaller eps.
    adam = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-5}
    for number, (kind, how) in enumerate(
        ((torch.optim.SGD, {"lr": 0.1}), (torch.optim.AdamW, adam))
    ):
        step(ours, inputs, kind, **how)
        step(theirs, inputs, kind, **how)
        same_files(ours, theirs, folder / str(number))
    alike(ours, theirs, inputs)


def same_files(ours: Any, theirs: Any, folder: Path) -> None:
    """Both write the same tensors under the same names."""
    assert af.save_adapter(ours, folder / "ours") == "peft"
    theirs.save_pretrained(folder / "theirs")
    mine, wanted = files_of(folder / "ours"), files_of(folder / "theirs")
    assert mine.keys() == wanted.keys()
    for key, tensor in wanted.items():
        near(mine[key], tensor, key)


def files_of(path: Path) -> dict[str, Tensor]:
    """Every tensor of an adapter's file."""
    from safetensors.torch import load_file

    return load_file(path / "adapter_model.safetensors")
