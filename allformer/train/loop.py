"""The training loop: from a recipe to a run directory.

result = train(read_recipe("recipes/multi30k-en-de.yaml"), "runs/multi30k")
"""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.run import Run, save_run
from allformer.checkpoint.weights import average, put_weights
from allformer.config import Attention, EncoderDecoder, Stack
from allformer.core.model import EncoderDecoderModel, build
from allformer.data.encoded import EncodedPairs
from allformer.data.parallel import Corpus
from allformer.errors import CheckpointError, TrainingError
from allformer.families.original import transformer
from allformer.text.tokenizer import Tokenizer, train_tokenizer
from allformer.train.batch import Batch, Frame
from allformer.train.corpora import open_data
from allformer.train.diagnose import explain_nonfinite
from allformer.train.feed import Place, micro_batches, prefetch
from allformer.train.metrics import Metrics
from allformer.train.progress import Progress, clock
from allformer.train.recipe import ModelRecipe, Recipe, read_recipe
from allformer.train.schedule import learning_rate
from allformer.train.state import checkpoints, load_state, save_state
from allformer.train.step import DTYPES, Result, Stepper, StepSettings
from allformer.train.validate import validation_nll


class Interrupted(TrainingError):
    """Ctrl-C: everything is saved, and the message says how to go on."""


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
    run = Path(run)
    if resume:
        recipe = read_recipe(run / "recipe.yaml")
    elif checkpoints(run) or (run / "model.safetensors").exists():
        raise CheckpointError(
            f"{run} already holds a run; choose another --out, go on with --resume {run}, "
            f"or remove it"
        )
    corpus = open_data(recipe.data, corpus)
    job = _Job(recipe, run, _device(device), resume, compile, corpus)
    return job.go()


def _device(name: str | None) -> torch.device:
    if name is not None:
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


def model_config(model: ModelRecipe, vocab: int) -> EncoderDecoder:
    """The config tree that a recipe's model section asks for."""
    config = transformer(
        model.dim,
        model.heads,
        model.feed,
        model.layers,
        vocab=vocab,
        decoder_layers=model.decoder_layers,
        dropout=model.dropout,
        act=model.act,
        norm_at=model.norm_at,
        layout="halves",
    )
    return replace(
        config, encoder=_inner(config.encoder, model), decoder=_inner(config.decoder, model)
    )


def _inner(stack: Stack, model: ModelRecipe) -> Stack:
    """Dropout beyond the paper's: on attention weights and inside the feed-forward layer."""

    def attention(part: Attention) -> Attention:
        return replace(part, dropout=model.attention_dropout)

    return replace(
        stack,
        blocks=tuple(
            replace(
                block,
                attention=attention(block.attention),
                cross=None if block.cross is None else attention(block.cross),
                feed=replace(block.feed, dropout=model.feed_dropout),
            )
            for block in stack.blocks
        ),
    )


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
        self.pairs = self._encode(corpus.train, "training")
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

    def _encode(
        self, pairs: Iterable[tuple[str, str]], name: str, dropout: float = 0.0
    ) -> EncodedPairs:
        limit = self.recipe.data.max_length - 1  # and </s>
        encoded = EncodedPairs.from_pairs(pairs, self.tokenizer, limit, dropout=dropout)
        if name:
            left_out = ""
            if encoded.dropped:
                left_out = (
                    f"; {encoded.dropped:,} left out, longer than data.max_length="
                    f"{self.recipe.data.max_length} (the longest has {encoded.longest})"
                )
            self.say(f"{name}: {len(encoded):,} pairs{left_out}")
        return encoded

    def _epoch_pairs(self, epoch: int) -> EncodedPairs:
        dropout = self.recipe.tokenizer.dropout
        if not dropout:
            return self.pairs
        return self._encode(self.corpus.train, "", dropout)

    # --- running --------------------------------------------------------------------------------

    def go(self) -> TrainResult:
        """Train to the end, or to an interrupt."""
        settings = self.recipe.train
        parameters = sum(p.numel() for p in self.model.parameters())
        self.say(
            f"model: {parameters:,} parameters, {self.precision} on {self.device.type}"
            + (", compiled" if self.compile else "")
        )
        items = micro_batches(self._epoch_pairs, self.tokenizer, settings, self.frame, self.place)
        if self.device.type == "cuda":
            items = ((b.map(lambda x: x.pin_memory()), place) for b, place in items)
        source = prefetch(items)
        window: list[tuple[int, Result, list[Batch]]] = []
        progress = Progress(settings.steps, self.step)
        tokens_seen, begin, before = 0, time.monotonic(), self.seconds
        mark, mark_tokens = begin, 0
        try:
            with _interrupts() as interrupted:
                while self.step < settings.steps:
                    batches = []
                    for _ in range(settings.accumulate):
                        batch, self.place = next(source)
                        batches.append(batch)
                    self.step += 1
                    rate = self._rate(self.step)
                    moved = batches
                    if self.device.type != "cpu":
                        moved = [batch.to(self.device) for batch in batches]
                    result = self.stepper(moved, rate)
                    window.append((self.step, result, batches))
                    tokens_seen += result.tokens
                    self.seconds = before + time.monotonic() - begin
                    last = self.step == settings.steps
                    if self.step % settings.log_every == 0 or last or interrupted:
                        now = time.monotonic()
                        row = self._report(window, rate)
                        now = time.monotonic()
                        row["tokens_per_second"] = (tokens_seen - mark_tokens) / (now - mark)
                        mark, mark_tokens = now, tokens_seen
                        self.metrics.add(**row)
                        window.clear()
                        progress.update(
                            self.step,
                            loss=f"{row['nll']:.3f}",
                            rate=f"{rate:.2e}",
                            speed=f"{row['tokens_per_second']:,.0f} tok/s",
                        )
                    elif self.device.type == "cpu":
                        progress.update(
                            self.step,
                            loss=f"{float(result.nll) / result.tokens:.3f}",
                            rate=f"{rate:.2e}",
                            speed=f"{tokens_seen / (time.monotonic() - begin):,.0f} tok/s",
                        )
                    if self.step % settings.validate_every == 0 and not last:
                        row = self._validate()
                        progress.say(
                            f"step {self.step:,}: validation perplexity "
                            f"{row['validation_perplexity']:.3f}"
                        )
                        mark = time.monotonic()
                    if self.step % settings.save_every == 0 or last or interrupted:
                        self._save()
                        mark = time.monotonic()
                    if interrupted and not last:
                        raise Interrupted(
                            f"stopped at step {self.step:,} of {settings.steps:,}, all is saved: "
                            f"go on with `allformer train --resume {self.run}`"
                        )
        finally:
            source.close()
            progress.close()
            self.metrics.close()
        return self._finish(tokens_seen / max(1e-9, time.monotonic() - begin))

    def _rate(self, step: int) -> float:
        t = self.recipe.train
        return learning_rate(step, peak=t.rate, warmup=t.warmup, total=t.steps, schedule=t.schedule)

    def _report(self, window: list[tuple[int, Result, list[Batch]]], rate: float) -> dict[str, Any]:
        """The window's figures; the first of its steps that is not finite stops the training."""
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
            "rate": rate,
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

    def _save(self) -> None:
        place = dataclasses.astuple(self.place)
        extra = {"place": place, "seconds": self.seconds}
        settings = self.recipe.train
        keep, every = settings.average, settings.save_every
        save_state(self.run, self.step, self.stepper, extra, keep=keep, every=every)

    def _finish(self, speed: float) -> TrainResult:
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
            speed,
            row["validation_perplexity"],
            self.metrics.rows,
        )


def _precision(asked: str, device: torch.device) -> str:
    if asked != "auto":
        return asked
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def _say(line: str) -> None:
    import sys

    print(line, file=sys.stderr, flush=True)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect Ctrl-C and termination signals, so that a step is finished and saved first.

    A second Ctrl-C stops at once. Outside the main thread signals cannot be caught.
    """
    got: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield got
        return

    def note(number: int, frame: Any) -> None:
        if got:
            raise KeyboardInterrupt
        got.append(number)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
