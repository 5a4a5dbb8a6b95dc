"""Publishing to the queues of log topics: many messages in one round trip, routed again if their group was retired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from emq import errors, message
from emq.clock import Clock
from emq.producer.batcher import BATCH, Batcher, fitting
from emq.producer.partial_calls import raise_first
from emq.producer.queue_tails import Tails
from emq.producer.router import Route, Router
from emq.storage.answers import of_each
from emq.storage.durability import Durability
from emq.storage.log_store import LogStore, Put
from emq.trail import events
from emq.trail.sink import TrailSink

SEALED_TRIES = 5
"""Most tries to route a message whose group turns out to be retired."""

REOPENING_S = 0.05
"""Seconds added to the wait before each further try: groups that come back when a topic grows are opened a moment after
the catalog shows them."""


class _Single(NamedTuple):
    """An awaited publish that waits for its batch."""

    route: Route
    group: int
    priority: int
    body: bytes
    id: str
    key: str | None
    published_us: int


class QueueProducer:
    """Appends to queues."""

    def __init__(self, log: LogStore, router: Router, ids: message.IdSource, trail: TrailSink, clock: Clock) -> None:
        self._log = log
        self._router = router
        self._ids = ids
        self._trail = trail
        self._clock = clock
        self._batcher: Batcher[_Single, str] = Batcher(self._put, lambda single: len(single.body))
        self.tails = Tails(trail, clock)
        self.published = 0

    async def publish(
        self, route: Route, key: str | None, priority: int, body: bytes, message_id: str, published_us: int
    ) -> str:
        """Append one encoded message; publishes awaited at the same time share a round trip."""
        for attempt in range(SEALED_TRIES):
            group = self._router.group(route.topic, key)
            try:
                single = _Single(route, group, priority, body, message_id, key, published_us)
                return await self._batcher.send(single, route.topic.options.durability)
            except errors.QueueSealed:
                if attempt + 1 == SEALED_TRIES:
                    raise
            before, route = route, await self._rerouted(route, priority, attempt)
            if key is not None and route.topic.layout != before.topic.layout:
                body = message.with_layout(body, route.topic.layout)
        raise AssertionError("unreachable")

    async def _rerouted(self, before: Route, priority: int, attempt: int) -> Route:
        """Return the topic's newest route after one of its queues was found sealed."""
        await asyncio.sleep(attempt * REOPENING_S)
        await self._router.refresh()
        return _fit(before, await self._router.route(before.topic.name), priority)

    async def publish_many(
        self,
        name: str,
        bodies: Sequence[bytes],
        keys: Sequence[str | None],
        priority: int,
        headers: dict[str, str] | None,
        given_ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Append many messages, 500 at a time; returns their ids."""
        ids = [self._ids.next() for _ in bodies] if given_ids is None else list(given_ids)
        start, route = 0, await self._router.route(name)
        while start < len(bodies):
            end = start + fitting([*map(len, bodies[start : start + BATCH])])
            route = _fit(route, await self._router.route(name), priority)
            part = bodies[start:end], keys[start:end]
            outcomes = await self._publish_part(route, *part, priority, headers, ids[start:end])
            if any(outcomes):
                raise_first(outcomes, len(bodies), start)
            start = end
        return ids

    async def _publish_part(
        self,
        route: Route,
        bodies: Sequence[bytes],
        keys: Sequence[str | None],
        priority: int,
        headers: dict[str, str] | None,
        ids: Sequence[str],
    ) -> list[Exception | None]:
        """Append one batch; returns the error of each message, None for a stored message."""
        outcomes: list[Exception | None] = [None] * len(bodies)
        now_us = self._clock.now_us()
        layout = route.topic.layout
        encoded = [message.encode(i, b, k, now_us, headers, layout) for i, b, k in zip(ids, bodies, keys, strict=True)]
        todo: Sequence[int] = range(len(bodies))
        has_keys = keys.count(None) < len(keys)
        for attempt in range(SEALED_TRIES):
            places: dict[int, list[int]] = {}
            for i in todo:
                places.setdefault(self._router.group(route.topic, keys[i]), []).append(i)
            if route.topic.layout != layout:
                layout = route.topic.layout
                for i in todo:
                    if keys[i] is not None:
                        encoded[i] = message.with_layout(encoded[i], layout)
            puts = [
                _put(route, g, priority, [encoded[i] for i in at], has_keys and any(keys[i] is not None for i in at))
                for g, at in places.items()
            ]
            known = [self.tails.known(route.topic.name, group, priority) for group in places]
            sent_us = self._clock.now_us()
            answers = await of_each(self._log.put(puts, route.topic.options.durability), len(puts))
            todo = []
            for (group, at), tail, answer in zip(places.items(), known, answers, strict=True):
                if isinstance(answer, errors.QueueSealed) and attempt + 1 < SEALED_TRIES:
                    todo = [*todo, *at]
                elif isinstance(answer, errors.EMQError):
                    for i in at:
                        outcomes[i] = answer
                    self._doubt(route, group, priority, answer, [ids[i] for i in at])
                else:
                    self.tails.put(route.topic, group, priority, tail, answer, sent_us)
                    self._record(route, group, priority, answer, [ids[i] for i in at], [keys[i] for i in at], now_us)
            if not todo:
                break
            route = await self._rerouted(route, priority, attempt)
        return outcomes

    async def _put(self, singles: Sequence[_Single], durability: Durability) -> Sequence[str | Exception]:
        places: dict[str, list[int]] = {}
        for i, single in enumerate(singles):
            # A put is stored whole or not at all: if room may be short, each message gets a put of its own.
            alone = single.route.max_length is not None
            place = single.id if alone else single.route.queues[single.group][single.priority]
            places.setdefault(place, []).append(i)
        has_keys = any(single.key is not None for single in singles)
        # A put goes by its oldest route: if the queue refuses that route's layout, all of the put is routed again.
        firsts = [
            singles[min(at, key=lambda i: singles[i].route.topic.layout) if has_keys else at[0]]
            for at in places.values()
        ]
        puts = [
            _put(
                first.route,
                first.group,
                first.priority,
                [singles[i].body for i in at],
                has_keys and any(singles[i].key is not None for i in at),
            )
            for first, at in zip(firsts, places.values(), strict=True)
        ]
        outcome: list[str | Exception] = [single.id for single in singles]
        known = [self.tails.known(first.route.topic.name, first.group, first.priority) for first in firsts]
        sent_us = self._clock.now_us()
        answers = await of_each(self._log.put(puts, durability), len(puts))
        for first, at, tail, answer in zip(firsts, places.values(), known, answers, strict=True):
            if isinstance(answer, errors.EMQError):
                for i in at:
                    outcome[i] = answer
                self._doubt(first.route, first.group, first.priority, answer, [singles[i].id for i in at])
            else:
                self.tails.put(first.route.topic, first.group, first.priority, tail, answer, sent_us)
                ids, keys = [singles[i].id for i in at], [singles[i].key for i in at]
                self._record(first.route, first.group, first.priority, answer, ids, keys, first.published_us)
        return outcome

    def _record(
        self,
        route: Route,
        group: int,
        priority: int,
        offsets: Sequence[int],
        ids: Sequence[str],
        keys: Sequence[str | None],
        published_us: int,
    ) -> None:
        self.published += len(ids)
        if self._trail.enabled:
            now_us, topic = self._clock.now_us(), route.topic.name
            self._trail.record(events.Published(now_us, topic, group, ids, priority, published_us, offsets, keys))

    def _doubt(self, route: Route, group: int, priority: int, answer: errors.EMQError, ids: Sequence[str]) -> None:
        if self._trail.enabled and isinstance(answer, errors.OutcomeUnknown):
            self._trail.record(events.Doubted(self._clock.now_us(), route.topic.name, group, ids, priority))


def _fit(before: Route, route: Route, priority: int) -> Route:
    """Return `route` after checking that the message's priority means the same in it as in `before`.

    Raises:
        InvalidMessage: the topic was deleted and created again with other priorities.
    """
    topic, names = route.topic, before.topic.priorities
    if topic is not before.topic and (
        topic.is_sorted or topic.priorities[priority : priority + 1] != (names[priority],)
    ):
        raise errors.InvalidMessage(
            f"topic {topic.name!r} was created again and has no priority {names[priority]!r} any more; it has "
            f"{', '.join(topic.priorities) or 'none, since it is sorted'}"
        )
    return route


def _put(route: Route, group: int, priority: int, bodies: Sequence[bytes], keyed: bool) -> Put:
    queues, layout = route.queues[group], route.topic.layout if keyed else None
    if route.max_length is None:
        return Put(queues[priority], bodies, layout=layout)
    drop_oldest = route.topic.options.overflow == "drop_oldest"
    return Put(queues[priority], bodies, route.max_length, drop_oldest, queues, layout)
