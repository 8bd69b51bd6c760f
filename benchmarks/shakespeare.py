"""Tiny-Shakespeare by characters at nanoGPT's GPU setting: its loop and ours in turn, then our run.

    python benchmarks/shakespeare.py --text input.txt --nanogpt model.py             # ms a step
    python benchmarks/shakespeare.py --text input.txt --steps 5000                   # and the loss

6 layers, 6 heads, 384 wide, 64 × 256 characters a step, dropout 0.2, AdamW (0.9, 0.99), decay 0.1,
clip 1, rate 1e-3 falling to 1e-4 as a cosine after 100 steps of warm-up. nanoGPT is driven as its
train.py does it: batches are cut on the CPU, pinned and sent; torch.compile. Ours keeps the text on
the GPU, cuts batches there, and replays the whole step as one CUDA graph.
Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import WordLoss, Words, load_nano_gpt
from torch import Tensor

import allformer as af
from allformer.core.layout import Grid
from allformer.families import gpt2
from allformer.train.optim import AdamW
from allformer.train.step import Stepper, StepSettings

ROWS, WIDTH, LAYERS = 64, 256, 6


def read(path: str) -> tuple[Tensor, Tensor, int]:
    """The first nine tenths and the rest, as numbers of characters."""
    text = Path(path).read_text(encoding="utf-8")
    numbers = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([numbers[c] for c in text])
    cut = int(0.9 * len(ids))
    return ids[:cut], ids[cut:], len(numbers)


def tree(vocab: int) -> Any:
    """The same sizes, without biases in the products, as nanoGPT has it here."""
    fields = {
        "vocab_size": vocab, "n_positions": WIDTH, "n_embd": 384, "n_layer": LAYERS, "n_head": 6,
        "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2, "bos_token_id": None,
        "eos_token_id": None, "activation_function": "gelu",
    }  # fmt: skip
    whole = gpt2.FAMILY.make(fields)
    block = whole.decoder.blocks[0]
    bare = replace(
        block,
        attention=replace(block.attention, bias=False),
        feed=replace(block.feed, bias=False),
    )
    return replace(whole, decoder=replace(whole.decoder, blocks=(bare,) * LAYERS))


def rate_at(step: int, steps: int) -> float:
    """Warm-up, then half a cosine."""
    if step < 100:
        return 1e-3 * (step + 1) / 101
    share = min(1.0, (step - 100) / (steps - 100))
    return 1e-4 + 0.5 * (1 + float(np.cos(np.pi * share))) * 9e-4


def our_loop(model: Any, train: Tensor, steps: int) -> Callable[[int], Tensor]:
    optim = AdamW(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, clip=1.0)
    settings = StepSettings(optim, 0.0, precision="bf16", compile=True)
    stepper = Stepper(model, WordLoss("decoder"), settings)
    text, grid = train.cuda(), Grid(ROWS, WIDTH)
    spread = torch.arange(WIDTH + 1, device="cuda")

    def step(number: int) -> Tensor:
        begin = torch.randint(len(text) - WIDTH - 1, (ROWS, 1), device="cuda")
        ids = text[begin + spread]
        batch = Words(ids[:, :-1], grid, ids[:, 1:], None, ROWS * WIDTH)
        return stepper([batch], rate_at(number, steps)).loss

    return step


def nano_loop(path: str, vocab: int, train: Tensor, steps: int) -> Callable[[int], Tensor]:
    module = load_nano_gpt(path)
    sizes = {"n_layer": LAYERS, "n_head": 6, "n_embd": 384, "vocab_size": vocab}
    model = module.GPT(module.GPTConfig(block_size=WIDTH, dropout=0.2, bias=False, **sizes)).cuda()
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cuda")
    call, data = torch.compile(model), train.numpy().astype(np.uint16)

    def batch() -> list[Tensor]:
        begin = torch.randint(len(data) - WIDTH, (ROWS,))
        cut = [[torch.from_numpy(data[i + j : i + j + WIDTH].astype(np.int64)) for i in begin]
               for j in (0, 1)]  # fmt: skip
        return [torch.stack(rows).pin_memory().cuda(non_blocking=True) for rows in cut]

    ready = [batch()]

    def step(number: int) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = rate_at(number, steps)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            _, loss = call(*ready.pop())
        ready.append(batch())  # while the GPU works
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def in_turn(loops: dict[str, Callable[[int], Tensor]], blocks: int = 5, each: int = 40) -> Any:
    """Medians of ms a step."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for step in loops.values():
        for number in range(10):
            step(number)
    for _ in range(blocks):
        for name, step in loops.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for number in range(each):
                step(number)
            torch.cuda.synchronize()
            times[name].append(1000 * (time.perf_counter() - begin) / each)
    return {name: statistics.median(row) for name, row in times.items()}


@torch.no_grad()
def held_out_loss(model: Any, text: Tensor) -> float:
    """Mean over all windows of the held-out text, side by side."""
    model.eval()
    count = (len(text) - 1) // WIDTH
    ids = text[: count * WIDTH].view(count, WIDTH).cuda()
    said = text[1 : count * WIDTH + 1].view(count, WIDTH).cuda()
    batch = Words(ids, Grid(count, WIDTH), said, None, said.numel())
    _, nll = WordLoss("decoder").loss(model, batch, dtype=torch.bfloat16)
    model.train()
    return nll.item() / said.numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--nanogpt", help="nanoGPT's model.py: its loop in turn with ours")
    parser.add_argument("--steps", type=int, default=0, help="of our own run, with its loss")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    torch.set_float32_matmul_precision("high")
    train, held_out, vocab = read(args.text)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name()}
    if args.nanogpt:
        torch.manual_seed(1337)
        model = af.build(tree(vocab), device="cuda").train()
        loops = {
            "nanoGPT": nano_loop(args.nanogpt, vocab, train, 5000),
            "allformer": our_loop(model, train, 5000),
        }
        found["ms"] = in_turn(loops)
        torch._dynamo.reset()
    if args.steps:
        torch.manual_seed(1337)
        model = af.build(tree(vocab), device="cuda").train()
        step, curve = our_loop(model, train, args.steps), {}
        begin = time.perf_counter()
        for number in range(args.steps):
            step(number)
            if (number + 1) % 250 == 0:
                curve[number + 1] = round(held_out_loss(model, held_out), 4)
        torch.cuda.synchronize()
        found |= {"seconds": time.perf_counter() - begin, "held_out": curve}
        found["best"] = min(curve.values())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
