"""Watches the publishes of an app in a test: records them, and adds to `UnknownTopic` what a test can do."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from emq.producer import checks
from emq.runtime import errors
from emq_testing.record import Published, Record

REMEDY = (
    "in a test, as in production, a topic is there once somebody makes it: declare a family in the app "
    "(`app.family(...)`), or create the topic in the test (`await app.create_topic(...)`)"
)
"""The note of an `UnknownTopic` in a test."""


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
