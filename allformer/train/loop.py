"""The training loop: from a recipe to a run directory.

result = train(read_recipe("recipes/multi30k-en-de.yaml"), "runs/multi30k")
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.load import GENERATION, read_config_of
from allformer.checkpoint.run import Run, is_beside, save_run
from allformer.checkpoint.save import write_json
from allformer.config import to_dict
from allformer.core import heap
from allformer.core.model import build
from allformer.core.precision import pick_device
from allformer.core.quantised import size_of
from allformer.errors import CheckpointError, ConfigError, TrainingError
from allformer.train.batch import mapped
from allformer.train.best import Best
from allformer.train.diagnose import diverged, explain_nonfinite
from allformer.train.interrupts import interrupts
from allformer.train.kept import clear, drop_old, set_asides
from allformer.train.known_data import check_data, write_data
from allformer.train.lock import only_one
from allformer.train.metrics import Metrics
from allformer.train.objectives import find_objective
from allformer.train.objectives.objective import Objective
from allformer.train.outputs import check_directory, told
from allformer.train.parallel import ALONE, Ranks
from allformer.train.parallel.checkpoint import take_mean
from allformer.train.parallel.launch import launched, own_device, together
from allformer.train.parallel.quiet import Quiet, silent
from allformer.train.precision import find_precision
from allformer.train.progress import Clock, Progress, clock
from allformer.train.redraw import Redraw
from allformer.train.resumed import resumed_recipe, write_recipe
from allformer.train.sections.common import TrainRecipe
from allformer.train.sections.recipe import Recipe
from allformer.train.state import checkpoints, damage, load_state, save_state, set_aside
from allformer.train.step import Stepper, StepSettings
from allformer.train.stream import Place, batches_of, micro_batches, prefetch
from allformer.train.threads import pick_threads, threads
from allformer.train.tokenizing import expected, run_tokenizer, vocabulary_of
from allformer.train.told import told_figures
from allformer.train.tuned import beside, check_bits, check_methods, put_methods
from allformer.train.validate import figures_of, validate
from allformer.train.watch.boards import check_boards
from allformer.train.watch.watch import Watch
from allformer.train.weights import Begun, begin
from allformer.train.window import Window

RECIPE = "recipe.yaml"
RESULTS = ("model.safetensors", "adapter_model.safetensors")  # one of them is a finished run's


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
    threads: int  # of a CPU


def train(
    recipe: Recipe | None,
    run: str | Path,
    *,
    device: str | None = None,
    resume: bool = False,
    overrides: Iterable[str] = (),
    allow_changed_data: bool = False,
    compile: bool | None = None,
    corpus: Any = None,
    profile: int = 0,
) -> TrainResult:
    """Train as the recipe says into the directory `run`; `resume` goes on with what is there.

    A resumed run has its own recipe; `overrides` may change how it goes on ("train.steps=2000"),
    and `allow_changed_data` lets it go on with other data than it began with. `device` defaults to
    a GPU if there is one; `compile` to True there and False on a CPU. `corpus` is data to take
    instead of what the recipe names. `profile` looks at so many steps with torch's profiler.
    """
    run, place, overrides = Path(run), pick_device(device), list(overrides)
    if (overrides or allow_changed_data or recipe is None) and not resume:
        raise TrainingError(
            "overrides and allow_changed_data are for resume=True; a new run has a recipe: "
            "make_recipe(…, overrides)"
        )
    if resume:
        recipe = resumed_recipe(run / RECIPE, overrides)
    assert recipe is not None
    place = own_device(place)
    with together(recipe.parallel, place, run) as ranks:
        resume = resume or ranks.same(lambda: _goes_on(run, recipe))
        check_directory(run, "--resume" if resume else "--out")
        check_boards(recipe.log)
        with told(run, f"what was kept is as it was: mend it, then --resume {run}"):
            objective = open_objective(recipe, corpus, check=not resume)
            run.mkdir(parents=True, exist_ok=True)
            with only_one(run) if ranks.main else nullcontext():
                if not resume:
                    ranks.same(lambda: clear(run))
                job = Job(
                    objective, run, place, resume, allow_changed_data, compile, profile, ranks
                )
                with heap.kept(place), threads(job.threads, place) as said:
                    return job.go(said)


def _goes_on(run: Path, recipe: Recipe) -> bool:
    """Whether a new run is one that a launcher has started again; any other that is there is no
    place for a new one."""
    there = [*checkpoints(run), *set_asides(run), *(run / name for name in RESULTS)]
    if not any(path.exists() for path in there):
        return False
    if launched() and (run / RECIPE).is_file():
        # An objective may have settled its own two sections by the data, which is known again.
        kept = resumed_recipe(run / RECIPE)
        kept = dataclasses.replace(kept, options=recipe.options, data=recipe.data)
    else:
        kept = None
    if kept == recipe:
        _say(f"{run} holds a run of this recipe: going on with it")
        return True
    raise CheckpointError(
        f"{run} already holds a run; choose another --out, go on with --resume {run}, or remove it"
    )


def open_objective(recipe: Recipe, corpus: Any = None, *, check: bool = True) -> Any:
    """The recipe's objective with its data open; with `check`, its model was tried first."""
    objective = find_objective(recipe.objective)(recipe)
    if check:
        tree = objective.config(expected(objective))
        if recipe.tune is not None:
            check_methods(recipe, tree)
    objective.open(corpus)
    return objective


class Job:
    """One training run while it runs."""

    def __init__(
        self,
        objective: Objective[Any, Any],
        run: Path,
        device: torch.device,
        resume: bool,
        allow_changed_data: bool,
        compile: bool | None,
        profile: int = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        recipe = objective.recipe
        self.objective, self.recipe, self.run, self.device = objective, recipe, run, device
        self.ranks = ranks
        self.say = say = _say if ranks.main else silent
        ranks.check(recipe)
        objective.others = ranks.readers
        if resume:
            ranks.same(lambda: check_data(run, objective, allow_changed_data, say))
        self.tokenizer = ranks.same(lambda: run_tokenizer(objective, run, resume, say))
        if self.tokenizer is not None and not resume and ranks.main:
            self.tokenizer.save(run)
        ranks.first(lambda: objective.encode(self.tokenizer, say))
        torch.manual_seed(recipe.train.seed)
        self.model: Any = self._begin(resume).train()
        self.model.provenance.generation = objective.generation(self.model.config)
        self.parameters = size_of(self.model)
        self.trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.compile = ranks.compiles(compile, device)
        if recipe.train.recompute != "none":
            self.model.recompute(recipe.train.recompute)
        ranks.prepare(self.model, device, find_precision(recipe.train.precision, device).dtype)
        ranks.seed(recipe.train.seed)
        self.stepper = Stepper(self.model, objective, self._settings(), ranks)
        self.frame = objective.frame() if self.compile or ranks.framed else None
        self.steps = self._steps()
        often = recipe.train.often
        self.looks_every = often(recipe.train.validate_every, self.steps)
        self.saves_every = often(recipe.train.save_every, self.steps)
        self.redraw = Redraw(self.model, recipe.train.redraw)
        self.step, self.place, self.seconds = 0, Place(), 0.0
        self.window = Window(objective.terms, self.stepper.scaler is not None)
        self.best = Best(run, recipe.train.best) if recipe.train.best else None
        if self.best is not None:
            self.best.check(figures_of(objective, self.model), objective.name)
        if resume:
            state = load_state(run, self.model, self.stepper, say)
            self.step, self.seconds = state["step"], state["seconds"]
            self.place = Place(*state["place"])
            self.window.restore(state.get("window", ()), device)
            objective.restore(state.get("objective", {}))
            if self.step > self.steps:
                raise ConfigError(
                    f"train.steps={self.steps}: the run is at step {self.step:,} already; give "
                    f"train.steps={self.step} to end it there, or more to go on"
                )
        # The same number after a resume: sums are cut among threads, and rounded accordingly.
        tokens = recipe.train.batch_tokens
        kept = state.get("threads") if resume else None
        self.threads: int = kept or pick_threads(tokens, self.parameters)
        if ranks.main:
            self._write_beginning(resume)
        writes = ranks.main
        self.watch = Watch(run, recipe, self.stepper, self.step, self.steps, profile, writes=writes)
        if resume:
            self.watch.restore(state.get("watch", {}))
        self.metrics: Any = Metrics(run, self.step, self.watch.boards) if writes else Quiet()

    # --- preparing ------------------------------------------------------------------------------

    def _begin(self, resume: bool) -> Any:
        """The model with the weights that it begins with, and with the adapter that it trains."""
        recipe, cradle = self.recipe, self.ranks.cradle(self.device)
        if resume:
            tree = read_config_of(self.run / "config.json")
        else:
            tree = self.objective.config(vocabulary_of(self.tokenizer))
        if resume and not beside(recipe.tune):  # all weights are in the checkpoint
            found = Begun(build(tree, device=cradle), [])
        else:
            found = begin(recipe.model, tree, cradle, self.say)
            check_bits(found.model, recipe.tune)
        if recipe.tune is not None:
            dtype = find_precision(recipe.train.precision, self.device).dtype
            put_methods(found.model, recipe.tune, found.fresh, dtype)
        return found.model

    def _steps(self) -> int:
        """As many as the recipe says, or as its epochs take."""
        asked = self.recipe.train
        if asked.epochs is None:
            return asked.steps
        parts = list(islice(self.objective.chunks(0), 2))
        if len(parts) > 1:
            raise ConfigError(
                f"train.epochs={asked.epochs}: a stream has no end that is known; give train.steps"
            )
        batches = batches_of(self.objective, parts[0], asked, 0, self.frame)
        each = asked.accumulate * self.ranks.turn[1]
        return max(1, math.ceil(asked.epochs * len(batches) / each))

    def _settings(self) -> StepSettings:
        asked = self.recipe.train
        return StepSettings(
            optim=self.recipe.optim,
            smoothing=asked.smoothing,
            z_loss=asked.z_loss,
            precision=asked.precision,
            compile=self.compile,
            ema=asked.ema,
        )

    def _write_beginning(self, resume: bool) -> None:
        """All but the weights: with its first checkpoint the run can be opened."""
        write_recipe(self.recipe, self.run / RECIPE)
        if not resume:
            write_data(self.run, self.objective)
            write_json(self.run / "config.json", to_dict(self.model.config))
            self.objective.leave(self.run)
        if self.model.provenance.generation is not None:
            write_json(self.run / GENERATION, self.model.provenance.generation)

    # --- running --------------------------------------------------------------------------------

    def go(self, about_threads: str = "") -> TrainResult:
        """Train to the end, or to an interrupt."""
        recipe, every = self.recipe, self.recipe.log.every
        self.say(
            f"model: {self.parameters:,} parameters{self._share()}, {self.stepper.precision} on "
            f"{self.device.type}" + (", compiled" if self.compile else "") + self.ranks.told
        )
        if about_threads:
            self.say(about_threads)
        if (risen := recipe.schedule.risen(self.steps)) > self.steps:
            self.say(
                f"schedule.warmup={risen} is more than all {self.steps:,} steps: the rate ends at "
                f"{self._rate(self.steps):.2e} and never reaches optim.rate; try "
                f"schedule.warmup=0.1, a tenth of the steps"
            )
        source = prefetch(self.batches())
        progress: Any = Progress(self.steps, self.step) if self.ranks.main else Quiet()
        self.watch.say, self.objective.aside = progress.say, progress.aside
        self.clock = Clock(self.seconds)
        try:
            with interrupts(patient=self.ranks.world > 1) as signals:
                if not self.step and self.objective.compares:
                    progress.say(self._compare())
                self.objective.at(self.step + 1)
                self.clock = Clock(self.seconds)
                progress.start()
                while self.step < self.steps and not self._tired():
                    self._advance(source)
                    last = self.step == self.steps
                    looks = self.step % self.looks_every == 0 and not last
                    interrupted = self.ranks.any(bool(signals))
                    if self.step % every == 0 or last:
                        progress.update(self.step, **self._log())
                    elif self.device.type == "cpu":  # reading a result waits for nothing here
                        progress.update(self.step, **self._glance())
                    if looks:
                        progress.say(self._validate_and_tell())
                    last = last or (looks and self._tired())
                    if self.step % self.saves_every == 0 or last or interrupted:
                        self._save()
                    if interrupted and not last:
                        self.ranks.settle()
                        raise Interrupted(
                            f"stopped at step {self.step:,} of {self.steps:,}, all is saved: "
                            f"go on with `allformer train --resume {self.run}`"
                        )
            if self.step < self.steps:
                self.say(f"stopped at step {self.step:,} of {self.steps:,}: {self._why_tired()}")
            progress.close()
            return self._finish()
        finally:
            source.close()
            progress.close()
            self.watch.close()
            self.metrics.close()

    def batches(self) -> Iterator[tuple[Any, Place]]:
        """Micro-batches from where the run is, each with the place after it."""
        settings, turn = self.recipe.train, self.ranks.turn
        items = micro_batches(self.objective, settings, self.frame, self.place, turn)
        if self.device.type != "cuda":
            return items
        return ((mapped(batch, lambda x: x.pin_memory()), place) for batch, place in items)

    def _advance(self, source: Iterator[tuple[Any, Place]]) -> None:
        """One step of the optimiser on the next micro-batches."""
        batches = []
        with self.clock.waiting(), self.watch.waiting():
            for _ in range(self.recipe.train.accumulate):
                batch, self.place = next(source)
                batches.append(batch)
        self.step += 1
        self.objective.at(self.step)
        random = self.watch.before(self.step, batches)
        ready = [self.objective.onto(b, self.device) for b in batches]
        result = self.stepper(ready, self._rate(self.step))
        self.redraw(self.step)
        self.watch.after(result)
        self.window.add(self.step, result, batches, random)
        self.seconds = self.clock.count(result.tokens)
        if self.device.type == "cpu":  # reading a result waits for nothing here
            self._judge()

    def _log(self) -> dict[str, str]:
        """Read the results since the last time, write them down, return what to show."""
        row = self._report() | self.watch.figures(self.clock.lap(self.steps - self.step))
        self.metrics.add(**row)
        self.window.clear()
        return self.watch.shown(row["nll"], row["rate"], row["tokens_per_second"])

    def _share(self) -> str:
        """How much of the model is trained, where that is not all."""
        if self.recipe.tune is None:
            return ""
        return (
            f", {self.trained:,} of them trained ({self.trained / self.parameters:.2%}, "
            f"{self.recipe.tune.told})"
        )

    def _glance(self) -> dict[str, str]:
        return self.watch.shown(self.window.glance(), self._rate(self.step), self.clock.speed())

    def _rate(self, step: int) -> float:
        return self.recipe.schedule.rate(step, self.recipe.optim.rate, self.steps)

    def _report(self) -> dict[str, Any]:
        """The window's figures."""
        self._judge()
        row, _ = self.window.read()
        head = {"step": self.step, "seconds": round(self.seconds, 3)}
        return {**head, **row, **self.objective.figures(), "rate": self._rate(self.step)}

    def _judge(self) -> None:
        """The first step since the last report that is not finite stops the training."""
        bad = self.watch.judge(self.window, self._rate)
        if bad is not None and self.ranks.world > 1:
            raise TrainingError(
                f"the loss or its gradient is not finite at step {bad.step:,} (learning rate "
                f"{self._rate(bad.step):.3g}); try a lower optim.rate or a longer schedule.warmup. "
                f"A single process says where it begins: `allformer train --resume {self.run}` "
                f"with --set parallel.data=1 (and shard, tensor, context, pipeline)"
            )
        if bad is not None:
            rate = self._rate(bad.step)
            kept = self.watch.keep(bad, rate, "the loss or its gradient is not finite", self.step)
            raise explain_nonfinite(self.stepper, bad, rate, kept)

    def _look(self) -> dict[str, float]:
        """The figures of validation."""
        with self.ranks.looking(self.model) as model:
            return validate(
                self.objective,
                model,
                self.objective.validation,
                batch_tokens=self.recipe.train.batch_tokens,
                dtype=self.stepper.dtype,
            )

    def _validate(self, **extra: Any) -> dict[str, Any]:
        found = self._look()
        row = {
            "step": self.step,
            "seconds": round(self.seconds, 3),
            **{f"validation_{name}": value for name, value in found.items()},
            **extra,
        }
        if self.objective.perplexity:
            first = found.get(f"nll_{self.objective.terms[0]}", found["nll"])
            row["validation_perplexity"] = math.exp(min(first, 700))
        # Before the row: a run that ends between the two looks again, one after them does not.
        best = self.best is not None and not extra and self._is_best(self.best, found)
        self.metrics.add(**row)
        return {**row, "best": True} if best else row

    def _is_best(self, best: Best, found: dict[str, float]) -> bool:
        whole = self.ranks.whole(self.model)
        better = self.ranks.same(lambda: best.see(whole, self.step, found))
        if better and not self.ranks.main:
            self.best = Best(self.run, best.figure)  # as it is on the disk now
        return better

    def _tired(self) -> bool:
        """Whether validation has not been better for so many times as the recipe is patient."""
        patience = self.recipe.train.patience
        if patience is None or self.best is None or self.best.kept is None:
            return False
        rows = self.ranks.same(lambda: self.metrics.rows)
        looks = {r["step"] for r in rows if "validation_nll" in r and "averaged" not in r}
        since: int = sum(step > self.best.kept["step"] for step in looks)
        return since >= patience

    def _why_tired(self) -> str:
        assert self.best is not None
        return (
            f"no better {self.best.figure} in {self.recipe.train.patience} validations "
            f"(train.patience)"
        )

    def _validate_and_tell(self) -> str:
        with self.clock.paused(), self._averaged():
            row = self._validate()
        best = ", the best so far" if row.get("best") else ""
        return f"step {self.step:,}: {told_figures(row)}{best}"

    def _compare(self) -> str:
        """Before the first step: what training shall be better than."""
        told = self._validate_and_tell()
        if self.ranks.world == 1:  # else nobody has a model that can be asked
            with self.clock.paused():
                self.objective.compare(self.model)
        return told

    def _averaged(self) -> AbstractContextManager[None]:
        """The moving average in the model's place, if the recipe asks for one."""
        return nullcontext() if self.stepper.ema is None else self.stepper.ema.swapped()

    def _save(self) -> None:
        place = dataclasses.astuple(self.place)
        self._judge()
        extra = {"place": place, "seconds": self.seconds, "threads": self.threads}
        extra |= {"window": self.window.state(), "watch": self.watch.state()}
        extra |= {"objective": self.objective.state()}
        settings = self.recipe.train
        keep, every = _kept(settings), self.saves_every
        with self.clock.paused():
            self.metrics.sync()
            self.watch.sync()
            save_state(self.run, self.step, self.stepper, extra, keep=keep, every=every)
            # Its checkpoints alone cannot be opened: they have no base.
            if is_beside(self.model) and self.ranks.main:
                save_run(self.run, self.model, self.tokenizer, self._base())

    # --- ending ---------------------------------------------------------------------------------

    def _finish(self) -> TrainResult:
        """Take the final weights, validate them, write the run."""
        self.ranks.settle()
        count, which = self._take_weights()
        row = self._validate(averaged=count)
        self.model = self.ranks.whole(self.model).eval()
        if self.ranks.main:
            save_run(self.run, self.model, self.tokenizer, self._base())
            self.objective.finish(self.run)
            self._keep_predictions()
        self.ranks.wait()
        self.say(f"done in {clock(self.seconds)}: {told_figures(row)} ({which}), in {self.run}")
        nll = row["validation_nll"]
        if self.objective.perplexity and self.tokenizer is not None:
            for line in diverged(nll, self.metrics.rows, self.tokenizer.vocab_size):
                self.say(line)
        return TrainResult(
            Run(self.run, self.model, self.tokenizer),
            self.step,
            self.seconds,
            self.clock.speed(),
            math.exp(min(nll, 700)),
            self.metrics.rows,
            self.threads,
        )

    def _take_weights(self) -> tuple[int, str]:
        """The best ones where the recipe names a figure, else the moving average, else the mean of
        the last checkpoints."""
        if self.best is not None:
            rows = self.ranks.same(lambda: self.metrics.rows)
            if not any("validation_nll" in r and r["step"] == self.step for r in rows):
                with self._averaged():
                    self._validate()  # the last step may be the best
            if (found := self.best.read(self.say)) is not None:
                self.ranks.put(self.model, found, "the best")
                return 1, self.best.told
        if self.stepper.ema is not None:
            self.stepper.ema.settle()
            return 1, f"moving average of {self.stepper.ema.decay:g}"
        last = self.ranks.same(self._good_checkpoints)[-self.recipe.train.average :]
        take_mean(last, self.ranks.holding(self.model))
        self.redraw.restore(self.step)
        return len(last), f"mean of {len(last)} checkpoints"

    def _base(self) -> str | None:
        """The checkpoint that an adapter stands on."""
        return getattr(self.recipe.model, "checkpoint", None) if is_beside(self.model) else None

    def _keep_predictions(self) -> None:
        found = self.objective.predictions(self.model, self.objective.validation)
        if found is not None:
            found.save(self.run)

    def _good_checkpoints(self) -> list[Path]:
        found = checkpoints(self.run)
        for checkpoint in found:
            if why := damage(checkpoint):
                set_aside(checkpoint, why, self.say)
        # Killed in its last save, a run has one too many: the mean would be another.
        drop_old(self.run, _kept(self.recipe.train), self.saves_every)
        good = checkpoints(self.run)
        if not good:
            raise CheckpointError(f"{self.run} has no good checkpoint left to take weights from")
        return good


def _kept(asked: TrainRecipe) -> int:
    """Checkpoints that stay: not fewer than the mean at the end is taken of."""
    mean = asked.best is None and asked.ema is None
    return max(asked.keep or asked.average, asked.average if mean else 1)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
