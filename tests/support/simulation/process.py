"""Processes within one event loop, to be stopped, continued and killed like real ones.

Everything that a process does comes from the loop as a callback in the process's context: steps of its tasks, timers,
wake-ups. While it is stopped these are held, in order; so it executes nothing at all, and time passes all the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from typing import Any

from support.virtual import VirtualLoop

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """Attributes:
    name: for error messages.
    stopped: nothing of it runs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped = False
        self.held: list[asyncio.Handle] = []
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


def _run(handle: asyncio.Handle, run: Callable[[], None]) -> None:
    process = process_of(handle)
    loop: SimulatedLoop = handle._loop  # type: ignore[attr-defined]
    if loop.on_step is not None:
        loop.on_step(handle)
    if process is not None and process.stopped:
        process.held.append(handle)
    else:
        run()


def _is_own(timer: asyncio.Handle) -> bool:
    """Whether the machine's own time makes it run out, and not that of what is on its way to the machine."""
    module = getattr(timer._callback, "__module__", None) or ""  # type: ignore[attr-defined]
    return not module.startswith("emq.allocation.memory")


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        _run(self, super()._run)


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        _run(self, super()._run)


class SimulatedLoop(VirtualLoop):
    """A virtual loop that looks whose callback it runs.

    Attributes:
        on_step: is told of each callback before it runs.
    """

    on_step: Callable[[asyncio.Handle], None] | None = None

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        handle.__class__ = _Handle
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        handle.__class__ = _Handle
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        timer.__class__ = _Timer
        return timer

    def shift(self, process: Process, held: list[asyncio.Handle], by_s: float) -> list[asyncio.Handle]:
        """Let the timers of a process run out later, also those that are held; returns what is held besides."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        mine = [timer for timer in timers if timer._context.get(_process) is process]  # type: ignore[attr-defined]
        late = [handle for handle in held if isinstance(handle, _Timer) and _is_own(handle)]
        for timer in (*filter(_is_own, mine), *late):
            timer._when += by_s  # type: ignore[attr-defined]
        for timer in late:
            timer._scheduled = True  # type: ignore[attr-defined]
            timers.append(timer)
        heapq.heapify(timers)
        return [handle for handle in held if handle not in late]

    def run_held(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]
