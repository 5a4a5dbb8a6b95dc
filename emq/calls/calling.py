"""Calls a handler as its plan says."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from emq.calls import dependencies
from emq.calls.decoding import Decode
from emq.calls.dependencies import Argument, Needs, Recipes
from emq.calls.plan import Plan
from emq.runtime import errors
from emq.storage.message import Message

Call = Callable[[Any], Awaitable[object]]
"""Awaits a handler with a message, or with a list of messages."""

Invoke = Callable[[Argument, Any, dict[str, Any]], Awaitable[object]]
"""Awaits a handler with its first argument and those by name, for a message or the messages of a batch."""

InThread = Callable[[str, Callable[[], Any]], Awaitable[Any]]
"""Awaits a plain function without arguments in a thread, for a topic."""


def planned(
    plan: Plan, recipes: Recipes, function: Callable[..., Any], in_thread: InThread, *, is_async: bool, batched: bool
) -> Call:
    """Return the call of a handler whose plan is not direct."""
    decode, names = plan.decode, plan.messages
    if is_async and not batched and decode is not None and plan == Plan(decode):
        of_payload = decode
        # No coroutine of its own: the caller awaits that of the handler.
        return lambda message: function(of_payload(message))
    invoke: Invoke = _Asynchronous(function) if is_async else _Plain(function, in_thread)
    if plan.needs:
        invoke = _Dependent(plan.needs, recipes, function, in_thread, is_async=is_async)
    if batched:
        return _Batch(plan, invoke)

    def one(message: Message) -> Awaitable[object]:
        first = message if decode is None else decode(message)
        return invoke(message, first, dict.fromkeys(names, message))

    return one


async def finished(result: Any) -> object:
    """Return the result of a plain handler, after awaiting a coroutine.

    A lambda around a coroutine function, for instance, returns a coroutine that has not begun.

    Raises:
        TypeError: the handler returned a generator. None of the generator's code has run.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"the handler returned a generator ({result.__qualname__}), whose code has not run")
    return await result if inspect.isawaitable(result) else result


class _Asynchronous:
    """Calls a coroutine function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, argument: Argument, first: Any, named: dict[str, Any]) -> Awaitable[object]:
        awaitable: Awaitable[object] = self._function(first, **named)
        return awaitable


class _Plain:
    """Calls a plain function in a thread."""

    def __init__(self, function: Callable[..., Any], in_thread: InThread) -> None:
        self._function = function
        self._in_thread = in_thread

    async def __call__(self, argument: Argument, first: Any, named: dict[str, Any]) -> object:
        return await finished(await self._in_thread(_topic(argument), lambda: self._function(first, **named)))


class _Dependent:
    """Calls a function with its dependencies; in one thread, if the function and all of these are plain."""

    def __init__(
        self, needs: Needs, recipes: Recipes, function: Callable[..., Any], in_thread: InThread, *, is_async: bool
    ) -> None:
        self._needs = needs
        self._recipes = recipes
        self._function = function
        self._in_thread = in_thread
        self._is_async = is_async

    async def __call__(self, argument: Argument, first: Any, named: dict[str, Any]) -> object:
        topic, batched = _topic(argument), isinstance(argument, list)
        if not self._is_async and all(self._recipes.is_plain(recipe, batched) for _, recipe in self._needs):
            call = self._here(first, named)
            result = await self._in_thread(
                topic,
                lambda: dependencies.run_to_end(
                    dependencies.call_with(self._recipes, self._needs, argument, _here, call)
                ),
            )
            return await finished(result)
        run = functools.partial(self._in_thread, topic)
        invoke: Invoke = _Asynchronous(self._function) if self._is_async else _Plain(self._function, self._in_thread)
        return await dependencies.call_with(
            self._recipes, self._needs, argument, run, lambda made: invoke(argument, first, {**named, **made})
        )

    def _here(self, first: Any, named: dict[str, Any]) -> Callable[[Mapping[str, Any]], Awaitable[Any]]:
        async def call(made: Mapping[str, Any]) -> Any:
            return self._function(first, **named, **made)

        return call


async def _here(thunk: Callable[[], Any]) -> Any:
    """Call a plain function in the thread that asks."""
    return thunk()


def _topic(argument: Any) -> str:
    first = argument[0] if isinstance(argument, list) else argument
    return getattr(first, "topic", "")


class _Batch:
    """Calls a handler with the payloads of a batch. Messages with a misfit fail, and the others are handled."""

    def __init__(self, plan: Plan, invoke: Invoke) -> None:
        self._plan = plan
        self._invoke = invoke

    async def __call__(self, messages: list[Message]) -> object:
        plan = self._plan
        if plan.decode is None:
            return await self._invoke(messages, messages, dict.fromkeys(plan.messages, messages))
        fitting, payloads, misfits = _decoded(plan.decode, messages)
        if not misfits:
            return await self._invoke(messages, payloads, dict.fromkeys(plan.messages, messages))
        if fitting:
            named = dict.fromkeys(plan.messages, fitting)
            try:
                await self._invoke(fitting, payloads, named)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as failure:
                raise errors.PartialFailure({**_failures(failure, fitting), **misfits}) from failure
        raise errors.PartialFailure(misfits)


def _decoded(decode: Decode, messages: list[Message]) -> tuple[list[Message], list[Any], dict[str, Exception]]:
    """Return the messages whose payload fits, their payloads, and the errors of the others by identity."""
    fitting: list[Message] = []
    payloads: list[Any] = []
    misfits: dict[str, Exception] = {}
    for message in messages:
        try:
            payload = decode(message)
        except Exception as exc:  # a class may check its values with code of its own
            misfits[message.uid] = exc
        else:
            fitting.append(message)
            payloads.append(payload)
    return fitting, payloads, misfits


def _failures(failure: BaseException, messages: list[Message]) -> dict[str, Any]:
    """Return the errors of a batch that failed, by identity or id."""
    if isinstance(failure, errors.PartialFailure):
        try:
            return {**failure.failures}
        except Exception:  # a subclass without a dict of failures
            pass
    return {message.uid: failure for message in messages}
