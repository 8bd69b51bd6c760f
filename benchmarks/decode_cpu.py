"""Writing on a CPU: Allformer, transformers and CTranslate2, the same weights, in turn.

    python benchmarks/decode_cpu.py [--threads 2] [--rounds 7] [--only gpt2,b1-beam4] [--json]
        [--sides allformer,ctranslate2] [--layers 6]

Rows: a translator (Marian's form, d512, 6+6 layers, V 32,000; sources of 20 tokens, exactly 24 new
ones) for 1 and 32 sources, greedy and with 4 beams; GPT-2's 124M (a prompt of 32, 64 new ones).
Weights are drawn. Each side writes all of it in turn, `rounds` times; medians are compared, since a
CPU is noisy. Each side has a process of its own: two libraries in one may share an OpenMP, which no
longer waits awake between two products once it has more threads than there are cores. "busy" counts
what the processors worked, which says more than the clock where others compute as well. "as ours":
how many rows of tokens are those of our fp32, and how many of all tokens up to the first that
differs. "read": the weights that the decoder must read for its tokens, over the time, as part of
what this machine reads in order in the same run.

CTranslate2 is left out where it is not installed (pip install ctranslate2).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from side_by_side import table

import allformer as af

VOCAB, SOURCE, NEW = 32_000, 20, 24
PROMPT, STORY = 32, 64
END, START = 0, 1
# Seconds before a turn: threads of the side before wait awake for work (Intel's OpenMP: 0.2 s).
REST = 0.4
Side = Callable[[], list[list[int]]]  # rows of new tokens


class Case(NamedTuple):
    """A row of the table."""

    rows: int
    beams: int
    model: str = "translator"


CASES = {
    "b1-greedy": Case(1, 1), "b1-beam4": Case(1, 4), "b32-greedy": Case(32, 1),
    "b32-beam4": Case(32, 4), "gpt2": Case(1, 1, "gpt2"),
}  # fmt: skip
SIDES = (
    "allformer", "transformers", "ctranslate2", "allformer int8", "ctranslate2 int8",
)  # fmt: skip


def peer_of(name: str, layers: int | None) -> Any:
    """transformers' model with drawn weights, loud enough that tokens differ."""
    import transformers

    torch.manual_seed(0)
    if name == "gpt2":
        sizes = {} if layers is None else {"n_layer": layers}
        form = transformers.GPT2Config(**sizes, bos_token_id=END, eos_token_id=END)
        model = transformers.GPT2LMHeadModel(form)
    else:
        deep = layers or 6
        form = transformers.MarianConfig(
            vocab_size=VOCAB, d_model=512, encoder_layers=deep, decoder_layers=deep,
            encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048,
            decoder_ffn_dim=2048, max_position_embeddings=512, scale_embedding=True,
            activation_function="relu", pad_token_id=VOCAB - 1, eos_token_id=END,
            decoder_start_token_id=START, forced_eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        model = transformers.MarianMTModel(form)
    model.generation_config.pad_token_id = VOCAB - 1
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2 and len(p) < VOCAB and "positions" not in name:
                p.mul_(2.0)
    return model.eval()


def inputs_of(case: Case) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    width = PROMPT if case.model == "gpt2" else SOURCE
    return torch.randint(2, VOCAB - 1, (case.rows, width), generator=draw)


def options_of(case: Case) -> dict[str, Any]:
    new = STORY if case.model == "gpt2" else NEW
    return {"max_new_tokens": new, "min_new_tokens": new, "num_beams": case.beams}


def pytorch(model: Any, case: Case, more: dict[str, Any]) -> Side:
    """Ours or transformers': they are asked alike."""
    ids, options = inputs_of(case), options_of(case) | more
    skip = PROMPT if case.model == "gpt2" else 1

    def run() -> list[list[int]]:
        with torch.inference_mode():
            mask = torch.ones_like(ids)
            out = model.generate(ids, attention_mask=mask, do_sample=False, **options)
        return [row[skip:] for row in out.tolist()]

    return run


def ctranslate(folder: Path, case: Case, kind: str, threads: int) -> Side:
    import ctranslate2

    ids, new, how = inputs_of(case).tolist(), options_of(case)["max_new_tokens"], {}
    texts = [[str(i) for i in row] for row in ids]
    told: dict[str, Any] = {"device": "cpu", "compute_type": kind, "intra_threads": threads}
    if case.model == "gpt2":
        generator = ctranslate2.Generator(str(folder), **told)
        how = {"max_length": new, "min_length": new, "include_prompt_in_result": False}
        how |= {"sampling_topk": 1, "beam_size": case.beams}
        return lambda: [x.sequences_ids[0] for x in generator.generate_batch(texts, **how)]
    translator = ctranslate2.Translator(str(folder), **told)
    how = {"max_decoding_length": new, "min_decoding_length": new, "beam_size": case.beams}
    how |= {"max_batch_size": 0, "disable_unk": False}

    def run() -> list[list[int]]:
        found = translator.translate_batch(texts, **how)
        return [[int(token) for token in x.hypotheses[0]] for x in found]

    return run


def write_ctranslate(peer: Any, name: str, folder: Path) -> Path:
    """CTranslate2's directory of transformers' model; words are their numbers."""
    from ctranslate2.converters import transformers as converters

    words = [str(i) for i in range(peer.config.vocab_size)]
    if name == "gpt2":
        spec = converters.GPT2Loader().get_model_spec(peer)
        spec.register_vocabulary(words)
    else:
        peer.config.normalize_before = peer.config.normalize_embedding = False
        spec = converters.BartLoader().get_model_spec(peer)
        spec.register_source_vocabulary(words)
        spec.register_target_vocabulary(words)
        spec.config.decoder_start_token = str(START)
        spec.config.add_source_eos = False
    spec.config.bos_token = spec.config.eos_token = str(END)
    spec.config.unk_token = str(VOCAB - 2)
    spec.validate()
    spec.optimize()
    made = folder / f"{name}-ctranslate2"
    made.mkdir()
    spec.save(str(made))
    return made


def open_models(name: str, layers: int | None, folder: Path) -> dict[str, Path]:
    """The directories of ours, and of CTranslate2 where it is installed."""
    peer = peer_of(name, layers)
    peer.save_pretrained(folder / name)
    found = {"allformer": folder / name, "transformers": folder / name}
    if importlib.util.find_spec("ctranslate2") is not None:
        found["ctranslate2"] = write_ctranslate(peer, name, folder)
    return found


class Job(NamedTuple):
    """What a side's process is told."""

    side: str
    case: Case
    folder: Path
    threads: int
    layers: int | None


def side_of(job: Job) -> Side:
    who, _, kind = job.side.partition(" ")
    if who == "ctranslate2":
        return ctranslate(job.folder, job.case, kind or "float32", job.threads)
    model = af.load(job.folder) if who == "allformer" else peer_of(job.case.model, job.layers)
    return pytorch(model, job.case, {"dtype": torch.int8} if kind else {})


def serve(job: Job, line: Any) -> None:
    """In a process of its own: say what the side writes, then its times as often as asked."""
    torch.set_num_threads(job.threads)
    side = side_of(job)
    line.send(side())
    while line.recv():
        begin, before = time.perf_counter(), time.process_time()
        side()
        line.send((time.perf_counter() - begin, time.process_time() - before))


def measure(jobs: list[Job], rounds: int) -> dict[str, dict[str, Any]]:
    """In turn; what each side writes when it warms up, and its times."""
    context = multiprocessing.get_context("spawn")
    lines, workers, seen = {}, [], {}
    for job in jobs:
        lines[job.side], theirs = context.Pipe()
        workers.append(context.Process(target=serve, args=(job, theirs), daemon=True))
        workers[-1].start()
        theirs.close()
        seen[job.side] = {"said": lines[job.side].recv(), "wall": [], "busy": []}
    for _ in range(rounds):
        for name, line in lines.items():
            time.sleep(REST)
            line.send(True)
            wall, busy = line.recv()
            seen[name]["wall"].append(wall)
            seen[name]["busy"].append(busy)
    for line, worker in zip(lines.values(), workers, strict=True):
        line.send(False)
        worker.join()
    return seen


def read_limit(size: int, rounds: int = 7) -> float:
    """Bytes a second that are read in order, of a memory of that size; the best of some."""
    block = torch.ones(max(size // 4, 1))
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        block.sum()
        times.append(time.perf_counter() - begin)
    return size / min(times)


def weight_bytes(model: Any) -> int:
    """What a decoder reads for a token: its layers' matrices, and the output's."""
    layers = sum(p.numel() for p in model.decoder.layers.parameters() if p.ndim == 2)
    once = [layer.cross.memory.weight.numel() for layer in model.decoder.layers if layer.has_cross]
    return 4 * int(layers - sum(once) + model.vocab_head.table.weight.numel())


def agreement(mine: list[list[int]], other: list[list[int]]) -> str:
    """`rows alike/rows, tokens before the first difference`."""
    alike = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
        for x, y in zip(mine, other, strict=True)
    ]
    whole = sum(x == y for x, y in zip(mine, other, strict=True))
    return f"{whole}/{len(mine)}, {sum(alike) / sum(map(len, mine)):.0%}"


def rows_of(name: str, seen: dict[str, dict[str, Any]], least: float) -> list[dict[str, Any]]:
    """`least`: the seconds that reading fp32 weights takes."""
    first = next(iter(seen.values()))["said"]
    middle = {side: statistics.median(each["wall"]) for side, each in seen.items()}
    rows = []
    for side, each in seen.items():
        mine = "allformer int8" if side.endswith("int8") else "allformer"
        part = least / (4 if side.endswith("int8") else 1) / middle[side]
        rows.append({
            "case": name, "side": side, "ms": 1000 * middle[side],
            "busy": 1000 * statistics.median(each["busy"]),
            "our ×": middle[side] / middle[mine] if mine in middle else None,
            "read %": 100 * part, "as ours": agreement(first, each["said"]),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--layers", type=int, help="fewer, for a look")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    wanted, rows, limits = args.sides.split(","), [], {}
    with tempfile.TemporaryDirectory() as spare:
        for model in dict.fromkeys(CASES[name].model for name in args.only.split(",")):
            folders = open_models(model, args.layers, Path(spare))
            size = weight_bytes(af.load(folders["allformer"]))
            for name in args.only.split(","):
                case = CASES[name]
                if case.model != model:
                    continue
                where = {side: folders.get(side.partition(" ")[0]) for side in wanted}
                jobs = [
                    Job(side, case, folder, args.threads, args.layers)
                    for side, folder in where.items()
                    if folder is not None
                ]
                seen = measure(jobs, args.rounds)
                limits[name] = speed = read_limit(size)
                least = size * options_of(case)["max_new_tokens"] / speed
                rows += rows_of(name, seen, least)
    told = {name: round(speed / 1e9, 1) for name, speed in limits.items()}
    if args.json:
        print(json.dumps({"threads": args.threads, "read GB/s": told, "rows": rows}))
        return
    print(f"{args.threads} threads, medians of {args.rounds}; GB/s read in order: {told}")
    cells = [[_cell(x) for x in row.values()] for row in rows]
    print(table(list(rows[0]), cells))


def _cell(x: Any) -> str:
    return "" if x is None else f"{x:.2f}" if isinstance(x, float) else str(x)


if __name__ == "__main__":
    main()
