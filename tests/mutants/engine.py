"""Planted bugs of the engine: pages, places of rows that go on, who waits, and who is answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.mutants.mutants import Mutant, bug
from tests.property import test_pages
from tests.unit import test_engine

SEQ2SEQ = "seq2seq modern"
KILLERS: dict[str, Callable[[], None]] = {
    "owners": test_pages.check_owners,
    "idle pages": test_pages.check_idle,
    "gathered": test_pages.check_gathered,
    "engine": test_engine.check_mixed,
    "engine, sources": partial(test_engine.check_mixed, SEQ2SEQ),
    "lean engine": partial(test_engine.check_mixed, lean=True),
    "lean engine, sources": partial(test_engine.check_mixed, SEQ2SEQ, lean=True),
    "end to end": test_engine.check_end_to_end,
    "fixed shapes": test_engine.check_fixed,
    "fixed shapes, sources": partial(test_engine.check_fixed, "seq2seq paper"),
    "engine, options": test_engine.check_options,
    "preempted": test_engine.check_preempted,
    "cancelled": test_engine.check_cancelled,
    "shared": test_engine.check_shared,
    "said is shared": test_engine.check_said,
    "shared across": test_engine.check_shared_across,
    "engine, nan": test_engine.check_nan,
}
POOL, PAGES, ENGINE = "states.pool:Pool", "states.pages", "allformer.generate.engine:Engine"
PICK, FIXED = "allformer.generate.pick", "allformer.generate.fixed_steps"
ANY = {"raises": Exception}

MUTANTS: list[Mutant] = [
    # --- pages ------------------------------------------------------------------------------------
    bug("page 0 is given away", "what is not wanted is written into a text", f"{POOL}.__init__",
        "list(range(pages, 0, -1))", "list(range(pages - 1, -1, -1))", "owners"),
    bug("a page found is not owned", "it is given away while somebody reads it", f"{POOL}.find",
        "self._owners[page] += 1", "pass", "owners"),
    bug("a page found stays idle", "it is given away while somebody reads it", f"{POOL}.find",
        "self._idle.pop(page, None)", "pass", "idle pages"),
    bug("beginnings found by a page alone", "another text's keys are taken for its own",
        f"{POOL}.find", "known = self._known.get((node,", "known = self._known.get((root,",
        "owners"),
    bug("what was in a page is still found", "a text goes on from another's", f"{POOL}.take",
        "del self._known[self._told.pop(page)]", "self._told.pop(page)", "idle pages", **ANY),
    bug("beginnings go first", "the ends that are left are of no use", f"{POOL}.release",
        "for page in reversed(pages):", "for page in pages:", "idle pages"),
    bug("the page used last goes first", "what all begin with is computed again", f"{POOL}.take",
        "last=False", "last=True", "idle pages"),
    bug("one owner frees for all", "pages change under those who read them", f"{POOL}.release",
        "if not self._owners[page]:", "if True:", "owners", **ANY),
    bug("garbage behind the end", "a neighbour's NaN spreads", f"{PAGES}:Pages.gather",
        "seen.masked_fill_(beyond[..., None, None], 0.0)", "seen", "gathered", "engine, nan",
        **ANY),
    bug("slots of a page mixed up", "keys overwrite each other", f"{PAGES}:slots_of",
        "places % size", "places % max(1, size - 1)", "engine", "lean engine"),
    bug("what was read before is not looked at", "a prompt in pieces is read as several",
        "allformer.generate.reader:Reader.read", "if any(past) else layout", "if False else layout",
        "end to end", **ANY),
    bug("rows end to end look at their new tokens alone", "a prompt in pieces is read as several",
        f"{PAGES}:Frame.turn_to", "if whole is not layout:", "if False:", "end to end", **ANY),
    bug("padding is written", "a row's first token is overwritten", f"{PAGES}:Frame.turn_to",
        "slots.masked_fill(~layout.keep, 0)", "slots", "engine"),
    bug("rows in each other's pages", "texts mix", f"{PAGES}:Pages.gather",
        "table.flatten()", "table.roll(1, 0).flatten()", "gathered"),
    bug("rows go on from the front", "positions begin anew in each step", "resumed:resume",
        "torch.tensor(past)[:, None] + torch.arange(width)",
        "0 * torch.tensor(past)[:, None] + torch.arange(width)", "engine", **ANY),
    bug("sources of others", "translates another sentence", "allformer.generate.reader:Reader.read",
        "[x.source for x in lines]", "[max(x.source for x in lines)] * len(lines)",
        "engine, sources"),
    bug("a token does not see itself", "the newest key is left out",
        "allformer.generate.reader:Reader._lean", "numbers + 1", "numbers.clamp_min(1)",
        "lean engine"),
    bug("lean sources of others", "translates another sentence",
        "allformer.generate.reader:Reader._lean", "lengths[row]", "lengths.amax().expand(len(row))",
        "lean engine, sources"),
    bug("a piece of a prompt looks ahead", "what is to come is seen", "lean.pages:_together",
        ".tril(end - new)", "", "lean engine"),
    bug("a prompt that begins looks ahead", "what is to come is seen", "lean.pages:_together",
        "is_causal=mask is None", "is_causal=False", "lean engine"),
    # --- who is read, and who waits ---------------------------------------------------------------
    bug("a beginning counts as the whole", "the last token is not read", f"{ENGINE}._seat",
        "reply.ids[:-1]", "reply.ids", "shared", **ANY),
    bug("sources do not tell beginnings apart", "goes on from another's translation",
        f"{ENGINE}._seat", "pool.find(reply.source, reply.ids[:-1])",
        "pool.find((), reply.ids[:-1])", "shared across", **ANY),
    bug("what was said is lost", "a text that made room begins anew", f"{ENGINE}._preempt",
        "self._leave(reply)", "self._leave(reply)\n    del reply.ids[reply.prompt :]", "preempted"),
    bug("pages of the cancelled stay", "memory leaks", f"{ENGINE}._leave",
        "self.pool.release(reply.seat.pages)", "pass", "cancelled"),
    bug("pages told before they are full", "others find tokens that were never read",
        f"{ENGINE}._tell", "(seat.told + 1) * size <= seat.read", "seat.told * size < seat.read",
        "said is shared"),
    bug("the unread speak", "an answer before the prompt's end", f"{ENGINE}._read",
        "if x.seat.read == len(x.ids)", "if x.seat.read <= len(x.ids)", "engine", **ANY),
    # --- tokens -----------------------------------------------------------------------------------
    bug("answers mixed up", "one gets another's token", f"{PICK}:pick",
        "order += rows", "order += rows[::-1]", "engine, options"),
    bug("one generator for all", "draws depend on the neighbours", f"{PICK}:_take",
        "[x.request.draw.noise(scores) for x in replies if x.request.draw is not None]",
        "[request.draw.noise(scores) for _ in replies]", "engine, options"),
    bug("options of the first for all", "one's temperature is another's", f"{PICK}:_kind",
        "(warp.func, *sorted(warp.keywords.items()))", "warp.func", "engine, options"),
    bug("an old table", "a row goes on with the pages of another", f"{FIXED}:_Frame.fill",
        "if kept is not line.pages or count != len(kept):", "if count != len(line.pages):",
        "fixed shapes"),
    bug("a new page is not seen", "a row goes on in page 0", f"{FIXED}:_Frame.fill",
        "or count != len(kept)", "", "fixed shapes"),
    bug("sources in the row's own pages", "translates what it has said", f"{FIXED}:_Frame.fill",
        "3 + self._pages :], line.sources)",
        "3 + self._pages :], line.pages[: len(line.sources)])", "fixed shapes, sources"),
]  # fmt: skip
