"""Binds handlers to topics, and runs plain functions in threads so that every handler can be awaited."""

from __future__ import annotations

import asyncio
import contextvars
import fnmatch
import functools
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypedDict

from emq.calls import calling, dependencies, middleware, plan
from emq.groups.receiver import Receiver
from emq.quota.places.threads import Threads
from emq.runtime import errors
from emq.runtime.inputs import is_pattern
from emq.storage.message import Message
from emq.topics.rules import validate_name

THREADS = 32
"""Most plain functions that run at once on a host, without hanging ones. Further calls wait; their messages count as in
flight."""

log = logging.getLogger(__name__)

OnExpired: TypeAlias = Callable[[Message], object]
"""Called with each message that expired, beside making a dead letter. Must return at once; may raise."""


class HandlerOptions(TypedDict, total=False):
    """Plain functions for messages that end without a start. They run on the event loop, and must return at once.

    Attributes:
        on_expired: called with each message whose time to live was over before its next attempt, once the message is a
            dead letter. After a crash at that moment it is not called.
        withdraws: called with each message of a log topic that the host reads. If it returns true, the message has
            ended: it never starts, and uses up no quota. It may be called again for the same message, after a crash or
            a move.
    """

    on_expired: OnExpired | None
    withdraws: Callable[[Message], object] | None


TELL_S = 10.0
"""Least seconds between two log lines about a function that fails."""


class Withdraws:
    """Calls a function that says whether a message is withdrawn. If the call fails, the message is not withdrawn."""

    def __init__(self, function: Callable[[Message], object]) -> None:
        self._function = function
        self._told_at = -math.inf

    def __call__(self, message: Message) -> bool:
        try:
            return bool(self._function(message))
        except (Exception, asyncio.CancelledError):  # such as the `result()` of a task that was cancelled
            if (now := time.monotonic()) >= self._told_at + TELL_S:
                self._told_at = now
                log.exception("`withdraws` of topic %r failed; the message %s may start", message.topic, message.uid)
            return False


class Binding(NamedTuple):
    """Attributes:
    pattern: a topic's name, or a shell pattern (`*`, `?`, `[...]`) over names.
    call: awaits the handler with a message, or with a list of them where `batch_size` is above 1.
    batch_size: most messages in one call.
    receiver: starts messages only when a consumer asks for them; None for handlers.
    on_expired: called with each message that expired; None for nothing.
    withdraws: called with each message that is read; None for nothing.
    """

    pattern: str
    call: Callable[[Any], Awaitable[object]]
    batch_size: int
    receiver: Receiver | None = None
    on_expired: OnExpired | None = None
    withdraws: Withdraws | None = None


class Handlers:
    """Handlers bound to patterns. Thousands of topics may share one handler; the most specific pattern wins.

    A name without wildcards wins over any pattern, a longer pattern over a shorter one, and among equals the one that
    was bound first.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._bindings: list[Binding] = []
        self._middleware: tuple[middleware.Middleware, ...] = ()
        self._bare: dict[str, tuple[calling.Call, str]] = {}  # call without middleware, and name, by pattern
        self._recipes = dependencies.Recipes()
        self._threads = Threads(threads, "emq-handler")

    def bind(
        self,
        pattern: str,
        function: Callable[[Any], Any],
        *,
        batch_size: int = 1,
        on_expired: OnExpired | None = None,
        withdraws: Callable[[Message], object] | None = None,
    ) -> None:
        """Bind a handler to the topics that match `pattern`. A plain function runs in a bounded pool of threads.

        The parameters of the function say what it is called with; see `emq.calls.plan`.

        Raises:
            InvalidSettings: `pattern` is not text, `batch_size` is below 1, a handler is bound to the same pattern
                already, `function` is neither an `async def` nor a plain function that takes one argument (generators
                cannot be handlers), EMQ cannot decode payloads to the type of its parameter, or `on_expired` or
                `withdraws` is not a plain function.
            InvalidTopic: `pattern` has no wildcards, and no topic can have this name.
        """
        check_pattern(pattern)
        if not callable(function) or _is_generator(function) or _is_generator(getattr(function, "__call__", None)):  # noqa: B004
            raise errors.InvalidSettings(
                f"the handler for {pattern!r} is {function!r}; bind an `async def` or a plain function without `yield`"
            )
        if not isinstance(batch_size, int) or batch_size < 1:
            raise errors.InvalidSettings(
                f"batch_size {batch_size!r} of the handler for {pattern!r} must be a whole number of at least 1"
            )
        for name, told in (("on_expired", on_expired), ("withdraws", withdraws)):
            if told is not None and (not callable(told) or _is_async(told) or _is_generator(told)):
                raise errors.InvalidSettings(
                    f"{name} {told!r} of the handler for {pattern!r} must be a plain function; "
                    "let it start what takes time, or what is async"
                )
        planned = plan.of_handler(function, pattern, self._recipes, batched=batch_size > 1)
        if any(b.pattern == pattern for b in self._bindings):
            raise errors.InvalidSettings(f"a handler is bound to {pattern!r} already; bind one handler to a pattern")
        self._bare[pattern] = self._call(function, planned, batch_size > 1), dependencies.shown(function)
        asked = None if withdraws is None else Withdraws(withdraws)
        bare = Binding(pattern, self._bare[pattern][0], batch_size, None, on_expired, asked)
        self._bindings.append(self._within(bare))
        self._bindings.sort(key=lambda b: (is_pattern(b.pattern), -len(b.pattern)))

    def told_of_expired(self, topic: str) -> OnExpired | None:
        """Return the function for expired messages of a topic, also while no handler takes its messages."""
        found = self.find(topic)
        return None if found is None else found.on_expired

    def bind_receiver(self, pattern: str, receiver: Receiver) -> None:
        """Bind a receiver to the topics that match `pattern`; raises as `bind` does. No middleware runs around it."""
        self.bind(pattern, receiver.handle)
        bare = Binding(pattern, receiver.handle, 1, receiver)
        self._bindings = [bare if b.pattern == pattern else b for b in self._bindings]

    def unbind_receiver(self, pattern: str, receiver: Receiver) -> None:
        """Remove the binding of a receiver whose topic was deleted."""
        if any(b.pattern == pattern and b.receiver is receiver for b in self._bindings):
            self._bindings = [b for b in self._bindings if b.pattern != pattern]
            del self._bare[pattern]

    @property
    def overrides(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """Functions to call instead of others that handlers depend on; change the dict as you like."""
        return self._recipes.overrides

    def run_within(self, around: Sequence[middleware.Middleware]) -> None:
        """Run middleware around each handler, also around those bound before; the first one is the outermost."""
        self._middleware = tuple(around)
        self._bindings = [self._within(b) for b in self._bindings]

    def _within(self, binding: Binding) -> Binding:
        if binding.receiver is not None:
            return binding
        core, name = self._bare[binding.pattern]
        call = middleware.around_handler(self._middleware, core, name, binding.pattern, binding.batch_size > 1)
        return binding._replace(call=call)

    def patterns(self) -> tuple[str, ...] | None:
        """Return the patterns of the bound handlers; None if the names of topics do not decide on their handlers."""
        return tuple(binding.pattern for binding in self._bindings)

    def find(self, topic: str) -> Binding | None:
        for binding in self._bindings:
            if binding.pattern == topic or fnmatch.fnmatchcase(topic, binding.pattern):
                return binding
        return None

    def close(self) -> None:
        """Let go of the threads. Functions that still run continue, and their outcome is ignored."""
        self._threads.close()

    def _call(self, function: Callable[..., Any], planned: plan.Plan, batched: bool) -> calling.Call:
        is_async = _is_async(function)
        if not planned.is_direct:
            return calling.planned(
                planned, self._recipes, function, self._in_thread, is_async=is_async, batched=batched
            )
        if is_async:
            return function

        async def in_thread(argument: Any) -> object:
            first = argument[0] if isinstance(argument, list) else argument
            result = await self._in_thread(getattr(first, "topic", ""), functools.partial(function, argument))
            return await calling.finished(result)

        return functools.wraps(function)(in_thread)

    async def _in_thread(self, topic: str, thunk: Callable[[], Any]) -> Any:
        return await self._threads.run(topic, functools.partial(_run, contextvars.copy_context()), thunk)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _is_generator(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _run(context: contextvars.Context, thunk: Callable[[], Any]) -> Any:
    try:
        return context.run(thunk)
    except StopIteration as exc:
        raise RuntimeError("the handler raised StopIteration") from exc  # no future can carry a StopIteration


def check_pattern(pattern: object) -> None:
    """Refuse a pattern that no topic's name can match, such as the function itself if `@app.handler` lacks parentheses.

    Raises:
        InvalidSettings: the pattern is not text.
        InvalidTopic: it has no wildcards, and no topic can have this name.
    """
    if callable(pattern):
        name = getattr(pattern, "__qualname__", pattern)
        raise errors.InvalidSettings(
            f'the handler {name} is bound to no topic; write @app.handler("orders"), or a pattern such as "orders.*"'
        )
    if not isinstance(pattern, str):
        raise errors.InvalidSettings(f"the pattern {pattern!r} of a handler is no text; give a topic or a pattern")
    if not is_pattern(pattern):
        validate_name(pattern)


def with_timeout(call: Callable[[Any], Awaitable[object]], timeout_s: float) -> Callable[[Any], Awaitable[object]]:
    """Wrap `call` so that it is cancelled after `timeout_s` seconds; the delivery then counts as failed."""

    async def timed(argument: Any) -> object:
        try:
            async with asyncio.timeout(timeout_s) as scope:
                return await call(argument)
        except TimeoutError as exc:
            if scope.expired():
                raise errors.Retry(f"the handler took longer than {timeout_s:g} s") from exc
            raise

    return timed
