"""An app in an event loop of its own, in a daemon thread, for callers in other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import selectors
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from emq.app.app import App
from emq.app.daemon_threads import DaemonThreads
from emq.runtime import errors

T = TypeVar("T")

CLOSE_S = 5.0
"""Most seconds for which closing waits for calls under way, and again for the app to close."""


class _Call(Generic[T]):
    """One call of another thread.

    States are those of its future: *pending* until the app is open, then *running*; a caller that gives up a pending
    call cancels it, so that it never begins.
    """

    __slots__ = ("context", "function", "future", "task")

    def __init__(self, function: Callable[[App], Awaitable[T]]) -> None:
        self.function = function
        self.context = contextvars.copy_context()  # for context variables of traces and logs
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.task: asyncio.Task[None] | None = None


class Background:
    """Runs an app for other threads; belongs to the process that made it.

    The app opens with the first call. If it cannot, that call fails, and the next one tries again.

    Args:
        app: an app that nobody else opens.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._loop.set_default_executor(DaemonThreads("emq-client-work"))
        self._opening: asyncio.Task[App] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._waiting: set[_Call[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="emq-client", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[App], Awaitable[T]], timeout_s: float | None, *, writes: bool) -> T:
        """Run `function` with the open app; return what it returns, raise what it raises.

        Args:
            timeout_s: most seconds to wait; None for no end.
            writes: whether an unknown outcome matters.

        Raises:
            OutcomeUnknown: no answer in time to a call that writes; the write may or may not happen.
            StoreUnavailable: no answer in time, and nothing was or will be applied.
            WrongState: the client closes.
        """
        call = _Call(function)
        self._waiting.add(call)
        try:
            try:
                self._loop.call_soon_threadsafe(self._begin, call)
            except RuntimeError:  # the loop is closed
                raise closed() from None
            return call.future.result(timeout_s)
        except TimeoutError:
            if call.future.done():
                return call.future.result()  # the call itself timed out, or came in this moment
            self._give_up(call)
            if call.future.cancelled():
                raise errors.StoreUnavailable(
                    f"could not open {self._app.place} within {timeout_s:g} s; nothing was sent"
                ) from None
            if not writes:
                raise errors.StoreUnavailable(f"no answer within {timeout_s:g} s") from None
            raise errors.OutcomeUnknown(
                f"no answer within {timeout_s:g} s, so it may or may not have happened; "
                "repeat a publish with the same message_id, which a topic with dedupe_s stores once"
            ) from None
        except BaseException:  # Ctrl-C, for one
            self._give_up(call)
            raise
        finally:
            self._waiting.discard(call)

    def close(self) -> None:
        """Wait for calls under way, `CLOSE_S` at most; then close the app, and end the thread."""
        self.abandon()
        self._thread.join(3 * CLOSE_S)

    def abandon(self) -> None:
        """Begin to close as `close` does, without waiting for anything; from any thread. Safe to repeat."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._begin_to_close)

    def forsake(self) -> None:
        """In a forked child: let go of the parent's objects, since its thread is not here."""
        # The two processes share one list of watched connections in the kernel. The child must never change that list.
        self._selector.close()

    # ------------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            try:
                self._loop.close()
            finally:
                self._end_calls()

    def _end_calls(self) -> None:
        """Answer the calls that the loop has not answered: they came too late, or did not end, or it broke."""
        for call in list(self._waiting):
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                call.future.set_exception(_unanswered() if call.future.running() else closed())

    def _begin(self, call: _Call[Any]) -> None:
        if self._closing is not None:
            call.future.set_exception(closed())
            return
        call.task = self._loop.create_task(self._answer(call), context=call.context)
        self._calls.add(call.task)
        call.task.add_done_callback(self._calls.discard)

    async def _answer(self, call: _Call[Any]) -> None:
        try:
            app = await self._opened()
            if not call.future.set_running_or_notify_cancel():
                return
            result = await call.function(app)
        except asyncio.CancelledError:
            if not call.future.done():
                call.future.set_exception(_unanswered())
            raise
        except BaseException as exc:
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # the caller has just given up
                call.future.set_exception(exc)
        else:
            call.future.set_result(result)

    async def _opened(self) -> App:
        if self._opening is None:
            self._opening = self._loop.create_task(self._app.__aenter__(), context=contextvars.Context())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None
            raise

    def _give_up(self, call: _Call[Any]) -> None:
        """Cancel a call whose caller has gone."""
        if call.future.cancel():
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: _Call[Any]) -> None:
        if call.task is not None:
            call.task.cancel()

    def _begin_to_close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())

    async def _close(self) -> None:
        try:
            if self._calls:
                _, late = await asyncio.wait(self._calls, timeout=CLOSE_S)
                for task in late:
                    task.cancel()
            if self._opening is not None:
                self._opening.cancel()
                await asyncio.wait([self._opening], timeout=CLOSE_S)
            leaving = self._loop.create_task(self._app.__aexit__(None, None, None))
            await asyncio.wait([leaving], timeout=CLOSE_S)  # `_run` cancels it then
        finally:
            self._loop.stop()


def closed() -> errors.WrongState:
    """Return the error of a call to a client that is closed."""
    return errors.WrongState("the Client is closed; make a new one")


def _unanswered() -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown("the client was closed before an answer came")
