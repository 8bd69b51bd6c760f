"""The one whom the loop tells what happens: speed, the chip's share, statistics, what to keep.

watch = Watch(run, recipe, stepper, step, steps)
with watch.waiting():
    batches = […]
random = watch.before(step, batches)
result = stepper(batches, rate)
watch.after(result)
bad = watch.judge(window)                     # a step that cannot stand; one that jumps is kept
row |= watch.figures(clock.lap())             # for metrics.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from allformer.checkpoint.save import write_json
from allformer.train.batch import Batch
from allformer.train.metrics import Lines
from allformer.train.progress import Lap
from allformer.train.sections.recipe import Recipe
from allformer.train.step import Result, Stepper
from allformer.train.watch.boards import Board, open_boards
from allformer.train.watch.extremes import Random
from allformer.train.watch.machine import Peak, find_peak, machine_name, memory_taken
from allformer.train.watch.operations import Operations
from allformer.train.watch.profile import Profile
from allformer.train.watch.replay import keep_step
from allformer.train.watch.spikes import Spikes
from allformer.train.watch.statistics import FILE, Statistics, flat
from allformer.train.window import Taken, Window

MACHINE = "machine.json"
MOST_SPIKES = 3  # steps that are kept: each with a copy of the weights


class Watch:
    """Of one run while it runs, from `step` on; `profile` so many steps of it.

    One that does not write is that of a second process of the same run: it takes part in what all
    compute together and leaves the files to the first.
    """

    def __init__(
        self,
        run: Path,
        recipe: Recipe,
        stepper: Stepper,
        step: int,
        steps: int,
        profile: int = 0,
        *,
        writes: bool = True,
    ) -> None:
        self.run, self.recipe, self.stepper, self.writes = run, recipe, stepper, writes
        self.device = stepper.model.device
        self.say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
        self.boards: list[Board] = []
        self.lines: Lines | None = None
        if writes:
            self.boards = open_boards(run, recipe.log, step, recipe.name, recipe.plain())
            self.lines = _lines(run / FILE, recipe.log.statistics, step)
        self.spikes, self.kept = Spikes(recipe.log.spike), 0
        self.judged = step
        self.operations = Operations(stepper.model.config, recipe.train.recompute)
        self.done = 0.0  # operations since the last lap
        self.last: dict[str, float] = {}
        self._peak: Peak | None = None
        self._statistics: Statistics | None = None
        self._inside = ExitStack()
        self.profile: Profile | None = None
        if profile and writes:
            self.profile = Profile(profile, run, stepper, steps - step, lambda x: self.say(x))

    # --- a step -----------------------------------------------------------------------------------

    def waiting(self) -> AbstractContextManager[Any]:
        """Around the wait for data."""
        return nullcontext() if self.profile is None else self.profile.waiting()

    def before(self, step: int, batches: Sequence[Batch]) -> Random:
        """What a replay will need: the random state."""
        every = self.recipe.log.statistics
        if every and step % every == 0:
            self._statistics = Statistics(self.stepper, step, batches[0])
        for batch in batches:
            self.done += self.operations.of(batch, self.stepper.objective.counts(batch)[0])
        if self.profile is not None:
            self._inside.enter_context(self.profile.step())
        return Random.now(self.stepper.on_gpu)

    def after(self, result: Result) -> None:
        """The same step, done."""
        self._inside.close()
        if self.profile is not None and self.profile.done:
            self.profile = None
        if self._statistics is not None:
            row = self._statistics.row(result)
            if self.lines is not None:
                self.lines.add(row)
            for board in self.boards:
                board.add(row["step"], dict(flat(row)))
        self._statistics = None

    # --- figures ----------------------------------------------------------------------------------

    def figures(self, lap: Lap) -> dict[str, float]:
        """Of the time since the last lap, for a row of metrics.jsonl."""
        if self._peak is None:  # here, where the threads are those of the run
            self._peak = find_peak(self.device, self.stepper.dtype)
            self._write_machine(self._peak)
        share = self.done / max(1e-9, lap.seconds) / self._peak.flops
        self.done = 0.0
        memory = memory_taken(self.device)
        self.last = {
            "tokens_per_second": lap.speed,
            "peak_share": round(share, 4),
            **({} if memory is None else {"memory_gib": round(memory, 3)}),
            "data_wait": round(lap.wait, 4),
            "seconds_left": round(lap.left, 3),
        }
        return self.last

    def _write_machine(self, peak: Peak) -> None:
        """For whoever reads the figures later: RUN/machine.json."""
        if not self.writes:
            return
        told = {
            "device": machine_name(self.device),
            "precision": self.stepper.precision,
            "peak_tflops": round(peak.flops / 1e12, 4),
            "peak_source": peak.source,
            "torch": torch.__version__,
        }
        write_json(self.run / MACHINE, told)

    def shown(self, nll: float, rate: float, speed: float) -> dict[str, str]:
        """What a terminal shows, with what the last lap has measured."""
        per_second = f"{self.stepper.objective.unit}/s"
        news = {"nll": f"{nll:.3f}", per_second: f"{speed:,.0f}", "rate": f"{rate:.2e}"}
        if "peak_share" in self.last:
            news["peak"] = f"{self.last['peak_share']:.0%}"
        if "memory_gib" in self.last:
            news["mem"] = f"{self.last['memory_gib']:.2f}G"
        if "data_wait" in self.last:
            news["wait"] = f"{self.last['data_wait']:.0%}"
        return news

    # --- what goes wrong --------------------------------------------------------------------------

    def judge(self, window: Window, rate: Callable[[int], float]) -> Taken | None:
        """The first new step whose numbers are none; one whose loss jumps is kept and told."""
        if (bad := window.first_bad()) is not None:
            return bad
        for taken in window.taken:
            if taken.step > self.judged:
                far = self.spikes.jump(float(taken.result.loss)) if self.spikes.limit else None
                if far is not None:
                    self._jumped(taken, far, rate(taken.step), window.taken[-1].step)
                self.judged = taken.step
        return None

    def _jumped(self, taken: Taken, far: float, rate: float, now: int) -> None:
        loss = float(taken.result.loss)
        told = f"step {taken.step:,}: the loss jumps to {loss:.4g}, {far:.1f} deviations up"
        if self.kept < MOST_SPIKES:
            self.kept += 1
            path = self.keep(taken, rate, f"the loss jumps by {far:.1f} deviations", now)
            told += "" if path is None else f"; look at it: allformer replay {path}"
        self.say(told)

    def keep(self, taken: Taken, rate: float, why: str, now: int) -> Path | None:
        """The step for `allformer replay`; None, and said, where it cannot be written."""
        if not taken.batches or not self.writes:
            return None
        try:
            return keep_step(self.run, self.stepper, taken, rate=rate, why=why, now=now)
        except (OSError, RuntimeError) as error:  # torch's writer raises the latter
            said = getattr(error, "strerror", None) or str(error).splitlines()[0]
            self.say(f"step {taken.step:,} cannot be kept for a replay ({said})")
            return None

    # --- across a checkpoint ----------------------------------------------------------------------

    def sync(self) -> None:
        """Down to the disk, before a checkpoint that relies on it."""
        if self.lines is not None:
            self.lines.sync()

    def state(self) -> dict[str, Any]:
        """What a resumed run judges by."""
        return {"losses": list(self.spikes.losses)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.spikes.restore(state.get("losses", ()))

    def close(self) -> None:
        """The run ends, or stops."""
        self._inside.close()
        if self.profile is not None:
            self.profile.close()
        if self.lines is not None:
            self.lines.close()


def _lines(path: Path, every: int, step: int) -> Lines | None:
    if not every and not path.exists():
        return None
    return Lines(path, lambda row: row["step"] <= step)
