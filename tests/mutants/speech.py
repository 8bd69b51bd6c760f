"""Planted bugs of transcribing: rules, searches, windows."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_listener_speed, test_transcribe
from tests.unit import test_speech_rules as speech

KILLERS: dict[str, Callable[[], None]] = {
    "speech rules": speech.check_rules,
    "speech without times": speech.check_no_times,
    "speech rows move": speech.check_rows_move,
    "speech greedy": speech.check_greedy,
    "speech beams": speech.check_beams,
    "speech best": speech.check_best,
    "speech cut": speech.check_cut,
    "speech prompt": speech.check_prompt,
    "fixed memory": test_listener_speed.check_fixed,
    "rows of one source": test_transcribe.check_shared_source,
}
HERE = "allformer.speech"
TIMES, TRAIL = f"{HERE}.rules:Rules._times", f"{HERE}.rules:Trail"
BEAMS = f"{HERE}.search:Beams"
CUT = f"{HERE}.segments:cut"

CAPTURED = f"{HERE}.captured:CapturedListener"

MUTANTS: list[Mutant] = [
    bug("the counter of a window goes on", "the second window is read behind the first",
        f"{CAPTURED}._anew", "cache.length.zero_()", "cache.length.clone()", "fixed memory"),
    bug("the first window is heard again", "every window has the text of the first",
        f"{CAPTURED}._anew", "mine.copy_(new)", "mine.clone()", "fixed memory"),
    bug("a text may begin late", "its first words are lost", TIMES,
        "self.latest + 1 :", "self.latest + 2 :", "speech rules"),
    bug("an empty segment", "windows never move on", TIMES,
        "trail.last + 1 - ends.long()", "trail.last", "speech rules"),
    bug("no twin of a time", "segments have gaps", TIMES,
        "trail.last + 1 - ends.long()", "trail.last + 1", "speech rules"),
    bug("a time alone amid words", "segments are cut wrongly", TIMES,
        "trail.stamped & ~trail.before  #", "trail.stamped & trail.before  #", "speech rules"),
    bug("three times in a row", "empty segments", TIMES,
        "least.masked_fill(trail.stamped & trail.before", "least.masked_fill(trail.before & False",
        "speech rules"),
    bug("words although a time is likelier", "segments run on", TIMES,
        "words.masked_fill_(likelier[:, None], NEVER)", "likelier.any()", "speech rules"),
    bug("the likeliest time alone counts", "times are too rare", TIMES,
        "times.float().logsumexp(-1)", "times.float().amax(-1)", "speech rules"),
    bug("the first time has one before it", "no words follow it", f"{TRAIL}.add",
        "if self.count:", "if True:", "speech rules"),
    bug("times are not remembered", "they go back", f"{TRAIL}.add",
        "torch.where(self.stamped, tokens, self.last)", "self.last", "speech rules"),
    bug("the last time stays behind", "beams have each other's", f"{TRAIL}.select",
        "self.last = self.last[rows]", "self.last = self.last[: len(rows)]", "speech rows move"),
    bug("blanks for ever", "texts cannot end", f"{HERE}.rules:Rules.__call__",
        "trail.count == 0 and len(self.blank)", "len(self.blank)", "speech without times",
        "speech rules"),
    bug("texts go on after their end", "they look less likely", f"{HERE}.search:Likeliest.take",
        "logprob.masked_fill(self.over, 0.0)", "logprob", "speech greedy"),
    bug("an ended text wakes up", "words after the end", f"{HERE}.search:Likeliest.take",
        "token = token.masked_fill(self.over, self.end)", "token = token + 0", "speech greedy"),
    bug("all beams count at first", "five times the same text", f"{BEAMS}._candidates",
        "if self.count == 0:", "if False:", "speech beams"),
    bug("ends among the beams", "nothing to go on from", f"{BEAMS}.take",
        "(~ends & (others <= self.copies))", "(others <= self.copies)", "speech beams"),
    bug("the history of another beam", "texts are mixed", f"{BEAMS}.take",
        "self.said = self.said.index_select(0, rows)", "self.said = self.said.clone()",
        "speech beams"),
    bug("later ends overwrite earlier", "good texts are lost", f"{BEAMS}._set_aside",
        "self.found[:, None] + ends.cumsum(1) - 1", "0 * self.found[:, None] + ends.cumsum(1) - 1",
        "speech beams"),
    bug("the longest is the best", "texts run on", f"{HERE}.search:best_text",
        "text.logprob / divisor", "len(text.tokens)", "speech best"),
    bug("half a segment is kept", "words twice", CUT,
        "if whole else pairs", "if True else pairs", "speech cut"),
    bug("the whole window is passed over", "words are lost", CUT,
        "moved = size if whole else", "moved = size if True else", "speech cut"),
    bug("times of the window alone", "all windows at once", CUT,
        "offset + (token - first) * STEP", "(token - first) * STEP", "speech cut"),
    bug("beams ask another window", "texts of two windows are mixed", "attention:Attention._across",
        "q = q.reshape(len(k), -1, q.shape[-1])",
        "q = q.reshape(-1, len(k), q.shape[-1]).transpose(0, 1)", "rows of one source"),
    bug("the start of what was said", "the prompt is stale", f"{HERE}.decoding:before_text",
        "prompt[-(half - 1) :]", "prompt[: half - 1]", "speech prompt"),
]  # fmt: skip
