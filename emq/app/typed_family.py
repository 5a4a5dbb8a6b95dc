"""A family that a program declares, with the type of its payloads, so that type checkers see a wrong one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from emq.calls.encoding import Payload
from emq.producer.options import PublishManyOptions, PublishOptions
from emq.storage.message import Message

P = TypeVar("P", bound=Payload)
More = ParamSpec("More")
Result = TypeVar("Result")


class TypedFamily(Generic[P]):
    """What `App.family` returns: publishes to the topics of a family, and binds their handler.

    Attributes:
        name: the family's name, such as `orders.*`.
    """

    def __init__(
        self,
        name: str,
        publish: Callable[..., Awaitable[str]],
        publish_many: Callable[..., Awaitable[list[str]]],
        bind: Callable[[Callable[..., Any]], object],
    ) -> None:
        self.name = name
        self._publish = publish
        self._publish_many = publish_many
        self._bind = bind

    def topic(self, name: str) -> str:
        """Return the name of a topic of the family: its prefix, and `name` behind it."""
        return self.name[:-1] + name

    async def publish(self, name: str, payload: P, **options: Unpack[PublishOptions]) -> str:
        """Publish one message; return its id. The first one to a new name makes the topic.

        Args:
            name: the topic's name without the family's prefix.
            options: as for `App.publish`.

        Raises:
            FamilyFull: the name is new, and the family has as many topics as it may have.
            InvalidTopic: the name is too long for the family, or has other characters than it takes.
            TopicClosed: the family drains.
            Others as for `App.publish`.
        """
        return await self._publish(self.topic(name), payload, **options)

    async def publish_many(self, name: str, payloads: Iterable[P], **options: Unpack[PublishManyOptions]) -> list[str]:
        """Publish many messages to one topic; return their ids. See `publish` and `App.publish_many`."""
        return await self._publish_many(self.topic(name), payloads, **options)

    @overload
    def handler(
        self, function: Callable[Concatenate[P, More], Result], /
    ) -> Callable[Concatenate[P, More], Result]: ...

    @overload
    def handler(
        self, function: Callable[Concatenate[Message, More], Result], /
    ) -> Callable[Concatenate[Message, More], Result]: ...

    def handler(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        """Decorate the function that handles the messages of all topics of the family, as `App.handler` does.

        Its first parameter is the payload, or the message. Batches need `@app.handler(family.name, batch_size=...)`.
        """
        self._bind(function)
        return function
