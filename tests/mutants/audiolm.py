"""Planted bugs of AudioLM: centres, units, rows of the stages, and what may be said when."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from allformer.audiolm.examples import Examples
from allformer.audiolm.tokens import Stage
from allformer.audiolm.units import Units, fit_recordings
from allformer.config import DecoderOnly
from allformer.errors import AllformerError
from allformer.train.objectives.sound_tokens import SoundTokens
from allformer.train.sections.sizes import decoder
from allformer.train.sections.vocabulary import Vocabulary
from tests import speaking
from tests.models import loud
from tests.mutants.mutants import Mutant, bug
from tests.unit import test_audiolm, test_kmeans, test_sound_tokens, test_units

COARSE = Stage("coarse", units=6, codes=8, coarse=2, books=3)


@cache
def _units() -> Units:
    return fit_recordings(speaking.encoder(), speaking.recordings(), clusters=6, layer=1)[0]


class _Rows(SoundTokens):
    """Two rows, of which nobody had to hear anything."""

    stage = COARSE  # type: ignore[assignment]

    def examples(self, epoch: int) -> Examples:
        codes = [[1, 2, 3], [4, 5, 6], [7, 0, 1]]
        return Examples.of([COARSE.row([1, 2, 1], codes), COARSE.row([3], codes)])


@cache
def _model() -> Any:
    """A decoder over the ids of the coarse stage."""
    sizes = {"dim": 16, "heads": 2, "feed": 16, "layers": 1, "dropout": 0.0,
             "attention_dropout": 0.0, "feed_dropout": 0.0, "decoder_layers": None}  # fmt: skip
    tree: DecoderOnly = decoder(64, None, None, **sizes)
    from allformer.train.sections.model import with_vocabulary

    own = Vocabulary(COARSE.size, COARSE.pad, COARSE.begin, COARSE.end)
    return loud(with_vocabulary(tree, own)).float()


KILLERS: dict[str, Callable[[], None]] = {
    "k-means": test_kmeans.check_lloyd,
    "idle centres": test_kmeans.check_idle,
    "idle centres, mini-batches": lambda: test_kmeans.check_idle(30),
    "first centres": test_kmeans.check_seeds,
    "units": lambda: test_units.check_units(_units()),
    "units and codes, cut": lambda: test_units.check_cut(_units()),
    "layers of units": test_units.check_layers,
    "repeats of units": test_sound_tokens.check_repeats,
    "rows of codes": test_sound_tokens.check_flat,
    "batches of codes": lambda: test_audiolm.check_batch(_Rows()),
    "codes in turn": lambda: test_audiolm.check_likeliest(_model(), COARSE),
}
MEANS, UNITS = "allformer.audiolm.kmeans", "allformer.audiolm.units"
TOKENS, SAY = "allformer.audiolm.tokens", "allformer.audiolm.saying"
ASIDE = {"raises": (AssertionError, AllformerError, IndexError)}

MUTANTS: list[Mutant] = [
    bug("half a distance", "points go to the wrong centre", f"{MEANS}:_distances",
        "alpha=-2", "alpha=-1", "k-means"),
    bug("an idle centre stays", "fewer units than were asked for", f"{MEANS}:_lloyd",
        "_restarted(new, counts == 0, points, far)", "new", "idle centres"),
    bug("an idle centre stays in mini-batches", "fewer units than were asked for",
        f"{MEANS}:_mini_batches", "idle = seen == 0", "idle = seen < 0",
        "idle centres, mini-batches"),
    bug("first centres by chance alone", "clouds without a centre", f"{MEANS}:seeded",
        "far.double().cumsum(0)", "torch.ones_like(far).double().cumsum(0)", "first centres"),
    bug("states as they are", "loud numbers decide alone", f"{UNITS}:Units.encode",
        "/ self.spread", "/ 1.0", "units"),
    bug("silence is said", "the last window has units of what fills it up", f"{UNITS}:_states",
        "yield states[:left]", "yield states", "units"),
    bug("codes cut by the rate of units", "codes of other seconds than units",
        "allformer.audiolm.hearing:Hearing.cut", "(self.unit_rate, self.frame_rate)",
        "(self.unit_rate, self.unit_rate)", "units and codes, cut"),
    bug("a norm behind every layer", "states that the model never has", f"{UNITS}:lower_layers",
        "stack.final_norm if whole else None", "stack.final_norm", "layers of units", **ASIDE),
    bug("a unit once for all", "what comes back is lost", f"{TOKENS}:without_repeats",
        "np.asarray(found[np.append(True, found[1:] != found[:-1])])", "np.unique(found)",
        "repeats of units"),
    bug("book after book", "a frame's codes stand far apart", f"{TOKENS}:flatten",
        ").T.reshape(-1)", ").reshape(-1)", "rows of codes"),
    bug("books share their ids", "a code means several things", f"{TOKENS}:flatten",
        "(found + offsets)", "(found + 0 * offsets)", "rows of codes"),
    bug("the fine books begin at 0", "fine codes are taken for coarse ones", f"{TOKENS}:Stage._ids",
        "self.said_books.start)", "0)", "rows of codes"),
    bug("units count too", "the stage learns to say what it is given",
        "allformer.train.objectives.sound_tokens:SoundTokens.collate",
        "place + 1 >= examples.given[row]", "place >= 0", "batches of codes"),
    bug("the first code is not learnt", "it is drawn from anything",
        "allformer.train.objectives.sound_tokens:SoundTokens.collate",
        "place + 1 >= examples.given[row]", "place >= examples.given[row]", "batches of codes"),
    bug("turns counted from the prompt", "a book speaks in another's place", f"{SAY}:in_turn",
        "(ids.shape[1] - width) % books", "ids.shape[1] % books", "codes in turn", **ASIDE),
    bug("padding is read", "a short prompt goes on from nothing", f"{SAY}:_together",
        ">= width - np.array", ">= 0 * np.array", "codes in turn"),
]  # fmt: skip
