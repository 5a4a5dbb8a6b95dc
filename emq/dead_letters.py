"""Dead letters: look at them, put them back, or throw them away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec

from emq import message
from emq.model import Topic
from emq.storage import Add, DeadLetter, LaneStore, Settle, Verdict
from emq.trail.sink import NullTrail, TrailSink

PAGE = 500

NO_TRAIL = NullTrail()


class Letter(NamedTuple):
    """Attributes:
    topic, group, priority: where it belongs; `priority` is a name.
    id, payload, attempts: of the message.
    reason: what the last attempt failed with.
    dead_ms: when it died, milliseconds since the epoch.
    """

    topic: str
    group: int
    priority: str
    id: str
    payload: bytes
    attempts: int
    reason: str
    dead_ms: int


class Selection(NamedTuple):
    """Which dead letters are meant; every condition that is given must hold.

    Attributes:
        since_ms, until_ms: time of death in [since_ms, until_ms).
        reason: part of the reason, in any case.
        ids: message ids; empty for all.
    """

    since_ms: int = 0
    until_ms: int = 1 << 62
    reason: str = ""
    ids: frozenset[str] = frozenset()

    def matches(self, letter: DeadLetter) -> bool:
        return (
            self.since_ms <= letter.dead_ms < self.until_ms
            and self.reason.lower() in letter.reason.lower()
            and (not self.ids or letter.id in self.ids)
        )


EVERY = Selection()


async def find(store: LaneStore, topic: Topic, selection: Selection = EVERY) -> AsyncIterator[Letter]:
    """The topic's dead letters that are meant, group by group, oldest first in each; read in pages."""
    async for group, dead in _find(store, topic, selection):
        m = _decoded(dead)
        priority = topic.priorities[min(m.priority, len(topic.priorities) - 1)]
        yield Letter(topic.name, group, priority, dead.id, m.payload, m.attempt, dead.reason, dead.dead_ms)


async def replay(
    store: LaneStore,
    topic: Topic,
    selection: Selection = EVERY,
    *,
    rate_per_s: float | None = None,
    on_replayed: Callable[[int], None] = lambda _: None,
    trail: TrailSink = NO_TRAIL,
) -> int:
    """Deliver dead letters again, as first attempts at their own priority; answers how many.

    Each moves from dead to waiting in one step, so that none is lost or doubled if this is cut short.

    Args:
        rate_per_s: most letters put back in a second, so that a large replay does not crowd out fresh messages; they
            also count against the topic's quota like everything else. None for no limit of its own.
        on_replayed: called with the number so far.
        trail: where each is recorded as replayed, with the time just before it was put back.
    """
    count, started = 0, time.monotonic()
    now_ms = int(time.time() * 1000)
    # What dies again while this runs is not replayed twice.
    selection = selection._replace(until_ms=min(selection.until_ms, now_ms + 1))
    async for group, dead in _find(store, topic, selection):
        m = _decoded(dead)
        m.attempt, m.error, m.topic = 1, None, topic.name
        now = time.time()
        body = message.encode_retry(m)
        [done] = await store.settle([Settle(dead.slot, dead.id, Verdict.REPLAY, None, int(now * 1000), body)])
        if done is True:
            count += 1
            trail.replayed(topic.name, group, m.priority, [dead.id], int(now * 1e6))
        on_replayed(count)
        if rate_per_s is not None:
            await asyncio.sleep(max(0.0, started + count / rate_per_s - time.monotonic()))
    return count


async def purge(store: LaneStore, topic: Topic, selection: Selection = EVERY) -> int:
    """Throw dead letters away for good; answers how many."""
    count = 0
    async for _, dead in _find(store, topic, selection):
        [done] = await store.settle([Settle(dead.slot, dead.id, Verdict.PURGE)])
        count += done is True
    return count


async def move(store: LaneStore, slot: str, to: str) -> int:
    """Move a retired group's dead letters to another slot. Added there before they are dropped here, so a crash in
    between leaves them in both until this is repeated, and never in neither."""
    count = 0
    while page := await store.dead(slot, limit=PAGE):
        await store.add([Add(to, d.id, d.body, d.dead_ms, reason=d.reason) for d in page])
        await store.settle([Settle(slot, d.id, Verdict.PURGE) for d in page])
        count += len(page)
    return count


async def _find(store: LaneStore, topic: Topic, selection: Selection) -> AsyncIterator[tuple[int, DeadLetter]]:
    for group in range(topic.groups):
        after = (max(0, selection.since_ms - 1), "\U0010ffff") if selection.since_ms else (0, "")
        while page := await store.dead(topic.group(group), after, PAGE):
            after = (page[-1].dead_ms, page[-1].id)
            for dead in page:
                if selection.matches(dead):
                    yield group, dead
            if page[-1].dead_ms >= selection.until_ms:
                break


def _decoded(dead: DeadLetter) -> message.Message:
    try:
        return message.decode(dead.body)
    except msgspec.DecodeError:
        return message.Message(id=dead.id, payload=bytes(dead.body))
