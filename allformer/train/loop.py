"""The training loop: from a recipe to a run directory.

result = train(read_recipe("recipes/multi30k-en-de.yaml"), "runs/multi30k")
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.run import Run, save_run
from allformer.checkpoint.weights import average, put_weights
from allformer.core.model import EncoderDecoderModel, build
from allformer.core.precision import pick_device
from allformer.data.bpe_dropout import Recut
from allformer.data.encoded import EncodedPairs
from allformer.data.parallel import Corpus
from allformer.errors import CheckpointError, TrainingError
from allformer.text.tokenizer import Tokenizer, train_tokenizer
from allformer.train.batch import Batch, Frame
from allformer.train.corpora import open_data
from allformer.train.diagnose import explain_nonfinite
from allformer.train.interrupts import interrupts
from allformer.train.metrics import Metrics
from allformer.train.model import model_config
from allformer.train.progress import Clock, Progress, clock
from allformer.train.recipe import Recipe, read_recipe
from allformer.train.schedule import learning_rate
from allformer.train.state import checkpoints, load_state, save_state
from allformer.train.step import DTYPES, Result, Stepper, StepSettings
from allformer.train.stream import Place, micro_batches, prefetch
from allformer.train.validate import validation_nll


class Interrupted(TrainingError):
    """Ctrl-C: everything is saved, and the message says how to go on."""

    exit_status = 130


@dataclass(frozen=True)
class TrainResult:
    """What came of it."""

    run: Run
    steps: int
    seconds: float
    tokens_per_second: float
    validation_perplexity: float
    rows: list[dict[str, Any]]


def train(
    recipe: Recipe,
    run: str | Path,
    *,
    device: str | None = None,
    resume: bool = False,
    compile: bool | None = None,
    corpus: Corpus | None = None,
) -> TrainResult:
    """Train as the recipe says into the directory `run`; `resume` goes on with what is there.

    `device` defaults to a GPU if there is one; `compile` to True there and False on a CPU.
    """
    run, place = Path(run), pick_device(device)
    if resume:
        recipe = read_recipe(run / "recipe.yaml")
    elif checkpoints(run) or (run / "model.safetensors").exists():
        raise CheckpointError(
            f"{run} already holds a run; choose another --out, go on with --resume {run}, "
            f"or remove it"
        )
    corpus = open_data(recipe.data, corpus)
    job = _Job(recipe, run, place, resume, compile, corpus)
    return job.go()


class _Job:
    """One training run while it runs."""

    def __init__(
        self,
        recipe: Recipe,
        run: Path,
        device: torch.device,
        resume: bool,
        compile: bool | None,
        corpus: Corpus,
    ) -> None:
        self.recipe, self.run, self.device, self.corpus = recipe, run, device, corpus
        self.say = _say
        run.mkdir(parents=True, exist_ok=True)
        self.tokenizer = self._tokenizer(resume)
        # a batch holds one sentence at least
        self.longest = min(recipe.data.max_length, recipe.train.batch_tokens)
        self.pairs = self._encode(corpus.train, "training")
        self.recut: Recut | None = None
        assert corpus.validation is not None
        self.validation = self._encode(corpus.validation, "validation")
        torch.manual_seed(recipe.train.seed)
        model = build(model_config(recipe.model, self.tokenizer.vocab_size), device=device)
        assert isinstance(model, EncoderDecoderModel)
        self.model = model.train()
        settings = recipe.train
        self.compile = device.type == "cuda" if compile is None else compile
        self.precision = _precision(settings.precision, device)
        self.stepper = Stepper(
            self.model,
            StepSettings(
                smoothing=settings.smoothing,
                clip=settings.clip,
                weight_decay=settings.weight_decay,
                precision=self.precision,
                compile=self.compile,
            ),
        )
        self.frame = None
        if self.compile:
            width = recipe.data.max_length
            self.frame = Frame(settings.batch_tokens, settings.batch_tokens // 6, width)
        self.step, self.place, self.seconds = 0, Place(), 0.0
        self.window: list[tuple[int, Result, list[Batch]]] = []  # steps since the last report
        if resume:
            state = load_state(run, self.model, self.stepper)
            self.step, self.seconds = state["step"], state["seconds"]
            self.place = Place(*state["place"])
        else:
            (run / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
            (run / "config.json").write_text(self.model.config.to_json() + "\n", encoding="utf-8")
        self.metrics = Metrics(run, self.step)

    # --- preparing ------------------------------------------------------------------------------

    def _tokenizer(self, resume: bool) -> Tokenizer:
        if resume:
            return Tokenizer.load(self.run)
        asked = self.recipe.tokenizer
        texts = (text for pair in self.corpus.train for text in pair)
        tokenizer = train_tokenizer(texts, asked.kind, asked.vocab, lowercase=asked.lowercase)
        tokenizer.save(self.run)
        self.say(f"tokeniser: {asked.kind}, {tokenizer.vocab_size:,} pieces")
        return tokenizer

    def _encode(self, pairs: Iterable[tuple[str, str]], name: str) -> EncodedPairs:
        asked, longest = self.recipe, self.longest
        encoded = EncodedPairs.from_pairs(pairs, self.tokenizer, longest - 1)  # and </s>
        left_out = ""
        if encoded.dropped:
            left_out = (
                f"; {encoded.dropped:,} left out, over {longest} tokens (the longest has "
                f"{encoded.longest}); data.max_length={asked.data.max_length}, "
                f"train.batch_tokens={asked.train.batch_tokens}"
            )
        self.say(f"{name}: {len(encoded):,} pairs{left_out}")
        return encoded

    def _epoch_pairs(self, epoch: int) -> EncodedPairs:
        """Each time the same, or with BPE-dropout cut anew."""
        dropout = self.recipe.tokenizer.dropout
        if not dropout:
            return self.pairs
        if self.recut is None:
            self.recut = Recut.from_pairs(
                self.corpus.train, self.tokenizer, dropout=dropout, max_length=self.longest - 1
            )
        return self.recut(self.recipe.train.seed, epoch)

    # --- running --------------------------------------------------------------------------------

    def go(self) -> TrainResult:
        """Train to the end, or to an interrupt."""
        settings = self.recipe.train
        parameters = sum(p.numel() for p in self.model.parameters())
        self.say(
            f"model: {parameters:,} parameters, {self.precision} on {self.device.type}"
            + (", compiled" if self.compile else "")
        )
        source = prefetch(self._batches())
        progress = Progress(settings.steps, self.step)
        self.clock = Clock(self.seconds)
        try:
            with interrupts() as interrupted:
                while self.step < settings.steps:
                    self._advance(source)
                    last = self.step == settings.steps
                    if self.step % settings.log_every == 0 or last or interrupted:
                        progress.update(self.step, **self._log())
                    elif self.device.type == "cpu":  # reading a result waits for nothing here
                        progress.update(self.step, **self._glance())
                    if self.step % settings.validate_every == 0 and not last:
                        progress.say(self._validate_and_tell())
                    if self.step % settings.save_every == 0 or last or interrupted:
                        self._save()
                    if interrupted and not last:
                        raise Interrupted(
                            f"stopped at step {self.step:,} of {settings.steps:,}, all is saved: "
                            f"go on with `allformer train --resume {self.run}`"
                        )
        finally:
            source.close()
            progress.close()
            self.metrics.close()
        return self._finish()

    def _batches(self) -> Iterator[tuple[Batch, Place]]:
        items = micro_batches(
            self._epoch_pairs, self.tokenizer, self.recipe.train, self.frame, self.place
        )
        if self.device.type != "cuda":
            return items
        return ((batch.map(lambda x: x.pin_memory()), place) for batch, place in items)

    def _advance(self, source: Iterator[tuple[Batch, Place]]) -> None:
        """One step of the optimiser on the next micro-batches."""
        batches = []
        for _ in range(self.recipe.train.accumulate):
            batch, self.place = next(source)
            batches.append(batch)
        self.step += 1
        moved = [batch.to(self.device) for batch in batches]
        result = self.stepper(moved, self._rate(self.step))
        self.window.append((self.step, result, batches))
        self.seconds = self.clock.count(result.tokens)

    def _log(self) -> dict[str, str]:
        """Read the results since the last time, write them down, return what to show."""
        row = self._report()
        row["tokens_per_second"] = self.clock.lap()
        self.metrics.add(**row)
        self.window.clear()
        return _figures(row["nll"], row["rate"], row["tokens_per_second"])

    def _glance(self) -> dict[str, str]:
        _, result, _ = self.window[-1]
        nll = float(result.nll) / result.tokens
        return _figures(nll, self._rate(self.step), self.clock.speed())

    def _rate(self, step: int) -> float:
        t = self.recipe.train
        return learning_rate(step, peak=t.rate, warmup=t.warmup, total=t.steps, schedule=t.schedule)

    def _report(self) -> dict[str, Any]:
        """The window's figures; the first of its steps that is not finite stops the training."""
        window = self.window
        losses = torch.stack([r.loss for _, r, _ in window]).tolist()
        nlls = torch.stack([r.nll for _, r, _ in window]).tolist()
        norms = torch.stack([r.norm for _, r, _ in window]).tolist()
        for (step, _, batches), loss, norm in zip(window, losses, norms, strict=True):
            # With a loss scale, a gradient that overflows is met by a smaller scale, not by a stop.
            fine = math.isfinite(loss) and (self.stepper.scaler is not None or math.isfinite(norm))
            if not fine:
                bad = self._first_bad(batches)
                raise explain_nonfinite(
                    self.model, bad, step, self._rate(step), DTYPES[self.precision]
                )
        tokens = sum(r.tokens for _, r, _ in window)
        return {
            "step": self.step,
            "seconds": round(self.seconds, 3),
            "loss": sum(losses) / tokens,
            "nll": sum(nlls) / tokens,
            "gradient_norm": norms[-1],
            "rate": self._rate(self.step),
        }

    def _first_bad(self, batches: list[Batch]) -> Batch:
        for batch in batches:
            moved = batch.to(self.device)
            with torch.no_grad():
                loss, _ = self.stepper.plain_loss(*moved[:-1])
            if not bool(loss.isfinite()):
                return batch
        return batches[0]

    def _validate(self, **extra: Any) -> dict[str, Any]:
        nll = validation_nll(
            self.model,
            self.validation,
            self.tokenizer,
            batch_tokens=self.recipe.train.batch_tokens,
            dtype=DTYPES[self.precision],
        )
        row = {
            "step": self.step,
            "seconds": round(self.seconds, 3),
            "validation_nll": nll,
            "validation_perplexity": math.exp(min(nll, 700)),
            **extra,
        }
        self.metrics.add(**row)
        return row

    def _validate_and_tell(self) -> str:
        with self.clock.paused():
            row = self._validate()
        return f"step {self.step:,}: validation perplexity {row['validation_perplexity']:.3f}"

    def _save(self) -> None:
        place = dataclasses.astuple(self.place)
        extra = {"place": place, "seconds": self.seconds}
        settings = self.recipe.train
        keep, every = settings.average, settings.save_every
        with self.clock.paused():
            save_state(self.run, self.step, self.stepper, extra, keep=keep, every=every)

    def _finish(self) -> TrainResult:
        """Average the last checkpoints, validate the mean, write the run."""
        last = checkpoints(self.run)[-self.recipe.train.average :]
        put_weights(self.model, average([c / "model.safetensors" for c in last]), "the mean")
        self.metrics = Metrics(self.run, self.step)
        row = self._validate(averaged=len(last))
        self.metrics.close()
        save_run(self.run, self.model.eval(), self.tokenizer)
        self.say(
            f"done in {clock(self.seconds)}: validation perplexity "
            f"{row['validation_perplexity']:.3f} (mean of {len(last)} checkpoints), in {self.run}"
        )
        return TrainResult(
            Run(self.run, self.model, self.tokenizer),
            self.step,
            self.seconds,
            self.clock.speed(),
            row["validation_perplexity"],
            self.metrics.rows,
        )


def _precision(asked: str, device: torch.device) -> str:
    if asked != "auto":
        return asked
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _figures(nll: float, rate: float, speed: float) -> dict[str, str]:
    return {"loss": f"{nll:.3f}", "rate": f"{rate:.2e}", "speed": f"{speed:,.0f} tok/s"}
