"""Planted bugs of generating in memory of a fixed size: places, beams that share a store, rooms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.mutants.mutants import Mutant, bug
from tests.property import test_fixed_states as states
from tests.unit import test_generate_static as ways

KILLERS: dict[str, Callable[[], None]] = {
    "fixed, windows": partial(states.check_goes_on, "windows"),
    "fixed, windows, padded": partial(states.check_goes_on, "windows", True),
    "fixed, long windows": partial(states.check_goes_on, "long windows"),
    "forked": partial(states.check_forks, "full"),
    "forked, padded": partial(states.check_forks, "full", True),
    "forked windows": partial(states.check_forks, "windows"),
    "forked codes": partial(states.check_forks, "codes"),
    "fixed, outgrown": partial(states.check_outgrown, "long windows"),
    "fixed, some rows": partial(states.check_some_rows, "both"),
    "fixed, some sums": partial(states.check_some_rows, "sums"),
    "fixed, sums in place": states.check_sums_stay,
    "fast, padded": partial(ways.fast_check, partial(ways.check_search, "llama", "greedy")),
    "fast, prompts": partial(ways.fast_check, partial(ways.check_prompts, "gpt2", False)),
    "fast, padded prompts": partial(ways.fast_check, partial(ways.check_prompts, "gpt2", True)),
    "fast, translating": partial(ways.fast_check, partial(ways.check_search, "paper", "beams")),
    "fast, leaving": partial(ways.fast_check, partial(ways.check_leaving, "gpt2", "greedy")),
    "fast, beams leaving": partial(ways.fast_check, partial(ways.check_leaving, "paper", "beams")),
    "fast, grown": partial(ways.fast_check, partial(ways.check_growing, "llama", "beams")),
    "fast, idle": partial(ways.fast_check, ways.check_idle),
    "fast, again": partial(ways.fast_check, ways.check_again),
}
STATIC, RING, PATHS = "states.static:Static", "states.static_ring:StaticRing", "states.paths:Paths"
SUMS = "states.recurrent:_Still"
ROOM, STATE = "allformer.generate.room:Room", "allformer.generate.static_state:StaticState"
ANY = {"raises": Exception}

MUTANTS: list[Mutant] = [
    # --- states -----------------------------------------------------------------------------------
    bug("ring: who is not there yet is seen", "looks at empty memory", f"{RING}.places",
        "torch.where(place < 0, now + 1, place)", "place.clamp_min(0)", "fixed, long windows"),
    bug("ring: one slot too few", "the window is narrower while generating",
        "states.ring:Ring.fixed", "self.size + 1", "self.size", "fixed, windows", **ANY),
    bug("ring: places of the slots before", "keys at other distances", f"{RING}.places",
        "now - (now - slots)", "now - (now - slots - 1)", "fixed, windows"),
    bug("ring: padding of other places", "padding is seen, text hidden", f"{RING}.places",
        "grid.keep.index_select(1, place)", "grid.keep[:, : self.room]", "fixed, windows, padded"),
    bug("ring: laid from the first slot on", "keys at other distances", f"{RING}._lay",
        "torch.arange(end - new.shape[2], end, device=new.device)",
        "torch.arange(new.shape[2], device=new.device)", "fixed, windows"),
    bug("ring: as small as its first room", "the window is narrower while generating",
        f"{RING}.fixed", "StaticRing(self.size", "StaticRing(self.room", "fixed, outgrown"),
    bug("ring: slots of the whole room", "looks at other keys than it says", f"{RING}.places",
        "min(self.room, grid.total)", "grid.total", "fixed, outgrown", **ANY),
    bug("sums replaced, not rewritten", "a graph reads old sums", f"{SUMS}.__setitem__",
        "self[name].copy_(x)", "super().__setitem__(name, x)", "fixed, sums in place"),
    bug("what was there before is seen", "one broken text breaks all after it", f"{STATIC}.take",
        "store.zero_()", "pass", "fixed, some rows"),
    bug("rows taken in order", "texts go on as others", f"{STATIC}.take",
        "given.index_select(0, rows)", "given[: len(rows)]", "fixed, some rows"),
    bug("sums of other rows", "texts go on as others", "states.recurrent:StaticRecurrent.take",
        "given.index_select(0, rows)", "given[: len(rows)]", "fixed, some sums"),
    # --- beams that share a store -----------------------------------------------------------------
    bug("paths stay", "beams keep the past that they had", f"{PATHS}.move",
        "self.table.copy_(self.table.gather(1, index))", "pass", "forked"),
    bug("paths the other way", "beams take the past of who took theirs", f"{PATHS}.move",
        "self.table.gather(1, index)", "self.table.gather(1, index.argsort(1))", "forked"),
    bug("the new token is the first beam's", "all beams read one token", f"{PATHS}.fork",
        "self.table.index_copy_(2, query, now)", "pass", "forked"),
    bug("everybody's past is seen", "beams read one another", "places:mask_of",
        "if places.path is not None:", "if False:", "forked"),
    bug("everybody's codes are seen", "beams read one another",
        "mixers.axial_mask:ImageMask.mask", "mask = mask & places.path", "pass", "forked codes"),
    bug("beams write over one another", "one past for all", f"{PATHS}.slots",
        "place * self.beams + self.own", "place * self.beams", "forked"),
    bug("padding of beams mixed", "padding is seen, text hidden", f"{PATHS}.fork",
        "places.real.repeat_interleave(self.beams, 1)", "places.real.repeat(1, self.beams)",
        "forked, padded"),
    bug("a ring's paths by slot", "beams read one another in windows", f"{PATHS}.fork",
        "self.table[..., place]", "self.table[..., : key.shape[1]]", "forked windows"),
    # --- rooms ------------------------------------------------------------------------------------
    bug("padding has a number", "drifts while generating", f"{ROOM}._read",
        "self.counter - self.left", "self.counter - self.left * 0", "fast, padded"),
    bug("padding of the prompt is seen", "batch is not single", f"{ROOM}._pad",
        "self.keep[: len(stored), : mask.shape[1]] = stored", "pass", "fast, padded"),
    bug("rows that nobody uses stand nowhere", "a lookup fails for all", f"{ROOM}._pad",
        "self.left.zero_()", "pass", "fast, idle", **ANY),
    bug("what follows the padding behind a prompt", "the first token is nonsense", f"{ROOM}.read",
        "prompt.last.fill_(length - 1)", "prompt.last.fill_(width - 1)", "fast, prompts"),
    bug("a prompt ends where its graph ends", "places slip", f"{ROOM}.read",
        "self.counter.fill_(length)", "pass", "fast, prompts", **ANY),
    bug("a prompt begins where the last text ended", "places slip", f"{ROOM}.read",
        "self.counter.zero_()", "pass", "fast, prompts", **ANY),
    bug("padding of a prompt has a number", "drifts while generating", f"{ROOM}._begin",
        "keep.cumsum(1).sub(1)", "torch.ones_like(keep).cumsum(1).sub(1)", "fast, padded prompts"),
    bug("padding of the source is seen", "batch is not single", f"{ROOM}._cover",
        "self.across[: len(mask), :width] = mask", "pass", "fast, translating"),
    bug("empty columns of the source are seen", "attention is diluted", f"{ROOM}._cover",
        "self.across.fill_(False)", "self.across.fill_(True)", "fast, translating"),
    bug("a step reaches one place too short", "does not see what it has just read",
        f"{ROOM}.step", "self._reach(length + 1)", "self._reach(length)", "fast, grown", **ANY),
    bug("the counter stays behind", "a larger room begins anew", f"{ROOM}.follow",
        "self.counter.copy_(other.counter)", "pass", "fast, grown", **ANY),
    bug("paths stay behind", "beams go on from the first one", f"{ROOM}.follow",
        "self.paths.take(other.paths, rows)", "pass", "fast, grown"),
    bug("tokens for the first rows", "who stays reads what others say", f"{STATE}.step",
        "room.tokens.index_copy_(0, self.at, tokens)", "room.tokens[: self.texts].copy_(tokens)",
        "fast, leaving"),
    bug("logits of the first rows", "who stays says what others would", f"{STATE}.step",
        "logits.index_select(0, self.at)", "logits[: self.texts]", "fast, leaving"),
    bug("sources stay behind", "translates another sentence", f"{ROOM}._look_across",
        "old.index_select(0, rows)", "old[: len(rows)]", "fast, beams leaving"),
    bug("graphs of other weights", "says what the model said before it learned",
        "allformer.generate.rooms:Rooms.of", "found.drop()", "pass", "fast, again"),
]  # fmt: skip
