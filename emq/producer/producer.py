"""The producer: routes messages to groups and appends them, many in one round trip."""

from __future__ import annotations

import asyncio
import datetime
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from emq import errors, message
from emq.catalog import Catalog
from emq.durability import Durability
from emq.model import Kind, State, Topic
from emq.producer import lanes, slots
from emq.producer.times import Delay, due_ms_of
from emq.storage import Put, Store
from emq.trail.sink import NullTrail, TrailSink

if TYPE_CHECKING:
    from emq.schedule.spec import Schedule

BATCH = 500
"""Messages in one put."""

IN_FLIGHT = 2
"""Puts under way at once for awaited single publishes: the server works on one while the next is gathered."""

CATALOG_POLL_S = 1.0
"""How old the producer's picture of the catalog may be. It is corrected at once where the store finds it outdated."""


class _Route(NamedTuple):
    """A topic as the producer needs it: queue names by group and priority."""

    topic: Topic
    queues: list[list[str]]
    max_length: int | None


class _Single(NamedTuple):
    """An awaited publish that waits for its batch."""

    route: _Route
    group: int
    priority: int
    body: bytes
    id: str
    key: str | None
    published_us: int
    future: asyncio.Future[str]


class Producer:
    """Publishes to the topics of one environment. Belongs to one event loop; any number of tasks may share it.

    Messages without a key go to a topic's groups in turn, so that no group gets more than its share; those with a
    key go to the group that the key hashes to, so that one group sees all of them in order. In a sorted topic the key
    is the slot basis, and without one the content is.
    """

    def __init__(self, store: Store, catalog: Catalog, trail: TrailSink | None = None) -> None:
        self._log = store.log
        self._catalog = catalog
        self._trail = trail = trail or NullTrail()
        self._slots = slots.SlotProducer(store.sorted, trail)
        self._lanes = lanes.LaneProducer(store.lanes, trail, self._looked_up)
        self._ids = message.IdSource()
        self._routes: dict[str, _Route] = {}
        self._turns: dict[str, int] = {}
        self._version = -1
        self._checked_at = 0.0
        self._singles: list[_Single] = []
        self._flushing = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._put = 0

    @property
    def published(self) -> int:
        """Messages published so far."""
        return self._put + self._slots.published + self._lanes.published

    async def publish(
        self,
        topic: str,
        payload: bytes | str,
        *,
        key: str | None = None,
        priority: str | float | None = None,
        headers: Mapping[str, str] | None = None,
        delay_ms: float | None = None,
        delay: Delay | None = None,
        at: datetime.datetime | float | None = None,
        ttl_s: float | None = None,
        time_range_ms: int | None = None,
        merge_key: bytes | str | None = None,
    ) -> str:
        """Publish one message; returns its id once the store has it, as durably as the topic asks.

        Publishes awaited at the same time share a round trip. Times are by this machine's clock.

        Args:
            topic: its name.
            payload: up to the topic's `max_payload` bytes; text is encoded as UTF-8.
            key: messages of one key run one at a time, first deliveries in order. In a sorted topic, the slot basis.
            priority: one of the topic's; None for the middle one. For topics of kind priority, a number above 16.
            headers: small strings that travel along.
            delay_ms, delay, at: at most one of them: when it may start, in milliseconds from now; as a level's name, an
                enum member with such a name, or a timedelta; as a datetime with a time zone or seconds since the epoch.
                The fixed time of a topic of that kind, or the end of a range_merge's time range.
            ttl_s: seconds from when it is ready; what has not started by then is dead-lettered as `expired`. The
                topic's own counts if it is shorter.
            time_range_ms: for topics of kind range_merge: when it is due, from now.
            merge_key: for sorted topics with merge='key': what is merged; None for the payload.

        Raises:
            UnknownTopic: create the topic first.
            InvalidMessage: the payload is too large, the priority is not one of the topic's, a time is out of range ...
            TopicClosed: the topic is draining.
            TopicFull: the topic is at its `max_length`.
            StoreFull, StoreUnavailable: nothing was published; try again later.
            OutcomeUnknown: the message may or may not have been published.
        """
        route = await self._route(topic)
        found = route.topic
        body = _checked(found, payload)
        due_ms = due_ms_of(found, delay_ms, delay, at)
        if found.is_sorted:
            return await self._publish_sorted(
                found, body, priority, due_ms, time_range_ms, slots.Told(key, headers, ttl_s, merge_key)
            )
        _refuse_sorted_options(found, time_range_ms, merge_key)
        index = found.priority_index(priority)
        group = self._group(found, key)
        if due_ms is not None:
            m = self._delayed(found, body, key, index, headers, ttl_s, due_ms)
            return await self._lanes.publish(found, group, m, due_ms)
        id_, now_us = self._ids.next(), time.time_ns() // 1000
        sent_headers = dict(headers) if headers else None
        if ttl_s is None:
            encoded = message.encode(id_, body, key, now_us, sent_headers)
        else:
            ends_us = slots.expires_us(found, now_us / 1000, ttl_s, now_us)
            m = message.Message(id_, body, key, now_us, sent_headers, index, expires_us=ends_us)
            encoded = message.encode_retry(m)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._singles.append(_Single(route, group, index, encoded, id_, key, now_us, future))
        if self._flushing < IN_FLIGHT and (len(self._singles) == 1 or len(self._singles) >= BATCH):
            self._flushing += 1
            asyncio.get_running_loop().call_soon(self._flush_soon)
        return await future

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[bytes | str],
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        priority: str | float | None = None,
        scores: Sequence[float] | None = None,
        headers: Mapping[str, str] | None = None,
        delay_ms: float | None = None,
        at: datetime.datetime | float | None = None,
        ttl_s: float | None = None,
        time_range_ms: int | None = None,
    ) -> list[str]:
        """Publish messages to one topic in as few round trips as may be; returns their ids, in order.

        Atomic for each queue and batch of 500 (2,000 for a sorted topic), not as a whole: where an error is raised,
        `published` messages of it went in before. Repeating the call is safe if duplicates are harmless.

        Args:
            payloads: as for `publish`, and so are the others, which hold for all of them, except
            keys: one for each payload;
            scores: for sorted topics, a time (milliseconds since the epoch) or priority for each payload.

        Raises:
            As for `publish`.
        """
        payloads = list(payloads)
        _check_lengths(payloads, keys, scores)
        found = (await self._route(topic)).topic
        bodies = [_checked(found, payload) for payload in payloads]
        all_keys: Sequence[str | None] = keys if keys is not None else [key] * len(bodies)
        due_ms = due_ms_of(found, delay_ms, None, at)
        if found.is_sorted:
            if scores is None:
                scores = [slots.score_of(found, priority, due_ms, time_range_ms)] * len(bodies) if bodies else []
            else:
                scores = slots.checked_scores(found, scores)
            return await self._slots.publish_many(found, bodies, scores, all_keys, headers, ttl_s)
        _refuse_sorted_options(found, time_range_ms, scores)
        if due_ms is not None or ttl_s is not None:
            each = (
                self.publish(topic, b, key=k, priority=priority, headers=headers, delay_ms=delay_ms, at=at, ttl_s=ttl_s)
                for b, k in zip(bodies, all_keys, strict=True)
            )
            return list(await asyncio.gather(*each))
        index = found.priority_index(priority)
        sent_headers = dict(headers) if headers else None
        ids: list[str] = []
        for start in range(0, len(bodies), BATCH):
            part, part_keys = bodies[start : start + BATCH], all_keys[start : start + BATCH]
            ids += await self._put_part(found.name, part, part_keys, index, sent_headers)
        return ids

    async def schedule(
        self,
        topic: str,
        payload: bytes | str,
        schedule: Schedule,
        *,
        key: str | None = None,
        priority: str | float | None = None,
        headers: Mapping[str, str] | None = None,
        delay_ms: float | None = None,
        at: datetime.datetime | float | None = None,
        ttl_s: float | None = None,
    ) -> str:
        """Publish a message again and again; returns the schedule's id, by which it can be recalled.

        Its n-th occurrence is a message with the id `<schedule id>.<n>`, delivered and retried on its own.

        Args:
            schedule: when, as `emq.schedule.spec.create` makes it.
            delay_ms, at: at most one: when it begins; None for now.
            key, priority, headers, ttl_s: of each occurrence, as for `publish`.

        Raises:
            As for `publish`.
        """
        found = (await self._route(topic)).topic
        body = _checked(found, payload)
        begin_ms = due_ms_of(found, delay_ms, None, at)
        due_ms = schedule.first_ms(time.time_ns() // 1_000_000 if begin_ms is None else begin_ms)
        m = self._delayed(found, body, key, priority, headers, ttl_s, due_ms, schedule.encode())
        return await self._lanes.publish(found, self._group(found, key), m, due_ms)

    async def _publish_sorted(
        self,
        topic: Topic,
        body: bytes,
        priority: str | float | None,
        due_ms: int | None,
        range_ms: int | None,
        told: slots.Told,
    ) -> str:
        if topic.kind is Kind.PRIORITY and due_ms is not None:
            m = self._delayed(topic, body, told.key, priority, told.headers, told.ttl_s, due_ms)
            return await self._lanes.publish(topic, self._group(topic, told.key), m, due_ms)
        return await self._slots.publish(topic, body, slots.score_of(topic, priority, due_ms, range_ms), told)

    def _delayed(
        self,
        topic: Topic,
        body: bytes,
        key: str | None,
        priority: str | float | None,
        headers: Mapping[str, str] | None,
        ttl_s: float | None,
        due_ms: int,
        schedule: bytes | None = None,
    ) -> message.Message:
        by_number = topic.kind is Kind.PRIORITY
        return lanes.delayed(
            topic,
            self._ids.next(),
            body,
            key=key,
            priority=0 if topic.is_sorted else topic.priority_index(priority),
            headers=dict(headers) if headers else None,
            score=slots.score_of(topic, priority, None, None) if by_number else due_ms,
            ttl_s=ttl_s,
            due_ms=due_ms,
            schedule=schedule,
        )

    async def refresh(self) -> None:
        """Read the catalog's changes now."""
        changes = await self._catalog.changes_since(max(0, self._version))
        for name in changes.deleted:
            self._routes.pop(name, None)
        for topic in changes.changed:
            self._routes[topic.name] = _route(topic)
        self._version = changes.version
        self._checked_at = time.monotonic()

    # ---------------------------------------------------------------------------------------------------------- routing

    async def _route(self, name: str) -> _Route:
        now = time.monotonic()
        if self._version < 0:
            await self.refresh()
        elif now - self._checked_at > CATALOG_POLL_S:
            self._checked_at = now
            if await self._catalog.version() != self._version:
                await self.refresh()
        route = self._routes.get(name)
        if route is None:
            await self.refresh()
            route = self._routes.get(name)
        if route is None:
            await self._catalog.get(name)  # raises UnknownTopic with a hint
            raise errors.UnknownTopic(f"no topic {name!r}; create it first")
        if route.topic.state is State.DRAINING:
            raise errors.TopicClosed(f"topic {name!r} is draining and takes no new messages; resume it first")
        return route

    async def _looked_up(self, name: str) -> Topic:
        """The topic as the catalog has it now, for certain."""
        if await self._catalog.version() != self._version:
            await self.refresh()
        route = self._routes.get(name)
        if route is None:
            raise errors.UnknownTopic(f"topic {name!r} was deleted while a message was published to it")
        return route.topic

    def _group(self, topic: Topic, key: str | None) -> int:
        groups = topic.active_groups
        if groups == 1:
            return 0
        if key is not None:
            return zlib.crc32(key.encode()) % groups
        turn = self._turns.get(topic.name, 0)
        self._turns[topic.name] = turn + 1
        return turn % groups

    # ---------------------------------------------------------------------------------------------------------- batches

    async def _put_part(
        self,
        name: str,
        bodies: Sequence[bytes],
        keys: Sequence[str | None],
        priority: int,
        headers: dict[str, str] | None,
    ) -> list[str]:
        now_us = time.time_ns() // 1000
        ids = [self._ids.next() for _ in bodies]
        encoded = [message.encode(i, b, k, now_us, headers) for i, b, k in zip(ids, bodies, keys, strict=True)]
        todo: Sequence[int] = range(len(bodies))
        for attempt in range(SEALED_TRIES):
            route = await self._route(name)
            places: dict[int, list[int]] = {}
            for i in todo:
                places.setdefault(self._group(route.topic, keys[i]), []).append(i)
            puts = [_put(route, g, priority, [encoded[i] for i in at]) for g, at in places.items()]
            answers = await self._log.put(puts, route.topic.options.durability)
            todo = []
            refusal: errors.EMQError | None = None
            for (group, at), answer in zip(places.items(), answers, strict=True):
                if isinstance(answer, errors.QueueSealed) and attempt + 1 < SEALED_TRIES:
                    todo = [*todo, *at]
                elif isinstance(answer, errors.EMQError):
                    refusal = answer
                else:
                    self._record(route, group, priority, answer, [ids[i] for i in at], [keys[i] for i in at], now_us)
            if refusal is not None:
                raise refusal
            if not todo:
                break
            await asyncio.sleep(attempt * REOPENING_S)
            await self.refresh()
        return ids

    def _flush_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._flush())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self) -> None:
        """Send what waits until nothing does; up to `IN_FLIGHT` of these run at once."""
        try:
            while self._singles:
                batch, self._singles = self._singles[:BATCH], self._singles[BATCH:]
                by_durability: dict[Durability, list[_Single]] = {}
                for single in batch:
                    by_durability.setdefault(single.route.topic.options.durability, []).append(single)
                for durability, singles in by_durability.items():
                    await self._put_singles(singles, durability)
        finally:
            self._flushing -= 1

    async def _put_singles(self, singles: list[_Single], durability: Durability) -> None:
        places: dict[str, list[_Single]] = {}
        for single in singles:
            # A put is stored whole or not at all: where room may be short, each message is one of its own.
            alone = single.route.max_length is not None
            place = single.id if alone else single.route.queues[single.group][single.priority]
            places.setdefault(place, []).append(single)
        puts = [_put(at[0].route, at[0].group, at[0].priority, [s.body for s in at]) for at in places.values()]
        answers: Sequence[Sequence[int] | Exception]
        try:
            answers = await self._log.put(puts, durability)
        except Exception as exc:  # also of a kind that a store must not raise, or its publishers would wait for ever
            answers = [exc] * len(puts)
        except BaseException:
            for single in singles:
                single.future.cancel()
            raise
        for at, answer in zip(places.values(), answers, strict=True):
            first = at[0]
            if isinstance(answer, errors.QueueSealed):
                for single in at:
                    self._reroute(single, answer)
            elif isinstance(answer, Exception):
                for single in at:
                    if not single.future.done():
                        single.future.set_exception(answer)
            else:
                ids, keys = [s.id for s in at], [s.key for s in at]
                self._record(first.route, first.group, first.priority, answer, ids, keys, first.published_us)
                for single in at:
                    if not single.future.done():
                        single.future.set_result(single.id)

    def _reroute(self, single: _Single, refusal: errors.QueueSealed) -> None:
        """Its group was retired in the meantime: publish the message anew, once the catalog is read again."""

        async def again() -> None:
            try:
                await self._put_again(single, refusal)
            except Exception as exc:  # see `_put_singles`
                if not single.future.done():
                    single.future.set_exception(exc)

        task = asyncio.get_running_loop().create_task(again())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _put_again(self, single: _Single, refusal: errors.QueueSealed) -> None:
        for attempt in range(SEALED_TRIES):
            await asyncio.sleep(attempt * REOPENING_S)
            await self.refresh()
            route = await self._route(single.route.topic.name)
            group = self._group(route.topic, single.key)
            [answer] = await self._log.put(
                [_put(route, group, single.priority, [single.body])], route.topic.options.durability
            )
            if isinstance(answer, errors.QueueSealed):
                continue
            if isinstance(answer, errors.EMQError):
                raise answer
            self._record(route, group, single.priority, answer, [single.id], [single.key], single.published_us)
            if not single.future.done():
                single.future.set_result(single.id)
            return
        raise refusal

    def _record(
        self,
        route: _Route,
        group: int,
        priority: int,
        offsets: Sequence[int],
        ids: Sequence[str],
        keys: Sequence[str | None],
        published_us: int,
    ) -> None:
        self._put += len(ids)
        if self._trail.enabled:
            now_us = time.time_ns() // 1000
            self._trail.published(route.topic.name, group, priority, offsets, ids, keys, published_us, now_us)


SEALED_TRIES = 5
"""How often a message is routed anew when its group turns out to be retired."""

REOPENING_S = 0.05
"""Groups that come back when a topic grows are opened a moment after the catalog shows them."""


def _route(topic: Topic) -> _Route:
    length = topic.options.max_length
    share = None if length is None else max(1, length // topic.active_groups)
    return _Route(topic, [topic.queues(g) for g in range(topic.active_groups)], share)


def _put(route: _Route, group: int, priority: int, bodies: Sequence[bytes]) -> Put:
    queues = route.queues[group]
    if route.max_length is None:
        return Put(queues[priority], bodies)
    return Put(queues[priority], bodies, route.max_length, route.topic.options.overflow == "drop_oldest", queues)


def _refuse_sorted_options(topic: Topic, *given: object) -> None:
    if any(option is not None for option in given):
        raise errors.InvalidMessage(
            f"topic {topic.name!r} is of kind log; time_range_ms, merge_key and scores are for sorted topics"
        )


def _check_lengths(payloads: Sequence[object], keys: Sequence[object] | None, scores: Sequence[object] | None) -> None:
    for name, given in (("keys", keys), ("scores", scores)):
        if given is not None and len(given) != len(payloads):
            raise errors.InvalidMessage(f"{len(given)} {name} for {len(payloads)} payloads; give one for each")


def _checked(topic: Topic, payload: bytes | str) -> bytes:
    if not isinstance(payload, str | bytes | bytearray | memoryview):
        kind = type(payload).__name__
        raise errors.InvalidMessage(
            f"payload {payload!r} is of type {kind}; give bytes or text, such as json.dumps(...)"
        )
    body = payload.encode() if isinstance(payload, str) else bytes(payload)
    if len(body) > topic.options.max_payload:
        raise errors.InvalidMessage(
            f"payload of {len(body)} bytes; topic {topic.name!r} takes {topic.options.max_payload} (its max_payload)"
        )
    return body
