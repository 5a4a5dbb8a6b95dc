"""Runs one command of `emq`, and turns whatever comes of it into an exit code and a line."""

from __future__ import annotations

import io
import os
import sys

from emq_cli import exit_codes, standard_output


def run() -> None:
    """Run one command. Exits with 0 or one of `emq_cli.exit_codes`; a failure is one line on standard error.

    Ctrl-C before the command begins ends it without a word.

    A defect of EMQ is one line, too; `python -X dev -m emq_cli` shows where it is.
    """
    _open_closed()
    for stream in (sys.stdout, sys.stderr):
        # A name may hold characters that the terminal's encoding lacks, or, in a file's name, bytes of no encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = standard_output.whole(sys.stdout)
    code: str | int | None = 0
    try:
        # Loading takes a moment, and Ctrl-C must already be handled by then.
        from emq_cli.commands import app

        app(prog_name="emq")
    except KeyboardInterrupt:
        code = exit_codes.INTERRUPTED  # it was loading yet: nothing was begun, so there is nothing to say
    except SystemExit as exc:
        # Rich and Typer exit with 1 when nobody reads the output any more.
        code = exit_codes.CLOSED_PIPE if isinstance(exc.__context__, BrokenPipeError) else exc.code
    except BrokenPipeError:
        code = exit_codes.CLOSED_PIPE
    except OSError as exc:
        code = _said(f"{exc.strerror or exc}{f': {exc.filename}' if exc.filename else ''}", exit_codes.FAILED)
    except Exception as exc:
        if sys.flags.dev_mode:
            raise
        text = " ".join(f"{type(exc).__name__}: {exc}".split())
        code = _said(f"this is a defect of EMQ: {text}; python -X dev -m emq_cli ... shows where", exit_codes.DEFECT)
    sys.exit(_flushed(code))


def _open_closed() -> None:
    """Open standard input, output and error if they are closed, so that no file of ours gets their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _flushed(code: str | int | None) -> str | int | None:
    """Write out what is buffered; return the exit code."""
    try:
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        code = exit_codes.CLOSED_PIPE
    except OSError as exc:
        code = code or _said(f"cannot write to standard output: {exc.strerror}", exit_codes.FAILED)
    # What is still buffered must not be written again at the end of the process.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return code


def _said(text: str, code: int) -> int:
    print(f"emq: {text}", file=sys.stderr)  # noqa: T201
    return code
