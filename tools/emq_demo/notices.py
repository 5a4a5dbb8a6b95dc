"""The notices of a run: what operators of the platform are told, and where they are pushed."""

from __future__ import annotations

from collections.abc import Sequence

from emq import Middleware
from emq.calls.middleware import PublishCall, PublishNext
from emq.storage.message import Message
from emq.topics.model import Topic, TopicOptions, split
from emq_demo.tally import Deliver
from emq_notices.notice import TOPIC, Notice, decode
from emq_notices.watching import AFTER

AFTER_S = 3
"""Seconds that a trouble must last; a platform would wait for minutes."""

LAG_S = 1.0
"""Seconds between two looks of the host for topics in trouble."""

QPS = 10


class Notices(Middleware):
    """Notes the notices of a run.

    Attributes:
        ids: of those whose publish returned.
        told: those that the operators' endpoint took, the first ones first.
    """

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.told: list[Notice] = []

    async def publish(self, call: PublishCall, call_next: PublishNext) -> list[str]:
        ids = await call_next(call)
        if call.topic == TOPIC:
            self.ids.update(ids)
        return ids

    async def deliver(self, message: Message, push: Deliver) -> None:
        """Push a notice to the operators' endpoint."""
        await push(message)
        self.told.append(decode(message.payload))


def telling(told: Sequence[Notice]) -> str:
    """Return the text of the first notice that names a cause, else of the first one; empty without notices."""
    first = [notice.text for notice in told if notice.cause] or [notice.text for notice in told] or [""]
    return first[0]


def topic(url: str) -> Topic:
    """Return the topic of notices, which go to a URL."""
    return split(Topic(TOPIC, QPS, options=TopicOptions(attributes={AFTER: str(AFTER_S), "push.url": url})))
