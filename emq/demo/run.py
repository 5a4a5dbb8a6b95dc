"""`emq demo`: real flights to sixteen airlines, a flood, three bad endpoints, and a proof; in under a minute."""

from __future__ import annotations

import contextlib
import json as json_
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
"""Columns of the report if there is no terminal."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def main(
    *,
    store: str = "sqlite",
    json: bool = False,
    seconds: float = DEFAULT_SECONDS,
    days: int | None = None,
    keep: str | Path | None = None,
) -> int:
    """Run the demonstration and print its outcome.

    Args:
        store: "sqlite" (embedded), "redis" (a server is started for it) or "memory".
        json: print one JSON object, and nothing else, on standard output.
        seconds: how long flights are replayed, both halves together, 4 to 600; set-up and proof come on top.
        days: how many days of flights each half replays, 1 to 365; None for one a second. More load per second
            than that measures the machine.
        keep: a new or empty directory that keeps store and trail; None for a temporary one.

    Returns:
        The exit status: 0 if every promise held, 1 if one broke or the demonstration could not run (the reason is
        on standard error), 130 after Ctrl-C.
    """
    failure: Exception | None = None
    console = Console(quiet=json, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print("EMQ demo: loading a year of flights, starting the airlines' receivers ...", style="dim")
    try:
        with _interrupted_by_sigterm():
            try:
                report = _stage().perform(console, store, seconds, days, keep, live=not json)
            except* errors.EMQError as group:
                failure = _first(group)
    except KeyboardInterrupt:
        sys.stderr.write("emq demo: interrupted; everything it had started is stopped\n")
        return INTERRUPTED
    if failure is not None:
        sys.stderr.write(f"emq demo: {failure}\n")
        return 1
    if json:
        sys.stdout.write(json_.dumps(report.to_dict()) + "\n")
    else:
        console.print(report.render())
    return 0 if report.verdict.ok else 1


def _stage() -> ModuleType:
    """The module that does the work. Imported late: it takes a second, and Ctrl-C may come at any moment."""
    try:
        from emq.demo import stage
    except ModuleNotFoundError as exc:
        raise errors.InvalidSettings(f"the demo needs the module {exc.name!r}: {extras.remedy('demo')}") from exc
    return stage


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let a polite kill clean up like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _first(group: BaseExceptionGroup[errors.EMQError]) -> Exception:
    failure: BaseException = group
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    assert isinstance(failure, Exception)
    return failure
