"""Planted bugs of what stands beside sub-layers and before the tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from allformer import tune
from allformer.errors import ConfigError
from tests.mutants.mutants import Mutant, bug
from tests.unit import test_tune_soft as soft

KILLERS: dict[str, Callable[[], None]] = {
    **{
        f"{form}, {'pre' if pre else 'post'}": partial(soft.check_bottleneck, form, pre)
        for form in soft.FORMS
        for pre in (False, True)
    },
    "learned keys": partial(soft.check_prefix, tune.Prefix(3)),
    "learned vectors": soft.check_prompt,
    "learned first": soft.check_first,
    "prefix, padded": partial(soft.check_padding, "prefix"),
    "prompt, written": partial(soft.check_written, "prompt"),
    "prompt, one by one": partial(soft.check_one_by_one, "prompt"),
    **{f"{kind}, answered": partial(soft.check_answered, kind) for kind in ("prefix", "prompt")},
    **{f"{k} by row": partial(soft.check_rows, k) for k in ("prefix", "prompt", "bottleneck")},
}
NECK, PREFIX, PROMPT = (f"allformer.tune.{n}" for n in ("bottleneck", "prefix", "prompt"))
EITHER = (AssertionError, RuntimeError, ConfigError)

MUTANTS: list[Mutant] = [
    bug("a neck not scaled", "the parallel form is four times too weak", f"{NECK}:Neck.forward",
        "y * self.scale", "y", "parallel, post", "parallel, pre"),
    bug("Houlsby reads what the sub-layer reads", "it is the parallel form",
        f"{NECK}:Wraps._changes", 'None if form == "houlsby" else x', "x", "houlsby, post",
        "houlsby, pre"),
    bug("Pfeiffer forgets the norm", "it reads a sum, not what the next layer reads",
        f"{NECK}:_wrapped", "x + h if block.pre else step.norm(x + h)", "x + h", "pfeiffer, post"),
    bug("Pfeiffer norms before the next layer does", "a norm that no paper has",
        f"{NECK}:_wrapped", "x + h if block.pre else step.norm(x + h)", "step.norm(x + h)",
        "pfeiffer, pre"),
    bug("late steps are not asked", "an adapter that does nothing", "block:Step.added",
        "h if self.late is None else self.late(_first(x, h), h)", "h", "pfeiffer, post",
        "pfeiffer, pre"),
    bug("necks of the first rows", "one user's adapter answers another", f"{NECK}:Wraps._changes",
        "run(h[rows], mine, names)", "run(h[: len(rows)], mine, names)", "bottleneck by row"),
    bug("keys and values exchanged", "a prefix of PEFT says something else",
        "mixers.full:Full.forward", "for x in plan.ahead)", "for x in plan.ahead[::-1])",
        "learned keys"),
    bug("tokens behind a prefix begin at 0", "positions are not PEFT's", "layout:Grid.behind",
        "if self.ahead is None:", "if True:", "learned keys"),
    bug("packed tokens behind a prefix begin at 0", "padding changes the answer",
        "layout:Packed.behind", "numbers if self.ahead is None else numbers + self.ahead.most",
        "numbers", "prefix, padded"),
    bug("learned keys behind the tokens", "the first tokens do not see them",
        "places:Places.behind", "torch.arange(-count, 0,", "torch.arange(1, count + 1,",
        "learned keys"),
    bug("rows see each other's prefix room", "a row without a prefix looks at zeros",
        "places:Places.behind", "first = before >= ", "first = before >= -count + 0 * ",
        "prefix by row"),
    bug("learned keys of all rows count for each", "rows with shorter prefixes stand elsewhere",
        "layout:Grid.behind", "most if rows is None else rows[:, None]", "most", "prefix by row"),
    bug("a prefix forgotten by the cache", "what is written does not see it",
        "stack:Stack.new_cache", "None if self.delta is None else self.delta.ahead", "None",
        "prefix, answered", raises=EITHER),
    bug("a source's mask without the learned tokens", "the decoder does not look at them",
        "encoder_decoder:EncoderDecoderModel.step", "delta.count, 0), value=True",
        "delta.count, 0)", "prompt, answered"),
    bug("learned tokens are counted", "a cache is cut in the wrong place",
        "states.state:Cache.learn", "self.length - count", "self.length", "prompt, one by one",
        raises=EITHER),
    bug("cut among the learned tokens", "what is read again is read too late",
        "states.state:Cache.cut", "layer.own.cut(length + self.learned)", "layer.own.cut(length)",
        "prompt, one by one", raises=EITHER),
    bug("a mask without the learned tokens", "they are taken for padding",
        "states.state:Cache.grid", "F.pad(keep, (self.learned, 0), value=True)",
        "F.pad(keep, (self.learned, 0))",
        "prompt, written"),
    bug("prompt behind the first step", "it is read again with each token", "stack:Stack.laid",
        "cache is None or not (cache.length or cache.learned)", "True", "prompt, one by one",
        raises=EITHER),
    bug("the first learned token is not read", "PEFT's classifiers say something else",
        "whole:Model.finish", "FIRST in hidden and first == name", "False", "learned first"),
    bug("prompts taken for padding", "nobody looks at them", f"{PROMPT}:_longer",
        "F.pad(layout.keep, (count, 0), value=True))._replace",
        "F.pad(layout.keep, (count, 0)))._replace", "learned vectors", raises=EITHER),
    bug("prompts in the order of adapters", "one user's prompt answers another",
        f"{PROMPT}:Vectors.vectors", ".index_select(0, order.argsort())", "", "prompt by row"),
    bug("shorter prefixes stand first", "their keys are hidden, zeros are seen",
        f"{PREFIX}:_placed", "(0, 0, gap, 0)", "(0, 0, 0, gap)", "prefix by row"),
]  # fmt: skip
