"""Planted bugs of layers in few bits: what bytes mean, how weights are rounded, and their files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from allformer.errors import AllformerError
from tests.mutants.mutants import Mutant, bug
from tests.unit import test_packed_files, test_quantise, test_quantised


def _words() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_packed_files.check_words(Path(folder))


KILLERS: dict[str, Callable[[], None]] = {
    "few bits": test_quantised.check_formula,
    "few bits, fast": test_quantised.check_fast,
    "few bits, kept": test_quantised.check_kept,
    "few bits, once": test_quantised.check_held_once,
    "nearest": test_quantise.check_nearest,
    "scales": test_quantise.check_scales,
    "gptq": test_quantise.check_compensated,
    "watched": test_quantise.check_watched,
    "packed words": _words,
}
LAYER, CPU, ROUND = "quantised:Quantised", "quantised_cpu", "rounding"
FILES = "allformer.checkpoint.packed_files"
REFUSED = {"raises": (AssertionError, AllformerError, RuntimeError)}

MUTANTS: list[Mutant] = [
    bug("halves exchanged", "each two weights change places", "quantised:unpack",
        "(packed & 0xF, packed >> 4)", "(packed >> 4, packed & 0xF)", "few bits"),
    bug("four bits never signed", "all weights lean to one side", f"{LAYER}.integers",
        "signed=self.least is None", "signed=False", "few bits"),
    bug("nothing is added", "groups with a least value begin at zero", f"{LAYER}.dense",
        "w += self.least[rows, :, None]", "pass", "few bits"),
    bug("scales of other groups", "every group but the middle one is off", f"{LAYER}.dense",
        "mul_(self.scale[rows, :, None])", "mul_(self.scale[rows].flip(1)[..., None])",
        "few bits"),
    bug("scales converted with the model", "in bf16 every group is off", f"{LAYER}._apply",
        "new.dtype != old.dtype", "False", "few bits, kept"),
    bug("delta ignored in few bits", "LoRA on a quantised model trains nothing",
        f"{LAYER}.forward", "else changed(self, x)", "else self.bare(x)", "few bits, kept"),
    bug("one digit", "a loud input drowns the others", "int8:times_bytes",
        "less, alpha=1 / 254", "less, alpha=0", "few bits, fast"),
    bug("a digit too far", "what is finer than a unit is half lost", "int8:digits",
        "mul_(254)", "mul_(127)", "few bits, fast"),
    bug("middle forgotten", "groups with a least value are off by eight scales",
        f"{CPU}:half_bytes", "least + 8 * scale", "least", "few bits, fast"),
    bug("order of a block forgotten", "a prompt is read by another matrix than its answer",
        f"{CPU}:ordered", ".permute(0, 3, 2, 1)", ".permute(0, 2, 3, 1)", "few bits, once"),
    bug("saved as it stands", "a model that has spoken is saved with its rows mixed up",
        f"{LAYER}._save_to_state_dict", "if plain is not None", "if False", "few bits, once"),
    bug("loaded into another order", "new weights are read as if they were turned",
        f"{LAYER}._load_from_state_dict", "self._put_back()", "pass", "few bits, once", **REFUSED),
    bug("fast without bias", "biases vanish on a CPU", f"{LAYER}._fast",
        "y if bias is None else y.add_(bias)", "y", "few bits, fast"),
    bug("rounded down", "twice the error", f"{ROUND}:_whole", ".round_()", ".floor_()", "nearest"),
    bug("eight in four bits", "the largest weights wrap to the lowest", f"{ROUND}:_whole",
        "most - 1 if bits == 4 else most", "most", "nearest"),
    bug("the last scale tried", "one reach for all groups, mostly too short", f"{ROUND}:scales",
        "better = loss < least", "better = loss < torch.inf", "scales"),
    bug("every input counts alike", "loud inputs are rounded as the quiet", f"{ROUND}:scales",
        "off.mul_(weigh)", "off", "scales"),
    bug("nothing is made good", "GPTQ is rounding", f"{ROUND}:compensated",
        "w[:, i + 1 : end] -= error[:, None] * root[i, i + 1 : end]", "pass", "gptq"),
    bug("errors doubled", "what should be made good grows", f"{ROUND}:compensated",
        "w[:, i + 1 : end] -= error", "w[:, i + 1 : end] += error", "gptq"),
    bug("columns left in their new order", "weights of other inputs", f"{ROUND}:compensated",
        "q[:, order.argsort()]", "q[:, order]", "gptq"),
    bug("errors stay in their block", "later blocks make nothing good", f"{ROUND}:compensated",
        "w[:, end:] -= errors @ root[start:end, end:]", "pass", "gptq"),
    bug("a pass that never ends early", "calibrating takes the square of the layers",
        "calibrate:watch", "raise Enough", "pass", "watched"),
    bug("delta left behind", "after calibrating, layers are heard for ever",
        "calibrate:listening_to", "        layer.delta = old", "        pass", "watched"),
    bug("signed bytes as they are", "half of all weights are off by 256 scales",
        f"{FILES}:_bytes", "Signed(seen) if bits == 8 else seen", "seen", "packed words"),
    bug("zero points across the inputs", "others refuse the file", f"{FILES}:_zero",
        "whole.t().to(torch.int16)", "whole.to(torch.int16)", "packed words", **REFUSED),
    bug("zero point added", "weights lean to the wrong side", f"{FILES}:_least",
        "-zero * scale", "zero * scale", "packed words", **REFUSED),
]  # fmt: skip
