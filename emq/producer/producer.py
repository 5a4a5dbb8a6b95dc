"""The public producer: checks messages, and hands them to the producers of queues, slots and lanes."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast

from emq import errors, message
from emq.clock import Clock, SystemClock
from emq.producer import delayed_messages, log_topics, sorted_topics
from emq.producer.expiry_notes import Expiring
from emq.producer.partial_calls import raise_first
from emq.producer.router import Router
from emq.producer.start_times import due_ms_of
from emq.schedule import merged_occurrences
from emq.schedule import schedule as spec
from emq.schedule.delay_levels import Delay
from emq.schedule.schedule import Missed
from emq.storage import folds
from emq.storage.store import Store
from emq.topics import inputs
from emq.topics.catalog import Catalog
from emq.topics.model import Kind, Topic
from emq.trail.sink import NullTrail, TrailSink

T = TypeVar("T")

ADDING_UP = frozenset({"sum", "count", "lua"})
"""Folds under which publishing a message twice differs from publishing it once."""

MAX_ID = 128
"""Most characters of a message id."""


class Producer:
    """Publishes to the topics of one environment. Belongs to one event loop; any number of tasks may share it.

    Messages without a key go to a topic's groups in turn, so that no group gets more than its share; those with a
    key go to the group that the key hashes to, so that one group sees all of them in order. In a sorted topic the key
    is the slot basis, and without one the content is.
    """

    def __init__(
        self, store: Store, catalog: Catalog, trail: TrailSink | None = None, clock: Clock | None = None
    ) -> None:
        self._clock = clock = clock or SystemClock()
        trail = trail or NullTrail()
        self._ids = message.IdSource()
        self._router = Router(catalog)
        self._queues = log_topics.QueueProducer(store.log, self._router, self._ids, trail, clock)
        self._slots = sorted_topics.SlotProducer(store.sorted, trail, clock)
        self._router.on_deleted += [self._slots.forget, self._queues.tails.forget]
        self._lanes = delayed_messages.LaneProducer(store.lanes, trail, clock, self._router.topic_now)
        self._expiring = Expiring(catalog, clock)

    @property
    def published(self) -> int:
        """Messages published so far."""
        return self._queues.published + self._slots.published + self._lanes.published

    @property
    def shrunk(self) -> int:
        """Number of times that a store came back from a crash without messages of a queue that were published here."""
        return self._queues.tails.shrunk

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
        """Publish one message; returns its id once the store has it, as durably as the topic asks.

        Publishes awaited at the same time share a round trip. Times are those of the environment's clock, see
        `emq.loops.timekeeping`.

        Args:
            topic: its name.
            payload: up to the topic's `max_payload` bytes; text is encoded as UTF-8.
            key: messages of one key run one at a time, first deliveries in order. In a sorted topic, the slot basis.
            priority: one of the topic's; None for the middle one. For topics of kind priority, a number above 16.
            headers: small strings that travel along.
            delay_ms, delay, at: at most one of them: when it may start, in milliseconds from now; as the name of one of
                the topic's delay levels, an enum member with such a value, a timedelta, or seconds; as a datetime with
                a time zone, or seconds since the epoch.
                The fixed time of a topic of that kind, or the end of a range_merge's time range.
            ttl_s: seconds from the time at which the message is ready; if it has not started by then, it is
                dead-lettered as `expired`. The topic's own ttl_s counts if it is shorter.
            time_range_ms: for topics of kind range_merge: milliseconds from now until the message is due.
            merge_key: for sorted topics with merge='key': messages of one merge key merge; None for the payload.
            message_id: your own unique id of 1 to 128 characters; reuse it when you retry after `OutcomeUnknown`. None
                for a new id. Not for slots, where the id follows from the merge key or content.

        Raises:
            UnknownTopic: create the topic first.
            InvalidMessage: the payload is too large, the priority is not one of the topic's, a time is out of range ...
            TopicClosed: the topic is draining.
            TopicFull: the topic is at its `max_length`.
            StoreFull, StoreUnavailable: nothing was published; try again later.
            DatabaseUnavailable: the catalog cannot be read, and this process does not know the topic, or has not seen
                the catalog for an hour, or the store refused the message as routed by an outdated catalog. Nothing was
                published; try again later.
            OutcomeUnknown: the message may or may not have been published.
        """
        try:  # as `border.encodable`, without a second coroutine for each message
            route = await self._router.route(topic)
            found, body, now_us = route.topic, _checked(route.topic, payload), self._clock.now_us()
            if ttl_s is not None and not found.may_expire:
                await self._expiring.note(found.name)
            if key is not None:
                inputs.texts("key", (key,))
            if headers is not None:
                inputs.headers(headers)
            due_ms = due_ms_of(found, delay_ms, delay, at, now_us)
            if message_id is not None:
                _check_ids([message_id])
            if found.is_sorted and (due_ms is None or found.kind is not Kind.PRIORITY):
                _refuse_slot_ids(found, message_id)
                told = sorted_topics.SortedOptions(key, headers, ttl_s, merge_key)
                return await self._to_slot(found.name, body, told, priority, due_ms, time_range_ms, now_us)
            _refuse_sorted_options(found, time_range_ms, merge_key)
            if due_ms is not None:
                m = self._delayed(found, body, key, priority, headers, ttl_s, due_ms, message_id=message_id)
                # A lane takes an id only once, so a repeated publish of the id must go to the same lane.
                group = self._router.group(found, message_id if key is None else key)
                return await self._lanes.publish(found, group, m, due_ms)
            index, sent_headers = found.priority_index(priority), dict(headers) if headers else None
            id_ = message_id or self._ids.next()
            if ttl_s is None:
                encoded = message.encode(id_, body, key, now_us, sent_headers, found.layout)
            else:
                ends_us = sorted_topics.expires_us(found, now_us / 1000, ttl_s, now_us)
                encoded = message.encode_retry(
                    message.Message(
                        id_,
                        body,
                        key,
                        now_us,
                        sent_headers,
                        index,
                        group=found.layout if key else 0,
                        expires_us=ends_us,
                    )
                )
            return await self._queues.publish(route, key, index, encoded, id_, now_us)
        except UnicodeEncodeError as exc:
            raise inputs.unencodable(exc) from exc

    async def _to_slot(
        self,
        name: str,
        body: bytes,
        told: sorted_topics.SortedOptions,
        priority: str | float | None,
        due_ms: int | None,
        time_range_ms: int | None,
        now_us: int,
    ) -> str:
        async def add(now: Topic) -> str:
            score = sorted_topics.score_of(now, priority, due_ms, time_range_ms, now_us)
            return await self._slots.publish(now, body, score, told)

        return await self._to_slots(name, add)

    async def _to_slots(
        self, name: str, publish: Callable[[Topic], Awaitable[T]], tries: int = log_topics.SEALED_TRIES
    ) -> T:
        """Publish to a sorted topic as the catalog has it; try again if a slot was sealed by the topic's deletion."""
        for attempt in range(tries):
            topic = (await self._router.route(name)).topic
            if not topic.is_sorted:
                raise errors.InvalidMessage(
                    f"topic {name!r} was created again and is not a sorted topic any more; read it again"
                )
            try:
                return await publish(topic)
            except errors.QueueSealed:
                if attempt + 1 == tries:
                    raise
            await asyncio.sleep(attempt * log_topics.REOPENING_S)
            await self._router.refresh()
        raise AssertionError("unreachable")

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
        """Publish messages to one topic in few round trips; returns their ids, in order.

        Atomic for each queue and batch of 500 (for a sorted topic, 2,000 or 8 MiB), not as a whole: before an error,
        some messages may have been published. Repeating the call is safe if duplicates are harmless. Arguments that are
        not listed here are as for `publish`, and apply to all messages.

        Args:
            payloads: the payloads, each as for `publish`.
            keys: a key for each payload.
            scores: for sorted topics, a time (milliseconds since the epoch) or priority for each payload.
            merge_keys: for sorted topics with merge='key', a merge key for each payload; None for the payloads.
            message_ids: an id for each payload, as for `publish`.

        Raises:
            As for `publish`; `StoreUnavailable` and `StoreFull` only if nothing was published.
            OutcomeUnknown: a part of the messages may have been published; the text says how many are known.
        """
        payloads = list(payloads)
        _check_lengths(payloads, keys=keys, scores=scores, merge_keys=merge_keys, message_ids=message_ids)
        _check_ids(message_ids or ())
        found = (await self._router.route(topic)).topic
        if ttl_s is not None and not found.may_expire:
            await self._expiring.note(found.name)
        inputs.texts("key", keys if keys is not None else (key,))
        inputs.headers(headers)
        bodies, now_us = _all_checked(found, payloads), self._clock.now_us()
        all_keys: Sequence[str | None] = keys if keys is not None else [key] * len(bodies)
        due_ms = due_ms_of(found, delay_ms, None, at, now_us)
        if found.is_sorted and (due_ms is None or found.kind is not Kind.PRIORITY):
            _refuse_slot_ids(found, message_ids)
            if scores is None:
                scores = (
                    [sorted_topics.score_of(found, priority, due_ms, time_range_ms, now_us)] * len(bodies)
                    if bodies
                    else []
                )
            elif (priority, due_ms, time_range_ms) != (None, None, None):
                raise errors.InvalidMessage(
                    "give scores, one for each payload, or one priority or time for all of them"
                )
            else:
                scores = sorted_topics.checked_scores(found, scores, now_us)
            given = scores

            async def add_all(now: Topic) -> list[str]:
                return await self._slots.publish_many(now, bodies, given, all_keys, headers, ttl_s, merge_keys)

            # A second try would count twice, in folds that add up, the messages of slots that were not sealed.
            return await self._to_slots(topic, add_all, 1 if found.fold.name in ADDING_UP else log_topics.SEALED_TRIES)
        _refuse_sorted_options(found, time_range_ms, scores, merge_keys)
        if due_ms is not None or ttl_s is not None:
            told = {"priority": priority, "headers": headers, "delay_ms": delay_ms, "at": at, "ttl_s": ttl_s}
            each = (
                self.publish(topic, b, key=k, message_id=i, **told)  # type: ignore[arg-type]
                for b, k, i in zip(bodies, all_keys, message_ids or itertools.repeat(None, len(bodies)), strict=True)
            )
            outcomes = await asyncio.gather(*each, return_exceptions=True)
            raise_first(outcomes, len(bodies))
            return cast("list[str]", outcomes)
        index, sent_headers = found.priority_index(priority), dict(headers) if headers else None
        return await self._queues.publish_many(found.name, bodies, all_keys, index, sent_headers, message_ids)

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
        """Publish a message on a schedule; returns the schedule's id, by which you can recall the schedule.

        Its n-th occurrence is a message with the id `<schedule id>.<n>`, delivered and retried on its own. In a topic
        of kind range_merge an occurrence waits for the topic's time range and merges, as if it were published when
        due; its id then follows from its content.

        Args:
            every_s, repeat, cron, tz, missed: times of the occurrences; see `emq.schedule.schedule.create`.
            delay_ms: milliseconds before the first occurrence; with cron, after each firing.
            at: start of the schedule, as for `publish`; None for now.
            key, priority, headers, ttl_s: apply to each occurrence, as for `publish`.

        Raises:
            As for `publish`.
        """
        found = (await self._router.route(topic)).topic
        if ttl_s is not None and not found.may_expire:
            await self._expiring.note(found.name)
        inputs.texts("key", (key,))
        inputs.headers(headers)
        body, now_us = _checked(found, payload), self._clock.now_us()
        if merged_occurrences.merges(found):
            if found.options.time_range_ms is None:
                raise errors.InvalidMessage(
                    f"topic {topic!r} has no time_range_ms, for which each occurrence waits; set it first"
                )
            folds.check(found.fold, body)
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
        m = self._delayed(found, body, key, priority, headers, ttl_s, schedule.due_ms, schedule.encode())
        return await self._lanes.publish(found, self._router.group(found, key), m, schedule.due_ms)

    async def refresh(self) -> None:
        """Read the catalog's changes now."""
        await self._router.refresh()

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
        message_id: str | None = None,
    ) -> message.Message:
        by_number, now_us = topic.kind is Kind.PRIORITY, self._clock.now_us()
        return delayed_messages.delayed(
            topic,
            message_id or self._ids.next(),
            body,
            key=key,
            priority=0 if topic.is_sorted else topic.priority_index(priority),
            headers=dict(headers) if headers else None,
            score=sorted_topics.score_of(topic, priority, None, None, now_us) if by_number else 0,
            ttl_s=ttl_s,
            now_us=now_us,
            due_ms=due_ms,
            schedule=schedule,
        )


def _refuse_sorted_options(topic: Topic, *given: object) -> None:
    if any(option is not None for option in given):
        about = "what is delayed by priority waits in a lane" if topic.is_sorted else f"it is of kind {topic.kind}"
        raise errors.InvalidMessage(
            f"topic {topic.name!r}: time_range_ms, merge_key(s) and scores are for slots, and {about}; leave them out"
        )


def _refuse_slot_ids(topic: Topic, given: object) -> None:
    if given is not None:
        raise errors.InvalidMessage(
            f"topic {topic.name!r} is of kind {topic.kind}: its message ids follow from the merged content; give no id"
        )


def _check_ids(ids: Sequence[str]) -> None:
    if set(map(type, ids)) <= {str} and all(map(len, ids)) and max(map(len, ids), default=1) <= MAX_ID:
        inputs.texts("message id", ids)
        return
    for id_ in ids:
        if not (isinstance(id_, str) and 1 <= len(id_) <= MAX_ID):
            raise errors.InvalidMessage(f"message id {inputs.shown(id_)} must be text of 1 to {MAX_ID} characters")


def _check_lengths(payloads: Sequence[object], **each: Sequence[object] | None) -> None:
    for name, given in each.items():
        if given is not None and len(given) != len(payloads):
            raise errors.InvalidMessage(f"{len(given)} {name} for {len(payloads)} payloads; give one for each")


def _all_checked(topic: Topic, payloads: Sequence[bytes | str]) -> Sequence[bytes]:
    if payloads and set(map(type, payloads)) == {bytes} and max(map(len, payloads)) <= topic.options.max_payload:
        return cast(Sequence[bytes], payloads)
    return [_checked(topic, payload) for payload in payloads]


def _checked(topic: Topic, payload: bytes | str) -> bytes:
    if not isinstance(payload, str | bytes | bytearray | memoryview):
        kind = type(payload).__name__
        raise errors.InvalidMessage(
            f"payload {inputs.shown(payload)} is of type {kind}; give bytes or text, such as json.dumps(...)"
        )
    body = payload.encode() if isinstance(payload, str) else bytes(payload)
    if len(body) > topic.options.max_payload:
        raise errors.InvalidMessage(
            f"payload of {len(body)} bytes; topic {topic.name!r} takes {topic.options.max_payload} (its max_payload)"
        )
    return body
