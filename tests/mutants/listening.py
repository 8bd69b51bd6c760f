"""Planted bugs of what lies before a model that hears, and behind it: frames, resampling, voices,
how transcripts are scored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.mutants.mutants import Mutant, bug
from tests.parity import test_log_mel
from tests.unit import test_sound_long, test_sound_read, test_spoken

KILLERS: dict[str, Callable[[], None]] = {
    "mel filters": partial(test_log_mel.check_filters, 80),
    "log-mel": partial(test_log_mel.check_log_mel, 80),
    "log-mel in pieces": partial(test_sound_long.check_pieces, 0, 150),
    "voices": test_sound_long.check_voices,
    "resampling by the formula": test_sound_read.check_stream,
    "normalisers": test_spoken.check_normalisers,
    "edit distance": test_spoken.check_edits,
}
MEL, LONG, VOICE = "allformer.sound.mel", "allformer.sound.spectrogram", "allformer.sound.voice"
SINC, NUMBERS = "allformer.sound.resample", "allformer.text.spoken_numbers:_Reader"
SPOKEN, EDITS = "allformer.text.spoken", "allformer.metrics.word_error"

MUTANTS: list[Mutant] = [
    bug("magnitude for power", "quiet bins are twice as loud", f"{MEL}:mel_power",
        "torch.addcmul(real * real, imaginary, imaginary)",
        "torch.addcmul(real * real, imaginary, imaginary).sqrt()", "log-mel"),
    bug("one loudest bin for all rows", "a quiet row beside a loud one is silence",
        f"{MEL}:log_mel", "logs.amax((-2, -1), keepdim=True)", "logs.amax()", "log-mel"),
    bug("zeros before the sound", "the first frames are too quiet", f"{MEL}:centred",
        'mode="reflect"', 'mode="constant"', "log-mel"),
    bug("seven decades", "the floor is too high", f"{MEL}:scaled", "peak - DECADES",
        "peak - DECADES + 1", "log-mel"),
    bug("filters of equal height", "high bins are too loud", f"{MEL}:mel_filters",
        "* 2 / (high - low)", "* 2 / 200", "mel filters"),
    bug("a block forgets what came before", "a frame is missing between two blocks",
        f"{LONG}:mel_blocks", "pending[count * HOP :]", "pending[count * HOP + HOP :]",
        "log-mel in pieces", raises=(AssertionError, RuntimeError)),
    bug("the last frame too", "30 seconds are 3001 frames", f"{LONG}:Spectrogram._keep",
        "self._total - self._count", "self._total + 1 - self._count", "log-mel in pieces"),
    bug("loud is speech", "bursts of noise are transcribed", f"{VOICE}:_runs",
        "peaked = flatness < ear.flat", "peaked = flatness < 2", "voices"),
    bug("no silence is quiet enough", "pauses are taken for speech", f"{VOICE}:_runs",
        "(above > ear.goes_on)", "(above > -9)", "voices"),
    bug("a stream without memory", "clicks between blocks", f"{SINC}:_Sinc.push",
        "wave[:, steps * self.down :]", "wave[:, wave.shape[-1] - self.reach :]",
        "resampling by the formula", raises=(AssertionError, RuntimeError)),
    bug("phases the wrong way round", "every other sample is of another time",
        f"{SINC}:_sinc_kernels", "[:, None] * down / up", "[:, None] * -down / up",
        "resampling by the formula"),
    bug("hundreds and all", "two hundred and five is two numbers", f"{NUMBERS}._joint",
        "if self.before not in TIMES", "if True", "normalisers"),
    bug("years are sums", "nineteen eighty is 99", f"{NUMBERS}._grown",
        "room = 10 if unit and number < 10 else 100", "room = 1", "normalisers"),
    bug("double is one", "double seven is 7", f"{NUMBERS}._joint", "* REPEATS[word]", "* 1",
        "normalisers"),
    bug("accents stay", "naïve is no naive", f"{SPOKEN}:_plain_letters",
        'unicodedata.category(c) != "Mn"', "True", "normalisers"),
    bug("insertions are free", "whoever talks more errs less", f"{EDITS}:edits",
        "np.concatenate([[done], best]) - place) + place",
        "np.concatenate([[done], best]))", "edit distance"),
    bug("rates are averaged by sentence", "short sentences weigh as much as long ones",
        f"{EDITS}:_rate", "return wrong / length",
        "return sum(edits(a, b) / max(1, len(a)) for a, b in zip(wanted, given)) / len(wanted)",
        "edit distance"),
]  # fmt: skip
