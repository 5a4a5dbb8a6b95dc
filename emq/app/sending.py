"""Messages of many topics, each on its way through the middleware of an app."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from emq.calls.middleware import PublishChain
from emq.producer import Producer
from emq.producer.outcomes import Outcome, in_doubt, unsent
from emq.producer.outgoing import Outgoing
from emq.runtime import errors

REFUSED = (errors.InvalidMessage, errors.InvalidTopic, errors.UnknownTopic, errors.TopicClosed)
"""Errors of a message itself: later messages of its topic go on. After any other error they would overtake it."""


async def each(chain: PublishChain, producer: Producer, messages: Iterable[Outgoing]) -> list[Outcome]:
    """Publish messages as `Producer.send` does, each by itself through the middleware.

    The messages of one topic go one after another, so that none overtakes another; those of different topics go at the
    same time. An error of a middleware that is not an `EMQError` is the outcome `OutcomeUnknown`.
    """
    messages = list(messages)
    outcomes: dict[int, Outcome] = {}

    async def in_order(places: list[int]) -> None:
        failure: errors.EMQError | None = None
        for i in places:
            outcomes[i] = outcome = await _one(chain, producer, messages[i]) if failure is None else unsent(failure)
            if isinstance(outcome, errors.EMQError) and not isinstance(outcome, REFUSED):
                failure = outcome

    by_topic: dict[str, list[int]] = {}
    for i, m in enumerate(messages):
        by_topic.setdefault(str(getattr(m, "topic", "")), []).append(i)
    await asyncio.gather(*map(in_order, by_topic.values()))
    return [outcomes[i] for i in range(len(messages))]


async def _one(chain: PublishChain, producer: Producer, m: Outgoing) -> Outcome:
    async def send(topic: str, payload: bytes | str, *, message_id: str | None = None, **options: Any) -> str:
        [outcome] = await producer.send([Outgoing(topic, payload, message_id, **options)])
        if isinstance(outcome, errors.EMQError):
            raise outcome
        return outcome

    if not isinstance(m, Outgoing):
        [outcome] = await producer.send([m])  # which refuses it
        return outcome
    options = m._asdict()
    topic, payload = options.pop("topic"), options.pop("payload")
    try:
        return await chain.one("publish", send, None)(topic, payload, message_id=options.pop("id"), **options)
    except errors.EMQError as exc:
        return exc
    except Exception as exc:
        return in_doubt(exc)
