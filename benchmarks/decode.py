"""Decoding on a GPU: tokens a second of LLaMA-2-7B's shape, random weights, bf16, peers beside us.

    python benchmarks/decode.py [--only one,int8,int4,many,first] [--minutes 8] [--json]
    python benchmarks/decode.py --only one --gpt-fast DIR --peers gpt-fast      # a checkout of it
    python benchmarks/decode.py --only start --folder DIR    # process start to first token
    python benchmarks/decode.py --tiny --device cpu          # that it runs

A prompt of 128 tokens is read and 200 are written, the likeliest each, both in the time. Ours by
three ways: `plain` (the model's own step, a growing state), `step` (kernels for few rows, captured
by hand: `core/few_rows.py`) and `generate` (what a user calls). transformers: `generate` as it is,
and with a static cache, which compiles its forward pass. Sides alternate; medians. How many tokens
of a way are those of the plain one is told: in bf16 near ties fall either way. The limits, of
reading and of multiplying, are measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from side_by_side import table
from torch import Tensor, nn
from turns import attempt

import allformer as af
from allformer.core.few_rows import FewRows
from allformer.core.fused import capturing
from allformer.core.graph import Captured, on_side_stream
from allformer.core.linear import Linear
from allformer.core.quantised import Quantised, pack
from allformer.core.states import Static
from allformer.generate.stepper import DecoderStepper

Run = Callable[[Tensor], Tensor]  # a prompt R L → what was written, R N
Row = dict[str, Any]
TINY = {"dim": 64, "heads": 4, "width": 176, "layers": 2}
PEERS = ("transformers", "static", "gpt-fast")  # static: transformers with a static cache


@dataclass
class Setting:
    """What all cases share."""

    device: str
    dtype: torch.dtype
    tiny: bool
    new: int
    rounds: int
    peers: tuple[str, ...]
    gpt_fast: Path | None
    folder: Path | None
    end: float

    @property
    def late(self) -> bool:
        """Whether nothing more should begin."""
        return time.perf_counter() > self.end

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


# --- ours -----------------------------------------------------------------------------------------


def tree_of(setting: Setting) -> Any:
    tree = af.preset("llama-2-7b")
    if not setting.tiny:
        return tree
    stack, block = tree.decoder, tree.decoder.blocks[0]
    own = replace(block.attention, heads=TINY["heads"], kv_heads=TINY["heads"])
    block = replace(block, attention=own, feed=replace(block.feed, width=TINY["width"]))
    return replace(tree, decoder=replace(stack, dim=TINY["dim"], blocks=(block,) * TINY["layers"]))


def build(setting: Setting) -> Any:
    model = af.build(tree_of(setting), device=setting.device, seed=0)
    return model.to(setting.dtype).eval()


def quantise(model: nn.Module, bits: int, group: int | None) -> None:
    """Every matrix of the layers, rounded to the nearest, in place."""
    for name, child in model.named_children():
        if not isinstance(child, Linear):
            quantise(child, bits, group)
            continue
        w = child.weight.detach().float()
        parts = w.view(len(w), -1, min(group or w.shape[1], w.shape[1]))
        most = 127 if bits == 8 else 7
        scale = parts.abs().amax(-1).clamp_min(1e-12) / most  # N groups
        q = (parts / scale[..., None]).round().flatten(1).to(torch.int8)
        setattr(model, name, Quantised.like(child, pack(q, bits), scale, bits=bits))


def plainly(model: Any, setting: Setting) -> Run:
    stepper = DecoderStepper(model, setting.dtype)

    def run(ids: Tensor) -> Tensor:
        state = stepper.open(ids, None)
        said = [stepper.prefill(ids, state).argmax(-1)]
        for _ in range(setting.new - 1):
            said.append(stepper.step(said[-1][:, None], state).argmax(-1))
        return torch.stack(said, 1)

    return torch.inference_mode()(run)


def by_steps(model: Any, setting: Setting) -> Run:
    """`FewRows`, captured once for these rows and this room."""
    captured: dict[Any, Any] = {}

    def make(ids: Tensor) -> Any:
        few, rows = FewRows(model), len(ids)
        room = -(-(ids.shape[1] + setting.new) // 64) * 64
        cache = Static.cache(len(model.decoder.order), room, setting.device)
        token = torch.zeros(rows, 1, dtype=torch.long, device=setting.device)

        def step() -> None:
            token.copy_(few.step(token, cache).argmax(-1, keepdim=True))

        def read() -> Tensor:
            assert isinstance(cache.length, Tensor)
            cache.length.zero_()
            with capturing():
                return model.step(ids, cache).argmax(-1)

        read()
        if setting.device == "cuda":
            assert FewRows.serves(model, setting.dtype, rows), "this model is not served"
            on_side_stream(step)
            captured[few] = few  # a graph knows where its tables lie, and keeps none of them
            return cache, token, Captured(step).replay
        return cache, token, step

    def run(ids: Tensor) -> Tensor:
        key = tuple(ids.shape)
        if key not in captured:
            captured[key] = make(ids)
        cache, token, step = captured[key]
        cache.length.zero_()
        with capturing():
            token[:, 0] = model.step(ids, cache).argmax(-1)
        said = ids.new_empty(len(ids), setting.new)
        said[:, 0] = token[:, 0]
        for i in range(1, setting.new):
            step()
            said[:, i] = token[:, 0]
        return said

    return torch.inference_mode()(run)


def by_generate(model: Any, setting: Setting, **options: Any) -> Run:
    def run(ids: Tensor) -> Tensor:
        out = model.generate(
            ids, max_new_tokens=setting.new, do_sample=False, eos_token_id=-1, pad_token_id=0,
            **options,
        )  # fmt: skip
        said: Tensor = out[:, ids.shape[1] :]
        return said

    return run


# --- peers ----------------------------------------------------------------------------------------


def transformers_model(setting: Setting) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    small |= {"intermediate_size": 176}
    made = LlamaConfig(**(small if setting.tiny else {}), eos_token_id=None, bos_token_id=1)
    torch.set_default_dtype(setting.dtype)
    try:
        with torch.device(setting.device):
            return LlamaForCausalLM(made).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def by_transformers(model: Any, setting: Setting, static: bool) -> Run:
    how: dict[str, Any] = {"cache_implementation": "static"} if static else {}
    length = {"min_new_tokens": setting.new, "max_new_tokens": setting.new}

    def run(ids: Tensor) -> Tensor:
        said: Tensor = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            pad_token_id=0,
            **length,
            **how,
        )[:, ids.shape[1] :]
        return said

    return torch.inference_mode()(run)


def by_gpt_fast(setting: Setting, int8: bool = False) -> Run:
    """A checkout of pytorch-labs/gpt-fast, as its `--compile` runs; the likeliest token each."""
    assert setting.gpt_fast is not None, "no --gpt-fast DIR was given"
    sys.path.insert(0, str(setting.gpt_fast))
    unused: Any = types.ModuleType("tokenizer")  # texts are not read here
    unused.get_tokenizer = None
    sys.modules["tokenizer"] = unused
    import generate as theirs  # type: ignore[import-not-found]
    import model as their_model  # type: ignore[import-not-found]

    with torch.device("meta"):
        model = their_model.Transformer.from_name("stories15M" if setting.tiny else "7B")
    if int8:
        from quantize import WeightOnlyInt8QuantHandler  # type: ignore[import-not-found]

        model = WeightOnlyInt8QuantHandler(model).convert_for_runtime()
    model = model.to_empty(device=setting.device)
    for x in (*model.parameters(), *model.buffers()):
        if x.is_floating_point():
            x.data = (torch.randn_like(x.data.float()) * 0.02).to(setting.dtype)
        else:
            x.data.random_(-127, 128)
    model = model.to(setting.dtype).eval()
    # its sampling with one candidate is the likeliest token
    theirs.decode_one_token = torch.compile(
        theirs.decode_one_token, mode="reduce-overhead", fullgraph=True
    )

    def run(ids: Tensor) -> Tensor:
        out, _ = theirs.generate(
            model, ids[0].int(), setting.new, len(ids), interactive=False, draft_model=None,
            temperature=1.0, top_k=1,
        )  # fmt: skip
        return out[:, ids.shape[1] :].long()

    return run


# --- measuring ------------------------------------------------------------------------------------


def seconds(run: Run, ids: Tensor, setting: Setting) -> tuple[float, Tensor]:
    setting.wait()
    begin = time.perf_counter()
    said = run(ids)
    setting.wait()
    return time.perf_counter() - begin, said


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def side(name: str, make: Callable[[], Run], ids: Tensor, setting: Setting) -> Run | None:
    """A way that has run twice, or None; why not is told."""
    if setting.late:
        tell(f"  {name}: left out, no more time")
        return None
    begin = time.perf_counter()

    def warm() -> Row:
        run = make()
        run(ids)
        run(ids)
        setting.wait()
        return {"run": run}

    found = attempt(name, warm)
    took = time.perf_counter() - begin
    if "failed" in found:
        tell(f"  {name}: failed after {took:.0f} s: {found['failed']}\n    {found['said'][-2:]}")
        return None
    tell(f"  {name}: ready after {took:.1f} s")
    run: Run = found["run"]
    return run


def compare(
    makes: dict[str, Callable[[], Run]], ids: Tensor, setting: Setting, limit: float | None
) -> Row:
    """Tokens a second of each side, in turn, and the share of the limit of the first."""
    ready = {name: side(name, make, ids, setting) for name, make in makes.items()}
    runs = {name: run for name, run in ready.items() if run is not None}
    times: dict[str, list[float]] = {name: [] for name in runs}
    said: dict[str, Tensor] = {}
    for turn in range(setting.rounds):
        for name, run in runs.items():
            if turn and setting.late:
                break
            took, said[name] = seconds(run, ids, setting)
            times[name].append(took)
    tokens = len(ids) * setting.new
    row: Row = {name: tokens / statistics.median(each) for name, each in times.items() if each}
    if limit:
        row["limit"] = limit
        best = max((row[n] for n in row if n.startswith("ours")), default=0.0)
        row["of limit"] = best / limit
    plain = said.get("ours, plain")
    for name, tokens_said in said.items():
        if name.startswith("ours,") and name != "ours, plain" and plain is not None:
            same = (tokens_said == plain).float().mean()
            row[f"same as plain, {name[6:]}"] = float(same)
    return row


def read_limit(device: str) -> float:
    """Bytes a second; the fastest of torch's ways to read a large tensor once."""
    if device != "cuda":
        return 1e10
    from decode_kernels import read_limit as measured

    return measured()


def matmul_limit(setting: Setting) -> float:
    """FLOP/s of a large product in the dtype."""
    n = 8192 if setting.device == "cuda" else 256
    a, b = (torch.randn(n, n, device=setting.device, dtype=setting.dtype) for _ in range(2))
    best = float("inf")
    for _ in range(12):
        setting.wait()
        begin = time.perf_counter()
        for _ in range(4):
            a @ b
        setting.wait()
        best = min(best, (time.perf_counter() - begin) / 4)
    return 2 * n**3 / best


def weight_bytes(model: Any) -> int:
    """What a token reads: all but the table of tokens."""
    parts = [*model.named_parameters(), *model.named_buffers()]
    return sum(x.numel() * x.element_size() for name, x in parts if "source" not in name)


# --- cases ----------------------------------------------------------------------------------------


def our_ways(model: Any, setting: Setting, plain: bool = True) -> dict[str, Callable[[], Run]]:
    ways: dict[str, Callable[[], Run]] = {
        "ours, step": lambda: by_steps(model, setting),
        "ours, generate": lambda: by_generate(model, setting),
    }
    if plain:
        ways["ours, plain"] = lambda: plainly(model, setting)
    return ways


def peer_ways(setting: Setting, int8: bool = False) -> dict[str, Callable[[], Run]]:
    ways: dict[str, Callable[[], Run]] = {}
    if not int8 and {"transformers", "static"} & {*setting.peers}:
        peer = transformers_model(setting)
        if "transformers" in setting.peers:
            ways["transformers"] = lambda: by_transformers(peer, setting, False)
        if "static" in setting.peers:
            ways["transformers, static"] = lambda: by_transformers(peer, setting, True)
    if "gpt-fast" in setting.peers and setting.gpt_fast is not None:
        ways["gpt-fast, int8" if int8 else "gpt-fast"] = lambda: by_gpt_fast(setting, int8)
    return ways


def prompt(rows: int, length: int, setting: Setting) -> Tensor:
    torch.manual_seed(0)
    return torch.randint(3, 32_000, (rows, length), device=setting.device)


def case_batch(rows: int, setting: Setting, limits: Row) -> Row:
    model = build(setting)
    length = 16 if setting.tiny else 128
    # keys and values of all rows are read too, half of what is new on average
    config = model.config.decoder
    cached = sum(b.attention.cached(config.dim) for b in config.blocks)
    kept = rows * cached * (length + setting.new / 2) * torch.finfo(setting.dtype).bits / 8
    limit = rows * limits["read"] / (weight_bytes(model) + kept)
    ways = our_ways(model, setting) | peer_ways(setting)
    return compare(ways, prompt(rows, length, setting), setting, limit)


def case_packed(bits: int, setting: Setting, limits: Row) -> Row:
    model = build(setting)
    quantise(model.decoder.layers, bits, None if bits == 8 else 128 if not setting.tiny else 16)
    ways = our_ways(model, setting, plain=setting.tiny) | peer_ways(setting, int8=bits == 8)
    if bits != 8:
        ways = our_ways(model, setting, plain=setting.tiny)
    limit = limits["read"] / weight_bytes(model)
    return compare(ways, prompt(1, 16 if setting.tiny else 128, setting), setting, limit)


def case_first(setting: Setting, limits: Row) -> Row:
    """A prompt of 2,048 tokens to its first token."""
    model = build(setting)
    length = 64 if setting.tiny else 2048
    ids = prompt(1, length, setting)

    def ours(fused: bool) -> Run:
        def run(ids: Tensor) -> Tensor:
            with torch.inference_mode():
                if not fused:
                    return model.step(ids, model.new_cache()).argmax(-1)
                with capturing():
                    return model.step(ids, model.new_cache()).argmax(-1)

        return run

    one = replace(setting, new=1)
    ways: dict[str, Callable[[], Run]] = {
        "ours, fused": lambda: ours(True),
        "ours, plain": lambda: ours(False),
        "ours, generate": lambda: by_generate(model, one),
    }
    if "transformers" in setting.peers:
        peer = transformers_model(setting)
        ways["transformers"] = lambda: by_transformers(peer, one, False)
    row = compare(ways, ids, one, None)
    work = af.count(model.config).flops_per_token * length
    limit = limits["matmul"]()
    told: Row = {f"{name}, ms": 1000 / x for name, x in row.items() if "same" not in name}
    shares = {
        f"{name}, of limit": work * x / limit for name, x in row.items() if "same" not in name
    }
    return told | shares | {"limit, TFLOP/s": limit / 1e12}


def case_ngrams(setting: Setting, limits: Row) -> Row:
    """A text that repeats, with guesses from its own n-grams and without."""
    model = build(setting)
    ids = prompt(1, 8 if setting.tiny else 64, setting).repeat(1, 2)
    ways: dict[str, Callable[[], Run]] = {
        "ours, generate": lambda: by_generate(model, setting),
        "ours, n-grams": lambda: by_generate(model, setting, prompt_lookup_num_tokens=10),
    }
    return compare(ways, ids, setting, None)


# Each is given DIR and the device, and says when one token and when 32 more are there.
START = """
import sys, torch
import allformer as af
model = af.load(sys.argv[1], device=sys.argv[2], dtype=torch.bfloat16)
ids = torch.tensor([[1, 15043]], device=sys.argv[2])
for new in (1, 32):
    model.generate(ids, max_new_tokens=new, eos_token_id=-1, pad_token_id=0).tolist()
    print(new, flush=True)
"""
START_TRANSFORMERS = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).to(sys.argv[2])
ids = torch.tensor([[1, 15043]], device=sys.argv[2])
for new in (1, 32):
    model.generate(ids, min_new_tokens=new, max_new_tokens=new, pad_token_id=0).tolist()
    print(new, flush=True)
"""
START_GPT_FAST = """
import sys, types
sys.path.insert(0, sys.argv[3])
sys.modules["tokenizer"] = unused = types.ModuleType("tokenizer")
unused.get_tokenizer = None
import torch, generate
with torch.device("meta"):
    model = generate.Transformer.from_name(sys.argv[4])
read = torch.load(sys.argv[1] + "/gpt-fast.pth", mmap=True, weights_only=True)
model.load_state_dict(read, assign=True)
model = model.to(sys.argv[2], torch.bfloat16).eval()
generate.decode_one_token = torch.compile(
    generate.decode_one_token, mode="reduce-overhead", fullgraph=True)
ids = torch.tensor([1, 15043], dtype=torch.int, device=sys.argv[2])
model.max_seq_length = -1
for new in (2, 32):  # a first answer of one token it cannot give
    how = dict(interactive=False, draft_model=None, temperature=1.0, top_k=1)
    generate.generate(model, ids, new, 1, **how)[0].tolist()
    print(new, flush=True)
"""


def started(script: str, *args: str) -> tuple[float, float]:
    """Seconds from the start of a process to its first answer and to its second."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", script, *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        spans = [time.perf_counter() - begin for _ in process.stdout]
    if process.returncode or len(spans) != 2:
        raise RuntimeError(f"ended with {process.returncode} after {len(spans)} answers")
    return spans[0], spans[1]


def for_gpt_fast(setting: Setting, folder: Path) -> None:
    """Random weights as it reads them."""
    sys.path.insert(0, str(setting.gpt_fast))
    import model as their_model

    with torch.device("meta"):
        shape = their_model.Transformer.from_name("stories15M" if setting.tiny else "7B")
    made = {n: torch.zeros(x.shape, dtype=torch.bfloat16) for n, x in shape.state_dict().items()}
    torch.save(made, folder / "gpt-fast.pth")


def case_start(setting: Setting, limits: Row) -> Row:
    """Seconds from the start of a process to its first answers; the files are in the page cache,
    and what is compiled is in its cache on disk from the second run on."""
    folder = setting.folder
    assert folder is not None, "no --folder DIR was given, which takes 13 GB, twice with gpt-fast"
    if not (folder / "config.json").exists():
        af.save(build(setting), folder)
    torch.cuda.empty_cache()
    sides: dict[str, tuple[str, ...]] = {"ours": (START, str(folder), setting.device)}
    if "transformers" in setting.peers:
        sides["transformers"] = (START_TRANSFORMERS, str(folder), setting.device)
    if "gpt-fast" in setting.peers and setting.gpt_fast is not None:
        if not (folder / "gpt-fast.pth").exists():
            for_gpt_fast(setting, folder)
        which = "stories15M" if setting.tiny else "7B"
        more = (str(setting.gpt_fast), which)
        sides["gpt-fast"] = (START_GPT_FAST, str(folder), setting.device, *more)
    row: Row = {}
    for name, call in sides.items():
        try:
            spans = [started(*call) for _ in range(2 if setting.late else 3)]
        except RuntimeError as error:
            tell(f"  {name}: {error}")
            continue
        row[f"{name}, first token"] = min(first for first, _ in spans)
        row[f"{name}, 32 more"] = min(last for _, last in spans)
        tell(f"  {name}: first run {spans[0][0]:.1f} s, {spans[0][1]:.1f} s")
    return row


CASES: dict[str, Callable[[Setting, Row], Row]] = {
    "one": lambda setting, limits: case_batch(1, setting, limits),
    "int8": lambda setting, limits: case_packed(8, setting, limits),
    "int4": lambda setting, limits: case_packed(4, setting, limits),
    "many": lambda setting, limits: case_batch(4 if setting.tiny else 64, setting, limits),
    "first": case_first,
    "ngrams": case_ngrams,
    "start": case_start,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="one,int8,int4,many,first", help=f"of {','.join(CASES)}")
    parser.add_argument("--peers", default=",".join(PEERS), help="commas between, or none")
    parser.add_argument("--gpt-fast", type=Path, help="a checkout of it")
    parser.add_argument("--folder", type=Path, help="a directory for the weights, for `start`")
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8.0, help="nothing begins later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, in fp32")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    peers = tuple(args.peers.split(","))
    setting = Setting(
        args.device, torch.float32 if args.tiny else torch.bfloat16, args.tiny,
        8 if args.tiny else args.new, args.rounds, peers, args.gpt_fast, args.folder,
        time.perf_counter() + 60 * args.minutes,
    )  # fmt: skip
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    limits: Row = {"read": read_limit(args.device), "matmul": lambda: matmul_limit(setting)}
    tell(f"{name}, {setting.dtype}, read limit {limits['read'] / 1e9:.0f} GB/s")
    rows: dict[str, Row] = {}
    for case in args.only.split(","):
        if setting.late:
            tell(f"{case}: left out, no more time")
            continue
        tell(case)
        rows[case] = attempt(case, lambda case=case: CASES[case](setting, limits))  # type: ignore[misc]
        tell(f"  {rows[case]}")
        if args.device == "cuda":
            torch.cuda.empty_cache()
    if args.json:
        print(json.dumps({"device": name, "read limit": limits["read"], "cases": rows}))
        return
    print(f"{name}, {setting.dtype}, medians of {setting.rounds}")
    for case, row in rows.items():
        print(f"\n{case}")
        cells = [[key, f"{x:.3g}" if isinstance(x, float) and x < 1 else f"{x:,.1f}"
                  if isinstance(x, float) else str(x)] for key, x in row.items()]  # fmt: skip
        print(table(["", "tok/s" if case in ("one", "int8", "int4", "many") else ""], cells))


if __name__ == "__main__":
    main()
