"""Publishing to sorted topics: chooses the slot and the score of a message, and adds the message."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from emq.producer import checks
from emq.producer.batcher import Batcher, fitting
from emq.producer.outcomes import Outcome, all_published, first_failure, unsent
from emq.producer.reopening import TRIES, Reopening, unopened
from emq.producer.router import Router
from emq.producer.routes import Route
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.storage import folds, message
from emq.storage.answers import FAILURES, of_each
from emq.storage.durability import Durability
from emq.storage.slot_store import LATEST, SlotAdd, SortedStore
from emq.topics.model import Kind, Topic
from emq.trail import events
from emq.trail.sink import TrailSink

CHUNK = 2_000
"""Most messages in one call to the store by `publish_many`; fewer if they are large."""


class SortedOptions(NamedTuple):
    """Optional properties of a message for a sorted topic; see `Producer.publish`."""

    key: str | None = None
    headers: Mapping[str, str] | None = None
    ttl_s: float | None = None
    merge_key: bytes | str | None = None


_NOTHING = SortedOptions()


def told_alike(
    keys: Sequence[str | None],
    headers: Mapping[str, str] | None,
    ttl_s: float | None,
    merge_keys: Sequence[bytes | str] | None,
) -> Sequence[SortedOptions] | None:
    """Return the options of messages that are published together; None if no message has options."""
    if keys.count(None) == len(keys) and (headers, ttl_s, merge_keys) == (None, None, None):
        return None
    each = zip(keys, merge_keys or repeat(None, len(keys)), strict=True)
    return [SortedOptions(key, headers, ttl_s, merge_key) for key, merge_key in each]


class SlotColumns(NamedTuple):
    """Messages of one sorted topic, checked.

    Attributes:
        told: the options of each message; None if no message has options.
    """

    bodies: Sequence[bytes]
    scores: Sequence[float]
    told: Sequence[SortedOptions] | None = None

    def only(self, numbers: Sequence[int]) -> SlotColumns:
        """Return the messages of these numbers."""
        return SlotColumns(*(None if c is None else [c[i] for i in numbers] for c in self))  # type: ignore[arg-type]


class _Item(NamedTuple):
    topic: Topic
    add: SlotAdd
    group: int
    published_us: int


class SlotProducer:
    """Adds messages to slots.

    The slot's number is the CRC32 of the key (the slot basis), or else of the merge key or content, modulo the number
    of slots.
    """

    def __init__(
        self, store: SortedStore, router: Router, reopening: Reopening, trail: TrailSink, clock: Clock
    ) -> None:
        self._store = store
        self._router = router
        self._reopening = reopening
        self._trail = trail
        self._clock = clock
        self._batcher: Batcher[_Item, str] = Batcher(self._add)
        self.published = 0

    async def publish(self, name: str, payload: bytes, score: Callable[[Topic], float], told: SortedOptions) -> str:
        """Add one message; adds awaited at the same time share a round trip.

        Args:
            score: returns the message's score in the topic as the catalog has it.
        """

        async def add(route: Route, _: Sequence[int]) -> Sequence[Outcome]:
            topic = route.topic
            if topic.options.merge != "key":
                _check_bare(topic, told)
            item = self._item(route, payload, score(topic), told, self._clock.now_us())
            try:
                return [await self._batcher.send(item, topic.options.durability, _size(item))]
            except errors.QueueSealed as exc:
                return [exc]

        return all_published(await self._reopened(name, 1, add))[0]

    async def publish_many(self, checked: Topic, messages: SlotColumns) -> list[Outcome]:
        """Add many messages, in calls of 2,000 or 8 MiB; return the id or the error of each.

        After a call that the store did not serve, no further call is made.

        Args:
            checked: the topic against which the messages were checked, and for which their scores were made.
        """

        async def add(route: Route, numbers: Sequence[int]) -> Sequence[Outcome]:
            left = messages if len(numbers) == len(messages.bodies) else messages.only(numbers)
            if route.topic is not checked:
                _fit(checked, route.topic)
                check(route.topic, left.bodies, left.told)  # check all messages before the first call
            return await self._add_many(route, *left)

        return await self._reopened(checked.name, len(messages.bodies), add)

    async def _reopened(
        self, name: str, count: int, add: Callable[[Route, Sequence[int]], Awaitable[Sequence[Outcome]]]
    ) -> list[Outcome]:
        """Add messages to the topic as the catalog has it; add messages again that a slot sealed by a deletion refused.

        Args:
            add: adds the messages of the given numbers; raises only if it has not added any message.
        """
        outcomes: list[Outcome] = []
        todo: Sequence[int] = range(count)
        for tries in range(TRIES):
            try:
                route = await (self._reopening.look(name, tries) if tries else self._router.route(name))
                if not route.topic.is_sorted:
                    raise errors.InvalidMessage(
                        f"topic {name!r} was created again and is not a sorted topic any more; read the topic again"
                    )
                answers = await add(route, todo)
            except errors.EMQError as exc:
                answers = [exc] * len(todo)
            if tries == 0:
                outcomes = [*answers]
            else:
                for i, answer in zip(todo, answers, strict=True):
                    outcomes[i] = answer
            if first_failure(answers, errors.QueueSealed) is None:
                return outcomes
            todo = [i for i in todo if isinstance(outcomes[i], errors.QueueSealed)]
        return [unopened(name) if isinstance(o, errors.QueueSealed) else o for o in outcomes]

    async def _add_many(
        self,
        route: Route,
        payloads: Sequence[bytes],
        scores: Sequence[float],
        told: Sequence[SortedOptions] | None,
    ) -> Sequence[Outcome]:
        topic, outcomes = route.topic, list[Outcome]()
        while len(outcomes) < len(payloads):
            chunk = slice(len(outcomes), len(outcomes) + CHUNK)
            if outcomes and (changed := await self._changed(topic)) is not None:
                return outcomes + [changed] * (len(payloads) - len(outcomes))
            if told is None and topic.options.merge != "key":
                outcomes += await self._add_contents(route, payloads[chunk], scores[chunk])
            else:
                now_us, options = self._clock.now_us(), told[chunk] if told else repeat(_NOTHING)
                each = zip(payloads[chunk], scores[chunk], options, strict=False)
                outcomes += await self._add_items([self._item(route, *of_one, now_us) for of_one in each])
            if (failure := first_failure(outcomes[chunk], *FAILURES, errors.QueueSealed)) is not None:
                outcomes += [unsent(failure)] * (len(payloads) - len(outcomes))
        return outcomes

    async def _changed(self, topic: Topic) -> errors.EMQError | None:
        """Return an error if the topic has changed in the catalog; `QueueSealed` if a changed topic is still there."""
        try:
            now = (await self._router.route(topic.name)).topic
        except errors.EMQError as exc:
            return exc
        return None if now == topic else errors.QueueSealed(f"topic {topic.name!r} was changed; look at it again")

    async def _add_contents(
        self, route: Route, payloads: Sequence[bytes], scores: Sequence[float]
    ) -> Sequence[Outcome]:
        """Add as many of the first bare contents as fit into one call."""
        n = fitting([*map(len, payloads)])
        return await self._add_bare(route, payloads[:n], scores[:n], self._clock.now_us())

    async def _add_items(self, items: Sequence[_Item]) -> Sequence[Outcome]:
        """Add items in as few calls as their sizes allow; leave out all items after a call that was not served."""
        outcomes: list[Outcome] = []
        while items and first_failure(outcomes, *FAILURES, errors.QueueSealed) is None:
            n = fitting([*map(_size, items)])
            outcomes += await self._add(items[:n], items[0].topic.options.durability)
            items = items[n:]
        return outcomes

    def _item(self, route: Route, payload: bytes, score: float, told: SortedOptions, now_us: int) -> _Item:
        topic, slots, share = route.topic, route.slots, _share(route.topic)
        if not slots[0].apart:
            member = payload
            index = zlib.crc32(payload if told.key is None else told.key.encode()) % topic.slots
            return _Item(topic, SlotAdd(slots[index], member, score, topic.keep, max_length=share), index, now_us)
        folds.check(topic.fold, payload)
        member = payload if told.merge_key is None else checks.merge_key_of(topic, told.merge_key)
        index = zlib.crc32(member if told.key is None else told.key.encode()) % topic.slots
        headers = dict(told.headers) if told.headers else None
        note = message.encode_note(
            message.Note(told.key, now_us, headers, expires_us(topic, score, told.ttl_s, now_us))
        )
        add = SlotAdd(slots[index], member, score, topic.keep, payload, note, topic.fold, share)
        return _Item(topic, add, index, now_us)

    async def _add(self, items: Sequence[_Item], durability: Durability) -> Sequence[Outcome]:
        answers = await self._answers([item.add for item in items], durability)
        ids: list[Outcome] = []
        for item, answer in zip(items, answers, strict=True):
            ids.append(answer if isinstance(answer, errors.EMQError) else message.slot_id(item.group, item.add.member))
        self.published += sum(1 for answer in answers if not isinstance(answer, errors.EMQError))
        if self._trail.enabled:
            self._record(items, answers, ids)
        return ids

    async def _answers(self, adds: Sequence[SlotAdd], durability: Durability) -> Sequence[bool | errors.EMQError]:
        try:
            return await of_each(self._store.add(adds, durability), len(adds))
        except errors.EMQError as exc:  # not raised: the caller needs the outcomes of earlier calls, too
            return [exc] * len(adds)

    async def _add_bare(
        self, route: Route, payloads: Sequence[bytes], scores: Sequence[float], now_us: int
    ) -> Sequence[Outcome]:
        """Do the same as `_add` for bare contents by the thousand, faster: without checks that they do not need."""
        topic, slots = route.topic, route.slots
        share, keep, mask, crc32 = _share(topic), topic.keep, topic.slots - 1, zlib.crc32
        places = [crc32(payload) & mask for payload in payloads]
        each = zip(places, payloads, scores, strict=True)
        adds = [SlotAdd(slots[place], payload, score, keep, b"", b"", LATEST, share) for place, payload, score in each]
        answers = await self._answers(adds, topic.options.durability)
        slot_id = message.slot_id
        ids = [slot_id(place, payload) for place, payload in zip(places, payloads, strict=True)]
        refusals = [answer for answer in answers if not isinstance(answer, bool)]
        self.published += len(ids) - len(refusals)
        told = [id_ if isinstance(a, bool) else a for a, id_ in zip(answers, ids, strict=True)] if refusals else ids
        if self._trail.enabled:
            items = [_Item(topic, add, place, now_us) for add, place in zip(adds, places, strict=True)]
            self._record(items, answers, told)
        return told

    def _record(
        self, items: Sequence[_Item], answers: Sequence[bool | errors.EMQError], ids: Sequence[Outcome]
    ) -> None:
        now_us = self._clock.now_us()
        for item, answer, id_ in zip(items, answers, ids, strict=True):
            name, group = item.topic.name, item.group
            if isinstance(id_, Exception):
                if isinstance(id_, errors.OutcomeUnknown):
                    slot_id = message.slot_id(group, item.add.member)
                    self._trail.record(events.Doubted(now_us, name, group, [slot_id], 0))
            elif answer is True:
                due = None if item.topic.kind is Kind.PRIORITY else [int(item.add.score)]
                self._trail.record(events.Published(now_us, name, group, [id_], 0, item.published_us, due_ms=due))
            else:
                self._trail.record(events.Merged(now_us, name, group, [id_], item.published_us))


def check(topic: Topic, payloads: Sequence[bytes], told: Sequence[SortedOptions] | None) -> None:
    """Raise `InvalidMessage` if the topic cannot store a message with its options."""
    apart = topic.options.merge == "key"
    for options in told or ():
        if options.merge_key is not None:
            checks.merge_key_of(topic, options.merge_key)
        if not apart:
            _check_bare(topic, options)
    if apart:
        for payload in payloads:
            folds.check(topic.fold, payload)


def _fit(checked: Topic, topic: Topic) -> None:
    """Raise `InvalidMessage` if scores and options mean something else in `topic` than where they were checked."""
    for name, was, is_ in (
        ("kind", checked.kind, topic.kind),
        ("merge", checked.options.merge, topic.options.merge),
        ("priority_policy", checked.options.priority_policy, topic.options.priority_policy),
        ("aging_s", checked.options.aging_s, topic.options.aging_s),
    ):
        if is_ != was:
            raise errors.InvalidMessage(
                f"topic {topic.name!r} was changed while messages went to it: its {name} was {was}, and is {is_}; send "
                "them again"
            )


def expires_us(topic: Topic, due_ms: float, ttl_s: float | None, now_us: int) -> int:
    """Return the microsecond at which a message's own time to live, which starts when it is ready, ends; 0 for none."""
    if ttl_s is None:
        return 0
    ready_us = now_us if topic.kind is Kind.PRIORITY else int(due_ms * 1000)
    return ready_us + checks.ttl_us(ttl_s)


def _check_bare(topic: Topic, told: SortedOptions) -> None:
    """Refuse options that a topic of bare contents cannot store."""
    given = [name for name, value in told._asdict().items() if value is not None and name != "key"]
    if given:
        raise errors.InvalidMessage(
            f"topic {topic.name!r} stores bare contents, so {given[0]} cannot travel along; create it with merge='key'"
        )
    if told.key is not None and topic.options.ordering == "key":
        raise errors.InvalidMessage(
            f"topic {topic.name!r} stores bare contents, so hosts cannot see keys; create it with merge='key', or with "
            "ordering='slot'"
        )


def _share(topic: Topic) -> int | None:
    limit = topic.options.max_length
    return None if limit is None else max(1, limit // topic.slots)


def _size(item: _Item) -> int:
    return len(item.add.member) + len(item.add.body) + len(item.add.note)
