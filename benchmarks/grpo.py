"""The loop of GRPO on a GPU: answers drawn, then learnt from; transformers' `generate` beside it.

    python benchmarks/grpo.py                                     # 1B: 8 samples of 256 tokens
    python benchmarks/grpo.py --prompts 4 --samples 8 --length 256 --width 128
    python benchmarks/grpo.py --shape tiny --device cpu --turns 2 --length 8       # whether it runs

Random weights of LLaMA's shape in bf16, LoRA on all linear layers (PEFT's for the peer, if it is
installed, else the base alone). In each turn both sides draw as many answers to the same prompts,
all of full length, and take a step on them, so that weights are others each time: whatever is made
of them (our graphs, our merged matrices) is made again and is in the figures. Medians of all turns
but the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tune import SHAPES, fill

import allformer as af
from allformer import tune
from allformer.core.starts import decay_groups
from allformer.families import FAMILIES, llama
from allformer.train.policy.advantages import group_advantages
from allformer.train.policy.grpo import Dapo, GrpoTokens
from allformer.train.policy.logps import answer_logps, grid_mask
from allformer.train.policy.rollout import Rollout, Sampling, draw_answers

Draw = Callable[[Tensor, int], Tensor]  # prompts and a seed → rows of prompt and answer
Learn = Callable[[Tensor, int], Tensor]  # such rows, and how much of them is prompt → the loss


def ours(args: Any) -> tuple[Draw, Learn]:
    """As objective `grpo` does it."""
    half = torch.bfloat16
    model: Any = af.build(FAMILIES["llama"].make(SHAPES[args.shape]), device="meta")
    model.to_empty(device=args.device)
    fill(model, half)
    tune.apply(model.eval(), tune.Lora(args.rank, 2 * args.rank), seed=0)
    optimizer = torch.optim.AdamW(decay_groups(model, 0.0), lr=1e-5, fused=True)

    def draw(prompts: Tensor, seed: int) -> Tensor:
        asked = {"ends": (), "copies": args.samples, "seed": seed, "dtype": half}
        rows = list(prompts.cpu().numpy())
        found = draw_answers(model, rows, Sampling(length=args.length), **asked)
        answers = torch.from_numpy(np.stack(found.answers)).to(prompts.device)
        return torch.cat([prompts.repeat_interleave(args.samples, 0), answers], 1)

    def learn(rows: Tensor, width: int) -> Tensor:
        said = np.repeat([0, 1], [width, rows.shape[1] - width])
        score = torch.randn(len(rows), device=rows.device)
        plain = [(row, said) for row in rows.cpu().numpy()]
        laid = Rollout(plain, score > 0, score, score[:, None], score).said()
        logps, _ = answer_logps(model, laid, 1.0, half)
        above, mask = group_advantages(score, args.samples), grid_mask(laid)
        loss = Dapo(beta=0.0)
        each, _ = loss.each(GrpoTokens(logps, logps.detach(), None, above, mask))
        mean = loss.summed(each, mask, args.length) / len(laid.labels)
        return stepped(mean, optimizer)

    return draw, learn


def theirs(args: Any) -> tuple[Draw, Learn]:
    """By transformers and PEFT, as TRL calls them without vLLM."""
    import transformers

    config = transformers.LlamaConfig(**{**llama.USUAL, **SHAPES[args.shape]})
    with torch.device(args.device):
        model: Any = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    try:
        import peft

        asked = peft.LoraConfig(
            r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear",
            task_type="CAUSAL_LM",
        )  # fmt: skip
        model = peft.get_peft_model(model, asked)
    except ImportError:
        print("  peft is not installed: the peer draws without an adapter", flush=True)
    model.eval()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)

    def draw(prompts: Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        found: Tensor = model.generate(
            input_ids=prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0,
            num_return_sequences=args.samples, max_new_tokens=args.length,
            min_new_tokens=args.length, pad_token_id=0,
        )  # fmt: skip
        return found

    def learn(rows: Tensor, width: int) -> Tensor:
        logits = model(input_ids=rows).logits[:, width - 1 : -1].float()
        logps = logits.log_softmax(-1).gather(-1, rows[:, width:, None]).squeeze(-1)
        score = torch.randn(len(rows), device=rows.device)
        above = group_advantages(score, args.samples)[:, None]
        return stepped(-((logps - logps.detach()).exp() * above).mean(), optimizer)

    return draw, learn


def stepped(mean: Tensor, optimizer: Any) -> Tensor:
    """Follow a loss."""
    mean.backward()
    optimizer.step()
    optimizer.zero_grad()
    return mean.detach()


def timed(work: Callable[[], Tensor], device: str) -> tuple[Tensor, float]:
    """What it gives, and its seconds."""
    begin = time.perf_counter()
    found = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return found, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", choices=[*SHAPES], default="1b")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--samples", type=int, default=8, help="answers to a prompt")
    parser.add_argument("--width", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--length", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", help="a JSON file for the figures")
    args = parser.parse_args()
    vocab = SHAPES[args.shape]["vocab_size"]
    sides = {"allformer": ours(args), "transformers": theirs(args)}
    times: dict[str, dict[str, list[float]]] = {name: {"draw": [], "learn": []} for name in sides}
    for turn in range(args.turns):
        prompts = torch.randint(3, vocab, (args.prompts, args.width), device=args.device)
        for name, (draw, learn) in sides.items():
            rows, drawing = timed(lambda d=draw, p=prompts, t=turn: d(p, t), args.device)
            assert rows.shape == (args.prompts * args.samples, args.width + args.length)
            _, learning = timed(lambda f=learn, r=rows: f(r, args.width), args.device)
            times[name]["draw"].append(drawing)
            times[name]["learn"].append(learning)
    made = args.prompts * args.samples * args.length
    print(f"{args.shape}: {args.prompts} × {args.samples} answers of {args.length} tokens")
    middle = {
        name: {what: statistics.median(found[1:] or found) for what, found in each.items()}
        for name, each in times.items()
    }
    for name, each in middle.items():
        print(
            f"  {name:<14} drawing {each['draw']:7.2f} s {made / each['draw']:9,.0f} tokens/s   "
            f"learning {1000 * each['learn']:8.1f} ms"
        )
    mine, other = middle.values()
    print(f"  drawing {other['draw'] / mine['draw']:.2f} ×, learning "
          f"{other['learn'] / mine['learn']:.2f} × transformers' speed")  # fmt: skip
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"settings": vars(args), "seconds": times}, file, indent=2)


if __name__ == "__main__":
    main()
