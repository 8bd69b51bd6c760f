"""Tuning speed and memory on a GPU: Allformer against transformers + PEFT, in one run.

    python benchmarks/tune.py                          # LoRA and QLoRA of 7B, all weights of 1B
    python benchmarks/tune.py --case lora --rank 16 --rows 4 --width 1024
    python benchmarks/tune.py --shape tiny --device cpu --steps 2        # whether it runs
        [--turns FILE --of N]      # wait warm until N lines stand in FILE, then be timed alone

Random weights of LLaMA's shapes. Both sides have bf16 products, the same batches and AdamW; LoRA is
on all linear layers of frozen weights in bf16, full fine-tuning has master weights in fp32. Our
step is replayed as a graph, as `allformer train` does it; the peer's is as users write it. Steps
of both sides alternate, and medians are compared. Memory is the peak above what the base's weights
take: adapters, gradients, optimiser, activations. QLoRA (four bits, groups of 32; layers are
recomputed) has no peer here: its whole peak is told, weights included.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from turns import turn

import allformer as af
from allformer import tune
from allformer.core.graph import Captured, on_side_stream
from allformer.core.inputs import Side
from allformer.core.layout import Grid
from allformer.core.linear import Linear
from allformer.core.quantised import Quantised
from allformer.core.starts import decay_groups
from allformer.families import FAMILIES, llama

Step = Callable[[Tensor], Tensor]
# dim, layers, heads, key heads, inner width, vocabulary, length
SHAPES = {
    "7b": llama.sizes(4096, 32, 32, 32, 11_008, 32_000, 4096),
    "1b": llama.sizes(2048, 22, 32, 4, 5632, 32_000, 2048),
    "tiny": llama.sizes(64, 2, 4, 2, 96, 100, 256),
}
USUAL = {"lora": "7b", "qlora": "7b", "full": "1b"}
GROUP = 32  # inputs that share a scale


def ours(case: str, shape: str, args: Any) -> tuple[Step, int]:
    """Our step, and the bytes of the base's weights."""
    half = torch.bfloat16
    tree = FAMILIES["llama"].make(SHAPES[shape])
    with torch.device(args.device):
        model: Any = af.build(tree, device="meta")
        if case == "qlora":
            in_four_bits(model)
        model.to_empty(device=args.device)
    fill(model, torch.float32 if case == "full" else half)
    weights = held(model)
    method = tune.Full() if case == "full" else tune.Lora(args.rank, 2 * args.rank)
    tune.apply(model.train(), method, seed=0)
    model.recompute(args.recompute or ("layers" if case == "qlora" else None))
    graph = args.device == "cuda" and not args.eager
    groups = decay_groups(model, 0.01)
    optimizer = torch.optim.AdamW(groups, lr=1e-5, fused=True, capturable=graph)

    def step(ids: Tensor) -> Tensor:
        side = Side(Grid(*ids.shape), {"input_ids": ids})
        hidden = model.hidden({"decoder": side}, dtype=half)["decoder"]
        said = ids[:, 1:].flatten()
        loss, _ = model.vocab_head.score(hidden[:, :-1].flatten(0, 1), said, 0.0)
        mean: Tensor = loss / said.numel()
        mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        return mean.detach()

    return Replayed(step) if graph else step, weights


class Replayed:
    """A step as `allformer train` takes it on a GPU: thrice by hand, then as a graph."""

    def __init__(self, step: Step) -> None:
        self.step, self.calls = step, 0
        self.ids: Any = None
        self.captured: Captured | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        self.calls += 1
        if self.ids is None:
            self.ids = ids.clone()
        self.ids.copy_(ids)
        if self.calls <= 3:
            by_hand: Tensor = on_side_stream(lambda: self.step(self.ids))
            return by_hand
        if self.captured is None:
            self.captured = Captured(lambda: self.step(self.ids))
        loss: Tensor = self.captured.replay()
        return loss


def theirs(case: str, shape: str, args: Any) -> tuple[Step, int]:
    """The same by transformers and PEFT, as their users write it."""
    import peft
    import transformers

    config = transformers.LlamaConfig(**{**llama.USUAL, **SHAPES[shape], "use_cache": False})
    kind = torch.float32 if case == "full" else torch.bfloat16
    with torch.device(args.device):
        model: Any = transformers.LlamaForCausalLM(config).to(kind)
    weights = held(model)
    if case == "lora":
        asked = peft.LoraConfig(
            r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear",
            task_type="CAUSAL_LM",
        )  # fmt: skip
        model = peft.get_peft_model(model, asked)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    call = torch.compile(model) if args.compiled else model

    def step(ids: Tensor) -> Tensor:
        with torch.autocast(args.device, torch.bfloat16):
            loss: Tensor = call(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, weights


def in_four_bits(model: nn.Module) -> None:
    """The matrices of all layers, held in four bits; they have no numbers yet."""
    layers: Any = model.get_submodule("decoder.layers")
    for block in layers:
        for owner in (block.attention, block.feed):
            for name, layer in owner.named_children():
                if isinstance(layer, Linear):
                    wide, deep = layer.out_features, layer.in_features
                    packed = torch.empty(wide, deep // 2, dtype=torch.uint8, device="meta")
                    scale = torch.empty(wide, deep // GROUP, dtype=torch.bfloat16, device="meta")
                    setattr(owner, name, Quantised.like(layer, packed, scale, bits=4))


@torch.no_grad()
def fill(model: nn.Module, dtype: torch.dtype) -> None:
    """Random numbers of the usual size, parameter by parameter: nothing is there twice."""
    torch.manual_seed(0)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            value = torch.empty_like(parameter, dtype=dtype)
            value.fill_(1.0) if value.ndim < 2 else value.normal_(std=0.02)
            setattr(module, name, nn.Parameter(value))
        if isinstance(module, Quantised):
            module.packed.random_(0, 256)
            module.scale.fill_(0.004)
        else:
            reset: Any = getattr(module, "reset_parameters", None)
            if reset is not None and any(True for _ in module.buffers(recurse=False)):
                reset()


def held(model: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    every = {id(x): x for x in (*model.parameters(), *model.buffers())}.values()
    return sum(x.numel() * x.element_size() for x in every)


def warm(make: Callable[[], tuple[Step, int]], batch: Tensor, name: str) -> tuple[Step, float, int]:
    """A side's step after three of them, its peak memory in bytes, and its base's."""
    on_gpu = batch.is_cuda
    gc.collect()
    before = 0
    if on_gpu:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
    step, weights = make()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses = [step(batch).item() for _ in range(3)]
    peak = torch.cuda.max_memory_allocated() - before if on_gpu else 0
    print(f"  {name}: loss {losses[0]:.3f} → {losses[-1]:.3f}", flush=True)
    return step, peak, weights


def measure(case: str, args: Any) -> dict[str, Any]:
    """Both sides of a case: milliseconds a step, tokens a second, memory."""
    shape = args.shape or USUAL[case]
    vocab = SHAPES[shape]["vocab_size"]
    batch = torch.randint(vocab, (args.rows, args.width), device=args.device)
    print(f"{case}, {shape}, {args.rows} × {args.width} tokens", flush=True)
    makers = {"allformer": lambda: ours(case, shape, args)}
    if case != "qlora":
        makers["transformers + peft"] = lambda: theirs(case, shape, args)
    steps, rows = {}, dict[str, dict[str, float]]()
    for name, make in makers.items():
        steps[name], peak, weights = warm(make, batch, name)
        rows[name] = {"peak_gib": peak / 2**30, "above_gib": (peak - weights) / 2**30}
    times: dict[str, list[float]] = {name: [] for name in steps}
    with turn(args.turns, args.of):
        for _ in range(args.steps):
            for name, step in steps.items():
                begin = time.perf_counter()
                step(batch).item()
                times[name].append(time.perf_counter() - begin)
    for name, found in times.items():
        seconds = statistics.median(found)
        rows[name] |= {"ms": 1000 * seconds, "tokens_per_second": batch.numel() / seconds}
        print(
            f"  {name:<20} {1000 * seconds:9.1f} ms {batch.numel() / seconds:11,.0f} tokens/s   "
            f"peak {rows[name]['peak_gib']:6.2f} GiB, {rows[name]['above_gib']:6.2f} above the base"
        )
    if len(rows) == 2:
        mine, other = rows.values()
        speed = mine["tokens_per_second"] / other["tokens_per_second"]
        memory = mine["above_gib"] / other["above_gib"] if other["above_gib"] > 0 else float("nan")
        print(f"  {speed:.2f} × its tokens/s, {memory:.2f} × its memory above the base", flush=True)
    return {"case": case, "shape": shape, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=[*USUAL], action="append", help="may be repeated")
    parser.add_argument("--shape", choices=[*SHAPES], help="another than the case's own")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="no graph of our step")
    parser.add_argument("--compiled", action="store_true", help="torch.compile for the peer")
    parser.add_argument("--recompute", choices=["layers", "selective"], help="of our side")
    parser.add_argument("--turns", help="a file that all who share the device name")
    parser.add_argument("--of", type=int, default=1, help="how many they are")
    parser.add_argument("--out", help="a JSON file for the figures")
    args = parser.parse_args()
    found = []
    for case in args.case or [*USUAL]:
        found.append(measure(case, args))
        gc.collect()
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
