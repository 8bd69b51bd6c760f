"""Planted bugs of what a person sees being written: streams, stop strings, forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from allformer.errors import GenerationError
from tests.mutants.mutants import Mutant, bug
from tests.unit import test_stream_text as stream
from tests.unit import test_structured as structured

KILLERS: dict[str, Callable[[], None]] = {
    "characters of bytes": partial(stream.check_whole_characters, "bytes"),
    "characters of fallback": partial(stream.check_whole_characters, "fallback"),
    "stop strings": stream.check_stop_strings,
    "forms of moving rows": structured.check_rows_may_move,
    "forms that are over": structured.check_what_is_over_is_free,
    "forms after the prompt": structured.check_start,
    "forms and options": structured.check_nothing_left,
    "forms and special tokens": structured.check_special,
}
STREAM, FORM = "allformer.tasks.stream:Stream", "allformer.generate.form:Form"
KEEP, WORDS = "allformer.generate.form:_keep", "allformer.generate.structured:Words.__init__"
ANY = {"raises": (AssertionError, GenerationError)}

MUTANTS: list[Mutant] = [
    bug("half characters are shown", "boxes in the middle of a word", f"{STREAM}.put",
        "text.rstrip(_HALF)", "text", "characters of bytes"),
    bug("a character waits for the next one", "the text lags behind", f"{STREAM}.put",
        "whole = text.rstrip(_HALF)", "whole = text.rstrip(_HALF)[:-1]", "characters of bytes",
        "characters of fallback"),
    bug("a long text is cut inside a character", "boxes for all that follows",
        f"{STREAM}._shorten", "if not text.startswith(_HALF):", "if True:",
        "characters of fallback"),
    bug("a stop string is seen until it is whole", "its first letters are shown", f"{STREAM}._say",
        "until -= self.ends.held(text[:until])", "until -= 0", "stop strings"),
    bug("what looked like a stop string is lost", "the end of a text is missing", f"{STREAM}._say",
        "elif not last:", "else:", "stop strings"),
    bug("the text goes on behind a stop string", "the next speaker is shown", f"{STREAM}._say",
        "until = end  #", "until += 0  #", "stop strings"),
    bug("a stop string in the prompt ends the text", "nothing is shown",
        "allformer.tasks.ends:Ends.find", "max(0, seen - len(string) + 1)", "0", "stop strings"),
    bug("the shortest beginning is held back", "a stop string is shown in part",
        "allformer.tasks.ends:Ends.held", "range(min(self.longest - 1, len(text)), 0, -1)",
        "range(1, min(self.longest, len(text) + 1))", "stop strings"),
    bug("states are shared by rows that part", "a row breaks its form", f"{FORM}._reach",
        "state = state.deep_copy()", "pass", "forms of moving rows", **ANY),
    bug("states are kept by the row", "rows have each other's form", f"{FORM}.__call__",
        "masks[[at[key] for key in said]]",
        "masks[[at[key] for key in sorted(said)]]", "forms of moving rows", **ANY),
    bug("a dead beam is kept to the form", "a search with beams fails", f"{FORM}._reach",
        " or not state.validate_tokens([token])", "", "forms that are over", **ANY),
    bug("any beginning of a form is complete", "a text that was cut is not told of",
        f"{FORM}.complete", "return bool(state.is_accepting())", "return True",
        "forms that are over"),
    bug("the prompt is a part of the form", "nothing fits any more", f"{FORM}.__call__",
        "ids[:, self.start :]", "ids", "forms after the prompt", **ANY),
    bug("a forced token must fit the form", "BART writes nothing in a form", f"{FORM}.__call__",
        "if ids.shape[1] < self.start:", "if False:", "forms after the prompt", **ANY),
    bug("where nothing is left anything goes", "the text breaks its form", KEEP,
        "kept.add_(nothing)", "kept", "forms and options"),
    bug("the lots of two rows are one", "no row is left with nothing", KEEP,
        "kept.amax(-1, keepdim=True)", "kept.amax()", "forms and options"),
    bug("special tokens are text", "an end inside a text", WORDS,
        "{*eos, *special_tokens(tokenizer)}", "{*eos}", "forms and special tokens"),
]  # fmt: skip
