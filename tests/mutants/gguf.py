"""Planted bugs of GGUF files: blocks, the order of rows, what the metadata mean, the words."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from allformer.errors import AllformerError
from tests.mutants.mutants import Mutant, bug
from tests.parity import test_gguf
from tests.unit import test_gguf as unit


def _in_a_folder(check: Callable[[Path], None]) -> Callable[[], None]:
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))

    return run


KILLERS: dict[str, Callable[[], None]] = {
    "gguf blocks": test_gguf.check_blocks,
    "gguf logits": _in_a_folder(test_gguf.check_mixed),
    "gguf kept": _in_a_folder(test_gguf.check_kept),
    "gguf long": _in_a_folder(test_gguf.check_llama3),
    "gguf words": unit.check_words,
    "gguf ends": unit.test_a_turns_end_ends_the_answer_too,
}
BLOCKS, LLAMA = "allformer.checkpoint.gguf_blocks", "allformer.families.llama_gguf"
KEPT, WORDS = "allformer.checkpoint.gguf_kept", "allformer.text.gguf"

MUTANTS: list[Mutant] = [
    bug("halves of bytes as neighbours", "half of all weights are elsewhere", f"{BLOCKS}:_fields",
        "(runs >> by).view(len(data), -1)",
        "(runs >> by).transpose(-1, -2).reshape(len(data), -1)", "gguf blocks", "gguf logits"),
    bug("the least value is taken away", "matrices lean to one side", f"{BLOCKS}:Groups.widen",
        "wide += self.least", "wide -= self.least", "gguf blocks", "gguf logits"),
    bug("least values of K types added", "Q4_K writes noise", f"{BLOCKS}:_super",
        "-(_half(x, 2)", "(_half(x, 2)", "gguf blocks", "gguf logits"),
    bug("high bits of the wrong four", "scales of half a block are off", f"{BLOCKS}:_sixes",
        "both & 15 | scales >> 6 << 4", "both & 15 | leasts >> 6 << 4", "gguf blocks"),
    bug("halves of the last scales swapped", "scales are least values", f"{BLOCKS}:_sixes",
        "both >> 4 | leasts >> 6 << 4", "both & 15 | leasts >> 6 << 4", "gguf blocks"),
    bug("fifth bits backwards", "Q5_0 is off by 16 here and there", f"{BLOCKS}:_fifth_bits",
        "torch.arange(8, dtype=torch.uint8)", "torch.arange(7, -1, -1).to(torch.uint8)",
        "gguf blocks", "gguf logits"),
    bug("zero is one off", "all weights lean to one side", f"{BLOCKS}:_signed",
        "- zero", "- zero + 1", "gguf blocks", "gguf logits"),
    bug("keys in Meta's order", "rotary positions turn the wrong pairs", f"{LLAMA}:weights",
        "Interleaved(str(k), heads.groups)", "k", "gguf logits"),
    bug("keys cut by the heads of queries", "pairs across heads", f"{LLAMA}:weights",
        "Interleaved(str(k), heads.groups)", "Interleaved(str(k), heads.heads)", "gguf logits"),
    bug("always tied", "an output matrix of its own is refused", f"{LLAMA}:fields_of",
        "OUTPUT not in tensors", "True", "gguf logits", raises=AllformerError),
    bug("theta of LLaMA 1", "far tokens are near", f"{LLAMA}:_rope",
        'said.number("rope.freq_base", 10_000.0)', 'said.number("rope.freq_base", 1.0) * 0 + 1e4',
        "gguf logits"),
    bug("factors left out", "LLaMA 3.1 breaks beyond 8,192 tokens", f"{LLAMA}:fields_of",
        "factors if FACTORS in tensors else None", "None", "gguf long"),
    bug("rows kept in the file's order", "queries and keys are shuffled", f"{KEPT}:_kept",
        "ours.argsort()", "torch.arange(len(ours))", "gguf kept"),
    bug("rows kept in the inverse order", "shuffled the other way", f"{KEPT}:_kept",
        "ours.argsort()", "ours - ours.min()", "gguf kept"),
    bug("the end of a turn is no end", "it asks itself the next question",
        "allformer.checkpoint.gguf_file:generation_of", '("eos", "eot")', '("eos",)', "gguf ends"),
    bug("words are merged that are tokens", "LLaMA 3's rare words are cut", f"{WORDS}:_cut_by",
        "ignore_merges = how.whole", "ignore_merges = False", "gguf words"),
    bug("one step of several", "SmolLM's digits stick together", f"{WORDS}:_cut_by",
        "for pattern in how.patterns]", "for pattern in how.patterns[-1:]]", "gguf words"),
    bug("control tokens are text", "a chat's marks are spelt out", f"{WORDS}:_sidecar",
        "if piece.kind in ADDED", "if piece.kind in ()", "gguf words"),
]  # fmt: skip
