"""Planted bugs of how sound codecs learn and are scored: codebooks, losses, judges, figures."""

from __future__ import annotations

from collections.abc import Callable

from tests.mutants.mutants import Mutant, bug
from tests.unit import test_codec_balance, test_sound_codec_books, test_sound_metrics

KILLERS: dict[str, Callable[[], None]] = {
    "books follow": test_sound_codec_books.check_follows,
    "books in pieces": test_sound_codec_books.check_pieces,
    "books drawn": test_sound_codec_books.check_dropout,
    "books begin": test_sound_codec_books.check_begins,
    "past the books": test_sound_codec_books.check_straight_through,
    "SI-SDR": test_sound_metrics.check_si_sdr,
    "spectral distance": test_sound_metrics.check_spectral_distance,
    "spectral loss": test_sound_metrics.check_spectral_loss,
    "hinges": test_sound_metrics.check_hinge,
    "lengths": test_codec_balance.check_lengths,
    "moving lengths": test_codec_balance.check_moving_lengths,
    "sitting": test_codec_balance.check_sitting,
    "one pass": test_codec_balance.check_one_pass,
}
EMA = "allformer.codecs.sound.ema:Following"
WAVES = "allformer.train.waves"

MUTANTS: list[Mutant] = [
    bug("books jump", "codes follow the last batch alone", f"{EMA}.settle",
        "weight = (1 - decay) *", "weight = decay *", "books follow"),
    bug("each micro-batch is a step", "accumulating teaches the books less", f"{EMA}._gather",
        "self.counts[i].index_add_", "self.counts[i].zero_().index_add_", "books in pieces"),
    bug("filler teaches", "repeated crops count twice", f"{EMA}.quantise",
        "every * keep.to(rows)", "every", "books in pieces"),
    bug("every book for every sound", "low bit rates are never learnt", f"{EMA}.quantise",
        "code = used[:, None, None] * code", "code = 1 * code", "books drawn"),
    bug("commitment of books not used", "frames are drawn to codes that nobody hears",
        f"{EMA}.quantise", "apart + used * (left - code)", "apart + (left - code)", "books drawn"),
    bug("the same for each book", "the second says what the first said", f"{EMA}.quantise",
        "left - code\n", "left\n", "books follow", "books drawn"),
    bug("the first batch is forgotten", "books begin at noise", f"{EMA}._meet",
        "torch.where(begins, drawn, book.vectors)", "torch.where(begins, 0 * drawn, book.vectors)",
        "books begin"),
    bug("codes without a way back", "the encoder never learns", f"{EMA}.quantise",
        "(total - rows).detach()", "(total - rows)", "past the books"),
    bug("the loudness counts", "a codec is blamed for a volume", "allformer.metrics.si_sdr:si_sdr",
        "/ (energy + _LITTLE) * target", "/ (energy + _LITTLE) * estimate", "SI-SDR"),
    bug("decibels of amplitude", "twice as good as it is", "allformer.metrics.si_sdr:si_sdr",
        "10 * torch.log10", "20 * torch.log10", "SI-SDR"),
    bug("levels as power", "distances half of what they are", "allformer.metrics.spectral:_level",
        "20 * torch.log10", "10 * torch.log10", "spectral distance"),
    bug("natural logarithms", "spectra weigh twice as much", f"{WAVES}.spectral_loss:spectral_loss",
        "torch.log10(", "torch.log(", "spectral loss"),
    bug("one crop for all", "soft crops pay for loud ones", f"{WAVES}.spectral_loss:spectral_loss",
        ".flatten(1).mean(1)", ".mean().expand(len(target))", "spectral loss"),
    bug("judges never satisfied", "they are sure, and learn on", f"{WAVES}.hinge:_hinge",
        "F.relu(margin(widen(one.scores)))", "margin(widen(one.scores))", "hinges"),
    bug("judges turned round", "real is called made", f"{WAVES}.hinge:judging",
        "_hinge(made, lambda x: 1 + x)", "_hinge(made, lambda x: 1 - x)", "hinges"),
    bug("a loss's scale counts", "weights say nothing", f"{WAVES}.balance:Balance._even",
        "return gradient / torch.maximum(lengths, known).clamp_min(_LITTLE)[:, None]",
        "return gradient", "lengths"),
    bug("one crop outweighs all", "steps go where the softest crop wants",
        f"{WAVES}.balance:Balance._even", "torch.maximum(lengths, known)",
        "known.expand_as(lengths)", "lengths"),
    bug("filler is weighed", "lengths of crops that count for nothing",
        f"{WAVES}.balance:Balance._even", "(lengths * keep).sum()",
        "lengths.sum()", "moving lengths"),
    bug("lengths of the last step", "weights jump with each batch",
        f"{WAVES}.balance:Balance.settle", "lerp(found, 1 - self.decay)", "lerp(found, 1.0)",
        "moving lengths"),
    bug("judges sit always", "steps as long as ever", f"{WAVES}.duel:Duel.at",
        "(past - 1) % self.asked.every == 0", "self.asked.every > 0", "sitting"),
    bug("real and made exchanged", "judges learn to praise what is made", f"{WAVES}.duel:_halves",
        "return first, rest", "return rest, first", "one pass"),
]  # fmt: skip
