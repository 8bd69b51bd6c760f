"""Write transfo_xl.json: what the last transformers with Transformer-XL makes of tiny models.

In an environment of its own, as transformers 5 has no such class:

    pip install torch "transformers==4.35.2" "numpy<2" sacremoses
    python tests/parity/make_transfo_xl.py

Weights are made by name and shape (`loud`), so that the record holds none of them. All in fp64; the
one place where the reference narrows its scores to fp32 is told not to, as it would overflow there.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("transfo_xl.json")
SIZES = {
    "vocab_size": 40, "d_model": 16, "d_embed": 16, "n_head": 2, "d_head": 6, "d_inner": 24,
    "n_layer": 3, "eos_token_id": 0, "adaptive": True,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "post": (
        "TransfoXLLMHeadModel",
        {"cutoffs": [10, 20], "div_val": 2, "mem_len": 7, "clamp_len": 9, "same_length": False},
    ),
    "pre": (
        "TransfoXLLMHeadModel",
        {
            "cutoffs": [12, 24], "div_val": 1, "d_embed": 12, "mem_len": 8, "clamp_len": -1,
            "same_length": True, "pre_lnorm": True, "untie_r": False, "d_head": 8,
        },
    ),
    "plain": (
        "TransfoXLLMHeadModel",
        {
            "cutoffs": [], "div_val": 1, "mem_len": 0, "clamp_len": 5, "same_length": False,
            "tie_word_embeddings": False,
        },
    ),
    "loose": (
        "TransfoXLLMHeadModel",
        {
            "cutoffs": [15], "div_val": 2, "mem_len": 20, "clamp_len": 0, "same_length": True,
            "tie_word_embeddings": False, "proj_share_all_but_first": False, "pre_lnorm": True,
        },
    ),
    "class": (
        "TransfoXLForSequenceClassification",
        {
            "cutoffs": [10], "div_val": 4, "mem_len": 5, "clamp_len": 4, "same_length": True,
            "num_labels": 3, "pad_token_id": 39,
        },
    ),
    "bare": (
        "TransfoXLModel",
        {"cutoffs": [], "div_val": 2, "mem_len": 6, "clamp_len": -1, "same_length": False},
    ),
}  # fmt: skip
LENGTHS = (6, 11, 4)  # of the segments


def loud(name: str, shape: tuple[int, ...]) -> Any:
    """Weights that are heard: matrices ≈ 1.5/√fan_in, gains 1 ± 0.3, biases ± 0.3."""
    draw = np.random.RandomState(zlib.crc32(name.encode())).randn(*shape)
    if "layer_norm.weight" in name:
        return 1 + 0.3 * draw
    if "emb_layers" in name or ("out_layers" in name and len(shape) == 2):
        return draw * 0.7
    if len(shape) == 1 or "_bias" in name:
        return 0.3 * draw
    return draw * 1.5 / shape[-1] ** 0.5


def probe(name: str, shape: tuple[int, ...]) -> Any:
    """What a gradient is multiplied by, so that one number stands for it."""
    return np.random.RandomState(zlib.crc32(name.encode()) ^ 1).randn(*shape)


def segments(seed: int) -> list[Any]:
    """Ids of three segments of two rows."""
    draw = np.random.RandomState(seed)
    return [draw.randint(0, 39, (2, length)) for length in LENGTHS]


def packed(x: Any) -> dict[str, Any]:
    """An array as JSON."""
    x = np.array(x, dtype=np.float64, order="C")
    return {"shape": list(x.shape), "data": base64.b64encode(x.tobytes()).decode()}


def unpacked(x: dict[str, Any]) -> Any:
    """The inverse."""
    return np.frombuffer(base64.b64decode(x["data"]), np.float64).reshape(x["shape"])


def make(case: str) -> dict[str, Any]:
    """One model's record."""
    import torch
    import transformers

    name, changes = CASES[case]
    config = transformers.TransfoXLConfig(**{**SIZES, **changes}, architectures=[name])
    model = getattr(transformers, name)(config).double().eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.from_numpy(loud(key, tuple(p.shape))))
    first = {id(p): key for key, p in model.named_parameters()}
    state = {
        key: [first.get(id(x)), list(x.shape)]
        for key, x in model.state_dict(keep_vars=True).items()
    }
    said: dict[str, Any] = {"config": config.to_dict(), "state": state, "segments": []}
    ids = [torch.from_numpy(x) for x in segments(len(case))]
    mems, total = None, torch.zeros((), dtype=torch.float64)
    for segment in ids:
        out = model(segment, mems=mems, output_hidden_states=True)
        one = {"hidden": packed(out.hidden_states[-1].detach())}
        scores = out.prediction_scores if "LMHead" in name else getattr(out, "logits", None)
        if scores is not None:
            one["scores"] = packed(scores.detach())
        if "LMHead" in name:
            labels = segment.clone()
            labels[1, :3] = -100
            loss = model(segment, mems=mems, labels=labels).loss
            one["loss"] = packed(loss.detach())
            total = total + loss
        mems = out.mems
        said["segments"].append(one)
    if mems is not None:
        said["mems"] = packed(torch.stack(list(mems)))
    if "LMHead" in name:
        total.backward()
        said["gradients"] = {
            key: float((p.grad * torch.from_numpy(probe(key, tuple(p.shape)))).sum())
            for key, p in model.named_parameters()
        }
        said["generated"] = model.generate(
            ids[0], max_new_tokens=12, do_sample=False, eos_token_id=0, pad_token_id=39
        ).tolist()
    if case == "post":
        said["longer"] = longer(model, ids)
    return said


def longer(model: Any, ids: list[Any]) -> list[Any]:
    """The same segments with a memory of 15 tokens, more than the model was made for."""
    import torch

    model.reset_memory_length(15)
    found, mems = [], None
    with torch.no_grad():
        for segment in ids:
            out = model(segment, mems=mems)
            mems = out.mems
            found.append(packed(out.prediction_scores))
    return found


def main() -> None:
    """All cases into the file."""
    import torch
    import transformers

    assert transformers.__version__ == "4.35.2", transformers.__version__
    torch.Tensor.float = lambda self: self  # type: ignore[method-assign, assignment]
    record = {case: make(case) for case in CASES}
    FILE.write_text(json.dumps(record, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
