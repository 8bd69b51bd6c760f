"""Planted bugs of adapters on disk: PEFT's fields, its names, and what a fused product makes of
them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from allformer.errors import CheckpointError
from tests.mutants.mutants import Mutant, bug
from tests.unit import test_adapter
from tests.unit import test_adapter_by_hand as by_hand

KILLERS: dict[str, Callable[[], None]] = {
    "lora read": by_hand.check_lora_read,
    "stabilised lora read": partial(by_hand.check_lora_read, stabilised=True),
    "dora read": partial(by_hand.check_lora_read, dora=True),
    "parts read": by_hand.check_parts_read,
    "(IA)³ read": by_hand.check_ia3_read,
    "(IA)³ written": by_hand.check_ia3_written,
    "older names": by_hand.check_older_names,
    "tied table": by_hand.check_tied,
    "prefix behind an encoder": by_hand.check_prefix_order,
    "prompt before an encoder": by_hand.check_prompt_rows,
    **{
        f"lora written, {case}": partial(by_hand.check_lora_written, *given)
        for case, given in by_hand.WRITTEN.items()
    },
    "shortest names": test_adapter.test_the_shortest_names_mean_no_other_module,
    "covered modules": test_adapter.test_modules_are_covered_when_nothing_of_them_is_left_out,
}
AT = "allformer.checkpoint.adapter"
LORA, WHOLE, NAMES = f"{AT}.lora", f"{AT}.whole", f"{AT}.names"

MUTANTS: list[Mutant] = [
    bug("alpha_pattern not looked at", "some layers answer too softly", f"{LORA}:LoraForm.read",
        "_matching(alphas, one.module, alpha)", "alpha", "lora read"),
    bug("patterns at the beginning", "no pattern of PEFT's fits", f"{LORA}:_matching",
        r"(.*\.)?({pattern})$", "({pattern})$", "lora read", raises=CheckpointError),
    bug("use_rslora not read", "high ranks answer too softly", f"{LORA}:LoraForm.read",
        'fields.take("use_rslora", False, FLAG)', "bool(fields.inert('use_rslora'))",
        "stabilised lora read"),
    bug("alpha as torch's own default", "PEFT's is 8", f"{LORA}:LoraForm.read",
        'fields.take("lora_alpha", 8, NUMBER)', 'fields.take("lora_alpha", 16, NUMBER)',
        "parts read"),
    bug("lengths read as they start", "DoRA has learnt nothing", f"{LORA}:LoraForm.read",
        "one.length\n", "1 + 0 * one.length\n", "dora read"),
    bug("scales of parts not made one", "v is changed by q's alpha", f"{LORA}:_share",
        "* (pair.scale / scale)", "* 1.0", "lora written, parts of one"),
    bug("parts share their columns", "v is changed by what q reads", f"{LORA}:_share",
        "column += width", "column += 0", "lora written, parts of one"),
    bug("parts in the first rows", "k's change goes to q", f"{LORA}:_share",
        "up[low - rows.start : high - rows.start, column", "up[: high - low, column",
        "lora written, parts of one", "lora written, lengths of a part"),
    bug("each part has q's rows of B", "k and v are changed as q is", f"{LORA}:_share",
        "pair.b.detach()[low - start : high - start]", "pair.b.detach()[: high - low]",
        "lora written, one in parts"),
    bug("other rows of length one", "q and v are shrunk with k", f"{LORA}:_share",
        "dense(layer, up.dtype, rows).norm(dim=1)", "up.new_ones(len(up))",
        "lora written, lengths of a part"),
    bug("alpha written by the rank", "PEFT answers too softly", f"{LORA}:LoraForm.write",
        "math.sqrt(ranks[module]) if", "ranks[module] if", "lora written, lengths of a part"),
    bug("(IA)³ in the first rows", "keys have the factors of queries",
        f"{AT}.ia3:Ia3Form.write", "_factors(change)[rows]",
        "_factors(change)[: rows.stop - rows.start]", "(IA)³ written"),
    bug("(IA)³ at the other end", "what is given is multiplied as what is read",
        f"{AT}.ia3:Ia3Form.read", "reads.append(site)", "gives.append(site)", "(IA)³ read",
        raises=CheckpointError),
    bug("biases left out are zero", "q and k lose theirs", f"{WHOLE}:read_whole",
        "base[op.ours].detach().clone()", "0 * base[op.ours].detach()", "parts read"),
    bug("biases left out are another's", "adapters leak into each other",
        f"{WHOLE}:base_tensors", "found | tuning.base", "found", "parts read"),
    bug("a head may be apart", "it is tied, and lost", f"{WHOLE}:_check_alias",
        "not torch.equal(mine.to(tensor), tensor)", "False", "tied table"),
    bug("the table without its head", "PEFT unties them", f"{WHOLE}:write_whole",
        "if first in theirs:", "if False:", "tied table", raises=(AssertionError, KeyError)),
    bug("prefixes in order behind an encoder", "not the layers that PEFT trained",
        f"{AT}.prefix:PrefixForm.read", "parts[2 * i % len(parts)]", "parts[i]",
        "prefix behind an encoder"),
    bug("prefixes written in order", "PEFT gives layers each other's keys",
        f"{AT}.prefix:_dealt", "place = 2 * i % len(parts)", "place = i",
        "prefix behind an encoder"),
    bug("the decoder's rows of a prompt", "PEFT never trained them",
        f"{AT}.prompt:PromptForm.read", "table[:tokens]", "table[tokens:]",
        "prompt before an encoder"),
    bug("files' names for modules", "PEFT finds no module", f"{NAMES}:Names.now",
        "re.sub(pattern, to, name)", "name", "older names",
        raises=(AssertionError, CheckpointError)),
    bug("any end of a name", "other modules are changed too", f"{NAMES}:shortest",
        "other in wanted for", "True for", "shortest names"),
    bug("half a module is a module", "PEFT wants all of it", f"{NAMES}:covered",
        "all(x in tensors", "any(x in tensors", "covered modules"),
]  # fmt: skip
