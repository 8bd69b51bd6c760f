"""A sound codec: recordings to codes and back, with as little lost on the way as may be.

    objective: {is: sound-codec, wave: 1.0, judges: {after: 500}}
    data: {path: recordings, seconds: 0.5}
    model: {preset: encodec-8khz}

The codec is an EnCodec. It learns from crops: how far log-mel spectra and waves are apart, how far
the encoder is from its codes, and what its judges say (Zeghidour et al., 2021; Défossez et al.,
2022). The loss is by the sample: each counts as much as its crop's mean.

Legend: B crops, S samples, Q codebooks, F frames.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from allformer.codecs.sound import Encodec
from allformer.codecs.sound.ema import Following
from allformer.codecs.sound.start import start_on
from allformer.core.taps import listening
from allformer.errors import ConfigError
from allformer.metrics.si_sdr import si_sdr
from allformer.sound.clip import clip
from allformer.train.batch import Array, Frame, rows_that_fit
from allformer.train.heard import Heard
from allformer.train.objectives.objective import Lengths, Objective, Say, register
from allformer.train.predictions import Predictions
from allformer.train.sections.model import CheckpointModel
from allformer.train.waves.balance import Balance
from allformer.train.waves.codec_options import SoundCodecOptions
from allformer.train.waves.codec_scores import LONGEST, bit_rates, score_names, scores
from allformer.train.waves.data import Files, WaveData
from allformer.train.waves.duel import Duel, Lost
from allformer.train.waves.recordings import Crops, Recordings, drawn_crops, middle_crops
from allformer.train.waves.spectral_loss import spectral_loss

_SOFT = 1e-4  # a mean square: what is softer counts for less, down to silence for nothing
_SHOWN = 12  # recordings that the report lets one hear
_PULLS = ("spectral", "wave", *Lost._fields)
_FIRST = 32  # crops that a fresh codec is scaled by


class WaveBatch(NamedTuple):
    """Crops as 16-bit samples; `keep` is 0 for filler, which repeats them."""

    waves: Tensor  # B S
    keep: Tensor  # B
    books: Tensor  # B: how many codebooks code each; 0: all, and the decoder reads none
    tokens: int  # crops that are no filler
    counts: tuple[int, ...]  # and their samples, for each term
    key: int | None = None  # of what is drawn


@register("sound-codec")
class SoundCodec(Objective[Crops, WaveBatch]):
    """`make_recipe({"objective": "sound-codec", "data": {"path": "recordings"}, …})`"""

    words = False
    perplexity = False
    compiles = False  # the judges' backward pass lies within
    unit = "crop"
    terms = ("spectral", "wave")
    Options = SoundCodecOptions
    Data = WaveData
    usual: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "train": {
            "smoothing": 0.0, "batch_rows": 64, "batch_tokens": 1 << 20, "pool": 0, "average": 1,
        }
    }  # fmt: skip

    def __init__(self, recipe: Any = None) -> None:
        super().__init__(recipe)
        self.files: tuple[Files, Files] | None = None
        self.recordings: tuple[Recordings, Recordings] | None = None
        self.following: Following | None = None
        self.balance: Balance | None = None
        self.duel: Duel | None = None

    @property
    def options(self) -> SoundCodecOptions:
        """How it learns."""
        found: SoundCodecOptions = self.recipe.options
        return found

    @property
    def data(self) -> WaveData:
        """The data section."""
        assert isinstance(self.recipe.data, WaveData)
        return self.recipe.data

    # --- data -----------------------------------------------------------------------------------

    def open(self, corpus: Any = None) -> None:
        """The files; `corpus` is files by split: `{"train": files, "val": files}`."""
        self.files = self.data.opened(corpus, self.recipe.train.seed)

    def encode(self, tokenizer: Any, say: Say) -> None:
        """Both splits at the codec's rate."""
        train, held = self._opened(say)
        say(
            f"recordings: {len(train):,} to train on ({train.seconds / 60:.1f} minutes), "
            f"{len(held):,} to validate on"
        )

    def _opened(self, say: Say | None = None) -> tuple[Recordings, Recordings]:
        if self.recordings is None:
            assert self.files is not None
            (train, held), rate = self.files, self.tree().rate
            first = Recordings(train, rate, say)
            self.recordings = first, first if held is train else Recordings(held, rate, say)
        return self.recordings

    def fingerprint(self) -> str:
        """Of the recordings to train on."""
        return self._opened()[0].fingerprint()

    @property
    def crop(self) -> int:
        """Samples of a crop: whole frames."""
        tree = self.tree()
        return max(1, round(self.data.seconds * tree.rate / tree.hop)) * tree.hop

    def examples(self, epoch: int) -> Crops:
        """Others each epoch."""
        return drawn_crops(self._opened()[0], self.crop, self.recipe.train.seed, epoch)

    @property
    def validation(self) -> Crops:
        """The middle of each held-out recording."""
        return middle_crops(self._opened()[1], self.crop)

    def lengths(self, examples: Crops) -> tuple[Lengths, Lengths]:
        """Of each the frames of a crop."""
        lengths = np.full(len(examples), self.longest, dtype=np.int64)
        return lengths, lengths

    # --- model ----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        """The frames of a crop."""
        return self.crop // self.tree().hop

    def tree(self) -> Encodec:
        """The recipe's; one that cannot be trained so is refused."""
        tree = self.recipe.model.tree(self.shape)
        if not isinstance(tree, Encodec):
            raise ConfigError(
                f"objective='sound-codec' trains an Encodec, but the model is a "
                f"{type(tree).__name__}; try model: {{preset: encodec-8khz}}"
            )
        if tree.channels != 1 or tree.loudness or tree.chunks is not None:
            raise ConfigError(
                "objective='sound-codec' trains codecs of one channel that read sound whole and as "
                "loud as it is; try model: {preset: encodec-24khz}"
            )
        return tree

    def config(self, vocabulary: Any) -> Encodec:
        """An EnCodec's tree, and settings that fit it."""
        asked, tree = self.recipe.train, self.tree()
        for name, usual in (("recompute", "none"), ("redraw", 0), ("smoothing", 0.0),
                            ("z_loss", 0.0), ("ema", None)):  # fmt: skip
            if getattr(asked, name) != usual:
                asked.refuse(name, "is not for codecs, whose codebooks follow", "leave it out")
        if asked.precision in ("fp16", "fp8"):
            asked.refuse("precision", "is too narrow for a codec's judges", "try bf16 or fp32")
        if any(n > tree.books for n in self.options.books or ()):
            self.options.refuse("books", f"has more than the model's {tree.books}", "try fewer")
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ConfigError("objective='sound-codec' in several processes: train it in one")
        return tree

    # --- batches --------------------------------------------------------------------------------

    def frame(self) -> Frame | None:
        """So many crops; those that are missing at the end of an epoch are filled up."""
        train = self.recipe.train
        rows = rows_that_fit(self.longest, train.batch_tokens, train.batch_rows)
        return Frame(rows * self.longest, rows, self.longest)

    def collate(self, examples: Crops, index: Array, frame: Frame | None = None) -> WaveBatch:
        """Samples; a frame is filled up with the same crops again, which count for nothing."""
        rows = len(index) if frame is None else frame.sentences
        waves = torch.from_numpy(examples.waves(np.resize(index, rows)))
        keep = torch.from_numpy((np.arange(rows) < len(index)).astype(np.float32))
        books = torch.full((rows,), self.tree().books)
        counts = (len(index) * examples.size,) * len(self.terms)
        return WaveBatch(waves, keep, books, len(index), counts)

    def ready(self, batch: WaveBatch) -> WaveBatch:
        """In training, a number of codebooks for each crop, by the batch's key."""
        if batch.key is None:
            return batch
        choices = np.array(self.options.books or range(1, self.tree().books + 1))
        chance = np.random.default_rng(batch.key)
        drawn = chance.choice(choices, len(batch.books))
        drawn[chance.random(len(drawn)) < self.options.unquantised] = 0
        return batch._replace(books=torch.from_numpy(drawn).to(batch.books.device))

    # --- learning -------------------------------------------------------------------------------

    def meet(self, model: Any, captures: bool) -> None:
        """The codebooks' moving means; the losses' lengths; and the judges."""
        self.following = Following(model.quantiser)
        if not isinstance(self.recipe.model, CheckpointModel):  # a resumed run reads what it had
            self.following.forget()
            if self.files is not None:  # which a replay has not
                crops = self.examples(0)
                waves = torch.from_numpy(crops.waves(np.arange(min(_FIRST, len(crops)))))
                start_on(model, as_floats(waves.to(model.device))[:, None])
        self.balance = Balance(_PULLS, self.options.balance, model.device)
        if (judges := self.options.judges) is not None:
            self.duel = Duel(judges, self.recipe.optim, model.device, captures)

    def at(self, step: int) -> None:
        if self.duel is not None:
            self.duel.at(step)

    @property
    def form(self) -> Hashable:
        """With judges, or without."""
        return self.duel is not None and self.duel.sits

    def loss(
        self,
        model: Any,
        batch: WaveBatch,
        *,
        smoothing: float = 0.0,
        dtype: torch.dtype | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Sums over the samples: what goes down, of which the judges' part is added to the spectral
        one, and the two plain distances.

        In training its gradients at the wave are found here, loss by loss, and what goes on
        backwards is their sum: so they can be balanced, and the judges are asked once."""
        assert self.following is not None
        learn = model.training and torch.is_grad_enabled() and not listening()
        x = as_floats(batch.waves)
        z = model.compressed(x[:, None], dtype)
        found = self.following.quantise(z, batch.books, batch.keep, learn)
        made = model.sounded(found.vectors, dtype)[:, 0]
        made, real = as_loud(made, x)
        heard = made.detach().requires_grad_() if learn else made
        apart = _apart(heard, real, model.rate)
        losses = self._losses(heard, real, apart, batch.keep, dtype, learn)
        rest = self.options.commitment * found.apart
        if learn:
            rest = rest + self._pull(losses, heard, made, batch.keep)
            losses = {name: (weight, loss.detach()) for name, (weight, loss) in losses.items()}
        wave, *others = (weight * loss for weight, loss in losses.values())
        weighed = torch.stack([sum(others, rest), wave])
        return summed(weighed, batch), summed(torch.stack(apart).detach(), batch)

    def _losses(
        self,
        heard: Tensor,
        real: Tensor,
        apart: tuple[Tensor, Tensor],
        keep: Tensor,
        dtype: torch.dtype | None,
        learn: bool,
    ) -> dict[str, tuple[float, Tensor]]:
        """What is heard: of each loss its weight, and what each crop has of it, B; the wave's
        first."""
        asked = self.options
        losses = {"wave": (asked.wave, apart[1]), "spectral": (asked.spectral, apart[0])}
        if self.duel is not None and self.duel.sits:
            judges = self.duel.asked
            lost = self.duel.against(heard, real, keep, dtype=dtype, learn=learn)
            losses |= {"fool": (judges.fool, lost.fool), "match": (judges.match, lost.match)}
        return losses

    def _pull(
        self,
        losses: Mapping[str, tuple[float, Tensor]],
        heard: Tensor,
        made: Tensor,
        keep: Tensor,
    ) -> Tensor:
        """Forwards nothing, backwards the gradients that the losses have at the wave, B."""
        assert self.balance is not None
        gradients = {
            name: (weight, torch.autograd.grad(loss.sum(), heard, retain_graph=True)[0])
            for name, (weight, loss) in losses.items()
        }
        total = self.balance.joined(gradients, keep)
        return ((made - made.detach()) * total).sum(1)

    def stepped(self, rate: Tensor | float) -> None:
        assert self.following is not None
        self.following.settle(self.options.decay, self.options.restart)
        assert self.balance is not None
        self.balance.settle()
        if self.duel is not None:
            self.duel.step(rate)

    def figures(self) -> dict[str, float]:
        return {} if self.duel is None else self.duel.figures()

    def state(self) -> dict[str, Any]:
        """The judges and the losses' lengths; the codebooks' means are the model's own."""
        judges = {} if self.duel is None else self.duel.state()
        return judges | ({} if self.balance is None else self.balance.state())

    def restore(self, state: dict[str, Any]) -> None:
        if "lengths" in state and self.balance is not None:
            self.balance.restore(state)
        if "weights" in state and self.duel is not None:
            self.duel.restore(state)

    # --- scores ---------------------------------------------------------------------------------

    def measured(self, model: Any) -> tuple[str, ...]:
        """Those of each bit rate, and of the codebooks."""
        return score_names(model.config)

    def appraise(
        self, model: Any, batch: WaveBatch, *, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Through all codebooks."""
        x = as_floats(batch.waves)
        made = model.decode(model.encode(x[:, None], dtype=dtype), dtype=dtype)[:, 0]
        return summed(torch.stack(_apart(*as_loud(made, x), model.rate)), batch), {}

    def metrics(
        self,
        model: Any,
        examples: Crops,
        *,
        batch_tokens: int = 4096,
        dtype: torch.dtype | None = None,
    ) -> dict[str, float]:
        """At each bit rate: SI-SDR and the spectral distance, both in decibels; and how much of the
        codebooks is in use."""
        return scores(model, examples.recordings, dtype=dtype)

    @torch.no_grad()
    def predictions(self, model: Any, examples: Crops, count: int = 50) -> Predictions:
        """Held-out recordings, and what the codec makes of them at each bit rate, with its
        SI-SDR."""
        recordings = examples.recordings
        index = np.unique(np.linspace(0, len(recordings) - 1, min(_SHOWN, count)).astype(int))
        return Predictions(sounds=tuple(_heard(model, recordings, int(i)) for i in index))


def _heard(codec: Any, recordings: Recordings, number: int) -> Heard:
    """One recording as it was, and as it is through so many codebooks."""
    size = min(int(recordings.lengths[number]), round(LONGEST * recordings.rate))
    x = as_floats(torch.from_numpy(recordings.cut(number, 0, size)))[None, None]
    codes, versions = codec.encode(x), []
    for bits, books in bit_rates(codec.config).items():
        again = codec.decode(codes[:, :books], length=size)[0, 0].float().cpu()
        score = float(si_sdr(again, x[0, 0]))
        name = f"{bits / 1000:g} kbit/s"
        versions.append(Heard(clip(again, codec.rate), name=name, score=score))
    name = recordings.files[number].stem
    return Heard(clip(x[0, 0], codec.rate), name=name, versions=tuple(versions))


def as_loud(made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Waves B S, each divided by the root mean square of its real one: so soft recordings count as
    loud ones do, for every loss and for the judges."""
    loud = real.square().mean(1, keepdim=True).clamp_min(_SOFT).sqrt()
    return made / loud, real / loud


def _apart(made: Tensor, real: Tensor, rate: int) -> tuple[Tensor, Tensor]:
    """Of each crop: how far the spectra are apart, and the waves, as the mean squared error; the
    absolute one would be content with silence, which most samples are near to."""
    return spectral_loss(made, real, rate), (made - real).square().mean(1)


def as_floats(waves: Tensor) -> Tensor:
    """16-bit samples as numbers from −1 to 1."""
    return waves.float() / 2**15


def summed(means: Tensor, batch: WaveBatch) -> Tensor:
    """Means over crops, T B, as sums over samples, T; filler counts for nothing."""
    return (means * batch.keep).sum(1) * batch.waves.shape[1]
