"""`emq demo`: real flights to sixteen airlines, a flood, three bad endpoints, and a proof; in under a minute."""

from __future__ import annotations

import contextlib
import json as json_
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from rich.console import Console

from emq import errors, extras

DEFAULT_SECONDS = 36.0

_PIPE_WIDTH = 100
"""Columns of the report where standard output is not a terminal."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

WRONG = 2
"""Exit status if an argument is wrong or a package is missing, as of every command of `emq`."""


def main(
    *,
    store: str = "sqlite",
    json: bool = False,
    seconds: float = DEFAULT_SECONDS,
    days: int | None = None,
    keep: str | Path | None = None,
    log_level: str = "error",
) -> int:
    """Run the demonstration and print its outcome.

    Args:
        store: "sqlite" (embedded), "redis" (the demonstration starts a server for itself) or "memory".
        json: print one JSON object, and nothing else, on standard output.
        seconds: length of both halves together, 4 to 600; set-up and proof take some seconds more.
        days: number of days of flights that each half replays, 1 to 365; None for one day a second. With more days
            a second, the figures would describe the machine, not EMQ.
        keep: a new or empty directory that keeps store and trail; None for a temporary one.
        log_level: least level that EMQ logs meanwhile. Below "error", the log tells of each delivery that fails on
            purpose.

    Returns:
        The exit status: 0 if every promise held, 1 if one broke or the demonstration could not run (the reason is
        on standard error), 2 if an argument is wrong or a package is missing, 130 after Ctrl-C.
    """
    failure: Exception | None = None
    console = Console(quiet=json, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print("EMQ demo: loading a year of flights, starting the airlines' receivers ...", style="dim")
    try:
        with _interrupted_by_sigterm(), _logged_from(log_level):
            try:
                report = _stage().perform(console, store, seconds, days, keep, live=not json)
            except* errors.EMQError as group:
                failure = _first(group)
    except KeyboardInterrupt:
        sys.stderr.write("emq demo: interrupted; everything it had started is stopped\n")
        return INTERRUPTED
    if failure is not None:
        sys.stderr.write(f"emq demo: {failure}\n")
        return WRONG if isinstance(failure, errors.InvalidSettings) else 1
    if json:
        sys.stdout.write(json_.dumps(report.to_dict()) + "\n")
    else:
        console.print(report.render())
    return 0 if report.verdict.ok else 1


def _stage() -> ModuleType:
    """Return the module that does the work. Its import takes a second, so it runs where `main` handles Ctrl-C."""
    try:
        from emq.demo import stage
    except ModuleNotFoundError as exc:
        raise errors.InvalidSettings(f"the demo needs the module {exc.name!r}: {extras.remedy('demo')}") from exc
    return stage


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _logged_from(level: str) -> Iterator[None]:
    log = logging.getLogger("emq")
    before = log.level
    log.setLevel(level.upper())
    try:
        yield
    finally:
        log.setLevel(before)


def _first(group: BaseExceptionGroup[errors.EMQError]) -> Exception:
    failure: BaseException = group
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    assert isinstance(failure, Exception)
    return failure
