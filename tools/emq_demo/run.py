"""`emq demo`: real flights to sixteen airlines, a flood, three bad endpoints, and a proof; in under a minute."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json as json_
import logging
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from emq.runtime import errors, extras

if TYPE_CHECKING:
    from emq_demo.page import Page
    from emq_demo.places import Place

DEFAULT_SECONDS = 36.0

_PIPE_WIDTH = 100
"""Columns of the report where standard output is not a terminal."""

STAY_S = 600.0
"""Seconds for which the dashboard stays up after a run in a terminal, if nobody ends it before."""

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
    stay: bool | None = None,
    log_level: str = "error",
) -> int:
    """Run the demonstration and print its outcome.

    Without `json`, the dashboard of the run is served meanwhile, and its address is printed at the begin and the end.

    Args:
        store: "sqlite" (embedded), "redis" (the demonstration starts a server for itself) or "memory".
        json: print one JSON object, and nothing else, on standard output.
        seconds: length of both halves together, 4 to 600; set-up and proof take some seconds more.
        days: number of days of flights that each half replays, 1 to 365; None for one day a second. With more days
            a second, the figures would describe the machine, not EMQ.
        keep: a new or empty directory that keeps store and trail; None for a temporary one.
        stay: True to go on after the outcome is printed, until Enter or Ctrl-C: the remaining messages are delivered,
            and the dashboard is served. False to end; None to go on in a terminal only, for at most `STAY_S`.
        log_level: least level that EMQ logs meanwhile. Below "error", the log has each delivery that fails on purpose.

    Returns:
        The exit status: 0 if every promise held, 1 if one broke or the demonstration could not run (the reason is
        on standard error), 2 if an argument is wrong or a package is missing, 130 after Ctrl-C.
    """
    console = Console(quiet=json, highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    most_s = STAY_S if stay is None else None
    if stay is None:
        stay = sys.stdin.isatty() and sys.stdout.isatty()
    console.print("EMQ demo: loading a year of flights, starting the airlines' receivers ...", style="dim")

    def play() -> int:
        stage = _module("stage")
        with _module("places").new(store, keep) as place:
            report = stage.perform(console, place, store, seconds, days, live=not json)
            if json:
                sys.stdout.write(json_.dumps(report.to_dict()) + "\n")
                return 0 if report.verdict.ok else 1
            console.print(report.render())
            if stay and place.outlives_app:
                tell = functools.partial(_tell, console, most_s)
                _module("afterwards").go_on(place, report.page, tell, most_s)
            elif report.page is not None:
                _tell_how(console, place, report.page)
            return 0 if report.verdict.ok else 1

    return _guarded(play, log_level)


def resume(directory: Path, *, log_level: str = "error") -> int:
    """Go on with a run that was kept, and serve its dashboard, until Enter or Ctrl-C; return the exit status."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)

    def play() -> int:
        with _module("places").kept(directory) as place:
            _module("afterwards").go_on(place, None, functools.partial(_tell, console, None))
        return 0

    return _guarded(play, log_level)


def _guarded(play: Callable[[], int], log_level: str) -> int:
    """Run a part of the demonstration; return its exit status. A failure is printed in one line."""
    failure: Exception | None = None
    status = 0
    try:
        with _interrupted_by_sigterm(), _logged_from(log_level):
            try:
                status = play()
            except* errors.EMQError as group:
                failure = _first(group)
    except KeyboardInterrupt:
        sys.stderr.write("emq demo: interrupted; everything it had started is stopped\n")
        return INTERRUPTED
    if failure is not None:
        sys.stderr.write(f"emq demo: {failure}\n")
        return WRONG if isinstance(failure, errors.InvalidSettings) else 1
    return status


def _tell(console: Console, most_s: float | None, page: Page) -> None:
    until = "until Enter or Ctrl-C here" if most_s is None else f"for {most_s / 60:g} minutes, or until Enter here"
    console.print(
        f"The run goes on: the messages left are delivered. Watch it, {until}, at", style="bold", soft_wrap=True
    )
    console.print(page.link, soft_wrap=True)


def _tell_how(console: Console, place: Place, page: Page) -> None:
    """Print how to watch a run; the page has ended with the run."""
    if place.kept is not None and place.outlives_app:
        command = f"{_program()} demo --resume {shlex.quote(os.path.relpath(place.kept))}"
        console.print(f"Watch this run: {command} goes on with what it left, and serves it at", soft_wrap=True)
        console.print(page.link, soft_wrap=True)
        return
    on_disk = "" if place.outlives_app else " on the store sqlite or redis,"
    console.print(
        f"Its page was at http://{page.address}/ until now. For later runs,{on_disk} {_program()} demo --stay keeps it "
        f"up; {_program()} demo --keep DIR, and later --resume DIR, shows a run again.",
        soft_wrap=True,
    )


def _program() -> str:
    """Return what the user types for `emq`."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "emq" and shutil.which("emq") is None else "emq"


def _module(name: str) -> ModuleType:
    """Import a module that does the work. This takes a second, so call it where `_guarded` handles Ctrl-C."""
    try:
        return importlib.import_module(f"emq_demo.{name}")
    except ModuleNotFoundError as exc:
        raise errors.InvalidSettings(f"the demo needs the module {exc.name!r}: {extras.remedy('demo')}") from exc


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
