"""What `train.py` measures: for each case our step, its peers' steps, and the same batches for all.

Sizes are the public ones; peers are set up as their users set them up: bf16 autocast over fp32
weights, torch.compile, fused AdamW. Ours is the step that `allformer train` runs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from loss_alone import LossAlone
from sides import EVERYWHERE, Step, TorchTransformer, peer_step, to_padded
from torch import Tensor, nn

import allformer as af
from allformer.config import Model
from allformer.core.inputs import Side
from allformer.core.layout import Grid, Layout
from allformer.core.loss import IGNORE
from allformer.data.encoded import EncodedPairs, Rows
from allformer.families import bert, gpt2, llama
from allformer.families.original import transformer
from allformer.train.batch import Frame, moved, pack_rows
from allformer.train.objectives.seq2seq import PairBatch, Seq2Seq
from allformer.train.optim import AdamW
from allformer.train.step import Stepper, StepSettings

VOCAB = 37_000


@dataclass
class Case:
    """One row of the table: how each side makes its step, and the batches that it gets."""

    tree: Model
    flops: float  # of a step: forward and backward, nothing counted twice
    tokens: float  # of a step, padding aside
    ours: Sequence[Any]
    theirs: Sequence[Any]
    step: Callable[[], Step]
    peers: dict[str, Callable[[], Step]] = field(default_factory=dict)


class Words(NamedTuple):
    """Texts and, for some or all of their places, what is to be said there."""

    ids: Tensor
    layout: Layout
    labels: Tensor
    places: Tensor | None  # of the labels among all states; None: each state has one
    tokens: int


class WordLoss(LossAlone):
    """The loss over the vocabulary, at the places that count and nowhere else."""

    terms = ("words",)

    def __init__(self, stack: str) -> None:
        super().__init__()
        self.stack = stack

    def loss(self, model: Any, batch: Words, *, smoothing: float = 0.0, dtype: Any = None) -> Any:
        side = Side(batch.layout, {"input_ids": batch.ids})
        hidden = model.hidden({self.stack: side}, dtype=dtype)[self.stack].flatten(0, -2)
        if batch.places is not None:
            hidden = hidden.index_select(0, batch.places)
        return model.vocab_head.score(hidden, batch.labels.flatten(), smoothing)

    def counts(self, batch: Words) -> tuple[int, ...]:
        return (batch.tokens,)


def our_step(tree: Model, objective: Any, settings: StepSettings, recompute: Any = None) -> Step:
    """The step that `allformer train` runs: it clips gradients as well."""
    torch.manual_seed(0)
    model: Any = af.build(tree, device="cuda").train()
    model.recompute(recompute)
    stepper = Stepper(model, objective, settings)

    def step(batch: Any) -> Tensor:
        return stepper([batch], 1e-4).loss

    return step


def settings(smoothing: float) -> StepSettings:
    optim = AdamW(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)
    return StepSettings(optim, smoothing, precision="bf16", compile=True)


class Mean(nn.Module):
    """A model of transformers, called for its loss; `padded` is of the other peers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor, mask: Tensor | None, _: bool) -> Tensor:
        return self.model(input_ids=input_ids, labels=labels, attention_mask=mask).loss


def hugging_face(make: Callable[[], nn.Module]) -> Callable[[], Step]:
    def step() -> Step:
        torch.manual_seed(0)
        return peer_step(Mean(make()).cuda(), False, compiled=True, bf16=True)

    return step


# --- GPT-2 and LLaMA: full rows, the next token at every place -----------------------------------


def full_rows(rows: int, width: int, vocab: int, count: int) -> list[Words]:
    grid, batches = Grid(rows, width), []
    for _ in range(count):
        ids = torch.randint(vocab, (rows, width + 1), device="cuda")
        read, said = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        batches.append(Words(read, grid, said, None, rows * width))
    return batches


def load_nano_gpt(path: str) -> Any:
    """The module of a file that is not ours to keep."""
    spec = importlib.util.spec_from_file_location("nanogpt", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nano_gpt(path: str) -> Callable[[], Step]:
    """nanoGPT's model file, driven as its train.py does."""

    def make() -> Step:
        module = load_nano_gpt(path)
        sizes = {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50_304}
        config = module.GPTConfig(block_size=1024, dropout=0.0, bias=True, **sizes)
        torch.manual_seed(0)
        model = module.GPT(config).cuda()
        optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cuda")
        call = torch.compile(model)

        def step(batch: tuple[Tensor, Tensor]) -> Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                _, loss = call(*batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        return step

    return make


def gpt2_case(args: Any) -> Case:
    """GPT-2 124M, 32 × 1,024, no dropout, the vocabulary rounded up to 50,304 for all."""
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    fields = {**gpt2.PRESETS["gpt2"], **none, "vocab_size": 50_304}
    tree = gpt2.FAMILY.make(fields)
    ours = full_rows(32, 1024, 50_304, 8)
    pairs = [(batch.ids, batch.labels) for batch in ours]

    def hers() -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(GPT2Config(**fields, use_cache=False))

    named = hugging_face(hers)

    def transformers() -> Step:
        step = named()
        return lambda pair: step((pair[0], pair[0], None))

    peers = {"transformers": transformers}
    if args.nanogpt:
        peers = {"nanoGPT": nano_gpt(args.nanogpt), **peers}
    flops = 3.0 * af.count(tree, length=1024).flops_per_token * 32 * 1024
    step = lambda: our_step(tree, WordLoss("decoder"), settings(0.0))  # noqa: E731
    return Case(tree, flops, 32 * 1024, ours, pairs, step, peers)


def llama_case(args: Any) -> Case:
    """1.1 B parameters in TinyLlama's shape, 8 × 4,096, activation checkpointing."""
    fields = llama.PRESETS["llama-2-7b"] | llama.sizes(2048, 22, 32, 4, 5632, 32_000, 4096)
    tree = llama.FAMILY.make(fields)
    ours = full_rows(8, 4096, 32_000, 2)
    theirs = [(batch.ids, batch.ids, None) for batch in ours]

    def hers() -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        with torch.device("cuda"):
            model = LlamaForCausalLM(LlamaConfig(**fields, use_cache=False))
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    flops = 3.0 * af.count(tree, length=4096).flops_per_token * 8 * 4096
    mode = args.recompute
    step = lambda: our_step(tree, WordLoss("decoder"), settings(0.0), mode)  # noqa: E731
    return Case(tree, flops, 8 * 4096, ours, theirs, step, {"transformers": hugging_face(hers)})


# --- BERT: rows of unequal length, some words hidden ----------------------------------------------


def bert_case(args: Any) -> Case:
    """BERT-base masked LM, 128 rows padded to 128, 32 to 96 of them text, 15 % to be said."""
    fields = {**bert.PRESETS["bert-base"], "architectures": ["BertForMaskedLM"]}
    tree = bert_tree(fields)
    random = np.random.default_rng(0)
    lengths = [random.integers(32, 97, 128) for _ in range(8)]
    frame = Frame(-(-max(int(row.sum()) for row in lengths) // 64) * 64, 128, 128)
    ours, theirs, tokens = [], [], 0
    for row in lengths:
        mine, hers = masked_batch(row, frame, random)
        tokens += int(row.sum())
        ours.append(moved(mine, "cuda"))
        theirs.append(tuple(x.cuda() for x in hers))

    def make() -> nn.Module:
        from transformers import BertConfig, BertForMaskedLM

        return BertForMaskedLM(BertConfig(**bert.PRESETS["bert-base"]))

    count = af.count(tree, length=64)
    head = 2.0 * 30_522 * 768  # of every place; but 15 % are scored
    flops = 3.0 * (count.flops_per_token - 0.85 * head) * tokens / len(ours)
    step = lambda: our_step(tree, WordLoss("encoder"), settings(0.0))  # noqa: E731
    peers = {"transformers": hugging_face(make)}
    return Case(tree, flops, tokens / len(ours), ours, theirs, step, peers)


def bert_tree(fields: dict[str, Any]) -> Model:
    from allformer.families.fields import Fields

    named = Fields({k: x for k, x in fields.items() if k != "architectures"}, "bert", bert.USUAL)
    return bert.read(named, "BertForMaskedLM", ())


def masked_batch(
    lengths: Any, frame: Frame | None, random: Any, width: int = 128
) -> tuple[Words, tuple[Tensor, ...]]:
    """The same sentences packed, and as a grid so wide: its ids, labels and mask."""
    rows = [random.integers(1000, 30_522, n - 1).tolist() for n in lengths]
    side = pack_rows(Rows.from_lists(rows), np.arange(len(rows)), 102, frame)
    chosen = np.sort(random.permutation(side.real)[: int(0.15 * side.real)])
    labels = side.ids[chosen].copy()
    side.ids[chosen] = 103
    most = int(0.15 * (side.real if frame is None else frame.tokens))
    spare = np.setdiff1d(np.arange(side.real), chosen)[: most - len(chosen)]
    places = torch.from_numpy(np.concatenate([chosen, spare]))
    said = torch.from_numpy(np.concatenate([labels, np.full(len(spare), IGNORE)]))
    mine = Words(torch.from_numpy(side.ids), side.packed(), said, places, len(chosen))
    grid = torch.zeros(len(rows), width, dtype=torch.long)
    keep = torch.arange(width) < torch.from_numpy(lengths)[:, None]
    grid[keep] = mine.ids[: side.real]
    wanted = torch.full((side.real,), IGNORE)
    wanted[torch.from_numpy(chosen)] = torch.from_numpy(labels)
    hers = torch.full_like(grid, IGNORE)
    hers[keep] = wanted
    return mine, (grid, hers, keep.long())


# --- the original base model ---------------------------------------------------------------------


def base_tree() -> Any:
    return transformer(512, 8, 2048, 6, vocab=VOCAB, **EVERYWHERE)


def base_peers(padded: bool) -> dict[str, Callable[[], Step]]:
    def peer() -> Step:
        torch.manual_seed(0)
        return peer_step(TorchTransformer(base_tree()).cuda(), padded, compiled=True, bf16=True)

    return {"torch.nn.Transformer": peer}


def base_case(args: Any) -> Case:
    """The original base model, 256 × (64, 64), dropout 0.1 in the same places, smoothing 0.1."""
    tree = base_tree()
    ids = [[torch.randint(4, VOCAB, (256, 64), device="cuda") for _ in range(3)] for _ in range(8)]
    grid = Grid(256, 64)
    ours = [PairBatch(s, grid, t, grid, y, y.numel()) for s, t, y in ids]
    flops = 3.0 * af.count(tree, length=64).flops_per_token * 256 * 64
    step = lambda: our_step(tree, Seq2Seq(), settings(0.1))  # noqa: E731
    theirs = [tuple(x) for x in ids]
    return Case(tree, flops, 2 * 256 * 64, ours, theirs, step, base_peers(False))


def ragged_case(args: Any) -> Case:
    """The same on sentences in random order, 512 a batch: as they come, with all their lengths.

    The peer's are padded to a multiple of 8, as collators do for the kernels' sake; else its
    compiled graphs (50 s each) would be one for each remainder.
    """
    from allformer.data.parallel import open_corpus
    from allformer.text.tokenizer import train_tokenizer

    rows = 512
    corpus = open_corpus(args.data, args.source, args.target)
    tokenizer = train_tokenizer((text for pair in corpus.train for text in pair), "bpe", 10_000)
    pairs = EncodedPairs.from_pairs(corpus.train, tokenizer, max_length=126)
    order = np.random.default_rng(0).permutation(len(pairs))
    batches = [order[i * rows : (i + 1) * rows] for i in range(40)]
    most = max(
        int(lengths[index].sum()) + rows
        for index in batches
        for lengths in (pairs.source_lengths, pairs.target_lengths)
    )
    frame = Frame(-(-most // 64) * 64, rows, 128)
    ours, theirs, tokens, cells = [], [], 0, 0
    for index in batches:
        ours.append(moved(Seq2Seq().collate(pairs, index, frame), "cuda"))
        plain = Seq2Seq().collate(pairs, index)
        tokens += len(plain.source) + len(plain.target)
        theirs.append(tuple(x.cuda() for x in to_padded(plain, multiple=8)))
        cells += theirs[-1][0].numel() + theirs[-1][1].numel()
    # torch.compile takes sizes that are equal at first for one size: begin with unequal ones.
    theirs.sort(key=lambda batch: batch[0].shape[1] == batch[1].shape[1])
    for batch in theirs:
        for ids in batch:
            torch._dynamo.mark_dynamic(ids, 1)
    print(f"ragged: {tokens / cells:.0%} of the padded batches is text, {frame.tokens} a side")
    tree = base_tree()
    flops = 3.0 * af.count(tree, length=16).flops_per_token * tokens / len(batches) / 2
    step = lambda: our_step(tree, Seq2Seq(), settings(0.1))  # noqa: E731
    return Case(tree, flops, tokens / len(batches), ours, theirs, step, base_peers(True))


CASES = {
    "gpt2": gpt2_case,
    "base": base_case,
    "ragged": ragged_case,
    "bert": bert_case,
    "llama": llama_case,
}
