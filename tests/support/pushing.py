"""Endpoints of one topic, `t`, and a pusher that delivers to them."""

from __future__ import annotations

import asyncio
from typing import Any

from emq.storage.message import Message
from emq.topics import model
from emq_push.addresses import AddressFilter
from emq_push.attempts import Attempt
from emq_push.endpoint import Endpoint
from emq_push.pusher import Pusher

ANY = AddressFilter(("*",))
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def topic(**attributes: str) -> model.Topic:
    """Return the topic with these attributes of push; `__` in a name stands for a dot."""
    named = {f"push.{name.replace('__', '.')}": value for name, value in attributes.items()}
    return model.Topic("t", 10.0, options=model.TopicOptions(attributes=named))


def endpoint(url: str = "http://shop.example/", **attributes: str) -> Endpoint:
    found = Endpoint.from_topic(topic(url=url, **attributes))
    assert found is not None
    return found


def message(id_: str = "id1", payload: bytes = b"{}", **fields: Any) -> Message:
    return Message(id_, payload, topic="t", **fields)


async def deliver(found: Endpoint, *messages: Message, **options: Any) -> list[BaseException | None]:
    """Deliver messages at once, or one; return their failures.

    Args:
        options: of the pusher.
    """
    async with Pusher({"t": found}.get, **{"addresses": ANY, **options}) as push:
        return await asyncio.gather(*map(push, messages or (message(),)), return_exceptions=True)


class Attempts:
    """Attributes:
    all: the records of attempts.
    """

    def __init__(self) -> None:
        self.all: list[Attempt] = []

    def attempted(self, attempt: Attempt) -> None:
        self.all.append(attempt)
