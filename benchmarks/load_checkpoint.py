"""Loading a checkpoint of LLaMA-2 7B's shape: memory and time, beside a plain read of its files.

    python benchmarks/load_checkpoint.py               # 13.5 GB of random fp16 weights on the disk
    python benchmarks/load_checkpoint.py --layers 4    # a smaller one

The checkpoint is written to a temporary directory (`--directory` says where) and removed at the
end. Each side runs in a process of its own, in turn, `--repeats` times; before each the files are
put out of the page cache (Linux), so that all come from the disk. Weights that a side only maps are
touched within its time. Peak memory is the most that was resident at once, Python and torch
included, over the bytes of the weights. On a machine that does other work too, compare only
medians of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 16 << 20
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float16",
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
    "num_attention_heads": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096, "hidden_act": "silu", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as transformers writes them."""
    dim, feed, vocab = (CONFIG[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    yield "model.embed_tokens.weight", (vocab, dim)
    for i in range(layers):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (dim,)
        for part in ("gate", "up"):
            yield f"{layer}.mlp.{part}_proj.weight", (feed, dim)
        yield f"{layer}.mlp.down_proj.weight", (dim, feed)
        yield f"{layer}.post_attention_layernorm.weight", (dim,)
        for part in "qkvo":
            yield f"{layer}.self_attn.{part}_proj.weight", (dim, dim)
    yield "model.norm.weight", (dim,)
    yield "lm_head.weight", (vocab, dim)


def make(directory: Path, layers: int, shard_bytes: int = 3_500_000_000) -> int:
    """Write the checkpoint shard by shard; returns the bytes of its weights."""
    import torch
    from safetensors.torch import save_file

    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = total = 0
    for name, shape in shapes(layers):
        bytes_ = 2 * torch.Size(shape).numel()
        if size + bytes_ > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size, total = size + bytes_, total + bytes_
    where = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        tensors = {}
        for name, shape in shard:
            x = torch.empty(shape, dtype=torch.float16)
            for rows in x.view(-1).split(1 << 24):  # in pieces: fp32 noise is twice as large
                rows.copy_(torch.randn(rows.shape) * 0.02)
            tensors[name] = x
            where[name] = file
        save_file(tensors, directory / file, {"format": "pt"})
        with open(directory / file, "rb") as written:
            os.fsync(written.fileno())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {**CONFIG, "num_hidden_layers": layers}
    (directory / "config.json").write_text(json.dumps(config))
    return total


def forget(directory: Path) -> bool:
    """Put the files out of the page cache; False where that cannot be done."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in directory.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def read_plainly(directory: Path) -> None:
    """Every byte once, in order, into one buffer."""
    buffer = bytearray(BLOCK)
    for path in sorted(directory.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def measure(side: str, directory: Path) -> None:
    """In a process of its own: time one side and print what it took."""
    if side.isdigit():  # the making too: a child's peak begins at its parent's
        print(make(directory, int(side)))
        return
    if side == "plain read":
        begin = time.perf_counter()
        read_plainly(directory)
    elif side == "allformer":
        from allformer import load  # imported before the clock starts, as transformers is

        begin = time.perf_counter()
        model: Any = load(directory)
    else:
        from transformers import AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        begin = time.perf_counter()
        model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    seconds = time.perf_counter() - begin
    if side != "plain read":
        # What is only mapped is not loaded yet: the first use of each page reads it.
        begin = time.perf_counter()
        for parameter in model.parameters():
            assert parameter.detach().view(-1)[::1024].isfinite().all()
        seconds += time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak": peak}))


def child(side: str, directory: str) -> str:
    """Run `measure` in a new process; the last line that it prints."""
    command = [sys.executable, __file__, "--measure", side, directory]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=32, help="7B has 32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", default=None, help="where the temporary checkpoint goes")
    parser.add_argument("--warm", action="store_true", help="leave the files in the page cache")
    parser.add_argument("--no-peer", action="store_true", help="without transformers")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure[0], Path(args.measure[1]))
        return
    sides = ["plain read", "allformer"] + ([] if args.no_peer else ["transformers"])
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(dir=args.directory) as name:
        total = int(child(str(args.layers), name))
        cold = not args.warm
        for _ in range(args.repeats):
            for side in sides:
                cold = forget(Path(name)) if cold else False
                rows[side].append(json.loads(child(side, name)))
    print(f"{total / 1e9:.2f} GB in fp16, {'from the disk' if cold else 'from the page cache'}")
    print(f"{'':14}{'seconds':>9}{'GB/s':>7}{'of plain':>10}{'peak/weights':>14}")
    plain = statistics.median(row["seconds"] for row in rows["plain read"])
    out: dict[str, Any] = {"bytes": total, "cold": cold}
    for side, found in rows.items():
        seconds = statistics.median(row["seconds"] for row in found)
        peak = max(row["peak"] for row in found) / total
        out[side] = {"seconds": seconds, "peak_over_weights": peak}
        rate, share = total / seconds / 1e9, plain / seconds
        print(f"{side:14}{seconds:9.2f}{rate:7.2f}{share:10.0%}{peak:14.3f}")
    if args.json:
        print(json.dumps(out))


if __name__ == "__main__":
    main()
