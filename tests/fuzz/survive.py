"""The one demand on a mutant: it works, or an error of ours refuses it, soon and in few bytes."""

from __future__ import annotations

import resource
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import allformer as af
from allformer.core.model import AnyModel, DecoderOnlyModel, EncoderDecoderModel
from allformer.errors import AllformerError
from allformer.tasks.pipeline import open_pipeline
from allformer.text.load import load_tokenizer

SECONDS, BYTES = 20, 3 << 30
TEXT = "Goethe wrote Faust."


class TooLong(BaseException):
    """Not an Exception: nothing may catch it on the way."""


@contextmanager
def bounds() -> Iterator[None]:
    """So much time and memory, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    alarm = threading.current_thread() is threading.main_thread()

    def ring(*_: object) -> None:
        raise TooLong

    old = signal.signal(signal.SIGALRM, ring) if alarm else None
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, hard))
    if alarm:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        if alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def survive(path: Path) -> str:
    """How a directory fails the demand; "" where it does not."""
    faults = []
    for step in (_model, _tokeniser, _vectors):
        begin = time.monotonic()
        try:
            with bounds(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                step(path)
        except AllformerError as error:
            if len(str(error)) > 6000:
                faults.append(f"{step.__name__}: an error of {len(str(error))} characters")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            at = error.__traceback__
            while at is not None and at.tb_next is not None:
                at = at.tb_next
            where = "" if at is None else f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
            said = f"{type(error).__name__}: {str(error)[:150]}"
            faults.append(f"{step.__name__}: {said} at {where}")
        if time.monotonic() - begin > SECONDS:
            faults.append(f"{step.__name__}: took {time.monotonic() - begin:.0f} s")
    return "; ".join(faults)


@torch.no_grad()
def _model(path: Path) -> None:
    model: AnyModel = af.load(path)
    ids = torch.tensor([[1, 2, 3]])
    inputs = {"input_ids": ids}
    if isinstance(model, EncoderDecoderModel):
        inputs["decoder_input_ids"] = ids[:, :2]
    model(**inputs)
    if isinstance(model, EncoderDecoderModel | DecoderOnlyModel) and model.config.head is not None:
        model.generate(ids, max_new_tokens=2)


def _tokeniser(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    batch = tokenizer([TEXT, "he"])
    tokenizer.decode(batch["input_ids"][0])
    steps: list[Callable[[], object]] = [
        lambda: tokenizer(TEXT, truncate=True, max_length=4),
        lambda: tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}]),
    ]
    for step in steps:
        try:
            step()
        except AllformerError:
            continue


def _vectors(path: Path) -> None:
    if (path / "modules.json").is_file():
        open_pipeline(path, device="cpu")
