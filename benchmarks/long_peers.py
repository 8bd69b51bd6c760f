"""What `long.py --peers` measures: each peer and us on the same numbers, in turn in one process.

A case gives rows, each with a side for every competitor: milliseconds and MiB. Models of
transformers have fresh weights, are written to a folder and read from there by us.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from long_growth import SHAPES, tree
from loss_alone import LossAlone
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from turns import attempt, turn

import allformer as af
from allformer import config
from allformer.bench.measure import in_turn, peak_bytes
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.loss import IGNORE
from allformer.core.mixers.mixer import Scene
from allformer.core.registry import module_for

Calls = dict[str, Callable[[], Any]]


def measured(calls: Calls, device: torch.device, turns: str | None) -> Any:
    """Each call warm, then round after round in turn: medians in ms, and the peak in MiB."""
    for call in calls.values():
        call()
    with turn(turns):
        times = in_turn(calls, device, budget=0.4, most=7)
        peaks = {name: peak_bytes(call, device) for name, call in calls.items()}
    return {name: {"ms": 1000 * times[name], "mib": peaks[name] / 2**20} for name in calls}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- attention alone -----------------------------------------------------------------------------


def mixing(
    mixer: config.Mixer, n: int, heads: int, causal: bool, device: torch.device, learns: bool
) -> Callable[[], Any]:
    """One mixer over one row of n tokens with heads of 64, as a layer calls it; its plan, which all
    layers of a stack share, is made once."""
    attention = config.Attention(heads, mixer=mixer)
    module: Any = module_for(mixer)(attention, 64 * heads, "mixer").to(device)
    if any(True for _ in module.parameters()):
        module.reset_parameters()
    grid, dtype = Grid(1, n), _dtype(device)
    plan = module.plan(Scene(grid, grid, device, dtype, causal))
    shape = (1, n, 64 * heads)
    parts = {name: _random(shape, device, learns) for name in "qkv"}
    grad = torch.randn(shape, device=device, dtype=dtype)

    def call() -> None:
        with torch.set_grad_enabled(learns):
            out = module(parts, plan, None, None)
        if learns:
            out.backward(grad)

    return call


def attending(
    n: int, heads: int, causal: bool, device: torch.device, learns: bool, backend: SDPBackend
) -> Callable[[], Any]:
    """Full attention by one of torch's kernels on the same sizes."""
    q, k, v = (_random((1, heads, n, 64), device, learns) for _ in range(3))
    grad = torch.randn_like(q)

    def call() -> None:
        with torch.set_grad_enabled(learns), sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        if learns:
            out.backward(grad)

    return call


def _random(shape: tuple[int, ...], device: torch.device, learns: bool) -> Tensor:
    return torch.randn(shape, device=device, dtype=_dtype(device), requires_grad=learns)


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def window_case(name: str, device: torch.device, args: Any) -> dict[str, Any]:
    """A window of ±512 over 65,536 tokens against full flash attention, 16 heads of 64."""
    gpu = device.type == "cuda"
    n, heads = (65_536, 16) if gpu else (8192, 4)
    rows = []
    for learns in (False, True):
        calls = {
            "full, flash": attending(n, heads, False, device, learns, SDPBackend.FLASH_ATTENTION),
            "allformer": mixing(config.Window(512, 512), n, heads, False, device, learns),
        }
        work = "forward + backward" if learns else "forward"
        what = f"±512 at {n // 1024}k, {work}"
        rows.append({"what": what, "sides": measured(calls, device, args.turns)})
    return {"rows": rows}


def causal_case(name: str, device: torch.device, args: Any) -> dict[str, Any]:
    """Causal linear attention against causal flash at 2k … 32k, 16 heads of 64."""
    gpu = device.type == "cuda"
    heads, lengths = (16, range(11, 16)) if gpu else (4, range(11, 14))
    rows = []
    for learns in (False, True):
        for n in (2**i for i in lengths):
            calls = {
                "flash": attending(n, heads, True, device, learns, SDPBackend.FLASH_ATTENTION),
                "allformer": mixing(config.Features("elu"), n, heads, True, device, learns),
            }
            work = "forward + backward" if learns else "forward"
            what = f"{n // 1024}k, {work}"
            rows.append({"what": what, "sides": measured(calls, device, args.turns)})
    return {"rows": rows}


# --- generating: a state of fixed size against a cache that grows ---------------------------------


def generate_case(name: str, device: torch.device, args: Any) -> dict[str, Any]:
    """A token more after 1k … 64k: time, and what is remembered."""
    gpu = device.type == "cuda"
    shape = SHAPES[device.type]._replace(layers=4 if gpu else 2)
    relative = config.XLRelative(memory=512)
    models = {
        "growing cache": tree(config.Full(), True, shape),
        "window, 512 back": tree(config.Window(512), True, shape),
        "linear attention": tree(config.Features("elu"), True, shape),
        "segment memory, 512": tree(config.Full(), True, shape, relative),
    }
    steps = {side: _generating(model, device) for side, model in models.items()}
    rows = []
    for n in (2**i for i in (range(10, 17, 2) if gpu else range(10, 15, 2))):
        sides = {}
        for side, (fill, step, held) in steps.items():
            fill(n)
            step(2)
            with turn(args.turns):
                times = [step(16) for _ in range(3)]
            sides[side] = {"ms": 1000 * statistics.median(times), "mib": held() / 2**20}
        rows.append({"what": f"a token after {n // 1024}k", "sides": sides})
    return {"rows": rows}


def _generating(model: config.Model, device: torch.device) -> tuple[Any, Any, Any]:
    """`fill(n)` reads n tokens, `step(count)` gives the seconds of one more, `held()` the bytes."""
    built: Any = af.build(model, device=device, seed=0).to(_dtype(device)).eval()
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    cache: list[Any] = [None, 0]

    @torch.no_grad()
    def fill(n: int) -> None:
        if cache[0] is None:
            cache[0] = built.new_cache()
        for piece in torch.randint(256, (1, n - cache[1]), device=device).split(512, dim=1):
            built.step(piece, cache[0])
        cache[1] = n

    @torch.no_grad()
    def step(count: int) -> float:
        _wait(device)
        begin = time.perf_counter()
        for _ in range(count):
            built.step(one, cache[0])
        _wait(device)
        cache[1] += count
        return (time.perf_counter() - begin) / count

    return fill, step, lambda: sum(_bytes(layer.own) for layer in cache[0].layers)


def _bytes(state: Any) -> int:
    """Of all tensors that a state holds."""
    found = [state]
    total = 0
    while found:
        value = found.pop()
        if isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, dict):
            found += value.values()
        elif isinstance(value, list | tuple):
            found += value
        elif hasattr(value, "__dict__"):
            found += vars(value).values()
    return total


# --- whole models against transformers -----------------------------------------------------------


class Pair(NamedTuple):
    """A family's classes in transformers, its sizes, and the batch."""

    config: str
    bare: str
    headed: str
    fields: dict[str, Any]
    rows: int
    tokens: int


def pair(name: str, device: torch.device, dropout: float) -> Pair:
    """The published size; on a CPU, to try it, a small one on 1,024 tokens."""
    found = PAIRS[name]
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    names += ("local_attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob")
    drops = dict.fromkeys(names[:2] if name != "reformer-16k" else (names[0], *names[2:]), dropout)
    fields = {**found.fields, **drops}
    if device.type == "cuda":
        return found._replace(fields=fields)
    n = 1024
    fields |= {"num_hidden_layers": 2, "vocab_size": 1000, "hidden_size": 128}
    fields |= {"num_attention_heads": 2, "intermediate_size": 256}
    if name == "reformer-16k":
        del fields["intermediate_size"]
        fields |= {"attn_layers": ["local", "lsh"], "axial_pos_shape": [32, 32]}
        fields |= {"axial_pos_embds_dim": [32, 96], "attention_head_size": 64, "num_buckets": 16}
        fields |= {"feed_forward_size": 256, "lsh_attn_chunk_length": 128}
    return found._replace(fields=fields, rows=1, tokens=n)


PAIRS = {
    "longformer-base": Pair(
        "LongformerConfig", "LongformerModel", "LongformerForMaskedLM",
        {"vocab_size": 50_265, "max_position_embeddings": 4098, "type_vocab_size": 1,
         "layer_norm_eps": 1e-5, "attention_window": 512},
        4, 4096,
    ),
    "bigbird-base": Pair(
        "BigBirdConfig", "BigBirdModel", "BigBirdForMaskedLM", {"vocab_size": 50_358}, 4, 4096
    ),
    # google/reformer-enwik8 with 16,384 positions
    "reformer-16k": Pair(
        "ReformerConfig", "ReformerModel", "ReformerModelWithLMHead",
        {"vocab_size": 258, "hidden_size": 1024, "num_attention_heads": 8,
         "attention_head_size": 128, "feed_forward_size": 4096, "num_hashes": 4, "hash_seed": 0,
         "attn_layers": ["local", "local", "lsh", "local"] * 3, "is_decoder": True,
         "axial_pos_shape": [128, 128], "axial_pos_embds_dim": [256, 768],
         "max_position_embeddings": 16_384, "local_attn_chunk_length": 128,
         "lsh_attn_chunk_length": 256, "num_buckets": 512},
        1, 16_384,
    ),
}  # fmt: skip


def model_case(name: str, device: torch.device, args: Any) -> dict[str, Any]:
    """Forward of the bare model, and a training step with its language head."""
    asked = pair(name, device, args.dropout)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = {"forward": forward_row, "training step": step_row}
    return {
        "rows": [attempt(what, partial(row, asked, device, args)) for what, row in rows.items()]
    }


def twins(asked: Pair, kind: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    """The class of transformers with fresh weights, and ours from the same files."""
    import transformers

    torch.manual_seed(0)
    fields = getattr(transformers, asked.config)(**asked.fields)
    theirs = getattr(transformers, kind)(fields)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = af.load(folder, device=device, dtype=dtype)
    return theirs.to(device, dtype).eval(), ours


def inputs_of(asked: Pair, device: torch.device) -> dict[str, Tensor]:
    """Random tokens; Longformer's first one is global."""
    shape, vocab = (asked.rows, asked.tokens), asked.fields["vocab_size"]
    inputs = {"input_ids": torch.randint(5, vocab, shape, device=device)}
    if asked.config == "LongformerConfig":
        marks = torch.zeros(shape, dtype=torch.long, device=device)
        marks[:, 0] = 1
        inputs["global_attention_mask"] = marks
    return inputs


def forward_row(asked: Pair, device: torch.device, args: Any) -> dict[str, Any]:
    """Hidden states of the bare model; in fp32 they are compared as well."""
    inputs = inputs_of(asked, device)
    stated = {"attention_mask": torch.ones_like(inputs["input_ids"]), **inputs}
    if asked.config == "ReformerConfig":
        stated["use_cache"] = False  # type: ignore[assignment]
    theirs, ours = twins(asked, asked.bare, device, torch.float32)
    with torch.no_grad():
        a, b = theirs(**stated).last_hidden_state, ours(**inputs).last_hidden_state
    apart = float((a - b).abs().max())
    dtype = _dtype(device)
    theirs, ours = theirs.to(dtype), ours.to(dtype)

    def hers() -> None:
        with torch.no_grad():
            theirs(**stated)

    def mine() -> None:
        with torch.no_grad():
            ours(**inputs)

    sides = measured({"transformers": hers, "allformer": mine}, device, args.turns)
    return {"what": "forward", "sides": sides, "apart": apart}


def step_row(asked: Pair, device: torch.device, args: Any) -> dict[str, Any]:
    """Forward, backward, AdamW: 15 % of the words to be said (Reformer: the next one, always).
    Longformer without global tokens, as its authors trained it on words."""
    inputs = inputs_of(asked, device)
    inputs.pop("global_attention_mask", None)
    ids = inputs["input_ids"]
    causal = asked.config == "ReformerConfig"
    labels = ids.clone()
    if not causal:
        labels[torch.rand(ids.shape, device=device) > 0.15] = IGNORE
    theirs, ours = twins(asked, asked.headed, device, torch.float32)
    batch = _masked(inputs, labels) if not causal else _next(inputs)
    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "transformers": lambda: _their_step(theirs, {**inputs, "labels": labels}, device),
        "allformer": lambda: _our_step(ours, "decoder" if causal else "encoder", batch, device),
    }
    calls, peaks = {}, {}
    for side, make in makers.items():
        calls[side], peaks[side] = _made(make, device)
    sides = measured(calls, device, args.turns)
    for side, weights in peaks.items():  # with weights, gradients and the optimiser's state
        sides[side]["mib"] = weights / 2**20 if device.type == "cuda" else sides[side]["mib"]
    return {"what": "training step", "sides": sides}


def _made(make: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """A side after six steps, and its peak beyond the models that wait on the device."""
    gc.collect()
    if device.type != "cuda":
        return make(), 0
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = make()
    for _ in range(6):
        step()
    _wait(device)
    return step, int(torch.cuda.max_memory_allocated() - held)


def _their_step(model: Any, inputs: dict[str, Any], device: torch.device) -> Callable[[], Any]:
    """The plain loop: autocast, fused AdamW."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    gpu = device.type == "cuda"

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=gpu):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Batch(NamedTuple):
    """Texts, and what is to be said at some places (None: at every one)."""

    ids: Tensor
    marks: Tensor | None
    labels: Tensor
    places: Tensor | None
    tokens: int


class LongWords(LossAlone):
    """The loss over the vocabulary at the places that count."""

    terms = ("words",)

    def __init__(self, stack: str) -> None:
        super().__init__()
        self.stack = stack

    def loss(self, model: Any, batch: Batch, *, smoothing: float = 0.0, dtype: Any = None) -> Any:
        inputs = {"input_ids": batch.ids}
        if batch.marks is not None:
            inputs["global_attention_mask"] = batch.marks
        side = Side(Grid(*batch.ids.shape), inputs, batch.ids)
        hidden = model.hidden({self.stack: side}, dtype=dtype)[self.stack].flatten(0, -2)
        if batch.places is not None:
            hidden = hidden.index_select(0, batch.places)
        return model.vocab_head.score(hidden, batch.labels.flatten(), smoothing)

    def counts(self, batch: Batch) -> tuple[int, ...]:
        return (batch.tokens,)


def _masked(inputs: dict[str, Tensor], labels: Tensor) -> Batch:
    places = (labels.flatten() != IGNORE).nonzero().flatten()
    said = labels.flatten()[places]
    marks = inputs.get("global_attention_mask")
    return Batch(inputs["input_ids"], marks, said, places, len(places))


def _next(inputs: dict[str, Tensor]) -> Batch:
    ids = inputs["input_ids"]
    said = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORE)], dim=1)
    return Batch(ids, None, said, None, ids.shape[0] * (ids.shape[1] - 1))


def _our_step(model: Any, stack: str, batch: Batch, device: torch.device) -> Callable[[], Any]:
    """The step of `allformer train`; it clips gradients as well."""
    from allformer.train.step import Stepper, StepSettings

    gpu = device.type == "cuda"
    settings = StepSettings(smoothing=0.0, precision="bf16" if gpu else "fp32", compile=gpu)
    stepper = Stepper(model.train(), LongWords(stack), settings)
    return lambda: stepper([batch], 1e-5)


PEERS: dict[str, Callable[[str, torch.device, Any], dict[str, Any]]] = {
    "window-64k": window_case,
    "longformer-base": model_case,
    "bigbird-base": model_case,
    "reformer-16k": model_case,
    "linear-causal": causal_case,
    "generate": generate_case,
}
