"""The public producer: checks messages, and hands them to the producers of queues, slots and lanes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat, starmap
from typing import Any

from emq.producer import checks, delayed_messages, log_topics, queue_columns, reopening, sorted_topics
from emq.producer.checks import due_ms_of, ttl_us
from emq.producer.expiry_notes import Expiring
from emq.producer.first_publishes import FirstPublishes
from emq.producer.outcomes import Outcome, all_published, in_doubt
from emq.producer.outgoing import Outgoing, Way, columns_of, refusals, said_of
from emq.producer.router import Router
from emq.producer.routes import Route
from emq.producer.scores import score_of, scores_of
from emq.runtime import errors, inputs
from emq.runtime.clock import Clock, SystemClock
from emq.storage import message
from emq.storage.store import Store
from emq.timetable import merged_occurrences
from emq.timetable import schedule as spec
from emq.timetable.delay_levels import Delay
from emq.timetable.schedule import Missed
from emq.topics.catalog import Catalog
from emq.topics.model import Kind, Topic
from emq.trail.sink import NullTrail, TrailSink

AT_ONCE = 32
"""Most calls of `send` that are under way at once, each of one topic and priority."""


class Producer:
    """Publishes to the topics of one environment. Belongs to one event loop; any number of tasks may share it.

    Messages without a key go to a topic's groups in turn, so that no group gets more than its share. Messages with a
    key go to the group that the key hashes to, so that one group gets all messages of the key in order. In a sorted
    topic the key (the slot basis) chooses the slot; without a key the content does.

    The first publish to a name below a family makes the topic; see `emq.topics.families`.

    A producer reads a topic from the catalog at its first publish to it, and then follows its changes. While the
    database is away, it publishes only to topics to which it has published before.
    """

    def __init__(
        self, store: Store, catalog: Catalog, trail: TrailSink | None = None, clock: Clock | None = None
    ) -> None:
        self._clock = clock = clock or SystemClock()
        trail = trail or NullTrail()
        self._ids = message.IdSource()
        first = FirstPublishes(store, catalog)
        self._router = Router(catalog, first)
        self._reopened = reopened = reopening.Reopening(store, catalog, self._router, first)
        self._queues = log_topics.QueueProducer(store.log, self._router, reopened, self._ids, trail, clock)
        self._slots = sorted_topics.SlotProducer(store.sorted, self._router, reopened, trail, clock)
        self._lanes = delayed_messages.LaneProducer(store.lanes, trail, clock, self._router.topic_now, reopened)
        self._expiring = Expiring(catalog, clock)

    @property
    def published(self) -> int:
        """Number of messages published so far."""
        return self._queues.published + self._slots.published + self._lanes.published

    @property
    def shrunk(self) -> int:
        """Number of times that a store lost messages of a queue, published here, in a crash."""
        return self._queues.tails.shrunk

    async def reopened(self, topic: str, tries: int = 1) -> Topic:
        """Return a topic as it is now, awake, after its lanes have refused what a product adds to them by itself.

        Args:
            tries: how often they have refused; from the second time on, a topic that may sleep is opened.

        Raises:
            UnknownTopic: the topic was deleted.
            TopicClosed: the topic is draining.
            DatabaseUnavailable, StoreUnavailable: try again later.
        """
        return (await self._reopened.look(topic, tries)).topic

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
        message_id: str | None = None,
    ) -> str:
        """Publish one message; return its id once the store has the message, as durably as the topic asks.

        Publishes awaited at the same time share a round trip. Times are those of the environment's clock, see
        `emq.runtime.timekeeping`.

        Args:
            topic: name of the topic.
            payload: up to the topic's `max_payload` bytes; text is encoded as UTF-8.
            key, priority ... message_id: see `emq.producer.options.PublishOptions`.

        Raises:
            UnknownTopic: create the topic first, or a family above its name.
            InvalidMessage: the payload is too large, the priority is not one of the topic's, a time is out of range ...
            TopicClosed: the topic is draining.
            TopicFull: the topic is at its `max_length`.
            StoreFull, StoreUnavailable: nothing was published; try again later.
            DatabaseUnavailable: the catalog cannot be read, and this process has not published to the topic before, or
                has not seen the catalog for an hour, or the store refused the message as routed by an outdated catalog.
                Nothing was published; try again later.
            OutcomeUnknown: the message may or may not have been published. Repeat the call with the same `message_id`;
                if the topic has `dedupe_s`, the message is stored once.
        """
        try:  # does the same as `inputs.encodable`, without a second coroutine for each message
            route = await self._router.route(topic)
            found, body, now_us = route.topic, checks.body_of(route.topic, payload), self._clock.now_us()
            if ttl_s is not None:
                await self._note_expiring(found, ttl_s)
            if key is not None or headers is not None:
                key, headers = checks.labels_of(found, key, headers)
            due_ms = due_ms_of(found, delay_ms, delay, at, now_us)
            if message_id is not None:
                [message_id] = checks.checked_ids([message_id])
            if found.is_sorted and (due_ms is None or found.kind is not Kind.PRIORITY):
                checks.check_no_slot_ids(found, message_id)
                told = sorted_topics.SortedOptions(key, headers, ttl_s, merge_key)
                score = partial(score_of, priority=priority, due_ms=due_ms, range_ms=time_range_ms, now_us=now_us)
                return await self._slots.publish(found.name, body, score, told)
            checks.check_no_slot_options(found, time_range_ms, merge_key)
            uid = self._ids.next() if message_id is None else message.uid_of(message_id, self._ids.next())
            if due_ms is not None:
                m = delayed_messages.delayed(found, uid, body, key, priority, headers, ttl_s, now_us, due_ms)
                # The lane's group remembers the id, so a repeated publish of the id must go to the same lane.
                group = route.group(message_id if key is None else key)
                return await self._lanes.publish(found, group, m, due_ms)
            index, sent_headers = found.priority_index(priority), dict(headers) if headers else None
            if ttl_s is None:
                encoded = message.encode(uid, body, key, now_us, sent_headers, found.layout)
            else:
                m = message.Message(uid, body, key, now_us, sent_headers)
                encoded = queue_columns.expiring(m, found, index, ttl_s)
            return await self._queues.publish(route, key, index, encoded, uid, now_us)
        except UnicodeEncodeError as exc:
            raise inputs.unencodable(exc) from exc

    @inputs.encodable
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
        merge_keys: Sequence[bytes | str] | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Publish messages to one topic in few round trips; return their ids, in order.

        Atomic for each queue and batch of 500 (for a sorted topic, 2,000 or 8 MiB), not as a whole: before an error,
        some messages may have been published. Repeating the call is safe if duplicates are harmless.

        Args:
            payloads: the payloads, each as for `publish`.
            key, keys ... message_ids: see `emq.producer.options.PublishManyOptions`.

        Raises:
            As for `publish`; `StoreUnavailable` and `StoreFull` only if nothing was published.
            OutcomeUnknown: a part of the messages may have been published; the text says how many are known.
        """
        payloads = checks.listed(payloads)
        checks.check_lengths(payloads, keys=keys, scores=scores, merge_keys=merge_keys, message_ids=message_ids)
        message_ids = None if message_ids is None else checks.checked_ids(message_ids)
        route, count = await self._router.route(topic), len(payloads)
        found = route.topic
        given_keys = inputs.texts("key", keys if keys is not None else (key,))
        headers = inputs.headers(headers)
        checks.check_keys(found, given_keys, headers)
        bodies, now_us = checks.bodies_of(found, payloads), self._clock.now_us()
        all_keys = given_keys if keys is not None else [*given_keys] * count
        due_ms = due_ms_of(found, delay_ms, None, at, now_us)
        if ttl_s is not None:
            await self._note_expiring(found, ttl_s)
        if found.is_sorted and (due_ms is None or found.kind is not Kind.PRIORITY):
            checks.check_no_slot_ids(found, message_ids)
            scores = scores_of(found, count, scores, priority, due_ms, time_range_ms, now_us)
            told = sorted_topics.told_alike(all_keys, headers, ttl_s, merge_keys)
            sorted_topics.check(found, bodies, told)
            return all_published(await self._slots.publish_many(found, sorted_topics.SlotColumns(bodies, scores, told)))
        checks.check_no_slot_options(found, time_range_ms, scores, merge_keys)
        if due_ms is not None:
            waiting = (
                Outgoing(topic, b, id_, k, priority, headers, delay_ms, at=at, ttl_s=ttl_s)
                for b, id_, k in zip(bodies, message_ids or repeat(None, count), all_keys, strict=True)
            )
            return all_published(await self._one_by_one(waiting))
        all_headers = [dict(headers)] * count if headers else None
        ttls_s = None if ttl_s is None else [ttl_s] * count
        columns = queue_columns.QueueColumns(bodies, all_keys, all_headers, message_ids, ttls_s)
        return all_published(await self._queues.publish_many(route, found.priority_index(priority), columns))

    async def send(self, messages: Iterable[Outgoing]) -> list[Outcome]:
        """Publish messages of any topics in few round trips; return the outcome of each, in order.

        A refused message does not affect the others. But if the store fails or a queue is full, later messages of the
        same queue are refused, too, so that no message overtakes another. Messages of one topic and priority keep their
        order; messages with a delay or a start time are apart from the rest. Memory grows with the number of messages
        given; some thousand at a time are enough for full speed.
        """
        messages, outcomes = list(messages), dict[int, Outcome]()
        said: dict[int, tuple[str, str | float | None, bool]] = {}
        for i, m in enumerate(messages):
            try:
                said[i] = said_of(m)
            except errors.InvalidMessage as exc:
                outcomes[i] = exc
        found = await self._router.routes(dict.fromkeys(topic for topic, _, _ in said.values()))
        routes = {topic: route for topic, route in found.items() if isinstance(route, Route)}
        ways: dict[tuple[object, ...], Way | errors.EMQError] = {}
        alike: dict[Way, list[int]] = {}
        for i, like in said.items():
            if like not in ways:
                ways[like] = _way(found[like[0]], messages[i])
            if isinstance(way := ways[like], Way):
                alike.setdefault(way, []).append(i)
            else:
                outcomes[i] = way
        room = asyncio.Semaphore(AT_ONCE)

        async def send(way: Way, places: Sequence[int]) -> Sequence[Outcome]:
            # A few messages for each of many topics wait for nobody: they share calls.
            few = 1 if way.to == "slots" else log_topics.FEW
            async with room if len(places) >= few else contextlib.nullcontext():
                return await self._send_alike(routes[way.topic], way, [messages[i] for i in places])

        # An error on one way must not hide the outcomes on the others.
        answers = await asyncio.gather(*starmap(send, alike.items()), return_exceptions=True)
        for places, answer in zip(alike.values(), answers, strict=True):
            each = [in_doubt(answer)] * len(places) if isinstance(answer, BaseException) else answer
            outcomes.update(zip(places, each, strict=True))
        return [outcomes[i] for i in range(len(messages))]

    async def _send_alike(self, route: Route, way: Way, messages: Sequence[Outgoing]) -> Sequence[Outcome]:
        """Publish messages that go the same way; invalid ones are refused, and the others go without them.

        Args:
            route: the topic for which the way was chosen.
        """
        if way.to == "lanes" or len(messages) == 1:
            return await self._one_by_one(messages, with_ids=way.to != "slots")
        topic, now_us = route.topic, self._clock.now_us()
        refused: dict[int, Outcome] = {}
        try:
            columns = columns_of(way, topic, messages, now_us)
        except Exception:  # at least one message is not valid
            refused |= refusals(way, topic, messages, now_us)
            messages = [m for i, m in enumerate(messages) if i not in refused]
            columns = columns_of(way, topic, messages, now_us)
        if (ttl_s := next((m.ttl_s for m in messages if m.ttl_s is not None), None)) is not None:
            await self._note_expiring(topic, ttl_s)
        if isinstance(columns, sorted_topics.SlotColumns):
            outcomes = await self._slots.publish_many(topic, columns)
        else:
            outcomes = await self._queues.publish_many(route, way.priority, columns, whole=False)
        if not refused:
            return outcomes
        others = iter(outcomes)
        return [refused[i] if i in refused else next(others) for i in range(len(refused) + len(outcomes))]

    async def _one_by_one(self, messages: Iterable[Outgoing], *, with_ids: bool = True) -> list[Outcome]:
        """Publish each message by itself; the calls to the store are shared."""

        def one(m: Outgoing) -> Coroutine[Any, Any, str]:
            options = m._asdict()
            topic, payload, id_ = (options.pop(name) for name in ("topic", "payload", "id"))
            return self.publish(topic, payload, message_id=id_ if with_ids else None, **options)

        outcomes = await asyncio.gather(*map(one, messages), return_exceptions=True)
        return [o if isinstance(o, str | errors.EMQError) else in_doubt(o) for o in outcomes]

    async def _note_expiring(self, topic: Topic, ttl_s: float) -> None:
        """Note that the topic has messages with a time to live; first refuse an invalid time to live."""
        ttl_us(ttl_s)
        if not topic.may_expire:
            await self._expiring.note(topic.name)

    @inputs.encodable
    async def schedule(
        self,
        topic: str,
        payload: bytes | str,
        *,
        every_s: float | None = None,
        repeat: int | None = None,
        cron: str | None = None,
        tz: str | None = None,
        missed: Missed = "once",
        delay_ms: float = 0,
        at: datetime.datetime | float | None = None,
        key: str | None = None,
        priority: str | float | None = None,
        headers: Mapping[str, str] | None = None,
        ttl_s: float | None = None,
    ) -> str:
        """Publish a message on a schedule; return the schedule's id, by which you can recall the schedule.

        The n-th occurrence is a message with the id `<schedule id>.<n>`, delivered and retried on its own. In a topic
        of kind range_merge an occurrence waits for the topic's time range and merges, as if it were published at its
        due time; its id then follows from its content.

        Args:
            every_s, repeat ... ttl_s: see `emq.producer.options.ScheduleOptions`.

        Raises:
            As for `publish`.
        """
        route = await self._router.route(topic)
        found = route.topic
        if ttl_s is not None:
            await self._note_expiring(found, ttl_s)
        key, headers = checks.labels_of(found, key, headers)
        body, now_us = checks.body_of(found, payload), self._clock.now_us()
        merged_occurrences.check(found, body)
        begin_ms = due_ms_of(found, None, None, at, now_us)
        start_ms = now_us // 1000 if begin_ms is None else begin_ms
        schedule = spec.create(
            start_ms=start_ms,
            every_s=every_s,
            repeat=repeat,
            cron=cron,
            tz=tz,
            delay_s=inputs.number("delay_ms", delay_ms) / 1000,
            missed=missed,
        )
        uid, due_ms = self._ids.next(), schedule.due_ms
        m = delayed_messages.delayed(found, uid, body, key, priority, headers, ttl_s, now_us, due_ms, schedule.encode())
        return await self._lanes.publish(found, route.group(key), m, due_ms)

    async def topic(self, name: str) -> Topic:
        """Return the topic to which a publish of this name goes; make it if a family does so. Raises as `publish`."""
        return (await self._router.route(name)).topic

    async def refresh(self) -> None:
        """Read the changes of the topics that this process knows now."""
        await self._router.refresh()


def _way(route: Route | errors.EMQError, m: Outgoing) -> Way | errors.EMQError:
    """Return the way of a message, or the error that refuses it."""
    if isinstance(route, errors.EMQError):
        return route
    try:
        return m.way(route.topic)
    except errors.EMQError as exc:
        return exc
