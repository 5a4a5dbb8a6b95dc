"""Finds a simulation that would never end, and names what runs all the time instead of letting it hang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import signal
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator

from support.simulation.process import SimulatedLoop, process_of

CPU_S = 300.0
"""Seconds of CPU time that one simulation may take; the longest take a tenth of it."""

LOOK_S = 5.0
"""Seconds of CPU time for which the steps are then counted, to name those that make up the endless loop."""

MOST_NAMED = 8
DEEPEST = 12


class Endless(KeyboardInterrupt):
    """A simulation does not end; the text names what spins. The event loop passes no other exception on."""


@contextlib.contextmanager
def bounded(loop: SimulatedLoop, cpu_s: float, look_s: float) -> Iterator[None]:
    """Raise `Endless` out of `loop` if the block takes more CPU time than that; only in the main thread of a process.

    Two kinds of endless loops are told apart by the steps (callbacks of the event loop) counted during `look_s`: steps
    that call each other again and again, and a single step that does not return.
    """
    steps: Counter[str] = Counter()

    def count(handle: asyncio.Handle) -> None:
        steps[_name(handle)] += 1

    def look(number: int, frame: types.FrameType | None) -> None:
        if loop.on_step is None:
            loop.on_step = count
            return
        raise Endless(f"no end after {cpu_s:g} s of CPU time: {_told(loop, steps, frame)}")

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, cpu_s, look_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def drop(loop: SimulatedLoop) -> None:
    """Close a loop whose tasks would not end, and end the tasks without it."""
    loop.set_exception_handler(lambda loop, context: None)
    loop.close()
    logging.disable()  # of what the tasks say to this
    for task in asyncio.all_tasks(loop):
        with contextlib.suppress(Exception):
            task.get_coro().close()
    logging.disable(logging.NOTSET)


def _told(loop: SimulatedLoop, steps: Counter[str], frame: types.FrameType | None) -> str:
    if len(steps) == 0:
        return "one step does not return:\n" + "".join(traceback.format_stack(frame)[-DEEPEST:])
    most = "\n".join(f"    {n} times {name}" for name, n in steps.most_common(MOST_NAMED))
    return f"{steps.total()} steps, now at {loop.time():.3f} s; most often\n{most}"


def _name(handle: asyncio.Handle) -> str:
    """Return process, task and the line at which the task waits; or the function that the loop calls."""
    callback: Callable[..., object] = handle._callback  # type: ignore[attr-defined]
    process, owner = process_of(handle), getattr(callback, "__self__", None)
    where = _waits_at(owner) if isinstance(owner, asyncio.Task) else getattr(callback, "__qualname__", repr(callback))
    return f"{'nobody' if process is None else process.name}: {where}"


def _waits_at(task: asyncio.Task[object]) -> str:
    """Return the functions that the task has called and not left, with the line at which each waits for the next."""
    lines: list[str] = []
    inner: object = task.get_coro()
    while inner is not None:
        if (driver := getattr(inner, "gi_frame", None)) is not None:  # of `Breaks.along`, which sends to the next
            inner = driver.f_locals.get("steps")
        if (frame := getattr(inner, "cr_frame", None)) is None:
            break
        lines.append(f"{frame.f_code.co_qualname} ({pathlib.Path(frame.f_code.co_filename).name}:{frame.f_lineno})")
        inner = getattr(inner, "cr_await", None)
    return f"{task.get_name()}, {' > '.join(lines)}"
