"""Processes within one event loop, to be stopped, continued and killed like real ones.

Everything that a process does comes from the loop as a callback in the process's context: steps of its tasks, timers,
wake-ups. While it is stopped these are held, in order; so it executes nothing at all, and time passes all the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from support.simulation.breaking import TASKS, Breaks
from support.virtual import VirtualLoop

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """Attributes:
    name: for error messages.
    stopped: nothing of it runs.
    breaks: the errors at awaits of the tasks that its loops start.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.held: list[asyncio.Handle] = []
        self.breaks: Breaks | None = None
        self._context = contextvars.copy_context()
        self._context.run(_process.set, self)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as a task of this process; everything that it starts belongs to the process as well."""
        return asyncio.get_running_loop().create_task(work, context=self._context)

    def stop(self) -> None:
        """Stop the process, like SIGSTOP; without an end, like SIGKILL."""
        self.stopped = True

    def wake(self, asleep_s: float) -> None:
        """Wake the process like a machine after its sleep: its timers stood still, and its clock did not."""
        if self.stopped:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            self.held = loop.shift(self, self.held, asleep_s)
            self.go_on()

    def go_on(self) -> None:
        """Continue the process, like SIGCONT: timers that ran out in the meantime fire now."""
        if self.stopped:
            self.stopped = False
            held, self.held = self.held, []
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.run_held(held)


def process_of(handle: asyncio.Handle) -> Process | None:
    """Return the process to which a callback of the loop belongs; None if it belongs to no process."""
    found: Process | None = handle._context.get(_process)  # type: ignore[attr-defined]
    return found


def _is_own(timer: asyncio.Handle) -> bool:
    """Whether the machine's own time makes it run out, and not that of what is on its way to the machine."""
    module = getattr(timer._callback, "__module__", None) or ""  # type: ignore[attr-defined]
    return not module.startswith("emq.allocation.memory")


_MANY_TIMERS, _MANY_CANCELLED = 100, 0.5
"""As asyncio's own loop: above so many timers, with more than this share of them cancelled, it drops the cancelled."""


class SimulatedLoop(VirtualLoop):
    """A virtual loop that looks whose callback it runs.

    It never asks the machine for events, because none come: whatever is outside the simulation blocks. What it runs,
    and in which order, is the same as of a `VirtualLoop`.

    Attributes:
        on_step: is told of each callback before it runs.
    """

    on_step: Callable[[asyncio.Handle], None] | None = None

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:  # type: ignore[attr-defined]
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # one thread runs at a time: see `lockstep`

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.get("context")
        process = (_process.get() if context is None else context.get(_process)) if _name(coro) in TASKS else None
        if process is not None and process.breaks is not None:
            task = super().create_task(process.breaks.run(coro), **options)
            task.add_done_callback(lambda _: coro.close())  # it may have been cancelled before its first step
            return task
        return super().create_task(coro, **options)

    def _run_once(self) -> None:
        """Let time jump to the next timer if nothing is ready, then run what is ready by now."""
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers = self._live_timers()
        virtual = self._virtual
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            virtual.select(_nothing, max(0.0, timers[0]._when - virtual.now) if timers else None)  # type: ignore[attr-defined]
        end = virtual.now + self._clock_resolution  # type: ignore[attr-defined]
        while timers and timers[0]._when < end:  # type: ignore[attr-defined]
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            if self.on_step is not None:
                self.on_step(handle)
            process = handle._context.get(_process)  # type: ignore[attr-defined]
            if process is not None and process.stopped:
                process.held.append(handle)
            else:
                handle._run()

    def _live_timers(self) -> list[asyncio.TimerHandle]:
        """Return the heap of timers, of which the first is not cancelled."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        cancelled: int = self._timer_cancelled_count  # type: ignore[attr-defined]
        if len(timers) > _MANY_TIMERS and cancelled / len(timers) > _MANY_CANCELLED:
            for timer in timers:
                timer._scheduled = not timer._cancelled  # type: ignore[attr-defined]
            timers[:] = [timer for timer in timers if not timer._cancelled]  # type: ignore[attr-defined]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0]._cancelled:  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        return timers

    def shift(self, process: Process, held: list[asyncio.Handle], by_s: float) -> list[asyncio.Handle]:
        """Let the timers of a process run out later, also those that are held; returns what is held besides."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        mine = [timer for timer in timers if timer._context.get(_process) is process]  # type: ignore[attr-defined]
        late = [handle for handle in held if isinstance(handle, asyncio.TimerHandle) and _is_own(handle)]
        for timer in (*filter(_is_own, mine), *late):
            timer._when += by_s  # type: ignore[attr-defined]
        for timer in late:
            timer._scheduled = True  # type: ignore[attr-defined]
            timers.append(timer)
        heapq.heapify(timers)
        return [handle for handle in held if handle not in late]

    def run_held(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]


def _nothing(timeout: float | None) -> list[Any]:
    """What a selector finds that knows of no files."""
    return []


def _name(coro: Any) -> str:
    return getattr(coro, "__qualname__", "")
