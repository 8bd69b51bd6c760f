"""How a command begins and ends. A mistake is one line and a status, never a traceback.

    0    done
    1    it could not be done (of `audit`: there are findings)
    2    the command line cannot be read (of `audit`: the module could not be run)
    130  Ctrl-C
    141  nobody reads the output any more, as after `| head`

Nothing else in the package catches what is not its own: every error of the system ends here. What
nobody foresaw is one line too; ALLFORMER_TRACEBACK=1 shows where it came from.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

import typer
from typer.main import get_command

from allformer.begin import begun
from allformer.errors import AllformerError

_WAYS_OUT = {
    errno.ENOENT: "give a path that is there",
    errno.EACCES: "give another path, or change its permissions",
    errno.EPERM: "give another path, or change its permissions",
    errno.EROFS: "give a path where one may write",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "a file stands where a directory is needed; give another path",
    errno.EEXIST: "give another path",
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some space, or write elsewhere",
    errno.ENAMETOOLONG: "give a shorter path",
}


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command and give the status it ends with; what went wrong is told on standard error."""
    begun()  # all is imported: from here on Ctrl-C may have something to save
    warnings.showwarning = lambda message, *rest, **more: _say(f"allformer: warning: {message}")
    try:
        _check_streams()
        status = _invoke(app, arguments)
        sys.stdout.flush()  # a full disk may show itself only now
        return status
    except (BrokenPipeError, KeyboardInterrupt) as error:
        _give_up_output()
        if isinstance(error, BrokenPipeError):
            return 141
        _say("allformer: stopped")
        return 130
    except Exception as error:
        if os.environ.get("ALLFORMER_TRACEBACK") and not isinstance(error, AllformerError):
            raise
        _give_up_output()
        if (line := told(error)) or not _is_usage(error):  # typer has shown the help already
            _say(_one_line(f"{_who(error)}: {line}"))
        status = _status(error)  # of an audit 1 means findings, and there are none
        return 2 if status == 1 and arguments and arguments[0] == "audit" else status


def _invoke(app: typer.Typer, arguments: Sequence[str]) -> int:
    """As typer's own `app()`, which has other ideas of how errors are told."""
    try:
        with get_command(app).make_context("allformer", list(arguments)) as context:
            context.command.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _check_streams() -> None:
    """A closed stream would lend its number to the next file that is opened."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        raise AllformerError("standard output is closed; send it to a file or to /dev/null")


def told(error: Exception) -> str:
    """What to say of an error: `told(FileNotFoundError(2, "…", "x"))` names x and a way out."""
    if _is_usage(error):
        return _usage(error)
    if isinstance(error, AllformerError):
        return str(error)
    if isinstance(error, UnicodeEncodeError):
        sign = error.object[error.start : error.start + 1]
        return (
            f"the output has {sign!a}, which cannot be written in {error.encoding}; "
            f"set PYTHONIOENCODING=utf-8"
        )
    if isinstance(error, UnicodeDecodeError):
        return f"what was read is not UTF-8 (byte {error.start}); convert it first: iconv -t utf-8"
    if (number := _system_error(error)) is not None:
        return _of_system(error, number)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"there is not enough memory; try less at once ({error})".replace(" ()", "")
    return (
        f"{type(error).__name__}: {error}; this was not foreseen: "
        f"ALLFORMER_TRACEBACK=1 shows where it came from"
    )


def _is_usage(error: Exception) -> bool:
    """Whether it is typer's own, of the command line; newer ones have no public base for them."""
    return hasattr(error, "format_message")


def _usage(error: Exception) -> str:
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    if not message:
        return ""
    path = getattr(getattr(error, "ctx", None), "command_path", "allformer")
    return f"{message}; see `{path} --help`"


def _system_error(error: Exception) -> int | None:
    """The system's number for an error; libraries in Rust hide it in their message."""
    if isinstance(error, OSError):
        return error.errno or 0
    found = re.search(r"\(os error (\d+)\)", str(error))
    return None if found is None else int(found[1])


def _of_system(error: Exception, number: int) -> str:
    files = [getattr(error, name, None) for name in ("filename", "filename2")]
    named = [os.fsdecode(file) for file in files if isinstance(file, str | bytes | os.PathLike)]
    said = os.strerror(number) if number else str(error) or type(error).__name__
    way_out = f"; {_WAYS_OUT[number]}" if number in _WAYS_OUT else ""
    return (f"{' and '.join(named)}: " if named else "") + said + way_out


def _who(error: Exception) -> str:
    path = getattr(getattr(error, "ctx", None), "command_path", "allformer")
    return str(path) if _is_usage(error) else "allformer"


def _status(error: Exception) -> int:
    if _is_usage(error):
        return int(getattr(error, "exit_code", 2))
    return int(getattr(error, "exit_status", 1))


def _give_up_output() -> None:
    """Write what is still held; where that fails, keep Python from trying again at its end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except AttributeError:  # there is none
        pass


def _one_line(text: str) -> str:
    return " ".join(part.strip() for part in text.splitlines())


def _say(line: str) -> None:
    with suppress(OSError, ValueError):  # where nobody listens
        print(line, file=sys.stderr, flush=True)
