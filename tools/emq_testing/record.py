"""The record of a harness: messages published and delivered, and attempts that failed.

`watch` lets it have the publishes, and adds to `UnknownTopic` what a test can do.
"""

from __future__ import annotations

import copy
import datetime
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from emq import Message
from emq.producer import checks
from emq.runtime import errors
from emq.trail import events

REMEDY = (
    "in a test, as in production, a topic is there once somebody makes it: declare a family in the app "
    "(`app.family(...)`), or create the topic in the test (`await app.create_topic(...)`)"
)
"""The note of an `UnknownTopic` in a test."""


class Published(NamedTuple):
    """A publish that returned.

    Attributes:
        id, topic, payload: those of the message.
        options: the other arguments: key, priority, delay, headers ...
    """

    id: str
    topic: str
    payload: Any
    options: Mapping[str, Any]


class Failure(NamedTuple):
    """An attempt that failed, or a message that went to the dead letters.

    Attributes:
        message: the message, with its attempt count at the time.
        reason: one line, as operators see it.
        error: the handler's exception, with its traceback; None if no handler was called (an expired message).
        again_at: when the message is tried again, in UTC; None for a dead letter.
    """

    message: Message
    reason: str
    error: BaseException | None
    again_at: datetime.datetime | None

    def __repr__(self) -> str:
        m = self.message
        then = f"again at {self.again_at:%Y-%m-%d %H:%M:%S}" if self.again_at else "dead"
        return f"<{m.topic} {m.id} attempt {m.attempt}: {self.reason}; {then}>"


class Record:
    """A `TrailSink` that keeps the events of interest to a test.

    Attributes:
        delivered: messages whose handler returned, in that order.
        failures: attempts whose handler raised, in the order in which they were settled.
        dead_letters: messages that went to the dead letters, in that order.
        published: publishes that returned, in that order.
        on_change: called after each event.
    """

    enabled = True

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.delivered: list[Message] = []
        self.failures: list[Failure] = []
        self.dead_letters: list[Failure] = []
        self.published: list[Published] = []
        self.on_change = on_change
        self._raised: dict[int, tuple[Message, BaseException]] = {}

    def raised(self, m: Message, error: BaseException) -> None:
        """Note that the handler failed with `error`; an event follows as soon as the store has recorded the outcome."""
        self._raised[id(m)] = (m, error)

    def record(self, event: events.Record) -> None:
        """See `TrailSink.record`."""
        if isinstance(event, (events.Retried, events.Dead)):
            _, error = self._raised.pop(id(event.message), (None, None))
            due_ms = event.due_ms if isinstance(event, events.Retried) else None
            again_at = None if due_ms is None else datetime.datetime.fromtimestamp(due_ms / 1000, datetime.UTC)
            failure = Failure(copy.copy(event.message), event.reason, error, again_at)
            if error is not None:
                self.failures.append(failure)
            if again_at is None:
                self.dead_letters.append(failure)
        self.on_change()

    def started(self, m: Message, epoch: int) -> None:
        """See `TrailSink.started`."""

    def settled(self, m: Message, now_us: int) -> None:
        """See `TrailSink.settled`."""
        self.delivered.append(copy.copy(m))
        self.on_change()

    def next_retry_ms(self, topic: str, now_ms: float) -> float | None:
        """Return the due time of the topic's next attempt after `now_ms`; None if there is none."""
        ahead = (f.again_at.timestamp() * 1000 for f in self.failures if f.again_at and f.message.topic == topic)
        return min((due_ms for due_ms in ahead if due_ms > now_ms), default=None)


def watch(producer: Any, record: Record) -> None:
    """Let the record have what the producer publishes; a change of a topic counts at once in virtual time."""
    publish, publish_many, schedule = producer.publish, producer.publish_many, producer.schedule

    async def known(call: Callable[..., Awaitable[Any]], topic: str, *arguments: Any, **options: Any) -> Any:
        producer._router._checked_at = 0.0  # by a real clock, so in virtual time its view would never be too old
        try:
            return await call(topic, *arguments, **options)
        except errors.UnknownTopic as exc:
            if REMEDY not in getattr(exc, "__notes__", ()):  # calls at the same time share an error
                exc.add_note(REMEDY)
            raise

    async def one(topic: str, payload: Any, **options: Any) -> Any:
        id_ = await known(publish, topic, payload, **options)
        record.published.append(Published(id_, topic, payload, _given(options)))
        return id_

    async def many(topic: str, payloads: Iterable[Any], **options: Any) -> Any:
        payloads = checks.listed(payloads)
        ids = await known(publish_many, topic, payloads, **options)
        told = (Published(i, topic, p, _given(options)) for i, p in zip(ids, payloads, strict=True))
        record.published.extend(told)
        return ids

    producer.publish, producer.publish_many = one, many
    producer.schedule = functools.partial(known, schedule)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
