"""Code of the user around each publish and around each call of a handler."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from emq.calls import encoding
from emq.calls.encoding import Payload
from emq.runtime import errors, inputs
from emq.storage.message import Message

Method = Literal["publish", "publish_many", "schedule"]


@dataclasses.dataclass(slots=True)
class PublishCall:
    """One call of `App.publish`, `publish_many` or `schedule`. A middleware may change all fields but `method`.

    Attributes:
        method: the method of the app.
        topic: name of the topic.
        payloads: the payloads, not encoded yet; one of them unless the method is `publish_many`.
        headers: those of all messages of the call.
        options: the other arguments that the caller gave, by name: key, priority, delay_ms, message_id ...
        content_type: how to encode objects; None for the app's way.
    """

    method: Method
    topic: str
    payloads: list[Payload]
    headers: dict[str, str]
    options: dict[str, Any]
    content_type: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class HandlerCall:
    """One call of a handler.

    Attributes:
        topic: name of the topic.
        messages: the messages of the call; one of them unless the handler takes batches.
        handler: the qualified name of the handler.
        pattern: what the handler is bound to.
    """

    topic: str
    messages: list[Message]
    handler: str
    pattern: str

    @property
    def message(self) -> Message:
        """The message, or the first of a batch."""
        return self.messages[0]

    def with_messages(self, messages: Iterable[Message]) -> HandlerCall:
        """Return the same call with other messages, such as copies with another payload."""
        return dataclasses.replace(self, messages=[*messages])


PublishNext: TypeAlias = Callable[[PublishCall], Awaitable[list[str]]]
HandleNext: TypeAlias = Callable[[HandlerCall], Awaitable[object]]


class Middleware:
    """Runs around each publish and each call of a handler; see docs/middleware.md. Override one method or both.

    The methods run in the event loop of the app, and calls of one middleware overlap.
    """

    async def publish(self, call: PublishCall, call_next: PublishNext) -> list[str]:
        """Publish, by `await call_next(call)`.

        Returns:
            The ids, one for each payload (one for a schedule), as `call_next` returns them.

        Raises:
            What the publish raises. An error raised here refuses the publish.
        """
        return await call_next(call)

    async def handle(self, call: HandlerCall, call_next: HandleNext) -> object:
        """Call the handler, by `await call_next(call)`.

        Returning means success, even without a call of `call_next`; the value does not matter.

        Raises:
            What the handler raises. Any error means what it means in a handler: `Retry`, `Reject`, `PartialFailure`, or
            another exception for a retry.
        """
        return await call_next(call)


def checked(middleware: object) -> Middleware:
    """Return a middleware.

    Raises:
        InvalidSettings: it is not an object of a subclass of `Middleware` whose methods are `async def`.
    """
    if isinstance(middleware, type):
        raise errors.InvalidSettings(f"middleware {middleware.__qualname__} is a class; give an object of it")
    if not isinstance(middleware, Middleware):
        raise errors.InvalidSettings(
            f"middleware {inputs.shown(middleware)} is of type {type(middleware).__name__}; derive it from "
            "emq.Middleware"
        )
    for name in ("publish", "handle"):
        if not inspect.iscoroutinefunction(getattr(middleware, name)):
            raise errors.InvalidSettings(f"{type(middleware).__qualname__}.{name} must be an `async def`")
    return middleware


def around_handler(
    middleware: Sequence[Middleware],
    core: Callable[[Any], Awaitable[object]],
    handler: str,
    pattern: str,
    batched: bool,
) -> Callable[[Any], Awaitable[object]]:
    """Return the call of a handler with all middleware around it; `core` itself if there is none for handlers."""
    around = [m for m in middleware if _overrides(m, "handle")]
    if not around:
        return core

    def innermost(call: HandlerCall) -> Awaitable[object]:
        if batched:
            return core(call.messages) if call.messages else _nothing()
        if len(call.messages) != 1:
            raise errors.InvalidSettings(
                f"middleware passed {len(call.messages)} messages to the handler {handler}, which takes one at a time"
            )
        return core(call.messages[0])

    chain: HandleNext = innermost
    for one in reversed(around):
        chain = _handling(one, chain)
    if batched:
        return lambda messages: chain(HandlerCall(messages[0].topic, [*messages], handler, pattern))
    return lambda message: chain(HandlerCall(message.topic, [message], handler, pattern))


class PublishChain:
    """All middleware around the publishing methods of an app.

    Args:
        content_type: how the app encodes objects.
    """

    def __init__(self, middleware: Sequence[Middleware], content_type: str) -> None:
        self._middleware = middleware
        self._content_type = content_type

    @classmethod
    def of(cls, middleware: Sequence[Middleware], content_type: str) -> PublishChain | None:
        """Return a chain of the middleware that is for publishes; None if there is none."""
        around = [m for m in middleware if _overrides(m, "publish")]
        return cls(around, content_type) if around else None

    def one(
        self, method: Method, send: Callable[..., Awaitable[str]], content_type: str | None
    ) -> Callable[..., Awaitable[str]]:
        """Return `send` (a method of the producer for one payload) with all middleware around it."""

        async def innermost(call: PublishCall) -> list[str]:
            if len(call.payloads) != 1:
                raise errors.InvalidMessage(f"middleware made {len(call.payloads)} payloads of the one of a {method}")
            body, headers = encoding.encoded(call.payloads[0], call.headers, call.content_type, self._content_type)
            return [await send(call.topic, body, headers=headers or None, **call.options)]

        async def through(topic: str, payload: Payload, **options: Any) -> str:
            [id_] = await self._through(innermost, _call(method, topic, [payload], options, content_type), 1)
            return id_

        return through

    def many(
        self, send: Callable[..., Awaitable[list[str]]], content_type: str | None
    ) -> Callable[..., Awaitable[list[str]]]:
        """Return `send` (`Producer.publish_many`) with all middleware around it."""

        async def innermost(call: PublishCall) -> list[str]:
            bodies, headers = encoding.encoded_many(call.payloads, call.headers, call.content_type, self._content_type)
            return await send(call.topic, bodies, headers=headers or None, **call.options)

        async def through(topic: str, payloads: Iterable[Payload], **options: Any) -> list[str]:
            if encoding.is_single(payloads):
                return await send(topic, payloads, **options)  # the producer refuses a single payload
            call = _call("publish_many", topic, [*payloads], options, content_type)
            return await self._through(innermost, call, len(call.payloads))

        return through

    async def _through(self, innermost: PublishNext, call: PublishCall, count: int) -> list[str]:
        chain = innermost
        for one in reversed(self._middleware):
            chain = _publishing(one, chain)
        ids: object = await chain(call)
        if not isinstance(ids, list) or len(ids) != count or not all(isinstance(id_, str) for id_ in ids):
            named = ", ".join(type(one).__qualname__ for one in self._middleware)
            raise errors.InvalidSettings(
                f"the middleware ({named}) returned {inputs.shown(ids)} from publish, and not the list of ids, one for "
                "each payload, that call_next returns"
            )
        return ids


def _call(
    method: Method, topic: str, payloads: list[Payload], options: dict[str, Any], content_type: str | None
) -> PublishCall:
    given = {name: value for name, value in options.items() if value is not None}
    headers = inputs.headers(given.pop("headers", None)) or {}
    return PublishCall(method, topic, payloads, headers, given, content_type)


async def _nothing() -> None:
    """Replaces the call of a handler if a middleware passes on no message."""


def _handling(middleware: Middleware, call_next: HandleNext) -> HandleNext:
    return lambda call: middleware.handle(call, call_next)


def _publishing(middleware: Middleware, call_next: PublishNext) -> PublishNext:
    return lambda call: middleware.publish(call, call_next)


def _overrides(middleware: Middleware, name: str) -> bool:
    return getattr(getattr(middleware, name), "__func__", None) is not getattr(Middleware, name)
