"""Calls a handler as its plan says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from emq import errors
from emq.calls.decoding import Decode
from emq.calls.plan import Plan
from emq.message import Message

Call = Callable[[Any], Awaitable[object]]
"""Awaits a handler with a message, or with a list of messages."""

Invoke = Callable[[str, tuple[Any, ...], dict[str, Any]], Awaitable[object]]
"""Awaits a handler of a topic with positional and named arguments."""


def planned(plan: Plan, invoke: Invoke, function: Callable[..., Any] | None, *, batched: bool) -> Call:
    """Return the call of a handler whose plan is not direct.

    Args:
        invoke: calls the handler, in a thread if the handler is a plain function.
        function: the handler itself if it is a coroutine function; None for a plain one.
    """
    if batched:
        return _Batch(plan, invoke)
    decode, names = plan.decode, plan.messages
    if function is not None and decode is not None and not names:
        of_payload, to_payload = function, decode
        # No coroutine of its own: the caller awaits that of the handler.
        return lambda message: of_payload(to_payload(message))

    def one(message: Message) -> Awaitable[object]:
        first = message if decode is None else decode(message)
        return invoke(message.topic, (first,), dict.fromkeys(names, message))

    return one


class _Batch:
    """Calls a handler with the payloads of a batch. Messages with a misfit fail, and the others are handled."""

    def __init__(self, plan: Plan, invoke: Invoke) -> None:
        self._plan = plan
        self._invoke = invoke

    async def __call__(self, messages: list[Message]) -> object:
        plan = self._plan
        if plan.decode is None:
            return await self._invoke(messages[0].topic, (messages,), dict.fromkeys(plan.messages, messages))
        fitting, payloads, misfits = _decoded(plan.decode, messages)
        if not misfits:
            return await self._invoke(messages[0].topic, (payloads,), dict.fromkeys(plan.messages, messages))
        if fitting:
            named = dict.fromkeys(plan.messages, fitting)
            try:
                await self._invoke(messages[0].topic, (payloads,), named)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as failure:
                raise errors.PartialFailure({**_failures(failure, fitting), **misfits}) from failure
        raise errors.PartialFailure(misfits)


def _decoded(decode: Decode, messages: list[Message]) -> tuple[list[Message], list[Any], dict[str, Exception]]:
    """Return the messages whose payload fits, their payloads, and the errors of the others by message id."""
    fitting: list[Message] = []
    payloads: list[Any] = []
    misfits: dict[str, Exception] = {}
    for message in messages:
        try:
            payload = decode(message)
        except Exception as exc:  # a class may check its values with code of its own
            misfits[message.id] = exc
        else:
            fitting.append(message)
            payloads.append(payload)
    return fitting, payloads, misfits


def _failures(failure: BaseException, messages: list[Message]) -> dict[str, Any]:
    """Return the errors of a batch that failed, by message id."""
    if isinstance(failure, errors.PartialFailure):
        try:
            return {**failure.failures}
        except Exception:  # a subclass without a dict of failures
            pass
    return {message.id: failure for message in messages}
