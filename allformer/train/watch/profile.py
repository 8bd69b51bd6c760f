"""`--profile N`: torch's profiler over N steps, and what they spent their time on.

RUN/profile/trace.json opens in chrome://tracing and ui.perfetto.dev; summary.txt is what is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from allformer.train.step import Stepper

WARM = 5  # steps before: compiling, capturing, first allocations
SHOWN = 12
_FORWARD, _STEP, _WAIT = "allformer: forward", "allformer: step", "allformer: wait for data"
_OPTIMISER = "Optimizer.step#"  # torch marks it itself


class Profile:
    """Told of each step; says what it found after the last one that it looks at."""

    def __init__(
        self, steps: int, run: Path, stepper: Stepper, left: int, say: Callable[[str], None]
    ) -> None:
        self.steps, self.folder, self.say = min(steps, left), run / "profile", say
        self.stepper, self.on_gpu = stepper, stepper.on_gpu
        self.warm = max(0, min(WARM, left - self.steps))
        self.seen = 0
        self.profiler: Any = None
        self._unnamed: dict[str, Any] = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around everything that a step does."""
        if self.seen == self.warm and self.profiler is None:
            self._start()
        with self._named(_STEP):
            yield
        self.seen += 1
        if self.profiler is not None and self.seen == self.warm + self.steps:
            self._stop()

    def waiting(self) -> AbstractContextManager[None]:
        """Around the wait for data."""
        return self._named(_WAIT)

    @property
    def done(self) -> bool:
        """Whether it has said all."""
        return self.seen >= self.warm + self.steps

    def close(self) -> None:
        """An end before the last step: what there is counts."""
        if self.profiler is not None:
            self._stop()

    def _named(self, name: str) -> AbstractContextManager[Any]:
        if self.profiler is None:
            return nullcontext()
        return torch.profiler.record_function(name)

    def _start(self) -> None:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self.on_gpu:
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        for name in ("plain_loss", "_loss"):  # forward is marked only while it is looked at
            if (plain := getattr(self.stepper, name)) is not None:
                self._unnamed[name] = self.stepper.__dict__.get(name)
                setattr(self.stepper, name, _marked(plain))
        self.profiler = torch.profiler.profile(activities=kinds)
        self.profiler.start()

    def _stop(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        for name, before in self._unnamed.items():
            if before is None:
                delattr(self.stepper, name)
            else:
                setattr(self.stepper, name, before)
        self.folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.folder / "trace.json"))
        text = summary(profiler.key_averages(), self.steps, self.on_gpu)
        (self.folder / "summary.txt").write_text(text + "\n", encoding="utf-8")
        self.say(f"{text}\n{self.folder / 'trace.json'} opens in ui.perfetto.dev")


def summary(events: Any, steps: int, on_gpu: bool) -> str:
    """Where a step's time went, and the operations that took most of it."""
    by_name = {event.key: event for event in events}
    ours = {_FORWARD, _STEP, _WAIT}
    rows = [e for e in events if e.key not in ours and not e.key.startswith("Optimizer.")]
    time = _device_time if on_gpu else _host_time
    total = sum(map(time, rows))
    lines = [f"profile of {steps} steps on the {'GPU' if on_gpu else 'CPU'}"]
    lines += _split(by_name, total, steps, on_gpu)
    lines += ["", f"  {'ms/step':>9}  {'share':>6}  {'calls':>7}  operation"]
    for event in sorted(rows, key=time, reverse=True)[:SHOWN]:
        ms, share = time(event) / 1e3 / steps, time(event) / max(1e-9, total)
        calls = event.count / steps
        lines.append(f"  {ms:9.3f}  {share:6.1%}  {calls:7.1f}  {event.key[:70]}")
    return "\n".join(lines)


def _split(by_name: dict[str, Any], total: float, steps: int, on_gpu: bool) -> list[str]:
    """Forward, backward, optimiser, wait for data; backward is what the others leave of a step."""

    def whole(name: str) -> float:
        found = [e for key, e in by_name.items() if key.startswith(name)]
        return float(sum(e.device_time_total if on_gpu else e.cpu_time_total for e in found))

    wall = sum(by_name[n].cpu_time_total for n in (_STEP, _WAIT) if n in by_name)
    wait = by_name[_WAIT].cpu_time_total if _WAIT in by_name else 0.0
    forward, optimiser = whole(_FORWARD), whole(_OPTIMISER)
    all_of_it = total if on_gpu else wall - wait
    lines = [f"  {'step':<22}{wall / 1e3 / steps:9.3f} ms"]
    if _FORWARD not in by_name:
        lines.append("  the step is one CUDA graph: its parts cannot be told apart; --no-compile")
    else:
        parts = {
            "forward": forward,
            "backward and the rest": all_of_it - forward - optimiser,
            "optimiser": optimiser,
        }
        lines += [_part(name, x, all_of_it, steps) for name, x in parts.items()]
    return [*lines, _part("wait for data", wait, wall, steps)]


def _part(name: str, time: float, of: float, steps: int) -> str:
    return f"  {name:<22}{time / 1e3 / steps:9.3f} ms  {time / max(1e-9, of):6.1%}"


def _marked(call: Callable[..., Any]) -> Callable[..., Any]:
    def forward(*args: Any, **more: Any) -> Any:
        with torch.profiler.record_function(_FORWARD):
            return call(*args, **more)

    return forward


def _host_time(event: Any) -> float:
    return float(event.self_cpu_time_total)


def _device_time(event: Any) -> float:
    return float(event.self_device_time_total)
