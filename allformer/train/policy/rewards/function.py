"""A reward that is a Python function: `words.py:used`, or `package.module:function`.

    def used(completions, words, **others):
        return [sum(w in text for w in each) for text, each in zip(completions, words)]

It is called with what it names of: `prompts`, `completions` (texts), `completion_ids`, `messages`
(those before each answer), `ended`, and the columns of the data; each is a list with an entry for
each answer. One that takes `**others` gets all of it, as a reward for TRL does.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from allformer.errors import AllformerError, ConfigError, TrainingError, did_you_mean
from allformer.train.policy.rewards.reward import Answered, Judge, Reward


@dataclass(frozen=True)
class FunctionReward(Reward, named="function"):
    """`call`: where it is."""

    needs: ClassVar[str] = "call"

    call: str = ""

    @property
    def called(self) -> str:
        return self.call.rpartition(":")[2]

    def check(self) -> None:
        """It is there, and can be called."""
        self._found()

    def open(self, device: torch.device) -> Judge:
        return partial(self._judge, self._found())

    def _judge(self, function: Callable[..., Any], answered: Sequence[Answered]) -> Any:
        try:
            return function(**_arguments(function, answered))
        except AllformerError:
            raise
        except Exception as error:
            raise TrainingError(
                f"{self.told} failed: {type(error).__name__}: {error}; mend it, then --resume"
            ) from error

    def _found(self) -> Callable[..., Any]:
        where, colon, name = self.call.rpartition(":")
        if not colon or not where or not name:
            raise ConfigError(f"{self.told} is not file.py:function or module:function")
        module = self._from_file(Path(where)) if where.endswith(".py") else self._imported(where)
        found = getattr(module, name, None)
        if not callable(found):
            known = [x for x, y in inspect.getmembers(module, inspect.isfunction)
                     if y.__module__ == module.__name__]  # fmt: skip
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"{self.told}: {where} has no function {name!r}; {hint}there is "
                f"{', '.join(known) or 'none'}"
            )
        function: Callable[..., Any] = found
        return function

    def _imported(self, name: str) -> Any:
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise ConfigError(
                f"{self.told}: {name} cannot be imported ({type(error).__name__}: {error}); give "
                f"file.py:function, or put its folder into PYTHONPATH"
            ) from error

    def _from_file(self, path: Path) -> Any:
        if not path.is_file():
            raise ConfigError(f"{self.told}: there is no file {path}; give its path")
        try:
            return _run_file(path.resolve(), path.stat().st_mtime_ns)
        except Exception as error:
            raise ConfigError(
                f"{self.told}: {path} cannot be read ({type(error).__name__}: {error}); mend it"
            ) from error


@cache
def _run_file(path: Path, changed: int) -> Any:
    """A file as a module: run once, and again after it was `changed`."""
    name = f"allformer_reward_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass in it looks for itself there
    spec.loader.exec_module(module)
    return module


def _arguments(function: Callable[..., Any], answered: Sequence[Answered]) -> dict[str, Any]:
    """Of all there is, what the function names; columns of the data yield to our own names."""
    columns = dict.fromkeys(key for each in answered for key in each.record)
    found: dict[str, Any] = {key: [each.record.get(key) for each in answered] for key in columns}
    found.pop("completion", None)
    found |= {
        "prompts": [each.prompt for each in answered],
        "completions": [each.answer for each in answered],
        "completion_ids": [list(each.ids) for each in answered],
        "messages": [each.messages for each in answered],
        "ended": [each.ended for each in answered],
    }
    taken = inspect.signature(function).parameters
    if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in taken.values()):
        return found
    return {key: x for key, x in found.items() if key in taken}
