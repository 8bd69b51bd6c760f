"""Loud tiny models of transformers, and how they are compared with ours: disk to disk, in fp64.

With the default initialisation (std 0.02) wrong activations, swapped norms and missing scalings
hide below any tolerance; loud weights show them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import allformer as af
from allformer.core.model import AnyModel
from allformer.families import FAMILIES
from allformer.families.config_json import file_keys
from allformer.families.weights import save_tensor
from tests.loud import make_loud

LENGTHS = (61, 48, 7, 1)  # past the buckets and rotary thresholds; one token alone
OUTPUTS = (
    "logits",
    "last_hidden_state",
    "pooler_output",
    "start_logits",
    "end_logits",
    "prediction_logits",
    "seq_relationship_logits",
    "sop_logits",
    "encoder_last_hidden_state",
)


@dataclass(frozen=True, eq=False)  # each is itself: the key of its oracle
class Case:
    """One model of transformers: `Case("gpt2", GPT2LMHeadModel, lambda: GPT2Config(...))`."""

    name: str
    model: type
    config: Callable[[], Any]
    tolerance: float = 1e-10
    labels: str = "words"  # words, token, class, span, choice, pretrain or none
    positions: bool = False  # give transformers the positions that count real tokens
    options: dict[str, Any] = field(default_factory=dict)


@contextmanager
def unrounded() -> Iterator[None]:
    """transformers narrows to fp32 inside RMSNorm, Longformer's softmax and its losses; here fp64
    stays fp64.

    What is left is the formula, which must agree to 1e-10. (As it stands, with its rounding,
    RMS families agree to 1e-6: `compare_as_it_is`.)
    """
    plain_to, plain_float = torch.Tensor.to, torch.Tensor.float
    plain_softmax = torch.nn.functional.softmax

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        narrow = torch.float32 in args or kwargs.get("dtype") == torch.float32
        return self if self.dtype == torch.float64 and narrow else plain_to(self, *args, **kwargs)

    def as_float(self: Tensor) -> Tensor:
        return self if self.dtype == torch.float64 else plain_float(self)

    def softmax(x: Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        return plain_softmax(x, *args, dtype=None if x.dtype == torch.float64 else dtype, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", softmax)
        patch.setattr(torch.Tensor, "to", to)
        patch.setattr(torch.Tensor, "float", as_float)
        yield


@cache
def oracle(case: Case) -> Any:
    """transformers' model, loud, fp64, in eval mode: one for all tests, so leave it as it is."""
    return fresh_oracle(case)


def fresh_oracle(case: Case, seed: int = 0) -> Any:
    """The same, for a test that changes it."""
    torch.manual_seed(seed)
    model = case.model(case.config(), **case.options).double().eval()
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if "inv_freq" in name:  # rotary angles are fp32 in every precision
                setattr(module, name, buffer.float())
    model = make_loud(model, seed, tables=None)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model


def on_disk(model: Any, path: Path) -> Path:
    """Written by transformers."""
    model.save_pretrained(path)
    return path


def write_all(cases: list[Case], root: Path) -> dict[str, Path]:
    """Each case as transformers writes it, by its name."""
    return {case.name: on_disk(oracle(case), root / case.name.replace(" ", "-")) for case in cases}


def batch(case: Case, theirs: Any, side: str, seed: int = 1) -> dict[str, Tensor]:
    """Ragged inputs, padded on one side, with everything that the model takes."""
    make = torch.Generator().manual_seed(seed)
    c = theirs.config
    vocab, width = c.vocab_size, max(LENGTHS)
    rows = len(LENGTHS)
    pad = c.pad_token_id if c.pad_token_id is not None else 0
    ids = torch.randint(0, vocab, (rows, width), generator=make)
    specials = {pad, c.eos_token_id} - {None}
    while any((ids == s).any() for s in specials if isinstance(s, int)):
        ids = torch.where(
            sum(ids == s for s in specials).bool(),  # type: ignore[arg-type]
            torch.randint(0, vocab, ids.shape, generator=make),
            ids,
        )
    place = torch.arange(width)[None]
    length = torch.tensor(LENGTHS)[:, None]
    keep = place < length if side != "left" else place >= width - length
    if side == "none":
        keep = torch.ones_like(keep)
    if case.labels in ("class", "span") and c.is_encoder_decoder:
        last = (place * keep).argmax(-1)
        ids[torch.arange(rows), last] = c.eos_token_id
    out = {"input_ids": ids.masked_fill(~keep, pad), "attention_mask": keep.long()}
    if side == "none":
        del out["attention_mask"]
    if getattr(c, "type_vocab_size", 0) and not c.is_encoder_decoder:
        kinds = torch.randint(0, c.type_vocab_size, ids.shape, generator=make)
        out["token_type_ids"] = kinds
    if c.is_encoder_decoder and case.labels not in ("class", "span"):
        targets = getattr(c, "decoder_vocab_size", vocab)
        out["decoder_input_ids"] = torch.randint(3, targets, (rows, 53), generator=make)
    if case.labels == "choice":  # two questions of two choices
        out = {name: x.unflatten(0, (2, -1)) for name, x in out.items()}
    return out


def with_labels(
    case: Case, theirs: Any, inputs: dict[str, Tensor], seed: int = 2
) -> dict[str, Any]:
    """The same with labels, some ignored; ours and theirs take the same names."""
    make = torch.Generator().manual_seed(seed)
    out: dict[str, Any] = dict(inputs)
    ids = out["input_ids"]
    keep = out.get("attention_mask", torch.ones_like(ids)).bool()
    c = theirs.config

    def some(high: int, like: Tensor, mask: Tensor) -> Tensor:
        labels = torch.randint(0, high, like.shape, generator=make)
        drop = torch.rand(like.shape, generator=make) < 0.2
        return labels.masked_fill(drop | ~mask, -100)

    if case.labels == "words" and c.is_encoder_decoder:
        target = out.pop("decoder_input_ids")
        mask = torch.ones_like(target).bool()
        mask[1, 30:] = False
        out["labels"] = some(getattr(c, "decoder_vocab_size", c.vocab_size), target, mask)
        out["labels"][:, 0] = 5
    elif case.labels in ("words", "token", "pretrain"):
        out["labels"] = some(c.vocab_size if case.labels != "token" else c.num_labels, ids, keep)
        first = keep.long().argmax(-1)  # with left padding, padding would predict this one
        out["labels"][torch.arange(len(ids)), first] = -100
    elif case.labels == "class":
        out["labels"] = torch.randint(0, c.num_labels, (len(ids),), generator=make)
    elif case.labels == "choice":
        out["labels"] = torch.tensor([1, 0])
    elif case.labels == "span":
        out["start_positions"] = torch.tensor([3, 5, 0, 99])
        out["end_positions"] = torch.tensor([9, 40, 2, 0])
    if case.labels == "pretrain":
        albert = "Albert" in type(theirs).__name__
        name = "sentence_order_label" if albert else "next_sentence_label"
        out[name] = torch.randint(0, 2, (len(ids),), generator=make)
    return out


def run_both(case: Case, ours: AnyModel, theirs: Any, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """Both outputs; transformers' decoders are told the positions that skip left padding."""
    more = {}
    mask = inputs.get("attention_mask")
    if case.positions and mask is not None:
        more["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)
    with unrounded():
        return ours(**inputs), theirs(**inputs, **more)


def compare(case: Case, ours: AnyModel, theirs: Any, inputs: dict[str, Any]) -> None:
    """Every output that both have, where there is no padding; names the first diverging tap."""
    mine, reference = run_both(case, ours, theirs, inputs)
    keep = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    seen = 0
    for name in OUTPUTS:
        a, b = getattr(mine, name, None), getattr(reference, name, None)
        if b is None:
            continue
        assert a is not None, f"{case.name}: {name} is missing"
        assert a.shape == b.shape, f"{case.name}: {name} is {tuple(a.shape)}, not {tuple(b.shape)}"
        of_input = a.ndim > 1 and a.shape[:2] == keep.shape and "decoder_input_ids" not in inputs
        if of_input or name == "encoder_last_hidden_state":
            a, b = a[keep], b[keep]
        assert b.isfinite().all(), f"{case.name}: transformers' {name} is not finite"
        worst = (a - b).abs().max().item()
        if not worst <= case.tolerance * max(1.0, b.abs().max().item()):
            where = first_divergence(case, ours, theirs, inputs)
            raise AssertionError(f"{case.name}: {name} differs by {worst:.3g}; first at {where}")
        seen += 1
    assert seen, f"{case.name}: nothing was compared"


def compare_as_it_is(case: Case, ours: AnyModel, theirs: Any, inputs: dict[str, Any]) -> None:
    """transformers untouched, fp32 roundings and all: 1e-6 of the length of the whole answer."""
    with torch.no_grad():
        mine, reference = ours(**inputs), theirs(**inputs)
    name = next(name for name in OUTPUTS if getattr(reference, name, None) is not None)
    a, b = getattr(mine, name), getattr(reference, name)
    apart = ((a - b).norm() / b.norm()).item()
    assert apart <= 1e-6, f"{case.name}: {name} by {apart:.3g}"


def first_divergence(case: Case, ours: AnyModel, theirs: Any, inputs: dict[str, Any]) -> str:
    """The first tap that is not what transformers' hidden state there is."""
    more = {}
    if case.positions and "attention_mask" in inputs:
        more["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad(), unrounded():
        reference = theirs(**inputs, **more, output_hidden_states=True)
    seen = af.trace(ours, **inputs)
    stacks = {
        "encoder": getattr(reference, "encoder_hidden_states", None),
        "decoder": getattr(reference, "decoder_hidden_states", None),
    }
    only = "encoder" if hasattr(ours, "encoder") else "decoder"
    if getattr(reference, "hidden_states", None) is not None:
        stacks[only] = reference.hidden_states
    keep = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool().flatten(0, -2)
    for stack, states in stacks.items():
        if states is None:
            continue
        block = getattr(ours.config, stack).blocks[0]
        last = "feed_norm" if block.norm_at == "post" else "feed_added"
        first = "widened" if f"{stack}.widened" in seen else "embedded"
        names = [f"{stack}.{first}", *(f"{stack}.{i}.{last}" for i in range(len(states) - 1))]
        own = getattr(ours.config, stack)
        if own.final_norm is not None and own.flow is None:
            names[-1] = f"{stack}.output"  # transformers norms the last one
        for name, state in zip(names, states, strict=True):
            a, b = seen[name], state[:, : keep.shape[1]]  # some fill rows up
            if a.shape[:2] == keep.shape:
                a, b = a[keep], b[keep]
            if (a - b).abs().max() > case.tolerance * max(1.0, b.abs().max().item()):
                return name
    return "the head"


def their_gradients(ours: AnyModel) -> dict[str, Tensor]:
    """Our gradients under their names, through the weight map."""
    family = FAMILIES[ours.provenance.family]
    grads = {name: p.grad for name, p in ours.named_parameters()}
    out: dict[str, Tensor] = {}
    for op in family.weights(ours.config, ours.provenance.architecture):
        grad = grads.get(getattr(op, "ours", ""))
        if grad is not None:
            out.update(save_tensor(op, grad))  # type: ignore[arg-type]
    return out


def compare_training(case: Case, ours: AnyModel, theirs: Any, inputs: dict[str, Any]) -> None:
    """Loss, every gradient, and the weights after one step of SGD; theirs is left as it was."""
    with _put_back(theirs):
        _compare_gradients(case, ours, theirs, inputs)
        for model in (ours, theirs):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        inputs = {k: v for k, v in inputs.items() if "label" not in k and "positions" not in k}
        if ours.config.__class__.__name__ == "EncoderDecoder" and case.labels == "words":
            inputs["decoder_input_ids"] = torch.full((len(LENGTHS), 5), 7)
        compare(case, ours, theirs, inputs)


@contextmanager
def _put_back(model: Any) -> Iterator[None]:
    """Weights as before, and no gradients."""
    before = [p.detach().clone() for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(model.parameters(), before, strict=True):
                parameter.copy_(old)
        model.zero_grad()


def _compare_gradients(case: Case, ours: AnyModel, theirs: Any, inputs: dict[str, Any]) -> None:
    mine, reference = run_both(case, ours, theirs, inputs)
    assert mine.loss is not None
    assert reference.loss.isfinite()
    close(mine.loss, reference.loss, case, "loss")
    mine.loss.backward()
    reference.loss.backward()
    wanted = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    got = their_gradients(ours)
    compared = 0
    for name, grad in wanted.items():
        if name not in got:
            assert not grad.abs().max() or "embed_positions" in name, f"{case.name}: {name}"
            continue
        close(got[name], grad, case, f"gradient of {name}")
        compared += 1
    assert compared == len(got), f"{case.name}: {sorted(set(got) - set(wanted))} got no gradient"


def close(a: Tensor, b: Tensor, case: Case, what: str) -> None:
    """Within the case's tolerance of the largest value."""
    worst = (a - b).abs().max().item()
    limit = case.tolerance * max(1.0, b.abs().max().item())
    assert worst <= limit, f"{case.name}: {what} differs by {worst:.3g} (limit {limit:.1g})"


def files_of(path: Path) -> dict[str, Tensor]:
    """Every tensor of a directory."""
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def rewrite(
    path: Path,
    again: Path,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    fields: dict[str, Any] | None = None,
) -> Path:
    """A copy of a checkpoint with its tensors (and config) changed."""
    from safetensors.torch import save_file

    again.mkdir()
    config = json.loads((path / "config.json").read_text())
    (again / "config.json").write_text(json.dumps({**config, **(fields or {})}))
    tensors = change(files_of(path))
    save_file({k: v.contiguous() for k, v in tensors.items()}, again / "model.safetensors")
    return again


def compare_round_trip(case: Case, path: Path, again: Path) -> None:
    """HF → ours → HF: the same tensors, bit for bit, and a config that means the same model."""
    from transformers import AutoConfig

    ours = af.load(path)
    af.save(ours, again)
    before, after = files_of(path), files_of(again)
    assert set(before) == set(after), f"{case.name}: {set(before) ^ set(after)}"
    for name, tensor in before.items():
        same = tensor.dtype == after[name].dtype and torch.equal(tensor, after[name])
        assert same, f"{case.name}: {name} changed"
    known = ours.provenance
    kept = file_keys(FAMILIES[known.family].weights(ours.config, known.architecture))
    assert set(before) <= kept | set(before)
    a, b = AutoConfig.from_pretrained(path).to_dict(), AutoConfig.from_pretrained(again).to_dict()
    for table in (a, b):
        table.pop("_name_or_path", None)
        table.pop("transformers_version", None)
    different = {k: (a.get(k), b.get(k)) for k in a | b if a.get(k) != b.get(k)}
    assert not different, f"{case.name}: config.json changed in {different}"
    theirs = case.model.from_pretrained(path, **case.options)
    reread = case.model.from_pretrained(again, **case.options)
    for (name, x), (_, y) in zip(
        theirs.state_dict().items(), reread.state_dict().items(), strict=True
    ):
        assert torch.equal(x, y), f"{case.name}: transformers reads another {name}"
