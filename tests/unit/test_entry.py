"""How a command ends: a mistake is one line and a status, whatever the system did wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import allformer as package
from allformer.cli.entry import run, told
from allformer.cli.help import App
from allformer.errors import AllformerError
from allformer.version import __version__

ROOT = Path(package.__file__).parents[1]


def app_of(work) -> typer.Typer:
    app = App(name="allformer")

    @app.callback()
    def all_verbs() -> None:
        pass

    @app.command()
    def verb(beams: int = 4) -> None:
        work()

    return app


def ending(work, capsys, *arguments: str) -> tuple[int, str]:
    status = run(app_of(work), ["verb", *arguments])
    return status, capsys.readouterr().err


def fails(error: BaseException):
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (AllformerError("beams=0; try 1"), 1, "allformer: beams=0; try 1"),
        (FileNotFoundError(2, "x", "/no/where"), 1, "/no/where: No such file or directory; give"),
        (PermissionError(13, "x", "/root/x"), 1, "/root/x: Permission denied; give another path"),
        (IsADirectoryError(21, "x", "/tmp"), 1, "/tmp: Is a directory; give a file"),
        (OSError(28, "No space left on device"), 1, "No space left on device; free some space"),
        (OSError(30, "x", "/ro"), 1, "Read-only file system"),
        (RuntimeError("Error: I/O error: x (os error 28)"), 1, "No space left on device; free"),
        (UnicodeEncodeError("ascii", "你", 0, 1, "x"), 1, "set PYTHONIOENCODING=utf-8"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), 1, "not UTF-8"),
        (MemoryError(), 1, "there is not enough memory"),
        (KeyboardInterrupt(), 130, "allformer: stopped"),
        (BrokenPipeError(), 141, ""),
        (ZeroDivisionError("a\nb"), 1, "ZeroDivisionError: a b; this was not foreseen"),
        (typer.Exit(7), 7, ""),
    ],
)
def test_every_error_is_one_line_and_a_status(error, status, words, capsys):
    found, err = ending(fails(error), capsys)
    assert found == status
    assert words in err
    assert err.count("\n") == (1 if words else 0)


def test_what_nobody_foresaw_shows_its_traceback_when_asked(monkeypatch):
    monkeypatch.setenv("ALLFORMER_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(app_of(fails(ZeroDivisionError())), ["verb"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verb", "--bems", "3"], "--beams"),
        (["verb", "--beams", "x"], "'--beams'"),
        (["vreb"], "verb"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_and_status_2(arguments, words, capsys):
    assert run(app_of(lambda: None), arguments) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "--help`" in err
    assert err.count("\n") == 1


def test_an_error_of_ours_that_has_lines_is_told_in_one(capsys):
    assert ending(fails(AllformerError("a\n  b")), capsys)[1] == "allformer: a b\n"
    assert told(AllformerError("a")) == "a"


# --- as processes -------------------------------------------------------------------------------


def allformer(*arguments: str, shell: str = "", **environment: str) -> tuple[int, str, str]:
    """`shell` is what stands after the command: `allformer("info", shell="| head -1")`."""
    command = " ".join([sys.executable, "-m", "allformer", *arguments, shell])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_version_is_told():
    assert allformer("--version")[:2] == (0, f"allformer {__version__}\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_told_once():
    status, _, err = allformer("info", "original-tiny", "--json", shell="> /dev/full")
    assert (status, err) == (
        1,
        "allformer: No space left on device; free some space, or write elsewhere\n",
    )


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error():
    assert allformer("info", "--json", shell="| head -c 1")[::2] == (141, "")


def test_closed_streams_are_told():
    status, _, err = allformer("classify", "nowhere", shell="<&-")
    assert status == 1
    assert err.startswith("allformer: there is no TEXT, no --file, and standard input is closed")
    status, _, err = allformer("info", "original-tiny", shell=">&-")
    assert (status, err.count("\n")) == (1, 1)
    assert "standard output is closed" in err


def test_ctrl_c_while_importing_is_one_line(tmp_path):
    # A torch that is still being imported when the signal comes.
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"
    )
    path = f"{tmp_path}:{ROOT}"
    assert allformer("info", PYTHONPATH=path) == (130, "", "allformer: stopped\n")


def test_a_program_that_imports_allformer_keeps_its_own_ctrl_c():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
