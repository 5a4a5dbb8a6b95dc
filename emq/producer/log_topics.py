"""Publishing to the queues of log topics: many messages in one round trip, routed again if their group was retired."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from emq.producer import reopening
from emq.producer.batcher import BATCH, Batcher, fitting
from emq.producer.outcomes import Outcome, Repeated, first_failure, in_doubt, unsent
from emq.producer.queue_columns import QueueColumns, at_places, expiring, put_to, stored
from emq.producer.queue_tails import Tails
from emq.producer.reopening import Reopening
from emq.producer.router import Router
from emq.producer.routes import Route
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.storage import message
from emq.storage.answers import of_each
from emq.storage.durability import Durability
from emq.storage.log_store import LogStore, Put
from emq.trail import events
from emq.trail.sink import TrailSink

T = TypeVar("T")

FEW = 8
"""Batches with fewer messages share calls to the store, whatever their topics. A call with `BATCH` of them holds a
server for some milliseconds."""


class _Single(NamedTuple):
    """An awaited publish that waits for its batch."""

    route: Route
    group: int
    priority: int
    body: bytes
    uid: str
    key: str | None
    published_us: int


class _Batch(NamedTuple):
    """The encoded messages of one call. Methods name a message by its place in these sequences.

    Attributes:
        repeats: the places of messages that were not stored, since their group remembers their ids.
    """

    encoded: list[bytes]
    uids: Sequence[str]
    keys: Sequence[str | None]
    has_keys: bool
    published_us: int
    repeats: set[int]


class _Refused(NamedTuple):
    """Messages of a batch that a group's queue refused: their places in the batch, and the error."""

    group: int
    at: Sequence[int]
    why: errors.EMQError


class QueueProducer:
    """Appends to queues."""

    def __init__(
        self, log: LogStore, router: Router, reopened: Reopening, ids: message.IdSource, trail: TrailSink, clock: Clock
    ) -> None:
        self._log = log
        self._router = router
        self._reopened = reopened
        self._ids = ids
        self._trail = trail
        self._clock = clock
        self._batcher: Batcher[_Single, str] = Batcher(self._put)
        self._puts: Batcher[Put, Sequence[int]] = Batcher(lambda puts, d: of_each(log.put(puts, d), len(puts)))
        self.tails = Tails(trail, clock)
        self.published = 0

    async def publish(
        self, route: Route, key: str | None, priority: int, body: bytes, uid: str, published_us: int
    ) -> str:
        """Append one encoded message; publishes awaited at the same time share a round trip."""
        for tries in range(1, reopening.TRIES + 1):
            group = route.group(key, uid)
            try:
                single = _Single(route, group, priority, body, uid, key, published_us)
                return await self._batcher.send(single, route.topic.options.durability, len(body))
            except errors.QueueSealed as exc:
                if tries == reopening.TRIES:
                    raise reopening.unopened(route.topic.name) from exc
                raised = exc.layout
            before, route = route, await self._rerouted(route, priority, raised, tries)
            if key is not None and route.topic.layout != before.topic.layout:
                body = message.with_layout(body, route.topic.layout)
        raise AssertionError("unreachable")

    async def _rerouted(self, before: Route, priority: int, raised: int, tries: int) -> Route:
        """Return the topic's newest route after queues, raised to the layout `raised`, have refused `tries` times."""
        return _fit(before, await self._reopened.route(before.topic.name, raised, tries), priority)

    async def publish_many(
        self, route: Route, priority: int, messages: QueueColumns, *, whole: bool = True
    ) -> list[Outcome]:
        """Append many messages, 500 at a time; return the id or the error of each.

        After a batch with an error, no further batch is sent, so that no message overtakes another.

        Args:
            route: the topic that the priority and the messages were checked against.
            whole: True to store a batch's messages of one queue together or not at all. Otherwise a queue without room
                for all takes the first ones that fit.
        """
        count = len(messages.bodies)
        uids = self._ids.many(count)
        ids = uids
        if messages.ids is not None:
            ids = [chosen or uid for chosen, uid in zip(messages.ids, uids, strict=True)]
            uids = [message.uid_of(c, uid) if c else uid for c, uid in zip(messages.ids, uids, strict=True)]
        outcomes: list[Outcome] = []
        full: dict[str, errors.TopicFull] | None = None if whole else {}
        while (start := len(outcomes)) < count:
            end = start + fitting(messages.part(start, start + BATCH).sizes())
            try:
                route = _fit(route, await self._router.route(route.topic.name), priority)
                failures = await self._publish_part(route, priority, messages.part(start, end), uids[start:end], full)
            except errors.EMQError as exc:
                failures = [exc] * (end - start)
            outcomes += ids[start:end] if not any(failures) else map(lambda f, i: f or i, failures, ids[start:end])
            if not whole:
                failures = [None if isinstance(failure, errors.TopicFull) else failure for failure in failures]
            if (failure := first_failure(failures, errors.EMQError)) is not None:
                outcomes += [unsent(failure)] * (count - end)
        return outcomes

    async def _publish_part(
        self,
        route: Route,
        priority: int,
        messages: QueueColumns,
        uids: Sequence[str],
        full: dict[str, errors.TopicFull] | None,
    ) -> Sequence[errors.EMQError | Repeated | None]:
        """Append one batch; return the error of each message, None for a stored message.

        Args:
            full: the full queues, which get no more; this method adds to them. None to store a queue's messages
                together or not at all.
        """
        bodies, keys = messages.bodies, messages.keys
        outcomes: list[errors.EMQError | Repeated | None] = [None] * len(bodies)
        now_us = self._clock.now_us()
        layout = route.topic.layout
        encoded = message.encode_many(uids, bodies, keys, now_us, messages.headers, layout)
        for i, ttl_s in enumerate(messages.ttl_s or ()):
            if ttl_s is not None:
                headers = None if messages.headers is None else messages.headers[i]
                m = message.Message(uids[i], bodies[i], keys[i], now_us, headers)
                encoded[i] = expiring(m, route.topic, priority, ttl_s)
        todo: Sequence[int] = range(len(bodies))
        batch = _Batch(encoded, uids, keys, keys.count(None) < len(keys), now_us, set())
        for tries in range(1, reopening.TRIES + 1):
            places = route.places(keys, uids, todo)
            if route.topic.layout != layout:
                layout = route.topic.layout
                for i in todo:
                    if keys[i] is not None:
                        encoded[i] = message.with_layout(encoded[i], layout)
            todo, raised = [], 0
            for group, at, answer in await self._put_batch(route, priority, places, batch, full):
                if isinstance(answer, errors.QueueSealed):
                    if tries < reopening.TRIES:
                        todo, raised = sorted([*todo, *at]), max(raised, answer.layout)  # in their order
                        continue
                    answer = reopening.unopened(route.topic.name)
                for i in at:
                    outcomes[i] = answer
                self._doubt(route, group, priority, answer, at_places(uids, at))
            if not todo:
                break
            try:
                route = await self._rerouted(route, priority, raised, tries)
            except errors.EMQError as exc:
                for i in todo:
                    outcomes[i] = exc
                break
        for i in batch.repeats:
            outcomes[i] = Repeated(message.label(uids[i]))
        return outcomes

    async def _put_batch(
        self,
        route: Route,
        priority: int,
        places: dict[int, Sequence[int]],
        batch: _Batch,
        full: dict[str, errors.TopicFull] | None,
    ) -> list[_Refused]:
        """Append messages of a batch, given by group; return the refused ones."""
        refused: list[_Refused] = []
        if full:
            closed = [group for group in places if route.queues[group][priority] in full]
            refused += [_Refused(group, places.pop(group), full[route.queues[group][priority]]) for group in closed]
        for group, at, answer in await self._store(route, priority, places, batch):
            if full is None or not isinstance(answer, errors.TopicFull):
                refused.append(_Refused(group, at, answer))
            else:
                refused += (left := await self._fill(route, priority, _Refused(group, at, answer), batch))
                full.update((route.queues[group][priority], r.why) for r in left if isinstance(r.why, errors.TopicFull))
        return refused

    async def _fill(self, route: Route, priority: int, refused: _Refused, batch: _Batch) -> list[_Refused]:
        """Append as many of the first messages as fit into a queue without room for all; return the others."""
        group, at, why = refused
        size = len(at) // 2
        while size:
            failed = await self._store(route, priority, {group: at[:size]}, batch)
            if not failed:
                at = at[size:]
                size = min(size, len(at))
            elif isinstance(failed[0].why, errors.TopicFull):
                why = failed[0].why
                size //= 2
            else:
                return [*failed, _Refused(group, at[size:], unsent(failed[0].why))]
        return [_Refused(group, at, why)]

    async def _store(
        self, route: Route, priority: int, places: Mapping[int, Sequence[int]], batch: _Batch
    ) -> list[_Refused]:
        """Append messages of a batch, given by group, in one call; return the refused ones.

        Few messages share the call with those of other topics that are on their way at the same time.
        """
        encoded, uids, keys, has_keys, published_us, repeats = batch
        puts = [
            put_to(
                route,
                group,
                priority,
                at_places(encoded, at),
                [message.label(uids[i]) for i in at] if route.topic.dedupe_ms else (),
                has_keys and any(keys[i] is not None for i in at),
            )
            for group, at in places.items()
        ]
        known = [self.tails.known(route, group, priority) for group in places]
        sent_us = self._clock.now_us()
        durability = route.topic.options.durability
        answers: Sequence[Sequence[int] | errors.EMQError]
        try:
            if sum(map(len, places.values())) >= FEW:
                answers = await of_each(self._log.put(puts, durability), len(puts))
            else:
                sent = [self._puts.send(put, durability, sum(map(len, put.bodies))) for put in puts]
                each = [await sent[0]] if len(sent) == 1 else await asyncio.gather(*sent, return_exceptions=True)
                answers = [one if isinstance(one, errors.EMQError | Sequence) else in_doubt(one) for one in each]
        except errors.EMQError as exc:  # not raised: the caller needs the outcomes of earlier calls, too
            answers = [exc] * len(puts)
        refused: list[_Refused] = []
        for (group, at), tail, answer in zip(places.items(), known, answers, strict=True):
            if isinstance(answer, errors.EMQError):
                refused.append(_Refused(group, at, answer))
            else:
                answer, at, left_out = stored(answer, at)
                repeats.update(left_out)
                self.tails.put(route, group, priority, tail, answer, sent_us)
                self._record(route, group, priority, answer, at_places(uids, at), at_places(keys, at), published_us)
        return refused

    async def _put(self, singles: Sequence[_Single], durability: Durability) -> Sequence[Outcome]:
        places: dict[str, list[int]] = {}
        for i, single in enumerate(singles):
            # A put is stored whole or not at all: if room may be short, each message gets a put of its own.
            alone = single.route.max_length is not None
            place = single.uid if alone else single.route.queues[single.group][single.priority]
            places.setdefault(place, []).append(i)
        has_keys = any(single.key is not None for single in singles)
        # A put has the layout of its oldest route: if the queue refuses this layout, all of the put is routed again.
        firsts = [
            singles[min(at, key=lambda i: singles[i].route.topic.layout) if has_keys else at[0]]
            for at in places.values()
        ]
        puts = [
            put_to(
                first.route,
                first.group,
                first.priority,
                [singles[i].body for i in at],
                [message.label(singles[i].uid) for i in at] if first.route.topic.dedupe_ms else (),
                has_keys and any(singles[i].key is not None for i in at),
            )
            for first, at in zip(firsts, places.values(), strict=True)
        ]
        outcome: list[Outcome] = [message.label(single.uid) for single in singles]
        known = [self.tails.known(first.route, first.group, first.priority) for first in firsts]
        sent_us = self._clock.now_us()
        answers = await of_each(self._log.put(puts, durability), len(puts))
        for first, at, tail, answer in zip(firsts, places.values(), known, answers, strict=True):
            if isinstance(answer, errors.EMQError):
                for i in at:
                    outcome[i] = answer
                self._doubt(first.route, first.group, first.priority, answer, [singles[i].uid for i in at])
            else:
                answer, kept, left_out = stored(answer, at)
                for i in left_out:
                    outcome[i] = Repeated(message.label(singles[i].uid))
                self.tails.put(first.route, first.group, first.priority, tail, answer, sent_us)
                uids, keys = [singles[i].uid for i in kept], [singles[i].key for i in kept]
                self._record(first.route, first.group, first.priority, answer, uids, keys, first.published_us)
        return outcome

    def _record(
        self,
        route: Route,
        group: int,
        priority: int,
        offsets: Sequence[int],
        uids: Sequence[str],
        keys: Sequence[str | None],
        published_us: int,
    ) -> None:
        self.published += len(uids)
        if self._trail.enabled:
            now_us, topic = self._clock.now_us(), route.topic.name
            self._trail.record(events.Published(now_us, topic, group, uids, priority, published_us, offsets, keys))

    def _doubt(self, route: Route, group: int, priority: int, answer: errors.EMQError, uids: Sequence[str]) -> None:
        if self._trail.enabled and isinstance(answer, errors.OutcomeUnknown):
            self._trail.record(events.Doubted(self._clock.now_us(), route.topic.name, group, uids, priority))


def _fit(before: Route, route: Route, priority: int) -> Route:
    """Return `route` if the message's priority means the same in it as in `before`.

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
