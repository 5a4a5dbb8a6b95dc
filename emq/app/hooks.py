"""Hooks: functions that an app calls when it opens and closes, or starts and stops as a host."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import NamedTuple

from emq.app.daemon_threads import DaemonThreads
from emq.runtime import errors

SLOW_S = 10.0
"""Seconds after which a hook that has not returned is named in the log."""

log = logging.getLogger(__name__)

HookFunction = Callable[[], object]
"""A function without parameters: plain, `async def`, or `async def` with one `yield`."""


class Hook(NamedTuple):
    """Attributes:
    function: called without arguments.
    at_start: called at the start; else at the end.
    host_only: belongs to the time in which the app is a host; else to the time in which it is open.
    """

    function: HookFunction
    at_start: bool
    host_only: bool

    def __str__(self) -> str:
        name = f"{getattr(self.function, '__module__', '?')}.{getattr(self.function, '__qualname__', self.function)}"
        return f"the {'start-up' if self.at_start else 'shutdown'} hook {name}"


class Hooks:
    """The hooks of one app. Those of one kind (`host_only` or not) start and stop together.

    Start-up hooks run one after another, in the order in which they were added. Shutdown hooks run in the reverse
    order. The rest of a start-up hook that has yielded runs among them, at the hook's own place.
    """

    def __init__(self) -> None:
        self._hooks: list[Hook] = []
        self._started: set[bool] = set()
        self._yielded: dict[Hook, AsyncGenerator[object, None]] = {}

    def add(self, function: HookFunction, *, at_start: bool, host_only: bool) -> None:
        """Add a hook.

        Raises:
            InvalidSettings: `function` cannot be called without arguments, or is a generator that cannot be a hook.
        """
        hook = Hook(function, at_start, host_only)
        if not callable(function):
            raise errors.InvalidSettings(f"a hook is {function!r}; decorate a function without parameters")
        if inspect.isgeneratorfunction(function) or (inspect.isasyncgenfunction(function) and not at_start):
            raise errors.InvalidSettings(f"{hook} has a `yield`; only a start-up hook that is `async def` may have one")
        if not _fits(function):
            raise errors.InvalidSettings(
                f"{hook} cannot be called without arguments; give it no parameters, or defaults for all of them"
            )
        if hook in self._hooks:
            raise errors.InvalidSettings(f"{hook} is there already; add it once")
        self._hooks.append(hook)

    async def start(self, *, host_only: bool) -> None:
        """Run the start-up hooks of a kind. If one fails, or the call is cancelled, `stop` those that had begun.

        Raises:
            HookFailed: a hook raised an exception.
        """
        self._started.add(host_only)
        hook = None
        try:
            for hook in self._hooks:
                if hook.at_start and hook.host_only is host_only:
                    await self._call(hook)
        except BaseException as exc:
            await self.stop(host_only=host_only, failed=True)
            if hook is None or not isinstance(exc, Exception):
                raise
            raise errors.HookFailed(f"{hook} failed: {_described(exc, hook.function)}") from exc

    async def stop(self, *, host_only: bool, failed: bool = False) -> None:
        """Run the shutdown hooks of a kind, if its start was begun. Each runs even if another one failed.

        An exception of a hook is logged and not raised. A cancellation, or Ctrl-C, ends the hook that runs; the others
        still run before this call raises it.

        Args:
            failed: the start failed, so hooks may fail as well; log their errors on one line.
        """
        if host_only not in self._started:
            return
        self._started.discard(host_only)
        ending: BaseException | None = None
        for hook in reversed(self._hooks):
            if hook.host_only is not host_only or (hook.at_start and hook not in self._yielded):
                continue
            try:
                await self._call(hook)
            except Exception as exc:
                shown = None if failed else exc
                log.log(
                    logging.WARNING if failed else logging.ERROR,
                    "%s failed: %s",
                    _ending(hook),
                    _described(exc, hook.function),
                    exc_info=shown,
                )
            except BaseException as exc:
                ending = exc
        if ending is not None:
            raise ending

    async def _call(self, hook: Hook) -> None:
        with _named_if_slow(_ending(hook) if hook in self._yielded else str(hook)):
            await self.run(functools.partial(self._step, hook))

    async def run(self, step: Callable[[], Awaitable[object]]) -> object:
        """Run one step of a hook; the test harness puts its own in this place."""
        return await step()

    async def _step(self, hook: Hook) -> None:
        if hook in self._yielded:
            generator = self._yielded.pop(hook)
            if await anext(generator, self) is not self:
                await generator.aclose()
                raise RuntimeError("it yielded twice; let it yield once")
        elif inspect.isasyncgenfunction(hook.function):
            generator = hook.function()
            if await anext(generator, self) is self:
                raise RuntimeError("it did not yield; let it yield once")
            self._yielded[hook] = generator
        elif inspect.iscoroutinefunction(hook.function):
            await hook.function()
        else:
            call = functools.partial(contextvars.copy_context().run, hook.function)
            result = await asyncio.get_running_loop().run_in_executor(DaemonThreads("emq-hook"), call)
            if inspect.isawaitable(result):  # as of a lambda around a coroutine function
                await result


def _fits(function: HookFunction) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # a few built-in functions have no signature
        return True
    return True


def _ending(hook: Hook) -> str:
    return f"the end of {hook}" if hook.at_start else str(hook)


@contextlib.contextmanager
def _named_if_slow(hook: str) -> Iterator[None]:
    timer = asyncio.get_running_loop().call_later(
        SLOW_S, log.warning, "%s has been running for %g s; everything else waits for it", hook, SLOW_S
    )
    try:
        yield
    finally:
        timer.cancel()


def _described(exc: BaseException, function: HookFunction) -> str:
    """Return the exception on one line, with the place in the hook's own file from which it came."""
    frames = traceback.extract_tb(exc.__traceback__)
    file = inspect.unwrap(function).__code__.co_filename if hasattr(inspect.unwrap(function), "__code__") else ""
    frame = next((f for f in reversed(frames) if f.filename == file), None)
    text = " ".join(f"{type(exc).__name__}: {exc}".split())
    return text if frame is None else f"{text} ({frame.filename}, line {frame.lineno})"
